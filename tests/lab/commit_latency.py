# SPDX-License-Identifier: GPL-2.0-or-later
"""What a commit (write + fsync) waits for during a flood, from the flood's first second.

    sudo build/venv/bin/python -m tests.lab.commit_latency DISK [CONTENDER ...] [--seconds S]
    build/venv/bin/python -m tests.lab.commit_latency --check FILE...

DISK is drawn-SEED, a preset, `ssd-array` or `raid-array` (the two of the published table).  A
CONTENDER is LIMIT/BACKGROUND in kB such as 8000/4000, `default`, `knee` (16 ms of the model's true
rate, half of it in the background) or `agent`.  The contenders take turns.  Each line has, for a
first and a second flood: commits/s and their share f of the idle rate; g, the flood's share of what
the disk can take in that time; score f x min(1, g/0.95)^4; the share of a commit slept in write();
p99 of all and of the worst second, the longest commit; and the fewest commits/s in 5 s.

Last comes a line for each thing that has to hold.  `--check` prints these of runs that `--json`
stored, of several disks together.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from . import contenders, drawn, host
from .agent import Agent
from .commit_figures import Found, Record, Window, musts
from .disks import Disk, preset
from .loads import worker
from .remains import RigError
from .rig import Rig
from .truth import Looker

TABLE = {
    "ssd-array": (Disk(rate="520M", cache="700M", scatter_us=35, link="1G"), "xfs"),
    "raid-array": (Disk(rate="250M", cache="512M", scatter_us=250, link="1G"), "ext4"),
    "raid-310": (Disk(rate="310M", cache="640M", scatter_us=420, link="1G"), "ext4"),
    "raid-48": (Disk(rate="48M", cache="128M", scatter_us=900, link="300M"), "xfs"),
}
FILE_MB = 256
FLOOD_MB = 2048
IDLE_S = 4.0
GAP_S = 8.0
LEAD_S = 5.0  # of commits before the flood
FAST = "4G"  # rate of the disk while the files are made
SETTLE_S = 120.0
LOOK_S = 0.02  # between two looks at what the disk has drained
CLEAN = 1 << 20  # bytes in the write cache that count as none
BLOCKS = {"64K": 64 << 10, "1M": 1 << 20}


class Bench:
    """A rig with a file to commit to and one to flood."""

    def __init__(self, rig: Rig, options: argparse.Namespace, threads: int) -> None:
        self.rig, self.options, self.threads = rig, options, threads
        self.data = rig.mountpoint / "data"
        rig.control.set("rate", FAST)
        with open(self.data, "wb") as file:
            for _ in range(FILE_MB):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        # The model would wait for memory of its own in the first pass: fresh pages of a virtual
        # machine came at 1.3 GB/s.
        for path in self.floods:
            subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", "oflag=direct",
                            f"count={FLOOD_MB}"], check=True, stderr=subprocess.DEVNULL)
        self.settle()
        rig.control.set("rate", rig.disk.rate)

    @property
    def floods(self) -> List[Path]:
        return [self.rig.mountpoint / f"flood{n}" for n in range(self.options.flooders)]

    def settle(self, limit_s: float = SETTLE_S) -> None:
        """Until memory and the write cache are clean."""
        end = time.monotonic() + limit_s
        os.sync()
        while self.rig.control.fill() > CLEAN and time.monotonic() < end:
            time.sleep(0.2)

    def window(self, seconds: float, flooded: bool, skip_s: float = 0.0) -> Window:
        """Commits beside a flood, the flood's first skip_s left out."""
        start = time.monotonic() + (LEAD_S if flooded else 0.2)
        end = start + skip_s + seconds
        outs = [self.rig.directory / f"times{n}" for n in range(self.threads)]
        workers = [self._commit(out, end) for out in outs]
        time.sleep(max(0.0, start - time.monotonic()))
        fill = self.rig.control.fill()
        loops = [self._flood(path) for path in self.floods] if flooded else []
        time.sleep(max(0.0, start + skip_s - time.monotonic()))
        before, begun = host.device_written(self.rig.device), time.monotonic()
        if skip_s:
            fill = self.rig.control.fill()
        with Looker(self.rig.control.path, self.rig.disk, LOOK_S) as looker:
            for each in workers:
                if each.wait():
                    raise RigError("the committing load failed")
        seconds = time.monotonic() - begun
        written = host.device_written(self.rig.device) - before
        for loop in loops:
            os.killpg(loop.pid, signal.SIGTERM)
        for loop in loops:
            loop.wait()
        commits = sorted(commit for out in outs for commit in read(out, start + skip_s))
        disk = self.rig.disk
        room = disk.rate_bytes * seconds + max(0.0, disk.cache_bytes - fill)
        looks = looker.truth.looks
        since = start + skip_s + time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        drained = tuple((at - since, size, fill) for at, size, fill
                        in zip(looks["t"], looks["bytes_destaged"], looks["fill"]))
        return Window(seconds, tuple(commits), written - 4096.0 * len(commits), room, drained,
                      disk.rate_bytes)

    def _commit(self, out: Path, end: float) -> subprocess.Popen[bytes]:
        job = {"path": str(self.data), "end": end, "gap": self.options.gap, "out": str(out)}
        return self.rig.spawn([sys.executable, "-I", "-S", worker.__file__, "commit", "",
                               json.dumps(job)])

    def _flood(self, path: Path) -> subprocess.Popen[bytes]:
        count = (FLOOD_MB << 20) // BLOCKS[self.options.bs]
        command = (f"while :; do dd if=/dev/zero of={path} bs={self.options.bs} count={count}"
                   " conv=notrunc 2>/dev/null; done")
        if self.options.waves:
            on_s, off_s = self.options.waves.split(",")
            command = f"while :; do timeout {on_s} sh -c '{command}'; sleep {off_s}; done"
        return self.rig.spawn(["sh", "-c", command])


