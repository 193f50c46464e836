# SPDX-License-Identifier: GPL-2.0-or-later
"""The model has the shape that was measured, and its laws hold."""

from __future__ import annotations

import random

import pytest

from tests.sim.plant import (
    AS_FOUND,
    GB,
    LEAP_LASTS_S,
    MB,
    SWEEP_BESIDE,
    Disk,
    Event,
    Flood,
    Loop,
    Plant,
    SyncLoad,
    bucket,
)
from tests.sim.scenarios import BATTERY_GONE, LEAPS, RAID, SLOW_RAID, STICK
from tests.sim.shape import COMMITS, Commits, Row, modelled, rows
from writebackd.policy import load_policy
from writebackd.types.histogram import BUCKET_EDGES_S

# Single runs of the rig scatter by 1.5 to 2 (15 MB gave 238 to 439 fsync/s).
CLOSE = 1.8
# One run each; the rows below and above them do not fit a monotone curve with them.
OUTLIERS = {("SSD, 450 MB/s", 0), ("SSD, 450 MB/s", 64)}
# They had 0.64 and 0.16 of the idle rate, where 61 % of a commit was in write() on another array
# under that limit; the model has 0.34 and 0.08.
ASLEEP = {("SSD, 450 MB/s", 1), ("slow RAID 256 MB, 60 MB/s", 1)}
ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=[f"{r.table}-{r.limit_mb}M" for r in ROWS])
def test_model_is_close_to_what_was_measured(row: Row) -> None:
    if (row.table, row.limit_mb) in ASLEEP:
        assert CLOSE < row.off < 2.3
    elif (row.table, row.limit_mb) not in OUTLIERS:
        assert row.off <= CLOSE
    assert row.model_rate == pytest.approx(row.measured_rate, rel=0.4)


@pytest.mark.parametrize("row", COMMITS, ids=[row.name for row in COMMITS])
def test_commits_wait_as_measured_under_both_limits(row: Commits) -> None:
    """Rates and shares within a quarter, the longest sleep in its order; known misses miss."""
    model = modelled(row)
    missed = []
    for figure, most in (("rate", 1.25), ("asleep", 1.25), ("device_mb", 1.25), ("longest_s", 4)):
        measured, value = getattr(row, figure), getattr(model, figure)
        low = 0.75 if most < 2 else 1 / most
        if measured is not None and not low * measured <= value <= most * measured:
            missed.append(figure)
    assert tuple(missed) == row.missed


@pytest.mark.parametrize("table,knee_mb", [
    ("RAID 512 MB, 250 MB/s", 2), ("SSD, 450 MB/s", 4), ("slow RAID 256 MB, 60 MB/s", 1),
    ("no write cache, 6 ms seek", 2),
])
def test_knee_is_where_it_was_measured(table: str, knee_mb: int) -> None:
    """The smallest limit that keeps the throughput, of those in the table."""
    mine = [row for row in ROWS if row.table == table and 1 <= row.limit_mb <= 16]
    most = max(row.model_rate for row in mine)
    assert min(row.limit_mb for row in mine if row.model_rate >= 0.9 * most) == knee_mb


def flooded(disk: Disk = RAID, limit: int = 15 * MB, seconds: float = 20, **more: object) -> Plant:
    plant = Plant((disk,), (Flood(),), (SyncLoad(),), **more)  # type: ignore[arg-type]
    plant.set_limits(limit, None)
    plant.advance(seconds)
    return plant


def test_a_flood_sits_near_seven_eighths_of_the_limit() -> None:
    assert flooded(limit=64 * MB).disks[0].dirty == pytest.approx(0.875 * 64 * MB, rel=0.02)


def test_every_byte_is_somewhere() -> None:
    plant = flooded(seconds=30)
    disk = plant.disks[0]
    assert disk.accepted == pytest.approx(disk.written + disk.dirty, rel=1e-6)
    assert disk.fill == RAID.cache


def test_a_rate_that_leaps_is_lower_after_the_cache_was_full() -> None:
    def rate(plant: Plant) -> float:
        before = plant.disks[0].written
        plant.advance(2.0)
        return (plant.disks[0].written - before) / 2.0 / MB

    plant = flooded(LEAPS, limit=4 * MB, seconds=3)
    assert rate(plant) == pytest.approx(275, rel=0.05)
    plant.set_limits(16 * MB, None)
    plant.advance(5.0)
    assert plant.disks[0].fill == LEAPS.cache
    plant.set_limits(4 * MB, None)
    plant.advance(1.0)
    assert rate(plant) == pytest.approx(175, rel=0.05)
    plant.advance(LEAP_LASTS_S)
    assert rate(plant) == pytest.approx(275, rel=0.05)


