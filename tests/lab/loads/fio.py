# SPDX-License-Identifier: GPL-2.0-or-later
"""fio, with its options as they are called there."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import ClassVar, Counter, List, Mapping, Sequence, Tuple

from writebackd.policy.units import parse_switch

from ..remains import RigError
from .base import Measured, Options
from .flood import check_room
from .options import one_of, positive, positive_size, whole
from .stats import distribution_of_bins, quantile_of_bins
from .tool import Tool, do

NS = 1e-9
DIRECTIONS = ("read", "write", "trim")


class Fio(Tool):
    """Operations are the fsyncs where there are any, and reads and writes otherwise."""

    KIND = "fio"
    TOOLS: ClassVar[Mapping[str, str]] = {"fio": "fio"}
    OPTIONS: ClassVar[Options] = {
        "rw": (one_of("read", "write", "randread", "randwrite", "rw", "randrw"), "randwrite"),
        "rwmixread": (whole, "50"),
        "bs": (positive_size, "4K"),
        "size": (positive_size, "256M"),  # of each job's file
        "numjobs": (positive, "1"),
        "iodepth": (positive, "1"),
        "ioengine": (one_of("psync", "libaio", "io_uring", "mmap"), "psync"),
        "direct": (parse_switch, "no"),
        "fsync": (whole, "0"),  # after so many writes; 0: never
        "fdatasync": (whole, "0"),
    }

    def _arguments(self) -> List[str]:
        values = {**self.options, "size": self.scaled("size"),
                  "direct": int(self.options["direct"])}
        return ["fio", "--name=fio", f"--directory={self.place.directory}", "--thread",
                "--group_reporting", "--output-format=json+", f"--randseed={self.place.seed}",
                "--invalidate=0",
                *(f"--{key}={value}" for key, value in values.items())]

    def prepare(self) -> None:
        check_room(self.place.directory, self.scaled("size") * self.options["numjobs"])
        do(self.place, [*self._arguments(), "--create_only=1"])

    def command(self, seconds: int) -> List[str]:
        return [*self._arguments(), f"--output={self.window}.json", "--time_based",
                f"--runtime={seconds}", f"--write_iops_log={self.window}", "--log_avg_msec=1000",
                "--per_job_logs=0"]

    def result(self, output: str, elapsed: float) -> Measured:
        return of_json(Path(f"{self.window}.json").read_text(),
                       Path(f"{self.window}_iops.log").read_text())


def of_json(output: str, iops_log: str) -> Measured:
    """From fio's json+ of one group of jobs and its log of operations per second."""
    try:
        job = json.loads(output[output.index("{"):])["jobs"][0]
        used = [job[name] for name in DIRECTIONS if job[name]["total_ios"]]
        elapsed = max(each["runtime"] for each in used) / 1000
        requests, syncs = sum(each["total_ios"] for each in used), job["sync"].get("total_ios", 0)
        latencies = [job["sync"]["lat_ns"]] if syncs else [each["clat_ns"] for each in used]
        bins = merged([each["bins"] for each in latencies])
        samples = sum(count for _, count in bins)
        mean = sum(each["mean"] * each["N"] for each in latencies) / samples * NS
        longest = max(each["max"] for each in latencies) * NS
        written = job["write"]["io_bytes"]
    except (ValueError, KeyError, IndexError, ZeroDivisionError) as error:
        raise RigError(f"fio's output is not as expected: {error!r}: {output[:200]}") from None
    done = syncs or requests
    return Measured(
        elapsed=elapsed, ops=done, rate=done / elapsed, mean=mean,
        p50=quantile_of_bins(bins, 0.5), p95=quantile_of_bins(bins, 0.95),
        p99=quantile_of_bins(bins, 0.99), max=longest, cdf=distribution_of_bins(bins),
        # An fsync comes after so many writes.
        series=[count * done / requests for count in per_second(iops_log)],
        bytes=written, byte_rate=written / elapsed,
        extra={f"{name}_iops": job[name]["iops"] for name in DIRECTIONS if job[name]["total_ios"]})


def merged(histograms: Sequence[Mapping[str, int]]) -> List[Tuple[float, int]]:
    """fio's bins of several directions as one, in seconds."""
    counts: Counter[int] = collections.Counter()
    for bins in histograms:
        counts.update({int(value): count for value, count in bins.items()})
    return [(value * NS, count) for value, count in sorted(counts.items())]


def per_second(log: str) -> List[float]:
    """Lines `ms, operations, direction, ...`, one for each job, direction and second."""
    seconds: Counter[int] = collections.Counter()
    for line in log.splitlines():
        at, count = line.split(",")[:2]
        seconds[round(int(at) / 1000)] += int(count)
    return [float(seconds[second]) for second in range(1, max(seconds, default=0) + 1)]
