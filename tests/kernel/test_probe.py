# SPDX-License-Identifier: GPL-2.0-or-later
"""The BPF probe against what fio and the system calls really did."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import re
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import pytest

from tests.kernel.fault_rig import VM, limits_kept
from tests.kernel.scratch import Scratch, run, scratch_disk
from writebackd.kernel import bpf_layout, hooks, map_readers
from writebackd.kernel.bcc_object import BccObject
from writebackd.kernel.cgroup_io_max import cgroup2_mount
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.libbpf import BpfError, Object, library
from writebackd.kernel.map_readers import Reading
from writebackd.kernel.probe import BpfProbe, ProcfsProbe, object_image, object_path, open_probe
from writebackd.types.histogram import BUCKET_EDGES_S
from writebackd.types.levers import ForeignWrite
from writebackd.types.samples import ClassSample, IoClass, SyncSample

FILESYSTEMS = ("ext4", "xfs")
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module", params=FILESYSTEMS)
def disk(request: pytest.FixtureRequest) -> Iterator[Scratch]:
    with scratch_disk(request.param) as scratch:
        yield scratch


@pytest.fixture(scope="module")
def probe(disk: Scratch) -> Iterator[BpfProbe]:
    # After the mount, so that a filesystem in a module is there to be hooked.
    # Once for all: finding the hooks takes 0.3 s here and 10 s in emulation.
    opened = BpfProbe(object_image(), KernelFiles())
    try:
        yield opened
    finally:
        opened.close()


def fio(disk: Scratch, *options: str) -> Dict[str, Dict[str, int]]:
    assert disk.mountpoint is not None
    out = run(
        "fio", "--name=t", f"--filename={disk.mountpoint}/fio", "--size=32M", "--bs=4k",
        "--ioengine=psync", "--output-format=json", *options,
    )
    job: Dict[str, Dict[str, int]] = json.loads(out)["jobs"][0]
    return job


def prepared(disk: Scratch) -> Path:
    """A file whose blocks are allocated and on the disk."""
    assert disk.mountpoint is not None
    path = disk.mountpoint / "data"
    path.write_bytes(b"\1" * (8 << 20))
    run("sync", "-f", str(path))
    return path


def write_and_sync(path: Path, times: int, flags: int = 0,
                   sync: Callable[[int], object] = os.fsync) -> float:
    """A block and a sync, so many times; seconds that all of it took."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | flags)
    begun = time.monotonic()
    for i in range(times):
        os.pwrite(fd, b"x" * 4096, (i % 256) * 4096)
        sync(fd)
    spent = time.monotonic() - begun
    os.close(fd)
    return spent


def sync_by(kind: str, path: Path, times: int) -> None:
    """Blocks of a file, each written and synced in the way that `kind` names."""
    if kind == "msync":
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 1 << 20) as memory:
            for i in range(times):
                memory[(i % 256) * 4096] = i % 251
                memory.flush((i % 256) * 4096, 4096)
        return
    flags = {"O_DSYNC": os.O_DSYNC, "O_SYNC": os.O_SYNC}.get(kind, 0)
    syncs: Dict[str, Callable[[int], object]] = {
        "fsync": os.fsync, "fdatasync": os.fdatasync, "syncfs": LIBC.syncfs,
    }  # fmt: skip
    write_and_sync(path, times, flags, syncs.get(kind, lambda fd: None))


def read(probe: BpfProbe) -> Reading:
    reading = probe.read()
    assert reading is not None
    return reading


def classes(reading: Reading, disk: Scratch) -> Dict[IoClass, ClassSample]:
    return dict(reading.classes.get(disk.devno, {}))


def syncs(reading: Reading, disk: Scratch) -> SyncSample:
    return reading.syncs.get(disk.devno, SyncSample())