def test_a_limit_below_the_knee_keeps_the_cache_from_filling() -> None:
    plant = flooded(limit=1 * MB, seconds=60)
    assert plant.disks[0].fill == 0


def test_below_the_grain_all_limits_do_the_same() -> None:
    assert (flooded(SLOW_RAID, 64 << 10).loads[0].done
            == pytest.approx(flooded(SLOW_RAID, 1 * MB).loads[0].done, rel=0.02))


def test_lowering_below_what_is_dirty_blocks_writers_until_it_has_drained() -> None:
    plant = flooded(limit=1 * GB)
    assert plant.longest_blocked_s == 0
    plant.set_limits(16 * MB, None)
    plant.advance(20)
    assert plant.longest_blocked_s == pytest.approx(0.875 * 1024 / 250, rel=0.15)


def test_without_a_limit_memory_takes_the_flood_at_its_own_speed() -> None:
    plant = flooded(limit=AS_FOUND, seconds=2)
    assert plant.disks[0].accepted == pytest.approx(2000 * MB, rel=0.01)
    assert plant.disks[0].throttled_s == 0


def test_an_event_changes_the_disk() -> None:
    plant = flooded(events=(Event(10, vars(BATTERY_GONE)),))
    assert plant.disks[0].disk == BATTERY_GONE and plant.disks[0].fill == 0
    assert plant.sample().devices[0].sync.latency.quantile(0.01) < 1e-3  # type: ignore[union-attr,operator]
    plant.advance(5)
    assert plant.sample().devices[0].sync.latency.quantile(0.01) > 4e-3  # type: ignore[union-attr,operator]


def test_a_neighbour_leaves_less_whatever_the_limit() -> None:
    crowded = Disk(neighbour=0.8, neighbour_wait_s=0.04)
    plant = flooded(crowded, limit=1 * MB, seconds=20)
    assert plant.disks[0].written / 20 == pytest.approx(50 * MB, rel=0.1)
    share = plant.sample().devices[0].sync.latency.share_above(0.01)  # type: ignore[union-attr]
    assert share is not None and share > 0.05


def test_two_devices_share_the_limit_by_their_speed() -> None:
    plant = Plant((RAID, STICK), (Flood(0), Flood(1)))
    plant.set_limits(64 * MB, None)
    plant.advance(60)
    fast, slow = (disk.dirty for disk in plant.disks)
    assert fast > 5 * slow
    assert plant.disks[0].written / 60 > 240 * MB


def test_a_sample_tells_what_happened_since_the_last() -> None:
    plant = flooded(seconds=10)
    first = plant.sample()
    plant.advance(0.5)
    second = plant.sample()
    assert first.dt_s == pytest.approx(10) and second.dt_s == pytest.approx(0.5)
    device = second.devices[0]
    assert device.write_bytes / 0.5 == pytest.approx(250 * MB, rel=0.15)
    assert device.sync is not None and device.sync.count == device.sync.latency.total
    assert second.tasks[0].throttled_s == pytest.approx(0.5 * 0.75, rel=0.1)
    assert device.busy_share == 1


def test_a_stuck_sync_grows_old() -> None:
    plant = flooded(SLOW_RAID, AS_FOUND, seconds=40)
    plant.sample()
    plant.advance(1)
    sync = plant.sample().devices[0].sync
    assert sync is not None and sync.count <= 1 and sync.oldest_s > 0.5


def test_same_seed_same_run() -> None:
    runs = []
    for _ in range(2):
        loop = Loop(load_policy("default"), flooded(seconds=1, seed=7))
        runs.append([loop.tick()[0] for _ in range(20)])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("index", range(191))
def test_bucket_is_the_inverse_of_its_edge(index: int) -> None:
    assert bucket(BUCKET_EDGES_S[index] * 1.001 + 1e-9) == index


