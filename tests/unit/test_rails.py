# SPDX-License-Identifier: GPL-2.0-or-later
"""The rails: each check passes, and fails when the one function or number that is the rail is out.

A row has the check and how to take its rail out; a check that passes without its
rail proves nothing, and is an error here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest

from actuator_cases import started
from fake_host import FakeHost, Rig
from fake_levers import FakeLevers
from fake_vm import FakeVm
from lever_cases import bdi_settings
from lever_host import SETTLE, WISHES, lever_rig
from writebackd import daemon as daemon_module
from writebackd import host_monitor
from writebackd.actuate import actuator as actuator_module
from writebackd.actuate import executor, host_lock, lever_plan
from writebackd.actuate import kill_switch as off_module
from writebackd.actuate import ledger_restore as restore_module
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.executor import Executor
from writebackd.actuate.kill_switch import KillSwitch
from writebackd.actuate.lease import Lease
from writebackd.actuate.ledger import Ledger, LedgerError, load
from writebackd.actuate.lever_registry import LeverRegistry
from writebackd.actuate.lever_writer import Levers
from writebackd.actuate.lock import AlreadyRunning
from writebackd.actuate.outcome import RestoreOutcome
from writebackd.actuate.watcher import Watcher
from writebackd.alerts import detect as detect_module
from writebackd.control import decide as decide_module
from writebackd.control import device_decision, ramp
from writebackd.daemon import SILENT_TICKS, Daemon
from writebackd.kernel.map_readers import Reading
from writebackd.safe_files import with_checksum
from writebackd.types.levers import ForeignWrite, LeverKind, Setting
from writebackd.types.samples import VmState

PIN, FOREIGN = 32 << 20, 99 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Rail:
    check: Callable[["Bench"], None]
    take_out: Callable[[Patch], None]


class Bench:
    """What a check needs: any number of daemons on one host, closed in the end."""

    def __init__(self, tmp: Path, patch: Patch) -> None:
        self.tmp, self.patch = tmp, patch
        self.host = FakeHost(tmp / "root")
        self.found = self.host.limits
        self._rig: Optional[Rig] = None

    @property
    def rig(self) -> Rig:
        if self._rig is None:
            self._rig = Rig(self.tmp, self.patch, self.host)
        return self._rig

    def pinned(self) -> Rig:
        self.rig.pin(PIN)
        self.rig.tick(3)
        assert self.host.limits.dirty_bytes == PIN, "the check itself does not work"
        return self.rig

    def draining(self, rate: float, ticks: int, seconds: float = 1.0) -> List[Tuple[float, int]]:
        """(time, limit) of each tick for a disk that drains so much and was flooded lately."""
        rig, seen = self.rig, []
        rig.tick(2)
        for _ in range(ticks):
            known = rig.daemon.state.memory.devices["sda"]
            mine = replace(known, drain_rate=rate, last_flood_s=rig.now)
            rig.daemon.state.memory = replace(rig.daemon.state.memory, devices={"sda": mine})
            rig.daemon._tick()
            rig.now += seconds
            limit = rig.host.limits.dirty_bytes
            if limit:
                seen.append((rig.now, limit))
        assert seen, "the check itself does not work"
        return seen

    def close(self) -> None:
        if self._rig is not None:
            self._rig.close()


# ---- what is decided --------------------------------------------------------


def never_above_the_ceiling(bench: Bench) -> None:
    limits = [limit for _, limit in bench.draining(5e9, 8)]
    assert max(limits) <= 4 << 30
    assert limits[-1] == 4 << 30


def never_more_than_memory_can_hold(bench: Bench) -> None:
    bench.host.free = (8 << 30) // PAGE - 500_000
    limits = [limit for _, limit in bench.draining(5e9, 8)]
    assert max(limits) <= 0.2 * (8 << 30) and limits[-1] >= 0.19 * (8 << 30)


def never_below_the_floor(bench: Bench) -> None:
    floor = device_decision.kernel_floor_bytes(bench.rig.daemon._monitor.sampler._host)
    assert all(limit >= floor for _, limit in bench.draining(500e3, 8))


def one_step_at_a_time(bench: Bench) -> None:
    limits = [limit for _, limit in bench.draining(5e9, 8)]
    assert all(after <= 2 * before for before, after in zip(limits, limits[1:]))
    assert limits[0] <= 2 * 0.2 * bench.host.available * PAGE


def one_step_in_an_interval(bench: Bench) -> None:
    seen = bench.draining(5e9, 16, seconds=0.25)
    raised = [now for (_, before), (now, after) in zip(seen, seen[1:]) if after > before]
    assert len(raised) >= 2
    assert all(after - before >= 1.0 for before, after in zip(raised, raised[1:]))


def never_tighter_than_what_drains(bench: Bench) -> None:
    waiting = 180_000  # pages: 703 MiB
    for _ in range(6):
        bench.host.dirty = (waiting, 0)
        for _, limit in bench.draining(10e6, 1):
            assert limit >= waiting * PAGE, "below what is dirty: every writer is blocked"
        waiting -= 10_000


def _steps(**changes: float) -> Callable[[Patch], None]:
    """The ramp without one of its bounds."""

    def take_out(patch: Patch) -> None:
        real = ramp.next_limit

        def unbound(
            goal: int, vm: VmState, now_s: float, last: float, step_up: float, cooldown_s: float,
            drains: float, at_once: int,
        ) -> int:
            up = changes.get("step_up", step_up)
            cooldown_s = changes.get("cooldown_s", cooldown_s)
            return real(goal, vm, now_s, last, up, cooldown_s, drains, at_once)

        patch.setattr(decide_module, "next_limit", unbound)

    return take_out


# ---- what is written --------------------------------------------------------


def what_the_kernel_makes_of_it_is_looked_at(bench: Bench) -> None:
    rig = bench.rig
    rig.tick(2)
    limit, background = bench.host.thresholds()
    bench.host.raw["/proc/vmstat"] = (
        f"nr_dirty 1\nnr_writeback 0\nnr_dirty_threshold {limit}\n"
        f"nr_dirty_background_threshold {background}"
    ).encode()
    rig.pin(PIN)
    rig.tick(20)  # for as long as that is so
    assert any("nr_dirty_threshold is" in line for line in rig.status()["warnings"])
    assert rig.status()["verdict"]["code"] == "FAILED"
    failed = [each for each in rig.daemon.state.totals.writes.items() if not each[0][1]]
    assert [count for _, count in failed] == [2]  # as often as it was written
    assert [lever for lever, _ in bench.host.writes] == ["dirty_background_bytes", "dirty_bytes"]
    del bench.host.raw["/proc/vmstat"]
    rig.tick(2)
    assert rig.status()["verdict"]["code"] != "FAILED"


FLUSH = Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 100)


def a_lever_is_read_back(bench: Bench) -> None:
    files = FakeLevers()
    levers = Levers(files, lambda: None)
    real = files.write
    bench.patch.setattr(files, "write", lambda name, value: real(name, "250"))
    (action,) = levers.apply((FLUSH,))
    assert not action.ok and "reads back as 250" in (action.error or "")


def on_record(files: FakeVm, path: Path) -> List[Optional[Ledger]]:
    """What the ledger says before each write from now on."""
    seen: List[Optional[Ledger]] = []
    files.before_write = lambda lever: seen.append(load(path))
    return seen


def originals_are_known_before_the_first_write(bench: Bench) -> None:
    bench.rig.tick(2)
    seen = on_record(bench.host, bench.rig.runtime_dir / "ledger.json")
    bench.rig.pin(PIN)
    bench.rig.tick(2)
    assert bench.host.limits.dirty_bytes == PIN and len(seen) == 2
    for ledger in seen:
        assert ledger is not None, "written, and nobody knows what it was"
        assert ledger.originals == bench.found and (PIN, PIN // 2) in ledger.written


def originals_of_levers_are_known_before_the_first_write(bench: Bench) -> None:
    files, path = FakeLevers(), bench.tmp / "levers.json"
    actuator, seen = started(files, path), on_record(files, path)
    actuator.apply_settings((FLUSH,))
    assert files.flush["dirty_writeback_centisecs"] == 100
    (ledger,) = seen
    assert ledger is not None and [each.original for each in ledger.levers] == ["500"]


def a_device_is_known_before_the_first_write(bench: Bench) -> None:
    """Also before the self-test, which writes to the device's files as well."""
    files, path = FakeLevers(), bench.tmp / "devices.json"
    actuator, found, seen = started(files, path), files.state(), on_record(files, path)
    actuator.apply_settings(bdi_settings(8 << 20, 4 << 20))
    assert len(seen) > 2 and files.state() != found, "the check itself does not work"
    for ledger in seen:
        assert ledger is not None
        assert ("8:0", "max_bytes") in [(each.target, each.name) for each in ledger.levers]


