# SPDX-License-Identifier: GPL-2.0-or-later
"""sysbench: its file test, as the field reports ran it, and what it says of any test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Dict, List, Mapping, Optional, Tuple

from ..remains import RigError
from .base import Measured, Options
from .flood import check_room
from .options import one_of, positive, positive_size
from .own import make_file
from .stats import distribution_of_bins, quantile_of_bins
from .tool import Tool

MS = 1e-3


class SysbenchFileio(Tool):
    """Random writes to one file, each with an fsync; a request is both.

    The file is made here, so that it is the same for every version: of the full size
    and written, since an fsync costs more where blocks are allocated or were never
    written.  That takes as long as the disk takes for it, 40 s for 10 GB at 250 MB/s.
    """

    KIND = "sysbench-fileio"
    TOOLS: ClassVar[Mapping[str, str]] = {"sysbench": "sysbench"}
    OPTIONS: ClassVar[Options] = {
        "threads": (positive, "1"),
        "size": (positive_size, "10G"),  # --file-total-size
        "block": (positive_size, "4K"),  # --file-block-size
        # Random writes with an fsync each, as published; others past the page cache and without.
        "mode": (one_of("rndwr+fsync", "rndrw", "rndwr", "rndrd", "seqwr", "seqrd"),
                 "rndwr+fsync"),
    }

    @property
    def path(self) -> Path:
        return self.place.directory / "test_file.0"

    def size(self) -> int:
        return self.scaled("size") >> 20 << 20

    def prepare(self) -> None:
        if not self.size():
            raise RigError("sysbench-fileio: size is below 1 MB here")
        check_room(self.place.directory, self.size())
        make_file(self.path, self.size())

    def command(self, seconds: int) -> List[str]:
        mode, synced, _ = self.options["mode"].partition("+fsync")
        extra = "--file-fsync-all=on" if synced else "--file-extra-flags=direct"
        return ["sysbench", "fileio", f"--threads={self.options['threads']}", "--file-num=1",
                f"--file-total-size={self.size()}", extra,
                f"--file-test-mode={mode}", f"--file-block-size={self.options['block']}",
                f"--time={seconds}", "--events=0", "--report-interval=1", "--histogram=on", "run"]

    def result(self, output: str) -> Measured:
        return of_output(output)

    def series(self, output: str) -> List[float]:
        return per_second(output)


def figure(output: str, pattern: str) -> Optional[float]:
    found = re.search(pattern, output)
    return float(found.group(1)) if found else None


def of_output(output: str) -> Measured:
    """From what sysbench 1.0 writes; operations are its events."""
    ops = figure(output, r"total number of events: +(\d+)")
    elapsed = figure(output, r"total time: +([\d.]+)s")
    mean = figure(output, r"avg: +([\d.]+)")
    p95 = figure(output, r"95th percentile: +([\d.]+)")
    longest = figure(output, r"max: +([\d.]+)")
    if ops is None or not elapsed or mean is None or p95 is None or longest is None:
        raise RigError(f"sysbench's output is not as expected: {output[-500:]}")
    bins = histogram(output)
    extra: Dict[str, float] = {}
    for name in ("reads", "writes", "fsyncs"):
        value = figure(output, rf"{name}/s: +([\d.]+)")
        if value is not None:
            extra[f"{name}_per_s"] = value
    for name in ("transactions", "queries"):
        value = figure(output, rf"{name}: +\d+ +\(([\d.]+) per sec")
        if value is not None:
            extra[f"{name}_per_s"] = value
    return Measured(
        elapsed=elapsed, ops=int(ops), rate=ops / elapsed, mean=mean * MS,
        p50=quantile_of_bins(bins, 0.5), p95=p95 * MS, p99=quantile_of_bins(bins, 0.99),
        max=longest * MS, cdf=distribution_of_bins(bins), series=per_second(output), extra=extra)


def histogram(output: str) -> List[Tuple[float, float]]:
    return [(float(value) * MS, float(count)) for value, count in
            re.findall(r"^ +([\d.]+) \|[ *]* (\d+)$", output, re.MULTILINE)]


def per_second(output: str) -> List[float]:
    """Events in each second that it has reported so far."""
    return [float(rate) for rate in re.findall(
        r"^\[ \d+s \] .*\b(?:fsyncs|tps): ([\d.]+)", output, re.MULTILINE)]
