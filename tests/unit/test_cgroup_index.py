# SPDX-License-Identifier: GPL-2.0-or-later
"""Cgroups: paths of ids, the files of those that flood, memory; and a tick of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from fake_host import FakeHost, FakeProbe
from writebackd.kernel.cgroup_index import (
    BULK,
    MOST_PATHS,
    MOST_SMALL,
    MOST_WATCHED,
    WATCHED_S,
    CgroupIndex,
)
from writebackd.kernel.cgroup_io_max import path_of_process
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.map_readers import CgroupReading, Reading
from writebackd.kernel.sampler import Sampler
from writebackd.kernel.topology import Topology
from writebackd.types.samples import CgroupMemory, CgroupSample

FLOOD = "/system.slice/backup.service"
FAST = 10e6


class Tree:
    """A host with cgroup v2 and processes in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process("self", "/system.slice/writebackd.service")
        self.cgroups = CgroupIndex(KernelFiles(root), "/sys/fs/cgroup")

    def directory(self, path: str) -> Path:
        found = self.root / "sys/fs/cgroup" / path.strip("/")
        found.mkdir(parents=True, exist_ok=True)
        return found

    def process(self, pid: "int | str", path: str) -> int:
        """The id of its cgroup."""
        file = self.root / f"proc/{pid}/cgroup"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"12:cpu:/elsewhere\n0::{path}\n")
        return self.directory(path).stat().st_ino

    def files(self, path: str, written: int, limits: str = "") -> None:
        directory = self.directory(path)
        (directory / "io.stat").write_text(
            f"8:16 rbytes=1 wbytes=5 rios=1 wios=1\n8:0 rbytes=7 wbytes={written} rios=0 wios=3\n"
        )
        (directory / "io.max").write_text(limits)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_path_is_told_by_a_process_and_kept_when_it_has_gone(tree: Tree) -> None:
    cgroup_id = tree.process(42, FLOOD)
    assert tree.cgroups.path(cgroup_id, 99) is None
    tree.process(43, "/init.scope")  # elsewhere by now
    assert tree.cgroups.path(cgroup_id, 43) is None
    assert tree.cgroups.path(cgroup_id, 42) == FLOOD
    (tree.root / "proc/42/cgroup").unlink()
    assert tree.cgroups.path(cgroup_id, 42) == FLOOD


def test_a_path_that_is_very_deep_is_not_told(tree: Tree) -> None:
    """A tick looks at each level of some: of eight users' paths with 1900 it took 10 s."""
    deepest = "/a" * 32
    assert tree.cgroups.path(tree.process(42, deepest), 42) == deepest
    assert tree.cgroups.path(tree.process(43, deepest + "/a"), 43) is None


def test_a_path_that_is_long_is_not_told(tree: Tree) -> None:
    """A single emoji makes four bytes of each letter: 15 KB a path, and 4,096 of them."""
    longest = "/" + "a" * 250 + "/" + "b" * 250 + "/" + "c" * 9
    assert len(longest) == 512
    assert tree.cgroups.path(tree.process(42, longest), 42) == longest
    assert tree.cgroups.path(tree.process(43, longest + "d"), 43) is None
    assert tree.cgroups.of_process(43) is None and tree.cgroups.of_process(42) == longest
    found = tree.cgroups.find(tree.directory(longest + "d").stat().st_ino)
    assert found is None
    emoji = "/" + "\N{GRINNING FACE}" * 60
    assert tree.cgroups.path(tree.process(44, emoji), 44) == emoji
    assert all(type(raw) is bytes for raw in tree.cgroups._paths.values())


@pytest.mark.parametrize("separator", "\v\f\r\x1c\x1d\x1e\x85\u2028\u2029 ")
def test_a_name_is_not_the_next_line(tree: Tree, separator: str) -> None:
    hostile = f"/user.slice/x{separator}0::{FLOOD}"
    flood, cgroup_id = tree.process(1, FLOOD), tree.process(42, hostile)
    assert tree.cgroups.path(flood, 42) is None
    assert tree.cgroups.path(cgroup_id, 42) == hostile
    assert path_of_process(KernelFiles(tree.root), "42") == hostile
    # Nor is what a name ends with white space after it.
    tree.process(43, f"/user.slice/x{separator}")
    assert path_of_process(KernelFiles(tree.root), "43") == f"/user.slice/x{separator}"


