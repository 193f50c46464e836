# SPDX-License-Identifier: GPL-2.0-or-later
"""What a modelled disk really does meanwhile: a look at it ten times a second or more often."""

from __future__ import annotations

import gzip
import json
import threading
import time
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Dict, List, Mapping, Optional, Type

from .disks import Control, Disk
from .remains import RigError

STEP_S = 0.1
# Bytes.  With less room writes wait for it: the kernel has as much under way at a small limit.  By
# share a large cache would count as full while it takes several times the limit.
ROOM = 4 << 20
# Of model_print() in disk/model.h.
KEYS = ("fill", "capacity", "drain_rate", "bytes_destaged")


@dataclass(frozen=True)
class Seen:
    """One interval."""

    full: float  # share of the looks at which a sync has to wait for the media
    fill_bytes: float  # at its end
    capacity_bytes: float
    media_rate: float  # of a sequential destage, bytes per second

    @property
    def is_full(self) -> bool:
        return self.full > 0.5


@dataclass(frozen=True)
class Truth:
    """Looks in order of time, CLOCK_BOOTTIME as a Sample has it."""

    flushed: bool  # the cache is lost with the power: each sync empties it, and waits for that
    looks: Mapping[str, List[float]]  # `t` and KEYS

    def between(self, since_s: float, until_s: float) -> Seen:
        """The looks of `(since_s, until_s]`; ValueError where there are none."""
        looks = self._part(since_s, until_s)
        if not looks["t"]:
            raise ValueError(f"no look at the disk from {since_s:.1f} to {until_s:.1f} s")
        full = [self.flushed or capacity - fill < ROOM
                for fill, capacity in zip(looks["fill"], looks["capacity"])]
        return Seen(full=sum(full) / len(full), fill_bytes=looks["fill"][-1],
                    capacity_bytes=looks["capacity"][-1], media_rate=looks["drain_rate"][-1])

    def part(self, since_s: float, until_s: float) -> Truth:
        return Truth(self.flushed, self._part(since_s, until_s))

    def _part(self, since_s: float, until_s: float) -> Dict[str, List[float]]:
        first = bisect_right(self.looks["t"], since_s)
        end = bisect_right(self.looks["t"], until_s)
        return {name: values[first:end] for name, values in self.looks.items()}

    def write(self, path: Path) -> None:
        data = json.dumps({"flushed": self.flushed, **self.looks}, separators=(",", ":"))
        path.write_bytes(gzip.compress(data.encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> Truth:
        looks = json.loads(gzip.decompress(path.read_bytes()))
        return cls(looks.pop("flushed"), looks)


class Looker:
    """A context manager; after it `truth` has all that was seen inside. RigError at its end."""

    def __init__(self, path: Path, disk: Disk, step_s: float = STEP_S) -> None:
        """path: of the disk's control socket."""
        self.truth = Truth(not disk.protected, {name: [] for name in ("t", *KEYS)})
        self._step_s = step_s
        self._control = Control(path)  # one of its own: the run's is for another thread
        self._ended = threading.Event()
        self._failed: Optional[RigError] = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Looker:
        self._thread.start()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self._ended.set()
        self._thread.join()
        self._control.close()
        if self._failed is not None and error is None:
            raise self._failed

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._step_s):
                state = self._control.get()
                self.truth.looks["t"].append(round(time.clock_gettime(time.CLOCK_BOOTTIME), 3))
                for name in KEYS:
                    self.truth.looks[name].append(state[name])
        except RigError as error:
            self._failed = error
