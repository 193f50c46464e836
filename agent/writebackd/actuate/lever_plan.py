# SPDX-License-Identifier: GPL-2.0-or-later
"""Plans which levers to write, and in which order, to apply settings or restore originals.

Also remembers failed writes, and when to try them again; does writes that may hang in children.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from writebackd.actuate.ledger import LeverEntry
from writebackd.actuate.lever_registry import LeverRegistry, say, together, unsaved
from writebackd.actuate.outcome import Change, explain
from writebackd.kernel import bdi, lever_files
from writebackd.kernel.child_process import Job, Work
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever
from writebackd.types.levers import Action, LeverKind, Setting

# Seconds.  Time limit of a child: freezing a queue waits for the requests in flight, which take 1
# to 2 s on a slow array.
CHILD_LIMIT_S = 5.0
# Number of writes at a time.  Each needs a thread and a child; the watcher's unit has 16 tasks.
MOST_AT_ONCE = 6


@dataclass
class ChildWrite:
    """A write in a child; `failure` and `running` are as of the last `collect`."""

    lever: Lever
    change: Change
    job: Job
    failure: Optional[Exception] = None
    running: bool = False  # over its time, but may still write
    slept: bool = False  # the lease was lost meanwhile: this process may have been stopped


class ChildJobs:
    """At most one write per target at a time; only `wait` blocks."""

    def __init__(self) -> None:
        self._writes: Dict[Lever, ChildWrite] = {}

    @property
    def pending(self) -> Mapping[Lever, Change]:
        return {lever: write.change for lever, write in self._writes.items()}

    def start(self, lever: Lever, change: Change, work: Work) -> None:
        self._writes[lever] = ChildWrite(lever, change, Job(work, CHILD_LIMIT_S))

    def busy(self, lever: Lever) -> bool:
        """Whether a child is writing this lever or another one of the same target."""
        return any(
            other.kind is lever.kind and other.target == lever.target for other in self._writes
        )

    @property
    def crowded(self) -> bool:
        """Whether no more children may be started now.

        One over its time does not count, since a hung disk may keep it forever.
        """
        return sum(not write.running for write in self._writes.values()) >= MOST_AT_ONCE

    def mark_slept(self) -> None:
        for write in self._writes.values():
            write.slept = True

    def collect(self) -> List[ChildWrite]:
        """The writes that ended since the last call, and, once, those over their time."""
        ended = []
        for lever, write in list(self._writes.items()):
            if not write.job.decided or (write.running and write.job.busy):
                continue
            write.failure, write.running = write.job.failure(), write.job.busy
            if not write.running:
                del self._writes[lever]
            ended.append(write)
        return ended

    def wait(self, timeout_s: float) -> None:
        """Wait until one of them is done, for `timeout_s` seconds at most."""
        for write in self._writes.values():
            write.job.wait(timeout_s)
            break


# Seconds before a refused write is tried again.
RETRY_S = 30.0


class Refusals:
    """For each lever the value that failed last (None: the original)."""

    def __init__(self) -> None:
        self._refused: Dict[Lever, Tuple[Optional[int], float]] = {}

    def waits(self, lever: Lever, wanted: Optional[int]) -> bool:
        """Whether it is too early to try this value."""
        value, until = self._refused.get(lever, (None, 0.0))
        same = value == wanted
        if lever.kind is LeverKind.PACE and None not in (value, wanted):
            same = True  # a pace may change every tick, too often to ask systemd
        return same and time.monotonic() < until

    def add(self, lever: Lever, change: Change, problem: str) -> Action:
        self._refused[lever] = (change.wanted, time.monotonic() + RETRY_S)
        return change.action(lever, problem)

    def add_setting(self, lever: Lever, setting: Setting, old: str, problem: str) -> Action:
        """As `add`, for a setting that cannot be written; `old` is the current value."""
        return self.add(lever, Change("", old, str(setting.value), setting.value), problem)

    def add_all(
        self, group: Iterable[Lever], wanted: Mapping[Lever, Setting], problem: str
    ) -> List[Action]:
        return [
            self.add_setting(lever, wanted[lever], "unknown", problem)
            for lever in group
            if not self.waits(lever, wanted[lever].value)
        ]

    def forget(self, lever: Lever) -> None:
        self._refused.pop(lever, None)

    def clear(self) -> None:
        self._refused.clear()

    def tidy(self) -> None:
        """Drop expired entries, since units come and go by the thousand."""
        now = time.monotonic()
        self._refused = {x: refusal for x, refusal in self._refused.items() if now < refusal[1]}


@dataclass(frozen=True)
class Planner:
    """Reads the levers, and records in the ledger what will be written."""

    files: KernelFiles
    book: LeverRegistry
    jobs: ChildJobs
    refusals: Refusals

    def home(self, home: Iterable[Lever], again: bool = False) -> Dict[Lever, Change]:
        """The writes that restore originals, for levers that still have our value."""
        plan = {}
        for lever in home:
            entry = self.book.entries[lever]
            if self.jobs.busy(lever) or (not again and self.refusals.waits(lever, None)):
                continue
            current = self.book.read(lever)
            as_found = current == entry.original and lever not in self.book.orphans
            if as_found and not self.book.under_way(entry):
                del self.book.entries[lever]
            elif current in (None, entry.original, *entry.written):
                plan[lever] = Change(
                    entry.original, say(lever, current), say(lever, entry.original)
                )
        return plan

    def wanted(
        self, wanted: Mapping[Lever, Setting], threshold: int, plan: Dict[Lever, Change]
    ) -> List[Action]:
        """Add the writes needed for `wanted` to `plan`, and record them in the ledger."""
        failed = []
        before = dict(self.book.entries)
        new = {}
        for lever in self._due(wanted, threshold):
            setting = wanted[lever]
            text = lever_files.text_for(setting, threshold)
            try:
                current = lever_files.read(self.files, lever)
            except OSError as error:
                failed.append(self.refusals.add_setting(lever, setting, "unknown", explain(error)))
                continue
            entry = self.book.entries.get(lever)
            if entry is None:
                identity = lever_files.identity(self.files, lever) or 0
                # Keep the original as well: this write may have to wait for another one.
                entry = LeverEntry.of(lever, identity, current, current, text)
            elif current not in entry.written:
                what = f"another process set {say(lever, current)}; not restored"
                failed.append(self.refusals.add_setting(lever, setting, say(lever, current), what))
                continue
            else:
                entry = replace(entry, written=(current, text))
            if current == text:
                self.book.entries[lever] = replace(entry, written=(text,))
                continue
            self.book.entries[lever] = entry
            new[lever] = Change(text, say(lever, current), str(setting.value), setting.value)
        if new:
            try:
                self.book.store()
            except OSError as error:
                self.book.entries = before
                what = unsaved(error)
                return failed + [
                    self.refusals.add_setting(lever, wanted[lever], change.old, what)
                    for lever, change in new.items()
                ]
        plan.update(new)
        return failed

    def _due(self, wanted: Mapping[Lever, Setting], threshold: int) -> List[Lever]:
        """The levers that differ from `wanted` and can be written now."""
        due = []
        for lever, setting in wanted.items():
            if self.jobs.busy(lever) or self.refusals.waits(lever, setting.value):
                continue
            if not self.in_force(lever, setting, threshold):
                due.append(lever)
        for lever in list(due):
            # Write both fractions of a BDI, since the kernel refuses a minimum above the maximum.
            if lever.kind is LeverKind.BDI and lever.name != "strict_limit":
                due += [
                    x for x in together(lever)
                    if x in wanted and x not in due and x.name != "strict_limit"
                ]
        return due

    def in_force(self, lever: Lever, setting: Setting, threshold: int) -> bool:
        entry = self.book.entries.get(lever)
        return entry is not None and len(entry.written) == 1 and lever_files.holds(
            setting, entry.written[0], threshold
        )

    def in_order(self, plan: Mapping[Lever, Change]) -> List[Lever]:
        """BDI levers in the order that the kernel accepts, the others in any order."""
        ordered = [lever for lever in plan if lever.kind is not LeverKind.BDI]
        for target in dict.fromkeys(x.target for x in plan if x.kind is LeverKind.BDI):
            own = {x.name: x for x in plan if x.kind is LeverKind.BDI and x.target == target}
            minimum = self.book.read(Lever(LeverKind.BDI, target, "min_bytes"))
            current = {} if minimum is None else {"min_bytes": minimum}
            names = bdi.order(current, {name: plan[lever].text for name, lever in own.items()})
            ordered += [own[name] for name in names]
        return ordered


def of_bdis(wanted: Iterable[Lever]) -> List[Lever]:
    return [lever for lever in wanted if lever.kind is LeverKind.BDI]
