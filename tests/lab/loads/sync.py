# SPDX-License-Identifier: GPL-2.0-or-later
"""Small synchronous writes, one after the other: what a database's log does to a disk."""

from __future__ import annotations

from typing import Any, ClassVar, List, Mapping

from writebackd.policy.units import parse_frequency, parse_switch

from ..remains import RigError
from .base import Options
from .options import one_of, positive, positive_size
from .own import OwnLoad, make_file


class Fsync(OwnLoad):
    """Write a block, wait until it is durable, and again."""

    KIND = "fsync"
    VERB = "sync"
    OPTIONS: ClassVar[Options] = {
        "block": (positive_size, "4K"),
        "size": (positive_size, "256M"),  # of the file that all of them write to
        "threads": (positive, "1"),  # processes in truth
        "method": (one_of("fsync", "fdatasync"), "fsync"),
        "rate": (parse_frequency, "0/s"),  # of all together; 0: as fast as it can
        # Each to the end of a file of its own, that begins anew when it has its size.
        "append": (parse_switch, "no"),
    }

    def prepare(self) -> None:
        if self.scaled("size") < self.options["block"]:
            raise RigError("fsync: size is smaller than block")
        if not self.options["append"]:
            make_file(self.place.directory / "database", self.scaled("size"))

    def jobs(self) -> List[Mapping[str, Any]]:
        threads, rate = self.options["threads"], self.options["rate"]
        name = "log-{}" if self.options["append"] else "database"
        return [{"path": str(self.place.directory / name.format(number)),
                 "block": self.options["block"], "size": self.scaled("size"),
                 "method": self.options["method"], "append": self.options["append"],
                 "interval": threads / rate if rate else 0,
                 "seed": self.place.seed * 1000 + number} for number in range(threads)]