def test_the_best_hooks_that_this_kernel_takes_are_in_force(probe: BpfProbe) -> None:
    info = probe.info()
    print(f"\nrequests: {info.request_hook}\nfsync: {info.fsync_hook}\nunseen: {info.misses}")
    refused = [name for name in probe.choice.refused if name.startswith("fentry:")]
    kinds = {hook.kind for hook in probe.choice.sync.values()}
    if os.environ.get("WRITEBACKD_EXPECT_FENTRY"):
        assert not refused
        assert kinds == {"fentry"} and not probe.choice.syscalls
    elif refused:
        assert "fentry" not in kinds
        # Whatever the kernel refuses, an fsync of either filesystem is seen.
        assert "ext4" in probe.choice.sync
        if os.environ.get("WRITEBACKD_EXPECT_KPROBE"):
            assert kinds == {"tp_btf", "kprobe"} and not probe.choice.syscalls
        else:
            assert "xfs" in probe.choice.sync or probe.choice.syscalls
    assert "block_rq_complete" in (info.request_hook or "")
    # Better ones that it does without are named.
    assert ("fentry " in probe.choice.passed_over_summary()) is (kinds != {"fentry"})


def watched_by(tier: str) -> BpfProbe:
    """A probe with one kind of hook alone. Where the kernel refuses it: xfail, with its reason.

    That fails in a guest whose kernel should take it (tests/vm/kernels.py), and for system calls,
    which can be watched anywhere.
    """
    try:
        return BpfProbe(object_image(), KernelFiles(), fsync_hook=tier)
    except OSError as error:
        assert f"no hook on fsync: {tier} " in str(error)
        expected = tier == hooks.SYSCALL or f"WRITEBACKD_EXPECT_{tier.upper()}" in os.environ
        assert not expected, error
        pytest.xfail(str(error))


