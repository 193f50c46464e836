# SPDX-License-Identifier: GPL-2.0-or-later
"""The rights that the systemd unit leaves are enough to see everything root sees."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Sequence

import pytest

from tests.kernel.fault_rig import is_alive, wait_for

UNIT = Path(__file__).resolve().parents[2] / "systemd" / "writebackd.service"
# What the probe found, comparable between two processes.
SHOW_PROBE = """
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.probe import open_probe
probe = open_probe("auto", KernelFiles(), False, True)
info = probe.info()
print(info.backend, info.request_hook, info.fsync_hook, *info.misses, sep="; ")
probe.close()
"""


def bounding_set() -> List[str]:
    match = re.search(r"^CapabilityBoundingSet=(.+)$", UNIT.read_text(), re.MULTILINE)
    assert match
    return [name.replace("CAP_", "").lower() for name in match[1].split()]


def confined(names: Sequence[str]) -> List[str]:
    """What runs a command with no more than these capabilities, and LimitMEMLOCK= of the unit.

    Before 5.11 BPF maps count as locked memory; later no container's root has to be allowed it.
    """
    capabilities = ",".join(["-all", *(f"+{name}" for name in names)])
    unlimited = ["sh", "-c", 'ulimit -l unlimited 2>/dev/null; exec "$@"', "sh"]
    return [*unlimited, "setpriv", f"--bounding-set={capabilities}", "--inh-caps=-all",
            "--no-new-privs"]  # fmt: skip


def said(*argv: str, timeout: float = 30) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def probe_of(*prefix: str) -> str:
    # Emulated on a busy host it took 20 s.
    return said(*prefix, sys.executable, "-c", SHOW_PROBE, timeout=180)


@pytest.fixture(autouse=True)
def root_with_setpriv() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: BPF programs are loaded")
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is missing: apt-get install util-linux")


def test_capabilities_of_the_unit_suffice_and_each_is_needed(
    capsys: pytest.CaptureFixture[str]
) -> None:
    names = bounding_set()
    seen = probe_of(*confined(names))
    with capsys.disabled():
        print(f"\n  with {' '.join(names)}: {seen.strip()}")
    assert seen.startswith("libbpf") and seen == probe_of()
    for left_out in names:
        fewer = [name for name in names if name != left_out]
        assert probe_of(*confined(fewer)) != seen, f"{left_out} is not needed"


# As the daemon: a sync of a thread of another user's, 20 s old, while /proc hides it.
WATCH_SYNC = """
import sys, time
from writebackd.kernel import bpf_layout as layout
from writebackd.kernel.host_facts import read_facts
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.hidepid import HidePid
from writebackd.kernel.map_readers import SyncReader

class Table:
    max_entries = 8
    def __init__(self, rows):
        self.rows = rows
    def batch_reader(self, most):
        return self
    def read(self):
        return list(self.rows.items())
    def delete(self, key):
        del self.rows[key]

start = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - 20_000_000_000
tid = int(sys.argv[1]).to_bytes(4, sys.byteorder)
inflight = Table({tid: layout.SYNC_START.pack(start, 0, 0, 0, 0)})
reader = SyncReader(Table({}), inflight)

def look():
    (sample,) = reader.read().values() or (None,)
    return "gone" if sample is None else f"{sample.inflight} for {sample.oldest_s:.0f} s"

print(look(), reader.abandoned, flush=True)
facts = read_facts(KernelFiles())
print(facts.unseen, flush=True)
print(HidePid(KernelFiles()).unseen(), flush=True)
sys.stdin.readline()
print(look(), reader.abandoned, flush=True)
"""


@pytest.mark.parametrize("option", ["hidepid=2,gid=54321", "hidepid=4"])
def test_a_sync_of_a_process_that_proc_hides_stays(option: str) -> None:
    if not shutil.which("unshare"):
        pytest.skip("unshare is missing: apt-get install util-linux")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    sleeper = subprocess.Popen([*nobody, "sleep", "120"])
    try:
        daemon = [*confined(bounding_set()), "--clear-groups"]
        mounted = f'mount -t proc -o {option} proc /proc && exec "$@"'
        watching = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mounted, "sh", *daemon,
             sys.executable, "-c", WATCH_SYNC, str(sleeper.pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert watching.stdout is not None
        lines = [watching.stdout.readline().rstrip("\n") for _ in range(3)]
    finally:
        sleeper.kill()
        sleeper.wait()
    ended, _ = watching.communicate("\n", timeout=30)
    assert watching.returncode == 0
    assert re.fullmatch(r"1 for 2\d s 0", lines[0])  # at least 20 s, more on a busy host
    assert lines[1].startswith("hidepid=")
    assert re.fullmatch(r"/proc is mounted hidepid=\w+.* are not visible.*", lines[2])
    assert ended == "gone 1\n"


# A hook that hangs with a child, run as the routes of alerts run it.
RUN_HOOK = """
import sys
from writebackd.notify.exec_hook import run_program
from writebackd.notify.route import Refused
try:
    run_program([sys.argv[1]], b"{}", 3.0)
except Refused as error:
    print(error)
"""


# How it would be run, or why not.
CHOOSE = """
from writebackd.notify.exec_hook import unprivileged
from writebackd.notify.route import RouteError
try:
    print(unprivileged("exec", ["/bin/true"], 3.0)[0])
except RouteError as error:
    print(error)
"""


@pytest.mark.parametrize("limited", [True, False])
def test_no_program_of_a_route_runs_as_root(limited: bool) -> None:
    chosen = said(*(confined(bounding_set()) if limited else ()), sys.executable, "-c", CHOOSE)
    if not limited:
        assert chosen == "setpriv\n"
    elif Path("/run/dbus/system_bus_socket").exists() and Path("/run/systemd/system").exists():
        assert chosen == "systemd-run\n"
    else:
        assert chosen.startswith("not started: this process cannot give up root")


def test_hooks_can_be_started_and_killed(tmp_path: Path) -> None:
    hook, seen = tmp_path / "hook", tmp_path / "seen"
    mine = "$(cat /proc/$$/oom_score_adj)"
    hook.write_text(
        "#!/bin/sh\nsleep 60 &\n"
        f'until [ "{mine}" = 500 ]; do sleep 0.01; done; echo $$ $! >{seen}; wait\n'
    )
    hook.chmod(0o755)
    told = said(*confined(bounding_set()), sys.executable, "-c", RUN_HOOK, str(hook))
    assert told.strip() == "killed: not done within 3 s"
    pids = [int(word) for word in seen.read_text().split()]  # its child as well
    wait_for(lambda: not any(map(is_alive, pids)), 5.0, "for both to be killed")
