# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of commits beside a flood, on windows made up for the purpose."""

from __future__ import annotations

from typing import Any, List, Optional

import pytest

from tests.lab.commit_figures import Found, Record, Window, musts


def test_figures_of_a_window() -> None:
    """Eight seconds of 100 commits/s of 1 + 3 ms, 20 in the third, 3 slow ones in the sixth."""
    commits = [(second + n / 100, 0.001, 0.003) for second in range(8)
               for n in range(20 if second == 2 else 100)]
    commits += [(5.5, 0.6, 0.2)] * 3
    # The media write 250 MB/s, but 20 from 5.4 s on.
    drained = tuple((n / 50, 5e6 * min(n, 270) + 4e5 * max(0, n - 270), 200e6) for n in range(400))
    figures = Window(8.0, tuple(commits), 950e6, 2000e6, drained, 250e6).figures(200.0)
    assert figures == pytest.approx({
        "rate": 90.375, "f": 0.451875, "g": 0.475, "score": 0.451875 / 16,
        "write": 2.52 / 5.28, "p99": 4, "worst": 800, "longest": 800,
        "fewest": 84, "slow_seconds": 1, "over100": 3, "swept": 3, "write_p99": 1, "write_max": 600,
        "sync_p99": 3})


def figures(rate: float, score: float, write: float = 0.1, slow: float = 0.0) -> Any:
    """Half of `slow` commits, rounded down, were in a sweep."""
    return {"rate": rate, "score": score, "write": write, "fewest": rate / 2, "over100": slow,
            "swept": slow // 2, "slow_seconds": slow, "longest": 20.0 + 600 * slow}


def runs(disk: str, second: float, write: float = 0.1, slow: float = 0.0,
         plain_slow: float = 0.0) -> List[Record]:
    """A pair of 500/s at 0.4 and the plain one at 0.2, an agent with so much.

    Before the agent's run the disk did twice as many idle commits/s.
    """
    def found(first: Any, then: Optional[Any] = None) -> Found:
        idle = {"rate": 2000.0 if then else 1000.0}
        return {"idle": idle, "first": first, **({"second": then} if then else {})}
    return [(disk, "16000/8000", found(figures(300, 0.2, slow=plain_slow))),
            (disk, "8000/4000", found(figures(500, 0.4))),
            (disk, "default", found(figures(900, 0.9))),
            (disk, "agent", found(figures(400, 0.15), figures(500, second / 2, write, slow)))]


@pytest.mark.parametrize("fill, media, in_sweep", [
    (200e6, 100e6, True), (200e6, 150e6, False), (1e6, 100e6, False), (0.0, 0.0, False)])
def test_a_sweep_is_told_by_a_cache_that_empties_slowly(fill: float, media: float,
                                                        in_sweep: bool) -> None:
    looks = tuple((n / 50, media * n / 50, fill) for n in range(100))
    window = Window(2.0, (), 0.0, 1.0, looks, 250e6)
    assert window.in_sweep(0.5, 0.2) is in_sweep


@pytest.mark.parametrize("second, write, slow, text", [
    (0.44, 0.25, 0, "good at rest: 25% of a commit in write(), at most 25% where a pair with as "
     "many commits has that (8000/4000)"),
    (0.44, 0.26, 0, "MISSED at rest: 26% of a commit in write()"),
    (0.44, 0.1, 0, "good 1 of 1 at rest: windows without a commit above 100 ms but in sweeps of "
     "the disk (0 of 0), longest 20 ms"),
    (0.44, 0.1, 2, "MISSED 0 of 1 at rest: windows without a commit above 100 ms but in sweeps of "
     "the disk (1 of 2), longest 1220 ms"),
    (0.44, 0.1, 0, "good second flood: score 1.10 of the best pair's (8000/4000), at least 0.85"),
    (0.32, 0.1, 0, "MISSED second flood: score 0.80 of the best pair's"),
    (0.32, 0.1, 0, "good first flood: fewest commits in 5 s 1.33 of 16000/8000's, at least 0.9"),
    (0.18, 0.1, 0, "MISSED second flood: score 0.90 of 16000/8000's, at least 1"),
])
def test_what_has_to_hold_of_one_disk(second: float, write: float, slow: float,
                                      text: str) -> None:
    assert any(f"ssd-array agent: {text}" in line
               for line in musts(runs("ssd-array", second, write, slow)))
