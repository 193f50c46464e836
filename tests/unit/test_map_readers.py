# SPDX-License-Identifier: GPL-2.0-or-later
"""What the probe's tables count: syncs, dirtied bytes, and the room that is kept in them."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, Iterable, Iterator, List, Optional, Set, Tuple

import pytest

from writebackd.kernel import bpf_layout, map_readers
from writebackd.kernel.commit_waits import Sleep
from writebackd.kernel.hooks import FSYNC, SYNCFS, Choice
from writebackd.kernel.map_readers import (
    CgroupReading,
    CgroupSyncReader,
    SyncReader,
    TaskReader,
    together,
)
from writebackd.kernel.probe import BpfProbe

# ---- what the probe counts ---------------------------------------------------------


class FakeMap:
    """A map of the probe: what it holds can be changed between two reads."""

    def __init__(self, entries: Iterable[Tuple[bytes, bytes]] = (), most: int = 1024) -> None:
        self.entries = dict(entries)
        self.max_entries = most

    def delete(self, key: bytes) -> None:
        self.entries.pop(key, None)

    def pop(self) -> Optional[bytes]:
        """The oldest entry, as of a queue."""
        return self.entries.pop(next(iter(self.entries))) if self.entries else None

    def batch_reader(self, most: int) -> "FakeMap":
        return self

    def read(self) -> Iterator[Tuple[bytes, bytes]]:
        return iter(list(self.entries.items()))


@pytest.fixture
def held() -> Any:
    return FakeMap()


class FakeObject:
    """The BPF object of a probe that is loaded, with these syncs in flight."""

    def __init__(self, inflight: FakeMap) -> None:
        self._inflight = inflight

    def map(self, name: str) -> Any:
        held = self._inflight if name == "syncs_inflight" else FakeMap()
        return SimpleNamespace(
            value_size=bpf_layout.VALUE_SIZES.get(name), batch_reader=held.batch_reader,
            max_entries=held.max_entries, delete=held.delete, mapped=lambda: mmap.mmap(-1, 1 << 20),
        )

    def maps(self) -> List[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


DISK = 8 << 20 | 1


def hold_old_sync(held: FakeMap, tid: int, begun_ns: int = 1) -> None:
    value = bpf_layout.SYNC_START.pack(begun_ns, 0, DISK, 0, 0)
    held.entries[tid.to_bytes(4, sys.byteorder)] = value


def stuck(reader: SyncReader) -> int:
    return sum(each.inflight for each in reader.read().values())


@pytest.mark.parametrize("misses_ends", [False, True])
def test_a_sync_whose_thread_sleeps_elsewhere_has_ended_unseen(
    held: Any, misses_ends: bool
) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)  # interruptible, as in poll() or nanosleep()
    thread.start()
    try:
        assert thread.native_id is not None
        hold_old_sync(held, thread.native_id)
        done: Any = FakeMap()
        reader = SyncReader(done, held, misses_ends)
        deadline = time.monotonic() + 5.0
        while map_readers.thread_state(thread.native_id) != ("S", 0.0):
            assert time.monotonic() < deadline
        assert stuck(reader) == (0 if misses_ends else 1)
        assert reader.abandoned == misses_ends and bool(held.entries) is not misses_ends
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("name, kind, missed", [
    ("ext4", "fentry", True), ("ext4", "tp_btf", False), ("ext4", "kprobe", True),
    ("xfs", "fentry", True), ("syncfs", "fentry", True),
])  # fmt: skip
def test_a_sync_whose_end_its_hook_may_miss_is_not_stuck_for_ever(
    held: Any, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, missed: bool
) -> None:
    """fexit goes with the trampoline that another tracer of the function replaces."""
    hold_old_sync(held, os.getpid())
    monkeypatch.setattr(map_readers, "thread_state", lambda tid: ("S", 0.0))
    found = [hook for hook in {**FSYNC, "syncfs": SYNCFS}[name] if hook.kind == kind]
    probe: Any = BpfProbe.__new__(BpfProbe)
    probe.choice, probe._object = Choice(sync={name: found[0]}), FakeObject(held)
    probe._entries, probe._constants, probe._maps = 1, None, []
    probe.sizes = bpf_layout.plan_sizes(1, 1, False)
    probe._load(False)
    assert stuck(probe._syncs) == (0 if missed else 1)


def test_a_sync_is_stuck_while_its_thread_waits_in_the_kernel(
    held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_old_sync(held, os.getpid())
    done: Any = FakeMap()
    reader = SyncReader(done, held, True)
    seen: List[Optional[Tuple[str, float]]] = [
        ("D", 5.0), ("R", 5.5), None, ("D", 5.5), ("D", 6.5), ("R", 6.6),
    ]  # fmt: skip
    monkeypatch.setattr(map_readers, "thread_state", lambda tid: seen.pop(0))
    assert [stuck(reader) for _ in range(5)] == [1] * 5
    # What ran for a second in user mode is no sync; another one of that thread begins anew.
    hold_old_sync(held, os.getpid(), 2)
    assert stuck(reader) == 1
    seen += [("D", 8.0)]
    assert stuck(reader) == 0 and reader.abandoned == 1


def sync_returns(done: FakeMap, dev: int, more: int = 1) -> None:
    """As the probe counts: an entry that was removed begins anew."""
    key, size = dev.to_bytes(4, sys.byteorder), bpf_layout.SYNC_STATS_SIZE
    count = bpf_layout.SYNC_COUNTS.unpack_from(done.entries.get(key, bytes(size)))[0] + more
    if key in done.entries or len(done.entries) < done.max_entries:
        done.entries[key] = bpf_layout.SYNC_COUNTS.pack(count, 0, 0, 0).ljust(size, b"\0")


def test_filesystems_that_were_synced_once_leave_room_for_a_disk(held: Any) -> None:
    """An unmount is a sync: containers come and go, and users mount in namespaces of their own."""
    done: Any = FakeMap()
    reader, another = SyncReader(done, held), DISK + 16
    sync_returns(done, DISK)
    for minor in range(done.max_entries):
        sync_returns(done, minor)
    assert len(reader.read()) == done.max_entries
    for syncs in (2, 3, 4):  # also of one that was removed
        sync_returns(done, DISK, syncs)
        sync_returns(done, another, syncs)
        found = reader.read()
        assert found["8:1"].fsyncs == found["8:17"].fsyncs == syncs
        assert len(done.entries) == done.max_entries // 2
        assert {DISK, another} <= {int.from_bytes(key, sys.byteorder) for key in done.entries}


def test_a_known_disk_never_leaves_the_table_of_syncs(held: Any) -> None:
    """Nor is its count seen to begin anew."""
    done: Any = FakeMap()
    reader = SyncReader(done, held)
    sync_returns(done, DISK)
    for tick in range(1, 6):
        for minor in range(2000):
            sync_returns(done, 1 << 20 | (2000 * tick + minor) & 0xFFFFF)
        assert reader.read({"8:1": "sda"}.get)["8:1"].fsyncs == 1
        count = bpf_layout.SYNC_COUNTS.unpack_from(done.entries[DISK.to_bytes(4, sys.byteorder)])
        assert count[0] == tick
        sync_returns(done, DISK)


def hold_syncs(held: FakeMap, cgroup: int, count: int, last_ns: int, pid: int = 42) -> None:
    key = bpf_layout.CGROUP_KEY.pack(cgroup, DISK)
    held.entries[key] = bpf_layout.CGROUP_SYNCS.pack(count, last_ns, pid)


def test_syncs_of_a_cgroup_since_the_last_read(held: Any) -> None:
    reader = CgroupSyncReader(held)
    hold_syncs(held, 77, 3, 100)
    assert reader.read() == {(77, "8:1"): CgroupReading(syncs=3, pid=42)}
    assert reader.read() == {}
    hold_syncs(held, 77, 5, 200, 43)
    assert reader.read() == {(77, "8:1"): CgroupReading(syncs=2, pid=43)}
    # Removed and back again.
    for at in (300, 400):
        hold_syncs(held, 77, 1, at, 43)
        assert reader.read() == {(77, "8:1"): CgroupReading(syncs=1, pid=43)}


def test_half_a_table_is_kept_free_and_the_cgroups_that_synced_last_stay(held: Any) -> None:
    reader = CgroupSyncReader(held)
    for cgroup in range(held.max_entries):
        hold_syncs(held, cgroup, 9, 1000 + cgroup)
    assert len(reader.read()) == held.max_entries
    kept = {bpf_layout.CGROUP_KEY.unpack(key)[0] for key in held.entries}
    assert kept == set(range(held.max_entries // 2, held.max_entries))
    hold_syncs(held, 3, 12, 5000)
    assert reader.read() == {(3, "8:1"): CgroupReading(syncs=12, pid=42)}


def test_of_too_many_cgroups_those_with_the_most_syncs_stay(held: Any) -> None:
    """Whoever may make cgroups by the thousand syncs once in each, and last."""
    reader, database = CgroupSyncReader(held), 5
    hold_syncs(held, database, 50, 1)
    for cgroup in range(1000, 999 + held.max_entries):
        hold_syncs(held, cgroup, 1, cgroup)
    reader.read()
    assert bpf_layout.CGROUP_KEY.pack(database, DISK) in held.entries
    assert len(held.entries) == held.max_entries // 2


def hold_dirtier(
    held: FakeMap, tid: int, size: int, slept_s: float = 0.0, first: int = 0,
    synced_ns: int = 0,
) -> None:
    """A thread, a process of its own, that dirtied so many bytes; `first`: before its entry."""
    held.entries[tid.to_bytes(4, "little")] = bpf_layout.DIRTIER.pack(
        1, first, size, int(slept_s * 1e9), 0, synced_ns, 7, 1, tid, DISK, 0, b"dd"
    )


def held_tids(held: FakeMap) -> Set[int]:
    return {int.from_bytes(tid, "little") for tid in held.entries}


def test_what_a_cgroup_dirtied_is_the_sum_of_all_its_processes(held: Any) -> None:
    reader, everybody = TaskReader(held), range(100, 200)  # more than are named one by one
    for pid in everybody:
        hold_dirtier(held, pid, 1 << 20, 0.25)
    assert len(reader.read()) < len(everybody)
    (reading,) = reader.cgroups.values()
    assert reading.dirtied_bytes == len(everybody) << 20
    assert reading.throttled_s == pytest.approx(25.0)
    assert reading.pid in everybody
    reader.read()
    assert reader.cgroups == {}


def test_a_process_syncs_in_the_tick_in_which_it_began_one(held: Any) -> None:
    reader = TaskReader(held)
    hold_dirtier(held, 7, 4096, synced_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    assert [task.synced for task in reader.read()] == [True]
    hold_dirtier(held, 7, 8192, synced_ns=1)
    assert [task.synced for task in reader.read()] == [False]


def test_half_a_table_is_kept_free_and_the_active_threads_stay(held: Any) -> None:
    reader, half = TaskReader(held), held.max_entries // 2
    for tid in range(half):
        hold_dirtier(held, tid, 4096)
    reader.read()
    assert len(held.entries) == half
    # The first ten go on, the last with the most; ten come.
    for tid in range(10):
        hold_dirtier(held, tid, (tid + 2) * 4096)
    for tid in range(half, half + 10):
        hold_dirtier(held, tid, 4096)
    assert len(reader.read()) == 20
    kept = held_tids(held)
    assert len(kept) == half and kept >= {*range(10), *range(half, half + 10)}
    # One that was removed and comes back is not counted twice.
    (gone, *_) = set(range(half)) - kept
    hold_dirtier(held, gone, 12288, first=4096)
    assert [(task.pid, task.dirtied_bytes) for task in reader.read()] == [(gone, 8192)]


def test_of_too_many_active_threads_the_smallest_are_taken_out(held: Any) -> None:
    """1,400 threads that dirty 10 MB/s in all leave a place for one that dirties 290."""
    reader, flooder = TaskReader(held), 5000
    sizes = dict.fromkeys(range(1400), 0)

    def dirty(tid: int, size: int) -> None:
        key = tid.to_bytes(4, "little")
        before = sizes[tid]
        sizes[tid] += size
        if key in held.entries:
            first = bpf_layout.DIRTIER.unpack(held.entries[key])[1]
            hold_dirtier(held, tid, sizes[tid], first=first)
        elif len(held.entries) < held.max_entries:
            hold_dirtier(held, tid, sizes[tid], first=before)

    for tick in range(5):
        if tick == 2:
            sizes[flooder] = 0
        for tid in (*range(tick % 2, 1400, 2), *([flooder] if tick >= 2 else ())):
            dirty(tid, 290 << 20 if tid == flooder else 7 << 10)
        for tid in range(1 - tick % 2, 1400, 2):
            dirty(tid, 7 << 10)
        found = {task.pid: task.dirtied_bytes for task in reader.read()}
        assert (found.get(flooder) == 290 << 20) is (tick >= 2)
        assert len(held.entries) == held.max_entries // 2
        assert (flooder in held_tids(held)) is (tick >= 2)


def test_a_commit_that_waits_keeps_its_place_among_larger_writers(held: Any) -> None:
    reader, waiting = TaskReader(held), 7
    for tid in range(held.max_entries):
        hold_dirtier(held, tid, 1 << 20)
    held.entries[waiting.to_bytes(4, "little")] = bpf_layout.DIRTIER.pack(
        1, 0, 4096, 3_000_000_000, 1_000_000_000, 5, 7, 1, waiting, DISK, DISK, b"postgres"
    )
    reader.read()
    assert len(held.entries) == held.max_entries // 2 and waiting in held_tids(held)
    (sleep,) = reader.sleeps.values()
    assert sleep == Sleep("8:1", 3_000_000_000, 2_000_000_000, 5)


def test_threads_that_are_idle_for_long_are_taken_out(held: Any) -> None:
    reader = TaskReader(held)
    for tid in (1, 2):
        hold_dirtier(held, tid, 4096)
    for _ in range(map_readers.IDLE_READS):
        reader.read()
    hold_dirtier(held, 2, 8192)
    reader.read()
    assert held_tids(held) == {1, 2}
    reader.read()
    assert held_tids(held) == {2}


def test_two_readers_together() -> None:
    one = {(7, "8:1"): CgroupReading(dirtied_bytes=5, pid=1)}
    other = {(7, "8:1"): CgroupReading(syncs=2, pid=2), (8, "8:1"): CgroupReading(syncs=1, pid=3)}
    assert together(one, other) == {
        (7, "8:1"): CgroupReading(5, 0.0, 2, 2),
        (8, "8:1"): CgroupReading(syncs=1, pid=3),
    }
