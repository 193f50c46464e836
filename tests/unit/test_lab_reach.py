# SPDX-License-Identifier: GPL-2.0-or-later
"""Worst moments and how quiet a limit is, on curves made up for the purpose."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from tests.lab import host, reach, scenario
from tests.lab.watch import Watch

MB = 1 << 20
FLOOD = scenario.load("flood")  # from second 2 on
JUDGED = (8.0, 20.0)


def made(rate: Callable[[float], Optional[float]] = lambda t: 1000.0,
         p99: Callable[[float], Optional[float]] = lambda t: 0.004,
         limits: Optional[List[Tuple[float, int]]] = None, end: float = 20.0) -> Dict[str, Any]:
    """A run; the figures of second t are those of what was in the time before it."""
    times = [0.5 * step for step in range(1, int(2 * end) + 1)]
    return {"loads": [], "windows": {"idle": (0.5, 2.0), "judged": (JUDGED[0], end)},
            "limits": limits or [], "series": {"t": times, "sync_rate": [rate(t) for t in times],
                       "sync_p99": [p99(t) for t in times]}}


def test_the_worst_second_and_the_longest_commit_count_from_the_floods_first_second() -> None:
    run = made(p99=lambda t: 0.9 if t <= 2 else 0.2 if t == 2.5 else 0.004)
    run["series"]["sync_max"] = [5.0 if t <= 2 else 0.7 if t == 3 else None
                                 for t in run["series"]["t"]]
    assert (reach.worst_second(FLOOD, run), reach.longest(FLOOD, run)) == (0.2, 0.7)
    # Of one that comes in mid-flood, from then on.
    assert reach.worst_second(scenario.load("mid-flood"), run) == 0.004
    assert reach.worst_second(scenario.load("fsync-storm"), run) is None


def limits_of(value: Callable[[float], float], end: float) -> List[Tuple[float, int]]:
    """A limit that is written every second."""
    return [(float(second), int(value(second) * MB)) for second in range(int(end))]


@pytest.mark.parametrize("period", [4, 6, 9])
def test_a_periodic_limit_swings(period: int) -> None:
    found = reach.swing(made(end=60.0, limits=limits_of(
        lambda t: 10 + 3 * math.sin(2 * math.pi * t / period), 60)))
    assert found is not None and found.period_s == pytest.approx(period, abs=0.5)
    assert found.amplitude == pytest.approx(0.3, rel=0.15)


@pytest.mark.parametrize("value", [
    lambda t: 10,  # at rest
    lambda t: 1 + t,  # climbs
    lambda t: 100 if t < 40 else 10,  # one step
    lambda t: 10 * 0.9 ** t + 2,  # comes down to where it rests
    lambda t: 10 + 0.5 * math.sin(2 * math.pi * t / 6),  # too little to matter
])
def test_what_is_no_oscillation(value: Callable[[float], float]) -> None:
    assert reach.swing(made(end=60.0, limits=limits_of(value, 60))) == reach.NONE


class Looked:
    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> None:
        self.looks += 1


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: List[Any],
            act: Callable[[], None]) -> Watch:
    for name in ("dirty_bytes", "dirty_background_bytes", "dirty_background_ratio"):
        (tmp_path / name).write_text("0\n")
    (tmp_path / "dirty_ratio").write_text("20\n")
    monkeypatch.setattr(host, "VM", tmp_path)
    monkeypatch.setattr(host, "vmstat", lambda name: 5000)
    with Watch(lambda roles: loads, time.monotonic, 0.002) as watch:
        act()
    assert not [each for each in threading.enumerate() if each is watch._thread]
    return watch


def test_every_write_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        for size in ("4096", "8192", "8192", "4096"):
            time.sleep(0.05)
            with open(tmp_path / "dirty_bytes", "r+") as file:  # never empty, as in /proc
                file.write(f"{size:<8}")
        time.sleep(0.05)

    load = Looked()
    watch = watched(tmp_path, monkeypatch, [load], act)
    assert [size for _, size in watch.limits if size] == [5000, 4096, 8192, 4096]
    assert [time for time, _ in watch.limits] == sorted(time for time, _ in watch.limits)
    assert load.looks > 10
