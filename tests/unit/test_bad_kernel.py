# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel files and map contents that make no sense: a tick is skipped at worst.

The daemon may hold, or go back to the limits as found; it may not end, hang, or
set a limit that the policy does not allow.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import random
import struct
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from fake_host import Rig, no_trace
from test_map_readers import FakeMap
from writebackd.host_monitor import Reprobe
from writebackd.kernel import bpf_layout, cgroup_io_max, libbpf
from writebackd.kernel import files as files_module
from writebackd.kernel.commit_waits import CommitterReader, CommitWaits
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.hooks import THROTTLED, Choice
from writebackd.kernel.map_readers import (
    BlockReader,
    CgroupSyncReader,
    Reading,
    SyncReader,
    SysctlWriteReader,
    TaskReader,
)
from writebackd.kernel.probe import BpfProbe
from writebackd.kernel.vm import host_info, read_state
from writebackd.types.storage import Device

FLOOR, CEILING = 1 << 20, 4 << 30  # of the default policy

HUGE = "9" * 400  # larger than any float
NUMBERS = (
    "0", "-1", "18446744073709551615", "18446744073709551616", HUGE, "9" * 5000, "1e3", "",
    "\u00b2", "0x10", "nan", "4096",
)  # fmt: skip
# Each daemon lives through all the rounds, so that what one leaves meets the next.
ROUNDS, SEED = 120, 20260101
# What is read at the start, at a scan of the disks and in every tick.
IN_EVERY_TICK = (
    "/proc/diskstats", "/proc/vmstat", "/proc/sys/vm/dirty_bytes", "/proc/sys/vm/dirty_ratio",
    "/proc/sys/vm/dirty_background_bytes", "/proc/sys/vm/dirty_background_ratio",
)  # fmt: skip
AT_A_SCAN = (
    "/proc/self/mountinfo", "/sys/block/sda/diskseq", "/sys/block/sda/size",
    "/sys/block/sda/queue/rotational", "/sys/block/sda/queue/write_cache",
    "/sys/class/scsi_host/host0/proc_name", "/sys/block/sda/device/wwid",
)  # fmt: skip


def spoilt(dice: random.Random, good: bytes) -> bytes:
    """A file's text cut short, with another number in it, with bits flipped, or nothing of it."""
    kind = dice.randrange(6)
    if kind == 0:
        return good[: dice.randrange(len(good) + 1)]
    if kind == 1:
        words = good.split(b" ")
        words[dice.randrange(len(words))] = dice.choice(NUMBERS).encode()
        return b" ".join(words)
    if kind == 2 and good:
        data = bytearray(good)
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        return bytes(data)
    if kind == 3:
        return good + good
    if kind == 4:
        return b"\n".join(dice.randbytes(dice.randrange(30)) for _ in range(dice.randrange(9)))
    return dice.randbytes(dice.randrange(120))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    yield rig
    rig.close()


def good_text(rig: Rig, name: str) -> bytes:
    try:
        return rig.host.read(name).encode("utf-8", "surrogateescape")
    except OSError:
        return b"naa.5000c500a1b2c3d4"


def limits_written(rig: Rig) -> List[int]:
    return [int(value) for lever, value in rig.host.writes if lever == "dirty_bytes"]


def test_no_content_of_a_kernel_file_ends_the_daemon(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    dice, host = random.Random(SEED), rig.host
    for number in range(ROUNDS):
        rig.tick()
        for name in dice.sample(IN_EVERY_TICK + AT_A_SCAN, dice.randint(1, 4)):
            host.raw[name] = spoilt(dice, good_text(rig, name))
        seen = f"seed {SEED}, round {number}: {host.raw}"
        for _ in range(3):
            # As a tick that finds a reason to scan: it holds.
            with contextlib.suppress(OSError, ValueError):
                rig.daemon._monitor.topology.scan()
            host.flow(dice.choice([0, 1 << 20, 1 << 33]))
            try:
                rig.tick()
            except Exception as error:
                pytest.fail(f"{error!r}, {seen}")
        assert all(FLOOR <= limit <= CEILING for limit in limits_written(rig)), seen
        host.writes.clear()
        host.raw.clear()
        rig.daemon._monitor.topology.scan()
        rig.tick(2)
        assert rig.daemon._failures == 0, f"it goes on when the files make sense again; {seen}"
    assert no_trace(caplog.records)


@pytest.mark.parametrize("name", IN_EVERY_TICK + AT_A_SCAN)
def test_cut_short_at_every_byte(rig: Rig, name: str) -> None:
    good = good_text(rig, name)
    rig.tick(2)
    for length in range(len(good)):
        rig.host.raw[name] = good[:length]
        rig.tick()
    rig.host.raw.clear()
    rig.tick(2)
    assert rig.daemon._failures == 0


def test_a_file_without_an_end_costs_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "MOST_BYTES", 1 << 20)
    with open(tmp_path / "endless", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError) as caught:
        KernelFiles(tmp_path).read("/endless")
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("name, text", [
    ("/proc/meminfo", b""),
    ("/proc/meminfo", b"MemTotal:"),
    ("/proc/meminfo", b"MemTotal: -5 kB"),
    ("/proc/meminfo", b"MemTotal: " + b"9" * 400 + b" kB"),
    ("/proc/meminfo", b"\xff\0"),
    ("/proc/vmstat", b""),
    ("/proc/vmstat", b"nr_dirty 1\nnr_writeback 2"),
    ("/proc/vmstat", b"nr_dirty -1\nnr_writeback 0\nnr_dirty_threshold 9\n"
                     b"nr_dirty_background_threshold 1"),
    ("/proc/sys/vm/dirty_bytes", b"-1"),
    ("/proc/sys/vm/dirty_ratio", HUGE.encode()),
], ids=lambda value: repr(value)[:40])  # fmt: skip
def test_what_is_needed_is_an_error_that_names_its_file(rig: Rig, name: str, text: bytes) -> None:
    rig.host.raw[name] = text
    with pytest.raises(ValueError, match=name.rpartition("/")[2]):
        host_info(rig.host)
        read_state(rig.host)


