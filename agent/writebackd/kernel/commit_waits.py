# SPDX-License-Identifier: GPL-2.0-or-later
"""Pending commits: sleep in balance_dirty_pages() that no sync has followed yet."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Dict, Mapping, Tuple

from writebackd.kernel import bpf_layout, libbpf
from writebackd.kernel.bpf_layout import make_room

# Whoever waits for the limit sleeps again within 0.2 s: a commit that has not slept for so long
# waits no more, and no sync followed.
FORGOTTEN_NS = 5_000_000_000
# A process that has not synced for so long is dropped; its next sync brings it back.
IDLE_NS = 120_000_000_000


@dataclass(frozen=True)
class Sleep:
    """How long a thread, or a process, that syncs has slept: in total, and since its last sync."""

    devno: str  # of the last sync
    total_ns: int
    pending_ns: int
    synced_ns: int

    def waited_s(self, now_ns: int) -> float:
        """Threads of a process may sleep at the same time."""
        return max(0, min(self.pending_ns, now_ns - self.synced_ns)) / 1e9


class CommitWaits:
    """The longest pending wait by device."""

    def __init__(self) -> None:
        self._grown: Dict[bytes, Tuple[int, int]] = {}  # the total, and when it grew last

    def longest(self, sleeps: Mapping[bytes, Sleep], now_ns: int) -> Dict[str, float]:
        """`sleeps`: all pending ones, by a stable key."""
        before, self._grown = self._grown, {}
        waits: Dict[str, float] = {}
        for key, sleep in sleeps.items():
            total, when = before.get(key, (-1, now_ns))
            if total != sleep.total_ns:
                when = now_ns
            self._grown[key] = (sleep.total_ns, when)
            if now_ns - when < FORGOTTEN_NS:
                waits[sleep.devno] = max(waits.get(sleep.devno, 0.0), sleep.waited_s(now_ns))
        return waits


class CommitterReader:
    """Multi-threaded processes that sync, and how long their other threads slept."""

    def __init__(self, committers: libbpf.Map) -> None:
        self._map = committers
        self._reader = committers.batch_reader(256)

    def read(self) -> Dict[bytes, Sleep]:
        """Processes with sleep that no sync has followed, by process id."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # of bpf_ktime_get_ns()
        synced: Dict[bytes, int] = {}
        sleeps: Dict[bytes, Sleep] = {}
        for key, value in self._reader.read():
            _, synced_ns, total, attached, dev = bpf_layout.COMMITTER.unpack(value)
            synced[key] = synced_ns
            if total > attached:
                sleeps[key] = Sleep(bpf_layout.devno(dev), total, total - attached, synced_ns)
        idle = [key for key, when in synced.items() if now - when > IDLE_NS and key not in sleeps]
        for key in make_room(self._map, len(synced), synced, idle):
            sleeps.pop(key, None)
        return sleeps
