# SPDX-License-Identifier: GPL-2.0-or-later
"""Hostile local users, beside a flood and commits: does the daemon still see these, and live?

    sudo build/venv/bin/python -m tests.soak.hostile [--minutes 60] [--users NAME ...]

The daemon enforces in a memory cgroup of its unit's size, with tables as on 16 processors (--cpus),
on a modelled disk of 40 MB/s.  USERS: what they do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack as Stack
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from tests.kernel.fault_rig import limits_kept
from tests.kernel.scratch import scratch_disk
from tests.kernel.test_commits import MANY_TMPFS
from tests.kernel.test_socket_abuse import ATTACKER
from tests.lab.agent import Agent
from tests.lab.flood_ways import DISK
from tests.lab.rig import Rig
from tests.vm.inside.flood import FLOOD, SCRATCH, SYNCS, background, scratch_disk_name
from writebackd.kernel.cgroup_io_max import cgroup2_mount
from writebackd.kernel.files import KernelFiles

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "systemd/writebackd.service"
ENTER = 'echo $$ >"$0/cgroup.procs"; exec "$@"'
CGROUPS, CLIENTS = 4096, 64
GROWN_MIB = 16  # most that they may make of it; 29 with whole paths of all cgroups
SETTLED_S = 30  # until the sync demand is known
PATIENCE_S = 300  # where processors are emulated
TABLES = """
import functools, sys
from writebackd.kernel import libbpf
libbpf.possible_cpus = functools.partial(int, sys.argv.pop(1))
from writebackd.cli.daemon_main import main
sys.exit(main(sys.argv[1:]))
"""
# 1400 threads that dirty 10 MB/s together, each at a grain of the probe's table.
DIRTYING = """
import os, sys, threading, time
def write(n):
    fd = os.open(f"{sys.argv[1]}/{n}", os.O_RDWR | os.O_CREAT)
    time.sleep(n / 40)
    while True:
        os.pwrite(fd, bytes(1 << 18), 0)
        time.sleep(35)
for n in range(1400):
    threading.Thread(target=write, args=(n,)).start()
"""
HANGING = """
import os, sys, threading
for n in range(1000):
    threading.Thread(target=os.fsync, args=(os.open(sys.argv[1], os.O_RDWR),)).start()
"""
# A process in each cgroup that it reads the path of; begun there: to move one waits for all CPUs.
SYNCING = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    char path[4096];
    while (scanf("%4095[^\\n]%*c", path) == 1) {
        unsigned long args[11] = {0x200000000, 0, 0, 0, SIGCHLD, [10] = open(path, O_RDONLY)};
        if (!syscall(435, args, sizeof(args))) /* clone3, CLONE_INTO_CGROUP */
            for (;; sleep(4))
                fsync(file);
        close(args[10]);
    }
    creat(argv[2], 0600);
    pause();
}
"""
FIRE = "\U0001f525"  # beyond U+FFFF: as Python's text, each letter beside it takes four bytes


