# SPDX-License-Identifier: GPL-2.0-or-later
"""What a commit (write + fsync) waits for beside a flood, from the flood's first second.

    sudo build/venv/bin/python -m tests.lab.commit_latency DISK [CONTENDER ...] [--seconds S]

DISK is drawn-SEED, a preset, `ssd-array` or `raid-array` (the two of the published table).  A
CONTENDER is LIMIT/BACKGROUND in kB such as 8000/4000, `default`, `knee` (16 ms of the model's true
rate, half of it in the background) or `agent`.  The contenders take turns.  Each line has, for a
first and a second flood: commits/s and their share f of the idle rate; g, the flood's share of what
the disk can take in that time; score f x min(1, g/0.95)^4; the share of a commit slept in write();
p99 of all and of the worst second, the longest commit; and the fewest commits/s in 5 s.
"""

from __future__ import annotations

import argparse
import array
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from . import drawn, host
from .agent import Agent
from .disks import Disk, preset
from .remains import RigError
from .rig import Rig

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
KNEE_S = 16e-3
PERIODIC_S = 0.0


def commit(path: str, end: float, gap_s: float, out: str) -> None:
    """4 KiB write + fsync at random places until `end`: (time, write s, fsync s) to `out`."""
    fd = os.open(path, os.O_RDWR)
    blocks = os.fstat(fd).st_size // 4096
    data = os.urandom(4096)
    times = array.array("d")
    clock = time.monotonic
    while True:
        begin = clock()
        if begin >= end:
            break
        os.pwrite(fd, data, 4096 * random.randrange(blocks))
        middle = clock()
        os.fsync(fd)
        done = clock()
        times.extend((begin, middle - begin, done - middle))
        if gap_s:
            time.sleep(max(0.0, gap_s - (done - begin)))
    Path(out).write_bytes(times.tobytes())


@dataclass(frozen=True)
class Window:
    """Commits of one flood, and what the flood wrote meanwhile."""

    seconds: float
    commits: Tuple[Tuple[float, float, float], ...]  # begin since the start, write s, fsync s
    flood_bytes: float
    room_bytes: float  # what disk and cache could take in that time

    @property
    def rate(self) -> float:
        return len(self.commits) / self.seconds

    @property
    def g(self) -> float:
        return self.flood_bytes / self.room_bytes

    def score(self, idle: float) -> float:
        return float(self.rate / idle * min(1.0, self.g / 0.95) ** 4)

    def figures(self, idle: float) -> Dict[str, float]:
        both = sorted(write + sync for _, write, sync in self.commits) or [self.seconds]
        total = sum(both)
        by_second: Dict[int, List[float]] = {}
        for begin, write, sync in self.commits:
            by_second.setdefault(int(begin), []).append(write + sync)
        worst = max((_p99(sorted(each)) for each in by_second.values()), default=self.seconds)
        counts = [len(by_second.get(second, ())) for second in range(int(self.seconds))]
        fewest = min(sum(counts[at:at + 5]) / 5 for at in range(max(1, len(counts) - 4)))
        late = [_p99(sorted(each)) for second, each in by_second.items() if second >= 3]
        return {
            "rate": self.rate, "f": self.rate / idle, "g": self.g, "score": self.score(idle),
            "write": sum(write for _, write, _ in self.commits) / total, "p99": 1e3 * _p99(both),
            "worst": 1e3 * worst, "longest": 1e3 * both[-1], "fewest": fewest,
            "slow_seconds": float(sum(each > 0.1 for each in late)),
            "over100": float(sum(each > 0.1 for each in both)),
            "write_p99": 1e3 * _p99(sorted(write for _, write, _ in self.commits)),
            "write_max": 1e3 * max((write for _, write, _ in self.commits), default=0.0),
            "sync_p99": 1e3 * _p99(sorted(sync for _, _, sync in self.commits)),
        }


def _p99(ordered: Sequence[float]) -> float:
    return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0


