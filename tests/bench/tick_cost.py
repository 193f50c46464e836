# SPDX-License-Identifier: GPL-2.0-or-later
"""What a tick costs on a host with 1 024 busy disks: processor time and memory.

    python -m tests.bench.tick_cost [--profile] [--pace]

The daemon itself runs, in a process of its own, on a /sys and /proc built in
memory: the worst case, in which every disk carries a filesystem, is flooded and
synced, so that every line and every counter is another one in every tick.  Only
the BPF maps are replaced, by a reading made up before the clock starts.  With
`--pace` pacing is on as well (levers.pace), which is not promised a figure.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from fake_sysfs import FakeSysfs, many_disks
from fake_vm import SYSCTL, FakeVm
from writebackd import daemon as daemon_module
from writebackd import host_monitor
from writebackd.daemon import Daemon, Options
from writebackd.kernel.map_readers import MOST_TASKS, Known, Reading, unknown
from writebackd.policy import load_policy
from writebackd.types.histogram import Histogram
from writebackd.types.samples import ClassSample, IoClass, ProbeInfo, SyncSample, TaskSample

DISKS = 1024
TICKS = 40
# What is wanted, of which the time is not yet reached (docs/research/2026-11-costs.md); and what is
# a step back: milliseconds tell of the machine and its neighbours, Python's own instructions of the
# code alone.  CPython 3.11 takes 5 035 for each disk.
WANTED_MS = 50.0
LIMIT_INSTRUCTIONS, LIMIT_RSS_MB = 5200.0, 60.0
# Those that the fake kernel computes; the rest are files below the root.
_COMPUTED = (SYSCTL, "/proc/vmstat", "/proc/meminfo", "/proc/sys/kernel", "/sys/devices/system")


class Host(FakeVm):
    """The fake kernel's limits, and everything else from a directory."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root, self._prefix = root, str(root)
        self.dirty = (1 << 18, 1 << 14)  # 1 GB waits: a flood

    def read(self, name: str) -> str:
        if name.startswith(_COMPUTED):
            return super().read(name)
        return super(FakeVm, self).read(name)


class SyntheticProbe:
    """Every disk floods, journals and syncs; a bit differently in every tick."""

    def __init__(self, disks: Sequence[str], partitions: Sequence[str]) -> None:
        self._disks, self._partitions = disks, partitions
        self._next: Optional[Reading] = None

    def prepare(self, tick: int) -> None:
        self._next = Reading(
            classes={disk: self._classes(tick + n) for n, disk in enumerate(self._disks)},
            syncs={part: self._sync(tick + n) for n, part in enumerate(self._partitions)},
            tasks=tuple(
                TaskSample(1000 + n, "dd", n, self._partitions[n], 1 << 20, 0.2)
                for n in range(MOST_TASKS)
            ),
        )

    def read(self, known: Known = unknown) -> Optional[Reading]:
        return self._next

    def info(self) -> ProbeInfo:
        return ProbeInfo("synthetic")

    def covers(self, types: Sequence[str]) -> bool:
        return True

    def close(self) -> None:
        pass

    @staticmethod
    def _classes(seed: int) -> Mapping[IoClass, ClassSample]:
        def latency(low: int) -> Histogram:
            return Histogram(tuple((low + 2 * n, 1 + (seed + n) % 7) for n in range(10)))

        return {
            IoClass.SYNC_WRITE: ClassSample(40, 160 << 10, latency(50)),
            IoClass.BACKGROUND_WRITE: ClassSample(90, (24 << 20) + (seed << 12), latency(100)),
            IoClass.READ: ClassSample(40, 1 << 20, latency(60)),
            IoClass.JOURNAL: ClassSample(40, 160 << 10, latency(55)),
        }

    @staticmethod
    def _sync(seed: int) -> SyncSample:
        latency = Histogram(tuple((70 + 3 * n, 1 + (seed + n) % 5) for n in range(10)))
        return SyncSample(fsyncs=latency.total, latency=latency, inflight=1, oldest_s=1e-4)


def diskstats(names: Mapping[str, str], tick: int) -> str:
    """Every disk and partition at its n-th second of about 24 MB/s."""
    lines = []
    for number, (devno, name) in enumerate(names.items()):
        major, minor = devno.split(":")
        done = tick * (200 + number % 50)
        lines.append(
            f"{major:>4} {minor:>7} {name} {done} 0 {done * 16} {done * 2} {done} 0"
            f" {done * 240} {done * 9} 3 {tick * 1000} {done * 11} 0 0 0 0 {done // 9} {done}"
        )
    return "\n".join(lines) + "\n"


