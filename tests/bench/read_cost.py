# SPDX-License-Identifier: GPL-2.0-or-later
"""What reading the BPF maps costs with 1 024 busy disks, which tick_cost leaves out.

    python -m tests.bench.read_cost

The map of the block layer is a buffer in the layout of bpf/writeback.h, in which every disk has
requests of four classes with ten latencies each in every tick.
"""

from __future__ import annotations

import gc
import mmap
import statistics
import struct
import time

from writebackd.kernel import bpf_layout
from writebackd.kernel.map_readers import BlockReader

DISKS, CLASSES, TICKS = 1024, 4, 12
_COUNTER = struct.Struct("=I")


def advance(slots: mmap.mmap, tick: int) -> None:
    """One tick of the program in the kernel."""
    for disk in range(DISKS):
        at = disk * bpf_layout.IO_SLOT_SIZE
        head = list(bpf_layout.IO_SLOT_HEAD.unpack_from(slots, at))
        head[:2] = 1, disk
        for number in range(CLASSES):
            head[3 + 2 * number] += 40
            head[4 + 2 * number] += 160 << 10
            first = at + bpf_layout.IO_SLOT_HEAD.size + number * bpf_layout.HIST.size
            for n in range(10):
                counter = first + _COUNTER.size * (50 + 5 * number + 2 * n)
                before = _COUNTER.unpack_from(slots, counter)[0]
                _COUNTER.pack_into(slots, counter, before + 300 + (tick + disk + n) % 7)
        bpf_layout.IO_SLOT_HEAD.pack_into(slots, at, *head)


def main() -> None:
    sizes = bpf_layout.plan_sizes(DISKS, 2, False)
    slots = mmap.mmap(-1, sizes.slots * sizes.shards * bpf_layout.IO_SLOT_SIZE)
    reader = BlockReader(slots, None, sizes)
    gc.disable()  # as in a tick
    spent = []
    for tick in range(TICKS):
        advance(slots, tick)
        begun = time.thread_time()
        found = reader.read()
        spent.append((time.thread_time() - begun) * 1e3)
        assert len(found) == DISKS
        assert all(len(classes) == CLASSES for classes in found.values())
    print(f"reading the block layer's map with {DISKS} busy disks:"
          f" {statistics.median(spent):.1f} ms of CPU (median; least {min(spent):.1f})")


if __name__ == "__main__":
    main()
