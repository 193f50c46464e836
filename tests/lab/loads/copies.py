# SPDX-License-Identifier: GPL-2.0-or-later
"""Copies as floods, and a job that has an end, which is judged by its time."""

from __future__ import annotations

import io
import random
import subprocess
import tarfile
from pathlib import Path
from typing import Any, ClassVar, List, Mapping

from writebackd.policy.units import format_size

from ..remains import RigError
from .base import Counters, Measured, Options, Place
from .flood import PERIODS, Commands, check_room, dd, make_source
from .options import one_of, positive, positive_size
from .own import spawn_worker

# What a job may take beyond its window, so that a run ends in any case.
PATIENCE_S = 180


class Rsync(Commands):
    """Copies a source to one target after the other, and begins again with the first."""

    KIND = "rsync"
    TOOLS: ClassVar[Mapping[str, str]] = {"rsync": "rsync"}
    # Its processes write to each other, so what they write is not what goes to the disk.
    ACCOUNT = "write_bytes"
    OPTIONS: ClassVar[Options] = {
        "size": (positive_size, "1G"),  # of all copies
        "source": (positive_size, "64M"),
        "files": (positive, "1"),  # of the source
        "data": (one_of("zero", "random", "compressible"), "zero"),
        **PERIODS,
    }

    def prepare(self) -> None:
        size, source = self.scaled("size"), self.scaled("source")
        if size < source:
            raise RigError(f"{self.KIND}: size is smaller than source")
        check_room(self.place.directory, size + source)
        self.source.mkdir()
        files = self.options["files"]
        for number in range(files):
            make_source(self.source / str(number), source // files, self.options["data"],
                        self.place.seed + number)

    @property
    def source(self) -> Path:
        return self.place.runtime / "source"

    def commands(self, writer: int) -> List[List[str]]:
        copies = self.scaled("size") // self.scaled("source")
        return [["rsync", "--recursive", "--whole-file", "--ignore-times", f"{self.source}/",
                 f"{self.place.directory}/copy-{number}/"] for number in range(copies)]

    def files(self) -> List[Path]:
        return [path for path in self.place.directory.rglob("*") if path.is_file()][:100]


class Job(Commands):
    """One large sequential file in each window; its time includes the sync at its end."""

    KIND = "job"
    WAITS = True
    OPTIONS: ClassVar[Options] = {
        "size": (positive_size, "1G"),
        "bs": (positive_size, "1M"),
    }

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        super().__init__(place, options)
        self._windows = 0
        self._seconds = 0.0

    def prepare(self) -> None:
        check_room(self.place.directory, 2 * self.size())

    def start(self) -> None:
        """Nothing runs outside of windows."""

    @property
    def target(self) -> Path:
        """A new one for each window, or the second would rewrite what the first allocated."""
        return self.place.directory / f"window-{self._windows}"

    def size(self) -> int:
        bs: int = self.options["bs"]
        return self.scaled("size") // bs * bs

    def commands(self, writer: int) -> List[List[str]]:
        bs = self.options["bs"]
        return [dd("/dev/zero", self.target, bs, self.size() // bs),
                ["sync", "--file-system", str(self.place.directory)]]

    def files(self) -> List[Path]:
        return [self.target]

    def open(self, seconds: float) -> None:
        self.stop()
        self._windows = 1 + len(list(self.place.directory.glob("window-*")))
        self._seconds = seconds
        check_room(self.place.directory, self.size())
        job = {"commands": self.commands(0), "rounds": 1, "on": 0, "off": 0}
        self.workers = [spawn_worker(self.place, self.VERB, job, self._windows)]
        super().open(seconds)

    def counters(self) -> Counters:
        ended = any(each.process.poll() is not None for each in self.workers)
        return Counters(bytes=self.size() if ended else self.written())

    def close(self) -> Measured:
        worker, = self.workers
        try:
            worker.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise RigError(f"{self.KIND}: {format_size(self.size())} and their sync took more than "
                           f"{self._seconds + PATIENCE_S:.0f} s: make it smaller") from None
        if worker.process.returncode:
            self.check()
        _, (elapsed,) = worker.told[0].since(0)
        return Measured(elapsed=elapsed, bytes=self.size(), byte_rate=self.size() / elapsed)


class Untar(Commands):
    """A tree of small files out of an archive, removed, and again: data, and at least as much
    metadata."""

    KIND = "untar"
    WRITES = False  # for as long, it makes and removes files
    OPTIONS: ClassVar[Options] = {
        "files": (positive, "5000"),
        "largest": (positive_size, "32K"),  # the files' sizes are spread evenly up to here
    }
    IN_DIRECTORY = 50

    def prepare(self) -> None:
        chooser = random.Random(self.place.seed)
        largest = self.options["largest"]
        data = chooser.randbytes(largest)
        files = max(1, int(self.options["files"] * self.place.scale))
        sizes = [chooser.randint(1, largest) for _ in range(files)]
        check_room(self.place.directory, 3 * sum(sizes))
        with tarfile.open(self.archive, "w") as archive:
            for number, size in enumerate(sizes):
                entry = tarfile.TarInfo(f"{number // self.IN_DIRECTORY}/{number}")
                entry.size = size
                archive.addfile(entry, io.BytesIO(data[:size]))

    @property
    def archive(self) -> Path:
        return self.place.runtime / "source.tar"

    def commands(self, writer: int) -> List[List[str]]:
        target = str(self.place.directory / "tree")
        return [["mkdir", "--parents", target],
                ["tar", "--extract", "--file", str(self.archive), "--directory", target],
                ["rm", "-r", target]]
