# SPDX-License-Identifier: GPL-2.0-or-later
"""Worst moments and changes of a limit, on curves made up for the purpose."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import pytest

from tests.lab import host, reach, scenario
from tests.lab.watch import Watch

MB = 1 << 20
FLOOD = scenario.load("flood")  # from second 2 on


def made(p99: Callable[[float], Optional[float]]) -> Dict[str, Any]:
    """A run; the figures of second t are those of what was in the time before it."""
    times = [0.5 * step for step in range(1, 41)]
    return {"loads": [], "windows": {"idle": (0.5, 2.0), "judged": (8.0, 20.0)},
            "series": {"t": times, "sync_p99": [p99(t) for t in times]}}


def test_the_worst_second_and_the_longest_commit_count_from_the_floods_first_second() -> None:
    run = made(lambda t: 0.9 if t <= 2 else 0.2 if t == 2.5 else 0.004)
    run["series"]["sync_max"] = [5.0 if t <= 2 else 0.7 if t == 3 else None
                                 for t in run["series"]["t"]]
    assert (reach.worst_second(FLOOD, run), reach.longest(FLOOD, run)) == (0.2, 0.7)
    # Of one that comes in mid-flood, from then on.
    assert reach.worst_second(scenario.load("mid-flood"), run) == 0.004
    assert reach.worst_second(scenario.load("fsync-storm"), run) is None


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