@pytest.mark.parametrize("text", ["0-99999999", "5-1", "0-x", "", "9" * 20, "0-" + "9" * 20])
def test_absurd_cpus_are_not_believed(rig: Rig, text: str) -> None:
    rig.host.texts["/sys/devices/system/cpu/online"] = text
    assert 1 <= host_info(rig.host).cpus_online <= 8192


GOOD = "8:0 rbps=max wbps=9 riops=max wiops=max"


@pytest.mark.parametrize("text", [
    "8:0", "8:0 wbps", "= = =", "\udcff", "8:0 a=max", GOOD[:-4], f"{GOOD} idle",
    f"{GOOD}\n8:16 rbps",
])  # fmt: skip
def test_an_io_max_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    for name in ("sys/fs/cgroup/cgroup.controllers", "sys/dev/block/8:0"):
        (tmp_path / name).mkdir(parents=True)
    files, file = KernelFiles(tmp_path), tmp_path / "sys/fs/cgroup/x/io.max"
    file.parent.mkdir()
    file.write_text(f"{GOOD}\n\n")
    assert cgroup_io_max.read(files, "/x", "8:0") == "9"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(OSError, match="expected limits"):
        cgroup_io_max.read(files, "/x", "8:0")


# ---- the probe's maps -------------------------------------------------------

SIZES = bpf_layout.Sizes(slots=8, shards=1, per_cpu=True)


class Maps:
    """Readers as the probe has them, on memory that tests fill."""

    def __init__(self) -> None:
        self.slots = bytearray(SIZES.slots * bpf_layout.IO_SLOT_SIZE)
        self.queues = bytearray(SIZES.slots * bpf_layout.QUEUE_SLOT_SIZE)
        self.tables: Dict[str, FakeMap] = {
            name: FakeMap(most=4) for name in KEY_SIZES
        }
        tables: Any = self.tables
        memory: Any = self
        self.probe = BpfProbe.__new__(BpfProbe)
        probe: Any = self.probe
        probe._sample_cost = lambda: None
        probe._issue_attached = True
        probe._blocks = BlockReader(memory.slots, memory.queues, SIZES)
        probe._syncs = SyncReader(tables["syncs"], tables["inflight"])
        probe.choice = Choice(others=[THROTTLED[0]])
        probe._committers, probe._waits = CommitterReader(tables["committers"]), CommitWaits()
        probe._losses = mmap.mmap(-1, bpf_layout.STATE.size)
        probe._lost = bpf_layout.read_losses(probe._losses)
        probe._cgroups = CgroupSyncReader(tables["cgroups"])
        probe._tasks = TaskReader(tables["tasks"])
        probe._sysctl_writes = SysctlWriteReader(tables["writes"])


def test_no_request_is_counted_twice_where_the_probe_is_opened_again() -> None:
    opened: List[Maps] = []
    completed = 0

    def complete() -> None:
        """A request, which each probe that is open by now counts for itself."""
        nonlocal completed
        completed += 1
        for maps in opened:
            head = list(bpf_layout.IO_SLOT_HEAD.unpack_from(maps.slots))
            head[3] += 1
            bpf_layout.IO_SLOT_HEAD.pack_into(maps.slots, 0, *head)

    def open_probe() -> BpfProbe:
        opened.append(Maps())
        probe: Any = opened[-1].probe
        probe.covers = lambda types: len(opened) > 1
        probe.go_on_from = lambda earlier: None
        probe.close = lambda: None
        complete()  # before a tick sees that it is open
        return opened[-1].probe

    def seen(probe: Any) -> int:
        classes = probe.read().classes.values()
        return sum(each.count for found in classes for each in found.values())

    devices = (Device("sda", "8:0", "8:0"),)
    probe: Any = open_probe()
    reprobe, counted = Reprobe(open_probe, ()), 0
    for _ in range(6):
        complete()
        probe = reprobe.better(probe, devices)
        reprobe.join(10.0)
        counted += seen(probe)
    assert probe is opened[1].probe and counted == completed


