# SPDX-License-Identifier: GPL-2.0-or-later
"""The faults of test_faults.py with every lever held, the pace of a unit among them.

After each all of it is as wished, under a lease that the daemon renews, or as it was
found; once with cgroups that are nobody's and once with systemd's.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest

from fake_host import Rig, no_trace
from fake_vm import SYSCTL
from lever_host import IO_MAX, LEVER_FILES, PIN, SETTLE, LeverHost, lever_rig
from writebackd.actuate import ledger as ledger_module
from writebackd.actuate import levers as levers_module
from writebackd.actuate import watcher as watcher_module
from writebackd.actuate.ledger import load
from writebackd.actuate.lock import AlreadyRunning
from writebackd.actuate.watcher import Watcher
from writebackd.daemon import SILENT_TICKS
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.readers import Reading
from writebackd.kernel.vm import LEVERS

DAY_S = 86400.0
UNIT_OF_PACE = "dump.service"
Patch = pytest.MonkeyPatch


class Case:
    """A daemon that holds every lever."""

    def __init__(self, tmp: Path, patch: Patch, systemd: bool) -> None:
        self.rig, self.host, self.wishing = lever_rig(tmp, patch, systemd)
        self.found = self.host.everything()
        self.systemd = systemd
        self.alive = True

    def take_up(self) -> None:
        self.rig.pin(PIN)
        self.rig.tick(SETTLE)
        assert self.host.held(), "the check itself does not work"

    @property
    def home(self) -> bool:
        return self.host.everything() == self.found

    def watched(self) -> None:
        """The watcher's looks until the lease has run out, and after it."""
        watcher = Watcher(self.host, self.rig.runtime_dir, stay=True)
        now = time.monotonic()
        watcher.look(now)
        for late_s in (1.0, 4.0, 20.0):  # the first time it gives a moment of grace
            watcher._again_s = 0.0
            watcher.look(now + self.rig.daemon._lease.length_s + late_s)

    def die(self) -> None:
        self.rig.close()
        self.alive = False

    def end(self) -> None:
        """As the end of run(): what did not go home is left to the watcher."""
        if all(action.ok for action in self.rig.daemon._actuator.finish()):
            self.rig.daemon._lease.release()
        self.die()


@pytest.fixture(params=[False, True], ids=["nobody's cgroups", "systemd's"])
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Patch
) -> Iterator[Case]:
    # What is refused is asked for again at once.
    monkeypatch.setattr(levers_module, "RETRY_S", 0.0)
    monkeypatch.setattr(levers_module, "TEST_AGAIN_S", 0.0)
    monkeypatch.setattr(watcher_module, "say", lambda text: None)
    case = Case(tmp_path, monkeypatch, request.param)
    case.rig.tick(2)
    yield case
    if case.alive:
        case.end()
    assert case.home, "in the end"


def lines(caplog: pytest.LogCaptureFixture) -> List[str]:
    assert no_trace(caplog.records)
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno >= logging.WARNING and not r.name.startswith("writebackd.alert.routes")
    ]


# ---- nothing can be read -------------------------------------------------------


def map_error(case: Case) -> None:
    case.rig.probe.next = BpfError("reading map syncs", errno.EIO)


def unread(name: str) -> Callable[[Case], None]:
    return lambda case: case.host.errors.update({name: errno.EIO})


def spoilt(name: str, text: bytes) -> Callable[[Case], None]:
    return lambda case: case.host.raw.update({name: text})


BLIND: Dict[str, Callable[[Case], None]] = {
    "map": map_error,
    "vmstat, EIO": unread("/proc/vmstat"),
    "diskstats, EIO": unread("/proc/diskstats"),
    "vmstat, empty": spoilt("/proc/vmstat", b""),
    "vmstat, short": spoilt("/proc/vmstat", b"nr_dirty 1\nnr_writeb"),
    "vmstat, garbage": spoilt("/proc/vmstat", b"\0\1\2 garbage"),
}


@pytest.mark.parametrize("fault", BLIND.values(), ids=BLIND)
def test_blind_it_holds_then_brings_all_home_then_goes_on(
    case: Case, caplog: pytest.LogCaptureFixture, fault: Callable[[Case], None]
) -> None:
    case.take_up()
    fault(case)
    case.rig.tick(SILENT_TICKS - 1)
    assert case.host.held()
    case.rig.tick(SETTLE)
    assert case.home
    assert "holding" in lines(caplog)[0] and len(lines(caplog)) <= 3
    case.rig.probe.next = Reading()
    case.host.errors.clear()
    case.host.raw.clear()
    case.rig.tick(SETTLE + 2)
    assert case.host.held()


# ---- nobody renews ---------------------------------------------------------------


def test_stopped_or_hung_all_goes_home_by_the_watcher(case: Case) -> None:
    """SIGSTOP, a sampler that hangs: the daemon lives and says nothing."""
    case.take_up()
    case.watched()
    assert case.home
    assert load(case.rig.runtime_dir / "ledger.json") is not None, "it may wake within a write"
    case.rig.tick(SETTLE + 2)
    assert case.host.held() and case.rig.status()["lease"]["lost"] == 1


def test_killed_all_goes_home_by_the_watcher(case: Case) -> None:
    case.take_up()
    case.die()
    assert case.host.held()
    case.watched()
    assert case.home and load(case.rig.runtime_dir / "ledger.json") is None


def test_started_again_within_the_lease_nothing_moves(case: Case) -> None:
    case.take_up()
    case.rig.close()
    writes, commands = len(case.host.writes), len(case.host.commands)
    case.rig.daemon = case.rig.start()
    case.rig.pin(PIN)
    case.rig.tick(SETTLE)
    assert case.host.held()
    assert (len(case.host.writes), len(case.host.commands)) == (writes, commands)


def test_a_second_daemon_touches_nothing(case: Case) -> None:
    case.take_up()
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
        case.rig.start()
    case.rig.tick(2)
    assert case.host.held()


# ---- a lever's own file ------------------------------------------------------------


# None: EIO. An io.max without a line is no garbage: it has no limits.
TORN = (None, b"8:0 rbps=900 wbps=2", b"8:0 rbps=900 wbps=2000 ri", b"\0\1\2 garbage")
SPOILT = [(name, text) for name in LEVER_FILES for text in (*TORN, b"")
          if text != b"" or name != IO_MAX]  # fmt: skip


@pytest.mark.parametrize("name, text", SPOILT)
@pytest.mark.parametrize("then", ["goes on", "ends", "dies"])
def test_a_lever_that_cannot_be_read_is_ours_all_the_same(
    case: Case, name: str, text: "bytes | None", then: str
) -> None:
    """Taken for somebody else's value, it would be let go, and never go home."""
    case.take_up()
    if text is None:
        case.host.errors[name] = errno.EIO
    else:
        case.host.raw[name] = text
    case.rig.tick(SETTLE)
    assert case.host.held()
    if then == "ends":
        case.end()
    elif then == "dies":
        case.die()
        case.watched()
    case.host.errors.clear()
    case.host.raw.clear()
    if then == "goes on":
        case.rig.tick(SETTLE)
        assert case.host.held() and not case.rig.status()["warnings"]
    else:
        case.watched()
        assert case.home
