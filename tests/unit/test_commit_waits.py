# SPDX-License-Identifier: GPL-2.0-or-later
"""Commits that wait in write(), and who wrote a lever: what the probe saw."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Optional

import pytest

from fake_host import FakeHost, FakeProbe
from test_map_readers import DISK, FakeMap, sync_returns
from writebackd import formats
from writebackd.kernel import bpf_layout, cgroup_index
from writebackd.kernel.bpf_layout import Losses
from writebackd.kernel.cgroup_index import CgroupIndex
from writebackd.kernel.commit_waits import CommitterReader, CommitWaits, Sleep
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.hooks import THROTTLED, Choice
from writebackd.kernel.lever_writers import command_line, writer_of
from writebackd.kernel.map_readers import Reading, SyncReader, SysctlWriteReader, TaskReader
from writebackd.kernel.probe import BpfProbe
from writebackd.kernel.sampler import Sampler
from writebackd.kernel.topology import Topology
from writebackd.types.histogram import Histogram
from writebackd.types.levers import ForeignWrite
from writebackd.types.samples import SyncSample

S = 1_000_000_000


def counted(count: int, slept_ns: int, sync_bucket: int, commit_bucket: int) -> bytes:
    """An entry of the table of syncs, all of whose syncs took as long."""
    hists = [[0] * 192 for _ in range(3)]
    hists[0][sync_bucket] = hists[2][commit_bucket] = count
    return bpf_layout.SYNC_COUNTS.pack(0, count, 0, slept_ns) + b"".join(
        bpf_layout.HIST.pack(*each) for each in hists
    )


def key(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


def read_once(sees_sleep: bool) -> SyncSample:
    done, inflight = FakeMap(), FakeMap()
    reader = SyncReader(done, inflight, sees_sleep=sees_sleep)  # type: ignore[arg-type]
    done.entries[key(DISK)] = counted(7, 3 * S, 20, 90)
    reader.read()
    done.entries[key(DISK)] = counted(10, 5 * S, 20, 90)
    return reader.read()["8:1"]


def test_commits_have_a_histogram_of_their_own() -> None:
    seen = read_once(True)
    assert seen.latency.buckets == ((20, 3),)
    assert seen.commits is not None and seen.commits.buckets == ((90, 3),)
    assert seen.throttled_s == 2.0 and seen.fdatasyncs == 3


def test_commits_are_none_where_the_sleep_is_not_visible() -> None:
    seen = read_once(False)
    assert seen.commits is None and seen.commit_latency.buckets == ((20, 3),)


def test_a_wait_without_further_sleep_is_forgotten() -> None:
    """A thread that stopped committing is no commit that hangs."""
    waits = CommitWaits()
    for second in range(10):  # sleeps on and on, two threads of it at the same time
        sleep = Sleep("8:1", (3 + 2 * second) * S, (3 + 2 * second) * S, 5 * S)
        found = waits.longest({b"a": sleep}, (8 + second) * S)
        assert found == {"8:1": 3.0 + second}
    stopped = [bool(waits.longest({b"a": sleep}, (17 + second) * S)) for second in range(7)]
    assert stopped == [True] * 5 + [False] * 2


def test_the_longest_wait_of_a_device_counts() -> None:
    sleeps = {
        b"a": Sleep("8:1", 9 * S, 2 * S, 0), b"b": Sleep("8:1", 9 * S, 3 * S, 0),
        b"c": Sleep("8:17", 9 * S, 1 * S, 0),
    }  # fmt: skip
    assert CommitWaits().longest(sleeps, 100 * S) == {"8:1": 3.0, "8:17": 1.0}


def committer(synced_ns: int, slept_ns: int, attached_ns: int) -> bytes:
    return bpf_layout.COMMITTER.pack(1, synced_ns, slept_ns, attached_ns, DISK)


def test_processes_that_synced_last_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.clock_gettime_ns", lambda clock: 1000 * S)
    table: Any = FakeMap()
    for pid in range(1, 1025):
        table.entries[key(pid)] = committer(900 * S + pid, 0, 0)
    table.entries[key(1000)] = committer(900 * S + 1000, 7 * S, 4 * S)
    table.entries[key(1001)] = committer(800 * S, 0, 0)  # idle
    sleeps = CommitterReader(table).read()
    assert sleeps == {key(1000): Sleep("8:1", 7 * S, 3 * S, 900 * S + 1000)}
    assert len(table.entries) == 512 and key(1001) not in table.entries
    assert key(1024) in table.entries and key(1) not in table.entries


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A probe on tables that tests fill, at a clock of 1000 s."""
    monkeypatch.setattr("time.clock_gettime_ns", lambda clock: 1000 * S)
    tables: Dict[str, Any] = {name: FakeMap() for name in ("done", "held", "tasks", "committers")}
    probe: Any = BpfProbe.__new__(BpfProbe)
    probe.choice = Choice(others=[THROTTLED[0]])
    probe._sample_cost, probe._issue_attached = lambda: None, True
    probe._blocks = SimpleNamespace(read=dict, unstamped=0)
    probe._cgroups = probe._sysctl_writes = SimpleNamespace(read=dict)
    probe._syncs = SyncReader(tables["done"], tables["held"])
    probe._tasks = TaskReader(tables["tasks"])
    probe._committers, probe._waits = CommitterReader(tables["committers"]), CommitWaits()
    probe._losses = mmap.mmap(-1, bpf_layout.STATE.size)
    probe._lost = bpf_layout.read_losses(probe._losses)
    probe.tables = tables
    return probe


