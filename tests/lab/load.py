# SPDX-License-Identifier: GPL-2.0-or-later
"""Load generators: a flood of buffered writes and a stream of small synchronous ones.

Both run in processes of their own and are measured from outside, so that a
stuck fsync delays neither the measurement nor its end.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Union

Spawn = Callable[..., "subprocess.Popen[bytes]"]

BLOCK = 4096
SECTOR = 512  # unit of /sys/block/*/stat, whatever the device's own
SECTORS_WRITTEN = 6  # its column there

# Layout of the memory shared with the synchronous writer, in doubles: operations
# done, start of the one in flight (0: none), then a ring of (end, latency).
DONE, STARTED, RING = 0, 1, 2
CAPACITY = 1 << 20  # 7 minutes at 2500/s; untouched pages take no memory


def device_written(device: str) -> int:
    """Bytes written to a block device (loop3) since it was made."""
    columns = Path(f"/sys/block/{device}/stat").read_text().split()
    return int(columns[SECTORS_WRITTEN]) * SECTOR


class Flood:
    """`dd bs=1M` that rewrites one file for ever, the copy process of the field reports."""

    # dd dies with its shell, or it would go on for gigabytes.
    LOOP = ('while setpriv --pdeathsig KILL dd if=/dev/zero of="$0" bs=1M count="$1" '
            "conv=notrunc 2>/dev/null; do :; done")

    def __init__(self, path: Path, size: int, spawn: Spawn) -> None:
        """size: of the file, in bytes; it has to fit the disk."""
        self.path = path
        self._process = spawn(["sh", "-c", self.LOOP, str(path), str(size >> 20)])

    def written(self) -> Optional[int]:
        """Bytes written so far, as the writer sees it; None if the kernel does not account it."""
        # The kernel adds a child's account to its parent's when it is reaped.
        shell = self._process.pid
        try:
            children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
            return sum(written_by(pid) for pid in [str(shell)] + children)
        except OSError:
            return None

    def stop(self) -> None:
        """End it, the shell and its dd together, or the loop would start the next one."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def written_by(pid: str) -> int:
    """Bytes that a process passed to write(2); 0 when it has just gone."""
    try:
        account = Path(f"/proc/{pid}/io").read_text()
    except ProcessLookupError:
        return 0
    except FileNotFoundError:
        if Path(f"/proc/{pid}").exists():
            raise
        return 0
    return int(account.split("wchar: ")[1].split()[0])


@dataclass(frozen=True)
class Latencies:
    """One window of synchronous writes; rates per second, times in seconds."""

    elapsed: float
    ops: int
    rate: float
    mean: Optional[float]
    p50: Optional[float]
    p99: Optional[float]
    max: Optional[float]
    inflight_age: float  # of the operation that had not ended, 0 when there was none
    series: List[int]  # operations per whole second


def percentile(ordered: Sequence[float], share: float) -> Optional[float]:
    """Nearest rank of sorted values; None of none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(since: float, now: float, ends: Sequence[float], latencies: Sequence[float],
            started: float) -> Latencies:
    """What happened between two times of time.monotonic().

    The age of an operation in flight counts among the latencies: it is what that
    operation has taken at the least, and under a flood it may be the only one.
    """
    age = max(0.0, now - started) if started else 0.0
    observed = sorted([*latencies, age] if age > 0 else latencies)
    series = [0] * int(now - since)
    for end in ends:
        if int(end - since) < len(series):
            series[int(end - since)] += 1
    return Latencies(
        elapsed=now - since, ops=len(ends), rate=len(ends) / (now - since),
        mean=sum(observed) / len(observed) if observed else None,
        p50=percentile(observed, 0.5), p99=percentile(observed, 0.99),
        max=observed[-1] if observed else None, inflight_age=age, series=series)


class SyncLoad:
    """One process that writes 4 KiB at a random place of a file, calls fsync, and again."""

    def __init__(self, path: Path, spawn: Spawn) -> None:
        """path: a file as made by `prepare`."""
        memory = os.memfd_create("sync-load")
        try:
            os.ftruncate(memory, (RING + 2 * CAPACITY) * 8)
            self._shared = shared(memory)
            self._process = spawn([sys.executable, str(Path(__file__).resolve()), str(memory),
                                   str(path)], pass_fds=[memory])
        finally:
            os.close(memory)
        self._since = time.monotonic()
        self._first = 0

    def mark(self) -> None:
        """A window begins here."""
        self._since = time.monotonic()
        self._first = int(self._shared[DONE])

    def measure(self, last_s: Optional[float] = None) -> Latencies:
        """The window since the mark, or only the last seconds of it."""
        now = time.monotonic()
        done = int(self._shared[DONE])
        since = self._since if last_s is None else max(self._since, now - last_s)
        slots = []
        for n in range(done - 1, max(self._first, done - CAPACITY) - 1, -1):
            slot = RING + 2 * (n % CAPACITY)
            if self._shared[slot] <= since:
                break
            slots.append(slot)
        return summary(since, now, [self._shared[slot] for slot in slots],
                       [self._shared[slot + 1] for slot in slots], self._shared[STARTED])

    def failed(self) -> bool:
        return self._process.poll() is not None

    def stop(self, wait_s: float = 30) -> None:
        """End it; a stuck fsync ends only when the disk has answered."""
        self._process.kill()
        self._process.wait(wait_s)


def shared(memory: int) -> Any:
    return memoryview(mmap.mmap(memory, 0)).cast("d")


def prepare(path: Path, size: int) -> None:
    """A file of `size` bytes, all of it allocated and written."""
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())


def write_and_sync(memory: int, path: Union[str, Path]) -> None:
    """The synchronous writer itself; never returns."""
    table = shared(memory)
    fd = os.open(path, os.O_RDWR)
    blocks = os.fstat(fd).st_size // BLOCK
    payload = os.urandom(BLOCK)
    done = 0
    while True:
        offset = random.randrange(blocks) * BLOCK
        started = table[STARTED] = time.monotonic()
        os.pwrite(fd, payload, offset)
        os.fsync(fd)
        ended = time.monotonic()
        slot = RING + 2 * (done % CAPACITY)
        table[slot], table[slot + 1] = ended, ended - started
        done += 1
        table[DONE] = done
        table[STARTED] = 0


if __name__ == "__main__":
    write_and_sync(int(sys.argv[1]), sys.argv[2])
