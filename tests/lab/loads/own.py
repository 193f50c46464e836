# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads that are the lab's own processes, and the memory they tell in what they do."""

from __future__ import annotations

import abc
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..remains import RigError
from . import stats, worker
from .base import Counters, Load, Measured, Place

PIECE = 4 << 20
STUCK_S = 30  # until a process must have ended that waits for the disk


class Told:
    """What one worker tells, as others see it."""

    def __init__(self, memory: int) -> None:
        self._table = worker.table(memory)

    @property
    def done(self) -> int:
        return int(self._table[worker.DONE])

    @property
    def bytes(self) -> int:
        return int(self._table[worker.BYTES])

    def age(self, now: float) -> float:
        """Of the operation in flight, 0 for none."""
        started = self._table[worker.STARTED]
        return max(0.0, now - started) if started else 0.0

    def since(self, when: float) -> Tuple[List[float], List[float]]:
        """Ends and latencies of the operations that ended after `when`, the last one first."""
        ends, latencies = [], []
        done = self.done
        for entry in range(done - 1, max(0, done - worker.CAPACITY) - 1, -1):
            slot = worker.RING + 2 * (entry % worker.CAPACITY)
            if self._table[slot] <= when:
                break
            ends.append(self._table[slot])
            latencies.append(self._table[slot + 1])
        return ends, latencies


class Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    told: List[Told]
    log: Path


def spawn_worker(place: Place, verb: str, job: Mapping[str, Any], number: int,
                 records: int = 1) -> Worker:
    memories = [os.memfd_create("load") for _ in range(records)]
    log = place.runtime / f"{verb}-{number}.log"
    try:
        for memory in memories:
            os.ftruncate(memory, worker.LENGTH)
        told = [Told(memory) for memory in memories]
        with open(log, "wb") as output:
            # Without site packages and such: an emulated machine is slow enough.
            process = place.spawn(
                [sys.executable, "-I", "-S", worker.__file__, verb, ",".join(map(str, memories)),
                 json.dumps(job)], pass_fds=memories, stdout=output, stderr=output)
    finally:
        for memory in memories:
            os.close(memory)
    return Worker(process, told, log)


class OwnLoad(Load):
    """Workers that run from start to stop; windows are cut out of what they tell."""

    VERB = ""  # of worker.py
    RECORDS = 1

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        super().__init__(place, options)
        self.workers: List[Worker] = []
        self._since = 0.0
        self._bytes = 0

    @abc.abstractmethod
    def jobs(self) -> Sequence[Mapping[str, Any]]:
        """Orders, one for each worker."""

    def start(self) -> None:
        self.workers = [spawn_worker(self.place, self.VERB, job, number, self.RECORDS)
                        for number, job in enumerate(self.jobs())]
        self._since = time.monotonic()

    def open(self, seconds: float) -> None:
        self._since = time.monotonic()
        self._bytes = self.written() or 0

    def close(self) -> Measured:
        self.check()
        return self.measured()

    def measured(self, last_s: Optional[float] = None) -> Measured:
        """The window so far, or only the last seconds of it."""
        now = time.monotonic()
        since = self._since if last_s is None else max(self._since, now - last_s)
        ends, latencies, ages = self.seen(since, now)
        return stats.of_operations(since, now, ends, latencies, ages)

    def seen(self, since: float, now: float, record: int = 0
             ) -> Tuple[List[float], List[float], List[float]]:
        """Ends and latencies of all workers' operations, and the ages of those in flight."""
        ends: List[float] = []
        latencies: List[float] = []
        for each in self.workers:
            more_ends, more_latencies = each.told[record].since(since)
            ends += more_ends
            latencies += more_latencies
        return ends, latencies, [each.told[record].age(now) for each in self.workers]

    def with_bytes(self, measured: Measured) -> Measured:
        """And what the writers handed to the kernel in this window."""
        written = self.written()
        if written is None:
            return measured
        written = max(0, written - self._bytes)
        return replace(measured, bytes=written, byte_rate=written / measured.elapsed)

    def written(self) -> Optional[int]:
        """Bytes since the start; None if unknown."""
        return sum(each.told[0].bytes for each in self.workers)

    def counters(self) -> Counters:
        return Counters(ops=sum(each.told[0].done for each in self.workers))

    def recent(self, last_s: float) -> Sequence[float]:
        now = time.monotonic()
        _, latencies, ages = self.seen(now - last_s, now)
        return [*latencies, *(age for age in ages if age > 0)]

    def check(self) -> None:
        """RigError when a worker has ended that should go on."""
        for each in self.workers:
            if each.process.poll() is not None:
                said = each.log.read_text().strip() or "it said nothing"
                raise RigError(f"the load {self.KIND} on {self.place.directory} ended: "
                               f"{said.splitlines()[-1]}")

    def stop(self) -> None:
        for each in self.workers:
            kill_group(each.process)
        for each in self.workers:
            end(each.process, self.KIND)
        self.workers = []


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started; each has a session of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], kind: str) -> None:
    """Kill a process with all that it started, and wait until they are gone.

    A stuck write ends only when the disk has answered.
    """
    kill_group(process)
    deadline = time.monotonic() + STUCK_S
    while process.poll() is None or group_lives(process.pid):
        if time.monotonic() > deadline:
            raise RigError(f"process {process.pid} of the load {kind} is stuck in the disk for "
                           f"more than {STUCK_S} s")
        time.sleep(0.01)


def group_lives(group: int) -> bool:
    """Whether one of its processes has not ended; whoever is to reap it may take his time."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member_of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(member_of) == group and state not in "ZX":
            return True
    return False


def make_file(path: Path, size: int, noise: bool = False) -> None:
    """A file of `size` bytes, all of it allocated and written: zeros, or noise.

    Past the page cache: a guest may get new pages for it more slowly than a disk takes them.
    """
    with mmap.mmap(-1, PIECE) as piece:
        if noise:
            piece[:] = os.urandom(PIECE)
        try:
            direct = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
        except OSError:  # a filesystem in memory
            direct = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for _ in range(size // PIECE):
                os.write(direct, piece)
        finally:
            os.close(direct)
        with open(path, "ab") as file:
            file.write(piece[:size % PIECE])
            os.fsync(file.fileno())