class Bench:
    """A rig with a file to commit to and one to flood."""

    def __init__(self, rig: Rig, threads: int, gap_s: float, block: str, flooders: int,
                 waves: Sequence[str] = ()) -> None:
        self.rig, self.threads, self.gap_s = rig, threads, gap_s
        self.block, self.flooders, self.waves = block, flooders, waves
        self.data = rig.mountpoint / "data"
        self.flood = rig.mountpoint / "flood"
        rig.control.set("rate", "4G")  # while the files are made
        with open(self.data, "wb") as file:
            for _ in range(FILE_MB):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        # Or the model would wait for its own memory in the first pass.
        for n in range(flooders):
            subprocess.run(["dd", "if=/dev/zero", f"of={self.flood}{n}", "bs=1M", "oflag=direct",
                            f"count={FLOOD_MB}"], check=True, stderr=subprocess.DEVNULL)
        self.settle()
        rig.control.set("rate", rig.disk.rate)

    def settle(self, limit_s: float = 120.0) -> None:
        """Until memory and the write cache are clean."""
        end = time.monotonic() + limit_s
        os.sync()
        while self.rig.control.fill() > 1 << 20 and time.monotonic() < end:
            time.sleep(0.2)

    def window(self, seconds: float, flooded: bool, skip_s: float = 0.0) -> Window:
        start = time.monotonic() + (LEAD_S if flooded else 0.2)
        end = start + skip_s + seconds
        outs = [self.rig.directory / f"times{n}" for n in range(self.threads)]
        here = Path(__file__).resolve().parents[2]
        workers = [self.rig.spawn(
            [sys.executable, "-m", "tests.lab.commit_latency", "--commit", str(self.data),
             str(end), str(self.gap_s), str(out)], cwd=str(here)) for out in outs]
        time.sleep(max(0.0, start - time.monotonic()))
        loops: List[subprocess.Popen[bytes]] = []
        fill = self.rig.control.fill()
        if flooded:
            count = FLOOD_MB if self.block == "1M" else FLOOD_MB * 16
            for n in range(self.flooders):
                dd = (f"dd if=/dev/zero of={self.flood}{n} bs={self.block} count={count}"
                      " conv=notrunc 2>/dev/null")
                if self.waves:
                    on_s, off_s = self.waves
                    dd = f"timeout {on_s} sh -c 'while :; do {dd}; done'; sleep {off_s}"
                loops.append(self.rig.spawn(["sh", "-c", f"while :; do {dd}; done"]))
        time.sleep(max(0.0, start + skip_s - time.monotonic()))
        before, begun = host.device_written(self.rig.device), time.monotonic()
        if skip_s:
            fill = self.rig.control.fill()
        for worker in workers:
            worker.wait()
        seconds = time.monotonic() - begun
        written = host.device_written(self.rig.device) - before
        for loop in loops:
            os.killpg(loop.pid, 15)
        for loop in loops:
            loop.wait()
        commits = []
        for out in outs:
            times = array.array("d")
            times.frombytes(out.read_bytes())
            for at in range(0, len(times), 3):
                if times[at] >= start + skip_s:
                    commits.append((times[at] - start - skip_s, times[at + 1], times[at + 2]))
        commits.sort()
        disk = self.rig.disk
        room = disk.rate_bytes * seconds + max(0.0, disk.cache_bytes - fill)
        return Window(seconds, tuple(commits), written - 4096.0 * len(commits), room)


def pair(text: str, disk: Disk) -> Optional[host.Limits]:
    """The limits of a fixed contender; None for the agent."""
    if text.startswith("agent"):
        return None
    if text == "default":
        return dict(host.DEFAULT_LIMITS)
    if text == "knee":
        limit = int(KNEE_S * disk.rate_bytes)
        background = limit // 2
    else:
        limit, background = (int(float(part) * 1000) for part in text.split("/"))
    return {"dirty_bytes": limit, "dirty_ratio": 0,
            "dirty_background_bytes": background, "dirty_background_ratio": 0}


def choose(name: str) -> Tuple[Disk, str, int]:
    if name in TABLE:
        return (*TABLE[name], 1)
    if name.startswith(drawn.PREFIX):
        scenario = drawn.draw(int(name[len(drawn.PREFIX):]))
        threads = int(str(scenario.loads[0].options["threads"]))
        return scenario.disks[0].disk, scenario.disks[0].fs, threads
    return preset(name), "xfs", 1


