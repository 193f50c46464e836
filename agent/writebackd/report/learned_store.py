# SPDX-License-Identifier: GPL-2.0-or-later
"""Stores learned values, in a thread of the daemon, and the results of calibrations."""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterable, Mapping, Optional, Sequence, Tuple, TypeVar

from writebackd.estimate.learned import facts_of, learn, recall, unexpired
from writebackd.report.background_writer import BackgroundWriter
from writebackd.safe_files import load_json, save_json
from writebackd.tuning import KEEP_S
from writebackd.types.codec import pack, unpack
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory, Fact, Learned
from writebackd.types.quantities import Figure, Rate, Seconds, Time
from writebackd.types.samples import Sample
from writebackd.types.storage import Device

T = TypeVar("T")
log = logging.getLogger(__name__)

VERSION = 2
# A host with 1 024 disks and as many that come and go.
MAX_DEVICES = 4096
# A drain rate moves with every tick of a flood; a minute of it is soon learned again.
SAVE_S = 60.0


class LearnedStore(BackgroundWriter):
    """Seeds the memory of new devices, and stores what was learned about them.

    Neither happens before the file has been read: on a disk that hangs the daemon goes on as if
    there were no file.
    """

    def __init__(
        self,
        path: Path,
        whole: Callable[[Memory], Iterable[DeviceMemory]] = lambda memory: memory.devices.values(),
    ) -> None:
        """Start the thread.

        `whole`: the devices of a memory, with what is to be kept of them and lies elsewhere.
        """
        super().__init__(path, "learned", 1)
        self._whole = whole
        self._known: Optional[Dict[str, Learned]] = None  # the loop's, once it was read
        self._saved: Dict[str, Learned] = {}
        self._save_at_s = float("-inf")
        self._recalled: Sequence[Device] = ()  # the devices of the last tick
        self._read: Deque[Dict[str, Learned]] = deque()  # by the thread, for the loop
        self._thread.start()

    def recall(self, memory: Memory, devices: Sequence[Device], wall_s: float) -> Memory:
        """`memory` with the stored values of the devices that are new in it."""
        if self._known is None:
            if not self._read:
                return memory
            self._known = self._read.popleft()
            self._saved = dict(self._known)
        elif devices == self._recalled and len(memory.devices) == len(devices):
            return memory  # none is new, none gone
        self._recalled = devices
        recalled = recall(memory, devices, self._known, wall_s)
        gone = memory.devices.keys() - {device.name for device in devices}
        if gone or recalled is not memory:
            # Before it is forgotten: it may come back, or be here already.
            self._learn(memory, wall_s)
            recalled = recall(memory, devices, self._known, wall_s)
        return recalled

    def keep_now_and_then(self, memory: Memory, sample: Sample) -> None:
        """As `keep`, once every SAVE_S."""
        if sample.time_s >= self._save_at_s:
            self._save_at_s = sample.time_s + SAVE_S
            self.keep(memory, sample.wall_s)

    def keep(self, memory: Memory, wall_s: float) -> None:
        """Pass the learned values to the thread. Never blocks."""
        if self._known is None:
            return
        self._learn(memory, wall_s)
        self._known = _bounded(self._known, wall_s)
        if self._known != self._saved:
            self._saved = dict(self._known)
            self._offer_instead(self._saved)

    @property
    def was_read(self) -> bool:
        """Whether the file was read: from then on `keep` stores what the memory has."""
        return self._known is not None

    def _learn(self, memory: Memory, wall_s: float) -> None:
        assert self._known is not None
        for each in self._whole(memory):
            if each.known_as is not None:
                before = self._known.get(each.known_as, Learned())
                self._known[each.known_as] = learn(each, before, wall_s)

    # ---- in the thread -------------------------------------------------

    def _run(self) -> None:
        known = self._load()
        if known:
            log.info("learned before: %d devices in %s", len(known), self.path)
        self._read.append(known)
        for learned in self._items():
            self._try(partial(save_learned, self.path, learned), "%s cannot be written: %s")

    def _load(self) -> Dict[str, Learned]:
        try:
            return read_learned(self.path)
        except OSError as error:
            log.warning("cannot read %s (%s); learning starts anew", self.path, error.strerror)
            return {}
        except ValueError as error:
            # One name for it, so that they do not pile up.
            aside = self.path.with_name(self.path.name + ".damaged")
            moved = f"set aside as {aside.name}"
            try:
                os.replace(self.path, aside)
            except OSError as failed:
                moved = f"and cannot be moved ({failed.strerror})"
            log.warning("%s is damaged (%s), %s; learning starts anew", self.path, error, moved)
            return {}