def read(out: Path, start: float) -> List[Tuple[float, float, float]]:
    """What a worker stored: begin since `start`, seconds in write() and in fsync()."""
    times = array.array("d")
    times.frombytes(out.read_bytes())
    return [(times[at] - start, times[at + 1], times[at + 2])
            for at in range(0, len(times), 3) if times[at] >= start]


def limits_of(contender: str, disk: Disk) -> Optional[host.Limits]:
    """The limits of a fixed contender; None for the agent."""
    if contender.startswith("agent"):
        return None
    if "/" not in contender:
        return contenders.named(contender).limits_on(disk.rate_bytes)
    limit, background = (int(float(part) * 1000) for part in contender.split("/"))
    return host.fixed_limits(limit, background)


def choose(name: str) -> Tuple[Disk, str, int]:
    """A disk with its filesystem and the number of committing threads."""
    if name in TABLE:
        return (*TABLE[name], 1)
    if name.startswith(drawn.PREFIX):
        scenario = drawn.draw(int(name[len(drawn.PREFIX):]))
        threads = scenario.loads[0].options["threads"]
        assert isinstance(threads, int)
        return scenario.disks[0].disk, scenario.disks[0].fs, threads
    return preset(name), "xfs", 1


def run(contender: str, bench: Bench) -> Found:
    """One contender's figures: idle, first and second flood."""
    options, rig = bench.options, bench.rig
    bench.settle()
    idle = bench.window(IDLE_S, False, skip_s=1.0).rate
    found: Found = {"idle": {"rate": idle}}
    limits = limits_of(contender, rig.disk)
    bench.settle()
    if limits is not None:
        host.write_limits(limits)
        try:
            found["first"] = bench.window(options.seconds, True, options.skip).figures(idle)
        finally:
            host.write_limits(host.DEFAULT_LIMITS)
        return found
    directory = rig.directory / f"agent-{time.monotonic():.0f}"
    directory.mkdir()
    with Agent([rig.device], directory, rig.spawn, contender.partition(":")[2].split()) as agent:
        time.sleep(2.0)
        for turn in ("first", "second")[:options.floods]:
            if turn == "second":
                bench.settle(GAP_S)
            window = bench.window(options.seconds, True, options.skip)
            device = next(each for each in agent.status()["devices"]
                          if each["name"] == rig.device)
            found[turn] = {**window.figures(idle),
                           "R": (device["drain_rate"] or 0.0) / rig.disk.rate_bytes,
                           "limit_MB": (device["target_bytes"] or 0) / 1e6}
            if options.keep:
                keep(options.keep / f"{options.disk}-{contender.split(':')[0]}-{turn}",
                     window, agent)
    return found