def test_threads_and_processes_that_wait_are_the_disks(opened: Any) -> None:
    opened.tables["tasks"].entries[key(42)] = bpf_layout.DIRTIER.pack(
        1, 0, 4096, 5 * S, 3 * S, 990 * S, 7, 1, 42, DISK, DISK, b"postgres"
    )
    # One that never synced waits for nothing that is due.
    opened.tables["tasks"].entries[key(43)] = bpf_layout.DIRTIER.pack(
        1, 0, 4096, 50 * S, 0, 0, 7, 1, 43, DISK, 0, b"dd"
    )
    opened.tables["committers"].entries[key(42)] = committer(997 * S, 9 * S, 1 * S)
    sync_returns(opened.tables["done"], DISK)
    syncs = opened.read().syncs
    assert {devno: (each.fsyncs, each.throttled_now_s) for devno, each in syncs.items()} == {
        "8:1": (1, 3.0)
    }
    opened.tables["done"].entries.clear()
    assert opened.read().syncs["8:1"].throttled_now_s == 3.0


def test_losses_of_a_tick_are_in_its_reading(opened: Any) -> None:
    bpf_layout.STATE.pack_into(opened._losses, 0, 0, 5, 0, 2, 0)
    first, second = opened.read(), opened.read()
    assert (first.syncs_lost, second.syncs_lost) == (5, 0)
    assert bpf_layout.read_losses(opened._losses) == Losses(0, 5, 0, 2, 0)


def test_while_syncs_are_lost_a_disk_that_shows_none_is_blind(tmp_path: Any) -> None:
    host = FakeHost(tmp_path)
    topology = Topology(host)
    topology.scan()
    probe: Any = FakeProbe()
    sampler = Sampler(host, topology, probe, lambda device: None)

    def seen(reading: Reading) -> Any:
        probe.next = reading
        return sampler.read(1.0, 0.0, 1.0, ()).devices[0].sync

    nothing = SyncSample(commits=Histogram())
    assert seen(Reading(no_syncs=nothing)) == nothing
    assert seen(Reading(no_syncs=nothing, syncs_lost=1)) is None
    some = SyncSample(fsyncs=1)
    assert seen(Reading(syncs={"8:1": some}, no_syncs=nothing, syncs_lost=1)) == some


OWN = (1000, 1001)  # the daemon, and its watcher


def write(lever: str, value: str, pid: int) -> ForeignWrite:
    return ForeignWrite(lever, value, pid, f"p{pid}", 7, cmdline=f"p{pid} -x")


# ---- which of those that were seen it was -----------------------------------


@pytest.mark.parametrize("value, seen", [
    ("40", "40"), ("40", " 40 \n"), ("40", "0x28"), ("40", "050"), ("40", "+40"),
    ("0", "0"), ("0", "00"), ("103809024", "0x6300000"),
])  # fmt: skip
def test_a_value_is_read_as_the_kernel_reads_it(value: str, seen: str) -> None:
    found = writer_of(ForeignWrite("dirty_ratio", value), [[write("dirty_ratio", seen, 5)]], OWN)
    assert found is not None and (found.pid, found.value) == (5, value)
    assert (found.cmdline, found.cgroup_id) == ("p5 -x", 7)


def test_the_newest_that_fits_is_named() -> None:
    seen = [
        write("dirty_ratio", "40", 5), write("dirty_bytes", "40", 6), write("dirty_ratio", "40", 7),
        write("dirty_ratio", "9", 8), write("dirty_ratio", "banana", 9),  # that was refused
        write("dirty_ratio", "40", 1000), write("dirty_ratio", "40", 1001),
    ]  # fmt: skip
    found = writer_of(ForeignWrite("dirty_ratio", "40"), [seen], OWN)
    assert found is not None and found.pid == 7


