# SPDX-License-Identifier: GPL-2.0-or-later
"""Writers and readers that are not there to flood, and may be harmed all the same."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, List, Mapping, Optional

from writebackd.policy.units import parse_frequency, parse_time

from ..remains import RigError
from . import stats
from .base import Counters, Measured, Options
from .flood import beyond_default_limit, check_room
from .options import parse_rate, positive, positive_size, size_or_auto
from .own import OwnLoad, make_file

SYNCS = 1  # its record


class Buffered(OwnLoad):
    """Its first record is of writes that nobody waits for, so how long one takes is its stall."""

    def stall(self, since: float) -> Optional[float]:
        _, stalls, ages = self.seen(since, time.monotonic())
        return max([*stalls, *ages], default=0.0)


class Writer(Buffered):
    """A database's own buffered writer, as PostgreSQL's checkpoints: steady, then an fsync.

    Its operations are the fsyncs; how long a write kept it is its stall.
    """

    KIND = "writer"
    VERB = "buffered"
    RECORDS = 2
    OPTIONS: ClassVar[Options] = {
        "block": (positive_size, "8K"),
        "size": (positive_size, "256M"),  # of its file, that it rewrites from begin to end
        "rate": (parse_rate, "10M/s"),  # 0/s: as fast as it can
        "sync-every": (parse_time, "5s"),  # 0s: never
    }

    @property
    def path(self) -> Path:
        return self.place.directory / "table"

    def prepare(self) -> None:
        if self.scaled("size") < self.options["block"]:
            raise RigError(f"{self.KIND}: size is smaller than block")
        check_room(self.place.directory, self.scaled("size"))
        make_file(self.path, self.scaled("size"))

    def jobs(self) -> List[Mapping[str, Any]]:
        rate = self.scaled("rate")
        return [{"path": str(self.path), "block": self.options["block"],
                 "size": self.scaled("size"), "sync_every": self.options["sync-every"],
                 "interval": self.options["block"] / rate if rate else 0}]

    def measured(self, last_s: Optional[float] = None) -> Measured:
        now = time.monotonic()
        since = self._since if last_s is None else max(self._since, now - last_s)
        syncs = stats.of_operations(since, now, *self.seen(since, now, SYNCS))
        return self.with_bytes(replace(syncs, longest_stall=self.stall(since)))

    def counters(self) -> Counters:
        return Counters(ops=sum(each.told[SYNCS].done for each in self.workers),
                        bytes=self.written())

    def recent(self, last_s: float) -> List[float]:
        now = time.monotonic()
        _, latencies, ages = self.seen(now - last_s, now, SYNCS)
        return [*latencies, *(age for age in ages if age > 0)]


class Mmap(Buffered):
    """Processes that make pages dirty through a shared mapping, and sync none of them."""

    KIND = "mmap"
    VERB = "mapped"
    OPTIONS: ClassVar[Options] = {
        "size": (size_or_auto, "1G"),  # of all files; auto: more than the default limit
        "writers": (positive, "1"),
        "piece": (positive_size, "64K"),  # that is written at once
    }

    def files(self) -> List[Path]:
        return [self.place.directory / f"mapped-{writer}"
                for writer in range(self.options["writers"])]

    def size(self) -> int:
        """Of one file."""
        whole = beyond_default_limit() if self.options["size"] == "auto" else self.scaled("size")
        return int(whole // self.options["writers"] // self.options["piece"]
                   * self.options["piece"])

    def prepare(self) -> None:
        if not self.size():
            raise RigError("mmap: size is smaller than a piece for each writer")
        check_room(self.place.directory, self.size() * len(self.files()))
        # Sparse: a page fault allocates a block as it does in programs that grow such files.
        for path in self.files():
            with open(path, "wb") as file:
                file.truncate(self.size())

    def jobs(self) -> List[Mapping[str, Any]]:
        return [{"path": str(path), "size": path.stat().st_size, "piece": self.options["piece"]}
                for path in self.files()]

    def measured(self, last_s: Optional[float] = None) -> Measured:
        return self.with_bytes(Measured(elapsed=time.monotonic() - self._since,
                                        longest_stall=self.stall(self._since)))

    def counters(self) -> Counters:
        return Counters(bytes=self.written())

    def recent(self, last_s: float) -> List[float]:
        return []


class Read(OwnLoad):
    """Reads of what is not in memory: a disk's other work."""

    KIND = "read"
    VERB = "read"
    OPTIONS: ClassVar[Options] = {
        "block": (positive_size, "4K"),
        "size": (positive_size, "1G"),
        "threads": (positive, "1"),
        "rate": (parse_frequency, "0/s"),  # reads of all together; 0: as fast as they can
    }

    @property
    def path(self) -> Path:
        return self.place.directory / "archive"

    def prepare(self) -> None:
        block, threads = self.options["block"], self.options["threads"]
        if block % 4096 or self.scaled("size") < block * threads:
            raise RigError("read: block has to be a multiple of 4K, and size a block for each "
                           "thread")
        check_room(self.place.directory, self.scaled("size"))
        make_file(self.path, self.scaled("size"))

    def jobs(self) -> List[Mapping[str, Any]]:
        threads, rate, block = (self.options[key] for key in ("threads", "rate", "block"))
        part = self.scaled("size") // block // threads * block
        return [{"path": str(self.path), "block": block, "first": number * part, "size": part,
                 "interval": threads / rate if rate else 0,
                 "seed": self.place.seed * 1000 + number} for number in range(threads)]


class Memory(OwnLoad):
    """Memory pressure: takes all memory but a rest. Touches no disk."""

    KIND = "memory"
    VERB = "hog"
    OPTIONS: ClassVar[Options] = {
        "leave": (positive_size, "1G"),  # of what is available, dirty pages counted as taken
    }
    LEAST = 128 << 20

    def prepare(self) -> None:
        if self.scaled("leave") < self.LEAST:
            raise RigError(f"memory: leave is {self.scaled('leave') >> 20} MB here: at least "
                           f"{self.LEAST >> 20} MB have to stay for everybody else")

    def jobs(self) -> List[Mapping[str, Any]]:
        return [{"leave": self.scaled("leave")}]

    def measured(self, last_s: Optional[float] = None) -> Measured:
        now = time.monotonic()
        return Measured(elapsed=now - self._since, extra={"held_bytes": self.written() or 0})

    def counters(self) -> Counters:
        return Counters()

    def recent(self, last_s: float) -> List[float]:
        return []
