# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates from samples of a real kernel, against what the modelled disks did meanwhile.

The bounds are what `python -m tests.lab.tapes judge` prints, with a margin: some are far from what
is wanted.  Tighten them with every better estimate.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import List, Tuple

import pytest

from tests.lab.judge import Tick, again, judge, play
from tests.lab.tapes import DIRECTORY, runs
from tests.lab.truth import ROOM, Truth
from writebackd.report.recorder import read_recording
from writebackd.types.copying import replace

NAMES = tuple(runs())
MOST_BYTES = 150 << 10


@dataclass(frozen=True)
class Bounds:
    """Shares; of R and of the cache's size the range of what is believed / what is so."""

    false_full: float  # at most: ticks with room that are marked
    false_room: float  # at most: full ticks that are not
    r: Tuple[float, float]
    r_near: float  # at least: ticks with R within 15 %
    learned_s: float  # at most: of floods until R is known


BOUNDS = {
    "array": Bounds(0.52, 0.02, (0.97, 1.04), 0.97, 14),
    "slow-array": Bounds(0.32, 0.02, (0.96, 1.03), 0.77, 10),
    "ssd": Bounds(0.00, 0.02, (0.66, 1.05), 0.00, 11),
    "no-cache": Bounds(0.00, 0.02, (0.43, 1.05), 0.00, 7),
    "halves": Bounds(0.50, 0.02, (0.92, 1.05), 0.78, 8),
    "observed": Bounds(1.00, 0.02, (0.97, 1.04), 0.97, 10),
}


@functools.lru_cache(maxsize=None)
def ticks_of(name: str) -> List[Tick]:
    return play(DIRECTORY / name)


@pytest.mark.parametrize("name", NAMES)
def test_the_mark_says_what_the_cache_is(name: str) -> None:
    found, bounds = judge(ticks_of(name)), BOUNDS[name]
    assert found.ticks > 100
    assert (found.false_full or 0.0) <= bounds.false_full, found
    assert (found.false_room or 0.0) <= bounds.false_room, found


@pytest.mark.parametrize("name", NAMES)
def test_r_is_what_the_media_take(name: str) -> None:
    found, bounds = judge(ticks_of(name)), BOUNDS[name]
    assert found.learned_s is not None and found.learned_s <= bounds.learned_s, found
    assert found.r is not None and bounds.r[0] <= found.r <= bounds.r[1], found
    assert found.r_near is not None and found.r_near >= bounds.r_near, found


def test_the_cache_of_the_slow_array_is_seen_to_fill() -> None:
    """A fast one's is not, yet: it is taken for full while it has room."""
    found = judge(ticks_of("slow-array"))
    # Its R is the link's at first, where the limits of the tape let syncs wait there.
    assert found.cache is not None and 0.74 <= found.cache <= 1.03, found
    assert found.fill is not None and found.fill <= 0.25, found


@pytest.mark.parametrize("name", NAMES)
def test_estimates_go_by_the_limits_of_then_whatever_a_later_law_asks_for(name: str) -> None:
    ticks = [replace(tick, policy=re.sub(r"(?m)^(ceiling|rest) = .*$", r"\1 = 1M", tick.policy))
             for tick in read_recording(DIRECTORY / name)]
    steps = list(again(ticks))
    otherwise = 0
    for last, step in zip(steps, steps[1:]):
        now = {each.name: each.target_bytes for each in last.decision.devices}
        for device, _, _, then in last.outcome.devices:
            if then is not None and then != now[device]:
                share = last.estimates[device].limit_share
                assert step.before.devices[device].law.limit_bytes == pytest.approx(then * share)
                otherwise += 1
    assert otherwise > 30


@pytest.mark.parametrize("name", NAMES)
def test_a_tape_is_small_and_tells_nothing_of_its_host(name: str) -> None:
    files = sorted((DIRECTORY / name).iterdir())
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    for tick in read_recording(DIRECTORY / name):
        sample = tick.sample
        assert {task.comm for task in sample.tasks} <= {"writer"}
        assert not (sample.cgroups or sample.backings or sample.errors or sample.foreign)
        for seen in sample.devices:
            assert seen.device.identity is None
            assert {mount for _, _, mount in seen.device.filesystems} <= {"/"}


def looks(fill: List[float]) -> Truth:
    size = len(fill)
    return Truth(False, {"t": [0.1 * i for i in range(size)], "fill": fill,
                         "capacity": [512 << 20] * size, "drain_rate": [1e8] * size})


def test_a_cache_is_full_where_a_write_finds_no_room() -> None:
    full, room = float(512 << 20), float((512 << 20) - ROOM)
    truth = looks([room] * 4 + [full] * 6)
    assert not truth.between(-1.0, 0.35).is_full and truth.between(0.35, 1.0).full == 1.0
    assert truth.between(-1.0, 1.0).full == pytest.approx(0.6)
    assert replace(truth, flushed=True).between(-1.0, 0.35).full == 1.0
    with pytest.raises(ValueError, match="no look"):
        truth.between(2.0, 3.0)
