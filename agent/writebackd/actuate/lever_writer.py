# SPDX-License-Identifier: GPL-2.0-or-later
"""Applies and restores the levers other than the global pair: flusher, BDI, queue, io.max.

The rules are those of the global limits.  Levers are independent, except those of one BDI.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from writebackd.actuate.lease import LeaseLost
from writebackd.actuate.ledger import LeverEntry
from writebackd.actuate.lever_plan import ChildJobs, ChildWrite, Planner, Refusals, of_bdis
from writebackd.actuate.lever_registry import LeverRegistry, SelfTests, say, together
from writebackd.actuate.outcome import Change, RestoreOutcome, explain
from writebackd.kernel import lever_files
from writebackd.kernel.child_process import ChildError, Ended, Run, Work
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever, lever_of
from writebackd.kernel.vm import read_state
from writebackd.types.levers import Action, ForeignWrite, HeldLever, LeverKind, Setting

# Seconds between clean-ups of entries for units and devices that are gone.  Transient units come by
# the thousand, and each entry costs 2 us to check.
TIDY_S = 60.0
_WAIT_S = 0.05


class Levers:
    """Holds any number of levers; not thread-safe.

    Nothing here blocks: a write that may hang is done in a child, and a later call reports it.
    Only `restore` with `wait_s` waits for it.
    """

    def __init__(
        self, files: KernelFiles, save: Callable[[], None] = lambda: None,
        permit: Callable[[], None] = lambda: None,
    ) -> None:
        """`save` writes the entries to the ledger at once, or raises OSError.

        Without it the caller saves them after a restore.  `permit` raises if only originals may be
        written.
        """
        self._files = files
        self._permit = permit
        self._book = LeverRegistry(files, save)
        self.jobs = ChildJobs()
        self._refusals = Refusals()
        self._tests = SelfTests(files, self._book)
        self._plan = Planner(files, self._book, self.jobs, self._refusals)
        self._pretended: Dict[Lever, str] = {}
        self._tidy_at = 0.0

    @property
    def entries(self) -> Tuple[LeverEntry, ...]:
        """The ledger entries: every lever that has, or may have, a value of ours."""
        return self._book.all()

    def held(self, threshold_bytes: int) -> Tuple[HeldLever, ...]:
        return self._book.held(threshold_bytes)

    def differing(self) -> Tuple[Tuple[Lever, str, str], ...]:
        """The levers that differ from what was written last: written value, current value.

        Without unreadable ones, and without those that a child is about to write.
        """
        differing = []
        for lever, entry in self._book.entries.items():
            current = None if self.jobs.busy(lever) else self._book.read(lever)
            if current is not None and current not in entry.written:
                differing.append((lever, entry.written[-1], current))
        return tuple(differing)

    def resume(self, entries: Sequence[LeverEntry]) -> None:
        """Use the entries of a ledger unchanged; `restore` checks whose values are set."""
        self._book.resume(entries)

    def adopt(self, entries: Sequence[LeverEntry]) -> Tuple[str, ...]:
        # Failures and delays while this process was stopped are no fault of kernel or systemd.
        self._refusals.clear()
        self.jobs.mark_slept()
        messages = self._book.adopt(entries)
        for lever, entry in self._book.entries.items():
            if lever.kind is LeverKind.BDI:
                self._tests.trust(lever.target, entry.identity)
        return messages

    def adopted(self) -> Tuple[Setting, ...]:
        """The adopted levers as settings, without those whose target is gone."""
        self._forget_gone()
        taken_over = self._book.adopted - self._book.orphans
        adopted = [lever for lever in self._book.entries if lever in taken_over]
        threshold, problem = self._threshold(adopted)
        settings = []
        for lever in adopted:
            text = self._book.read(lever)
            value = None if text is None else lever_files.value_of(lever, text, threshold)
            if value is not None and not (problem and lever.kind is LeverKind.BDI):
                settings.append(Setting(lever.kind, lever.target, lever.name, value))
        return tuple(settings)

    def foreign(self) -> Tuple[ForeignWrite, ...]:
        """Values that another process set in place of ours; those levers are released.

        All three levers of a BDI are released, since they only work together.
        """
        self._forget_gone()
        changed = []
        for lever in list(self._book.entries):
            if self.jobs.busy(lever):
                continue
            current = self._book.read(lever)
            if self._book.is_foreign(lever, current):
                changed.append(ForeignWrite(str(lever), say(lever, current)))
                self._book.let_go(lever)
        return tuple(changed)

    def take_over(self) -> None:
        """Use released levers again; the current values become the originals."""
        self._book.left.clear()
        self._refusals.clear()
        self._tests.forget_failures()

    def apply(
        self, settings: Sequence[Setting], keep_adopted: bool = False
    ) -> Tuple[Action, ...]:
        """As `Actuator.apply_settings`: returns an action for each finished write."""
        self._pretended.clear()
        actions = self._collect()
        self._forget_gone()
        wanted = {
            lever_of(one): one
            for one in settings
            if lever_of(one) not in self._book.left and lever_of(one) not in self._book.orphans
        }
        strange = [lever for lever in wanted if not lever_files.is_lever(lever)]
        actions += self._refusals.add_all(strange, wanted, "no such lever")
        for lever in strange:
            del wanted[lever]
        self._book.adopted -= set(wanted)
        threshold, problem = self._threshold(wanted)
        unfit = self._tests.unfit(
            (lever.target for lever in of_bdis(wanted)), None if problem else threshold
        )
        for target, trouble in unfit.items():
            group = [lever for lever in of_bdis(wanted) if lever.target == target]
            if trouble is not None:
                actions += self._refusals.add_all(group, wanted, trouble)
            for lever in group:
                del wanted[lever]
        plan = self._plan.home(
            lever
            for lever in list(self._book.entries)
            if lever in self._book.orphans
            or (lever not in wanted and not (keep_adopted and lever in self._book.adopted))
        )
        if problem:
            # Without the threshold no fraction can be computed: leave BDIs as they are.
            actions += self._refusals.add_all(of_bdis(wanted), wanted, problem)
            wanted = {x: setting for x, setting in wanted.items() if x.kind is not LeverKind.BDI}
        actions += self._plan.wanted(wanted, threshold, plan)
        actions += self._carry_out(plan, wanted, threshold)
        self._book.store_if_changed()
        return tuple(actions)

    def pretend(self, settings: Sequence[Setting]) -> Tuple[Action, ...]:
        """What `apply` would write, each returned once; writes nothing."""
        actions = []
        old, self._pretended = self._pretended, {}
        for setting in settings:
            lever = lever_of(setting)
            shown = self._pretended[lever] = str(setting.value)
            if old.get(lever) == shown:
                continue
            current = self._book.read(lever)
            before = old.get(lever) or ("unknown" if current is None else say(lever, current))
            if before != shown:
                actions.append(Action(str(lever), before, shown, ok=True))
        return tuple(actions)

    def restore(self, wait_s: float = 0.0) -> RestoreOutcome:
        """Restore all levers that still have our values; never raises.

        Without `wait_s` (seconds) writes that may hang continue in a child; call this or `apply`
        again for their results.
        """
        until = time.monotonic() + wait_s
        actions: List[Action] = []
        foreign: List[ForeignWrite] = []
        tried: List[Lever] = []
        while True:
            actions += self._collect()
            self._forget_gone()
            left = [x for x in self._book.entries if x not in tried and not self.jobs.busy(x)]
            # Last the levers that cannot even be read while a child of a dead daemon hangs.
            first = [x for x in left if x.kind not in lever_files.SLOW]
            left = first or left
            foreign += self._drop_foreign(left)
            plan = self._plan.home([x for x in left if x in self._book.entries], again=True)
            done = self._carry_out(plan, {}, 0)
            actions += done
            pending, reported = self.jobs.pending, {action.lever for action in done}
            tried += [x for x in plan if x in pending or str(x) in reported]
            if first and not self.jobs.crowded:
                continue
            rest = until - time.monotonic()
            if not pending or rest <= 0:
                break
            self.jobs.wait(min(rest, _WAIT_S))
        if wait_s:
            reported = {action.lever for action in actions}
            actions += [
                change.action(lever, "not done yet, still in the ledger")
                for lever, change in pending.items()
                if str(lever) not in reported
            ]
        self._book.store_if_changed()
        return RestoreOutcome(tuple(actions), tuple(foreign))

    def _threshold(self, wanted: Iterable[Lever]) -> Tuple[int, Optional[str]]:
        """The global threshold in bytes, or why it is not known; read only if a BDI needs it."""
        if not of_bdis(wanted):
            return 0, None
        try:
            return read_state(self._files).threshold_bytes, None
        except (OSError, ValueError) as error:
            return 0, explain(error)

    def _carry_out(
        self, plan: Mapping[Lever, Change], wanted: Mapping[Lever, Setting], threshold: int
    ) -> List[Action]:
        actions = []
        for lever in self._plan.in_order(plan):
            change = plan[lever]
            if self.jobs.busy(lever) or (self.jobs.crowded and lever_files.is_slow(lever)):
                continue  # one write per disk at a time; the next tick does the other
            if lever.name == "strict_limit" and change.text == "1":
                others = [x for x in together(lever) if x in wanted and x != lever]
                if not all(self._plan.in_force(x, wanted[x], threshold) for x in others):
                    # Alone, strict_limit would throttle the writers of a quiet device.
                    what = "the limits that go with it could not be set"
                    actions.append(self._judge(lever, change, what))
                    continue
            try:
                if change.wanted is not None:
                    self._permit()
                ours = self._book.entries[lever].written
                work = lever_files.write(self._files, lever, change.text, ours)
            except OSError as error:
                actions.append(self._judge_failed(lever, change, error))
                continue
            if work is None:
                actions.append(self._judge(lever, change, None))
            else:
                if change.wanted is not None:
                    work = self._permitted(work)
                self.jobs.start(lever, change, work)
        return actions

    def _permitted(self, work: Work) -> Work:
        """The same work, which checks `permit` again before each child."""

        def permitted(run: Run) -> None:
            def asking(argv: Sequence[str]) -> Ended:
                self._permit()
                return run(argv)

            work(asking)

        return permitted

    def _collect(self) -> List[Action]:
        """The results of children since the last call."""
        actions = []
        for write in self.jobs.collect():
            if write.running:
                # Do not read back, which would wait for the same lock in the kernel.
                late = explain(write.failure) if write.failure else ""
                actions.append(self._refusals.add(write.lever, write.change, late))
            elif write.lever in self._book.entries:
                actions.append(self._judge_ended(write))
            else:
                continue
            if write.slept:
                self._refusals.forget(write.lever)
        return actions

    def _judge_ended(self, write: ChildWrite) -> Action:
        lever, change, failure = write.lever, write.change, write.failure
        if failure is None:
            return self._judge(lever, change, None)
        entry = self._book.entries[lever]
        # The write may still take effect, unless a restore was queued behind it or the kernel
        # refused it.
        unsettled = (
            change.wanted is None or isinstance(failure, ChildError)
        ) and self._book.under_way(entry)
        if unsettled and self._book.read(lever) == entry.original:
            return self._refusals.add(lever, change, explain(failure))
        return self._judge_failed(lever, change, failure)

    def _judge(self, lever: Lever, change: Change, problem: Optional[str]) -> Action:
        """Read the lever back to see what is set, whatever write(2) returned."""
        entry = self._book.entries[lever]
        text = self._book.read(lever)
        if text == change.text or (text is None and problem is None and change.wanted is None):
            self._refusals.forget(lever)
            if change.wanted is None:
                del self._book.entries[lever]
            else:
                self._book.entries[lever] = replace(entry, written=(change.text,))
            return change.action(lever)
        if text is not None:
            # systemd accepted it: the unit has the property, even if io.max does not show it yet.
            stays = problem is None and change.wanted is not None and lever_files.outlives(
                self._files, lever
            )
            problem = problem or f"reads back as {say(lever, text)}"
            if stays and text in (entry.original, *entry.written):
                self._book.entries[lever] = replace(entry, written=(text, change.text))
            elif text == entry.original:
                del self._book.entries[lever]  # nothing of ours
            elif text not in entry.written:
                # Remember the value as the kernel rounded it.
                self._book.entries[lever] = replace(entry, written=(entry.written[-1], text))
        return self._refusals.add(lever, change, problem or "cannot read it back")

    def _judge_failed(self, lever: Lever, change: Change, error: Exception) -> Action:
        action = self._judge(lever, change, explain(error))
        if isinstance(error, LeaseLost):
            self._refusals.forget(lever)  # not refused by the kernel: try again soon
        return action

    def _drop_foreign(self, candidates: Iterable[Lever]) -> List[ForeignWrite]:
        changed = []
        for lever in candidates:
            entry, current = self._book.entries[lever], self._book.read(lever)
            if current is not None and current not in (*entry.written, entry.original):
                changed.append(ForeignWrite(str(lever), say(lever, current)))
                del self._book.entries[lever]
        return changed

    def _forget_gone(self) -> None:
        self._book.forget_gone()
        if time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY_S
            self._book.tidy()
            self._refusals.tidy()
            self._tests.tidy()
