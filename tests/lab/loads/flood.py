# SPDX-License-Identifier: GPL-2.0-or-later
"""Floods: ordinary programs that write all they can, over and over.

What they copy lies in the runtime directory and is small enough to stay in the
page cache, so that reading it costs no disk anything.
"""

from __future__ import annotations

import abc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from writebackd.policy.units import format_size, parse_time

from ..remains import RigError
from . import worker
from .base import Counters, Measured, Options, Place
from .options import one_of, positive, positive_size, size_or_auto
from .own import OwnLoad, make_file

MIB = 1 << 20
PAGE = 4096
SOURCE = 64 * MIB  # of data that is not all zeros
DEFAULT_DIRTY_RATIO = 0.20


def process_bytes(pid: int, field: str) -> int:
    """wchar or write_bytes of a process and all below it, those that it has reaped included."""
    try:
        account = Path(f"/proc/{pid}/io").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except ProcessLookupError:
        return 0
    except FileNotFoundError:
        if Path(f"/proc/{pid}").exists():
            raise  # this kernel does not keep the account
        return 0
    own = int(account.split(f"\n{field}: ")[1].split()[0])
    return own + sum(process_bytes(int(child), field) for child in children)


def beyond_default_limit() -> int:
    """A size of dirty pages that default limits do not let through, whichever are in force.

    Dirty memory cannot reach the limit with files that are smaller.
    """
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    dirtyable = sum(int(fields[name].split()[0]) << 10
                    for name in ("MemFree", "Active(file)", "Inactive(file)"))
    return int(1.25 * DEFAULT_DIRTY_RATIO * dirtyable)


def check_room(directory: Path, size: int) -> None:
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if size > free:
        raise RigError(f"{directory}: {format_size(size)} do not fit into the "
                       f"{format_size(free)} that are free: give the scenario a larger disk")


