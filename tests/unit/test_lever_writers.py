# SPDX-License-Identifier: GPL-2.0-or-later
"""Who wrote a lever: from the probe's queue to a name with cgroup and command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional

import pytest

from test_map_readers import FakeMap
from writebackd import formats
from writebackd.kernel import bpf_layout, cgroup_index
from writebackd.kernel.cgroup_index import CgroupIndex
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_writers import command_line, writer_of
from writebackd.kernel.map_readers import SysctlWriteReader
from writebackd.types.levers import ForeignWrite

OWN = (1000, 1001)  # the daemon, and its watcher


def write(lever: str, value: str, pid: int) -> ForeignWrite:
    return ForeignWrite(lever, value, pid, f"p{pid}", 7, cmdline=f"p{pid} -x")


# ---- which of those that were seen it was -----------------------------------


@pytest.mark.parametrize(
    "value, seen",
    [
        ("40", "40"), ("40", " 40 \n"), ("40", "0x28"), ("40", "050"), ("40", "+40"),
        ("0", "0"), ("0", "00"), ("103809024", "0x6300000"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    "raw, text",
    [
        (b"sysctl\0-w\0vm.dirty_ratio=40\0", "sysctl -w vm.dirty_ratio=40"),
        (b"", None),
        (b"a" * 128, "a" * 128 + "..."),
        (b"x\ny\0-c\0/\x1b[2J\0echo 7\0", "x?y -c /?[2J ***"),
        (b"caf\xc3\xa9\0/\xff\0", "caf\u00e9 /\ufffd"),
    ],
)
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
