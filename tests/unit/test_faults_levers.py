# SPDX-License-Identifier: GPL-2.0-or-later
"""The faults of test_faults.py with every lever held, the pace of a unit among them.

After each all of it is as wished, under a lease that the daemon renews, or as it was
found; once with cgroups that are nobody's and once with systemd's.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest

from fake_host import no_trace
from lever_cases import UNIT
from lever_host import IO_MAX, LEVER_FILES, PIN, SETTLE, WISHES, lever_rig
from limit_cases import saved
from writebackd.actuate import ledger as ledger_module
from writebackd.actuate import lever_plan, lever_registry
from writebackd.actuate import watcher as watcher_module
from writebackd.actuate.ledger import load
from writebackd.actuate.watcher import Watcher
from writebackd.daemon import SILENT_TICKS
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.map_readers import Reading
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

    def ask(self) -> None:
        self.rig.pin(PIN)
        self.wishing.wishes = WISHES

    def take_up(self) -> None:
        self.ask()
        self.rig.tick(SETTLE)
        assert self.host.held(), "the check itself does not work"

    def is_home(self) -> bool:
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
    monkeypatch.setattr(lever_plan, "RETRY_S", 0.0)
    monkeypatch.setattr(lever_registry, "TEST_AGAIN_S", 0.0)
    monkeypatch.setattr(watcher_module, "say", lambda text: None)
    case = Case(tmp_path, monkeypatch, request.param)
    case.rig.tick(2)
    yield case
    if case.alive:
        case.end()
    assert case.is_home(), "in the end"


def lines(caplog: pytest.LogCaptureFixture) -> List[str]:
    assert no_trace(caplog.records)
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno >= logging.WARNING and not r.name.startswith("writebackd.notify")
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
    assert case.is_home()
    assert "keeping current limits" in lines(caplog)[0] and len(lines(caplog)) <= 3
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
    assert case.is_home()
    assert load(case.rig.runtime_dir / "ledger.json") is not None, "it may wake within a write"
    case.rig.tick(SETTLE + 2)
    assert case.host.held() and case.rig.status()["lease"]["lost"] == 1


def test_started_again_within_the_lease_nothing_moves(case: Case) -> None:
    case.take_up()
    case.rig.close()
    writes, commands = len(case.host.writes), len(case.host.commands)
    case.rig.daemon = case.rig.start()
    case.rig.pin(PIN)
    case.rig.tick(SETTLE)
    assert case.host.held()
    assert (len(case.host.writes), len(case.host.commands)) == (writes, commands)


# ---- a lever's own file ------------------------------------------------------------


# None: EIO.
TORN = (None, b"8:0 rbps=900 wbps=2", b"8:0 rbps=900 wbps=2000 ri", b"\0\1\2 garbage")
SPOILT = [
    *((IO_MAX, text) for text in TORN),
    *zip(LEVER_FILES[:-1], itertools.cycle((None, b"12 garbage"))),
]


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
        assert case.is_home()


# ---- refused --------------------------------------------------------------------------

def refuse(case: Case, name: str, code: int, late: bool = False) -> None:
    if name == IO_MAX and case.systemd:
        name = f"systemctl {UNIT_OF_PACE}"
    case.host.write_errors[name] = (code, late)


@pytest.mark.parametrize(
    "name, code", zip(LEVER_FILES, itertools.cycle((errno.EINVAL, errno.EPERM, errno.EROFS)))
)
def test_a_refused_lever_is_told_once_and_the_others_do_without(
    case: Case, caplog: pytest.LogCaptureFixture, name: str, code: int
) -> None:
    refuse(case, name, code)
    case.ask()
    case.rig.tick(3 * SETTLE)
    assert case.host.limits.dirty_bytes == PIN and not case.host.held()
    told = lines(caplog)
    assert 1 <= len(told) <= 3, told
    case.host.write_errors.clear()
    case.rig.tick(SETTLE)
    assert case.host.held()
    assert len(lines(caplog)) == len(told)


@pytest.mark.parametrize("name", LEVER_FILES)
@pytest.mark.parametrize("then", ["goes on", "dies"])
def test_a_way_home_that_is_barred_is_tried_until_it_is_free(
    case: Case, caplog: pytest.LogCaptureFixture, name: str, then: str
) -> None:
    case.take_up()
    refuse(case, name, errno.EROFS)
    if then == "dies":
        case.die()
        case.watched()
    else:
        map_error(case)
        case.rig.tick(SILENT_TICKS + SETTLE)
        assert len(lines(caplog)) <= 4, lines(caplog)
    assert not case.is_home() and case.host.limits.dirty_ratio == 20
    ledger = saved(case.rig.runtime_dir / "ledger.json")
    assert ledger.levers and not ledger.written
    case.host.write_errors.clear()
    if then == "dies":
        case.watched()
    else:
        case.rig.tick(SETTLE)
    assert case.is_home() and load(case.rig.runtime_dir / "ledger.json") is None


def read_only(case: Case) -> None:
    """/proc/sys and /sys, as in a container; systemd does not answer either."""
    for name in (*LEVERS, *LEVER_FILES):
        refuse(case, name, errno.EROFS)


def test_read_only_from_the_start_nothing_is_written(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    read_only(case)
    case.ask()
    case.rig.tick(3 * SETTLE)
    assert case.is_home()
    assert len(lines(caplog)) <= 7, lines(caplog)
    case.host.write_errors.clear()


def test_read_only_in_mid_run_all_is_held_until_it_can_go_home(case: Case) -> None:
    case.take_up()
    read_only(case)
    case.die()
    case.watched()
    assert case.host.held()
    case.host.write_errors.clear()
    case.watched()
    assert case.is_home()


def test_without_room_for_the_ledger_nothing_is_written(
    case: Case, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module.Ledger, "save", full)
        case.ask()
        case.rig.tick(SETTLE)
        assert case.is_home() and not case.host.writes and not case.host.commands
    assert all("No space left" in line for line in lines(caplog))
    case.rig.tick(SETTLE)
    assert case.host.held()


# ---- clocks, disks, orders --------------------------------------------------------------


@pytest.mark.parametrize("wall_s, boot_s", [
    (-30 * 365 * DAY_S, 0.0), (-3600.0, 0.0), (30 * 365 * DAY_S, 0.0), (90 * DAY_S, 90 * DAY_S),
])  # fmt: skip
def test_clocks_that_jump_move_nothing(
    case: Case, caplog: pytest.LogCaptureFixture, wall_s: float, boot_s: float
) -> None:
    case.take_up()
    writes, commands = len(case.host.writes), len(case.host.commands)
    case.rig.wall += wall_s
    case.rig.now += boot_s
    case.rig.tick(SETTLE)
    assert case.host.held() and not lines(caplog)
    assert case.rig.status()["uptime_s"] < 60 + boot_s
    assert (len(case.host.writes), len(case.host.commands)) == (writes, commands)


@pytest.mark.parametrize("seen", [False, True], ids=["between two ticks", "gone for a while"])
def test_unplugged_and_replugged(case: Case, seen: bool) -> None:
    """The next one of that name is as it was born, until it is asked for it as well."""
    case.take_up()
    for _ in range(3):
        case.host.unplug("8:0", "sda")
        if seen:
            case.wishing.wishes = case.wishing.wishes[:1]
            case.rig.tick(2)
            ledger = saved(case.rig.runtime_dir / "ledger.json")
            assert {each.kind for each in ledger.levers} == {"flush"}
        case.host.plug("8:0", "sda")
        if seen:
            case.rig.tick(2)
            assert case.host.queues["sda"]["nr_requests"] == 64
            assert "wbps" not in str(case.host.cgroups[UNIT].get("8:0", {}).get("wbps", ""))
        case.wishing.wishes = WISHES
        case.rig.tick(SETTLE + 2)
        assert case.host.held()
    case.end()
    lines_of = case.host.cgroups[UNIT].get("8:0", {})
    assert lines_of.get("wbps", "max") == "max"
    # The limit that was there went with the disk; a unit's is applied to the next one.
    case.host.poke(IO_MAX, "8:0 rbps=900")


@pytest.mark.parametrize("host", [False, True], ids=["its own", "the host's"])
def test_a_file_holds_off_at_once(case: Case, host: bool) -> None:
    """Also where --runtime-dir is another: who is in a hurry knows /run/writebackd/off."""
    case.take_up()
    off = (case.host.path("/run/writebackd") if host else case.rig.runtime_dir) / "off"
    off.touch()
    case.rig.tick(2)
    assert case.is_home()
    case.rig.tick(SETTLE)
    assert case.is_home()
    off.unlink()
    case.rig.tick(SETTLE + 1)
    assert case.host.held()


def test_observe_takes_all_of_them_home(case: Case) -> None:
    case.take_up()
    case.rig.daemon.handle("mode", {"mode": "observe"}, 0)
    case.rig.tick(3)
    assert case.is_home()


@pytest.mark.parametrize("length", [0, 1, 300])
def test_a_ledger_that_is_damaged_under_a_live_daemon_does_not_matter_to_it(
    case: Case, length: int
) -> None:
    case.take_up()
    os.truncate(case.rig.runtime_dir / "ledger.json", length)
    case.rig.tick(2)
    assert case.host.held()
    case.end()
    assert case.is_home()


@pytest.mark.parametrize("length", [0, 300])
def test_nor_does_it_where_somebody_else_then_sets_a_limit(case: Case, length: int) -> None:
    """Levers that still stand go into a ledger of their own."""
    case.take_up()
    os.truncate(case.rig.runtime_dir / "ledger.json", length)
    case.host.stalled = True
    case.host.sysctl("dirty_bytes", 99 << 20)
    case.rig.tick(2)
    assert saved(case.rig.runtime_dir / "ledger.json").levers
    case.host.release()
    case.rig.tick(3)
    assert case.host.limits.dirty_bytes == 99 << 20
    case.host.sysctl("dirty_ratio", 20)
    assert case.is_home()


def test_an_error_of_the_program_brings_all_home(case: Case) -> None:
    case.take_up()
    case.rig.probe.next = RuntimeError("as if there were a bug")
    with pytest.raises(RuntimeError):
        case.rig.daemon.run()
    case.alive = False
    assert case.is_home()


def test_what_a_kernel_does_not_have_is_no_error(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for files in case.host.bdis.values():
        del files["min_ratio_fine"]
    case.found = case.host.everything()
    case.ask()
    case.rig.tick(SETTLE)
    told = [record for record in caplog.records if "no limits in bytes" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.INFO]