def test_a_filesystem_that_is_mounted_again_is_hooked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An opening in between, for a disk, found it gone, and did without its hooks."""
    devices: Tuple[Device, ...] = (
        Device("sda", "8:0", "8:0", filesystems=(("8:1", "ext4", "/"),)),
    )
    mounted = devices

    def on(kind: str) -> Tuple[Device, ...]:
        return (*devices, Device("sdb", "8:16", "8:16", filesystems=(("8:17", kind, "/b"),)))

    def open_probe() -> Any:
        probe: Any = BpfProbe.__new__(BpfProbe)
        types = {kind for device in mounted for _, kind, _ in device.filesystems}
        probe.covers = types.issuperset
        probe.go_on_from = lambda earlier: None
        probe.close = probe.read = lambda: None
        return probe

    probe: Any = open_probe()
    reprobe = Reprobe(open_probe, devices)
    for mounted in (on("xfs"), devices, on("btrfs"), on("xfs")):
        for _ in range(3):
            probe = reprobe.better(probe, mounted)
            reprobe.join(10.0)
    assert probe.covers(["ext4", "xfs"])
    # The host has no thread left to close the old one with.
    with monkeypatch.context() as patch, caplog.at_level("ERROR"):
        mounted = on("f2fs")
        reprobe.better(probe, mounted)
        reprobe.join(10.0)
        reprobe.better(probe, mounted)
        patch.setattr("threading.Thread.start", _no_thread)
        assert reprobe.better(probe, mounted) is not probe
    assert "the old probe stays attached: no more threads" in caplog.text


def _no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("no more threads")


KEY_SIZES = {"syncs": 4, "inflight": 4, "cgroups": bpf_layout.CGROUP_KEY.size, "tasks": 4,
             "committers": 4, "writes": 4}  # fmt: skip
VALUE_SIZES = {
    "syncs": bpf_layout.SYNC_STATS_SIZE,
    "inflight": bpf_layout.SYNC_START.size,
    "cgroups": bpf_layout.CGROUP_SYNCS.size,
    "tasks": bpf_layout.DIRTIER.size,
    "committers": bpf_layout.COMMITTER.size,
    "writes": bpf_layout.SYSCTL_WRITE.size,
}
# Runs of one byte give the absurd counts that random bytes seldom do.
RUNS = (b"\xff", b"\0", b"\x80\0", b"\0\0\0\x7f", b"\x01")


def fill(dice: random.Random, size: int) -> bytes:
    if dice.random() < 0.4:
        return dice.randbytes(size)
    pattern = dice.choice(RUNS)
    return (pattern * (size // len(pattern) + 1))[:size]


def fill_table(dice: random.Random, name: str, table: FakeMap) -> None:
    known = (8 << 20 | 1).to_bytes(4, "little")  # the filesystem of the fake host
    table.entries.clear()
    for _ in range(dice.randrange(6)):
        short = dice.choice([known, b"\xff" * 4])
        key = short if KEY_SIZES[name] == 4 else fill(dice, KEY_SIZES[name])
        table.entries[key] = fill(dice, VALUE_SIZES[name])


def test_no_content_of_a_map_ends_the_daemon(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    dice, maps = random.Random(SEED), Maps()
    rig.tick(2)
    for number in range(ROUNDS):
        for memory in (maps.slots, maps.queues):
            memory[:] = fill(dice, len(memory))
        for slot in range(SIZES.slots if dice.random() < 0.5 else 0):
            # The fake host's disk, so that the garbage reaches the law.
            struct.pack_into("=I", maps.slots, slot * bpf_layout.IO_SLOT_SIZE + 8, 8 << 20)
        for name, table in maps.tables.items():
            fill_table(dice, name, table)
        reading = maps.probe.read()
        assert isinstance(reading, Reading)
        for classes in reading.classes.values():
            assert all(each.count >= 0 and each.bytes >= 0 for each in classes.values())
        assert all(each.count >= 0 for each in reading.syncs.values())
        assert len(reading.writers) <= bpf_layout.SYSCTL_WRITES
        rig.probe.next = reading
        try:
            rig.tick()
            rig.status()
        except Exception as error:
            pytest.fail(f"seed {SEED}, round {number}: {error!r}")
        assert all(FLOOR <= limit <= CEILING for limit in limits_written(rig))
        rig.host.writes.clear()
        assert rig.daemon._failures == 0
    assert no_trace(caplog.records)


@pytest.mark.parametrize("name", sorted(VALUE_SIZES))
def test_records_of_a_wrong_length_are_a_failed_read(name: str) -> None:
    maps = Maps()
    maps.tables[name].entries[b"\1" * KEY_SIZES[name]] = b"\1" * (VALUE_SIZES[name] - 1)
    with pytest.raises(libbpf.BpfError, match="contents"):
        maps.probe.read()


def test_an_error_that_the_c_library_does_not_know_is_named() -> None:
    assert "not supported by this kernel (ENOTSUPP)" in str(libbpf.BpfError("attaching", 524))
