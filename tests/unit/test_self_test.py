# SPDX-License-Identifier: GPL-2.0-or-later
"""The self-test of a BDI's limits: it leaves no trace, and tells why a kernel is not fit."""

from __future__ import annotations

import errno
from typing import Callable, List

import pytest

from fake_levers import BDI, FakeLevers
from lever_cases import CAP, FIXTURES, bdi_settings, settle, started
from limit_cases import MIB
from writebackd.actuate import lever_plan, lever_registry
from writebackd.actuate.ledger import load
from writebackd.kernel import bdi
from writebackd.types.levers import Action

files, plain, systemd = FIXTURES


def test_self_test_leaves_no_trace(plain: FakeLevers) -> None:
    assert bdi.self_test(plain, "8:0", plain.thresholds()[0] * 4096) is None
    assert plain.bdis["8:0"] == BDI and len(plain.writes) == 4


@pytest.mark.parametrize("scale", [2, 10_000])
def test_kernel_with_the_wrong_unit_is_found_out(plain: FakeLevers, scale: int) -> None:
    plain.min_scale = scale
    actuator = started(plain)
    actions = settle(actuator, *CAP)
    assert len(actions) == 3 and not any(action.ok for action in actions)
    writes = len(plain.writes)
    assert settle(actuator, *bdi_settings(3 * MIB, MIB)) == () and len(plain.writes) == writes
    told = "Invalid argument" if scale > 2 else "reads back as 20000 instead of 10000"
    assert all(told in str(action.error) for action in actions)
    assert plain.bdis["8:0"] == BDI and load(plain.ledger) is None


def test_what_a_self_test_came_to_is_told_once_while_it_comes_to_the_same(
    plain: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cap by the policy is asked for in every tick, on a kernel without caps as well."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    del plain.bdis["8:0"]["min_ratio_fine"]
    actuator = started(plain)

    def asked(seconds: int) -> "List[Action]":
        actions: List[Action] = []
        for _ in range(0, seconds, 10):
            actions += actuator.apply_settings(CAP)
            now[0] += 10.0
        return actions

    first = asked(10)
    assert len(first) == 3 and all("no limits in bytes" in str(each.error) for each in first)
    assert asked(1000) == [] and actuator.levers.entries == ()
    # Who asks for it anew, hours later, is told.
    assert actuator.apply_settings(()) == () and len(asked(1000)) == 3
    # It is of that BDI: another one of the name is told again.
    plain.unplug("8:0", "sda")
    plain.plug("8:0", "sda")
    fine = plain.bdis["8:0"].pop("min_ratio_fine")
    assert len(asked(1000)) == 3
    # Another reason is told, and one that has gone leaves the cap to be set.
    plain.bdis["8:0"]["min_ratio_fine"] = fine
    plain.poke("/sys/class/bdi/8:0/max_ratio_fine", "10000")
    assert ["limits of its own" in str(each.error) for each in asked(600)] == [True] * 3
    plain.poke("/sys/class/bdi/8:0/max_ratio_fine", "1000000")
    assert [each.ok for each in asked(600)] == [True] * 3
    assert plain.bdis["8:0"]["strict_limit"] == 1


@pytest.mark.parametrize("spoil, words", [
    (lambda f: f.poke("/sys/class/bdi/8:0/max_ratio_fine", "10000"), "limits of its own"),
    (lambda f: f.bdis["8:0"].pop("min_ratio_fine"), "no limits in bytes"),
    (lambda f: f.texts.update({STATS: "BdiDirtyThresh: 7 kB\nDirtyThresh: 40000 kB"}),
     "threshold is 7 of 40000 kB"),
    (lambda f: f.write_errors.update({FINE: (errno.EROFS, False)}), "read-only"),
    (lambda f: f.errors.update({"/sys/class/bdi/8:0/max_bytes": errno.EIO}), "Input/output"),
])  # fmt: skip
def test_self_test_tells_why(
    plain: FakeLevers, spoil: Callable[[FakeLevers], object], words: str
) -> None:
    spoil(plain)
    before = dict(plain.bdis["8:0"])
    reason = bdi.self_test(plain, "8:0", plain.thresholds()[0] * 4096)
    assert reason and words.lower() in reason.lower()
    assert plain.bdis["8:0"] == before


def test_self_test_that_cannot_put_back_is_put_right_later(
    plain: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lever_plan, "RETRY_S", 0.0)
    actuator = started(plain)
    count = 0

    def break_down(name: str) -> None:
        nonlocal count
        count += 1
        if count == 3:
            plain.write_errors = {FINE: (errno.EIO, False), FINE_MIN: (errno.EIO, False)}

    plain.before_write = break_down
    assert not any(action.ok for action in actuator.apply_settings(CAP))
    assert plain.bdis["8:0"]["max_ratio_fine"] == bdi.TEST_MAX and load(plain.ledger) is not None
    plain.write_errors = {}
    settle(actuator, *CAP)
    assert plain.bdis["8:0"] == BDI and load(plain.ledger) is None
    actuator.take_over()  # or five minutes
    assert all(action.ok for action in settle(actuator, *CAP))
    assert plain.bdis["8:0"]["strict_limit"] == 1


def test_what_a_test_left_is_never_taken_for_the_original(
    plain: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lever_plan, "RETRY_S", 0.0)
    monkeypatch.setattr(lever_registry, "TEST_AGAIN_S", 0.0)
    actuator = started(plain)
    plain.before_write = lambda name: plain.write_errors.update(
        {FINE: (errno.EIO, False)} if name == FINE_MIN else {}
    )
    settle(actuator, *CAP)
    assert plain.bdis["8:0"]["max_ratio_fine"] == bdi.TEST_MAX
    plain.before_write = lambda name: None
    plain.write_errors = {}
    actuator.finish()
    assert plain.bdis["8:0"] == BDI and load(plain.ledger) is None


FINE_MIN = "/sys/class/bdi/8:0/min_ratio_fine"
STATS = "/sys/kernel/debug/bdi/8:0/stats"
FINE = "/sys/class/bdi/8:0/max_ratio_fine"


def test_self_test_compares_the_scale_of_bytes(plain: FakeLevers) -> None:
    """A kernel whose bytes are not the fraction of the threshold that it says."""
    assert "millionths" in str(bdi.self_test(plain, "8:0", plain.thresholds()[0] * 4096 * 3))
