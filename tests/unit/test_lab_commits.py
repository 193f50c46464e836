# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of commits beside a flood, on windows made up for the purpose."""

from __future__ import annotations

import time
from array import array
from pathlib import Path
from typing import Any, List, Optional

import pytest

from tests.lab import commit_latency, disks
from tests.lab.commit_figures import Found, Record, Window, musts
from tests.lab.loads import worker


def test_figures_of_a_window() -> None:
    """Eight seconds of 100 commits/s of 1 + 3 ms, 20 in the third, 3 slow ones in the sixth."""
    commits = [(second + n / 100, 0.001, 0.003) for second in range(8)
               for n in range(20 if second == 2 else 100)]
    commits += [(5.5, 0.6, 0.2)] * 3
    figures = Window(8.0, tuple(commits), 950e6, 2000e6).figures(200.0)
    assert figures == pytest.approx({
        "rate": 90.375, "f": 0.451875, "g": 0.475, "score": 0.451875 / 16,
        "write": 2.52 / 5.28, "p99": 4, "worst": 800, "longest": 800,
        "fewest": 84, "slow_seconds": 1, "over100": 3, "write_p99": 1, "write_max": 600,
        "sync_p99": 3})


def test_a_window_without_a_commit_is_one_that_lasts() -> None:
    figures = Window(8.0, (), 1.0, 1.0).figures(200.0)
    assert (figures["p99"], figures["worst"], figures["fewest"], figures["f"]) == (8e3, 8e3, 0, 0)


def figures(rate: float, score: float, write: float = 0.1, slow: float = 0.0) -> Any:
    return {"rate": rate, "score": score, "write": write, "fewest": rate / 2, "over100": slow,
            "slow_seconds": slow, "longest": 20.0 + 600 * slow}


def runs(disk: str, second: float, write: float = 0.1, slow: float = 0.0,
         plain_slow: float = 0.0) -> List[Record]:
    """A pair of 500/s at 0.4 and the plain one at 0.2, an agent with so much."""
    def found(first: Any, then: Optional[Any] = None) -> Found:
        return {"idle": {"rate": 1000.0}, "first": first, **({"second": then} if then else {})}
    return [(disk, "16000/8000", found(figures(300, 0.2, slow=plain_slow))),
            (disk, "8000/4000", found(figures(500, 0.4))),
            (disk, "default", found(figures(900, 0.9))),
            (disk, "agent", found(figures(400, 0.3), figures(500, second, write, slow)))]


@pytest.mark.parametrize("second, write, slow, text", [
    (0.44, 0.25, 0, "good at rest: 25% of a commit in write(), at most 25% where a pair with as "
     "many commits has that (8000/4000)"),
    (0.44, 0.26, 0, "MISSED at rest: 26% of a commit in write()"),
    (0.44, 0.1, 0, "good 1 of 1 at rest: windows without a commit above 100 ms, longest 20 ms"),
    (0.44, 0.1, 1, "MISSED 0 of 1 at rest: windows without a commit above 100 ms, longest 620 ms"),
    (0.44, 0.1, 0, "good second flood: score 1.10 of the best pair's (8000/4000), at least 0.85"),
    (0.32, 0.1, 0, "MISSED second flood: score 0.80 of the best pair's"),
    (0.32, 0.1, 0, "good first flood: fewest commits in 5 s 1.33 of 16000/8000's, at least 0.9"),
    (0.18, 0.1, 0, "MISSED second flood: score 0.90 of 16000/8000's, at least 1"),
])
def test_what_has_to_hold_of_one_disk(second: float, write: float, slow: float,
                                      text: str) -> None:
    assert any(f"ssd-array agent: {text}" in line
               for line in musts(runs("ssd-array", second, write, slow)))


def test_disks_are_judged_together_by_their_geometric_mean() -> None:
    lines = musts([*runs("a", 0.8), *runs("b", 0.2)])
    assert "2 disks agent: good second flood: score 1.00 of the best pair's, at least 1" in lines
    assert "2 disks agent: MISSED first flood: score 0.75 of the best pair's, at least 0.9" in lines


def test_what_was_not_measured_is_open() -> None:
    assert [line.split(": ")[1].split()[0] for line in musts(
        [("a", "agent", {"idle": {"rate": 1.0}, "first": figures(1, 1)})])] == [
            "open", "open", "good", "open", "open", "open", "open", "open"]


def test_limits_of_contenders() -> None:
    disk = disks.Disk(rate="250M")
    for name, limit, background in (("8000/800", 8_000_000, 800_000),
                                    ("knee", 4_194_304, 2_097_152), ("default", 0, 0)):
        found = commit_latency.limits_of(name, disk) or {}
        assert (found["dirty_bytes"], found["dirty_background_bytes"]) == (limit, background)
    assert commit_latency.limits_of("agent:--mode observe", disk) is None


def test_the_worker_stores_both_times(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(8192))
    start = time.monotonic()
    worker.commit({"path": str(tmp_path / "data"), "end": start + 0.05, "gap": 0.01,
                   "out": str(tmp_path / "out")})
    found = commit_latency.read(tmp_path / "out", start)
    assert 1 <= len(found) <= 5 and all(min(each) >= 0 for each in found)
    assert array("d", (tmp_path / "out").read_bytes())[0] == found[0][0] + start
    assert not commit_latency.read(tmp_path / "out", start + 1)
