# SPDX-License-Identifier: GPL-2.0-or-later
"""The lease on this kernel: whatever happens to daemon and watcher, the limits come home."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, List, Tuple

import pytest

from tests.kernel.test_daemon import PIN, VM, Running, read_files, untouched, wait_for

__all__ = ["untouched"]

LEASE_S = 1.0
# A watcher that was woken late waits 1.5 s before it judges, and looks once a second.
HOME_S = LEASE_S + 4.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Running]]:
    running: List[Running] = []
    policy = tmp_path / "leased.conf"
    policy.write_text(f"[policy]\nname = leased\n[limits]\nlease = {LEASE_S:g}s\n")

    def starter() -> Running:
        running.append(Running(tmp_path, "--probe", "procfs", "--policy", str(policy)))
        return running[-1]

    yield starter
    for daemon in running:
        daemon.end(signal.SIGKILL)  # which ends a stopped process as well
    wait_for(lambda: not watchers(tmp_path / "run"), HOME_S)


def watchers(runtime_dir: Path) -> List[int]:
    """All that watch this directory, by their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(b"watcher import run" in word for word in words) and str(
            runtime_dir
        ).encode() in words:
            found.append(int(path.parent.name))
    return found


def watcher_of(daemon: Running) -> int:
    pid = daemon.status()["lease"]["watcher_pid"]
    assert pid is not None
    return int(pid)


def locked(pid: int) -> Tuple[int, List[str]]:
    """VmLck in KiB, and what of files, heap and stacks is not locked in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    (size,) = re.findall(r"^VmLck:\s+(\d+) kB$", status, re.M)
    maps = Path(f"/proc/{pid}/smaps").read_text()
    loose = []
    for text in filter(None, re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", maps, flags=re.M)):
        head, flags = text.split("\n")[0], text.rpartition("VmFlags:")[2].split()
        name = head[73:] or "anonymous"
        # Pages of the kernel's own and of BPF maps are memory anyway; none can be locked.
        own = name == "[vsyscall]" or {"io", "pf", "de"} & set(flags)
        if "lo" not in flags and not own:
            loose.append(name)
    return int(size), loose


def test_both_are_locked_in_memory(start: Callable[[], Running]) -> None:
    """What is not comes from the disk that hangs, or from swap on it."""
    daemon = start()
    for pid in (daemon.process.pid, watcher_of(daemon)):
        size, loose = locked(pid)
        assert size > 0 and loose == []
    assert "not locked" not in daemon.log.read_text()


def test_a_killed_daemon_leaves_nothing_behind(start: Callable[[], Running]) -> None:
    before = read_files()
    daemon = start()
    daemon.pin()
    daemon.process.kill()
    daemon.process.wait()
    assert read_files()["dirty_bytes"] == PIN  # until the lease has run out
    wait_for(lambda: read_files() == before, HOME_S)
    wait_for(lambda: not watchers(daemon.runtime_dir), HOME_S)
    assert not (daemon.runtime_dir / "ledger.json").exists()
    said = daemon.log.read_text()
    gone = f"process {daemon.process.pid} is gone, lease expired"
    assert said.count(gone) == 1
    assert "Traceback" not in said


def test_a_stopped_daemon_loses_its_lease_and_takes_up_again(
    start: Callable[[], Running]
) -> None:
    before = read_files()
    daemon = start()
    daemon.pin()
    daemon.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: read_files() == before, HOME_S)
    # It may wake in the middle of a write: who finds it dead then needs the way home.
    assert (daemon.runtime_dir / "ledger.json").exists()
    time.sleep(0.5)
    daemon.process.send_signal(signal.SIGCONT)
    wait_for(lambda: read_files()["dirty_bytes"] == PIN)
    status = daemon.status()
    assert (status["lease"]["lost"], status["yielded"]) == (1, None)
    assert status["limits"]["original"] == before
    assert "hangs, lease expired" in daemon.log.read_text()
    assert daemon.end() == 0
    assert read_files() == before


def test_a_daemon_that_is_stopped_and_then_killed(start: Callable[[], Running]) -> None:
    before = read_files()
    daemon = start()
    daemon.pin()
    daemon.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: read_files() == before, HOME_S)
    # As if it had been stopped right before a write, and killed right after it.
    (VM / "dirty_bytes").write_text(str(PIN))
    daemon.process.kill()
    daemon.process.wait()
    wait_for(lambda: read_files() == before, HOME_S)
    wait_for(lambda: not (daemon.runtime_dir / "ledger.json").exists(), HOME_S)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_watcher_that_does_not_watch_is_replaced(
    start: Callable[[], Running], how: signal.Signals
) -> None:
    before = read_files()
    daemon = start()
    daemon.pin()
    first = watcher_of(daemon)
    os.kill(first, how)
    wait_for(lambda: daemon.status()["lease"]["watcher_pid"] not in (first, None))
    assert watchers(daemon.runtime_dir) == [watcher_of(daemon)]
    daemon.process.kill()
    daemon.process.wait()
    wait_for(lambda: read_files() == before, HOME_S)


def test_with_both_killed_the_next_start_adopts(start: Callable[[], Running]) -> None:
    before = read_files()
    daemon = start()
    daemon.pin()
    os.kill(watcher_of(daemon), signal.SIGKILL)
    daemon.process.kill()
    daemon.process.wait()
    time.sleep(LEASE_S + 0.5)
    if not watchers(daemon.runtime_dir):  # no tick came in between
        assert read_files()["dirty_bytes"] == PIN
    second = start()
    assert second.status()["limits"]["original"] == before
    assert second.end() == 0
    assert read_files() == before


def test_with_both_killed_restore_brings_all_home(start: Callable[[], Running]) -> None:
    before = read_files()
    daemon = start()
    daemon.pin()
    daemon.process.send_signal(signal.SIGSTOP)  # so that it starts no other
    os.kill(watcher_of_file(daemon), signal.SIGKILL)
    daemon.process.kill()
    daemon.process.wait()
    time.sleep(LEASE_S + 0.5)
    assert read_files()["dirty_bytes"] == PIN
    assert daemon.ctl("restore")[0] == 0
    assert read_files() == before


def watcher_of_file(daemon: Running) -> int:
    return int((daemon.runtime_dir / "watch").read_text().split()[5])


def test_a_restart_within_the_lease_does_not_let_the_limit_jump(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    (tmp_path / "leased.conf").write_text("[policy]\nname = leased\n[limits]\nlease = 10s\n")
    daemon = start()
    daemon.pin()
    seen, going = set(), True

    def look() -> None:
        while going:
            seen.add(read_files()["dirty_bytes"])
            time.sleep(0.002)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        daemon.process.kill()
        daemon.process.wait()
        second = start()
        time.sleep(1.0)
    finally:
        going = False
        watching.join()
    # Lower is for the law to decide, where this host syncs; never up, never the originals.
    assert 0 not in seen and max(seen) == PIN
    assert len(watchers(daemon.runtime_dir)) == 1  # the first daemon's serves the second
    assert second.end() == 0


def test_after_a_clean_stop_the_watcher_ends(start: Callable[[], Running]) -> None:
    daemon = start()
    daemon.pin()
    assert len(watchers(daemon.runtime_dir)) == 1
    assert daemon.end() == 0
    wait_for(lambda: not watchers(daemon.runtime_dir), 3.0)
    assert "the lease" not in daemon.log.read_text()
