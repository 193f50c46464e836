# SPDX-License-Identifier: GPL-2.0-or-later
"""Drawn scenarios are the same for the same seed, can be run, and cover every family."""

from __future__ import annotations

import pytest

from tests.lab import catalogue, drawn, scenario

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
