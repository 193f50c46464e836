# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of every lever, and a fake host to apply them on."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Tuple

import pytest

from fake_levers import FakeLevers
from limit_cases import MIB
from writebackd.actuate import lever_plan
from writebackd.actuate.actuator import Actuator
from writebackd.kernel import cgroup_io_max, child_process
from writebackd.types.levers import Action, LeverKind, Setting

UNIT = "/system.slice/dump.service"
PAIR = (64 * MIB, 32 * MIB)
FLUSH = Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 100)
NR = Setting(LeverKind.QUEUE, "sda", "nr_requests", 8)
SECTORS = Setting(LeverKind.QUEUE, "sda", "max_sectors_kb", 128)

RATE = Setting(LeverKind.CACHE, "bcache0", "writeback_rate_minimum", 20_000)
DELAY = Setting(LeverKind.CACHE, "bcache0", "writeback_delay", 1)


def bdi_settings(limit: int, least: int) -> Tuple[Setting, ...]:
    return (
        Setting(LeverKind.BDI, "8:0", "strict_limit", 1),
        Setting(LeverKind.BDI, "8:0", "max_bytes", limit),
        Setting(LeverKind.BDI, "8:0", "min_bytes", least),
    )


def pace(rate: int) -> Setting:
    return Setting(LeverKind.PACE, UNIT, "8:0", rate)


CAP = bdi_settings(8 * MIB, 8 * MIB)
ALL = (FLUSH, *CAP, NR, SECTORS, RATE, DELAY, pace(20_000_000))
OTHERS = (
    Setting(LeverKind.FLUSH, "vm", "dirty_expire_centisecs", 500),
    *bdi_settings(4 * MIB, 2 * MIB),
    Setting(LeverKind.QUEUE, "sda", "nr_requests", 4),
    Setting(LeverKind.CACHE, "bcache0", "writeback_rate_minimum", 30_000),
    pace(15_000_000),
)
SPELL = (ALL, OTHERS, (), ALL)


def world(monkeypatch: pytest.MonkeyPatch, directory: Path, systemd: bool) -> FakeLevers:
    files = FakeLevers()
    files.ledger = directory / "ledger.json"
    if systemd:
        files.boot_systemd()
    monkeypatch.setattr(lever_plan, "Job", files.job)
    monkeypatch.setattr(cgroup_io_max, "_APPLY_S", 0.0)
    # Without its thread, which a busy machine may let wait too long; test_kill_switch.py has that.
    monkeypatch.setattr(child_process, "read", lambda files, *names: files.read("/".join(names)))
    return files


@pytest.fixture(params=["cgroups are nobody's", "systemd owns them"])
def _files(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> FakeLevers:
    return world(monkeypatch, tmp_path, request.param.startswith("systemd"))


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLevers:
    return world(monkeypatch, tmp_path, False)


@pytest.fixture
def _systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLevers:
    return world(monkeypatch, tmp_path, True)


# Their names are those that a module gives them: files, plain, systemd.
FIXTURES = (_files, _plain, _systemd)


def started(files: FakeLevers, on_exit: str = "restore") -> Actuator:
    actuator = Actuator(files, files.ledger, on_exit)
    actuator.start()
    return actuator


def holding(
    files: FakeLevers, *settings: Setting,
    pair: Optional[Tuple[int, int]] = None, on_exit: str = "restore",
) -> Actuator:
    """One that has set the pair, if there is one, and these levers."""
    actuator = started(files, on_exit)
    if pair is not None:
        actuator.apply(*pair)
    settle(actuator, *settings)
    return actuator


def settle(actuator: Actuator, *settings: Setting) -> Tuple[Action, ...]:
    """As many ticks as the slow levers need: one write of a disk at a time."""
    return sum((actuator.apply_settings(settings) for _ in range(4)), ())


def by_lever(actions: Tuple[Action, ...]) -> dict[str, Action]:
    return {action.lever: action for action in actions}
