# SPDX-License-Identifier: GPL-2.0-or-later
"""/proc/diskstats: every shape of line, counters that wrap, devices that are reborn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable, Dict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writebackd.kernel.diskstats import DiskStats, DiskStatsReader, delta
from writebackd.kernel.files import KernelFiles

MOST = 3  # measured: 1.8 to 1.9
# Counters in the kernel's order, told apart by their values.
COMMON = "101 2 3000 41 501 6 7000 81 9 1001 1101"
DISCARDS = "1201 2 3 4"
FLUSHES = "1601 1701"


class Tree:
    def __init__(self, root: Path) -> None:
        self.path = root / "proc/diskstats"
        self.path.parent.mkdir()
        self.reader = DiskStatsReader(KernelFiles(root))

    def write(self, *lines: str) -> None:
        self.path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")


def stats(**changes: int) -> DiskStats:
    return DiskStats(0, 0, 0, 0, 0, 0, 0, 0)._replace(**changes)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("tail, counted", [
    (COMMON, {}),  # until 4.17
    (f"{COMMON} {DISCARDS}", {"discards": 1201}),  # 4.18
    (f"{COMMON} {DISCARDS} {FLUSHES}", {"discards": 1201, "flushes": 1601}),  # 5.5
    (f"{COMMON} {DISCARDS} {FLUSHES} 7 8", {"discards": 1201, "flushes": 1601}),  # one day
])  # fmt: skip
def test_every_length_of_line(tree: Tree, tail: str, counted: Dict[str, int]) -> None:
    tree.write(f"   8       0 sda {tail}")
    common = stats(
        reads=101, read_bytes=3000 * 512, writes=501, write_bytes=7000 * 512, inflight=9,
        io_ms=1001,
    )  # fmt: skip
    assert tree.reader.read() == {"8:0": common._replace(**counted)}
    assert tree.reader.skipped == 0


@pytest.mark.parametrize("line", [
    "8 1 sda1 1 2 3 4",  # partitions before 2.6.25
    f"8 x sda {COMMON}",
    f"8 1 sda {COMMON.replace('501', '5O1')}",
    f"8 1 sda {COMMON.replace('501', '-501')}",
    f"8 1 sda {COMMON.replace('501', '9' * 400)}",  # larger than any float
    "garbage",
    "\udcff",
])  # fmt: skip
def test_bad_lines_are_counted_and_the_others_kept(tree: Tree, line: str) -> None:
    tree.write(f"8 0 sda {COMMON}", line, f"253 0 dm-0 {COMMON}")
    assert list(tree.reader.read()) == ["8:0", "253:0"]
    assert tree.reader.skipped == 1
    assert list(tree.reader.read()) == ["8:0", "253:0"]
    assert tree.reader.skipped == 1


@given(st.text(alphabet="0123456789 -\n\tsda:+_\u0661", max_size=200))
def test_no_text_raises(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    tree = Tree(tmp_path_factory.mktemp("proc"))
    tree.write(text)
    tree.reader.read()


def test_a_second_read_sees_what_changed_came_and_went(tree: Tree) -> None:
    tree.write(f"8 0 sda {COMMON}", f"8 16 sdb {COMMON}")
    before = tree.reader.read()
    tree.write(f"8 0 sda {COMMON}", f"8 32 sdc {COMMON.replace('501', '502')}")
    after = tree.reader.read()
    assert after["8:0"] is before["8:0"]  # not parsed again
    assert after["8:32"].writes == before["8:16"].writes + 1
    assert set(after) == {"8:0", "8:32"}


def test_only_what_is_wanted_is_read(tree: Tree) -> None:
    counters = " 1" * 17
    tree.write(f"   8       0 sda{counters}", f"   8       1 sda1{counters}", "8", "")
    assert list(tree.reader.read({"8:0", "9:9"})) == ["8:0"]
    assert list(tree.reader.read()) == ["8:0", "8:1"]


WRAP32, WRAP64 = 1 << 32, 1 << 64


@pytest.mark.parametrize("prev, cur, wrap, expected", [
    pytest.param(
        stats(reads=5, write_bytes=512, inflight=7),
        stats(reads=9, write_bytes=1536, inflight=2), WRAP64,
        stats(reads=4, write_bytes=1024, inflight=2),
        id="growth, and a level that is no counter",
    ),
    pytest.param(
        stats(discards=5, flushes=1), stats(discards=9, flushes=3), WRAP64,
        stats(discards=4, flushes=2), id="discards and flushes",
    ),
    pytest.param(
        stats(io_ms=WRAP32 - 400), stats(io_ms=600), WRAP64, stats(io_ms=1000),
        id="times wrap after 49.7 days on 64-bit kernels too",
    ),
    pytest.param(
        stats(io_ms=1000, writes=5), stats(io_ms=999, writes=6), WRAP64,
        stats(io_ms=0, writes=1), id="a time that steps back is no wrap",
    ),
    pytest.param(
        stats(writes=WRAP32 - 1, write_bytes=(WRAP32 - 8) * 512),
        stats(writes=1, write_bytes=8 * 512), WRAP32,
        stats(writes=2, write_bytes=16 * 512), id="counts wrap on a 32-bit kernel",
    ),
    pytest.param(stats(writes=WRAP32 - 1), stats(writes=1, inflight=3), WRAP64,
                 stats(inflight=3), id="but not on a 64-bit one"),
    pytest.param(stats(writes=1000), stats(writes=3), WRAP64, stats(), id="reborn, 64 bit"),
    pytest.param(stats(writes=1000), stats(writes=3), WRAP32, stats(), id="reborn, 32 bit"),
    pytest.param(stats(writes=1, write_bytes=5120), stats(writes=2), WRAP64, stats(),
                 id="only bytes show it"),
])  # fmt: skip
def test_delta(prev: DiskStats, cur: DiskStats, wrap: int, expected: DiskStats) -> None:
    assert delta(prev, cur, wrap) == expected


def test_delta_of_an_unchanged_line(tree: Tree) -> None:
    tree.write(f"8 0 sda {COMMON} {DISCARDS} {FLUSHES}")
    assert delta(tree.reader.read()["8:0"], tree.reader.read()["8:0"]) == stats(inflight=9)


def test_1024_disks_cost_little_more_than_their_numbers(tree: Tree) -> None:
    """Against what Python takes to read just these, in turn on the same machine."""
    tree.write(*(f"{8 + i // 256} {i % 256} sd{i} {i} {COMMON[4:]}" for i in range(1024)))
    files = KernelFiles(tree.path.parent.parent)
    busy, plain = [], []
    for _ in range(9):
        busy.append(_cpu_ms(DiskStatsReader(files).read))
        plain.append(_cpu_ms(lambda: [
            list(map(int, line.split()[3:])) for line in tree.path.read_text().splitlines()
        ]))
    tree.reader.read()
    idle = min(_cpu_ms(tree.reader.read) for _ in range(9))
    print(f"diskstats of 1024 disks: {min(busy):.1f} ms, {idle:.1f} ms when nothing changed,"
          f" the numbers alone {min(plain):.1f} ms")
    assert min(busy) < MOST * min(plain)
    assert idle < min(busy) / 2


def _cpu_ms(read: Callable[[], object]) -> float:
    start = time.thread_time()
    read()
    return (time.thread_time() - start) * 1e3
