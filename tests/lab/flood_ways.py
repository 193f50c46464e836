# SPDX-License-Identifier: GPL-2.0-or-later
"""Nine ways to flood a disk beside commits: which alert, who is named, after how many seconds.

    sudo build/venv/bin/python -m tests.lab.flood_ways [LIMIT ...] [--ways WAY ...]

A disk of 40 MB/s without a write cache; 4 KiB write + fsync every 4 ms.  LIMIT is `default` (the
kernel's), `16M` or `agent`: the agent enforces in the last case, else it observes.  A flood writes
a new file of 1000 MB, the buffered one of 6000, and ends two seconds after an alert.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from . import host
from .agent import Agent
from .disks import Disk
from .rig import Rig

DISK = Disk(size="8G", rate="40M", link="200M", cache="0", latency_us=100, seek_us=1000)
# As the shipped defaults, but that an alert ends with the flood.
POLICY = "[policy]\nname = default\nsummary = s\n[alerts]\nhold = 0s\nresolve-after = 2s\n"
MIB = 1 << 20
FILE_MB, BUFFERED_MB = 1000, 6000  # default limits let a host with much memory keep 1000 dirty
LEARN_S, FLOOD_S, NAMED_S, REST_S = 30.0, 15.0, 2.0, 3.0
HELD_S = 8.0  # of a flood that the agent holds
LIMITS: Dict[str, Optional[host.Limits]] = {
    "default": dict(host.DEFAULT_LIMITS),
    "16M": {"dirty_bytes": 16 * MIB, "dirty_ratio": 0,
            "dirty_background_bytes": 8 * MIB, "dirty_background_ratio": 0},
    "agent": None,
}  # fmt: skip


def _chunks(
    fd: int, after: Callable[[int], object] = lambda at: None, size_mb: int = FILE_MB
) -> None:
    data = os.urandom(MIB)
    for at in range(0, size_mb * MIB, MIB):
        os.pwrite(fd, data, at)
        after(at)


def _buffered(path: str) -> None:
    while True:
        _chunks(os.open(path, os.O_WRONLY), size_mb=BUFFERED_MB)


def _synced(sync: Callable[[int], object]) -> Callable[[str], None]:
    def flood(path: str) -> None:
        fd = os.open(path, os.O_WRONLY)
        while True:
            _chunks(fd)
            sync(fd)

    return flood


def _direct(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    data = mmap.mmap(-1, MIB)  # aligned
    while True:
        for at in range(0, FILE_MB * MIB, MIB):
            os.pwritev(fd, [data], at)


def _o_sync(path: str) -> None:
    while True:
        _chunks(os.open(path, os.O_WRONLY | os.O_SYNC))


def _mapped(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    os.truncate(fd, FILE_MB * MIB)
    pages, data = mmap.mmap(fd, FILE_MB * MIB), os.urandom(MIB)
    while True:
        for at in range(0, FILE_MB * MIB, MIB):
            pages[at:at + MIB] = data
        pages.flush()


def _ranges(path: str) -> None:
    libc, fd = ctypes.CDLL(None), os.open(path, os.O_WRONLY)
    write = libc.sync_file_range
    write.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    while True:
        _chunks(fd, lambda at: write(fd, at, MIB, 2))


def _io_uring(path: str) -> None:
    os.execvp("fio", ["fio", "--name=uring", f"--filename={path}", "--ioengine=io_uring",
                      "--rw=write", "--bs=1M", "--iodepth=16", f"--size={FILE_MB}M", "--fsync=500",
                      "--time_based", "--runtime=600", "--thread", "--output=/dev/null"])


WAYS: Dict[str, Callable[[str], None]] = {
    "buffered": _buffered,
    "fsync": _synced(os.fsync),
    "fdatasync": _synced(os.fdatasync),
    "O_DIRECT": _direct,
    "O_SYNC": _o_sync,
    "msync": _mapped,
    "sync_file_range": _ranges,
    "io_uring": _io_uring,
    "syncfs": _synced(lambda fd: ctypes.CDLL(None).syncfs(fd)),
}


def _commit(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    for n in range(1 << 30):
        began = time.monotonic()
        os.pwrite(fd, os.urandom(4096), 4096 * (n * 7919 % 4096))
        os.fsync(fd)
        time.sleep(max(0.0, 4e-3 - (time.monotonic() - began)))


def _child(way: str, path: str) -> int:
    # Its name, which an alert has to say.
    ctypes.CDLL(None).prctl(15, f"f-{way}"[:15].encode(), 0, 0, 0)
    (_commit if way == "commit" else WAYS[way])(path)
    return 0


def _spawn(rig: Rig, way: str, path: Path) -> "subprocess.Popen[bytes]":
    return rig.spawn([sys.executable, "-m", "tests.lab.flood_ways", "--child", way, str(path)],
                     cwd=str(Path(__file__).resolve().parents[2]))  # fmt: skip


def _writes(pid: int) -> int:
    """Of a committer: its commits."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["syscw"])


def told(rig: Rig, agent: Agent, way: str, committer: int, flood_s: float) -> str:
    """The row of one way."""
    flood = rig.mountpoint / "flood"
    flood.touch()
    while agent.status()["alerts"]:
        time.sleep(0.25)
    running = _spawn(rig, way, flood)
    began, commits, first = time.monotonic(), _writes(committer), 0.0
    alerts: List[Dict[str, Any]] = []
    while time.monotonic() - began < (first + NAMED_S if alerts else flood_s):
        time.sleep(0.25)
        alerts = agent.status()["alerts"] or alerts
        if alerts and not first:
            first = time.monotonic() - began
    rate = (_writes(committer) - commits) / (time.monotonic() - began)
    running.kill()
    os.truncate(flood, 0)  # nothing of it is left to be written
    running.wait()
    flood.unlink()
    cells = [way, f"{rate:.1f}", "-", "-", "-"]
    if alerts:
        who = ", ".join(each["comm"] for each in alerts[0]["culprits"]) or "nobody"
        cells[2:] = [f"{first:.1f} s", f"{alerts[0]['name']}, {alerts[0]['cause']}", who]
    return "| " + " | ".join(cells) + " |"


def run(limit: str, ways: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="writebackd-ways-") as directory:
        (Path(directory) / "default.conf").write_text(POLICY)
        with Rig("ways", "ext4", DISK) as rig:
            rig.control.set("rate", "4G")
            data = rig.mountpoint / "data"
            subprocess.run(["dd", "if=/dev/zero", f"of={data}", "bs=1M", "count=16",
                            "oflag=direct"], check=True, stderr=subprocess.DEVNULL)  # fmt: skip
            rig.control.set("rate", DISK.rate)
            limits = LIMITS[limit]
            mode, flood_s = ("observe", FLOOD_S) if limits else ("enforce", HELD_S)
            host.write_limits(limits or host.DEFAULT_LIMITS)
            with Agent([rig.device], rig.directory, rig.spawn,
                       ["--mode", mode, "--config-dir", directory]) as agent:  # fmt: skip
                commits = _spawn(rig, "commit", data)
                time.sleep(LEARN_S - REST_S)
                for way in ways:
                    time.sleep(REST_S)
                    print(f"| {limit} {told(rig, agent, way, commits.pid, flood_s)}", flush=True)
                commits.kill()


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--child"]:
        return _child(*arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.lab.flood_ways")
    parser.add_argument("limit", nargs="*", choices=[*LIMITS, []], default=list(LIMITS))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    options = parser.parse_args(arguments)
    for limit in options.limit or LIMITS:
        run(limit, options.ways)
    return 0


if __name__ == "__main__":
    sys.exit(main())
