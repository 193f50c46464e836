# SPDX-License-Identifier: GPL-2.0-or-later
"""sysbench's OLTP mix on MariaDB, in the settings of the flash cache tests."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import ClassVar, List, Mapping

from .base import Measured, Options
from .options import one_of, positive, positive_size
from .server import Database
from .sysbench import of_output, per_second
from .tool import do

DATABASE = "sbtest"
# What InnoDB does not go below.
POOL_LEAST = 16 << 20
LOG_LEAST = 8 << 20


class MysqlOltp(Database):
    """Operations are transactions. Small pool, so that pages have to be written and read.

    Nobody else gets to the server, so it runs without accounts, and needs no tables of
    its own: a data directory is made by its first start, and a database is a directory.
    """

    KIND = "mysql-oltp"
    TOOLS: ClassVar[Mapping[str, str]] = {"mariadbd": "mariadb-server-core",
                                          "sysbench": "sysbench"}
    OPTIONS: ClassVar[Options] = {
        "tables": (positive, "4"),
        "rows": (positive, "25000"),  # of each table
        "threads": (positive, "8"),
        "pool": (positive_size, "64M"),
        "log": (positive_size, "96M"),
        "flush-log": (one_of("1", "2"), "1"),  # at each commit, or once in a second
    }

    @property
    def socket(self) -> Path:
        return self.place.runtime / "mariadb.sock"

    def make(self) -> None:
        (self.data / DATABASE).mkdir(parents=True)

    def server(self, durable: bool) -> List[str]:
        runtime = self.place.runtime
        return ["mariadbd", "--no-defaults", "--user=root", f"--datadir={self.data}",
                f"--socket={self.socket}", f"--pid-file={runtime}/mariadb.pid",
                f"--tmpdir={runtime}", "--skip-networking", "--skip-grant-tables",
                # Its default, and on its way out: loose, so that its end is no error.
                "--loose-innodb-flush-method=O_DIRECT",
                f"--innodb-flush-log-at-trx-commit="
                f"{self.options['flush-log'] if durable else 0}",
                f"--innodb-buffer-pool-size={max(POOL_LEAST, self.scaled('pool'))}",
                f"--innodb-log-file-size={max(LOG_LEAST, self.scaled('log')) >> 12 << 12}"]

    def ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.socket))
            except OSError:
                return False
        return True

    def _sysbench(self, *more: str) -> List[str]:
        return ["sysbench", "oltp_read_write", "--db-driver=mysql", "--mysql-user=root",
                f"--mysql-socket={self.socket}", f"--mysql-db={DATABASE}",
                f"--tables={self.options['tables']}",
                f"--table-size={max(100, self.scaled('rows'))}",
                f"--threads={self.options['threads']}", "--rand-type=pareto",
                f"--rand-seed={self.place.seed}", *more]

    def fill(self) -> None:
        do(self.place, self._sysbench("prepare"))

    def command(self, seconds: int) -> List[str]:
        return self._sysbench(f"--time={seconds}", "--report-interval=1", "--histogram=on", "run")

    def result(self, output: str) -> Measured:
        return of_output(output)

    def series(self, output: str) -> List[float]:
        return per_second(output)