def run(name: str, contender: str, bench: Bench,
        options: argparse.Namespace) -> Dict[str, Dict[str, float]]:
    rig, disk = bench.rig, bench.rig.disk
    bench.settle()
    if True:
        idle = bench.window(IDLE_S, False, skip_s=1.0).rate
        found: Dict[str, Dict[str, float]] = {"idle": {"rate": idle}}
        limits = pair(contender, disk)
        bench.settle()
        agent = None
        if limits is None:
            extra = contender.split(":", 1)[1].split() if ":" in contender else []
            directory = rig.directory / f"agent-{time.monotonic():.0f}"
            directory.mkdir()
            agent = Agent([rig.device], directory, rig.spawn, extra)
            agent.start()
            agent.wait()
            time.sleep(2.0)
        else:
            host.write_limits(limits)
        try:
            for turn in ("first", "second")[:options.floods if agent else 1]:
                if turn == "second":
                    bench.settle(GAP_S)
                window = bench.window(options.seconds, True, skip_s=options.skip)
                found[turn] = window.figures(idle)
                if agent is not None:
                    device = next(each for each in agent.status()["devices"]
                                  if each["name"] == rig.device)
                    found[turn]["R"] = (device["drain_rate"] or 0.0) / disk.rate_bytes
                    found[turn]["limit_MB"] = (device["target_bytes"] or 0) / 1e6
                    if options.keep:
                        kept = Path(options.keep) / f"{name}-{contender.split(':')[0]}-{turn}"
                        kept.with_suffix(".json").write_text(json.dumps(window.commits))
                        subprocess.run(["cp", "-r", str(agent.log),
                                        f"{kept}.log"], check=False)
        finally:
            if agent is not None:
                agent.stop()
            host.write_limits(host.DEFAULT_LIMITS)
    return found


def line(name: str, contender: str, turn: str, x: Dict[str, float]) -> str:
    text = (f"{name:10} {contender:12} {turn:6} {x['rate']:6.0f}/s f {x['f']:.3f} g {x['g']:.2f}"
            f" score {x['score']:.3f} write {x['write']:4.0%} p99 {x['p99']:5.1f}"
            f" (w {x['write_p99']:.1f} s {x['sync_p99']:.1f}) worst {x['worst']:6.1f}"
            f" longest {x['longest']:6.0f} wmax {x['write_max']:5.0f} fewest {x['fewest']:5.0f}"
            f" slow-s {x['slow_seconds']:.0f} >100ms {x['over100']:.0f}")
    if "R" in x:
        text += f" R {x['R']:.2f} limit {x['limit_MB']:.1f} MB"
    return text


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--commit"]:
        path, end, gap, out = arguments[1:]
        commit(path, float(end), float(gap), out)
        return 0
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab.commit_latency")
    parser.add_argument("disk")
    parser.add_argument("contender", nargs="*", default=["16000/8000", "knee", "agent"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--skip", type=float, default=0.0, help="seconds of flood not counted")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--floods", type=int, default=2)
    parser.add_argument("--fs", choices=("xfs", "ext4", "btrfs"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gap", type=float, default=0.0, help="seconds between two commits")
    parser.add_argument("--bs", choices=("64K", "1M"), default="1M")
    parser.add_argument("--flooders", type=int, default=1)
    parser.add_argument("--waves", help="ON,OFF: seconds of flood and of pause")
    parser.add_argument("--json", type=Path, help="append each run to this file")
    parser.add_argument("--keep", help="directory for each run's commits and log")
    options = parser.parse_args(arguments)
    scores: Dict[Tuple[str, str], List[float]] = {}
    disk, fs, threads = choose(options.disk)
    fs, threads = options.fs or fs, options.threads or threads
    try:
      with Rig("commit-latency", fs, replace(disk, size="16G")) as rig:
        bench = Bench(rig, threads, options.gap, options.bs, options.flooders,
                      options.waves.split(",") if options.waves else ())
        for turn in range(options.repeats):
            order = options.contender[turn % len(options.contender):] + \
                options.contender[:turn % len(options.contender)]
            for contender in order:
                found = run(options.disk, contender, bench, options)
                for name, figures in found.items():
                    if name == "idle":
                        continue
                    print(line(options.disk, contender, name, figures), flush=True)
                    scores.setdefault((contender, name), []).append(figures["score"])
                if options.json:
                    with open(options.json, "a") as file:
                        file.write(json.dumps([options.disk, contender, vars(options) and {
                            k: str(v) for k, v in vars(options).items()}, found]) + "\n")
    except (RigError, OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"commit_latency: {error}", file=sys.stderr)
        return 2
    if options.repeats > 1:
        for (contender, name), values in scores.items():
            print(f"median score {options.disk} {contender} {name} "
                  f"{statistics.median(values):.3f} of {len(values)}")
    return 0


if __name__ == "__main__":
    assert math.isfinite(KNEE_S)
    sys.exit(main())
