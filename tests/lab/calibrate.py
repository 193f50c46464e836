# SPDX-License-Identifier: GPL-2.0-or-later
"""What `writebackctl calibrate` finds on modelled disks, beside their parameters and a sweep.

    sudo build/venv/bin/python -m tests.lab.calibrate [SCENARIO...]

Calibrates the disk of each scenario (default: flood, slow-raid, disk-no-cache), then runs the
scenario with default limits, its fixed ones and the one that was found.  Natively, one run each:
5 minutes a scenario.  Exit code 1 where a bound is missed: R within 10 %, the cache within 25 %,
0.95 of the sweep's best score.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from writebackd.policy.units import parse_size, parse_time

from . import catalogue, contenders
from .ballast import Ballast, left
from .bench import alone
from .disks import Disk
from .loads.own import make_file
from .remains import RigError
from .rig import Rig
from .run import Conditions, haste, perform, unchanged_limits
from .scenario import Scenario
from .score import idle_rates, score, sequential_share, synchronous_share

PREFIX = "calibrate"
WRITEBACKCTL = Path(sys.executable).with_name("writebackctl")
R_WITHIN, CACHE_WITHIN, SHARE = 0.10, 0.25, 0.95


def calibrate(scenario: Scenario, budget: str, time: str) -> Dict[str, Any]:
    """What it prints, as data. Raises RigError where it measured nothing."""
    spec = scenario.disks[0]
    with unchanged_limits(), ExitStack() as stack:
        rig = stack.enter_context(Rig(f"{PREFIX}-{spec.name}", spec.fs, spec.disk))
        # The model keeps what is not zeros, and a guest may get new memory for it more slowly than
        # the disk takes it: 150 to 280 MB/s were seen, which took one of two processors.
        most = int(spec.disk.rate_bytes * parse_time(time)) + spec.disk.cache_bytes
        with haste([rig]):
            make_file(rig.mountpoint / "touched", min(parse_size(budget), most), noise=True)
            (rig.mountpoint / "touched").unlink()
        state = stack.enter_context(tempfile.TemporaryDirectory())
        done = subprocess.run(
            [str(WRITEBACKCTL), "--json", "calibrate", "--directory", str(rig.mountpoint),
             "--budget", budget, "--time", time, "--state-dir", state],
            stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        raise RigError(f"calibrate ended with {done.returncode}")
    found: Dict[str, Any] = json.loads(done.stdout)
    return found


def share_of_best(scenario: Scenario, limit: int) -> float:
    """Its score, of the best fixed limit's. Raises RigError."""
    conditions = Conditions("native", 1.0, PREFIX, left(), platform.release())
    names = ["default", *(f"static-{pair}" for pair in scenario.sweep), "static-16M"]
    tried = [*map(contenders.named, dict.fromkeys(names)), contenders.static(limit)]
    runs = [perform(scenario, each, 1, conditions) for each in tried]
    failed = next((run["error"] for run in runs if run["error"]), None)
    if failed:
        raise RigError(failed)
    idle, scores = idle_rates(runs), []
    for contender, run in zip(tried, runs):
        f, g = synchronous_share(run, idle), sequential_share(run, runs[0])
        scores.append(score(f, g) or 0.0)
        print(f"  {contender.name:16} f {f or 0.0:5.3f} g {g or 0.0:4.2f} score {scores[-1]:5.3f}")
    return scores[-1] / max(scores[1:-1])


def is_near(value: Optional[float], truth: float, within: float) -> bool:
    return value is not None and abs(value / truth - 1.0) <= within


def judge(name: str, budget: str, time: str) -> List[str]:
    """The bounds that are missed. Raises RigError."""
    scenario = catalogue.load(name)
    found, disk = calibrate(scenario, budget, time), scenario.disks[0].disk
    print(f"{name}: {found['seconds']:.0f} s, {found['written_bytes'] / 2**30:.1f} GB, "
          f"{'; '.join(found['problems']) or 'no problem'}")
    print(f"  idle {found['idle']['fsync_rate']:.0f} fsyncs/s")
    for rung in found["ladder"]:
        print(f"  {rung['limit_bytes'] / 2**20:5.1f}M: {rung['fsync_rate']:6.0f} fsyncs/s, "
              f"{rung['write_rate'] / 2**20:4.0f}M/s, score {rung['score']:5.3f}")
    missed = [] if is_near(found["drain_rate"], disk.rate_bytes, R_WITHIN) else ["R"]
    print(f"  R {(found['drain_rate'] or 0) / 2**20:.0f}M/s of {disk.rate}, "
          f"cache {(found['cache_bytes'] or 0) / 2**20:.0f}M of {disk.cache}, "
          f"at most {(found['cache_most_bytes'] or 0) / 2**20:.0f}M")
    if not _is_right(found, disk):
        missed.append("cache")
    if found["limit_bytes"] is None:
        return [*missed, "limit"]
    with Ballast():
        share = share_of_best(scenario, found["limit_bytes"])
    print(f"  limit {found['limit_bytes'] / 2**20:.1f}M: {share:.2f} of the sweep's best",
          flush=True)
    return missed if share >= SHARE else [*missed, "limit"]


def _is_right(found: Dict[str, Any], disk: Disk) -> bool:
    size = disk.cache_bytes if disk.protected and disk.mode == "writeback" else 0
    if found["cache_bytes"] is None:
        return bool(found["cache_most_bytes"] and found["cache_most_bytes"] >= size)
    return bool(size) and is_near(found["cache_bytes"], size, CACHE_WITHIN)


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.calibrate", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO",
                        default=["flood", "slow-raid", "disk-no-cache"])
    parser.add_argument("--budget", default="12G")
    parser.add_argument("--time", default="90s")
    options = parser.parse_args(argv)
    try:
        with alone():
            missed = {name: judge(name, options.budget, options.time)
                      for name in options.scenarios}
    except RigError as error:
        print(f"tests.lab.calibrate: {error}", file=sys.stderr)
        return 2
    for name, what in missed.items():
        print(f"{name}: {f'missed: {chr(44).join(what)}' if what else 'all bounds hold'}")
    return 1 if any(missed.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
