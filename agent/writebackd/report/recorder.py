# SPDX-License-Identifier: GPL-2.0-or-later
"""Records raw samples in a ring of files; a thread writes them.

A file holds ten minutes: lines of JSON in one zlib stream, which begins with the policy and the
Memory before its first tick. From these and the samples every decision can be reproduced.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from writebackd.policy import Policy, render
from writebackd.report.background_writer import BackgroundWriter
from writebackd.safe_files import MODE, for_admins
from writebackd.types.codec import Interned, pack, unpack
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision
from writebackd.types.samples import Sample

log = logging.getLogger(__name__)

VERSION = 1
# A checkpoint of Memory has 1 to 3 KB for each device, as much as some ticks.
FILE_S = 600.0
# What a crash may cost; more often costs compression.
FLUSH_TICKS = 30
# Ticks that may wait for a stuck disk: each holds on to some KB for each device.
MAX_WAITING = 64
_SUFFIX = ".tape"
_DAMAGES = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class RecordedDecision(NamedTuple):
    """The part of a tick's decision that a replay must reproduce."""

    limit_bytes: Optional[int]
    background_bytes: Optional[int]
    goal_bytes: Optional[int]
    # name, decision id, state, target
    devices: Tuple[Tuple[str, str, str, Optional[int]], ...] = ()
    settings: Tuple[Tuple[str, str, str, int], ...] = ()


def recorded_decision(decision: Decision) -> RecordedDecision:
    return RecordedDecision(
        decision.limit_bytes,
        decision.background_bytes,
        decision.goal_bytes,
        tuple([(d.name, d.decision_id, d.state.value, d.target_bytes) for d in decision.devices]),
        tuple([(s.kind.value, s.target, s.name, s.value) for s in decision.settings]),
    )


@dataclass(frozen=True)
class Recorded:
    """One recorded tick. `memory` is given if it differs from the memory after the last tick."""

    sample: Sample
    outcome: RecordedDecision
    policy: str  # as a policy file
    memory: Optional[Memory] = None


class RecordingError(Exception):
    """There is no recording to read; the message says what to do."""

    exit_code = 1  # of a command that it ends


