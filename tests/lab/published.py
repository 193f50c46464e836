# SPDX-License-Identifier: GPL-2.0-or-later
"""The published tables again, scaled to this machine, each beside what was published.

    sudo build/venv/bin/python -m tests.lab.published [--repeats N] TABLE...

runs a table's scenarios and prints Markdown: the published rows, then ours, medians of the
repeats. TABLE: hand-tuned, destage, flash, drives, databases, databases-full, tpcc. `--plan` tells
what would run, and how long. Runs are kept like those of `make bench`; what is there is not done
again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import bench, scenario
from .evaluation import Run
from .remains import RigError
from .scenario import Scenario

MB = 1 << 20


@dataclass(frozen=True)
class Table:
    published: str  # in Markdown, as the report had it
    scenarios: Callable[[], Sequence[Scenario]]
    contenders: Tuple[str, ...]
    idle: bool = True  # whether there is a row for the time before the flood


def made(name: str, summary: str, preset: str, loads: Mapping[str, Mapping[str, str]],
         flood: Optional[Mapping[str, str]], idle_s: float, judged: str, prepare_s: float = 12,
         fs: str = "xfs") -> Scenario:
    """Loads on one disk, alone until half a second after the idle window; then a flood."""
    sections: Dict[str, Mapping[str, str]] = {
        "scenario": {"summary": summary, "shows": "The published order.", "ways": "native",
                     "tags": "extra", "idle": f"500ms..{500 + idle_s * 1000:.0f}ms",
                     "judged": judged, "prepare": f"{prepare_s:g}s"},
        "disk db": {"preset": preset, "fs": fs}}
    for load, options in loads.items():
        sections[f"load {load}"] = {"role": "sync", **options}
    if flood is not None:
        sections["load flood"] = {"kind": "dd", "role": "flood", "runs": f"{idle_s + 1:g}s..",
                                  **flood}
    return scenario.parse(name, sections)


OLTP = {"kind": "mysql-oltp", "tables": "8", "rows": "50000", "pool": "16M", "threads": "8"}


def hand_tuned() -> List[Scenario]:
    return [scenario.load("seed-table")]


def destage() -> List[Scenario]:
    """The flood is steady, as in the first report; before it there are 14 s of OLTP alone."""
    return [made(f"destage-{how}", "OLTP before a flash cache", f"flash-{how}", {"oltp": OLTP},
                 {"size": "auto"}, 14, "22s..48s") for how in ("by-time", "at-10", "at-50")]


FILEIO = ("rndrw", "rndwr", "rndrd", "seqwr", "seqrd")


def flash() -> List[Scenario]:
    return [made(f"fileio-{disk}-{mode}", "sysbench fileio without a flood", disk,
                 {"fileio": {"kind": "sysbench-fileio", "mode": mode, "size": "512M",
                             "block": "16K"}}, None, 1, "3s..13s", 3)
            for mode in FILEIO for disk in ("flash-before-hdd", "hdd-no-cache")]


def drives() -> List[Scenario]:
    return [made(f"drive-{name}", "OLTP on a drive that compresses or collects garbage",
                 f"drive-{name}", {"oltp": OLTP}, {"size": "auto", "data": "compressible"},
                 5, "15s..45s") for name in ("compressing", "plain")]


# 16 of these write a fifth of what the disk takes, at full speed all of it.
MIX = {"kind": "pgbench-mix", "scale": "1", "pool": "16M", "clients": "2", "rate": "20/s"}


def databases(counts: Sequence[int] = (4, 8, 12, 16), rate: str = MIX["rate"],
              name: str = "databases") -> List[Scenario]:
    """16 MB of buffers for each, and a directory of its own."""
    return [made(f"{name}-{count}", f"{count} PostgreSQL servers", "slow-raid-256M-60MBps",
                 {f"db{number}": {**MIX, "rate": rate} for number in range(count)},
                 {"size": "auto"}, 3, "10s..34s", 1.6 * count + 6)
            for count in counts]


def tpcc() -> List[Scenario]:
    return [made("tpcc", "a tpcc-like mix on PostgreSQL", "slow-raid-256M-60MBps",
                 {"oltp": {"kind": "tpcc", "clients": "8", "pool": "16M"}},
                 {"size": "auto"}, 4, "11s..36s")]


REVIEW = """\
| published: OLTP on arrays and drives, 4, 8, 12, 16 at once | TPS | p99 ms |
|---|---|---|
| lowest | 669 | 462 |
| highest | 2735 | 20 |"""
TABLES: Dict[str, Table] = {
    "hand-tuned": Table("""\
