# SPDX-License-Identifier: GPL-2.0-or-later
"""Daemon and watcher as the units that are installed, under a systemd that has booted.

The first tests take them as they are.  For the others the daemon's law asks for what a
test wants, and it starts without BPF, which takes seconds here; sandbox, lease, watchdog
and start limit are those of a host.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Dict, Iterator, List, Set

import pytest

from tests.kernel.fault_rig import PIN, is_alive, limits
from tests.kernel.scratch import run
from tests.vm.inside.rig import (
    WISHING,
    bandwidths,
    devno_of,
    io_max,
    null_disk,
    sleeper,
    state,
    wait_for,
    wish,
    wishes_for,
)
from writebackd.paths import RAID
from writebackd.storage import report_file
from writebackd.types.levers import LeverKind, VmLimits
from writebackd.types.storage import Protection

DAEMON, WATCH = "writebackd.service", "writebackd-watch.service"
PROBE = "writebackd-probe.service"
COLLECTOR, TIMER = "writebackd-raid.service", "writebackd-raid.timer"
RUNTIME = Path("/run/writebackd")
LEASE_S, WATCHDOG_S, STARTS = 10.0, 30.0, 5
PROGRAM = Path("/run/wishing.py")
DROP_IN = Path(f"/run/systemd/system/{DAEMON}.d/wishing.conf")


def show(unit: str, name: str) -> str:
    return run("systemctl", "show", "--value", "--property", name, unit)


def pid_of(unit: str) -> int:
    return int(show(unit, "MainPID"))


def journal() -> str:
    run("journalctl", "--sync")
    return run("journalctl", "--no-pager", "--output", "cat", "-u", DAEMON, "-u", WATCH)


def started(unit: str) -> int:
    """When its process was started, microseconds since the boot."""
    return int(show(unit, "ExecMainStartTimestampMonotonic"))


def said(words: str) -> None:
    wait_for(lambda: words in journal(), 10.0, f"for {words!r}")


@contextlib.contextmanager
def watched() -> Iterator[Set[int]]:
    """The values that the limit had meanwhile."""
    seen, over = set(), threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen.add(limits().dirty_bytes)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        over.set()
        looker.join()


def let_it_wish(options: str = "") -> None:
    """The service, from its next start on."""
    PROGRAM.write_text(
        "import sys\nsys.path.insert(0, '/usr/lib/writebackd')\n" + WISHING
        + "from writebackd.cli.daemon_main import main\n"
        + "sys.exit(main(['--probe', 'procfs', *sys.argv[1:]]))\n"
    )  # fmt: skip
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    command = f"/usr/bin/python3 -I {PROGRAM} {options}"
    DROP_IN.write_text(f"[Service]\nExecStart=\nExecStart={command}\n")
    run("systemctl", "daemon-reload")


@pytest.fixture(scope="module")
def wishing() -> None:
    let_it_wish()


@pytest.fixture
def found(wishing: None) -> Iterator[VmLimits]:
    """The service runs, pinned; in the end it is stopped, and all is as it was."""
    found = limits()
    wish([PIN])
    run("systemctl", "reset-failed")
    run("systemctl", "start", DAEMON)
    wait_for(lambda: limits().dirty_bytes == PIN, what="for the limit")
    yield found
    run("systemctl", "stop", DAEMON)
    wait_for(lambda: show(WATCH, "ActiveState") == "inactive", 5.0, "for the watcher to end")
    assert limits() == found
    assert "Traceback" not in journal()


def restarted(unit: str, old: int) -> None:
    wait_for(
        lambda: pid_of(unit) not in (0, old) and show(unit, "ActiveState") == "active",
        what=f"for {unit} to be back", pause_s=1.0,
    )  # fmt: skip


def backend() -> str:
    try:
        return str(json.loads(run("writebackctl", "status", "--json"))["probe"]["backend"])
    except AssertionError:
        return "none"  # nothing measured yet


def test_as_installed_and_stopped_in_order() -> None:
    """It sees, writes, and leaves the originals; the watcher is not needed any more, and ends."""
    found = limits()
    run("systemctl", "start", DAEMON)
    try:
        watcher = pid_of(WATCH)
        wait_for(lambda: backend() == "libbpf", what="for the probe")
        assert int(show(PROBE, "ConditionTimestampMonotonic")) > 0, "nobody asked for it"
        assert show(PROBE, "ConditionResult") == "no", "there is BTF"
        run("writebackctl", "pin", "32M")
        wait_for(lambda: limits().dirty_bytes == PIN, what="for the limit")
    finally:
        run("systemctl", "stop", DAEMON)
    assert limits() == found and not (RUNTIME / "ledger.json").exists()
    wait_for(lambda: not is_alive(watcher), 5.0, "for the watcher to end")
    assert show(DAEMON, "Result") == show(WATCH, "Result") == "success"
    text = journal()
    assert "lease expired" not in text and "Traceback" not in text


@contextlib.contextmanager
def without_btf() -> Iterator[None]:
    """As on a kernel that has none, and where no headers are installed."""
    with contextlib.ExitStack() as mounted:
        for place in ("/sys/kernel/btf", "/usr/lib/modules"):
            run("mount", "-t", "tmpfs", "none", place)
            mounted.callback(run, "umount", "--lazy", place)
        Path("/usr/lib/modules", os.uname().release).mkdir()
        yield


def test_without_btf_the_probe_is_compiled_first_or_says_what_is_missing() -> None:
    with without_btf():
        run("systemctl", "start", DAEMON)
        try:
            wait_for(lambda: backend() == "procfs", what="for the daemon without a probe")
            assert show(PROBE, "ConditionResult") == "yes"
            assert show(PROBE, "ExecMainStatus") == "1" and show(PROBE, "Result") == "success"
            run("journalctl", "--sync")
            told = run("journalctl", "--no-pager", "--output", "cat", "-u", PROBE)
            headers = f"linux-headers-{os.uname().release}"
            assert "the kernel has no BTF, and bcc needs" in told and headers in told, told
            assert "python3-bpfcc" in told, told
            ended = int(show(PROBE, "ExecMainExitTimestampMonotonic"))
            assert 0 < started(PROBE) < ended < started(DAEMON)
            assert "`systemctl status writebackd-probe`" in journal()
        finally:
            run("systemctl", "stop", DAEMON)


# What vendors' tools do: make themselves a device node, open it, and write a log.
TOOL = """#!/usr/bin/python3 -IS
import os
if not os.path.exists("/dev/fake_node"):
    os.mknod("/dev/fake_node", 0o600 | 0o020000, os.makedev(1, 5))
