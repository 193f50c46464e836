# SPDX-License-Identifier: GPL-2.0-or-later
"""Each shipped policy on a host of its class: the agent under exactly that file against default
limits.

    sudo build/venv/bin/python -m tests.lab.classes [--way WAY] [--repeats N] [CLASS...]

prints a table: sync rate as a share of the idle one (f) and throughput of the flood as a share of
that with default limits (g), medians of the repeats, and whether the class holds what it is for.
The exit code is 1 when one does not. `--plan` tells what would run, and how long. Runs are kept
like those of `make bench`, which has the scenarios as well; what is there is not done again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from writebackd.alerts.alert_types import AlertName

from . import bench, scenario, score
from .bench import Job
from .evaluation import Contender, Run
from .evaluation import Scenario as Scored
from .remains import RigError
from .scenario import WAYS


class Task(Enum):
    """What a policy is for, and with that, what it has to show."""

    PROTECT = "protect"  # score at least BETTER times that with default limits
    HARMLESS = "harmless"  # score at least UNHARMED of it: nothing to protect
    THROUGHPUT = "throughput"  # nobody syncs: g at least FULL
    WATCH = "watch"  # limits never touched, the collapse told


# A repeat differs from the next by a third (tests/lab/README.md); no class that protects is near.
BETTER = 2.0
UNHARMED = 0.95
FULL = 0.99


@dataclass(frozen=True)
class Class:
    policy: str
    scenario: str  # of tests/lab/scenarios, that looks like the class's hosts
    task: Task

    @property
    def contender(self) -> str:
        return f"agent-as-{self.policy}"


CLASSES = (
    Class("default", "slow-raid", Task.PROTECT),
    Class("db-hwraid", "flood", Task.PROTECT),
    Class("db-ssd", "ssd", Task.PROTECT),
    Class("db-nvme", "nvme", Task.PROTECT),
    Class("etcd", "etcd", Task.PROTECT),
    Class("kubernetes-node", "kubernetes-node", Task.PROTECT),
    Class("file-server", "file-server", Task.PROTECT),
    Class("backup-target", "backup-alone", Task.THROUGHPUT),
    Class("desktop", "desktop", Task.HARMLESS),
    Class("vm-guest", "cloud-volume", Task.PROTECT),
    Class("hypervisor", "hypervisor", Task.PROTECT),
    Class("analytics", "analytics", Task.THROUGHPUT),
    Class("ceph-osd", "ceph-osd", Task.WATCH),
)
BY_POLICY: Dict[str, Class] = {each.policy: each for each in CLASSES}


@dataclass(frozen=True)
class Verdict:
    """`good` is None where a run is missing; `misses` says in words what does not hold."""

    good: Optional[bool]
    misses: Sequence[str] = ()


def judge(each: Class, scored: Scored) -> Verdict:
    """By the class's task, and by what its scenario expects of its contender."""
    default, agent = (scored.contenders.get(name) for name in ("default", each.contender))
    if default is None or agent is None or default.score is None or agent.score is None:
        return Verdict(None, ("not measured",))
    misses: List[str] = []
    if each.task is Task.WATCH:
        misses += watched(agent)
    elif each.task is Task.THROUGHPUT:
        if (agent.g or 0.0) < FULL:
            misses.append(f"g below {FULL}")
    else:
        wanted = BETTER if each.task is Task.PROTECT else UNHARMED
        if agent.score < wanted * default.score:
            misses.append(f"score below {wanted:g} x default's")
    misses += [f"{check.text}: {check.value}" for check in scored.checks
               if check.ok is False and each.contender in check.text]
    return Verdict(not misses, misses)


def watched(agent: Contender) -> List[str]:
    """What of observing does not hold in its runs."""
    told = [run["agent"] or {} for run in agent.runs if run["error"] is None]
    misses = []
    if any(each.get("limit_writes") for each in told):
        misses.append("a limit was written")
    if not all(AlertName.COLLAPSE.value in each.get("alerts", ()) for each in told):
        misses.append("the collapse was not told")
    return misses


def table(chosen: Sequence[Class], runs: Sequence[Run]) -> List[str]:
    """Its lines; those of classes that fall short say in what."""
    by_scenario = {each.name: each for each in score.evaluate(runs).scenarios}
    lines = [f"{'class':17}{'scenario':17}{'f default':>10}{'f agent':>9}{'g':>7}"
             f"{'score default':>15}{'score agent':>13}  verdict"]
    for each in chosen:
        scored = by_scenario.get(each.scenario, Scored(each.scenario))
        default, agent = (scored.contenders.get(name, Contender(name, ""))
                          for name in ("default", each.contender))
        verdict = judge(each, scored)
        word = {True: "good", False: "MISSED", None: "open"}[verdict.good]
        lines.append(f"{each.policy:17}{each.scenario:17}{number(default.f):>10}"
                     f"{number(agent.f):>9}{number(agent.g):>7}{number(default.score):>15}"
                     f"{number(agent.score):>13}  {'; '.join((word, *verdict.misses))}")
    return lines


def number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.3g}"


def planned(chosen: Sequence[Class], way: str, repeats: int) -> List[Job]:
    return [job for each in chosen for job in bench.plan(
        [scenario.load(each.scenario)], way, ("default", each.contender), repeats)]


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.classes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", metavar="CLASS")
    parser.add_argument("--way", choices=WAYS, default="native")
    parser.add_argument("--repeats", type=int, default=bench.REPEATS, metavar="N")
    parser.add_argument("--out", type=Path, default=bench.RESULTS, metavar="DIR")
    parser.add_argument("--plan", action="store_true", help="show what would run, and how long")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.classes if name not in BY_POLICY]
    if unknown:
        parser.error(f"no class {' '.join(unknown)}; there are {' '.join(BY_POLICY)}")
    chosen = [BY_POLICY[name] for name in arguments.classes] or list(CLASSES)
    started = time.monotonic()
    try:
        jobs = planned(chosen, arguments.way, arguments.repeats)
        bench.show_plan(jobs)
        if arguments.plan:
            return 0
        if os.geteuid():
            raise RigError("disks and limits need root")
        results = arguments.out / arguments.way
        errors, conditions = bench.measure(jobs, arguments.way, results)
        runs = bench.read_runs(results, [scenario.load(each.scenario) for each in chosen],
                               conditions)
    except RigError as error:
        print(f"classes: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: disks are gone and limits are back; the same command goes on from "
              "here", file=sys.stderr)
        return 130
    lines = table(chosen, runs)
    print("\n".join(["", *lines]))
    for line in errors:
        print(f"failed: {line}", file=sys.stderr)
    print(f"Took {(time.monotonic() - started) / 60:.1f} min.")
    return 1 if errors or any("  good" not in line for line in lines[1:]) else 0


if __name__ == "__main__":
    sys.exit(main())
