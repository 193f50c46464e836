# SPDX-License-Identifier: GPL-2.0-or-later
"""The structures of bpf/writeback.h as ctypes, the sizes of the maps, and room in them."""

from __future__ import annotations

import ctypes as C
import heapq
import mmap
import struct
from dataclasses import dataclass
from typing import Any, Collection, List, Mapping, NamedTuple

from writebackd.kernel import libbpf
from writebackd.types.histogram import HIST_BUCKETS
from writebackd.types.samples import IoClass

CLASSES = len(IoClass)

# struct io_slot
# diskseq, dev, unstamped, then count and bytes of each class; what follows up to
# the histograms is the program's own
IO_SLOT_HEAD = struct.Struct(f"=QII{2 * CLASSES}Q32x")
HIST = struct.Struct(f"={HIST_BUCKETS}I")
HIST_PART = struct.Struct("=16I")  # two octaves of it
IO_SLOT_SIZE = IO_SLOT_HEAD.size + CLASSES * HIST.size
# struct queue_slot
QUEUE_SLOT_SIZE = CLASSES * HIST.size
# struct sync_stats: counts by kind, throttled_ns, histogram of file syncs, of syncfs, of commits
SYNC_COUNTS = struct.Struct("=QQQQ")
SYNC_STATS_SIZE = SYNC_COUNTS.size + 3 * HIST.size
# struct sync_start: start_ns, slept_ns, dev, kind, owner
SYNC_START = struct.Struct("=QQIBB2x")
# struct cgroup_key: cgroup_id, dev
CGROUP_KEY = struct.Struct("=QI4x")
# struct cgroup_syncs: count, last_ns, tgid
CGROUP_SYNCS = struct.Struct("=QQI4x")
# struct dirtier: task_start_ns, first_bytes, bytes, throttled_ns, attached_ns, synced_ns,
# cgroup_id, throttled, tgid, dev, synced_dev, comm
DIRTIER = struct.Struct("=7QIIII16s")
# struct committer: leader_start_ns, synced_ns, throttled_ns, attached_ns, dev
COMMITTER = struct.Struct("=QQQQI4x")


class ProbeConfig(C.Structure):
    """struct probe_config."""

    _fields_ = [
        (name, C.c_uint32)
        for name in (
            "slots", "shard_mask", "shard_shift", "per_cpu", "queue_latency", "dirty_grain",
            "jiffy_ns", "sees_sleep", "without_disk", "pad",
        )
    ]  # fmt: skip


# struct sysctl_write: cgroup_id, pid, comm, name, value, cmdline
SYSCTL_WRITE = struct.Struct("=QI16s44s24s128s")
SYSCTL_WRITES = 16
# struct probe_state: no_slot, sync_lost, sync_unmatched, no_room, sleep_lost
STATE = struct.Struct("=QQQQQ")

VALUE_SIZES = {
    "io_slots": IO_SLOT_SIZE,
    "queue_slots": QUEUE_SLOT_SIZE,
    "syncs": SYNC_STATS_SIZE,
    "syncs_inflight": SYNC_START.size,
    "cgroup_syncs": CGROUP_SYNCS.size,
    "dirtiers": DIRTIER.size,
    "committers": COMMITTER.size,
    ".rodata.config": C.sizeof(ProbeConfig),
    "sysctl_writes": SYSCTL_WRITE.size,
    ".bss": STATE.size,
}

# The histograms of all devices may take this much; the other maps need up to
# 5 MB more, and all together stay below 16 MB on 512 CPUs with 1024 devices.
HISTOGRAM_BUDGET_BYTES = 11 << 20


@dataclass(frozen=True)
class Sizes:
    """The number of devices with a slot, and of shards for each."""

    slots: int
    shards: int
    per_cpu: bool

    @property
    def shard_shift(self) -> int:
        return self.shards.bit_length() - 1


def table_entries(cpus: int) -> int:
    """The number of threads that dirty pages, and of cgroups that sync, tracked at once.

    256 for each possible CPU; at 7680 both tables have 2.0 MB, and the budget ends.
    """
    return min(max(1024, 256 * cpus), 7680)


def plan_sizes(devices: int, cpus: int, queue_latency: bool) -> Sizes:
    """Slots for `devices` block devices, shards for `cpus` possible CPUs.

    Queue ids are handed out lowest first but some belong to no disk (NVMe's
    admin queues, for one), hence the room above the count; a disk that comes
    later and finds no slot is counted, and the probe opened anew.  One shard per CPU
    needs no atomic operations; where that would be too much memory, CPUs share
    shards and pay for atomics.
    """
    slots = -(-(devices + devices // 4 + 8) // 8) * 8
    per_slot = IO_SLOT_SIZE + (QUEUE_SLOT_SIZE if queue_latency else 0)
    wanted = 1 << (cpus - 1).bit_length()
    shards = 1
    while shards < wanted and slots * shards * 2 * per_slot <= HISTOGRAM_BUDGET_BYTES:
        shards *= 2
    return Sizes(slots, shards, per_cpu=shards >= cpus)


def devno(dev: int) -> str:
    """The kernel's internal dev_t (20 bits of minor) as "major:minor"."""
    return f"{dev >> 20}:{dev & 0xFFFFF}"


def make_room(
    table: libbpf.Map, entries: int, ranks: Mapping[bytes, Any], idle: Collection[bytes] = ()
) -> List[bytes]:
    """Remove all `idle` keys, then those of lowest rank until half is free; returns the keys.

    `entries`: how many there are, of which `ranks` are those that may go.
    """
    excess = entries - len(idle) - table.max_entries // 2
    gone = list(idle)
    if excess > 0:
        spare = ranks.keys() - idle
        gone += heapq.nsmallest(excess, spare, key=ranks.__getitem__)
    for key in gone:
        table.delete(key)
    return gone


class Losses(NamedTuple):
    """The number of lost entries so far."""

    no_slot: int  # completions
    syncs: int  # whose table was full
    unmatched: int  # syncs whose end cannot be seen
    looks: int  # at threads and cgroups whose table was full
    sleeps: int  # before syncs of processes whose table was full


def read_losses(memory: mmap.mmap) -> Losses:
    """From the probe's .bss section."""
    return Losses(*STATE.unpack_from(memory))
