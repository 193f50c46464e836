# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent against every rival, on modelled disks: `make bench`, or this module.

Runs are interleaved, contender by contender and repeat by repeat, one JSON file each.
A run that is there already, of the same scenario, contender and code, is not done
again: what was interrupted goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from writebackd.policy import units

from . import ballast, catalogue, contenders, ground, regress, scenario, score, vm
from .contenders import Contender
from .loads import KINDS
from .remains import RigError, path_with_sbin
from .remains import names as rigs_left
from .run import Conditions, perform
from .scenario import WAYS, Scenario
from .show import FIGURES, MEANING, Progress, figures, table

TOP = Path(__file__).resolve().parents[2]
RESULTS = TOP / "build/lab/results"
LOCK = Path("/run/writebackd-bench.lock")
PREFIX = "bench"  # of the rigs' names: two benchmarks at once would measure each other
REPEATS = 3
QUICK_CONTENDERS = ("default", "static-16M", "static-4M", "static-2M", "agent")
# Of the lab, what has a part in a run's outcome: not what plans, scores or shows.
LAB = ("tests/lab/disk/*.[ch]", "tests/lab/presets.conf", "tests/lab/loads/**/*.py",
       "tests/lab/loads/**/*.sql", "tests/vm/[!t_]*.py",
       *(f"tests/lab/{name}.py" for name in (
           "agent", "attach", "ballast", "cgroups", "disks", "ground", "host", "rig",
           "run", "series", "vm", "watch")))
CHECKED = ("default", "static-15M", "agent")
SCALE = {"native": 1.0, "vm": 0.1, "virtual": 0.1}
ENDED = r", repeat \d+: (done|FAILED)"  # of what Progress prints
BOOT_S, EMULATION = 300, 20  # wall time that a guest may take, and per second of its own
OVERHEAD_S = 1.0  # of a run, besides its scenario's own: taking down, the agent's start


@dataclass(frozen=True)
class Job:
    scenario: Scenario
    contender: Contender
    repeat: int

    @property
    def seconds(self) -> float:
        return self.scenario.length + self.scenario.prepare + OVERHEAD_S

    def file(self, results: Path) -> Path:
        name = self.contender.name.replace("/", ":")
        return results / self.scenario.name / f"{name}-{self.repeat}.json"


def plan(scenarios: Sequence[Scenario], way: str, wanted: Sequence[str],
         repeats: int) -> List[Job]:
    """Every repeat begins with another contender, so that none always follows the same one."""
    jobs = []
    for each in scenarios:
        if way not in each.ways:
            continue
        found = contenders.of(each, way, wanted)
        for repeat in range(1, repeats + 1):
            shift = (repeat - 1) * len(found) // max(1, repeats)
            jobs += [Job(each, contender, repeat) for contender in found[shift:] + found[:shift]]
    return jobs


