# SPDX-License-Identifier: GPL-2.0-or-later
"""Drawn scenarios are the same for the same seed, can be run, and cover every family."""

from __future__ import annotations

import pytest

from tests.lab import catalogue, contenders, drawn, scenario
from tests.lab.bench import Job, inputs
from tests.lab.remains import RigError
from tests.lab.run import Conditions

SEEDS = range(240)


def test_each_draw_can_be_run_and_is_the_same_again() -> None:
    for seed in SEEDS:
        found = drawn.draw(seed)
        scenario.check(found.name, found)
        assert repr(found) == repr(catalogue.load(found.name))
        (disk,) = (each.disk for each in found.disks)
        disk.args()  # raises for what the model does not take
        floods = [span.start for span in found.loads[1].spans]
        for window in (found.judged, found.changed):
            assert window is not None and window.length == 60 and window.start in floods


@pytest.mark.parametrize("first", [0, 1])
def test_six_seeds_in_a_row_have_each_family_once(first: int) -> None:
    families = [drawn.draw(seed).disks[0].preset for seed in range(first, first + 12, 2)]
    assert sorted(families) == sorted(drawn.FAMILIES)


def test_both_kinds_of_flood_and_filesystem_are_drawn() -> None:
    drawings = [drawn.draw(seed) for seed in SEEDS]
    waves = sum(len(each.loads[1].spans) > 2 for each in drawings) / len(drawings)
    assert abs(waves - drawn.WAVES) < 0.1
    assert {each.disks[0].fs for each in drawings} == {"xfs", "ext4"}


def test_a_seed_that_is_none_is_refused() -> None:
    with pytest.raises(RigError, match="take drawn-SEED"):
        catalogue.load("drawn-x")


def test_a_result_is_of_no_use_when_the_draw_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = Conditions("native", 1.0, "bench", 0, "")
    agent = contenders.named("agent")
    before = inputs(Job(drawn.draw(2), agent, 1), conditions)
    assert before == inputs(Job(drawn.draw(2), agent, 1), conditions)
    monkeypatch.setattr(drawn, "SECOND", scenario.Span(76.0, 136.0))
    assert before != inputs(Job(drawn.draw(2), agent, 1), conditions)
