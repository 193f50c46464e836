# SPDX-License-Identifier: GPL-2.0-or-later
"""The processes behind the lab's own loads.

    worker.py VERB [MEMORY[,MEMORY]] JOB

MEMORY is a descriptor of shared memory in which the worker tells what it does,
JOB its orders in JSON.  It is run as a script, without the package around it,
because an emulated machine takes a second to import that.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

# Layout of the shared memory, in doubles: operations done, start of the one in
# flight (0: none), bytes handled, then a ring of (end, latency).
DONE, STARTED, BYTES, RING = 0, 1, 2, 3
CAPACITY = 1 << 20  # 7 minutes at 2500/s; untouched pages take no memory
PAGE = 4096
HOG_STEP = 16 << 20
LENGTH = (RING + 2 * CAPACITY) * 8

Job = Dict[str, Any]


def table(memory: int) -> Any:
    return memoryview(mmap.mmap(memory, 0)).cast("d")


class Record:
    """What a worker tells, as the worker sees it."""

    def __init__(self, memory: int) -> None:
        self._table = table(memory)
        self._entries = 0

    def begin(self) -> None:
        self._table[STARTED] = time.monotonic()

    def end(self, size: int = 0) -> None:
        """An operation of so many bytes is done."""
        now = time.monotonic()
        slot = RING + 2 * (self._entries % CAPACITY)
        self._table[slot], self._table[slot + 1] = now, now - self._table[STARTED]
        self._entries += 1
        self._table[BYTES] += size
        self._table[DONE] = self._entries
        self._table[STARTED] = 0

    def tell(self, size: int) -> None:
        """What is handled now, instead of what was so far."""
        self._table[BYTES] = size


class Pace:
    """Lets one operation through every `interval` seconds; 0: as fast as they come.

    What a stall kept from being done is made up for, but no more than a second of it.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due = time.monotonic()

    def wait(self) -> None:
        if not self._interval:
            return
        now = time.monotonic()
        self._due = max(self._due + self._interval, now - 1)
        time.sleep(max(0.0, self._due - now))


def sync(job: Job, record: Record) -> None:
    """Writes a block at a random place, or at the file's end, and makes it durable; again."""
    chooser = random.Random(job["seed"])
    block, size = job["block"], job["size"]
    fd = os.open(job["path"], os.O_RDWR | os.O_CREAT, 0o600)
    payload = chooser.randbytes(block)
    flush = {"fsync": os.fsync, "fdatasync": os.fdatasync}[job["method"]]
    pace = Pace(job["interval"])
    offset = 0
    while True:
        if not job["append"]:
            offset = chooser.randrange(size // block) * block
        pace.wait()
        record.begin()
        if offset + block > size:  # a log that begins anew
            os.ftruncate(fd, 0)
            offset = 0
        os.pwrite(fd, payload, offset)
        flush(fd)
        record.end(block)
        offset += block


def commit(job: Job) -> None:
    """4 KiB write + fsync at random places until `end`: its begin and both times, to `out`."""
    fd = os.open(job["path"], os.O_RDWR)
    blocks, data = os.fstat(fd).st_size // PAGE, os.urandom(PAGE)
    times, clock = array.array("d"), time.monotonic
    while True:
        begin = clock()
        if begin >= job["end"]:
            break
        os.pwrite(fd, data, PAGE * random.randrange(blocks))
        written = clock()
        os.fsync(fd)
        done = clock()
        times.extend((begin, written - begin, done - written))
        if job["gap"]:
            time.sleep(max(0.0, job["gap"] - (done - begin)))
    with open(job["out"], "wb") as file:
        times.tofile(file)


class Periods:
    """On and off times, counted from the worker's start: every run sees the same."""

    def __init__(self, on: float, off: float) -> None:
        self._origin = time.monotonic()
        self._on, self._cycle = on, on + off
        self._always = not (on and off)

    def left(self) -> Optional[float]:
        """Seconds of on time left; below 0 the seconds until it begins; None: always on."""
        if self._always:
            return None
        phase = (time.monotonic() - self._origin) % self._cycle
        return self._on - phase if phase < self._on else phase - self._cycle


def loop(job: Job, record: Record) -> None:
    """Runs commands in turn, round after round, halted in off times; a round is an operation."""
    periods = Periods(job["on"], job["off"])
    rounds = 0
    while not job["rounds"] or rounds < job["rounds"]:
        record.begin()
        for argv in job["commands"]:
            run_in_periods(argv, periods)
        record.end()
        rounds += 1


def run_in_periods(argv: Sequence[str], periods: Periods) -> None:
    wait_for_on(periods)
    # The command dies with its loop, or it would go on for gigabytes.
    child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *argv])
    handle = os.pidfd_open(child.pid)
    left = periods.left()
    while not select.select([handle], [], [], left if left is None else max(0.0, left))[0]:
        os.kill(child.pid, signal.SIGSTOP)
        wait_for_on(periods)
        os.kill(child.pid, signal.SIGCONT)
        left = periods.left()
    os.close(handle)
    if child.wait():
        sys.exit(f"{' '.join(argv)}: exit status {child.returncode}")