@functools.lru_cache(maxsize=None)
def digest(*patterns: str) -> str:
    """Of the contents of files below the top, by glob patterns."""
    total = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in TOP.glob(pattern)
                        if path.is_file()}):
        total.update(f"{path.relative_to(TOP)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def inputs(job: Job, conditions: Conditions) -> str:
    """What decides the outcome: a result with other inputs is of no use."""
    name = job.scenario.name
    lineage = scenario.lineage(name) if name in scenario.names() else []
    parts = [repr(conditions), repr(job.contender), repr(job.scenario.changed),
             digest(*LAB, *(f"tests/lab/scenarios/{each}.conf" for each in lineage))]
    if not lineage:
        parts.append(repr(job.scenario))  # it has no file
    if job.contender.kind == "agent":
        parts.append(digest("agent/writebackd/**/*.py", "bpf/*.[ch]",
                            f"policies/{job.contender.as_class or 'default'}.conf"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read_runs(results: Path, scenarios: Sequence[Scenario],
              conditions: Conditions) -> List[Dict[str, Any]]:
    """All runs of these scenarios, also those of other contenders than were asked for now.

    But none of another version of the scenario, the model, the loads or the agent: it
    cannot be compared.
    """
    found = []
    for each in scenarios:
        for path in sorted((results / each.name).glob("*.json")):
            run = read_run(path)
            if run is not None:
                job = Job(each, contenders.named(run["contender"]), run["repeat"])
                if run.get("inputs") == inputs(job, conditions):
                    found.append(run)
    return found


def read_run(path: Path) -> Optional[Dict[str, Any]]:
    try:
        run = json.loads(path.read_text())
        return run if isinstance(run, dict) and "contender" in run else None
    except (OSError, ValueError):
        return None


def write_run(path: Path, run: Dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(run, allow_nan=False) + "\n")
    new.rename(path)


def is_done(job: Job, conditions: Conditions, results: Path) -> bool:
    run = read_run(job.file(results))
    return (run is not None and run["error"] is None
            and run.get("inputs") == inputs(job, conditions))


def do(jobs: Sequence[Job], conditions: Conditions, results: Path,
       lines: bool = False) -> List[str]:
    """Run what is not there yet; the errors of those that failed.

    lines: tell the progress in lines even on a terminal, for a program to read.
    """
    errors = []
    left = [job for job in jobs if not is_done(job, conditions, results)]
    progress = Progress([job.seconds for job in left], len(jobs) - len(left), lines)
    for job in left:
        progress.begin(f"{job.scenario.name}: {job.contender.name}, repeat {job.repeat}")
        run = perform(job.scenario, job.contender, job.repeat, conditions)
        run["inputs"] = inputs(job, conditions)
        write_run(job.file(results), run)
        if run["error"]:
            errors.append(f"{job.scenario.name}, {job.contender.name}: {run['error']}")
        progress.end(run["error"])
    progress.close()
    return errors


def do_in_guests(jobs: Sequence[Job], conditions: Conditions, results: Path) -> List[str]:
    """The same in virtual machines, one for each scenario."""
    left = [job for job in jobs if not is_done(job, conditions, results)]
    by_scenario: Dict[str, List[Job]] = {}
    for job in left:
        by_scenario.setdefault(job.scenario.name, []).append(job)
    # Virtual time does not care how busy the host is; real time does.
    at_once = os.cpu_count() or 1 if conditions.way == "virtual" else 1
    progress = Progress([job.seconds for job in left], len(jobs) - len(left))
    ended: List[str] = []  # a word for each run that a guest says it has ended
    with ThreadPoolExecutor(at_once) as pool, ended_with(pool):
        guests = [pool.submit(guest, found, conditions, results,
                              lambda text: ended.extend(re.findall(ENDED, text)))
                  for found in by_scenario.values()]
        waiting = set(guests)
        while waiting:
            _, waiting = wait(waiting, timeout=2)
            progress.at(min(len(ended), len(left)), f"{len(waiting)} machines to go")
    progress.close()
    return [error for future in guests for error in future.result()]


@contextlib.contextmanager
def ended_with(pool: ThreadPoolExecutor) -> Iterator[None]:
    """An interrupt ends the guests; else leaving the pool would wait for all of them."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for path in Path("/proc/self/task").glob("*/children"):
            for pid in path.read_text().split():
                # A machine has a process group of its own, with all that belongs to it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(pid), signal.SIGKILL)
        raise


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """RigError while another benchmark runs on this host: they would measure each other."""
    with open(LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RigError("another benchmark runs on this host: wait for it") from None
        yield


def guest(jobs: Sequence[Job], conditions: Conditions, results: Path,
          progress: Callable[[str], None]) -> List[str]:
    """Run the jobs of one scenario in a machine of its own; the errors."""
    name, way = jobs[0].scenario.name, conditions.way
    names = ",".join(dict.fromkeys(job.contender.name for job in jobs))
    repeats = max(job.repeat for job in jobs)
    limit = BOOT_S + EMULATION * sum(job.seconds for job in jobs)
    share = results / name  # and no more: what others write meanwhile is not this guest's
    share.mkdir(parents=True, exist_ok=True)
    try:
        said = vm.run([sys.executable, "-m", "tests.lab.bench", "--inside", "--way", way,
                       "--scenario", name, "--contender", names, "--repeats", str(repeats),
                       "--scale", str(conditions.scale),
                       *([] if jobs[0].scenario == catalogue.load(name) else ["--quick"]),
                       "--out", str(results.parent)], way, share, limit,
                      progress=progress).output
    except RigError as error:
        said = str(error)
    errors = []
    for job in jobs:
        run = read_run(job.file(results))
        if run is None or run.get("inputs") != inputs(job, conditions):
            errors.append(f"{name}, {job.contender.name}: no result; the machine said: "
                          f"{said.strip()[-2000:]}")
        elif run["error"]:
            errors.append(f"{name}, {job.contender.name}: {run['error']}")
    return errors


def choose(arguments: argparse.Namespace) -> List[Scenario]:
    """The scenarios that were asked for, else those with the tag, else all. RigError."""
    if arguments.directory is not None:
        return [ground.on(arguments.directory)]
    found = [catalogue.load(name) for name in arguments.scenario or scenario.names()]
    if not arguments.scenario:
        tag = "ci" if arguments.check else "quick" if arguments.quick else ""
        found = [each for each in found if (tag in each.tags if tag else "extra" not in each.tags)]
    return [each.short() for each in found] if arguments.quick else found


def bench(arguments: argparse.Namespace) -> int:
    scenarios = choose(arguments)
    wanted = arguments.contender
    if not wanted and not arguments.scenario:
        wanted = CHECKED if arguments.check else QUICK_CONTENDERS if arguments.quick else ()
    repeats = arguments.repeats or (1 if arguments.quick else REPEATS)
    jobs = plan(scenarios, arguments.way, wanted, repeats)
    results = arguments.out / arguments.way
    if arguments.plan:
        show_plan(jobs)
        return 0
    errors, conditions = measure(jobs, arguments.way, results, arguments.inside, arguments.scale)
    if arguments.inside:
        return 0
    runs = read_runs(results, scenarios, conditions)
    evaluation = score.evaluate(runs)
    print(table(evaluation))
    print(f"\n{MEANING}")
    (results / FIGURES).write_text(figures(evaluation), encoding="utf-8")
    for error in errors:
        print(f"failed: {error}", file=sys.stderr)
    regressed = False
    if arguments.check:
        lines = regress.compare(evaluation, runs, regress.stored())
        print("\n".join(["", *lines]))
        regressed = any(line.startswith("REGRESSED") for line in lines)
    return 1 if errors or regressed else 0


def measure(jobs: Sequence[Job], way: str, results: Path,
            inside: bool = False, scale: Optional[float] = None) -> Tuple[List[str], Conditions]:
    """Do those that are not there yet; the errors, and what all have in common. RigError.

    scale: of all sizes and rates, instead of the way's own.
    """
    check_tools(jobs)
    if not jobs:
        raise RigError(f"nothing to run: the scenarios asked for have no way {way}")
    left = [name for name in rigs_left() if name.startswith(PREFIX)]
    if left:
        raise RigError(f"a killed run left {', '.join(left)}: remove it with make bench-clean")
    # What a guest has is little already; nobody knows it out here.
    memory = ballast.left() if way == "native" else units.parse_size(vm.MEMORY)
    kernel = f"{platform.release()}, {os.cpu_count()} CPUs" if way == "native" else way
    conditions = Conditions(way, scale or SCALE[way], PREFIX, memory, kernel)
    with alone():
        if inside:
            return do(jobs, conditions, results, lines=True), conditions
        if way == "native":
            with ballast.Ballast():
                return do(jobs, conditions, results), conditions
        return do_in_guests(jobs, conditions, results), conditions


def check_tools(jobs: Sequence[Job]) -> None:
    """RigError with the command that installs what the loads lack."""
    tools = {tool: package for job in jobs for load in job.scenario.loads
             for tool, package in KINDS[load.kind].TOOLS.items()}
    missing = sorted({package for tool, package in tools.items()
                      if shutil.which(tool, path=path_with_sbin()) is None})
    if missing:
        raise RigError("packages are missing: agent/setup.sh bench, or "
                       f"apt-get install --no-install-recommends {' '.join(missing)}")


def show_plan(jobs: Sequence[Job]) -> None:
    by_scenario: Dict[str, List[Job]] = {}
    for job in jobs:
        by_scenario.setdefault(job.scenario.name, []).append(job)
    for name, found in by_scenario.items():
        print(f"{name:24}{len(found):4} runs{sum(job.seconds for job in found) / 60:7.1f} min")
    print(f"{'':24}{len(jobs):4} runs{sum(job.seconds for job in jobs) / 60:7.1f} min")


def share(text: str) -> float:
    """More than nothing, at most the whole; ValueError."""
    found = float(text)
    if not 0 < found <= 1:
        raise ValueError(f"{text} is not in (0, 1]")
    return found


def words(text: str) -> Tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab.bench",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("--scenario", type=words, default=(), metavar="NAME[,NAME]")
    parser.add_argument("--contender", type=words, default=(), metavar="NAME[,NAME]",
                        help="of contenders.conf, or static-SIZE")
    parser.add_argument("--directory", type=Path, metavar="PATH",
                        help="in place of a modelled disk: the disk of this host that PATH is on, "
                        "with files of its own there, which are removed in the end")
    parser.add_argument("--way", choices=WAYS, default="native")
    parser.add_argument("--quick", action="store_true",
                        help="one repeat, and without --scenario only a choice")
    parser.add_argument("--repeats", type=int, metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--scale", type=share, metavar="S",
                        help="factor on all sizes and rates; 0.1 in a machine unless told")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # of a machine
    parser.add_argument("--check", action="store_true",
                        help="fail when the agent is worse than the stored ratios; "
                        "without --scenario of those that are checked with every change")
    parser.add_argument("--plan", action="store_true", help="show what would run, and how long")
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = parse(argv)
    started = time.monotonic()
    try:
        if os.geteuid() and not arguments.plan:
            raise RigError("disks and limits need root: sudo make bench")
        code = bench(arguments)
        if not arguments.plan:
            print(f"Took {(time.monotonic() - started) / 60:.1f} min.")
        return code
    except RigError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: disks are gone and limits are back; the same command goes on from "
              "here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
