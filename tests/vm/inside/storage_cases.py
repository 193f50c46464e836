# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe's counts on every kind of storage, filesystem and scheduler that the kernel has."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Callable, Dict, Iterator

import pytest

from tests.kernel.scratch import Scratch, run
from tests.kernel.test_probe import fio, prepared, read, sync_by, syncs
from tests.vm.inside.recorded import Record, record_probe
from tests.vm.inside.storage import FILESYSTEMS, STACKS, Stack, stack_of
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.map_readers import Reading
from writebackd.kernel.probe import BpfProbe, object_image
from writebackd.types.samples import ClassSample, IoClass

SCHEDULERS = ("none", "mq-deadline", "bfq", "kyber")
TIMES = 50
SMALL = ("--size=8M", "--direct=1")
DISKS = [(kind, fstype) for kind in STACKS for fstype in FILESYSTEMS]


@pytest.fixture(scope="module")
def probe(record_testsuite_property: Record) -> Iterator[BpfProbe]:
    opened = BpfProbe(object_image(), KernelFiles(), devices=64)
    try:
        info = opened.info()
        record_probe(record_testsuite_property, asdict(info))
        print(f"\n{info}")
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module", params=DISKS, ids=["-".join(each) for each in DISKS])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with stack_of(*request.param) as made:
        yield made


def on_disks(reading: Reading, stack: Stack, io_class: IoClass) -> ClassSample:
    """What the disks below a filesystem did, together."""
    rows = [reading.classes.get(leaf, {}).get(io_class, ClassSample()) for leaf in stack.leaves]
    return ClassSample(sum(row.count for row in rows), sum(row.bytes for row in rows))


def check_requests(stack: Stack, probe: BpfProbe, *options: str) -> None:
    """Reads and writes of fio arrive at the disks, each write as often as there are copies."""
    fio(stack.scratch, "--rw=write", "--bs=1M", *SMALL)
    run("sync", "-f", str(stack.scratch.mountpoint))
    read(probe)
    job = fio(stack.scratch, "--rw=randrw", "--overwrite=1", *SMALL, *options)
    reading = read(probe)
    for io_class, side, times in ((IoClass.SYNC_WRITE, "write", stack.copies),
                                  (IoClass.READ, "read", 1)):
        done, size = (times * job[side][name] for name in ("total_ios", "io_bytes"))
        seen = on_disks(reading, stack, io_class)
        print(f"\n{stack.scratch.device} {side}: fio {done} ops {size} bytes at the disks, "
              f"probe {seen.count} ops {seen.bytes} bytes")
        assert done > 500
        assert seen.count == pytest.approx(done, rel=0.01)
        assert seen.bytes == pytest.approx(size, rel=0.01)


def test_requests_equal_fio(stack: Stack, probe: BpfProbe) -> None:
    check_requests(stack, probe)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_requests_equal_fio_under_each_scheduler(probe: BpfProbe, scheduler: str) -> None:
    with stack_of("plain", "ext4") as stack:
        queue = Path(f"/sys/block/{stack.scratch.device}/queue")
        found = (queue / "scheduler").read_text().partition("[")[2].partition("]")[0]
        try:
            (queue / "scheduler").write_text(scheduler)
        except OSError as error:
            assert error.errno == errno.EINVAL
            pytest.skip(f"this kernel has no scheduler {scheduler}")
        try:
            # Several at once, so that there is something to schedule, and none that is merged.
            (queue / "nomerges").write_text("2")
            check_requests(stack, probe, "--ioengine=libaio", "--iodepth=8")
        finally:
            (queue / "nomerges").write_text("0")
            (queue / "scheduler").write_text(found)


def by_fio(*options: str) -> Callable[[Path], None]:
    """Fio syncs after each write but the last."""

    def sync(path: Path) -> None:
        run("fio", "--name=t", f"--filename={path}", f"--size={(TIMES + 1) * 4}k", "--bs=4k",
            "--rw=write", "--overwrite=1", *options)

    return sync


def by_aio(path: Path) -> None:
    """IO_CMD_FSYNC, one at a time."""
    libaio = ctypes.CDLL("libaio.so.1")
    context, events = ctypes.c_void_p(), ctypes.create_string_buffer(32)
    assert libaio.io_setup(1, ctypes.byref(context)) == 0
    fd = os.open(path, os.O_WRONLY)
    try:
        for i in range(TIMES):
            os.pwrite(fd, b"a" * 4096, i * 4096)
            # struct iocb: data, key, rw_flags, opcode, priority, file, buffer, size, offset, ...
            block = ctypes.create_string_buffer(struct.pack("QIIHhIQQqQII", *[0] * 3, 2, 0, fd,
                                                            *[0] * 6), 64)  # fmt: skip
            blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
            assert libaio.io_submit(context, ctypes.c_long(1), blocks) == 1
            assert libaio.io_getevents(context, ctypes.c_long(1), ctypes.c_long(1), events,
                                       None) == 1  # fmt: skip
            assert struct.unpack_from("q", events, 16) == (0,)
    finally:
        os.close(fd)
        libaio.io_destroy(context)


# What waits in a thread of the kernel, which system calls do not show.
IN_THE_KERNEL: Dict[str, Callable[[Path], None]] = {
    "io_uring fsync": by_fio("--ioengine=io_uring", "--fsync=1"),
    "io_uring fdatasync": by_fio("--ioengine=io_uring", "--fdatasync=1"),
    "aio fsync": by_aio,
}
BY_FIO_AND_CALL = by_fio("--ioengine=libaio", "--fsync=1")
BY_CALL = ("fsync", "fdatasync", "syncfs", "msync", "O_SYNC", "O_DSYNC")
KINDS = (*BY_CALL, "libaio and fsync", *IN_THE_KERNEL)


def may_be_unseen(probe: BpfProbe, scratch: Scratch) -> bool:
    """Whether the probe says that it does not see what waits in the kernel's threads."""
    fstype = run("findmnt", "--noheadings", "--output", "FSTYPE", str(scratch.mountpoint)).strip()
    misses = probe.info().misses
    return fstype not in probe.choice.sync and any("io_uring" in miss for miss in misses)


@pytest.mark.parametrize("kind", KINDS)
def test_syncs_are_exact(stack: Stack, probe: BpfProbe, kind: str) -> None:
    scratch = stack.scratch
    path = prepared(scratch)
    if kind in IN_THE_KERNEL and may_be_unseen(probe, scratch):
        pytest.skip(f"not visible here, as the probe says: {'; '.join(probe.info().misses)}")
    read(probe)
    if kind in BY_CALL:
        sync_by(kind, path, TIMES)
    else:
        IN_THE_KERNEL.get(kind, BY_FIO_AND_CALL)(path)
    seen = syncs(read(probe), scratch)
    print(f"\n{scratch.devno} {kind}: {seen.fsyncs} fsync {seen.fdatasyncs} fdatasync "
          f"{seen.syncfs_latency.total} syncfs")
    if kind == "syncfs":
        assert (seen.syncfs_latency.total, seen.count) == (TIMES, 0)
        return
    assert seen.count == seen.latency.total == TIMES
    # Where a write's own flavour of sync cannot be told it counts as O_DSYNC.
    if kind != "O_SYNC":
        data = kind in ("fdatasync", "O_DSYNC", "msync", "io_uring fdatasync")
        assert seen.fdatasyncs == (TIMES if data else 0)