node = os.open("/dev/fake_node", os.O_RDWR)
assert os.read(node, 1) == bytes(1)
open("/var/log/fake.log", "w").close()
try:
    open("/usr/fake", "w")
except OSError:
    print("Fake Array in Slot 1\\n   Battery/Capacitor Status: Failed")
"""


def test_raid_tools_are_asked_in_their_sandbox() -> None:
    """The timer comes with an enabled daemon; what a tool said is in status; it goes with it."""
    tool = Path("/var/tools/ssacli")
    tool.parent.mkdir()
    tool.write_text(TOOL)
    tool.chmod(0o755)
    drop_in = Path(f"/run/systemd/system/{COLLECTOR}.d/tools.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Service]\nEnvironment=PATH={tool.parent}\n")
    run("systemctl", "enable", DAEMON)  # which loads the units again
    run("systemctl", "start", DAEMON)
    try:
        assert show(TIMER, "ActiveState") == "active"
        wait_for(Path(RAID).exists, 90.0, "for the collector")
        wait_for(lambda: show(COLLECTOR, "ActiveState") == "inactive", 30.0, "for its end")
        assert show(COLLECTOR, "Result") == "success"
        told = {each.name: each for each in report_file.read(Path(RAID)).tools}
        assert told["ssacli"].error is None
        assert told["ssacli"].controllers[0].protection is Protection.FAILED
        assert "battery failed (ssacli)" in run("sh", "-c", "writebackctl --json doctor || true")
    finally:
        run("systemctl", "stop", DAEMON)
        run("systemctl", "disable", DAEMON)
    wait_for(lambda: show(TIMER, "ActiveState") == "inactive", 5.0, "for the timer to end")
    assert Path(RAID).exists()


def test_killed(found: VmLimits) -> None:
    """Back within the lease, which is adopted: nothing jumps, the originals are known."""
    daemon, watcher = pid_of(DAEMON), pid_of(WATCH)
    with watched() as seen:
        os.kill(daemon, signal.SIGKILL)
        restarted(DAEMON, daemon)
        time.sleep(LEASE_S + 2.0)
    assert seen == {PIN} and pid_of(WATCH) == watcher
    assert "adopted" in journal()


def test_both_killed(found: VmLimits) -> None:
    """No watcher lives when systemd asks whether to restore: home at once, then taken up anew."""
    daemon, watcher = pid_of(DAEMON), pid_of(WATCH)
    with watched() as seen:
        os.kill(daemon, signal.SIGKILL)
        os.kill(watcher, signal.SIGKILL)
        restarted(DAEMON, daemon)
        restarted(WATCH, watcher)
        wait_for(lambda: limits().dirty_bytes == PIN, what="for the limit")
    assert seen <= {PIN, found.dirty_bytes}


def test_start_limit(found: VmLimits) -> None:
    """Killed until systemd gives up: the watcher is told to end, and takes all home first."""
    for _ in range(STARTS - 1):
        pid = pid_of(DAEMON)
        os.kill(pid, signal.SIGKILL)
        restarted(DAEMON, pid)
        assert limits().dirty_bytes == PIN
    os.kill(pid_of(DAEMON), signal.SIGKILL)
    begun = time.monotonic()
    wait_for(lambda: show(DAEMON, "ActiveState") == "failed", what="for systemd to give up")
    wait_for(lambda: limits() == found, LEASE_S, "for the watcher to restore")
    print(f"\nhome {time.monotonic() - begun:.1f} s after the last kill")
    wait_for(lambda: show(WATCH, "ActiveState") == "inactive", 5.0, "for the watcher to end")
    assert show(WATCH, "Result") == "success" and not (RUNTIME / "ledger.json").exists()


def test_stopped_by_a_signal(found: VmLimits) -> None:
    """SIGSTOP: home when the lease has run out; the watchdog kills it, and it begins anew."""
    pid = pid_of(DAEMON)
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    wait_for(lambda: limits() == found, LEASE_S + 4.0, "for the watcher to restore")
    home = time.monotonic() - begun
    assert (RUNTIME / "ledger.json").exists(), "it may wake up within a write"
    restarts = int(show(DAEMON, "NRestarts"))
    with watched() as seen:
        wait_for(lambda: pid_of(DAEMON) != pid, WATCHDOG_S + 20.0, "for the watchdog", 1.0)
        killed = time.monotonic() - begun
    assert seen == {found.dirty_bytes}
    restarted(DAEMON, pid)
    assert int(show(DAEMON, "NRestarts")) == restarts + 1
    wait_for(lambda: limits().dirty_bytes == PIN, what="for the limit")
    said("hangs, lease expired")
    print(f"\nhome {home:.1f} s after SIGSTOP, killed after {killed:.1f} s")


def confinement(pid: int) -> Dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("own", [False, True], ids=["no limits", "limits of its own"])
def test_every_lever_goes_home_by_the_confined_watcher(found: VmLimits, own: bool) -> None:
    """Without a capability, with /proc, /sys and /dev as its sandbox leaves them."""
    with null_disk() as disk:
        devno = devno_of(disk)
        before = state(disk)
        limit = [f"IOWriteBandwidthMax=/dev/{disk} 900M", f"IOReadBandwidthMax=/dev/{disk} 800M"]
        with sleeper("flood.service", *(limit if own else ())) as cgroup:
            paced, properties = io_max(cgroup, devno), bandwidths("flood.service")
            assert bool(properties) is own
            pace = (LeverKind.PACE, cgroup, devno, [5_000_000])
            wish([PIN], [*wishes_for(disk, devno), pace])
            wait_for(lambda: io_max(cgroup, devno).get("wbps") == "5000000", what="for the pace")
            if own:
                assert io_max(cgroup, devno)["rbps"] == paced["rbps"]

            def differ() -> List[str]:
                return [name for name, text in state(disk).items() if text != before[name]]

            # Where the kernel has limits of a BDI, these are among them.
            wait_for(lambda: len(differ()) >= len(wishes_for(disk, devno)), what="for the levers")
            watcher, daemon = pid_of(WATCH), pid_of(DAEMON)
            status = confinement(watcher)
            assert {int(status[name], 16) for name in ("CapBnd", "CapEff", "CapPrm")} == {0}
            assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
            os.kill(daemon, signal.SIGSTOP)
            wait_for(lambda: limits() == found, LEASE_S + 4.0, "for the limits")
            wait_for(lambda: state(disk) == before, 15.0, "for the levers")
            wait_for(lambda: io_max(cgroup, devno) == paced, 15.0, "for the pace")
            assert bandwidths("flood.service") == properties
            assert pid_of(WATCH) == watcher and pid_of(DAEMON) == daemon
            wish([PIN])
            os.kill(daemon, signal.SIGCONT)
            wait_for(lambda: limits().dirty_bytes == PIN, what="for the daemon to go on")
            run("systemctl", "stop", DAEMON)
            assert state(disk) == before and io_max(cgroup, devno) == paced
            assert bandwidths("flood.service") == properties
