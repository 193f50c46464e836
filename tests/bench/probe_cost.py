# SPDX-License-Identifier: GPL-2.0-or-later
"""What the probe costs: per block IO, per sync, per dirtied folio, per system call.

    python -m tests.bench.probe_cost

Times come from the kernel's own run statistics (run_time_ns / run_cnt), less
those of an empty program on the same event in the same job: that leaves what
the program does, without the statistics' own two clock reads.  The cost per
system call is a loop of getppid(2) with the hooks attached and without, in
turns, because statistics do not show the kernel's own part of it.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from typing import Dict, List, Sequence, Tuple

from tests.kernel.scratch import Scratch, scratch_disk
from writebackd.kernel import bpf_layout, hooks, libbpf
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.probe import BpfProbe, object_image

ROUNDS = 5
PROMISED_NS, PROMISED_QUEUE_NS = 60.0, 110.0
# So much more than promised fails, in the best round: neighbours only add, and the same program
# cost 40 ns on one machine and 63 to 105 on another.
FAILS = 2.5


def fio(disk: Scratch, *options: str) -> None:
    assert disk.mountpoint is not None
    subprocess.run(
        ["fio", "--name=b", f"--filename={disk.mountpoint}/fio", "--size=64M", "--bs=4k",
         "--rw=randrw", "--direct=1", "--ioengine=libaio", "--iodepth=16", *options],
        check=True, stdout=subprocess.DEVNULL,
    )


def open_with_empty(queue_latency: bool) -> libbpf.Object:
    """The object with completion, empty program, and the sync and dirty hooks."""
    sizes = bpf_layout.plan_sizes(
        len(KernelFiles().listdir("/sys/block")), libbpf.possible_cpus(), queue_latency
    )
    constants = bpf_layout.ProbeConfig(
        slots=sizes.slots, shard_mask=sizes.shards - 1, shard_shift=sizes.shard_shift,
        per_cpu=sizes.per_cpu, queue_latency=queue_latency, dirty_grain=256 << 10,
        jiffy_ns=4_000_000,
    )
    obj = libbpf.Object(object_image())
    obj.select(["rq_complete", "empty"])
    blocks = sizes.slots * sizes.shards
    obj.set_entries("io_slots", blocks)
    if queue_latency:
        obj.set_entries("queue_slots", blocks)
    obj.set_constants(".rodata.config", constants)
    obj.load()
    for program in ("rq_complete", "empty"):
        obj.attach(program)
    return obj


def per_run(obj: "libbpf.Object | BpfProbe", programs: Sequence[str]) -> Dict[str, Tuple[int, int]]:
    return {name: obj.run_stats(name)[:2] for name in programs}


def net_and_empty(disk: Scratch, obj: libbpf.Object, *options: str) -> Tuple[float, float]:
    """Nanoseconds per completion during fio: less those of the empty program, and these."""
    before = per_run(obj, ("rq_complete", "empty"))
    fio(disk, *options)
    after = per_run(obj, ("rq_complete", "empty"))
    mean = {
        name: (after[name][0] - before[name][0]) / (after[name][1] - before[name][1])
        for name in before
    }
    return mean["rq_complete"] - mean["empty"], mean["empty"]


def per_io(disk: Scratch, queue_latency: bool) -> List[Tuple[float, float]]:
    """`net_and_empty`, a pair a round."""
    with open_with_empty(queue_latency) as obj:
        return [net_and_empty(disk, obj, "--time_based", "--runtime=2") for _ in range(ROUNDS)]


def other_programs(disk: Scratch) -> List[Tuple[str, float, int]]:
    """`(program, ns per run, runs)` of the full probe, nothing subtracted."""
    assert disk.mountpoint is not None
    probe = BpfProbe(object_image(), KernelFiles())
    try:
        names = [name for name in probe.choice.programs if name != "rq_complete"]
        before = per_run(probe, names)
        fd = os.open(disk.mountpoint / "sync", os.O_RDWR | os.O_CREAT)
        for i in range(3000):
            os.pwrite(fd, b"x" * 4096, (i % 256) * 4096)
            os.fsync(fd)
        os.close(fd)
        with open(disk.mountpoint / "dirt", "wb") as file:
            for _ in range(128):
                file.write(b"d" * (1 << 20))
        after = per_run(probe, names)
    finally:
        probe.close()
    return [
        (name, (after[name][0] - before[name][0]) / runs, runs)
        for name in names
        if (runs := after[name][1] - before[name][1])
    ]


def syscall_cost() -> Tuple[List[float], List[float]]:
    """Nanoseconds per getppid(2) without and with the hooks on system calls."""
    calls = 400_000
    # A loop in C, so that the interpreter's own cost does not hide the call's.
    code = (
        "#include <unistd.h>\n#include <sys/syscall.h>\n"
        "void loop(long n){while(n--)syscall(SYS_getppid);}"
    )
    path = f"/tmp/writebackd-bench-{os.getpid()}.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, "-xc", "-"],
                   input=code.encode(), check=True)
    loop = ctypes.CDLL(path).loop
    os.unlink(path)

    def once() -> float:
        begun = time.monotonic_ns()
        loop(ctypes.c_long(calls))
        return (time.monotonic_ns() - begun) / calls

    def prepare(obj: libbpf.Object) -> None:
        obj.set_constants(".rodata.config", bpf_layout.ProbeConfig(slots=1, per_cpu=1))

    without, with_hooks = [], []
    once()
    for _ in range(ROUNDS):
        without.append(once())
        with libbpf.Object(object_image()) as obj:
            obj.select(hooks.SYSCALLS.programs)
            prepare(obj)
            obj.load()
            hooks.attach(obj, hooks.SYSCALLS, None)
            with_hooks.append(once())
    return without, with_hooks


def main() -> int:
    """Print the figures; 1 when the cost per IO is above FAILS times what the project promises."""
    good = True
    stats_fd = libbpf.enable_run_stats()
    with scratch_disk("ext4", size_mb=256, directory="/dev/shm") as disk:
        for queue_latency, promised in ((False, PROMISED_NS), (True, PROMISED_QUEUE_NS)):
            rounds = per_io(disk, queue_latency)
            net = statistics.median(n for n, _ in rounds)
            empty = statistics.median(e for _, e in rounds)
            good &= min(n for n, _ in rounds) <= FAILS * promised
            print(f"per block IO, queue latency {'on' if queue_latency else 'off'}: "
                  f"{net:.0f} ns net (promised: {promised:.0f}"
                  f"{', MISSED' if net > promised else ''}; rounds "
                  f"{' '.join(f'{n:.0f}' for n, _ in rounds)}; empty program {empty:.0f})")
        for name, cost, runs in other_programs(disk):
            print(f"{name}: {cost:.0f} ns a run, statistics included ({runs} runs)")
    os.close(stats_fd)
    without, with_hooks = syscall_cost()
    base, hooked = statistics.median(without), statistics.median(with_hooks)
    print(f"per system call while the syscall hooks are attached: +{hooked - base:.0f} ns "
          f"({base:.0f} -> {hooked:.0f})")
    for queue_latency in (False, True):
        probe = BpfProbe(object_image(), KernelFiles(), queue_latency, cpus=256, devices=1024)
        print(f"maps, 256 CPUs and 1024 devices, queue latency "
              f"{'on' if queue_latency else 'off'}: {probe.info().map_bytes / (1 << 20):.1f} MB")
        probe.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
