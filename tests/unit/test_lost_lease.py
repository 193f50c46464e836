# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon that has lost its lease, or never came to hold it, on a host without a kernel."""

from __future__ import annotations

import errno
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Iterator, List, Optional

import pytest

from fake_host import FakeWatch, Rig
from fake_vm import SYSCTL
from writebackd.actuate import lease, watcher
from writebackd.actuate.lock import AlreadyRunning, open_private
from writebackd.actuate.watcher import Watcher
from writebackd.actuate.watcher_supervisor import WatcherSupervisor
from writebackd.daemon import Daemon
from writebackd.event_loop import Signals
from writebackd.paths import LEASE
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy
from writebackd.report.snapshot import Snapshot
from writebackd.types.core_memory import Cap

PIN = 32 << 20


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread that speaks, no signal handlers of the daemon's in the process of the tests."""
    monkeypatch.setattr(watcher, "say", lambda text: None)
    monkeypatch.setattr(FakeWatch, "wait", lambda self, seconds: True, raising=False)
    monkeypatch.setattr(Signals, "catch", lambda self: None)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    rig.tick(2)
    rig.pin(PIN)
    rig.tick(3)
    assert rig.host.limits.dirty_bytes == PIN
    yield rig


def run_out(rig: Rig) -> Watcher:
    """A watcher that has found the lease run out."""
    one = Watcher(rig.host, rig.runtime_dir, stay=True)
    one.look(time.monotonic())
    one._wake_s = None
    one.look(time.monotonic() + 3600)
    return one


def test_a_failed_start_leaves_what_it_did_not_take_up_to_the_watcher(rig: Rig) -> None:
    found = rig.daemon._actuator.originals
    rig.close()  # as kill -9
    rig.host.errors[SYSCTL + "dirty_ratio"] = errno.EMFILE
    daemon = Daemon(rig._options, lambda: load_policy(None, None), files=rig.host)
    with pytest.raises(OSError):
        daemon.run()
    rig.host.errors.clear()
    assert rig.host.limits.dirty_bytes == PIN
    run_out(rig)
    assert rig.host.limits == found


def test_what_cannot_go_home_at_the_end_is_left_to_the_watcher(rig: Rig) -> None:
    found = rig.daemon._actuator.originals
    rig.close()
    daemon = Daemon(rig._options, lambda: load_policy(None, None), files=rig.host)
    daemon._signals.stop = "enough"
    rig.host.write_errors["dirty_ratio"] = (errno.EROFS, False)
    daemon.run()
    assert rig.host.limits.dirty_bytes == PIN
    rig.host.write_errors.clear()
    run_out(rig)
    assert rig.host.limits == found


def test_a_start_that_gets_no_lease_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.close()
    daemon = Daemon(rig._options, lambda: load_policy(None, None), files=rig.host)
    monkeypatch.setattr("writebackd.actuate.watcher_supervisor.WAIT_S", 0.0)
    monkeypatch.setattr(daemon._lease, "renew", lambda: False)
    daemon._signals.stop = "enough"
    written = len(rig.host.writes)
    with lease.restoring(open_private(rig.runtime_dir / LEASE), 0.0):
        with pytest.raises(AlreadyRunning, match="still being restored"):
            daemon.run()
    assert len(rig.host.writes) == written


def test_while_the_lease_is_lost_it_shows_that_it_lives(rig: Rig) -> None:
    seen: List[Optional[Snapshot]] = []
    rig.daemon._report.on_tick = seen.append
    run_out(rig)
    with lease.restoring(open_private(rig.runtime_dir / LEASE), 0.0):
        rig.tick(40)
        assert len(seen) == 40
        status = rig.status()
        assert status["limits"]["dirty_bytes"] > PIN  # as found, in bytes
        assert any("lease expired" in line for line in status["warnings"])
    rig.tick()
    assert rig.status()["lease"]["lost"] == 1
    rig.close()


def test_what_was_in_force_before_the_lease_was_lost_is_forgotten(rig: Rig) -> None:
    """The law goes on from what stands: the watcher has brought all of it home."""
    run_out(rig)
    known = replace(rig.daemon.state.memory, caps={"sda": Cap(8 << 20, in_force=True)})
    rig.daemon.state.memory = known
    assert known.limit_bytes == PIN
    rig.daemon._lease.take_again(rig.daemon._begin_anew)
    assert (rig.daemon.state.memory.limit_bytes, rig.daemon.state.memory.caps) == (None, {})
    rig.close()


def test_what_looks_strange_without_a_lease_is_shown_as_such(rig: Rig) -> None:
    seen: List[Optional[Snapshot]] = []
    rig.daemon._report.on_tick = seen.append
    read = rig.daemon._actuator.foreign

    def stopped(limits: object) -> object:
        run_out(rig)
        return read(rig.host.limits)

    rig.daemon._actuator.foreign = stopped  # type: ignore[assignment,method-assign]
    rig.tick()
    assert len(seen) == 1 and seen[0] is not None
    assert "lease expired" in seen[0].sample.errors[0]
    rig.close()


def test_a_write_that_went_out_behind_the_watcher_is_put_back_in_the_same_tick(rig: Rig) -> None:
    """Stopped between the last question and write(2), for longer than the lease."""
    found = rig.daemon._actuator.originals

    def stopped(lever: str) -> None:
        rig.host.before_write = lambda lever: None
        run_out(rig)
        assert rig.host.limits == found

    rig.host.before_write = stopped
    rig.pin(2 * PIN)
    rig.tick()
    assert rig.host.limits == found
    rig.tick(2)
    assert rig.host.limits.dirty_bytes == 2 * PIN
    rig.close()


def test_what_cannot_be_taken_up_again_is_told_and_counted_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("writebackd.actuate.ledger.first_found", lambda files: None)
    run_out(rig)
    ledger = rig.runtime_dir / "ledger.json"
    text = ledger.read_text()
    ledger.write_text("damaged")
    rig.tick(20)
    told = [
        record for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.endswith(".watcher_supervisor")
    ]  # fmt: skip
    assert len(told) == 2, told  # that it was lost, and why it is not held again
    assert rig.status()["lease"]["lost"] == 1
    assert any("limits not applied again yet" in line for line in rig.status()["warnings"])
    ledger.write_text(text)
    rig.tick(3)
    assert rig.host.limits.dirty_bytes == PIN and rig.status()["lease"]["lost"] == 1
    rig.close()


# ---- no room for threads -----------------------------------------------------


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_there_is_no_watcher_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = WatcherSupervisor(tmp_path)
    now = time.monotonic()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    for second in range(10):
        monkeypatch.setattr(time, "monotonic", lambda: now + 2.0 * second)  # noqa: B023
        watch.tend()
    assert [r.getMessage() for r in caplog.records] == [
        "cannot start a watcher: can't start new thread"
    ]


def test_without_a_thread_the_policy_stays(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        rig.daemon.reload()
    assert "cannot reload the policy; keeping the current one" in caplog.text
    rig.tick()
    rig.close()


def test_one_policy_is_read_at_a_time_and_the_last_word_counts(rig: Rig) -> None:
    disk, reads = threading.Event(), []

    def load() -> Policy:
        reads.append(threading.current_thread())
        assert disk.wait(10)
        return load_policy(None, None)

    rig.daemon.policies.load = load
    for _ in range(5):
        rig.daemon.reload()
        rig.tick()
    assert len(reads) == 1
    disk.set()
    reads[0].join(10)
    rig.tick()  # what was asked for meanwhile is read once more
    assert len(reads) == 2
    reads[1].join(10)
    rig.tick()
    assert len(reads) == 2
    rig.close()
