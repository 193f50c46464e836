# SPDX-License-Identifier: GPL-2.0-or-later
"""PostgreSQL with pgbench: its own TPC-B-like test, and a mix like that of TPC-C."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, List, Mapping

from writebackd.policy.units import parse_frequency, parse_share, parse_time

from ..remains import RigError
from . import stats
from .base import Measured, Options
from .options import positive, positive_size
from .own import STUCK_S
from .server import Database
from .tool import do

USER = "postgres"  # Debian's; the server refuses to be root
PORT = "5432"  # only a part of the socket's name
POOL_LEAST = 4 << 20
TPCC = Path(__file__).with_name("tpcc")
MIX = Path(__file__).with_name("mix.sql")
ROWS = 100_000  # of pgbench_accounts, for each unit of its scale


def programs() -> Path:
    """The directory of the newest version's programs, which Debian keeps off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"),
                   key=lambda path: int(path.parts[-3]))
    if not found:
        raise RigError("PostgreSQL's server is missing: "
                       "apt-get install --no-install-recommends postgresql")
    return found[-1].parent


class Pgbench(Database):
    """Operations are transactions, and every one waits until its log is on the disk."""

    KIND = "pgbench"
    # Only the server package has this one on the PATH.
    TOOLS: ClassVar[Mapping[str, str]] = {"pg_ctlcluster": "postgresql"}
    OPTIONS: ClassVar[Options] = {
        "scale": (positive, "10"),  # 100 000 rows and 15 MB each
        "clients": (positive, "8"),
        "pool": (positive_size, "64M"),
        "rate": (parse_frequency, "0/s"),  # transactions that are due; 0: as fast as it can
        # Its own buffered writes come with checkpoints, and each ends with fsyncs.
        "checkpoint": (parse_time, "30s"),
        "spread": (parse_share, "90%"),  # of that time, over which one spreads its writes
    }
    QUICK = signal.SIGINT
    _told = 0  # characters of the server's log before this window

    def make(self) -> None:
        for directory in (self.data, self.socket):
            directory.mkdir()
            shutil.chown(directory, USER, USER)
        do(self.place, [*self._as_user(), str(programs() / "initdb"), f"--pgdata={self.data}",
                        "--auth=trust", f"--username={USER}", "--no-locale", "--encoding=UTF8",
                        "--no-sync", "--no-instructions"], "initdb")

    @property
    def socket(self) -> Path:
        return self.place.runtime / "socket"

    @staticmethod
    def _as_user(*more: str) -> List[str]:
        return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *more, "--"]

    def server(self, durable: bool) -> List[str]:
        settings = {
            "listen_addresses": "", "port": PORT, "unix_socket_directories": str(self.socket),
            "fsync": "on" if durable else "off",
            "shared_buffers": f"{max(POOL_LEAST, self.scaled('pool')) >> 10}kB",
            "checkpoint_timeout": f"{self.options['checkpoint']:g}s",
            "checkpoint_completion_target": f"{self.options['spread']:g}",
            "log_checkpoints": "on", "log_line_prefix": "%n ",  # seconds since 1970
            "max_connections": str(self.options["clients"] + 10),
            "dynamic_shared_memory_type": "mmap",
        }
        # In an IPC namespace of its own, or its System V segment would outlive a kill -9.
        # A process that changes its user loses its death signal, so it is set once more.
        return ["unshare", "--ipc", "--", *self._as_user("--pdeathsig", "QUIT"),
                str(programs() / "postgres"), "-D", str(self.data),
                *(word for key, value in settings.items() for word in ("-c", f"{key}={value}"))]

    def ready(self) -> bool:
        return subprocess.run([str(programs() / "pg_isready"), "-q", *self._connection()],
                              stdin=subprocess.DEVNULL).returncode == 0

    def end_server(self, server: subprocess.Popen[bytes]) -> None:
        """QUIT ends it at once, with all of its processes, which have sessions of their own."""
        server.send_signal(signal.SIGQUIT)
        try:
            server.wait(STUCK_S)
        except subprocess.TimeoutExpired:
            super().end_server(server)

    def _connection(self) -> List[str]:
        return ["--host", str(self.socket), "--port", PORT, "--username", USER]

    def fill(self) -> None:
        scale = max(1, self.scaled("scale"))
        # G: the server makes the rows itself, without a client that sends them.
        do(self.place, [str(programs() / "pgbench"), *self._connection(), "--initialize",
                        "--init-steps=dtGvp", f"--scale={scale}", USER])

    def scripts(self) -> List[str]:
        return []

    def command(self, seconds: int) -> List[str]:
        rate = self.options["rate"]
        # Each server its own: with one seed they would all have something to do at once.
        seed = zlib.crc32(f"{self.place.seed} {self.place.directory.name}".encode())
        return [str(programs() / "pgbench"), *self._connection(), "--no-vacuum",
                f"--client={self.options['clients']}", f"--time={seconds}", "--progress=1",
                "--log", f"--log-prefix={self.window}", f"--random-seed={seed}",
                *([f"--rate={rate:g}"] if rate else []),
                *self.scripts(), USER]

    def open(self, seconds: float) -> None:
        self._told = len(self.server_said())
        super().open(seconds)

    def transactions(self) -> List[str]:
        """Lines of its log of this window."""
        return [line for path in self.place.runtime.glob(f"{self.window.name}.[0-9]*")
                for line in path.read_text().splitlines()]

    def result(self, output: str) -> Measured:
        measured = of_log(self.transactions(), output)
        ended = checkpoints(self.server_said(), self._told, time.time())
        return replace(measured, extra={**measured.extra, "checkpoint_s": max(ended)}
                       ) if ended else measured

    def series(self, output: str) -> List[float]:
        return per_second(output)


