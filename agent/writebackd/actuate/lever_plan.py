# SPDX-License-Identifier: GPL-2.0-or-later
"""What has to be written for levers to be as wanted, or as they were found, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Iterable, List, Mapping

from writebackd.actuate.child_jobs import ChildJobs
from writebackd.actuate.ledger import LeverEntry
from writebackd.actuate.lever_registry import LeverRegistry, say, together, unsaved
from writebackd.actuate.outcome import Change, explain
from writebackd.actuate.refusals import Refusals
from writebackd.kernel import bdi, lever_files
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever
from writebackd.types.levers import Action, LeverKind, Setting


class Planner:
    """Reads the levers and enters into the ledger what is going to be written."""

    def __init__(
        self, files: KernelFiles, book: LeverRegistry, jobs: ChildJobs, refusals: Refusals
    ) -> None:
        self._files = files
        self._book = book
        self._jobs = jobs
        self._refusals = refusals

    def home(self, home: Iterable[Lever], again: bool = False) -> Dict[Lever, Change]:
        """Changes back to the originals, where our value stands."""
        plan = {}
        for lever in home:
            entry = self._book.entries[lever]
            if self._jobs.busy(lever) or (not again and self._refusals.waits(lever, None)):
                continue
            current = self._book.read(lever)
            as_found = current == entry.original and lever not in self._book.orphans
            if as_found and not self._book.under_way(entry):
                del self._book.entries[lever]
            elif current in (None, entry.original, *entry.written):
                plan[lever] = Change(
                    entry.original, say(lever, current), say(lever, entry.original)
                )
        return plan

    def wanted(
        self, wanted: Mapping[Lever, Setting], threshold: int, plan: Dict[Lever, Change]
    ) -> List[Action]:
        """Add what has to be written for `wanted` to `plan`, and enter it into the ledger."""
        failed = []
        before = dict(self._book.entries)
        new = {}
        for lever in self._due(wanted, threshold):
            setting = wanted[lever]
            text = lever_files.text_for(setting, threshold)
            try:
                current = lever_files.read(self._files, lever)
            except OSError as error:
                failed.append(self._refusals.add_setting(lever, setting, "unknown", explain(error)))
                continue
            entry = self._book.entries.get(lever)
            if entry is None:
                identity = lever_files.identity(self._files, lever) or 0
                # The original as well: this write may have to wait for another.
                entry = LeverEntry.of(lever, identity, current, current, text)
            elif current not in entry.written:
                what = f"another process set {say(lever, current)}; not restored"
                failed.append(self._refusals.add_setting(lever, setting, say(lever, current), what))
                continue
            else:
                entry = replace(entry, written=(current, text))
            if current == text:
                self._book.entries[lever] = replace(entry, written=(text,))
                continue
            self._book.entries[lever] = entry
            new[lever] = Change(text, say(lever, current), str(setting.value), setting.value)
        if new:
            try:
                self._book.store()
            except OSError as error:
                self._book.entries = before
                what = unsaved(error)
                return failed + [
                    self._refusals.add_setting(lever, wanted[lever], change.old, what)
                    for lever, change in new.items()
                ]
        plan.update(new)
        return failed

    def _due(self, wanted: Mapping[Lever, Setting], threshold: int) -> List[Lever]:
        """The levers that are not as wanted, and can be written now."""
        due = []
        for lever, setting in wanted.items():
            if self._jobs.busy(lever) or self._refusals.waits(lever, setting.value):
                continue
            if not self.in_force(lever, setting, threshold):
                due.append(lever)
        for lever in list(due):
            # Both fractions of a BDI are taken anew together, or the kernel may
            # find one on the wrong side of the other.
            if lever.kind is LeverKind.BDI and lever.name != "strict_limit":
                due += [
                    x for x in together(lever)
                    if x in wanted and x not in due and x.name != "strict_limit"
                ]
        return due

    def in_force(self, lever: Lever, setting: Setting, threshold: int) -> bool:
        entry = self._book.entries.get(lever)
        return entry is not None and len(entry.written) == 1 and lever_files.holds(
            setting, entry.written[0], threshold
        )

    def in_order(self, plan: Mapping[Lever, Change]) -> List[Lever]:
        """BDI levers as the kernel takes them, the others as they come."""
        ordered = [lever for lever in plan if lever.kind is not LeverKind.BDI]
        for target in dict.fromkeys(x.target for x in plan if x.kind is LeverKind.BDI):
            own = {x.name: x for x in plan if x.kind is LeverKind.BDI and x.target == target}
            minimum = self._book.read(Lever(LeverKind.BDI, target, "min_bytes"))
            current = {} if minimum is None else {"min_bytes": minimum}
            names = bdi.order(current, {name: plan[lever].text for name, lever in own.items()})
            ordered += [own[name] for name in names]
        return ordered


def of_bdis(wanted: Iterable[Lever]) -> List[Lever]:
    return [lever for lever in wanted if lever.kind is LeverKind.BDI]