def test_its_own(tree: Tree) -> None:
    assert tree.cgroups.own == "/system.slice/writebackd.service"
    assert CgroupIndex(KernelFiles(tree.root), None).own is None
    assert CgroupIndex(KernelFiles(tree.root), None).path(1, 42) is None


def test_files_are_read_of_those_that_flood_until_they_have_rested(tree: Tree) -> None:
    tree.files(FLOOD, 1000, "8:0 rbps=max wbps=1048576 riops=max wiops=max\n")
    assert tree.cgroups.control({"sda": {FLOOD: 1000.0}}, 0.0) == {}
    (first,) = tree.cgroups.control({"sda": {FLOOD: FAST}}, 1.0).values()
    assert first.written == ()  # what was written ever is not this tick's
    assert first.io_max == (("8:0", "rbps=max wbps=1048576 riops=max wiops=max"),)
    tree.files(FLOOD, 4000)
    (second,) = tree.cgroups.control({}, 2.0).values()
    assert dict(second.written) == {"8:0": 3000, "8:16": 0}
    assert second.io_max == ()
    assert tree.cgroups.control({}, 1.0 + WATCHED_S) != {}
    assert tree.cgroups.control({}, 1.1 + WATCHED_S) == {}


def test_without_an_io_controller(tree: Tree) -> None:
    tree.directory(FLOOD)
    assert tree.cgroups.control({"sda": {FLOOD: FAST}}, 0.0)[FLOOD].io_max is None


def flood(tree: Tree, *rates: float) -> Dict[str, float]:
    """A cgroup for each rate."""
    for number in range(len(rates)):
        tree.directory(f"/g{number}")
    return {f"/g{number}": rate for number, rate in enumerate(rates)}


def test_systemd_turns_the_io_controller_on_with_the_first_limit(tree: Tree) -> None:
    session, nobodys = "/user.slice/user-0.slice/session-3.scope", "/garden/web"
    for path in (session, nobodys):
        tree.directory(path)
    rates: Dict[Optional[str], Dict[str, float]] = {"sda": {session: FAST, nobodys: FAST}}
    (tree.root / "run/systemd/system").mkdir(parents=True)
    for there, off in (("cpu io memory", True), ("cpu memory", False)):
        (tree.directory("/") / "cgroup.controllers").write_text(there)
        cgroups = CgroupIndex(KernelFiles(tree.root), "/sys/fs/cgroup")
        found = cgroups.control(rates, 0.0)
        assert found[session].off is off and found[session].io_max == (() if off else None)
        assert not found[nobodys].off and found[nobodys].io_max is None
    tree.files(session, 0)
    (tree.directory("/") / "cgroup.controllers").write_text("io memory")
    found = CgroupIndex(KernelFiles(tree.root), "/sys/fs/cgroup").control(rates, 0.0)
    assert not found[session].off


@pytest.mark.parametrize("by_disk, read", [
    ([[3e6] * 20], 18),  # equal writers: none of them alone has a tenth
    ([[200e6, *[1.1e6] * 19]], 1),  # a large and many small ones
    ([[2e9], [5e6]], 2),  # a slow disk beside a fast one
])  # fmt: skip
def test_as_many_are_read_as_make_up_the_flood_of_each_disk(
    tree: Tree, by_disk: List[List[float]], read: int
) -> None:
    names = iter(flood(tree, *(rate for rates in by_disk for rate in rates)))
    rates: Dict[Optional[str], Dict[str, float]] = {
        f"disk{number}": {next(names): rate for rate in each}
        for number, each in enumerate(by_disk)
    }
    found = tree.cgroups.control(rates, 0.0)
    assert len(found) == read
    for each in rates.values():
        assert sum(each.get(path, 0.0) for path in found) >= 0.9 * sum(each.values())