class Bound:
    """A memory cgroup of the unit's size; v1 where v2 has no memory controller."""

    def __init__(self, mount: Path) -> None:
        v2 = "memory" in _text(mount / "cgroup.controllers").split()
        most, peak, events = (
            ("memory.max", "memory.peak", "memory.events") if v2 else
            ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"))
        if v2:
            (mount / "cgroup.subtree_control").write_text("+memory")
        self.top = (mount if v2 else Path("/sys/fs/cgroup/memory")) / "writebackd-hostile"
        self.top.mkdir()
        self._peak, self._events = self.top / peak, self.top / events
        (size,) = re.findall(r"^MemoryMax=(\d+)M$", UNIT.read_text(), re.MULTILINE)
        self.most_mib = int(size)
        (self.top / most).write_text(str(self.most_mib << 20))

    @property
    def peak_mib(self) -> float:
        return round(int(_text(self._peak)) / (1 << 20), 1)

    @property
    def kills(self) -> int:
        return int(re.findall(r"^oom_kill (\d+)$", _text(self._events), re.MULTILINE)[0])


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def tmpfs(stack: Stack, disk: Path, other: Path, agent: Agent) -> None:
    """2500 filesystems in memory, mounted and synced in a namespace of its own, again and again."""
    storm = 'while :; do unshare --mount --propagation private "$@"; done'
    stack.enter_context(background(
        "sh", "-c", storm, "sh", sys.executable, "-c", MANY_TMPFS, str(other)))


def threads(stack: Stack, disk: Path, other: Path, agent: Agent) -> None:
    """1400 threads, each of which dirties a little."""
    (disk / "threads").mkdir()
    stack.enter_context(background(sys.executable, "-c", DIRTYING, str(disk / "threads")))


def fuse(stack: Stack, disk: Path, other: Path, agent: Agent) -> None:
    """A thousand syncs of a FUSE filesystem whose server has stopped."""
    file = agent.directory / "hung"
    file.touch()
    stack.callback(subprocess.run, ["umount", "--lazy", str(file)], stderr=subprocess.DEVNULL)
    server = "nbdfuse $0 --command sh -c 'echo $$ >$0; exec nbdkit -s memory 1M' $0.pid"
    stack.enter_context(background("sh", "-c", f"exec {server}", str(file)))
    while f" {file} fuse" not in _text(Path("/proc/mounts")):
        time.sleep(0.1)
    os.kill(int(_text(file.with_suffix(".pid"))), 19)
    stack.enter_context(background(sys.executable, "-c", HANGING, str(file)))
    # First of all: what it has stopped cannot be killed while they wait for it.
    stack.callback(os.kill, int(_text(file.with_suffix(".pid"))), 9)


def cgroups(stack: Stack, disk: Path, other: Path, agent: Agent) -> None:
    """4096 cgroups of long paths, every fourth too long to be told, with a process in each."""
    top, program, paths = _mount() / "hostile", agent.directory / "sync", agent.directory / "paths"
    subprocess.run(["cc", "-O", "-x", "c", "-o", program, "-"], input=SYNCING.encode(), check=True)
    stack.callback(_removed, top)
    with open(paths, "w", encoding="utf-8") as listed:
        for n in range(CGROUPS):
            above = [FIRE + "a" * 230] * (1 if n % 4 else 15)
            place = top.joinpath(*above, f"{FIRE}{'b' * 200}{n}")
            place.mkdir(parents=True)
            print(place, file=listed)
    made = other / "made"
    stack.enter_context(background(str(program), str(other / "synced"), str(made),
                                   stdin=stack.enter_context(open(paths, "rb"))))  # fmt: skip
    while not made.exists():
        time.sleep(0.5)


def clients(stack: Stack, disk: Path, other: Path, agent: Agent) -> None:
    """64 clients of two users that ask for status and do not read the answer."""
    for user in ("nobody", "daemon"):
        stack.enter_context(background(
            "/usr/bin/python3", "-c", ATTACKER, str(agent.runtime / "control.sock"), "deaf", "1e6",
            str(CLIENTS), user=user, group="nogroup", extra_groups=[], cwd="/", env={}))


USERS: Mapping[str, Callable[[Stack, Path, Path, Agent], None]] = {
    each.__name__: each for each in (tmpfs, threads, fuse, cgroups, clients)
}


def _mount() -> Path:
    found = cgroup2_mount(KernelFiles())
    assert found is not None, "no cgroup v2"
    return Path(found)


def _removed(top: Path) -> None:
    """A cgroup and those below, as soon as their processes are gone."""
    for place, _, _ in os.walk(os.fsencode(top), topdown=False):
        for _ in range(200):
            with contextlib.suppress(OSError):
                os.rmdir(place)
                break
            time.sleep(0.05)


def attacked(seconds: float, users: Sequence[str], in_guest: bool, cpus: int) -> List[str]:
    """What was promised and is not so."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(limits_kept())
        if in_guest:
            device, disk, home = scratch_disk_name(), SCRATCH, Path("/run/hostile")
            home.mkdir()
        else:
            rig = stack.enter_context(Rig("hostile", "ext4", DISK))
            device, disk, home = rig.device, rig.mountpoint, rig.directory
        home.chmod(0o755)
        other = stack.enter_context(scratch_disk("ext4", 64))
        bound = Bound(_mount())
        stack.callback(_removed, bound.top)  # the watcher is in there, and ends after the daemon

        def spawn(argv: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
            program = [sys.executable, "-c", TABLES, str(cpus), *argv[1:]]
            return subprocess.Popen(["sh", "-c", ENTER, str(bound.top), *program], **options)

        agent = Agent([device], home, spawn, ["--mode", "enforce"])
        agent.PATIENCE_S = PATIENCE_S
        stack.enter_context(agent)
        assert other.mountpoint is not None
        before_mib = bound.peak_mib
        for user in users:
            USERS[user](stack, disk, other.mountpoint, agent)
            print(f"{user}: {bound.peak_mib} MiB at most so far", flush=True)
        stack.enter_context(background(sys.executable, "-c", SYNCS, str(disk / "synced")))
        stack.enter_context(background("sh", "-c", FLOOD, str(disk)))
        time.sleep(SETTLED_S)
        seen: List[Dict[str, Any]] = []  # the status, once a second
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen.append(agent.status(PATIENCE_S))
            time.sleep(1.0)
        (rows,) = zip(*([row for row in each["devices"] if row["name"] == device] for each in seen))
        last, log, kills = seen[-1], agent.log.read_text(), bound.kills
        found = {
            "statuses": len(seen),
            "without_sync_demand": sum(not row["sync_demand"] for row in rows),
            "without_syncs": sum(not row["sync_rate"] for row in rows),
            "without_the_flood": sum(
                "dd" not in {each["comm"] for each in status["dirtiers"]} for status in seen),
            "alerts": sorted({each["name"] for status in seen for each in status["alerts"]}),
            "lost": last["probe"]["lost"], "leases_lost": last["lease"]["lost"],
            "maps_mib": round(last["self"]["map_bytes"] / (1 << 20), 1),
            "memory_before_mib": before_mib, "memory_peak_mib": bound.peak_mib,
            "of": bound.most_mib, "oom_kills": kills,
        }
        print(json.dumps(found, indent=1), flush=True)
        wrong = {
            "it ended": kills or not agent.alive(),
            "memory grew": bound.peak_mib > min(bound.most_mib - 1, before_mib + GROWN_MIB),
            "sync demand was lost": found["without_sync_demand"],
            "a lease was lost": found["leases_lost"],
            f"a program error: {log[-2000:]}": "Traceback" in log,
        }
        return [text for text, is_so in wrong.items() if is_so]


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.hostile")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--users", nargs="*", choices=USERS, default=list(USERS))
    parser.add_argument("--in-guest", action="store_true", help="flood the disk of TMPDIR")
    parser.add_argument("--cpus", type=int, default=16)
    options = parser.parse_args(argv)
    wrong = attacked(60 * options.minutes, options.users, options.in_guest, options.cpus)
    print("\n".join(wrong or ["nothing was lost"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