class Calm(random.Random):
    """Every second as the mean of all."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@pytest.mark.parametrize("disk", [
    Disk(scattered_s=0.65e-3), Disk(scattered_s=0.65e-3, cache=64.0 * MB),
    Disk(scattered_s=0.65e-3, cache=0.0, baseline_s=1e-3),
    Disk(scattered_s=0.05e-3, volatile=True, baseline_s=0.3e-3),
], ids=["array", "small cache", "no cache", "flushed"])
@pytest.mark.parametrize("limit_mb", [2, 8, 64])
def test_the_time_of_the_media_adds_up(disk: Disk, limit_mb: int) -> None:
    plant = Plant((disk,), (Flood(),), (SyncLoad(),))
    plant.rng = Calm(1)
    plant.set_limits(limit_mb * MB, None)
    state = plant.disks[0]
    for _ in range(60):
        plant.advance(1.0)
        assert plant.loads[0].done == pytest.approx(state.destaged + state.scattered)
        assert state.written == pytest.approx(state.media_bytes + state.fill)
        assert state.fill + state.scattered * 4096 * state.keeps <= disk.cache + 2 * MB
        spent_s = state.destaged * disk.scattered_s + state.media_bytes / disk.drain
        assert spent_s <= plant.now_s * (1 + 1e-9)
    if limit_mb > 2:  # above the knee the media always have something to do
        assert spent_s == pytest.approx(60.0, rel=0.02)


def test_a_sweep_is_as_long_as_there_are_blocks() -> None:
    """Of 0.5 ms each; meanwhile the flood has next to nothing of the media."""
    plant = Plant((Disk(scattered_s=0.5e-3, cache=4.0 * GB),), (Flood(),),
                  (SyncLoad(think_s=2e-3),))
    plant.rng = Calm(1)
    plant.set_limits(4 * MB, None)
    state = plant.disks[0]
    plant.advance(8.6)
    blocks = state.scattered
    assert blocks == pytest.approx(plant.loads[0].done)
    plant.advance(0.2)
    before, began_s, bytes_before = state.destaged, plant.now_s, state.media_bytes
    while state.sweep:
        plant.advance(0.05)
    sweep_s = plant.now_s - began_s
    assert sweep_s == pytest.approx((blocks - before) * 0.5e-3 / (1 - SWEEP_BESIDE), rel=0.05)
    assert state.media_bytes - bytes_before < 0.1 * sweep_s * 250 * MB


def test_syncs_get_what_a_cache_full_of_blocks_lets_through() -> None:
    plant = Plant((Disk(scattered_s=2e-3, cache=16.0 * MB),), (), (SyncLoad(),))
    plant.advance(20.0)
    before = plant.loads[0].done
    plant.advance(20.0)
    assert (plant.loads[0].done - before) / 20.0 == pytest.approx(500, rel=0.06)


def test_the_kernel_takes_seconds_to_follow_a_limit() -> None:
    plant = flooded(Disk(cache=64.0 * GB, link=8.0 * GB, lag_s=3.5), limit=1 * MB, seconds=5)

    def rate() -> float:
        before = plant.disks[0].written
        plant.advance(0.1)
        return (plant.disks[0].written - before) / 0.1 / MB

    low = rate()
    plant.set_limits(4 * MB, None)
    plant.advance(1.0)
    assert rate() < low + 0.7 * 3 * low
    plant.advance(2.5)
    assert rate() == pytest.approx(low + 0.9 * 3 * low, rel=0.05)


def test_a_commit_sleeps_for_a_limit_that_fell_below_what_is_dirty() -> None:
    """All of the time above the new limit, also where one commits once a second."""
    for think_s in (0.0, 1.0):
        plant = Plant((RAID,), (Flood(),), (SyncLoad(think_s=think_s),))
        plant.set_limits(1 * GB, None)
        plant.advance(10)
        plant.sample()
        plant.set_limits(16 * MB, None)
        plant.advance(3)
        sync = plant.sample().devices[0].sync
        assert sync is not None and sync.inflight == 0 and sync.oldest_s == 0
        assert sync.throttled_now_s == pytest.approx(sync.throttled_s, abs=0.01)
        assert sync.throttled_now_s > 0.5
        blocked_s = sync.throttled_now_s
        plant.advance(2)
        sync = plant.sample().devices[0].sync
        assert sync is not None and sync.commits is not None and sync.throttled_now_s == 0
        longest_s, alone_s = sync.commits.quantile(1.0), sync.latency.quantile(1.0)
        assert longest_s is not None and longest_s > blocked_s > 2 * (alone_s or 0.0)


def test_commits_are_syncs_and_the_sleep_before_them() -> None:
    plant = flooded(limit=4 * MB, seconds=10)
    sync = plant.sample().devices[0].sync
    assert sync is not None and sync.commits is not None
    assert sync.commits.total == sync.latency.total == sync.count
    assert 0.12 < sync.throttled_s / 10 < 0.3
    assert (sync.commits.quantile(0.99) or 0.0) > 8e-3


def test_who_commits_once_a_second_sleeps_as_often_as_others_are_asleep() -> None:
    plant = Plant((RAID,), (Flood(),), (SyncLoad(think_s=1.0),))
    plant.set_limits(4 * MB, 3900 << 10)
    longest = []
    for _ in range(300):
        plant.advance(1.0)
        sync = plant.sample().devices[0].sync
        assert sync is not None
        longest.append(sync.commit_latency.quantile(1.0) or 0.0)
    # Others are asleep for 0.7 of the time, half of it in long sleeps.
    assert sum(value > 0.05 for value in longest) / 300 == pytest.approx(0.28, abs=0.08)
    assert 0.3 < max(longest) < 1.5