class Recorder(BackgroundWriter):
    """Writes ticks; `record` never waits."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Start the writer."""
        super().__init__(directory, "recorder", MAX_WAITING)
        self.dropped = 0  # ticks that the writer could not keep up with
        self._max_bytes = max_bytes
        self._last: Optional[Memory] = None  # after the tick that was recorded last
        # the thread's
        self._file: Optional[int] = None
        self._begun_s = float("-inf")
        self._interned = Interned()
        self._thread.start()

    def record(
        self, policy: Policy, before: Memory, sample: Sample, decision: Decision, after: Memory
    ) -> None:
        """Queue a tick; drop and count it when the writer is stuck. Never blocks."""
        # The memory is written again where a command or a reload has changed it.
        follows = before is self._last
        if self._offer((policy, before, follows, sample, decision)):
            self._last = after
        else:
            self.dropped += 1

    # ---- in the thread -------------------------------------------------

    def _run(self) -> None:
        stream, ticks, written = zlib.compressobj(6), 0, None
        for policy, before, follows, sample, decision in self._items():
            try:
                if self._file is None or not 0 <= sample.time_s - self._begun_s < FILE_S:
                    self._end(stream)
                    stream, ticks, written, follows = zlib.compressobj(6), 0, None, False
                    self._begin(sample)
                data = b""
                if policy is not written:
                    written = policy
                    data += stream.compress(_line({"v": VERSION, "policy": render(policy)}))
                record = {
                    "s": pack(sample, self._interned),
                    "o": recorded_decision(decision),
                }
                if not follows:
                    record["m"] = pack(before, self._interned)
                record["n"] = self._interned.take()
                data += stream.compress(_line(record))
                ticks += 1
                if ticks % FLUSH_TICKS == 0:
                    data += stream.flush(zlib.Z_SYNC_FLUSH)
                self._write(data)
                self.error = None
            except Exception as error:  # a full disk, a value that JSON cannot take
                self._tell(str(error), "samples in %s: %s; ticks are left out")
                self.dropped += 1
                self._drop_file()
        with contextlib.suppress(OSError):
            self._end(stream)

    def _begin(self, sample: Sample) -> None:
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = self.path / f"{int(sample.wall_s * 1000):015d}{_SUFFIX}"
        # Names of processes and cgroups are in it, which not everybody may see.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, MODE)
        self._begun_s, self._interned = sample.time_s, Interned()
        files = [(each, each.stat().st_size) for each in _files(self.path)]
        for_admins(path)
        total = sum(size for _, size in files)
        for each, size in files[:-1]:
            # Room for the one that begins: a tenth.
            if total <= 0.9 * self._max_bytes:
                break
            each.unlink()
            total -= size

    def _write(self, data: bytes) -> None:
        if data and self._file is not None:
            # No fsync: it would count as the demand that is looked for.
            os.write(self._file, data)

    def _end(self, stream: "zlib._Compress") -> None:
        if self._file is not None:
            self._write(stream.flush())
            self._drop_file()

    def _drop_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _line(record: Dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _files(directory: Path) -> List[Path]:
    """Oldest first."""
    return sorted(each for each in directory.iterdir() if each.suffix == _SUFFIX)


def read_recording(
    directory: Path, since_s: Optional[float] = None, until_s: Optional[float] = None
) -> Iterator[Recorded]:
    """Ticks of `[since_s, until_s)`, oldest first. Raises RecordingError.

    It begins with the file that contains `since_s`, up to ten minutes earlier, for its Memory.
    """
    try:
        files = _files(directory)
    except OSError as error:
        raise RecordingError(
            f"no samples in {directory} ({error.strerror}): they are kept where the policy says"
            " so, [history] samples"
        ) from None
    for number, path in enumerate(files):
        following = files[number + 1 : number + 2]
        if since_s is not None and following and _begin_s(following[0]) <= since_s:
            continue
        if until_s is not None and _begin_s(path) >= until_s:
            return
        yield from _read_file(path, until_s)


def _begin_s(path: Path) -> float:
    try:
        return int(path.stem) / 1000
    except ValueError:
        return 0.0


def _read_file(path: Path, until_s: Optional[float]) -> Iterator[Recorded]:
    """The ticks of a file; damage costs the rest of that file."""
    interned, policy = Interned(), ""
    try:
        for line in _lines(path):
            record = json.loads(line)
            if "policy" in record:
                if record["v"] != VERSION:
                    raise ValueError(f"version {record['v']}, this release knows {VERSION}")
                policy = record["policy"]
                continue
            interned.give(record["n"])
            sample = unpack(Sample, record["s"], interned)
            if until_s is not None and sample.wall_s >= until_s:
                return
            memory = unpack(Memory, record["m"], interned) if "m" in record else None
            limit, background, goal, devices, settings = record["o"]
            outcome = RecordedDecision(
                limit, background, goal, tuple(map(tuple, devices)), tuple(map(tuple, settings))
            )
            yield Recorded(sample, outcome, policy, memory)
    except PermissionError:
        # All of it is like that, and another user can help it.
        raise RecordingError(
            f"{path}: samples are for root and the group adm, try with sudo"
        ) from None
    except (OSError, zlib.error, *_DAMAGES) as error:
        log.warning("%s: %s; the rest of it is left out", path, error)


def _lines(path: Path) -> Iterator[bytes]:
    """Complete lines: the last one may be cut if the file is still being written, or was."""
    stream, rest = zlib.decompressobj(), b""
    with open(path, "rb") as file:
        while True:
            data = file.read(1 << 16)
            if not data:
                return
            *lines, rest = (rest + stream.decompress(data)).split(b"\n")
            yield from lines