def keep(to: Path, window: Window, agent: Agent) -> None:
    to.with_suffix(".json").write_text(json.dumps(window.commits))
    shutil.copy(agent.log, to.with_suffix(".log"))


def line(name: str, contender: str, turn: str, x: Dict[str, float]) -> str:
    text = (f"{name:10} {contender:12} {turn:6} {x['rate']:6.0f}/s f {x['f']:.3f} g {x['g']:.2f}"
            f" score {x['score']:.3f} write {x['write']:4.0%} p99 {x['p99']:5.1f}"
            f" (w {x['write_p99']:.1f} s {x['sync_p99']:.1f}) worst {x['worst']:6.1f}"
            f" longest {x['longest']:6.0f} wmax {x['write_max']:5.0f} fewest {x['fewest']:5.0f}"
            f" slow-s {x['slow_seconds']:.0f} >100ms {x['over100']:.0f}"
            f" (in sweeps {x['swept']:.0f})")
    if "R" in x:
        text += f" R {x['R']:.2f} limit {x['limit_MB']:.1f} MB"
    return text


def measure(options: argparse.Namespace) -> List[Record]:
    """Every contender in turn, each repeat beginning with another one."""
    disk, fs, threads = choose(options.disk)
    records: List[Record] = []
    with Rig("commit-latency", options.fs or fs, replace(disk, size="16G")) as rig:
        bench = Bench(rig, options, options.threads or threads)
        for repeat in range(options.repeats):
            shift = repeat % len(options.contender)
            for contender in options.contender[shift:] + options.contender[:shift]:
                found = run(contender, bench)
                records.append((options.disk, contender, found))
                for turn, figures in found.items():
                    if turn != "idle":
                        print(line(options.disk, contender, turn, figures), flush=True)
                if options.json:
                    said = {key: str(value) for key, value in vars(options).items()}
                    with open(options.json, "a") as file:
                        file.write(json.dumps([options.disk, contender, said, found]) + "\n")
    return records


def stored(paths: Sequence[Path]) -> List[Record]:
    return [(disk, contender, found) for path in paths for text in path.read_text().splitlines()
            for disk, contender, _, found in [json.loads(text)]]


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab.commit_latency")
    parser.add_argument("disk", nargs="?")
    parser.add_argument("contender", nargs="*", default=["16000/8000", "knee", "agent"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--skip", type=float, default=0.0, help="seconds of flood not counted")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--floods", type=int, default=2)
    parser.add_argument("--fs", choices=("xfs", "ext4", "btrfs"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gap", type=float, default=0.0, help="seconds between two commits")
    parser.add_argument("--bs", choices=tuple(BLOCKS), default="1M")
    parser.add_argument("--flooders", type=int, default=1)
    parser.add_argument("--waves", help="ON,OFF: seconds of flood and of pause")
    parser.add_argument("--json", type=Path, help="append each run to this file")
    parser.add_argument("--keep", type=Path, help="directory for each run's commits and log")
    parser.add_argument("--check", type=Path, nargs="+", metavar="FILE",
                        help="run nothing, judge what --json stored")
    options = parser.parse_args(argv)
    if not options.check and not options.disk:
        parser.error("name a disk")
    try:
        records = stored(options.check) if options.check else measure(options)
    except (RigError, OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"commit_latency: {error}", file=sys.stderr)
        return 2
    print("\n".join(musts(records)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