def run(root: Path, work: Path, flags: Sequence[str]) -> Dict[str, List[float]]:
    """Runs in the process that is measured: milliseconds per tick, RSS in MB."""
    files = Host(root)
    names = {
        devno: files.path(f"/sys/dev/block/{devno}").readlink().name
        for devno in files.listdir("/sys/dev/block")
    }
    partitions = [devno for devno, name in names.items() if name[-2:] == "p1"]
    probe = SyntheticProbe([devno for devno in names if devno not in partitions], partitions)
    vars(host_monitor)["open_probe"] = lambda *_: probe
    # Ticks of a second, however long they take: so their work is always the same.
    clock = [1.0]
    assert "_boottime" in vars(daemon_module)
    vars(daemon_module)["_boottime"] = lambda: clock[0]
    options = Options(work / "run", work / "state", 1.0, "auto", "auto", (), None)
    policy = load_policy(None, None)
    pace = "on" if "--pace" in flags else "off"
    policy = replace(policy, levers=replace(policy.levers, pace=pace))
    daemon = Daemon(options, lambda: policy, files=files)
    daemon._actuator.start()
    ctypes.CDLL(None).malloc_trim(0)
    profiler = None
    if "--profile" in flags:  # imported here, as what is measured shall hold little but the daemon
        import cProfile
        import pstats

        profiler = cProfile.Profile()
    wall, spent = [], []

    def prepare(tick: int) -> None:
        clock[0] += 1.0
        (root / "proc/diskstats").write_text(diskstats(names, tick))
        probe.prepare(tick)

    for tick in range(TICKS):
        prepare(tick)
        if profiler is not None:
            profiler.enable()
        begun = time.monotonic(), time.thread_time()
        daemon._tick()
        wall.append((time.monotonic() - begun[0]) * 1e3)
        spent.append((time.thread_time() - begun[1]) * 1e3)
        if profiler is not None:
            profiler.disable()
    if profiler is not None:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    snapshot = daemon.state.snapshot
    assert snapshot is not None and len(snapshot.decision.devices) == DISKS
    demand = sum(estimate.demand for estimate in snapshot.estimates.values())
    flooded = sum(estimate.flooded for estimate in snapshot.estimates.values())
    assert demand == flooded == DISKS, (demand, flooded)  # else it measures idle disks
    status = Path("/proc/self/status").read_text()
    memory = [int(line.split()[1]) / 1024 for line in status.splitlines()
              if line.startswith(("VmHWM", "VmRSS"))]  # fmt: skip
    prepare(TICKS)
    counted = float(instructions(daemon._tick))
    daemon._learned.close(1.0)
    daemon._history.close(1.0)
    # The first two only give the counters their zero and the devices their memory.
    return {"wall_ms": wall[2:], "cpu_ms": spent[2:], "rss_mb": memory,
            "instructions": [counted]}  # fmt: skip


def instructions(call: Callable[[], object]) -> int:
    """How many of the interpreter's own instructions `call` takes; those in C are not seen."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def build(root: Path) -> None:
    tree = FakeSysfs(root)
    many_disks(tree, DISKS)
    tree.text("/proc/diskstats", "")


def measure(flags: Sequence[str]) -> Tuple[float, float]:
    """Print the figures; a tick's instructions for each disk, and MB."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="writebackd-tick-", dir="/dev/shm") as directory:
        root, work = Path(directory, "root"), Path(directory, "work")
        root.mkdir()
        for name in ("run", "state"):
            (work / name).mkdir(parents=True)
        build(root)
        argv = [sys.executable, "-m", "tests.bench.tick_cost", "--inside", str(root), str(work)]
        done = subprocess.run([*argv, *flags], check=True, stdout=subprocess.PIPE)
    found: Dict[str, List[float]] = json.loads(done.stdout)
    cpu, wall = statistics.median(found["cpu_ms"]), statistics.median(found["wall_ms"])
    peak, resident = found["rss_mb"]
    steps = found["instructions"][0] / DISKS
    print(f"a tick with {DISKS} busy disks: {cpu:.1f} ms of CPU (median; most "
          f"{max(found['cpu_ms']):.1f}; wanted: {WANTED_MS:.0f}), {wall:.1f} ms by the clock, "
          f"{steps:.0f} of Python's instructions for each (at most {LIMIT_INSTRUCTIONS:.0f})")
    print(f"resident: {resident:.1f} MB (at most {LIMIT_RSS_MB:.0f}; peak {peak:.1f})")
    return steps, resident


def main(argv: Sequence[str]) -> int:
    """1 when a tick costs far more than it did."""
    if argv[:1] == ["--inside"]:
        print(json.dumps(run(Path(argv[1]), Path(argv[2]), argv[3:])))
        return 0
    steps, resident = measure(argv)
    if "--pace" in argv:
        return 0
    return int(steps > LIMIT_INSTRUCTIONS or resident > LIMIT_RSS_MB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