def test_where_the_queue_was_overrun_the_last_to_that_lever_is_named() -> None:
    seen = [write("dirty_bytes", str(8192 + n), 5 + n % 2) for n in range(16)]
    found = writer_of(ForeignWrite("dirty_bytes", "4096000"), [[], seen], OWN)
    assert found is not None and (found.pid, found.value) == (6, "4096000")


def test_where_nothing_was_overrun_one_whose_value_does_not_fit_is_not_named() -> None:
    """His write was refused, or came before; who did it was not seen."""
    seen = [write("dirty_bytes", str(8192 + n), 5) for n in range(15)]
    found = ForeignWrite("dirty_bytes", "4096000")
    assert writer_of(found, [seen, seen], OWN) is None
    watchers = [write("dirty_bytes", "0", 1001) for _ in range(16)]
    assert writer_of(found, [watchers], OWN) is None


def test_nobody_was_seen() -> None:
    found = ForeignWrite("dirty_bytes", "8192")
    assert writer_of(found, [], OWN) is None
    others = [write("dirty_ratio", "8192", 5), write("dirty_bytes", "8192", 1000)]
    assert writer_of(found, [others], OWN) is None
    assert writer_of(ForeignWrite("queue sda nr_requests", "8192"), [others], OWN) is None
    assert found.who == "an unknown process"


def test_the_flusher_s_lever_is_the_sysctl() -> None:
    found = ForeignWrite("flush vm dirty_expire_centisecs", "100")
    named = writer_of(found, [[write("dirty_expire_centisecs", "100", 5)]], OWN)
    assert named is not None and (named.pid, named.lever) == (5, found.lever)


# ---- what the probe's queue holds -----------------------------------------------------


@pytest.mark.parametrize("raw, text", [
    (b"sysctl\0-w\0vm.dirty_ratio=40\0", "sysctl -w vm.dirty_ratio=40"),
    (b"", None),
    (b"a" * 128, "a" * 128 + "..."),
    (b"x\ny\0-c\0/\x1b[2J\0echo 7\0", "x?y -c /?[2J ***"),
    (b"caf\xc3\xa9\0/\xff\0", "caf\u00e9 /\ufffd"),
])  # fmt: skip
def test_command_line(raw: bytes, text: Optional[str]) -> None:
    assert command_line(raw.ljust(128, b"\0")) == text


def test_names_cannot_move_the_cursor() -> None:
    assert formats.printable("a\nb\x1b\u202ec") == "a?b??c"


@pytest.fixture
def queue() -> Any:
    return FakeMap()


def put(queue: Any, pid: int, cgroup: int, command: bytes) -> None:
    queue.entries[pid] = bpf_layout.SYSCTL_WRITE.pack(
        cgroup, pid, b"s\nh", b"vm/dirty_bytes", b"8192\n", command
    )


def test_a_write_is_read_with_its_cgroup_and_command(queue: Any) -> None:
    reader = SysctlWriteReader(queue)
    put(queue, 42, 77, b"sh\0-c\0echo")
    assert reader.read() == (
        ForeignWrite("dirty_bytes", "8192", 42, "s?h", 77, cmdline="sh -c ***"),
    )
    assert reader.read() == ()
    put(queue, 43, 0, b"")  # a kernel thread has neither
    (seen,) = reader.read()
    assert (seen.cgroup_id, seen.cmdline) == (None, None)
    assert seen.who == "s?h (pid 43, cgroup gone)"


def test_a_storm_cannot_keep_the_reader(queue: Any) -> None:
    for number in range(20):
        put(queue, number, 1, b"x")
    reader = SysctlWriteReader(queue)
    assert [seen.pid for seen in reader.read()] == list(range(16))
    assert [seen.pid for seen in reader.read()] == list(range(16, 20))


# ---- the cgroup of one that has ended ----------------------------------------


def test_a_cgroup_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cg"
    for path in ("user.slice/session-3.scope", "system.slice/tuned.service", "system.slice/x"):
        (root / path).mkdir(parents=True)
    (root / "system.slice/memory.stat").write_text("")
    cgroups = CgroupIndex(KernelFiles(tmp_path), "/cg")
    for path in ("/", "/user.slice", "/system.slice/tuned.service"):
        assert cgroups.find(os.stat(f"{root}{path}").st_ino) == path
    assert cgroups.find(1) is None
    assert CgroupIndex(KernelFiles(tmp_path), None).find(os.stat(root).st_ino) is None
    assert CgroupIndex(KernelFiles(tmp_path), "/gone").find(5) is None
    monkeypatch.setattr(cgroup_index, "MOST_SEARCHED", 2)  # the root, and one below
    depth = os.stat(root / "user.slice/session-3.scope").st_ino
    others = os.stat(root / "system.slice/x").st_ino
    assert [cgroups.find(depth), cgroups.find(others)].count(None) == 1
