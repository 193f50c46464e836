# SPDX-License-Identifier: GPL-2.0-or-later
"""What a sync and a small write take when nobody is in their way: learned in quiet ticks only."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from plant import DISK, UNLOADED_S, latencies
from writebackd.estimate.drain import Writes
from writebackd.estimate.sync_demand import update_baseline
from writebackd.tuning import CACHE_S, FLOOD_RATE, OWN_BYTES, WEIGHT
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import ClassSample, DeviceSample, IoClass, SyncSample

MB = 1 << 20
LOADED_S = 8e-3
QUIET = DeviceMemory(
    baseline_s=UNLOADED_S, write_baseline_s=UNLOADED_S / 3, last_flood_s=0.0,
    quiet_s=CACHE_S,
)  # fmt: skip


def tick(
    memory: DeviceMemory,
    dt_s: float = 1.0,
    syncs: Optional[int] = 5,
    each: int = 4096,
    wait_s: float = LOADED_S,
    direct: float = 0.0,
    background: float = 0.0,
    known: bool = True,
    group: float = 0.0,
) -> DeviceMemory:
    """A tick of `syncs` syncs of `each` bytes (None: not seen), beside rates in bytes/s."""
    count = syncs or 0
    of_class = int(count * each + direct * dt_s)
    requests = count + int(direct * dt_s / MB)
    rate = of_class / dt_s + background + group
    shown = {
        IoClass.SYNC_WRITE: ClassSample(requests, of_class, latencies(wait_s, requests)),
        IoClass.BACKGROUND_WRITE: ClassSample(1, int(background * dt_s), latencies(wait_s, 1)),
    }
    sample = DeviceSample(
        DISK,
        write_bytes=int(of_class + background * dt_s),
        classes=shown if known else None,
        sync=None if syncs is None else SyncSample(fsyncs=count, latency=latencies(wait_s, count)),
    )
    share = background / (rate - group) if known and rate > group else 1.0
    writes = Writes(rate, rate * share, False, False, False, False)
    return update_baseline(writes, sample, memory, dt_s)


def latency(memory: DeviceMemory) -> float:
    assert memory.baseline_s is not None
    return memory.baseline_s


# ---- what is quiet ---------------------------------------------------------


def test_a_minute_of_direct_io_beside_a_few_syncs_teaches_nothing() -> None:
    memory = QUIET
    for _ in range(60):
        memory = tick(memory, direct=250.0 * MB)
    assert (memory.baseline_s, memory.write_baseline_s) == (UNLOADED_S, UNLOADED_S / 3)
    # And the controller goes on destaging when it is over.
    for second in range(15):
        before, memory = memory, tick(memory)
        assert (memory.baseline_s != before.baseline_s) is (second + 1 >= CACHE_S)


def test_a_first_guess_is_not_made_beside_direct_io() -> None:
    memory = tick(DeviceMemory(), direct=250.0 * MB)
    assert (memory.baseline_s, memory.write_baseline_s) == (None, None)


@pytest.mark.parametrize(("syncs", "each"), [(3500, 4096), (200, 64 << 10), (40, OWN_BYTES)])
def test_what_syncs_write_themselves_disturbs_none(syncs: int, each: int) -> None:
    assert syncs * each > 5 * FLOOD_RATE
    learned = tick(QUIET, syncs=syncs, each=each)
    assert latency(learned) > UNLOADED_S
    assert learned.write_baseline_s != QUIET.write_baseline_s


@pytest.mark.parametrize("dt_s", [0.5, 1.0])
def test_flusher_and_direct_io_count_together(dt_s: float) -> None:
    each = OWN_BYTES
    below = tick(QUIET, dt_s, each=each, direct=0.3 * FLOOD_RATE, background=0.6 * FLOOD_RATE)
    assert below.quiet_s == QUIET.quiet_s + dt_s
    above = tick(QUIET, dt_s, each=each, direct=0.5 * FLOOD_RATE, background=0.6 * FLOOD_RATE)
    assert above.quiet_s == 0.0 and latency(above) == UNLOADED_S


def test_where_nobody_sees_the_syncs_they_may_be_theirs() -> None:
    unseen = tick(QUIET, syncs=None, direct=50.0 * MB)
    assert unseen.write_baseline_s != QUIET.write_baseline_s
    # Without classes all that is written counts as the flusher's.
    assert tick(QUIET, known=False, direct=50.0 * MB).quiet_s == 0.0


def test_what_another_volume_of_the_disks_syncs_is_not_this_ones() -> None:
    assert latency(tick(QUIET, group=50.0 * MB)) > UNLOADED_S


# ---- how soon it follows ---------------------------------------------------


def gain(dt_s: float, seconds: float) -> float:
    """Part of the way to a new latency that is gone after so long."""
    memory = replace(QUIET, baseline_s=0.0)
    for _ in range(round(seconds / dt_s)):
        memory = tick(memory, dt_s)
    return latency(memory) / latency(tick(DeviceMemory(), dt_s))


def test_ticks_of_a_second_and_of_half_a_second_weigh_the_same() -> None:
    assert gain(0.5, 0.5) == gain(1.0, 1.0) == pytest.approx(WEIGHT)


@pytest.mark.parametrize(("dt_s", "like_s"), [(0.05, 0.5), (0.2, 0.5), (5.0, 1.0), (20.0, 1.0)])
def test_what_interval_says_does_not_change_how_long_it_remembers(
    dt_s: float, like_s: float
) -> None:
    assert gain(dt_s, 20.0) == pytest.approx(gain(like_s, 20.0), rel=1e-6)
