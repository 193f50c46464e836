# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults on a host without a kernel: refused writes, full directories, clocks that jump.

After each the limits are what they were found as or what was asked for, the log
has one line for it and no traceback, and the daemon goes on.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Iterator, List

import pytest

from fake_host import Rig, no_trace
from fake_vm import SYSCTL
from writebackd.daemon import SILENT_TICKS
from writebackd.kernel.vm import LEVERS
from writebackd.types.levers import VmLimits

PIN = 32 << 20
DAY_S = 86400.0
REFUSALS = [errno.EINVAL, errno.EPERM, errno.EROFS, errno.EACCES, errno.EIO, errno.ENOENT]
named = pytest.mark.parametrize("code", REFUSALS, ids=[errno.errorcode[code] for code in REFUSALS])


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    rig.tick(2)
    yield rig
    rig.close()


def lines(caplog: pytest.LogCaptureFixture, least: int = logging.WARNING) -> List[str]:
    """What the loop said; alerts are told by threads of their own, when they get to it."""
    assert no_trace(caplog.records)
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno >= least and not r.name.startswith("writebackd.notify")
    ]


@named
@pytest.mark.parametrize("late", [False, True], ids=["at once", "after it took effect"])
@pytest.mark.parametrize("lever", ["dirty_bytes", "dirty_background_bytes"])
def test_a_refused_write_is_told_once_undone_and_tried_again(
    rig: Rig, caplog: pytest.LogCaptureFixture, lever: str, late: bool, code: int
) -> None:
    found = rig.host.limits
    rig.host.write_errors[lever] = (code, late)
    rig.pin(PIN)
    rig.tick(20)
    assert rig.host.limits == found
    told = lines(caplog)
    assert 1 <= len(told) <= 2 and all(os.strerror(code) in line for line in told), told
    assert any("cannot set" in line for line in rig.status()["warnings"])
    rig.host.write_errors.clear()
    rig.tick(2)
    assert (rig.host.limits.dirty_bytes, rig.host.limits.dirty_background_bytes) == (PIN, PIN // 2)
    assert len(lines(caplog)) == len(told)
    assert not rig.status()["warnings"]


@named
@pytest.mark.parametrize("lever", LEVERS)
def test_a_way_home_that_is_barred_is_tried_again(
    rig: Rig, caplog: pytest.LogCaptureFixture, lever: str, code: int
) -> None:
    found = rig.host.limits
    rig.pin(PIN)
    rig.tick(2)
    rig.host.write_errors[lever] = (code, False)
    rig.host.errors["/proc/diskstats"] = errno.EIO  # unread for long: restore
    rig.tick(SILENT_TICKS + 20)
    barred = lever in ("dirty_ratio", "dirty_background_ratio")
    assert (rig.host.limits == found) is not barred
    told = lines(caplog)
    assert len(told) == 2 + barred, told
    rig.host.write_errors.clear()
    rig.tick()
    assert rig.host.limits == found
    assert not (rig.runtime_dir / "ledger.json").exists()


@pytest.mark.parametrize("name", ["/proc/vmstat", "/proc/diskstats", SYSCTL + "dirty_ratio"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.EMFILE, errno.ENOMEM])
def test_a_file_that_cannot_be_read_means_hold_then_restore_then_go_on(
    rig: Rig, caplog: pytest.LogCaptureFixture, name: str, code: int
) -> None:
    found = rig.host.limits
    rig.pin(PIN)
    rig.tick(2)
    rig.host.errors[name] = code
    rig.tick(SILENT_TICKS - 1)
    assert VmLimits(**rig.host.values).dirty_bytes == PIN
    rig.tick(10)
    readable = name == "/proc/diskstats" or name == "/proc/vmstat"
    assert (VmLimits(**rig.host.values) == found) is readable, "unread is not overwritten"
    assert "keeping current limits" in lines(caplog)[0]
    assert len(lines(caplog)) <= 4
    rig.host.errors.clear()
    rig.tick(2)
    assert rig.host.limits.dirty_bytes == PIN


@pytest.mark.parametrize("slept_s", [61.0, 8 * 3600.0, 90 * DAY_S])
def test_a_host_that_was_suspended_goes_on(
    rig: Rig, caplog: pytest.LogCaptureFixture, slept_s: float
) -> None:
    rig.pin(PIN)
    rig.tick(3)
    rig.now += slept_s
    rig.wall += slept_s
    rig.host.flow(1 << 30)
    rig.tick(3)
    assert rig.host.limits.dirty_bytes == PIN
    assert not lines(caplog)
    assert rig.status()["uptime_s"] >= slept_s


def test_a_clock_that_stands_still_is_no_division_by_zero(rig: Rig) -> None:
    rig.pin(PIN)
    for _ in range(5):
        rig.host.flow(1 << 20)
        rig.daemon._tick()
    assert rig.host.limits.dirty_bytes == PIN
