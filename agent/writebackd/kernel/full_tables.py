# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps room in BPF hash tables, which any user can fill, and counts entries without room.

Every tick leaves half of a table free, so that large entries get in before small ones fill it
again.
"""

from __future__ import annotations

import heapq
import mmap
from typing import Any, Collection, List, Mapping, NamedTuple

from writebackd.kernel import bpf_layout, libbpf


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


class LossCounters:
    """The probe's .bss section."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def read(self) -> Losses:
        return Losses(*bpf_layout.STATE.unpack_from(self._memory))