def save_learned(path: Path, known: Mapping[str, Learned]) -> None:
    """Raises OSError."""
    _save(path, VERSION, "devices", {name: pack(learned) for name, learned in known.items()})


def _save(path: Path, version: int, part: str, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    save_json(path, {"version": version, part: values})


def read_learned(path: Path) -> Dict[str, Learned]:
    """By disk identity, as `_read`."""
    return _read(path, VERSION, "devices", lambda each: unpack(Learned, each))


def _read(path: Path, version: int, part: str, parse: Callable[[Any], T]) -> Dict[str, T]:
    """What `_save` saved, none without a file. OSError, or ValueError for a damaged one."""
    try:
        body = load_json(path)
        if body is None:
            return {}
        if body["version"] != version:
            raise ValueError(f"version {body['version']}, this release knows {version}")
        return {name: parse(each) for name, each in body[part].items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from None


def _newest(entry: Tuple[str, Learned]) -> float:
    return max((fact.wall_s for fact in facts_of(entry[1]).values()), default=float("-inf"))


def _bounded(known: Mapping[str, Learned], wall_s: float) -> Dict[str, Learned]:
    """Without expired and empty entries: the newest MAX_DEVICES at most."""
    fresh = {identity: unexpired(learned, wall_s) for identity, learned in known.items()}
    kept = {identity: learned for identity, learned in fresh.items() if facts_of(learned)}
    if len(kept) <= MAX_DEVICES:
        return kept
    return dict(sorted(kept.items(), key=_newest, reverse=True)[:MAX_DEVICES])


RUNS_VERSION = 1
# Of each disk: a median of more would be slow to see a new battery.
MOST_RUNS = 5
MOST_DISKS = 4096


@dataclass(frozen=True)
class Calibrated:
    """One run, or the median of several; None: unknown. Bytes, seconds, bytes per second."""

    wall_s: Time
    drain_rate: Optional[Rate] = None
    cache_bytes: Optional[Figure] = None
    baseline_s: Optional[Seconds] = None
    tau_s: Optional[Seconds] = None
    limit_bytes: Optional[Figure] = None


VALUES = tuple(each.name for each in fields(Calibrated) if each.name != "wall_s")


def median(runs: Sequence[Calibrated]) -> Optional[Calibrated]:
    """The median of each value over the runs that know it; None without runs."""
    import statistics  # 1 MB, which the daemon does without

    if not runs:
        return None
    known = {name: [v for v in (getattr(run, name) for run in runs) if v] for name in VALUES}
    values: Dict[str, Any] = {n: statistics.median(all_) for n, all_ in known.items() if all_}
    return Calibrated(max(run.wall_s for run in runs), **values)


def load(path: Path) -> Dict[str, Tuple[Calibrated, ...]]:
    """Runs by disk identity, oldest first. Raises OSError, or ValueError for a damaged file."""
    return _read(
        path, RUNS_VERSION, "disks", lambda rows: tuple([unpack(Calibrated, row) for row in rows])
    )


def unexpired_runs(runs: Sequence[Calibrated], wall_s: float) -> Tuple[Calibrated, ...]:
    """Drop runs as old as learned values may get: the disk may have another use by now."""
    return tuple(each for each in runs if abs(wall_s - each.wall_s) <= KEEP_S)


def add(path: Path, identity: str, run: Calibrated) -> Tuple[Calibrated, ...]:
    """Store a run; returns all runs of its disk. Raises OSError or ValueError as `load`."""
    known = {name: unexpired_runs(runs, run.wall_s) for name, runs in load(path).items()}
    mine = (*known.pop(identity, ()), run)[-MOST_RUNS:]
    kept = [(name, runs) for name, runs in known.items() if runs][-MOST_DISKS + 1 :]
    rows = {name: list(map(pack, runs)) for name, runs in [*kept, (identity, mine)]}
    _save(path, RUNS_VERSION, "disks", rows)
    return mine


def seed(path: Path, identity: str, run: Calibrated) -> None:
    """Write the daemon's file while no daemon runs. Raises OSError, or ValueError if damaged.

    No cache seen is no reason to forget a larger one: what was not measured stays as it is.
    """
    known = read_learned(path)
    names = ("drain_rate", "cache_bytes", "baseline_s")
    facts: Dict[str, Any] = {
        name: Fact(getattr(run, name), run.wall_s) for name in names if getattr(run, name)
    }
    learned = replace(known.get(identity, Learned()), **facts)
    save_learned(path, {**known, identity: learned})
