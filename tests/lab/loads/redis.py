# SPDX-License-Identifier: GPL-2.0-or-later
"""Redis with an append-only file, and what redis-benchmark and the server say of latencies."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import ClassVar, Dict, List, Mapping, Tuple

from writebackd.policy.units import parse_frequency

from ..remains import RigError
from .base import Measured, Options
from .options import one_of, positive, positive_size
from .server import Database
from .stats import distribution_of_bins, quantile_of_bins

MS = 1e-3
BURSTS = 5  # per second, where a rate is asked for: the tool has none itself
CHUNK = 500  # commands of one report without a rate
LEAST_MS = 10  # that the server's latency monitor stores


class Redis(Database):
    """Operations are SETs as a client sees them, told by redis-benchmark."""

    KIND = "redis"
    TOOLS: ClassVar[Mapping[str, str]] = {"redis-server": "redis-server",
                                          "redis-benchmark": "redis-tools"}
    OPTIONS: ClassVar[Options] = {
        "appendfsync": (one_of("everysec", "always"), "everysec"),
        "clients": (positive, "1"),
        "value": (positive_size, "1K"),
        "rate": (parse_frequency, "0/s"),  # of all clients; 0: as fast as it can
    }

    @property
    def socket(self) -> Path:
        return self.place.runtime / "redis.sock"

    def make(self) -> None:
        self.data.mkdir()

    def server(self, durable: bool) -> List[str]:
        return ["redis-server", "--port", "0", "--unixsocket", str(self.socket),
                "--dir", str(self.data), "--save", "", "--appendonly", "yes",
                "--appendfsync", self.options["appendfsync"] if durable else "no",
                "--auto-aof-rewrite-percentage", "0",
                "--latency-monitor-threshold", str(LEAST_MS)]

    def ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def fill(self) -> None:
        """Nothing: it starts empty."""

    def command(self, seconds: int) -> List[str]:
        """Reports one after the other until the time is up, then what the server has seen."""
        rate = self.options["rate"]
        chunk = max(1, round(rate / BURSTS)) if rate else CHUNK
        cli = f"redis-cli -s {self.socket}"
        return ["sh", "-c", f"""{cli} LATENCY RESET >/dev/null
end=$(($(date +%s) + {seconds}))
while [ "$(date +%s)" -lt $end ]; do
    redis-benchmark -s {self.socket} -t set -r 100000 -n {chunk} -d {self.options['value']} \
-c {self.options['clients']} || exit 1
    sleep {1 / BURSTS if rate else 0}
done
{cli} --csv LATENCY LATEST
{cli} INFO persistence"""]

    def result(self, output: str) -> Measured:
        return of_reports(output, self.options["rate"])


def of_reports(output: str, rate: float) -> Measured:
    """Of all reports together; with a rate the pauses between them count as time."""
    done = re.findall(r"(\d+) requests completed in ([\d.]+) seconds", output)
    bins: Dict[float, float] = {}
    for report in output.split("Latency by percentile distribution:")[1:]:
        before = 0
        for value, count in steps(report.partition("Cumulative distribution")[0]):
            bins[value] = bins.get(value, 0) + count - before
            before = count
    if not done or not bins:
        raise RigError(f"redis-benchmark's output is not as expected: {output[-500:]}")
    ops, ordered = sum(int(count) for count, _ in done), sorted(bins.items())
    elapsed = sum(float(took) for _, took in done) + (len(done) / BURSTS if rate else 0)
    extra = {f"{event.replace('-', '_')}_max_s": float(longest) * MS for event, longest in
             re.findall(r'"([\w-]+)",\d+,\d+,(\d+)', output)}
    delayed = re.search(r"aof_delayed_fsync:(\d+)", output)
    return Measured(
        elapsed=elapsed, ops=ops, rate=ops / elapsed,
        mean=sum(value * count for value, count in ordered) / sum(bins.values()),
        p50=quantile_of_bins(ordered, 0.5), p95=quantile_of_bins(ordered, 0.95),
        p99=quantile_of_bins(ordered, 0.99), max=ordered[-1][0],
        cdf=distribution_of_bins(ordered),
        extra={**extra, "aof_delayed_fsync": float(delayed.group(1)) if delayed else 0.0})


def steps(report: str) -> List[Tuple[float, int]]:
    """(seconds, commands that took no longer), upwards."""
    return [(float(value) * MS, int(count)) for value, count in re.findall(
        r"[\d.]+% <= ([\d.]+) milliseconds \(cumulative count (\d+)\)", report)]