def test_system_calls_are_watched_for_filesystems_that_are_mounted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a kernel that refuses all hooks on XFS; with the first XFS the probe is opened again."""
    try_hook = hooks.Chooser.try_hook

    def refuse_xfs(self: hooks.Chooser, hook: hooks.Hook, *works: Any) -> Optional[int]:
        return errno.EPERM if hook in hooks.FSYNC["xfs"] else try_hook(self, hook, *works)

    monkeypatch.setattr(hooks.Chooser, "try_hook", refuse_xfs)
    with contextlib.closing(BpfProbe(object_image(), KernelFiles(), mounted=["ext4"])) as probe:
        assert "ext4" in probe.choice.sync and not probe.choice.syscalls
        assert probe.covers(["ext4"]) and not probe.covers(["xfs"])
    both = ["ext4", "xfs"]
    with contextlib.closing(BpfProbe(object_image(), KernelFiles(), mounted=both)) as probe:
        assert "ext4" in probe.choice.sync and probe.choice.syscalls


@pytest.mark.parametrize("disk", FILESYSTEMS[:1], indirect=True)
@pytest.mark.parametrize("tier", hooks.TIERS)
def test_fsync_is_watched_by_the_tier_that_is_asked_for(disk: Scratch, tier: str) -> None:
    probe = watched_by(tier)
    try:
        used = {hook.kind for hook in probe.choice.sync.values()}
        assert used == ({tier} if tier != hooks.SYSCALL else set())
        assert bool(probe.choice.syscalls) == (tier == hooks.SYSCALL)
        # Their filter shows no write by its flags; ext4's own hooks do.
        unseen = [miss for miss in probe.choice.misses if miss.startswith("O_DSYNC and msync on ")]
        assert any("ext4" in miss for miss in unseen) == (tier == hooks.SYSCALL)
        path = prepared(disk)
        read(probe)
        write_and_sync(path, 20)
        write_and_sync(path, 30, sync=os.fdatasync)
        seen = syncs(read(probe), disk)
        assert (seen.fsyncs, seen.fdatasyncs, seen.latency.total) == (20, 30, 50)
    finally:
        probe.close()


@pytest.mark.parametrize("rw", ["randwrite", "randread", "randrw"])
def test_operations_and_bytes_equal_fio(disk: Scratch, probe: BpfProbe, rw: str) -> None:
    fio(disk, "--rw=write", "--direct=1")  # lay the file out
    run("sync", "-f", str(disk.mountpoint))
    read(probe)
    job = fio(disk, f"--rw={rw}", "--direct=1", "--overwrite=1")
    seen = classes(read(probe), disk)
    for io_class, side in ((IoClass.SYNC_WRITE, "write"), (IoClass.READ, "read")):
        done = job[side]["total_ios"]
        sample = seen.get(io_class, ClassSample())
        print(f"\n{disk.devno} {rw} {side}: fio {done} ops {job[side]['io_bytes']} bytes, "
              f"probe {sample.count} ops {sample.bytes} bytes")
        if not done:
            continue
        assert sample.count == pytest.approx(done, rel=0.01)
        assert sample.bytes == pytest.approx(job[side]["io_bytes"], rel=0.01)


def test_every_completion_is_in_a_bucket(disk: Scratch, probe: BpfProbe) -> None:
    fio(disk, "--rw=write", "--end_fsync=1")
    seen = classes(read(probe), disk)
    written = sum(s.bytes for c, s in seen.items() if c is not IoClass.READ)
    assert written >= 32 << 20
    for sample in seen.values():
        assert sample.latency.total == sample.count


@pytest.mark.parametrize("disk", FILESYSTEMS[:1], indirect=True)
def test_queue_latency_when_asked_for(disk: Scratch) -> None:
    probe = BpfProbe(object_image(), KernelFiles(), queue_latency=True)
    try:
        read(probe)
        fio(disk, "--rw=randwrite", "--direct=1")
        sample = classes(read(probe), disk)[IoClass.SYNC_WRITE]
        assert sample.queue is not None
        assert sample.queue.total == sample.count > 1000
    finally:
        probe.close()


def test_a_queue_without_start_times_is_stamped_by_us(disk: Scratch, probe: BpfProbe) -> None:
    # Start times are kept for wbt, statistics for iostats; without both neither.
    queue = Path(f"/sys/block/{disk.device}/queue")
    knobs = [queue / name for name in ("iostats", "wbt_lat_usec") if (queue / name).exists()]
    found = [knob.read_text().strip() for knob in knobs]
    for knob in knobs:
        knob.write_text("0")
    try:
        fio(disk, "--rw=randwrite", "--direct=1")
        first = classes(read(probe), disk)[IoClass.SYNC_WRITE]
        fio(disk, "--rw=randwrite", "--direct=1")
        second = classes(read(probe), disk)[IoClass.SYNC_WRITE]
    finally:
        for knob, value in zip(knobs, found):
            knob.write_text(value)
    print(f"\n{disk.devno}: {first.latency.total} of {first.count} timed, then "
          f"{second.latency.total} of {second.count}; {probe.info().request_hook}")
    assert first.count > 1000 and second.count > 1000
    assert second.latency.total == second.count
    if first.latency.total < first.count:
        assert "block_rq_issue" in (probe.info().request_hook or "")


KINDS: Tuple[Tuple[str, int, int], ...] = (
    ("fsync", 200, 0), ("fdatasync", 0, 200), ("O_DSYNC", 0, 200), ("O_SYNC", 200, 0),
    ("msync", 0, 200),
)


@pytest.mark.parametrize("kind,fsyncs,fdatasyncs", KINDS, ids=[k[0] for k in KINDS])
def test_sync_counts_are_exact(
    disk: Scratch, probe: BpfProbe, kind: str, fsyncs: int, fdatasyncs: int
) -> None:
    path = prepared(disk)
    read(probe)
    sync_by(kind, path, 200)
    seen = syncs(read(probe), disk)
    print(f"\n{disk.devno} {kind}: {seen.fsyncs} fsync {seen.fdatasyncs} fdatasync")
    assert seen.count == 200
    assert seen.latency.total == 200
    # Where a write's own flavour of sync cannot be told it counts as O_DSYNC.
    if kind != "O_SYNC":
        assert (seen.fsyncs, seen.fdatasyncs) == (fsyncs, fdatasyncs)


def test_syncfs_has_a_histogram_of_its_own(disk: Scratch, probe: BpfProbe) -> None:
    fd = os.open(prepared(disk), os.O_RDWR)
    read(probe)
    for _ in range(7):
        os.pwrite(fd, b"y" * 4096, 0)
        assert LIBC.syncfs(fd) == 0
    os.close(fd)
    seen = syncs(read(probe), disk)
    assert seen.syncfs_latency.total == 7
    assert seen.latency.total == 0


def test_syncfs_is_seen_where_its_function_is_inlined(
    disk: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "SYNCFS", ())
    probe = BpfProbe(object_image(), KernelFiles())
    try:
        if os.environ.get("WRITEBACKD_EXPECT_KPROBE"):
            assert probe.choice.sync["syncfs(2)"].kind == "kprobe"
        elif not probe.choice.syscalls and "syncfs(2)" not in probe.choice.sync:
            assert "syncfs" in probe.choice.misses
            return
        fd = os.open(prepared(disk), os.O_RDWR)
        read(probe)
        for _ in range(3):
            assert LIBC.syncfs(fd) == 0
        os.close(fd)
        assert syncs(read(probe), disk).syncfs_latency.total == 3
    finally:
        probe.close()


def test_a_freeze_is_one_where_functions_can_be_hooked(disk: Scratch, probe: BpfProbe) -> None:
    """Of a snapshot, say; it is no syscall that could be watched in its place."""
    fd = os.open(prepared(disk), os.O_RDWR)
    os.pwrite(fd, b"z" * 4096, 0)
    read(probe)
    run("fsfreeze", "--freeze", str(disk.mountpoint))
    run("fsfreeze", "--unfreeze", str(disk.mountpoint))
    os.close(fd)
    assert syncs(read(probe), disk).syncfs_latency.total == ("syncfs" in probe.choice.sync)


def test_fsync_of_the_block_device_itself(disk: Scratch, probe: BpfProbe) -> None:
    fd = os.open(f"/dev/{disk.device}", os.O_RDONLY)
    read(probe)
    for _ in range(5):
        os.fsync(fd)
    os.close(fd)
    assert syncs(read(probe), disk).fsyncs == 5


def test_latencies_are_those_that_the_caller_waits(disk: Scratch, probe: BpfProbe) -> None:
    path = prepared(disk)
    read(probe)
    spent = write_and_sync(path, 300)
    histogram = syncs(read(probe), disk).latency
    # Sum from the buckets' lower edges: below the true time, by an eighth at most.
    low = sum(n * BUCKET_EDGES_S[i] for i, n in histogram.buckets)
    assert 0.5 * spent < low < spent


def test_syncs_and_dirtied_bytes_are_told_by_cgroup(disk: Scratch, probe: BpfProbe) -> None:
    mount = cgroup2_mount(KernelFiles())
    if mount is None:
        pytest.skip("no cgroup v2 is mounted on this host")
    group = Path(mount) / f"writebackd-test-{os.getpid()}"
    group.mkdir()
    try:
        path = prepared(disk)
        read(probe)
        code = (
            "import os, sys\n"
            "open(sys.argv[2], 'w').write(str(os.getpid()))\n"
            "fd = os.open(sys.argv[1], os.O_RDWR)\n"
            "for n in range(5):\n"
            "    os.pwrite(fd, bytes(1 << 20), n << 20)\n"
            "    os.fdatasync(fd) if n % 2 else os.fsync(fd)\n"
        )
        subprocess.run([sys.executable, "-c", code, str(path), f"{group}/cgroup.procs"], check=True)
        found = read(probe).cgroups.get((group.stat().st_ino, disk.devno))
    finally:
        group.rmdir()
    assert found is not None
    assert found.syncs == 5
    # Up to a grain behind; a large folio is dirtied as a whole.
    assert (4 << 20) <= found.dirtied_bytes <= (8 << 20)


def test_who_dirties_is_named_with_its_bytes(disk: Scratch, probe: BpfProbe) -> None:
    assert disk.mountpoint is not None
    read(probe)
    code = f"import time; f=open('{disk.mountpoint}/dirt','wb'); f.write(b'd'*(64<<20)); f.flush()"
    child = subprocess.Popen([sys.executable, "-c", code])
    child.wait()
    mine = [task for task in read(probe).tasks if task.pid == child.pid]
    assert mine, "the writer is not among the talkers"
    assert mine[0].device == disk.devno
    assert mine[0].comm.startswith("python")
    # Looked at once in 256 KiB, and before the last folio (up to 2 MiB) counts.
    assert (61 << 20) <= mine[0].dirtied_bytes <= (64 << 20)


def test_who_sleeps_for_dirty_pages_is_named(disk: Scratch, probe: BpfProbe) -> None:
    assert disk.mountpoint is not None
    # On an emulated processor it may take a while until it has written more than the disk takes.
    path = Path(disk.mountpoint) / "slow"
    code = f"f = open('{path}', 'wb')\nwhile True: f.seek(0); f.write(bytes(1 << 24))"
    asleep_s = 0.0
    with limits_kept():
        (VM / "dirty_bytes").write_text(str(4 << 20))
        read(probe)
        begun = time.monotonic()
        child = subprocess.Popen([sys.executable, "-c", code])
        try:
            while asleep_s == 0.0 and time.monotonic() < begun + 60.0:
                time.sleep(0.2)
                asleep_s = sum(t.throttled_s for t in read(probe).tasks if t.pid == child.pid)
            spent = time.monotonic() - begun
        finally:
            child.kill()
            child.wait()
    print(f"\n{disk.devno}: {asleep_s:.3f} s of {spent:.3f} s asleep")
    assert 0.0 < asleep_s < spent + 0.2  # a pause of so much counts as it begins


def test_who_writes_a_dirty_sysctl_is_named(disk: Scratch, probe: BpfProbe) -> None:
    path = Path("/proc/sys/vm/dirty_expire_centisecs")
    value = path.read_text().strip()
    read(probe)
    shell = subprocess.Popen(["/bin/sh", "-c", f"echo {value} > {path}"])
    shell.wait()
    writers = read(probe).writers
    mount = cgroup2_mount(KernelFiles())
    assert mount is not None
    # The process is gone by now: its command line and its cgroup are the probe's.
    assert writers == (
        ForeignWrite(
            "dirty_expire_centisecs", value, shell.pid, "sh", own_cgroup_id(mount),
            cmdline="/bin/sh -c ***",
        ),
    )  # fmt: skip
    assert read(probe).writers == ()


def test_of_a_storm_the_last_sixteen_writes_are_left(disk: Scratch, probe: BpfProbe) -> None:
    path = Path("/proc/sys/vm/dirty_expire_centisecs")
    value = int(path.read_text())
    values = [str(value + n) for n in range(20)]
    read(probe)
    try:
        run("sh", "-c", f"for n in {' '.join(values)}; do echo $n > {path}; done")
    finally:
        path.write_text(str(value))
    # The last is ours, which put the value back.
    assert [write.value for write in read(probe).writers] == [*values[-15:], str(value)]
    assert read(probe).writers == ()


def own_cgroup_id(mount: str) -> int:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    (path,) = [line[3:] for line in lines if line.startswith("0::")]
    return os.stat(mount + path).st_ino


def test_a_long_command_line_is_cut_and_other_sysctls_are_nobody_s_business(
    disk: Scratch, probe: BpfProbe
) -> None:
    path = Path("/proc/sys/vm/dirty_expire_centisecs")
    other = Path("/proc/sys/vm/swappiness")
    script = f"cat {other} > {other}; cat {path} > {path}; : {'x' * 4000}"
    read(probe)
    subprocess.run(["/bin/sh", "-c", script], check=True)
    (write,) = read(probe).writers
    assert write.lever == path.name and write.comm == "cat" and write.cmdline == f"cat {path}"
    script = f"echo {path.read_text().strip()} > {path}; : {'x' * 4000}"
    subprocess.run(["/bin/sh", "-c", script], check=True)
    (write,) = read(probe).writers
    assert write.cmdline == "/bin/sh -c ***..."


def test_another_disk_under_the_same_name_starts_at_zero() -> None:
    probe = BpfProbe(object_image(), KernelFiles())
    try:
        names = set()
        for _ in range(2):
            with scratch_disk("ext4", size_mb=64) as disk:
                names.add(disk.device)
                read(probe)
                path = prepared(disk)
                read(probe)
                write_and_sync(path, 10)
                reading = read(probe)
                writes = classes(reading, disk)[IoClass.SYNC_WRITE].count
                assert 10 <= writes < 100
                assert syncs(reading, disk).count == 10
        if len(names) != 1:
            pytest.fail(f"the loop device got another name: {names}; nothing was shown")
    finally:
        probe.close()


# An emulated machine takes 10 s to open a probe, and its kernel makes maps of the same sizes.
@pytest.mark.parametrize("cpus", [512] if os.environ.get("WRITEBACKD_VM") else [2, 64, 256, 512])
@pytest.mark.parametrize("queue_latency", [False, True])
def test_maps_stay_below_16_mb_with_1024_devices(queue_latency: bool, cpus: int) -> None:
    probe = BpfProbe(
        object_image(), KernelFiles(), queue_latency=queue_latency, cpus=cpus, devices=1024
    )
    try:
        size = probe.info().map_bytes
        print(f"\nmaps, {cpus} CPUs, 1024 devices, queue latency {queue_latency}: "
              f"{size / (1 << 20):.1f} MB")
        assert size <= 16 << 20
        assert probe.sizes.slots >= 1024
    finally:
        probe.close()


def test_a_table_loses_no_live_entry_before_it_is_full() -> None:
    """No CPU keeps free places that others lack: an LRU table's would, 128 each."""
    probe = BpfProbe(object_image(), KernelFiles())
    cpus = os.sched_getaffinity(0)
    try:
        for name in ("dirtiers", "cgroup_syncs"):
            table = probe._object.map(name)
            assert table.max_entries >= 256 * len(cpus)
            # What the host itself does meanwhile has room.
            wanted = [bytes([1]) + n.to_bytes(table.key_size - 1, "little")
                      for n in range(table.max_entries - 64)]
            value = bytes(table.value_size)
            for number, key in enumerate(wanted):
                os.sched_setaffinity(
                    0, {sorted(cpus, reverse=True)[min(number, len(cpus) - 1)]})
                assert not library().bpf_map_update_elem(
                    ctypes.c_int(table.fd), key, value, ctypes.c_uint64(0)
                )
            os.sched_setaffinity(0, cpus)
            held = {key for key, _ in table.batch_reader(256).read()}
            lost = len(set(wanted) - held)
            assert not lost, f"{name}: {lost} of {len(wanted)} thrown out"
    finally:
        os.sched_setaffinity(0, cpus)
        probe.close()