def per_second(output: str) -> List[float]:
    """Transactions in each second that it has reported so far."""
    return [float(rate) for rate in re.findall(r"^progress: [\d.]+ s, ([\d.]+) tps", output,
                                               re.MULTILINE)]


def checkpoints(said: str, since: int, now: float) -> List[float]:
    """Seconds that each took that ended after so many characters of the server's log.

    One that goes on counts with its age: it may be the only one.  now: seconds since 1970.
    """
    done = re.compile(r"checkpoint complete: .* total=([\d.]+) s")
    found = [float(total) for total in done.findall(said, since)]
    begun = re.findall(r"^([\d.]+) LOG: +checkpoint starting", said, re.MULTILINE)
    if len(begun) > len(done.findall(said)):
        found.append(now - float(begun[-1]))
    return found


def of_log(lines: List[str], output: str) -> Measured:
    """From the log, `client transaction us script epoch us`, and what pgbench says at the end."""
    found = re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)
    if found is None or not lines:
        raise RigError(f"pgbench's output is not as expected: {output[-500:]}")
    fields = [line.split() for line in lines]
    done = [each for each in fields if each[2].isdigit()]  # others: "failed", "skipped"
    latencies = [int(each[2]) * 1e-6 for each in done]
    ends = [int(each[4]) + int(each[5]) * 1e-6 for each in done]
    since = min(end - latency for end, latency in zip(ends, latencies))
    elapsed = len(done) / float(found.group(1))
    measured = stats.of_operations(since, since + elapsed, ends, latencies)
    return replace(measured, extra={"tps": float(found.group(1)),
                                    "failed": float(len(fields) - len(done))})


class PgbenchMix(Pgbench):
    """The statements of sysbench's OLTP test: three of four read."""

    KIND = "pgbench-mix"

    def scripts(self) -> List[str]:
        rows = max(1, self.scaled("scale")) * ROWS
        return ["--protocol=extended", f"--define=third={rows // 3}", f"--file={MIX}"]


class Tpcc(Pgbench):
    """Orders, payments, deliveries and two questions, in about TPC-C's shares."""

    KIND = "tpcc"
    OPTIONS: ClassVar[Options] = {
        **{key: value for key, value in Pgbench.OPTIONS.items() if key != "scale"},
        "warehouses": (positive, "8"),  # 7 MB each
    }
    SHARES: ClassVar[Mapping[str, int]] = {
        "new-order": 45, "payment": 43, "order-status": 4, "delivery": 4, "stock-level": 4}

    def _warehouses(self) -> str:
        return f"warehouses={max(1, self.scaled('warehouses'))}"

    def fill(self) -> None:
        do(self.place, [str(programs() / "psql"), *self._connection(), "--no-psqlrc", "--quiet",
                        "--set=ON_ERROR_STOP=1", f"--set={self._warehouses()}",
                        f"--file={TPCC / 'load.sql'}", USER])

    def scripts(self) -> List[str]:
        # Two transactions may still wait for each other; the server ends one of them.
        return [f"--define={self._warehouses()}", "--max-tries=10",
                *(f"--file={TPCC / name}.sql@{share}" for name, share in self.SHARES.items())]

    def result(self, output: str) -> Measured:
        measured = super().result(output)
        orders = sum(line.split()[3] == "0" for line in self.transactions())
        return replace(measured, extra={
            **measured.extra, "new_orders_per_min": orders / measured.elapsed * 60})
