# SPDX-License-Identifier: GPL-2.0-or-later
"""Copying programs as floods, and jobs that have an end: those are judged by their time."""

from __future__ import annotations

import abc
import io
import random
import subprocess
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, Sequence

from writebackd.policy.units import format_size, parse_switch

from ..remains import RigError
from .base import Counters, Measured, Options, Place
from .flood import PERIODS, Commands, check_room, dd, make_source
from .options import one_of, positive, positive_size
from .own import spawn_worker

# What a job may take beyond its window, so that a run ends in any case.
PATIENCE_S = 180


class Copying(Commands):
    """Copies a source to one target after the other, and begins again with the first."""

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

    def targets(self) -> List[str]:
        copies = self.scaled("size") // self.scaled("source")
        return [str(self.place.directory / f"copy-{number}") for number in range(copies)]

    def commands(self, writer: int) -> List[List[str]]:
        return [self.copy(target) for target in self.targets()]

    @abc.abstractmethod
    def copy(self, target: str) -> List[str]:
        """The command that makes one copy."""

    def files(self) -> List[Path]:
        return [path for path in self.place.directory.rglob("*") if path.is_file()][:100]


class Cp(Copying):
    KIND = "cp"

    def copy(self, target: str) -> List[str]:
        return ["cp", "--recursive", "--no-target-directory", "--reflink=never",
                str(self.source), target]


class Rsync(Copying):
    KIND = "rsync"
    TOOLS: ClassVar[Mapping[str, str]] = {"rsync": "rsync"}
    # Its processes write to each other, so what they write is not what goes to the disk.
    ACCOUNT = "write_bytes"

    def copy(self, target: str) -> List[str]:
        return ["rsync", "--recursive", "--whole-file", "--ignore-times", f"{self.source}/",
                f"{target}/"]


class Tar(Copying):
    KIND = "tar"

    def copy(self, target: str) -> List[str]:
        return ["tar", "--create", "--file", f"{target}.tar", "--directory", str(self.source), "."]


class Once(Commands):
    """Done once in each window; its time includes the sync at its end."""

    WAITS = True

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        super().__init__(place, options)
        self._windows = 0
        self._seconds = 0.0

    def start(self) -> None:
        """Nothing runs outside of windows."""

    @property
    def target(self) -> Path:
        """A new one for each window, or the second would rewrite what the first allocated."""
        return self.place.directory / f"window-{self._windows}"

    @abc.abstractmethod
    def size(self) -> int:
        """Bytes of data, to check the room before and to count afterwards."""

    def jobs(self) -> Sequence[Mapping[str, Any]]:
        commands = [*self.commands(0), ["sync", "--file-system", str(self.place.directory)]]
        return [{"commands": commands, "rounds": 1, "on": 0, "off": 0}]

    def open(self, seconds: float) -> None:
        self.stop()
        self._windows = 1 + len(list(self.place.directory.glob("window-*")))
        self._seconds = seconds
        check_room(self.place.directory, self.size())
        self.workers = [spawn_worker(self.place, self.VERB, job, self._windows)
                        for job in self.jobs()]
        super().open(seconds)

    def counters(self) -> Counters:
        worker = self.workers[0] if self.workers else None
        ended = worker is not None and worker.process.poll() is not None
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


class Job(Once):
    """One large sequential file."""

    KIND = "job"
    OPTIONS: ClassVar[Options] = {
        "size": (positive_size, "1G"),
        "bs": (positive_size, "1M"),
    }

    def prepare(self) -> None:
        check_room(self.place.directory, 2 * self.size())

    def size(self) -> int:
        bs: int = self.options["bs"]
        return self.scaled("size") // bs * bs

    def commands(self, writer: int) -> List[List[str]]:
        return [dd("/dev/zero", self.target, self.options["bs"],
                   self.size() // self.options["bs"])]

    def files(self) -> List[Path]:
        return [self.target]


class Untar(Once):
    """A tree of small files out of an archive: data, and at least as much metadata."""

    KIND = "untar"
    WRITES = False  # for as long, it makes and removes files
    OPTIONS: ClassVar[Options] = {
        "files": (positive, "5000"),
        "largest": (positive_size, "32K"),  # the files' sizes are spread evenly up to here
        # Without end it runs from start to stop: unpacks, removes, unpacks.
        "endless": (parse_switch, "no"),
    }
    IN_DIRECTORY = 50

    def prepare(self) -> None:
        chooser = random.Random(self.place.seed)
        data = chooser.randbytes(self.options["largest"])
        check_room(self.place.directory, 3 * self.size())
        with tarfile.open(self.archive, "w") as archive:
            for number, size in enumerate(self.sizes()):
                entry = tarfile.TarInfo(f"{number // self.IN_DIRECTORY}/{number}")
                entry.size = size
                archive.addfile(entry, io.BytesIO(data[:size]))

    @property
    def archive(self) -> Path:
        return self.place.runtime / "source.tar"

    def sizes(self) -> List[int]:
        chooser = random.Random(self.place.seed)
        files = max(1, int(self.options["files"] * self.place.scale))
        return [chooser.randint(1, self.options["largest"]) for _ in range(files)]

    def size(self) -> int:
        return sum(self.sizes())

    def commands(self, writer: int) -> List[List[str]]:
        target = str(self.target)
        return [["mkdir", "--parents", target],
                ["tar", "--extract", "--file", str(self.archive), "--directory", target]]

    def start(self) -> None:
        if self.options["endless"]:
            remove = ["rm", "-r", str(self.target)]
            self.workers = [spawn_worker(self.place, self.VERB, {
                "commands": [*self.commands(0), remove], "rounds": 0, "on": 0, "off": 0}, 0)]
            self._since = time.monotonic()

    def open(self, seconds: float) -> None:
        if self.options["endless"]:
            Commands.open(self, seconds)
        else:
            super().open(seconds)

    def close(self) -> Measured:
        if self.options["endless"]:
            return Commands.close(self)
        measured = super().close()
        per_s: Dict[str, float] = {"files_per_s": len(self.sizes()) / measured.elapsed}
        return replace(measured, extra=per_s)
