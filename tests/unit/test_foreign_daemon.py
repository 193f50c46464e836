# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon beside other writers; settings of the boot that are applied again."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

import pytest

from fake_host import FakeHost, FakeWatch, Rig
from fake_vm import DEFAULT
from lever_host import IO_MAX, LEVER_FILES, PIN, SETTLE, WISHES, LeverHost, lever_rig
from writebackd.cli.status_screen import headline
from writebackd.kernel.conflicting_tools import find_conflicting_tools
from writebackd.kernel.map_readers import Reading
from writebackd.types.levers import ForeignWrite

FOREIGN = 99 << 20
THEIRS = dict(zip(LEVER_FILES, ("333", "0", "500000", "7", "32", "64", "8:0 wbps=5")))
Held = Tuple[Rig, LeverHost]


@pytest.fixture(params=[False, True], ids=["nobody's cgroups", "systemd's"])
def held(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Held]:
    rig, host, wishing = lever_rig(tmp_path, monkeypatch, request.param)
    rig.tick(2)
    rig.pin(PIN)
    wishing.wishes = WISHES
    rig.tick(SETTLE)
    assert host.held()
    yield rig, host
    rig.end()


def alerts(rig: Rig) -> List[str]:
    return [each["summary"] for each in rig.status()["alerts"] if each["name"] == "FOREIGN_WRITER"]


