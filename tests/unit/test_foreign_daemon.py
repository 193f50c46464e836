# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon that finds a lever changed: in the same tick it is named, told, and left alone."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

from fake_host import FakeWatch, Rig
from lever_host import IO_MAX, LEVER_FILES, PIN, SETTLE, WISHES, LeverHost, lever_rig
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
