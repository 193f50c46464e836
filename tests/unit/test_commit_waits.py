# SPDX-License-Identifier: GPL-2.0-or-later
"""Commits as user space reads them from the probe's tables."""

from __future__ import annotations

import mmap
import sys
from types import SimpleNamespace
from typing import Any, Dict

import pytest

from fake_host import FakeHost, FakeProbe
from test_map_readers import DISK, FakeMap, sync_returns
from writebackd.kernel import bpf_layout
from writebackd.kernel.bpf_layout import LossCounters, Losses
from writebackd.kernel.commit_waits import CommitterReader, CommitWaits, Sleep
from writebackd.kernel.hooks import THROTTLED, Choice
from writebackd.kernel.map_readers import Reading, SyncReader, TaskReader
from writebackd.kernel.probe import BpfProbe
from writebackd.kernel.sampler import Sampler
from writebackd.kernel.topology import Topology
from writebackd.kernel.vm import read_state
from writebackd.types.copying import replace
from writebackd.types.histogram import Histogram
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
    probe._losses = LossCounters(mmap.mmap(-1, bpf_layout.STATE.size))
    probe._lost = probe._losses.read()
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
    bpf_layout.STATE.pack_into(opened._losses._memory, 0, 0, 5, 0, 2, 0)
    first, second = opened.read(), opened.read()
    assert (first.syncs_lost, first.unlisted) == (5, True)
    assert (second.syncs_lost, second.unlisted) == (0, False)
    assert opened._losses.read() == Losses(0, 5, 0, 2, 0)


def test_what_threads_without_a_place_dirty_is_known(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(tmp_path)
    topology = Topology(host)
    topology.scan()
    probe: Any = FakeProbe()
    sampler = Sampler(host, topology, probe, lambda device: None)
    state = read_state(host)
    dirtied = iter((100 << 20, 400 << 20, 700 << 20, 1000 << 20))
    monkeypatch.setattr(
        "writebackd.kernel.sampler.read_state",
        lambda files: replace(state, dirtied_bytes=next(dirtied)),
    )
    found = []
    for unlisted in (True, True, False, True):
        probe.next = Reading(unlisted=unlisted, dirtied_bytes=10 << 20)
        found.append(sampler.read(1.0, 0.0, 1.0, ()).unlisted_bytes >> 20)
    assert found == [0, 290, 0, 290]


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