def test_only_the_busiest_are_read_of_very_many(tree: Tree) -> None:
    rates = flood(tree, *[FAST * (100 + n) for n in range(2 * MOST_WATCHED)])
    found = tree.cgroups.control({"sda": rates}, 0.0)
    assert sorted(found) == sorted(list(rates)[MOST_WATCHED:])
    # But those that are paced.
    paced = list(rates)[:2]
    found = tree.cgroups.control({"sda": rates}, 1.0, paced)
    assert len(found) == MOST_WATCHED and set(paced) < set(found)


def test_the_paced_are_read_until_they_have_rested_or_are_gone(tree: Tree) -> None:
    tree.files(FLOOD, 1000)
    assert set(tree.cgroups.control({}, 0.0, [FLOOD, "/gone"])) == {FLOOD}
    tree.files(FLOOD, 4000)
    assert dict(tree.cgroups.control({}, WATCHED_S, [FLOOD])[FLOOD].written)["8:0"] == 3000
    assert tree.cgroups.control({}, WATCHED_S + 1, [FLOOD]) == {}
    assert set(tree.cgroups.control({"sda": {FLOOD: FAST}}, 200.0, [FLOOD])) == {FLOOD}
    for file in tree.directory(FLOOD).iterdir():
        file.unlink()
    tree.directory(FLOOD).rmdir()
    assert tree.cgroups.control({}, 201.0, [FLOOD]) == {}