| published: 4 KiB random write + fsync, one thread | per s | mean ms | p95 | max |
|---|---|---|---|---|
| no flood (15 MB) | 1460 | 0.68 | 3.28 | 276 |
| dd floods, dirty_bytes 1 GB | 0.98 | 1015 | 1591 | 1592 |
| dd floods, dirty_bytes 15 MB | 450.75 | 2.22 | 12.35 | 146 |""",
                        hand_tuned, ("static-1G", "static-15M", "agent")),
    "destage": Table("""\
| published: OLTP, no flood | reads/s | writes/s |
|---|---|---|
| vCache, by time | 27 000 | below 8 000 |
| vCache, threshold | 12 500 | 6 000 |
| FlashCache | 7 500 | 2 500 |""", destage, ("default", "agent")),
    "flash": Table("""\
| published: fileio, requests/s | SSD + disk | disk | factor |
|---|---|---|---|
| random read/write | 7354 | 746 | 9.9 |
| random write | 5323 | 302 | 17.6 |
| random read | 3010 | 205 | 14.7 |
| sequential write | 7832 | 4421 | 1.8 |
| sequential read | 8161 | 4813 | 1.7 |""", flash, ("default",), idle=False),
    "drives": Table("""\
| published | |
|---|---|
| write rate on compressible data, compressing drive / plain | about 2 |
| latency | steady / swings as it fills up and collects garbage |""",
                    drives, ("default", "agent")),
    "databases": Table(REVIEW, databases, ("default", "static-15M", "agent")),
    "databases-full": Table(REVIEW, lambda: databases((4, 16), "0/s", "databases-full"),
                            ("default", "static-15M", "agent")),
    "tpcc": Table("Published: tpcc-mysql is named among the tools, without figures.",
                  tpcc, ("default", "static-15M", "agent")),
}


# ---- figures -----------------------------------------------------------------

HEADS = ("per s", "mean ms", "p95", "p99", "p99.9", "max", "CV", "disk reads MB/s",
         "disk writes MB/s", "CPU")
Figures = Mapping[str, Optional[float]]


def figures(run: Run, window: str) -> Figures:
    """Of all synchronous loads of a run together, by HEADS; times in milliseconds.

    Where a tool had to be killed, its latencies are not known; `max` is then the least that it was.
    """
    measured = [load["windows"][window] for load in synchronous(run, window)]
    told = bool(measured) and all(each["cdf"] for each in measured)
    latencies = distribution(run, window) if told else []
    series = total_series([each["series"] for each in measured])
    ops = sum(each["ops"] or 0 for each in measured)
    longest = max((each["max"] or 0.0 for each in measured), default=0.0)

    def quantile(share: float) -> Optional[float]:
        return next((at * 1000 for at, upto in latencies if upto >= share - 1e-9), None)

    known = [(each["ops"], each["mean"]) for each in measured if each["ops"] and each["mean"]]
    return {
        "per s": sum(each["rate"] or 0.0 for each in measured),
        "mean ms": sum(n * mean for n, mean in known) / ops * 1000 if told else None,
        "p95": quantile(0.95), "p99": quantile(0.99), "p99.9": quantile(0.999),
        "max": longest * 1000,
        "CV": variation(series),
        "disk reads MB/s": over(run, window, "read_rate", 1 / MB),
        "disk writes MB/s": over(run, window, "device_rate", 1 / MB),
        "CPU": over(run, window, "processors", 1 / (run["cpus"] or 1))}


def distribution(run: Run, window: str) -> List[Tuple[float, float]]:
    """Latency and share of operations up to it, all synchronous loads by their number."""
    curves = [(measured["ops"], measured["cdf"]) for load in synchronous(run, window)
              for measured in [load["windows"][window]] if measured["ops"] and measured["cdf"]]
    total = sum(ops for ops, _ in curves)
    latencies = sorted({latency for _, points in curves for latency, _ in points})
    return [(latency, sum(ops * max((share for at, share in points if at <= latency), default=0.0)
                          for ops, points in curves) / total) for latency in latencies]


def synchronous(run: Run, window: str) -> List[Mapping[str, Any]]:
    """Its loads that were measured in that window."""
    return [load for load in run["loads"]
            if load["role"] == "sync" and load["windows"].get(window)]


def total_series(each: Sequence[Sequence[float]]) -> List[float]:
    """Operations in each second that all have told of; a load that was killed told of fewer."""
    longest = max((len(one) for one in each), default=0)
    return [sum(one[second] if second < len(one) else 0.0 for one in each)
            for second in range(longest)]


def variation(series: Sequence[float]) -> Optional[float]:
    """Standard deviation / mean; None where nothing was done or there is one second only."""
    if len(series) < 2 or not any(series):
        return None
    return statistics.pstdev(series) / statistics.fmean(series)


def over(run: Run, window: str, column: str, factor: float) -> Optional[float]:
    """Mean of a curve in a window; of a curve for each disk, the sum."""
    start, end = run["windows"][window]
    curves = run["series"][column]
    total = 0.0
    for values in curves.values() if isinstance(curves, dict) else [curves]:
        inside = [value for at, value in zip(run["series"]["t"], values)
                  if start <= at <= end and value is not None]
        if not inside:
            return None
        total += statistics.fmean(inside)
    return total * factor


def medians(found: Sequence[Figures]) -> Figures:
    return {head: statistics.median(known) if known else None for head in HEADS
            for known in [[value for each in found for value in [each[head]]
                           if value is not None]]}


def cell(head: str, value: Optional[float]) -> str:
    if value is None:
        return "-"
    if head in ("CV", "CPU"):
        return f"{value:.2f}" if head == "CV" else f"{value:.0%}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def table(chosen: Table, scenarios: Iterable[Scenario], runs: Sequence[Run]) -> List[str]:
    """Markdown lines of ours; a scenario or contender without a run has a line that says so."""
    lines = [f"| here | {' | '.join(HEADS)} |", "|---" * (len(HEADS) + 1) + "|"]
    for each in scenarios:
        good = [run for run in runs if run["scenario"] == each.name and not run["error"]]
        rows = [("alone", "idle", good)] if chosen.idle else []
        rows += [(name, "judged", [run for run in good if run["contender"] == name])
                 for name in chosen.contenders]
        for name, window, of in rows:
            found = medians([figures(run, window) for run in of])
            cells = [cell(head, found[head]) for head in HEADS] if of else ["not measured"]
            lines.append(f"| {each.name}, {name} | {' | '.join(cells)} |")
    return lines


# ---- command -----------------------------------------------------------------


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.published", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", metavar="TABLE", choices=TABLES)
    parser.add_argument("--contender", type=bench.words, default=(), metavar="NAME[,NAME]")
    parser.add_argument("--scenario", type=bench.words, default=(), metavar="NAME[,NAME]",
                        help="only these of the tables' scenarios")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, default=bench.RESULTS, metavar="DIR")
    parser.add_argument("--plan", action="store_true", help="show what would run, and how long")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    errors: List[str] = []
    try:
        for name in arguments.tables:
            errors += show(name, TABLES[name], arguments)
    except RigError as error:
        print(f"published: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: disks are gone and limits are back; the same command goes on from "
              "here", file=sys.stderr)
        return 130
    for line in errors:
        print(f"failed: {line}", file=sys.stderr)
    print(f"Took {(time.monotonic() - started) / 60:.1f} min.", file=sys.stderr)
    return 1 if errors else 0


def show(name: str, chosen: Table, arguments: argparse.Namespace) -> List[str]:
    """Run what is not there yet and print the table; the errors of runs that failed."""
    scenarios = [each for each in chosen.scenarios()
                 if not arguments.scenario or each.name in arguments.scenario]
    jobs = bench.plan(scenarios, "native", arguments.contender or chosen.contenders,
                      arguments.repeats)
    if arguments.plan:
        bench.show_plan(jobs)
        return []
    if os.geteuid():
        raise RigError("disks and limits need root")
    results = arguments.out / "native"
    errors, conditions = bench.measure(jobs, "native", results)
    runs = bench.read_runs(results, scenarios, conditions)
    print(f"\n### {name}\n\n{chosen.published}\n")
    print("\n".join(table(chosen, scenarios, runs)))
    return errors


if __name__ == "__main__":
    sys.exit(main())