@pytest.mark.parametrize("name", LEVER_FILES)
def test_a_lever_that_no_program_can_watch_was_set_by_an_unknown_process(
    held: Held, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """What is not a sysctl no probe sees being written; the others go on."""
    rig, host = held
    if name == IO_MAX and host.units is not None:
        host.set_property("dump.service", "IOWriteBandwidthMax", "/dev/block/8:0", "5")
    else:
        host.poke(name, THEIRS[name])
    theirs = host.read(name)
    rig.tick()
    assert len(alerts(rig)) == 1 and "an unknown process set" in alerts(rig)[0]
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert sum("an unknown process set" in line and "lever released" in line for line in told) == 1
    rig.tick(2 * SETTLE)
    assert host.read(name) == theirs and host.limits.dirty_bytes == PIN and len(alerts(rig)) == 1
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    rig.tick(2 * SETTLE)
    assert alerts(rig) == []
    assert host.held()
    rig.daemon._actuator.finish()
    assert host.read(name) == theirs, "what to go back to"


def seen(pid: int) -> Reading:
    write = ForeignWrite("dirty_bytes", str(FOREIGN), pid, "tuned", cmdline="tuned -P")
    return Reading(writers=(write,))


@pytest.mark.parametrize("early", [False, True], ids=["in this tick", "read a tick before"])
def test_who_set_the_limit_is_named(held: Held, early: bool) -> None:
    rig, host = held
    rig.probe.next = seen(4242)
    if early:  # the write came between reading the limits and reading the probe
        rig.tick()
        rig.probe.next = Reading()
    host.sysctl("dirty_bytes", FOREIGN)
    rig.tick()
    assert "tuned (pid 4242" in rig.status()["yielded"]
    assert len(alerts(rig)) == 1 and "tuned (pid 4242" in alerts(rig)[0]


@pytest.mark.parametrize("pid", [os.getpid(), FakeWatch.pid], ids=["daemon", "watcher"])
def test_our_own_writes_blame_nobody(held: Held, pid: int) -> None:
    rig, host = held
    rig.probe.next = seen(pid)
    host.sysctl("dirty_bytes", FOREIGN)
    rig.tick()
    assert "an unknown process" in rig.status()["yielded"]


def test_after_a_foreign_write_rivals_are_looked_for_again(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever did it may have been installed just now."""
    rig, host = held
    looks: List[int] = []
    monkeypatch.setattr(rig.daemon._monitor.rivals, "look", lambda: looks.append(1))
    rig.tick(3)
    assert not looks
    host.sysctl("dirty_bytes", FOREIGN)
    rig.tick()
    assert looks == [1]


WANTED = 32 << 20


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    host = FakeHost(tmp_path / "root")
    host.tree.text("/etc/sysctl.d/90-site.conf", "vm.dirty_ratio = 20\n")
    rig = Rig(tmp_path, monkeypatch, host)
    rig.daemon._monitor.rivals.tools = find_conflicting_tools(host)
    monkeypatch.setattr(rig.daemon._monitor.rivals, "look", lambda: None)
    rig.tick(2)
    rig.pin(WANTED)
    rig.tick(2)
    assert host.limits.dirty_bytes == WANTED
    return rig


def applied(rig: Rig, comm: Optional[str], ratio: int = 20) -> str:
    """Both lines of the file; what status says of it then."""
    values = {"dirty_ratio": ratio, "dirty_background_ratio": 10}
    for lever, value in values.items():
        rig.host.sysctl(lever, value)
    rig.probe.next = Reading(writers=tuple(
        ForeignWrite(lever, str(value), 4242, comm) for lever, value in values.items()
    ) if comm else ())
    rig.tick()
    rig.probe.next = Reading()
    said: str = rig.status()["yielded"]
    assert rig.host.limits.dirty_bytes == 0
    return said


@pytest.mark.parametrize("comm", ["systemd-sysctl", "sysctl"])
def test_the_originals_applied_again_are_a_yield_of_a_minute(rig: Rig, comm: str) -> None:
    said = applied(rig, comm)
    assert f"{comm} (pid 4242" in said and "/etc/sysctl.d/90-site.conf:1" in said
    assert "nobody wants another limit; enforcing again after 1m0s" in said
    rig.tick()
    assert "enforce (yielded, enforcing again in 59s)" in headline(rig.status())
    alert = rig.status()["alerts"][0]
    assert (alert["name"], "nothing is protected until then" in alert["summary"]) == (
        "FOREIGN_WRITER", True)
    rig.tick(57)
    assert rig.host.limits == DEFAULT
    rig.tick(4)
    assert rig.host.limits.dirty_bytes == WANTED
    status = rig.status()
    assert status["yielded"] is None and status["alerts"] == []
    rig.end()
    assert rig.host.limits == DEFAULT


@pytest.mark.parametrize(("comm", "ratio"), [("tuned", 20), (None, 20), ("systemd-sysctl", 40)])
def test_another_writer_or_value_is_a_yield_for_good(
    rig: Rig, comm: Optional[str], ratio: int
) -> None:
    assert "enforcing again" not in applied(rig, comm, ratio)
    rig.tick(200)
    assert rig.host.limits.dirty_ratio == ratio and rig.status()["yielded"]


def test_three_times_in_an_hour_and_then_no_more(rig: Rig) -> None:
    for _ in range(3):
        assert "enforcing again" in applied(rig, "sysctl")
        rig.tick(70)
        assert rig.host.limits.dirty_bytes == WANTED
    assert "nobody wants another limit)" in applied(rig, "sysctl")
    rig.tick(200)
    assert rig.host.limits == DEFAULT
    assert "until `writebackctl enforce`" in rig.status()["alerts"][0]["summary"]
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    rig.now += 3600.0
    rig.tick(3)
    assert "enforcing again" in applied(rig, "sysctl")


def test_who_sets_another_limit_meanwhile_keeps_it(rig: Rig) -> None:
    applied(rig, "sysctl")
    rig.tick(10)
    rig.host.sysctl("dirty_bytes", 99 << 20)
    rig.tick(200)
    assert rig.host.limits.dirty_bytes == 99 << 20 and rig.status()["yielded"]


def test_the_minute_goes_on_over_a_restart(rig: Rig) -> None:
    applied(rig, "sysctl")
    rig.tick(5)
    rig.close()
    rig.daemon = rig.start()
    rig.pin(WANTED)
    rig.tick(40)
    assert rig.host.limits == DEFAULT and rig.status()["yielded"]
    rig.tick(30)
    assert rig.host.limits.dirty_bytes == WANTED