def test_delegation_is_told_by_its_mark_also_above(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: Dict[Tuple[str, str], bytes] = {}

    def getxattr(path: Path, name: str) -> bytes:
        key = (str(path), name)
        if key not in marks:
            raise OSError(61, "No data available")
        return marks[key]

    monkeypatch.setattr(os, "getxattr", getxattr)
    worker = f"{FLOOD}/worker"
    for path in (FLOOD, worker):
        tree.files(path, 0)
    assert not tree.cgroups.control({"sda": {worker: FAST}}, 0.0)[worker].delegated
    for mark in ("user.delegate", "trusted.delegate"):
        marks[str(tree.directory(FLOOD)), mark] = b"1"
        assert tree.cgroups.control({"sda": {worker: FAST}}, 1.0)[worker].delegated
        marks[str(tree.directory(FLOOD)), mark] = b"0"
        assert not tree.cgroups.control({"sda": {worker: FAST}}, 1.0)[worker].delegated


def test_on_a_host_of_systemd_it_is_told_what_is_not_in_its_tree(tree: Tree) -> None:
    paths = ["/garden/web", "/system.slice/x.service", "/x.service/y", "/init.scope", "/"]
    for path in paths:
        tree.files(path, 0)
    rates: Dict[Optional[str], Dict[str, float]] = {"sda": dict.fromkeys(paths, FAST)}
    assert not any(each.outside for each in tree.cgroups.control(rates, 0.0, paths).values())
    (tree.root / "run/systemd/system").mkdir(parents=True)
    cgroups = CgroupIndex(KernelFiles(tree.root), "/sys/fs/cgroup")
    found = cgroups.control(rates, 0.0, paths)
    assert {path for path in paths if found[path].outside} == {"/garden/web", "/"}


# ---- memory ------------------------------------------------------------------------


SMALL = "/docker.slice/small.scope"


def with_memory(tree: Tree) -> CgroupIndex:
    (tree.directory("/") / "cgroup.controllers").write_text("cpu io memory pids\n")
    memory(tree, "/docker.slice", "max", "max", 900 << 20)
    memory(tree, SMALL, str(64 << 20), "max", 60 << 20)
    return CgroupIndex(KernelFiles(tree.root), "/sys/fs/cgroup")


def memory(tree: Tree, path: str, most: str, high: str, used: int) -> None:
    values = {"max": most, "high": high, "current": str(used)}
    for name, value in values.items():
        (tree.directory(path) / f"memory.{name}").write_text(value + "\n")
    (tree.directory(path) / "memory.stat").write_text(
        f"anon 5\nfile 1\nfile_dirty {3 << 20}\nfile_writeback {1 << 20}\n"
        f"inactive_file {40 << 20}\nactive_file {10 << 20}\n"
    )


def test_memory_is_what_the_kernel_reckons_with(tree: Tree) -> None:
    cgroups = with_memory(tree)
    assert cgroups.memory({SMALL: 0.0}, 0.0) == {}  # nobody sleeps
    expected = CgroupMemory(SMALL, 64 << 20, (50 + 4) << 20, 4 << 20)
    assert cgroups.memory({SMALL: 0.1}, 1.0) == {SMALL: expected}
    # Below memory.high, or with less room above it, there is less to take.
    memory(tree, SMALL, str(64 << 20), str(62 << 20), 60 << 20)
    assert cgroups.memory({}, 2.0)[SMALL].avail_bytes == 52 << 20
    memory(tree, "/docker.slice", str(901 << 20), "max", 900 << 20)
    found = cgroups.memory({}, 3.0)[SMALL]
    assert (found.avail_bytes, found.ceiling_bytes) == (51 << 20, 62 << 20)
    memory(tree, "/docker.slice", str(901 << 20), "max", 902 << 20)
    assert cgroups.memory({}, 4.0)[SMALL].avail_bytes == 50 << 20
    assert cgroups.memory({}, 1.1 + WATCHED_S) == {}  # it has rested


def test_a_cgroup_without_the_controller_is_its_parents(tree: Tree) -> None:
    cgroups = with_memory(tree)
    tree.directory(f"{SMALL}/init")
    assert cgroups.memory({f"{SMALL}/init": 1.0}, 0.0)[f"{SMALL}/init"].path == SMALL


def test_who_has_no_limit_is_not_small(tree: Tree) -> None:
    cgroups = with_memory(tree)
    (tree.directory("/docker.slice") / "memory.stat").unlink()  # nor is it read
    assert cgroups.memory({"/docker.slice": 1.0, "/": 1.0, "/gone": 1.0}, 0.0) == {}


@pytest.mark.parametrize("controllers", ["memory", "cpu io", "", None])
def test_without_both_controllers_a_cgroup_has_no_dirty_limits(
    tree: Tree, controllers: Optional[str]
) -> None:
    with_memory(tree)
    file = tree.directory("/") / "cgroup.controllers"
    file.unlink()
    if controllers is not None:
        file.write_text(controllers)
    cgroups = CgroupIndex(KernelFiles(tree.root), "/sys/fs/cgroup")
    assert cgroups.memory({SMALL: 1.0}, 0.0) == {}


def test_of_very_many_that_slept_or_flooded_the_last_are_remembered(tree: Tree) -> None:
    """Any user may make cgroups by the hundred in each tick, with names of 4 KB."""
    cgroups = with_memory(tree)
    for now in range(3):
        paths = [f"/user.slice/{now}/{n}" for n in range(600)]
        for path in paths:
            tree.directory(path)
        cgroups.memory(dict.fromkeys(paths, 1.0), float(now))
        cgroups.control({"sda": dict.fromkeys(paths, FAST)}, float(now))
    for known in (cgroups._slept, cgroups._watched):
        assert len(known) == MOST_PATHS
        assert sum(path.startswith("/user.slice/2/") for path in known) >= BULK * len(paths)


def test_of_many_those_are_read_that_slept_last(tree: Tree) -> None:
    cgroups = with_memory(tree)
    paths = [f"/s{number}" for number in range(MOST_SMALL + 2)]
    for path in paths:
        memory(tree, path, "1048576", "max", 5)
    cgroups.memory(dict.fromkeys(paths[:2], 1.0), 0.0)
    assert sorted(cgroups.memory(dict.fromkeys(paths[2:], 1.0), 1.0)) == sorted(paths[2:])


# ---- the two together --------------------------------------------------------------


class Ticks:
    """Samples of a host, of which the probe reads what it is told."""

    def __init__(self, host: FakeHost) -> None:
        host.tree.mount("0:3", "cgroup2", "cgroup2", "/sys/fs/cgroup")
        topology = Topology(host)
        topology.scan()
        self.probe = FakeProbe()
        probe: Any = self.probe
        self.sampler = Sampler(host, topology, probe, lambda device: None)

    def cgroups(
        self, reading: Optional[Reading], now_s: float, watch: bool = False
    ) -> Tuple[CgroupSample, ...]:
        self.probe.next = reading
        return self.sampler.read(now_s, 0.0, 2.0, (), watch).cgroups


def test_a_tick_has_what_each_cgroup_did_to_each_device(tmp_path: Path) -> None:
    host, tree = FakeHost(tmp_path), Tree(tmp_path)
    flood, own = tree.process(42, FLOOD), tree.process(43, "/system.slice/writebackd.service")
    tree.files(FLOOD, 1000)
    reading = Reading(cgroups={
        (flood, "8:1"): CgroupReading(dirtied_bytes=20_000_000, throttled_s=0.5, pid=42),
        (own, "8:1"): CgroupReading(syncs=3, pid=43),
        (own, "9:9"): CgroupReading(syncs=1),
        (77, "8:1"): CgroupReading(syncs=1, pid=44),
    })  # fmt: skip
    ticks = Ticks(host)
    found = {(c.cgroup_id, c.device): c for c in ticks.cgroups(reading, 5.0)}
    assert found[flood, "sda"] == CgroupSample(flood, FLOOD, "sda", 20_000_000, 0.5)
    assert found[own, "sda"].own and found[own, "sda"].syncs == 3
    assert found[own, None].syncs == 1
    assert found[77, "sda"] == CgroupSample(77, None, "sda", syncs=1)
    # Its files only when somebody wants them, and then also while it rests.
    watched = {c.path: c for c in ticks.cgroups(reading, 6.0, True)}
    control = watched[FLOOD].control
    assert control is not None and control.io_max == ()
    assert watched["/system.slice/writebackd.service"].control is None
    assert watched[FLOOD].memory is None  # no controllers here
    (rests,) = ticks.cgroups(Reading(), 7.0, True)
    assert (rests.path, rests.cgroup_id, rests.dirtied_bytes) == (FLOOD, flood, 0)
    assert ticks.cgroups(None, 8.0, True)[0].path == FLOOD


def test_a_tick_looks_up_the_largest_of_very_many_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, tree = FakeHost(tmp_path), Tree(tmp_path)
    flood, database = tree.process(42, FLOOD), tree.process(43, "/system.slice/db.service")
    many = {
        (10_000_000 + n, "8:1"): CgroupReading(dirtied_bytes=4096, syncs=1, pid=100_000 + n)
        for n in range(4096)
    }
    reading = Reading(cgroups={
        **many, (flood, "8:1"): CgroupReading(dirtied_bytes=20_000_000, pid=42),
        (database, "8:1"): CgroupReading(syncs=50, pid=43),
    })  # fmt: skip
    ticks, looked = Ticks(host), []
    of_process = CgroupIndex.of_process

    def counted(self: CgroupIndex, pid: int) -> Optional[str]:
        looked.append(pid)
        return of_process(self, pid)

    monkeypatch.setattr(CgroupIndex, "of_process", counted)
    paths = {each.cgroup_id: each.path for each in ticks.cgroups(reading, 5.0)}
    assert (paths[flood], paths[database]) == (FLOOD, "/system.slice/db.service")
    assert len(looked) <= 64


def test_a_tick_has_the_memory_of_those_that_sleep_also_while_they_rest(tmp_path: Path) -> None:
    host, tree = FakeHost(tmp_path), Tree(tmp_path)
    with_memory(tree)
    small = tree.process(42, SMALL)
    ticks = Ticks(host)
    reading = Reading(cgroups={(small, "8:1"): CgroupReading(1, 0.5, pid=42)})
    (seen,) = ticks.cgroups(reading, 5.0)
    assert seen.memory is not None and seen.memory.path == SMALL
    (rests,) = ticks.cgroups(Reading(), 6.0)
    assert (rests.path, rests.dirtied_bytes, rests.memory) == (SMALL, 0, seen.memory)