def a_pace_is_known_before_the_first_write(bench: Bench) -> None:
    files, path = FakeLevers(), bench.tmp / "paces.json"
    bench.patch.setattr(lever_plan, "Job", files.job)
    cgroup = "/system.slice/dump.service"
    files.poke(f"/sys/fs/cgroup{cgroup}/io.max", "8:0 wbps=777")
    actuator, seen = started(files, path), on_record(files, path)
    actuator.apply_settings((Setting(LeverKind.PACE, cgroup, "8:0", 5),))
    assert files.cgroups[cgroup]["8:0"]["wbps"] == "5"
    (ledger,) = seen
    assert ledger is not None and [each.original for each in ledger.levers] == ["777"]


def there_is_a_whole_ledger_at_any_moment(bench: Bench) -> None:
    """Who is killed while it is saved leaves the old one or the new one."""
    path, seen = bench.tmp / "saved.json", []
    actuator = started(bench.host, path)
    actuator.apply(PIN, PIN // 2)
    real = os.fchmod

    def look(fd: int, mode: int) -> None:
        """As long as it is being written."""
        real(fd, mode)
        with contextlib.suppress(LedgerError):
            seen.append(load(path))

    bench.patch.setattr(os, "fchmod", look)
    actuator.apply(2 * PIN, PIN)
    assert seen and seen[0] is not None and seen[0].originals == bench.found


def a_ledger_of_an_earlier_boot_moves_nothing(bench: Bench) -> None:
    path = bench.tmp / "earlier.json"
    started(bench.host, path).apply(PIN, PIN // 2)
    bench.host.boot_id = "5e4d3c2b-0000-4111-8222-333344445555"
    assert restore_module.restore_from_ledger(bench.host, path).status == "nothing"
    assert bench.host.limits.dirty_bytes == PIN, "set at boot by somebody else"


def a_lease_that_ran_out_takes_all_home(bench: Bench) -> None:
    rig = bench.pinned()
    watcher = Watcher(bench.host, rig.runtime_dir)
    now = time.monotonic()
    watcher.look(now)
    assert bench.host.limits.dirty_bytes == PIN, "it has not run out yet"
    for late_s in (1.0, 4.0):  # the first time it gives a moment of grace
        watcher.look(now + rig.daemon._lease.length_s + late_s)
    assert bench.host.limits == bench.found


def a_lease_that_ran_out_takes_levers_home(bench: Bench) -> None:
    rig, host, wishing = lever_rig(bench.tmp / "levers", bench.patch, False)
    found = host.everything()
    rig.tick(2)
    wishing.wishes = WISHES
    rig.pin(PIN)
    rig.tick(SETTLE)
    assert host.everything() != found, "the check itself does not work"
    rig.close()
    watcher = Watcher(host, rig.runtime_dir)
    now = time.monotonic()
    for late_s in (0.0, 11.0, 15.0):
        watcher.look(now + late_s)
    assert host.everything() == found


def without_a_lease_nothing_is_written(bench: Bench) -> None:
    rig = bench.pinned()
    watcher, save = Watcher(bench.host, rig.runtime_dir), Actuator._save

    def stopped_after(self: Actuator, wanted: Any) -> None:
        """As a daemon that is stopped between the ledger and its write."""
        save(self, wanted)
        watcher.look(time.monotonic() + rig.daemon._lease.length_s + 1)

    bench.patch.setattr(Actuator, "_save", stopped_after)
    actions = rig.daemon._actuator.apply(2 * PIN, PIN)
    assert bench.host.limits == bench.found, "written behind the watcher's back"
    assert not any(action.ok for action in actions)


def what_somebody_else_sets_is_left_alone(bench: Bench) -> None:
    rig = bench.pinned()
    bench.host.sysctl("dirty_bytes", FOREIGN)
    rig.tick(5)
    assert bench.host.limits.dirty_bytes == FOREIGN
    assert bench.host.limits.dirty_background_ratio == 10, "ours went home"
    assert "dirty_bytes" in rig.status()["yielded"]


def somebody_else(bench: Bench) -> Rig:
    """Who has set the limit, and was seen at it."""
    rig = bench.pinned()
    bench.host.sysctl("dirty_bytes", FOREIGN)
    write = ForeignWrite("dirty_bytes", str(FOREIGN), 4242, "tuned", cmdline="tuned -P")
    rig.probe.next = Reading(writers=(write,))
    rig.tick()
    return rig


def who_set_it_is_named(bench: Bench) -> None:
    status = somebody_else(bench).status()
    assert "tuned (pid 4242" in status["yielded"]
    assert status["alerts"][0]["culprits"][0]["cmdline"] == "tuned -P"


def who_set_it_is_an_alert_in_the_same_tick(bench: Bench) -> None:
    alerts = somebody_else(bench).status()["alerts"]
    assert [each["name"] for each in alerts] == ["FOREIGN_WRITER"]


def a_lever_that_somebody_else_sets_is_let_go(bench: Bench) -> None:
    files = FakeLevers()
    levers = Levers(files, lambda: None)
    levers.apply((FLUSH,))
    files.flush["dirty_writeback_centisecs"] = 333
    assert levers.foreign()
    levers.apply((replace(FLUSH, value=200),))
    assert files.flush["dirty_writeback_centisecs"] == 333


def enforce_goes_back_to_the_foreign_value(bench: Bench) -> None:
    rig = bench.pinned()
    bench.host.sysctl("dirty_bytes", FOREIGN)
    rig.tick(2)
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    rig.tick(2)
    assert bench.host.limits.dirty_bytes == PIN
    rig.daemon._actuator.finish()
    assert bench.host.limits.dirty_bytes == FOREIGN


def the_end_touches_only_what_is_ours(bench: Bench) -> None:
    rig = bench.pinned()
    bench.host.sysctl("dirty_bytes", FOREIGN)
    rig.daemon._actuator.finish()
    assert bench.host.limits.dirty_bytes == FOREIGN


def _restarted(bench: Bench) -> Rig:
    rig = bench.pinned()
    rig.close()
    rig.daemon = rig.start()
    return rig


def a_restart_knows_the_originals(bench: Bench) -> None:
    rig = _restarted(bench)
    rig.tick(2)
    assert rig.daemon._actuator.originals == bench.found
    rig.daemon._actuator.finish()
    assert bench.host.limits == bench.found


def a_restart_does_not_let_the_limit_jump(bench: Bench) -> None:
    rig = _restarted(bench)
    rig.tick(5)  # the pin ended with the first daemon, and nobody has demand
    assert bench.host.limits.dirty_bytes == PIN


def observe_writes_nothing(bench: Bench) -> None:
    rig = bench.rig
    rig.daemon.handle("mode", {"mode": "observe"}, 0)
    rig.pin(PIN)
    rig.tick(4)
    assert bench.host.limits == bench.found and not bench.host.writes


def only_one_daemon(bench: Bench) -> None:
    rig = bench.pinned()
    second: Optional[Daemon] = None
    with contextlib.suppress(AlreadyRunning):
        second = rig.start()
    if second is not None:
        second._monitor.topology.close()
        second._host_lock.close()
    assert second is None


# ---- whatever else happens --------------------------------------------------


def a_file_in_run_holds_off_at_once(bench: Bench) -> None:
    rig = bench.pinned()
    off = rig.runtime_dir / "off"
    off.touch()
    rig.tick()
    assert bench.host.limits == bench.found
    assert rig.status()["off"] == str(off)
    writes = len(bench.host.writes)
    for order in ({"mode": "enforce"}, {"mode": "observe"}, {"mode": "enforce"}):
        rig.daemon.handle("mode", order, 0)
        rig.tick(2)
    assert len(bench.host.writes) == writes
    off.unlink()
    rig.tick(2)
    assert bench.host.limits.dirty_bytes == PIN
    assert rig.status()["off"] is None


def a_file_in_etc_holds_off(bench: Bench) -> None:
    bench.patch.setattr(off_module, "_LOOK_S", 0.01)
    rig = bench.pinned()
    off = bench.host.path("/etc/writebackd/off")
    off.parent.mkdir(parents=True)
    off.symlink_to("/nowhere")  # as a careful admin may make it
    until = time.monotonic() + 1.0
    while bench.host.limits != bench.found and time.monotonic() < until:
        rig.tick()
        time.sleep(0.01)
    assert bench.host.limits == bench.found
    rig.tick(3)
    assert bench.host.limits == bench.found


def off_works_where_nothing_can_be_read(bench: Bench) -> None:
    rig = bench.pinned()
    bench.host.errors["/proc/diskstats"] = errno.EIO
    (rig.runtime_dir / "off").touch()
    rig.tick()
    assert bench.host.limits == bench.found


def off_is_obeyed_before_the_first_write(bench: Bench) -> None:
    off = bench.host.path("/etc/writebackd/off")
    off.parent.mkdir(parents=True)
    off.touch()
    bench.rig.pin(PIN)
    bench.rig.tick(4)
    assert not bench.host.writes


def unread_for_a_moment_the_limits_are_held(bench: Bench) -> None:
    rig = bench.pinned()
    bench.host.errors["/proc/diskstats"] = errno.EIO
    rig.tick(SILENT_TICKS - 1)
    assert bench.host.limits.dirty_bytes == PIN


def unread_for_longer_the_originals_come_back(bench: Bench) -> None:
    rig = bench.pinned()
    bench.host.errors["/proc/diskstats"] = errno.EIO
    rig.tick(SILENT_TICKS + 2)
    assert bench.host.limits == bench.found
    assert any("cannot read kernel statistics" in line for line in rig.status()["warnings"])


# ---- the table ----------------------------------------------------------------


def put(where: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(where, name, value)


def _unsaved(self: Actuator, written: Tuple[Tuple[int, int], ...]) -> None:
    self._written = written


def _in_place(self: Ledger, path: Path) -> None:
    with open(path, "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        body = {"version": 2, **asdict(self)}
        file.write(json.dumps(with_checksum(body)).encode())


def _unjudged(self: Levers, lever: Any, change: Any, problem: Optional[str]) -> Any:
    return change.action(lever, problem)


def _new_lock(runtime_dir: Path, path: Optional[Path] = None) -> int:
    return os.open(os.devnull, os.O_RDONLY)


RAILS: Dict[str, Rail] = {
    "ceiling": Rail(
        never_above_the_ceiling, put(device_decision, "_clamp", lambda x, low, _: max(int(x), low))
    ),
    "memory": Rail(never_more_than_memory_can_hold, put(decide_module, "DIRTYABLE_SHARE", 1.0)),
    "floor": Rail(
        never_below_the_floor, put(device_decision, "_clamp", lambda x, _, high: min(int(x), high))
    ),
    "one step": Rail(one_step_at_a_time, _steps(step_up=1e9)),
    "one step in an interval": Rail(one_step_in_an_interval, _steps(cooldown_s=0.0)),
    "no faster than it drains": Rail(never_tighter_than_what_drains, put(ramp, "HEADROOM", 0.0)),
    "read back": Rail(
        what_the_kernel_makes_of_it_is_looked_at,
        put(actuator_module, "readback_error", lambda *_: None),
    ),
    "read back, levers": Rail(a_lever_is_read_back, put(Levers, "_judge", _unjudged)),
    "originals first": Rail(
        originals_are_known_before_the_first_write, put(Actuator, "_store", _unsaved)
    ),
    "originals first, levers": Rail(
        originals_of_levers_are_known_before_the_first_write,
        put(LeverRegistry, "store", lambda self: None),
    ),
    "originals first, devices": Rail(
        a_device_is_known_before_the_first_write, put(LeverRegistry, "store", lambda self: None)
    ),
    "originals first, paces": Rail(
        a_pace_is_known_before_the_first_write, put(LeverRegistry, "store", lambda self: None)
    ),
    "ledger in one step": Rail(
        there_is_a_whole_ledger_at_any_moment, put(Ledger, "save", _in_place)
    ),
    "ledger of another boot": Rail(
        a_ledger_of_an_earlier_boot_moves_nothing,
        put(Ledger, "is_of_an_earlier_boot", lambda self, files: False),
    ),
    "lease": Rail(a_lease_that_ran_out_takes_all_home, put(Watcher, "_run_out", lambda *_: None)),
    "lease, levers": Rail(
        a_lease_that_ran_out_takes_levers_home, put(Levers, "restore", lambda *_: RestoreOutcome())
    ),
    "no write without lease": Rail(
        without_a_lease_nothing_is_written, put(Lease, "permit", lambda self: None)
    ),
    "foreign write": Rail(
        what_somebody_else_sets_is_left_alone, put(Actuator, "foreign", lambda *_: ())
    ),
    "foreign write, named": Rail(
        who_set_it_is_named, put(host_monitor, "writer_of", lambda *_: None)
    ),
    "foreign write, alert": Rail(
        who_set_it_is_an_alert_in_the_same_tick,
        put(detect_module, "foreign_alerts", lambda *_: ()),
    ),
    "foreign write, levers": Rail(
        a_lever_that_somebody_else_sets_is_let_go, put(Levers, "foreign", lambda self: ())
    ),
    "enforce": Rail(
        enforce_goes_back_to_the_foreign_value, put(Actuator, "_set_original", lambda *_: None)
    ),
    "restore what is ours": Rail(
        the_end_touches_only_what_is_ours, put(restore_module, "is_ours", lambda *_: True)
    ),
    "adopt": Rail(a_restart_knows_the_originals, put(Actuator, "_resolve", lambda *_: None)),
    "adopt, no jump": Rail(
        a_restart_does_not_let_the_limit_jump,
        put(executor, "ADOPTED_HOLD_S", -math.inf),
    ),
    "observe": Rail(
        observe_writes_nothing, put(Executor, "set_dry_run", lambda self, mode, off: None)
    ),
    "one daemon": Rail(only_one_daemon, put(host_lock, "take_lock", _new_lock)),
    "off, /run": Rail(a_file_in_run_holds_off_at_once, put(KillSwitch, "file", lambda self: None)),
    "off, /etc": Rail(a_file_in_etc_holds_off, put(KillSwitch, "_look", lambda self: None)),
    "off, unread": Rail(
        off_works_where_nothing_can_be_read, put(KillSwitch, "file", lambda self: None)
    ),
    "off, from the start": Rail(
        off_is_obeyed_before_the_first_write,
        put(off_module, "_is_there", lambda path, before: False),
    ),
    "silent, held": Rail(
        unread_for_a_moment_the_limits_are_held, put(daemon_module, "SILENT_TICKS", 1)
    ),
    "silent, restored": Rail(
        unread_for_longer_the_originals_come_back, put(daemon_module, "SILENT_TICKS", 1 << 30)
    ),
}

rails = pytest.mark.parametrize("rail", RAILS.values(), ids=RAILS)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: Patch) -> Iterator[Bench]:
    bench = Bench(tmp_path, monkeypatch)
    yield bench
    bench.close()


@rails
def test_holds(bench: Bench, rail: Rail) -> None:
    rail.check(bench)


@rails
def test_fails_without(bench: Bench, monkeypatch: Patch, rail: Rail) -> None:
    rail.take_out(monkeypatch)
    try:
        rail.check(bench)
    except AssertionError as error:
        assert "the check itself" not in str(error)
        return
    raise RuntimeError("the check passes without the rail: it proves nothing")
