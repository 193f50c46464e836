# SPDX-License-Identifier: GPL-2.0-or-later
"""Histograms, and the layouts that Python shares with the BPF object."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writebackd.kernel import bpf_layout
from writebackd.kernel.map_readers import difference
from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.histogram import BUCKET_EDGES_S, HIST_BUCKETS, HIST_UNIT_S, Histogram
from writebackd.types.samples import ClassSample

BPF = Path(__file__).resolve().parents[2] / "bpf"


def bucket_of(nanoseconds: int) -> int:
    """hist_bucket() of bpf/writeback.bpf.c, written down a second time."""
    value = nanoseconds >> 10
    if value < 8:
        return value
    value = min(value, (1 << 26) - 1)
    exponent = value.bit_length() - 1
    return ((exponent - 3) << 3) + (value >> (exponent - 3))


@given(st.integers(0, 1 << 40))
def test_a_latency_lies_between_the_edges_of_its_bucket(nanoseconds: int) -> None:
    index = bucket_of(nanoseconds)
    assert 0 <= index < HIST_BUCKETS
    seconds = nanoseconds / 1e9
    assert BUCKET_EDGES_S[index] <= seconds + 1e-12
    if index < HIST_BUCKETS - 1:
        assert seconds < BUCKET_EDGES_S[index + 1] + 1e-12


def test_buckets_are_at_most_an_eighth_wide() -> None:
    edges = BUCKET_EDGES_S
    assert list(edges) == sorted(set(edges))
    for low, high in zip(edges[8:], edges[9:]):
        assert high / low <= 1.125 + 1e-9


@given(st.lists(st.integers(8, HIST_BUCKETS - 1), min_size=1, max_size=300), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_that_rank(indices: "list[int]", q: float) -> None:
    counts = {i: indices.count(i) for i in indices}
    histogram = Histogram(tuple(sorted(counts.items())))
    value = histogram.quantile(q)
    assert value is not None
    rank = sorted(indices)[min(len(indices) - 1, max(0, -int(-q * len(indices) // 1) - 1))]
    assert BUCKET_EDGES_S[rank] - 1e-12 <= value <= BUCKET_EDGES_S[rank + 1] + 1e-12


@given(st.dictionaries(st.integers(0, HIST_BUCKETS - 1), st.integers(0, 9), max_size=12))
def test_what_a_tick_asks_of_a_histogram_is_what_it_answers_one_by_one(
    counts: "dict[int, int]",
) -> None:
    seen = Histogram(tuple(sorted(counts.items())))
    one_by_one = (seen.total, seen.total_s(), seen.quantile(0.5), seen.quantile(0.99))
    assert seen.summary() == one_by_one
    assert seen.total == sum(counts.values())
    for index in (0, 7, 100, HIST_BUCKETS - 1):
        above = sum(count for at, count in counts.items() if at >= index)
        assert seen.count_above(BUCKET_EDGES_S[index]) == (above, seen.total)


@pytest.mark.parametrize("threshold_s, share", [
    (BUCKET_EDGES_S[9], 1.0),
    (BUCKET_EDGES_S[10], 0.75),  # a bucket that starts there is above it
    (BUCKET_EDGES_S[10] * 1.0001, 0.0),
    (0.0, 1.0), (60.0, 0.0),
])  # fmt: skip
def test_share_above(threshold_s: float, share: float) -> None:
    assert Histogram(((9, 1), (10, 3))).share_above(threshold_s) == share
    assert Histogram().share_above(threshold_s) is None
    assert Histogram().quantile(0.5) is None


def test_samples_add_up() -> None:
    a = ClassSample(3, 300, Histogram(((1, 1), (5, 2))), Histogram(((0, 3),)))
    b = ClassSample(2, 200, Histogram(((5, 2),)))
    total = a + b
    assert (total.count, total.bytes) == (5, 500)
    assert total.latency.buckets == ((1, 1), (5, 4))
    assert total.queue is not None and total.queue.total == 3
    assert (b + b).queue is None


def test_counters_that_wrap_around_still_give_the_difference() -> None:
    last = [0] * HIST_BUCKETS
    now = [0] * HIST_BUCKETS
    last[3], now[3] = 0xFFFFFFFE, 1
    now[9], now[15], now[16] = 4, 5, 6
    now[HIST_BUCKETS - 1] = 7
    expected = ((3, 3), (9, 4), (15, 5), (16, 6), (HIST_BUCKETS - 1, 7))
    assert difference(bpf_layout.HIST.pack(*now), bpf_layout.HIST.pack(*last)).buckets == expected


# `per_cpu`: whether there are shards of one CPU each.
@pytest.mark.parametrize("devices,cpus,per_cpu", [
    (4, 2, True), (20, 64, True), (200, 64, False), (1024, 2, True), (1024, 256, False),
])  # fmt: skip
@pytest.mark.parametrize("queue", [False, True])
def test_map_sizes_fit_the_budget(devices: int, cpus: int, per_cpu: bool, queue: bool) -> None:
    sizes = bpf_layout.plan_sizes(devices, cpus, queue)
    assert sizes.slots >= devices * 1.25
    assert sizes.shards & (sizes.shards - 1) == 0
    if not queue:
        assert sizes.per_cpu is per_cpu
    each = bpf_layout.IO_SLOT_SIZE + (bpf_layout.QUEUE_SLOT_SIZE if queue else 0)
    assert sizes.slots * sizes.shards * each <= bpf_layout.HISTOGRAM_BUDGET_BYTES
    assert sizes.shards == 1 << sizes.shard_shift


def test_structures_have_the_sizes_of_the_c_header(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    wanted = {
        "io_slot": bpf_layout.IO_SLOT_SIZE,
        "queue_slot": bpf_layout.QUEUE_SLOT_SIZE,
        "sync_stats": bpf_layout.SYNC_STATS_SIZE,
        "sync_start": bpf_layout.SYNC_START.size,
        "dirtier": bpf_layout.DIRTIER.size,
        "committer": bpf_layout.COMMITTER.size,
        "probe_state": bpf_layout.STATE.size,
        "sysctl_write": bpf_layout.SYSCTL_WRITE.size,
    }
    source = tmp_path / "sizes.c"
    source.write_text(
        '#include <stdio.h>\n#include <linux/types.h>\n#include "writeback.h"\nint main(void){'
        + "".join(f'printf("{n} %zu\\n", sizeof(struct {n}));' for n in wanted)
        + f'printf("unit %d\\n", HIST_UNIT_SHIFT); return {HIST_BUCKETS} != HIST_BUCKETS; }}'
    )
    program = tmp_path / "sizes"
    subprocess.run([compiler, "-I", str(BPF), "-o", str(program), str(source)], check=True)
    found = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    sizes = dict(line.split() for line in found.splitlines())
    assert HIST_UNIT_S == (1 << int(sizes.pop("unit"))) / 1e9
    assert sizes == {name: str(size) for name, size in wanted.items()}


def test_a_copy_differs_where_it_was_told_to() -> None:
    memory = DeviceMemory(quiet_s=2.0)
    copy = replace(memory, cache_bytes=3)
    assert copy == DeviceMemory(quiet_s=2.0, cache_bytes=3) != memory
    assert memory == DeviceMemory(quiet_s=2.0)


def test_what_is_remembered_of_a_device_shares_its_keys() -> None:
    # With a thirtieth field each copy takes 1.5 KB in the place of 300 bytes: 5 ms a tick
    # with 1 024 disks.
    assert len(fields(DeviceMemory)) <= 29
