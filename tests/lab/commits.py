# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether commits wait for the data of a cgroup that is held by io.max.

    sudo build/venv/bin/python -m tests.lab.commits [--way virtual|vm] [--limit S] [FILESYSTEM ...]

Beside a flood that writes new files, in a machine: overwriting, appending, creating and renaming
with fsync in another cgroup, then sync(2) and a freeze from outside.  Each under a tight dirty
limit alone, and under a wide one with the flood held at a share of the drain rate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Sequence

from . import host, vm
from .cgroups import Groups
from .disks import preset
from .remains import RigError, run
from .rig import Rig

DISK = "raid-512M-bbu"
HELD = 0.8  # of the drain rate
DRAIN_S = 0.25  # of the held flood, that the wide limit is worth
TIGHT = 2 << 20
SETTLE_S, EACH_S = 6.0, 4.0
LIMIT_S = 1200
FILE_MB = 64
OPERATIONS = ("overwrite", "append", "create", "rename")
WORKER = """
import json, os, sys, time
top, seconds, operations, out = sys.argv[1], float(sys.argv[2]), sys.argv[3].split(), sys.argv[4]
block, found = os.urandom(4096), {}

def synced(path, flags, at=None):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    os.pwrite(fd, block, at) if at is not None else os.write(fd, block)
    os.fsync(fd)
    os.close(fd)

def directory():
    fd = os.open(top, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

def do(operation, n):
    if operation == "overwrite":
        synced(top + "/data", 0, n * 7919 % 1024 * 4096)
    elif operation == "append":
        synced(top + "/log", os.O_APPEND)
    else:
        synced(top + "/new%d" % (n % 64), os.O_TRUNC)
        if operation == "rename":
            os.rename(top + "/new%d" % (n % 64), top + "/name%d" % (n % 64))
        directory()

for operation in operations:
    times, n, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end or not times:
        begun = time.monotonic()
        do(operation, n)
        times.append(time.monotonic() - begun)
        n += 1
    found[operation] = times
json.dump(found, open(out, "w"))
"""
FLOOD = (f'n=0; while :; do dd if=/dev/zero of="$0/$((n % 4))" bs=1M count={FILE_MB} 2>/dev/null; '
         "n=$((n + 1)); done")


def measure(fs: str, held: bool, drain_s: float) -> Dict[str, Any]:
    """One disk, one flood: seconds of every operation. Raises RigError."""
    disk = preset(DISK).scaled(vm.SCALE)
    with Rig("commits", fs, disk) as rig, Groups(rig) as groups:
        rate = int(rig.disk.rate_bytes * HELD)
        limit = int(rate * drain_s) if held else TIGHT
        for name in ("flood", "sync"):
            (rig.mountpoint / name).mkdir()
        (rig.mountpoint / "sync/data").write_bytes(bytes(4 << 20))
        run("sync")
        host.write_limits(host.fixed_limits(limit))
        if held:
            groups.apply(f"io.max {rate}", rig)
        groups.spawn(rig.spawn, "flood")(["sh", "-c", FLOOD, str(rig.mountpoint / "flood")])
        time.sleep(SETTLE_S)
        out = rig.directory / "commits.json"
        before, begun = host.device_written(rig.device), time.monotonic()
        worker = groups.spawn(rig.spawn, "sync")(
            [sys.executable, "-c", WORKER, str(rig.mountpoint / "sync"), str(EACH_S),
             " ".join(OPERATIONS), str(out)])
        if worker.wait(LIMIT_S):
            raise RigError("the synchronous load failed")
        moved = host.device_written(rig.device) - before
        result: Dict[str, Any] = {"device": moved / (time.monotonic() - begun)}
        result.update(json.loads(out.read_text()))
        result["sync(2)"] = [timed("sync")]
        result["freeze"] = [timed("fsfreeze", "-f", str(rig.mountpoint))]
        run("fsfreeze", "-u", str(rig.mountpoint))
        return result


def timed(*argv: str) -> float:
    begun = time.monotonic()
    run(*argv)
    return time.monotonic() - begun


def inside(fs: str, out: Path, drain_s: float) -> None:
    found = {}
    for name, held in (("tight limit", False), ("held", True)):
        found[name] = measure(fs, held, drain_s)
        (out / f"{fs}.json").write_text(json.dumps(found))


def in_guest(fs: str, way: str, drain_s: float) -> List[str]:
    """A table's rows for one filesystem."""
    with tempfile.TemporaryDirectory(prefix="writebackd-commits-") as name:
        out = Path(name)
        said = vm.run([sys.executable, "-m", "tests.lab.commits", "--inside", str(out),
                       "--limit", str(drain_s), fs], way, out, LIMIT_S)
        try:
            found = json.loads((out / f"{fs}.json").read_text())
        except OSError:
            raise RigError(f"{fs}: the machine said: {said.output[-2000:]}") from None
    return [row(fs, operation, found) for operation in (*OPERATIONS, "sync(2)", "freeze")] + [
        f"| {fs} | device MB/s | " + " | ".join(
            f"{found[name]['device'] / 1e6:.1f}" for name in found) + " |"]


def row(fs: str, operation: str, found: Dict[str, Dict[str, List[float]]]) -> str:
    cells = []
    for name in found:
        times = sorted(found[name][operation])
        p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
        mean = sum(times) / len(times)
        cells.append(f"{times[0]:.2f} s" if len(times) == 1 else
                     f"{1 / mean:.0f}/s, {1e3 * mean:.2f}, {1e3 * p99:.1f}, {1e3 * times[-1]:.0f}")
    return f"| {fs} | {operation} | {' | '.join(cells)} |"


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab.commits")
    parser.add_argument("filesystem", nargs="*", default=["xfs", "ext4"])
    parser.add_argument("--way", choices=vm.WAYS, default="virtual")
    parser.add_argument("--limit", type=float, default=DRAIN_S, metavar="SECONDS",
                        help="of the held flood, that the wide limit is worth")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv or None)
    try:
        if arguments.inside:
            inside(arguments.filesystem[0], arguments.inside, arguments.limit)
            return 0
        print("| filesystem | operation | limit of 2 MB: rate, mean, p99, max in ms "
              f"| flood held at {HELD:.0%} of the drain rate |\n|---|---|---|---|")
        with ThreadPoolExecutor() as pool:
            for rows in pool.map(lambda fs: in_guest(fs, arguments.way, arguments.limit),
                                 arguments.filesystem):
                print("\n".join(rows))
        return 0
    except (RigError, OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"commits: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
