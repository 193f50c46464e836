# SPDX-License-Identifier: GPL-2.0-or-later
"""The hand on the levers beside the global pair: flush interval, BDI, queue, pace.

The same rules as for the pair: the original is in the ledger before the first
write, what was written is read back, what somebody else changed is let go, and
everything goes home.  Each lever is on its own, but for those of one BDI.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from writebackd.actuate.book import Book, say, together
from writebackd.actuate.lease import LeaseLost
from writebackd.actuate.ledger import LeverEntry
from writebackd.actuate.outcome import Outcome, explain
from writebackd.kernel import bdi, levers
from writebackd.kernel.children import ChildError, Ended, Job, Run, Work
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.levers import Lever, lever_of
from writebackd.kernel.vm import read_state
from writebackd.model import Action, ForeignWrite, HeldLever, LeverKind, Setting

# What a child may take: a queue that is frozen waits for the requests in
# flight, which a slow array works off in 1 to 2 s.
CHILD_LIMIT_S = 5.0
# What the kernel refused it is not asked again at once.
RETRY_S = 30.0
# A kernel that fails the self-test will not get better; a BDI may lose the
# limits of its own.
TEST_AGAIN_S = 300.0
# What is remembered of units and devices that are gone is dropped so often: transient units
# come by the thousand, and a look at all that is remembered costs 2 us each.
TIDY_S = 60.0
_WAIT_S = 0.05


@dataclass(frozen=True)
class _Change:
    """One write: `shown` is the new value for people, `wanted` None on the way home."""

    text: str
    old: str
    shown: str
    wanted: Optional[int] = None

    def action(self, lever: Lever, error: Optional[str] = None) -> Action:
        return Action(str(lever), self.old, self.shown, ok=error is None, error=error)


@dataclass
class _Pending:
    """A write under way in a child; `told` once it was reported as late.

    `slept`: the lease was lost meanwhile, so that its lateness may be this process's own.
    """

    job: Job
    change: _Change
    told: bool = False
    slept: bool = False


class Levers:
    """Holds any number of levers; not for several threads.

    `save` has to put the entries into the ledger at once, or raise OSError.
    Nothing here waits: what may hang goes on in a child, and is reported by a
    later call.  Only `restore` with a time to wait waits for it.
    """

    def __init__(
        self,
        files: KernelFiles,
        save: Callable[[], None],
        permit: Callable[[], None] = lambda: None,
    ) -> None:
        self._files = files
        self._permit = permit  # raises where nothing but an original may be written
        self._book = Book(files, save)
        self._pending: Dict[Lever, _Pending] = {}
        # Until when a value (None: the original) is not tried again.
        self._refused: Dict[Lever, Tuple[Optional[int], float]] = {}
        self._tested: Dict[str, Optional[int]] = {}  # BDIs that passed the self-test
        # And those that did not: which, until when it holds, and what was told of it.
        self._unfit: Dict[str, Tuple[Optional[int], float, str]] = {}
        self._pretended: Dict[Lever, str] = {}
        self._tidy_at = 0.0

    @property
    def entries(self) -> Tuple[LeverEntry, ...]:
        """What the ledger has to know: every lever that holds a value of ours, or may."""
        return self._book.all()

    def held(self, threshold_bytes: int) -> Tuple[HeldLever, ...]:
        """All of `entries`, with the limits of BDIs in bytes of the global `threshold_bytes`."""
        return self._book.held(threshold_bytes)

    def differing(self) -> Tuple[Tuple[Lever, str, str], ...]:
        """The levers that do not read as they were written: written last, and found.

        Left out is what cannot be read, and what a child is about to write.
        """
        found = []
        for lever, entry in self._book.entries.items():
            current = None if self._busy(lever) else self._book.read(lever)
            if current is not None and current not in entry.written:
                found.append((lever, entry.written[-1], current))
        return tuple(found)

    def resume(self, entries: Sequence[LeverEntry]) -> None:
        """Take the entries of a ledger as they are; `restore` finds out whose value stands."""
        self._book.resume(entries)

    def adopt(self, entries: Sequence[LeverEntry]) -> Tuple[str, ...]:
        """Take over what an earlier run of this boot has left; returns lines for the log.

        After a lost lease: what failed or was late while this process stood still says
        nothing of the kernel or systemd.
        """
        self._refused.clear()
        for pending in self._pending.values():
            pending.slept = True
        messages = self._book.adopt(entries)
        for lever, entry in self._book.entries.items():
            if lever.kind is LeverKind.BDI:
                self._tested[lever.target] = entry.identity  # by that run
        return messages

    def adopted(self) -> Tuple[Setting, ...]:
        """What `adopt` took over, as settings; nothing of what stays behind without its target."""
        self._forget_gone()
        taken_over = self._book.adopted - self._book.orphans
        adopted = [lever for lever in self._book.entries if lever in taken_over]
        threshold, problem = self._threshold(adopted)
        found = []
        for lever in adopted:
            text = self._book.read(lever)
            value = None if text is None else levers.value_of(lever, text, threshold)
            if value is not None and not (problem and lever.kind is LeverKind.BDI):
                found.append(Setting(lever.kind, lever.target, lever.name, value))
        return tuple(found)

    def foreign(self) -> Tuple[ForeignWrite, ...]:
        """What somebody else set in the place of a value of ours: that lever is let go.

        Of a BDI all three are, because they only work together.
        """
        self._forget_gone()
        found = []
        for lever in list(self._book.entries):
            if self._busy(lever):
                continue
            current = self._book.read(lever)
            if self._book.is_foreign(lever, current):
                found.append(ForeignWrite(str(lever), say(lever, current)))
                self._book.let_go(lever)
        return tuple(found)

    def take_over(self) -> None:
        """Use again what was let go; what stands now is what to go back to."""
        self._book.left.clear()
        self._refused.clear()
        self._unfit.clear()

    def apply(
        self, settings: Sequence[Setting], keep_adopted: bool = False
    ) -> Tuple[Action, ...]:
        """Make every lever as `settings` say, and all others as they were; never raises.

        `keep_adopted` leaves alone what an earlier run set and nobody has asked
        for yet.  The answer has an action for each write that came to an end.
        """
        self._pretended.clear()
        actions = self._collect()
        self._forget_gone()
        wanted = {
            lever_of(each): each
            for each in settings
            if lever_of(each) not in self._book.left and lever_of(each) not in self._book.orphans
        }
        strange = [lever for lever in wanted if not levers.is_lever(lever)]
        actions += self._fail_all(strange, wanted, "there is no such lever")
        for lever in strange:
            del wanted[lever]
        self._book.adopted -= set(wanted)
        threshold, problem = self._threshold(wanted)
        actions += self._test_new(wanted, threshold, problem)
        plan = self._plan_home(
            lever
            for lever in list(self._book.entries)
            if lever in self._book.orphans
            or (lever not in wanted and not (keep_adopted and lever in self._book.adopted))
        )
        if problem:
            # A fraction of something unknown: what is set stays as it is.
            actions += self._fail_all(self._bdi(wanted), wanted, problem)
            wanted = {x: each for x, each in wanted.items() if x.kind is not LeverKind.BDI}
        actions += self._plan(wanted, threshold, plan)
        actions += self._carry_out(plan, wanted, threshold)
        self._book.store_if_changed()
        return tuple(actions)

    def pretend(self, settings: Sequence[Setting]) -> Tuple[Action, ...]:
        """What `apply` would write, told once; writes nothing."""
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

    def restore(self, wait_s: float = 0.0) -> Outcome:
        """Put all originals back where our values still stand; never raises.

        Without `wait_s` (seconds) what may hang goes on in a child: call it
        again, or `apply`, to hear of it.
        """
        until = time.monotonic() + wait_s
        actions: List[Action] = []
        foreign: List[ForeignWrite] = []
        tried: List[Lever] = []
        while True:
            actions += self._collect()
            self._forget_gone()
            left = [x for x in self._book.entries if x not in tried and not self._busy(x)]
            # Queues last: where a child of a dead daemon still hangs in one,
            # even reading it does.
            first = [x for x in left if x.kind is not LeverKind.QUEUE]
            left = first or left
            foreign += self._drop_foreign(left)
            plan = self._plan_home([x for x in left if x in self._book.entries], again=True)
            actions += self._carry_out(plan, {}, 0)
            tried += [x for x in plan if x in self._pending or not self._busy(x)]
            if first:
                continue
            rest = until - time.monotonic()
            if not self._pending or rest <= 0:
                break
            next(iter(self._pending.values())).job.wait(min(rest, _WAIT_S))
        if wait_s:
            told = {action.lever for action in actions}
            actions += [
                pending.change.action(lever, "not done yet; the ledger keeps it")
                for lever, pending in self._pending.items()
                if str(lever) not in told
            ]
        self._book.store_if_changed()
        return Outcome(tuple(actions), tuple(foreign))

    # ---- plans ---------------------------------------------------------

    def _bdi(self, wanted: Iterable[Lever]) -> List[Lever]:
        return [lever for lever in wanted if lever.kind is LeverKind.BDI]

    def _threshold(self, wanted: Iterable[Lever]) -> Tuple[int, Optional[str]]:
        """The global threshold in bytes, and why it is not known, where a BDI needs it."""
        if not self._bdi(wanted):
            return 0, None
        try:
            return read_state(self._files).threshold_bytes, None
        except (OSError, ValueError) as error:
            return 0, explain(error)

    def _test_new(
        self, wanted: Dict[Lever, Setting], threshold: int, problem: Optional[str]
    ) -> List[Action]:
        """Test each BDI before its first use; take those that fail out of `wanted`.

        A cap that the policy asks for is asked for in every tick: what the test of before
        came to as well is told once, however often it is made again.
        """
        actions: List[Action] = []
        targets = sorted({lever.target for lever in self._bdi(wanted)})
        # Who asks for it anew is told anew.
        self._unfit = {target: self._unfit[target] for target in targets if target in self._unfit}
        for target in targets:
            group = [lever for lever in self._bdi(wanted) if lever.target == target]
            identity = levers.identity(self._files, group[0])
            if problem or (identity is not None and self._tested.get(target) == identity):
                continue
            unfit, until, told = self._unfit.get(target, (None, 0.0, ""))
            waits = unfit == identity and time.monotonic() < until
            trouble = None if waits else self._test(target, identity, threshold)
            if trouble:
                if (unfit, told) != (identity, trouble):
                    actions += self._fail_all(group, wanted, trouble)
                self._unfit[target] = (identity, time.monotonic() + TEST_AGAIN_S, trouble)
            if trouble or waits:
                for lever in group:
                    del wanted[lever]
        return actions

    def _test(self, target: str, identity: Optional[int], threshold: int) -> Optional[str]:
        """The self-test, before the first use of a BDI; why it cannot be used."""
        names = [Lever(LeverKind.BDI, target, name) for name in ("max_bytes", "min_bytes")]
        if identity is None:
            return "there is no such device"
        if any(lever in self._book.entries for lever in names):
            return "what an earlier test wrote is still on its way home"
        for lever, value in zip(names, (bdi.TEST_MAX, bdi.TEST_MIN)):
            original = self._book.read(lever)
            if original is not None:
                self._book.entries[lever] = _entry(lever, identity, original, (str(value),))
        try:
            self._book.store()
        except OSError as error:
            problem: Optional[str] = _unsaved(error)
        else:
            problem = bdi.self_test(self._files, target, threshold)
        for lever in names:
            entry = self._book.entries.get(lever)
            if entry is not None and self._book.read(lever) == entry.original:
                del self._book.entries[lever]
        if problem is None:
            self._tested[target] = identity
        return problem

    def _plan_home(self, home: Iterable[Lever], again: bool = False) -> Dict[Lever, _Change]:
        """Changes back to the originals, where our value stands."""
        plan = {}
        for lever in home:
            entry = self._book.entries[lever]
            if self._busy(lever) or (not again and self._waits(lever, None)):
                continue
            current = self._book.read(lever)
            as_found = current == entry.original and lever not in self._book.orphans
            if as_found and not self._book.under_way(entry):
                del self._book.entries[lever]
            elif current in (None, entry.original, *entry.written):
                plan[lever] = _Change(
                    entry.original, say(lever, current), say(lever, entry.original)
                )
        return plan

    def _plan(
        self, wanted: Mapping[Lever, Setting], threshold: int, plan: Dict[Lever, _Change]
    ) -> List[Action]:
        """Add what has to be written for `wanted` to `plan`, and enter it into the ledger."""
        failed = []
        before = dict(self._book.entries)
        new = {}
        for lever in self._due(wanted, threshold):
            setting = wanted[lever]
            text = levers.text_for(setting, threshold)
            try:
                current = levers.read(self._files, lever)
            except OSError as error:
                failed.append(self._fail(lever, setting, "unknown", explain(error)))
                continue
            entry = self._book.entries.get(lever)
            if entry is None:
                identity = levers.identity(self._files, lever) or 0
                # The original as well: this write may have to wait for another.
                entry = _entry(lever, identity, current, (current, text))
            elif current not in entry.written:
                what = f"somebody else set {say(lever, current)}; left alone"
                failed.append(self._fail(lever, setting, say(lever, current), what))
                continue
            else:
                entry = replace(entry, written=(current, text))
            if current == text:
                self._book.entries[lever] = replace(entry, written=(text,))
                continue
            self._book.entries[lever] = entry
            new[lever] = _Change(text, say(lever, current), str(setting.value), setting.value)
        if new:
            try:
                self._book.store()
            except OSError as error:
                self._book.entries = before
                what = _unsaved(error)
                return failed + [
                    self._fail(lever, wanted[lever], change.old, what)
                    for lever, change in new.items()
                ]
        plan.update(new)
        return failed

    def _due(self, wanted: Mapping[Lever, Setting], threshold: int) -> List[Lever]:
        """The levers that are not as wanted, and can be written now."""
        due = []
        for lever, setting in wanted.items():
            if self._busy(lever) or self._waits(lever, setting.value):
                continue
            if not self._in_force(lever, setting, threshold):
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

    # ---- writing -------------------------------------------------------

    def _carry_out(
        self, plan: Mapping[Lever, _Change], wanted: Mapping[Lever, Setting], threshold: int
    ) -> List[Action]:
        actions = []
        for lever in self._in_order(plan):
            change = plan[lever]
            if self._busy(lever):
                continue  # one write of a disk at a time; the next tick has the other
            if lever.name == "strict_limit" and change.text == "1":
                others = [x for x in together(lever) if x in wanted and x != lever]
                if not all(self._in_force(x, wanted[x], threshold) for x in others):
                    # Alone it would hold a quiet device's writers.
                    what = "the limits that go with it could not be set"
                    actions.append(self._judge(lever, change, what))
                    continue
            try:
                if change.wanted is not None:
                    self._permit()
                ours = self._book.entries[lever].written
                work = levers.write(self._files, lever, change.text, ours)
            except OSError as error:
                actions.append(self._judge_failed(lever, change, error))
                continue
            if work is None:
                actions.append(self._judge(lever, change, None))
            else:
                if change.wanted is not None:
                    work = self._permitted(work)
                self._pending[lever] = _Pending(Job(work, CHILD_LIMIT_S), change)
        return actions

    def _permitted(self, work: Work) -> Work:
        """The same work, which asks once more before each child."""

        def permitted(run: Run) -> None:
            def asking(argv: Sequence[str]) -> Ended:
                self._permit()
                return run(argv)

            work(asking)

        return permitted

    def _in_order(self, plan: Mapping[Lever, _Change]) -> List[Lever]:
        """BDI levers as the kernel takes them, the others as they come."""
        ordered = [lever for lever in plan if lever.kind is not LeverKind.BDI]
        for target in dict.fromkeys(x.target for x in plan if x.kind is LeverKind.BDI):
            own = {x.name: x for x in plan if x.kind is LeverKind.BDI and x.target == target}
            minimum = self._book.read(Lever(LeverKind.BDI, target, "min_bytes"))
            current = {} if minimum is None else {"min_bytes": minimum}
            names = bdi.order(current, {name: plan[lever].text for name, lever in own.items()})
            ordered += [own[name] for name in names]
        return ordered

    def _collect(self) -> List[Action]:
        """What the children have come to since the last call."""
        actions = []
        for lever, pending in list(self._pending.items()):
            job = pending.job
            if not job.decided or (pending.told and job.busy):
                continue
            failure = job.failure()
            problem = None if failure is None else explain(failure)
            if job.busy:
                # Not read back: that would wait for the same lock in the kernel.
                pending.told = True
                actions.append(self._refuse(lever, pending.change, problem or ""))
                if pending.slept:
                    self._refused.pop(lever, None)
                continue
            del self._pending[lever]
            entry = self._book.entries.get(lever)
            if entry is None:
                continue
            # What was begun may land yet, unless a write home came behind it, or the kernel
            # has refused the very write that was begun.
            home = pending.change.wanted is None
            unsettled = failure is not None and (home or isinstance(failure, ChildError))
            unsettled = unsettled and self._book.under_way(entry)
            if unsettled and self._book.read(lever) == entry.original:
                actions.append(self._refuse(lever, pending.change, problem or ""))
            elif failure is not None:
                actions.append(self._judge_failed(lever, pending.change, failure))
            else:
                actions.append(self._judge(lever, pending.change, None))
            if pending.slept:
                self._refused.pop(lever, None)
        return actions

    def _judge(self, lever: Lever, change: _Change, problem: Optional[str]) -> Action:
        """Read back, and know what is ours: what stands counts, not what write(2) said."""
        entry = self._book.entries[lever]
        found = self._book.read(lever)
        if found == change.text or (found is None and problem is None and change.wanted is None):
            self._refused.pop(lever, None)
            if change.wanted is None:
                del self._book.entries[lever]
            else:
                self._book.entries[lever] = replace(entry, written=(change.text,))
            return change.action(lever)
        if found is not None:
            # systemd said yes: the unit has the property, whatever io.max shows of it by now.
            stays = problem is None and change.wanted is not None and levers.outlives(
                self._files, lever
            )
            problem = problem or f"reads back as {say(lever, found)}"
            if stays and found in (entry.original, *entry.written):
                self._book.entries[lever] = replace(entry, written=(found, change.text))
            elif found == entry.original:
                del self._book.entries[lever]  # nothing of ours
            elif found not in entry.written:
                # What the kernel made of our value.
                self._book.entries[lever] = replace(entry, written=(entry.written[-1], found))
        return self._refuse(lever, change, problem or "cannot be read back")

    def _judge_failed(self, lever: Lever, change: _Change, error: Exception) -> Action:
        action = self._judge(lever, change, explain(error))
        if isinstance(error, LeaseLost):
            self._refused.pop(lever, None)  # no word of the kernel's: as soon as it is taken again
        return action

    def _refuse(self, lever: Lever, change: _Change, problem: str) -> Action:
        self._refused[lever] = (change.wanted, time.monotonic() + RETRY_S)
        return change.action(lever, problem)

    def _fail_all(
        self, group: Iterable[Lever], wanted: Mapping[Lever, Setting], problem: str
    ) -> List[Action]:
        return [
            self._fail(lever, wanted[lever], "unknown", problem)
            for lever in group
            if not self._waits(lever, wanted[lever].value)
        ]

    def _fail(self, lever: Lever, setting: Setting, old: str, problem: str) -> Action:
        change = _Change("", old, str(setting.value), setting.value)
        return self._refuse(lever, change, problem)

    # ---- small questions -----------------------------------------------

    def _busy(self, lever: Lever) -> bool:
        """Whether a child writes this lever, or another one of the same target."""
        return any(
            other.kind is lever.kind and other.target == lever.target for other in self._pending
        )

    def _waits(self, lever: Lever, wanted: Optional[int]) -> bool:
        value, until = self._refused.get(lever, (None, 0.0))
        same = value == wanted
        if lever.kind is LeverKind.PACE and None not in (value, wanted):
            same = True  # a pace moves every tick, and systemd is not asked that often
        return same and time.monotonic() < until

    def _in_force(self, lever: Lever, setting: Setting, threshold: int) -> bool:
        entry = self._book.entries.get(lever)
        return entry is not None and len(entry.written) == 1 and levers.holds(
            setting, entry.written[0], threshold
        )

    def _drop_foreign(self, candidates: Iterable[Lever]) -> List[ForeignWrite]:
        found = []
        for lever in candidates:
            entry, current = self._book.entries[lever], self._book.read(lever)
            if current is not None and current not in (*entry.written, entry.original):
                found.append(ForeignWrite(str(lever), say(lever, current)))
                del self._book.entries[lever]
        return found

    def _forget_gone(self) -> None:
        self._book.forget_gone()
        if time.monotonic() >= self._tidy_at:
            self._tidy()

    def _tidy(self) -> None:
        """Drop what is remembered of targets that are gone, and what has run out."""
        now = time.monotonic()
        self._tidy_at = now + TIDY_S
        self._book.tidy()
        self._refused = {x: each for x, each in self._refused.items() if now < each[1]}
        self._unfit = {
            target: (known, until, told)
            for target, (known, until, told) in self._unfit.items()
            if self._files.inode(bdi.directory(target)) == known
            and (known is not None or now < until)
        }
        self._tested = {
            target: known
            for target, known in self._tested.items()
            if self._files.inode(bdi.directory(target)) == known
        }


def _entry(
    lever: Lever, identity: int, original: str, written: Tuple[str, ...]
) -> LeverEntry:
    return LeverEntry(lever.kind.value, lever.target, lever.name, identity, original, written)


def _unsaved(error: OSError) -> str:
    return f"nothing written, because the ledger cannot be: {error.strerror}"