def make_source(path: Path, size: int, data: str, seed: int) -> None:
    """A file to copy from; compressible: the second half of each page is zeros."""
    chooser = random.Random(seed)
    with open(path, "wb") as file:
        for done in range(0, size, MIB):
            part = bytes(MIB)
            if data == "random":
                part = chooser.randbytes(MIB)
            elif data == "compressible":
                half = chooser.randbytes(MIB // 2)
                part = b"".join(half[at:at + PAGE // 2] + bytes(PAGE // 2)
                                for at in range(0, MIB // 2, PAGE // 2))
            file.write(part[:size - done])
        file.flush()
        os.fsync(file.fileno())  # no part of the flood


class Look(NamedTuple):
    """A process's account, and between when it was seen to be that."""

    account: int
    since: float
    seen: float


class Commands(OwnLoad):
    """A loop of commands in each of one or more processes, from start to stop; a round is an
    operation."""

    VERB = "loop"
    ACCOUNT = "wchar"  # field of /proc/PID/io that counts what goes to the disk, and once
    WRITES = True  # all the time: where its account stands still, a write does not return

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        super().__init__(place, options)
        self._looks: Dict[int, Look] = {}  # by process
        self._stalls: List[Tuple[float, float]] = []  # (end, seconds)

    @abc.abstractmethod
    def commands(self, writer: int) -> List[List[str]]:
        """One round."""

    def jobs(self) -> Sequence[Mapping[str, Any]]:
        return [{"commands": self.commands(writer), "rounds": 0,
                 "on": self.options.get("on", 0.0), "off": self.options.get("off", 0.0)}
                for writer in range(self.options.get("writers", 1))]

    def written(self) -> Optional[int]:
        """As the writers see it; None if the kernel does not account it."""
        try:
            return sum(process_bytes(each.process.pid, self.ACCOUNT) for each in self.workers)
        except OSError:
            return None

    def measured(self, last_s: Optional[float] = None) -> Measured:
        now = time.monotonic()
        return self.with_bytes(Measured(elapsed=now - self._since))

    def counters(self) -> Counters:
        return Counters(bytes=self.written())

    def recent(self, last_s: float) -> Sequence[float]:
        return ()

    def look(self) -> None:
        """An account that stands still from look to look tells how long a write took at least."""
        if not self.WRITES or self.options.get("off"):
            return
        for each in list(self.workers):
            pid, now = each.process.pid, time.monotonic()
            try:
                account = process_bytes(pid, self.ACCOUNT)
            except OSError:  # it is ending
                continue
            last = self._looks.get(pid)
            # Not before its first write: that may have to wait for its program to start.
            if last is not None and last.account == account and account > 0:
                self._looks[pid] = last._replace(seen=now)
                continue
            if last is not None and last.seen > last.since:
                self._stalls.append((now, last.seen - last.since))
            self._looks[pid] = Look(account, now, now)

    def stall(self, since: float) -> Optional[float]:
        if not self._looks:
            return None
        running = {each.process.pid for each in self.workers if each.process.poll() is None}
        return max([*(length for end, length in self._stalls if end > since),
                    *(look.seen - look.since for pid, look in self._looks.items()
                      if pid in running)], default=0.0)


PERIODS = {
    # Counted from the start of the load; without off times it never pauses.
    "on": (parse_time, "0s"),
    "off": (parse_time, "0s"),
}


class Dd(Commands):
    """`dd` that rewrites one file for ever, the copy process of the field reports."""

    KIND = "dd"
    OPTIONS: ClassVar[Options] = {
        "bs": (positive_size, "1M"),
        "size": (size_or_auto, "1G"),  # of all files; auto: more than the default limit
        "writers": (positive, "1"),  # each with a file of its own
        "file": (one_of("new", "allocated", "written"), "new"),  # what is there at the start
        # random: pages at random places instead; alternate: a round of one, a round of the other
        "pattern": (one_of("sequential", "random", "alternate"), "sequential"),
        "data": (one_of("zero", "random", "compressible"), "zero"),
        **PERIODS,
    }

    def prepare(self) -> None:
        size, bs = self.size(), self.options["bs"]
        if size < bs or SOURCE % bs:
            raise RigError(f"dd: bs has to be a power of two, and not above size or "
                           f"{format_size(SOURCE)}")
        if self.options["pattern"] == "random" and self.options["file"] == "new":
            raise RigError("dd with pattern=random needs a file: set file=allocated or "
                           "file=written")
        check_room(self.place.directory, size * self.options["writers"])
        for path in self.files():
            if self.options["file"] == "written":
                make_file(path, size)
            elif self.options["file"] == "allocated":
                with open(path, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
        if self.options["data"] != "zero":
            make_source(self.source, SOURCE, self.options["data"], self.place.seed)

    @property
    def source(self) -> Path:
        return self.place.runtime / "source"

    def size(self) -> int:
        """Of one file."""
        whole = (beyond_default_limit() if self.options["size"] == "auto" else self.scaled("size"))
        return int(whole // self.options["writers"] // MIB * MIB)

    def files(self) -> List[Path]:
        return [self.place.directory / f"flood-{writer}"
                for writer in range(self.options["writers"])]

    def commands(self, writer: int) -> List[List[str]]:
        path, size = self.files()[writer], self.size()
        pattern = self.options["pattern"]
        rounds: List[List[str]] = []
        if pattern != "random":
            rounds += self.sequential(path, size)
        if pattern != "sequential":
            rounds.append(worker_command("scatter", {
                "path": str(path), "size": size,
                "source": None if self.options["data"] == "zero" else str(self.source)}))
        return rounds

    def sequential(self, path: Path, size: int) -> List[List[str]]:
        bs = self.options["bs"]
        if self.options["data"] == "zero":
            return [dd("/dev/zero", path, bs, size // bs)]
        return [dd(self.source, path, bs, min(SOURCE, size - at) // bs, seek=at // bs)
                for at in range(0, size, SOURCE)]


def dd(source: "Path | str", path: Path, bs: int, count: int, seek: int = 0) -> List[str]:
    return ["dd", f"if={source}", f"of={path}", f"bs={bs}", f"count={count}", f"seek={seek}",
            "conv=notrunc", "status=none"]


def worker_command(verb: str, job: Mapping[str, Any]) -> List[str]:
    """A worker that tells nothing, as a command of a loop."""
    return [sys.executable, "-I", "-S", worker.__file__, verb, "", json.dumps(job)]