def wait_for_on(periods: Periods) -> None:
    while (left := periods.left()) is not None and left <= 0:
        time.sleep(-left + 1e-4)


def scatter(job: Job) -> None:
    """Writes as many pages as the file has, each at a random place, and syncs none."""
    fd = os.open(job["path"], os.O_RDWR)
    source = open(job["source"], "rb").read() if job["source"] else bytes(PAGE)
    pages, payloads = job["size"] // PAGE, len(source) // PAGE
    for _ in range(pages):
        at = random.randrange(payloads) * PAGE
        os.pwrite(fd, source[at:at + PAGE], random.randrange(pages) * PAGE)


def buffered(job: Job, stalls: Record, syncs: Record) -> None:
    """Writes blocks one after the other at a steady pace, with an fsync now and then."""
    fd = os.open(job["path"], os.O_RDWR | os.O_CREAT, 0o600)
    block = job["block"]
    payload = os.urandom(block)
    pace = Pace(job["interval"])
    synced = time.monotonic()
    while True:
        for offset in range(0, job["size"] - block + 1, block):
            pace.wait()
            stalls.begin()
            os.pwrite(fd, payload, offset)
            stalls.end(block)
            if job["sync_every"] and time.monotonic() > synced + job["sync_every"]:
                syncs.begin()
                os.fsync(fd)
                syncs.end()
                synced = time.monotonic()


def mapped(job: Job, record: Record) -> None:
    """Makes pages of a file dirty through a shared mapping, a piece at a time."""
    fd = os.open(job["path"], os.O_RDWR)
    size, piece = job["size"], job["piece"]
    view = mmap.mmap(fd, size)
    payload = os.urandom(piece)
    while True:
        for at in range(0, size, piece):
            record.begin()
            view[at:at + piece] = payload
            record.end(piece)


def read(job: Job, record: Record) -> None:
    """Reads blocks at random places of its part of a file, past the page cache."""
    fd = os.open(job["path"], os.O_RDONLY | os.O_DIRECT)
    block = job["block"]
    buffer = mmap.mmap(-1, block)  # direct IO wants it aligned
    chooser = random.Random(job["seed"])
    pace = Pace(job["interval"])
    while True:
        pace.wait()
        record.begin()
        os.preadv(fd, [buffer], job["first"] + chooser.randrange(job["size"] // block) * block)
        record.end(block)


def hog(job: Job, record: Record) -> None:
    """Takes memory until only so much is left, and gives it back when there is less.

    BYTES is what it holds.  It never asks for what is not there, and should others
    run out of memory after all it is the one to go.
    """
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    held: List[mmap.mmap] = []
    while True:
        spare = spare_memory() - job["leave"]
        for _ in range(min(len(held), -spare // HOG_STEP + 1) if spare < 0 else 0):
            held.pop().close()
        if spare > 2 * HOG_STEP:
            record.begin()
            held.append(mmap.mmap(-1, HOG_STEP, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            held[-1][::PAGE] = b"x" * (HOG_STEP // PAGE)
            record.end()
        else:
            time.sleep(0.1)
        record.tell(len(held) * HOG_STEP)


def spare_memory() -> int:
    """Bytes that can be had without waiting for a disk."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    available, dirty, writeback = (int(fields[name].split()[0]) << 10
                                   for name in ("MemAvailable", "Dirty", "Writeback"))
    return available - dirty - writeback


VERBS: Dict[str, Callable[..., None]] = {
    "sync": sync, "commit": commit, "loop": loop, "scatter": scatter, "buffered": buffered,
    "mapped": mapped, "read": read, "hog": hog}


def main(argv: List[str]) -> None:
    verb, memories, job = argv
    records = [Record(int(memory)) for memory in memories.split(",") if memory]
    VERBS[verb](json.loads(job), *records)


if __name__ == "__main__":
    main(sys.argv[1:])