def test_a_full_table_is_counted_and_has_room_a_tick_later(
    disk: Scratch, probe: BpfProbe
) -> None:
    assert disk.mountpoint is not None
    write = "import os; f = open('full', 'wb', 0); [f.write(b'x' * 4096) for _ in range(4096)]"
    write = f"import os; os.chdir({str(disk.mountpoint)!r}); {write}"
    read(probe)
    table = probe._object.map("dirtiers")
    for number in range(table.max_entries):
        key = (1 << 24 | number).to_bytes(4, sys.byteorder)  # beyond any thread's id
        library().bpf_map_update_elem(
            ctypes.c_int(table.fd), key, bytes(table.value_size), ctypes.c_uint64(0)
        )
    subprocess.run([sys.executable, "-c", write], check=True)
    (lost,) = [text for text in probe.info().lost if "who dirties" in text]
    assert int(lost.split()[0]) > 0
    read(probe)
    child = subprocess.Popen([sys.executable, "-c", write])
    assert child.wait() == 0
    assert [task.pid for task in read(probe).tasks if task.pid == child.pid]


def test_without_the_object_the_daemon_goes_on_with_proc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("writebackd.kernel.probe.object_path", lambda: tmp_path / "none.o")
    object_image.cache_clear()
    fallback = open_probe("auto", KernelFiles(), False, True)
    assert isinstance(fallback, ProcfsProbe)
    assert fallback.read() is None
    assert any("fsync" in miss for miss in fallback.info().misses)
    with pytest.raises(OSError, match="none.o is missing"):
        open_probe("libbpf", KernelFiles(), False, True)


def test_programs_that_an_object_lacks_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As bcc's lacks those for system calls."""
    monkeypatch.setattr(hooks, "SYSCALLS", replace(hooks.SYSCALLS, programs=("sys_leave",)))
    with pytest.raises(OSError, match="no hook on fsync"):
        BpfProbe(object_image(), KernelFiles(), fsync_hook=hooks.SYSCALL)


@pytest.mark.parametrize("call", hooks.SYNCS)
def test_hooks_on_system_calls_that_miss_one_are_not_used(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its number is another than the probe was built with."""
    made = tuple("getpid" if each == call else each for each in hooks.SYNCS)
    monkeypatch.setattr(hooks, "SYNCS", made)
    with pytest.raises(OSError, match="no hook on fsync"):
        BpfProbe(object_image(), KernelFiles(), fsync_hook=hooks.SYSCALL)


@pytest.mark.parametrize(
    "image", [b"", b"no ELF at all", object_image()[:1000]], ids=["empty", "text", "cut short"]
)
def test_a_broken_object_is_refused(image: bytes) -> None:
    with pytest.raises(BpfError):
        BpfProbe(image, KernelFiles())


def test_what_libbpf_says_is_logged_with_its_values(caplog: pytest.LogCaptureFixture) -> None:
    """They come as a va_list, which is another thing on each machine."""
    image = b"no ELF at all"
    with caplog.at_level("DEBUG"), pytest.raises(BpfError):
        BpfProbe(image, KernelFiles())
    assert re.search(rf"'[0-9a-f]+-{len(image):x}' is not a proper ELF object", caplog.text)


# r0 = *(u64 *)(r1 + 8 * 99); exit
NO_ARGUMENT = struct.pack("=BBhiBBhi", 0x79, 0x10, 8 * 99, 0, 0x95, 0, 0, 0)


@pytest.mark.parametrize("backend", ["libbpf", "bcc"])
def test_what_the_verifier_said_is_in_the_error(backend: str) -> None:
    """The old form of a tracepoint has an argument more; no tracepoint has a hundred."""
    if backend == "libbpf":
        refused = Object(object_image())
    else:
        compiled = {"rq_issue_old": NO_ARGUMENT}
        refused = BccObject(object_image(), str(object_path()), compiled)
    with refused:
        refused.select(["rq_issue_old"])
        with pytest.raises(BpfError, match="denied: invalid bpf_context access off=[0-9]+ size=8$"):
            refused.load()


def unended(probe: BpfProbe, disk: Scratch) -> int:
    """How many syncs of this disk the probe has seen begin and not end."""
    starts = probe._object.map("syncs_inflight").batch_reader(512).read()
    devices = [bpf_layout.devno(bpf_layout.SYNC_START.unpack(start)[2]) for _, start in starts]
    return devices.count(disk.devno)


def test_a_kretprobe_that_was_missed_does_not_look_like_a_stuck_sync(
    disk: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk.mountpoint is not None
    monkeypatch.setattr(map_readers, "STALE_NS", 0)
    probe = watched_by("kprobe")
    together, over = threading.Barrier(65), threading.Event()

    def sync(number: int) -> None:
        fd = os.open(f"{disk.mountpoint}/{number}", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"k" * 4096)
        together.wait()
        os.fsync(fd)
        os.close(fd)
        together.wait()
        over.wait()

    threads = [threading.Thread(target=sync, args=(number,)) for number in range(64)]
    try:
        for thread in threads:
            thread.start()
        together.wait()
        together.wait()
        # Of this disk alone: its flushes sync the backing file, in kernel threads. On a filesystem
        # of the same type, the ends of those are missed as well.
        missed = unended(probe, disk)
        seen = syncs(read(probe), disk)
        print(f"\n{seen.count} of 64 syncs seen to end, {missed} not, {probe.info().lost}")
        assert missed > 0 and seen.count + missed == 64
        # A thread that runs is looked at again: all of them are about to sleep.
        deadline = time.monotonic() + 30.0
        while syncs(read(probe), disk).inflight:
            assert time.monotonic() < deadline, "a sync that ended looks stuck"
            time.sleep(0.1)
        assert not unended(probe, disk) and probe._syncs.abandoned >= missed
    finally:
        over.set()
        for thread in threads:
            thread.join()
        probe.close()


def test_an_fsync_through_overlayfs_is_the_lower_disks(
    disk: Scratch, probe: BpfProbe, tmp_path: Path
) -> None:
    assert disk.mountpoint is not None
    for name in ("lower", "upper", "work"):
        (disk.mountpoint / name).mkdir(exist_ok=True)
    over = tmp_path / "over"
    over.mkdir()
    layers = ",".join(f"{n}dir={disk.mountpoint}/{n}" for n in ("lower", "upper", "work"))
    run("mount", "-t", "overlay", "-o", layers, "overlay", str(over))
    try:
        read(probe)
        write_and_sync(over / "file", 20)
        assert syncs(read(probe), disk).count == 20
    finally:
        run("umount", str(over))
