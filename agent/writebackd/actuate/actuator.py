# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the global dirty limits, reads them back, yields to other writers, restores.

Other levers are written by lever_writer.py; all are in one ledger.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd.actuate.lease import LeaseLost
from writebackd.actuate.ledger import (
    Ledger,
    boot_id,
    distinct,
    load_lent,
    load_or_first,
    old,
    save_lent,
    set_aside,
)
from writebackd.actuate.ledger_restore import (
    close_ledger,
    is_ours,
    pair_of,
    put_back,
    restore_pairs,
    value_of,
)
from writebackd.actuate.lever_writer import Levers
from writebackd.actuate.outcome import action, explain, failed, holds, order
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import (
    BACKGROUND,
    LIMIT,
    PAIRS,
    Pair,
    PairValue,
    read_limits,
    read_state,
    readback_error,
    write_lever,
)
from writebackd.types.levers import Action, ForeignWrite, Setting, VmLimits

# Seconds to wait at exit for restores in children; systemd allows 15 s.
_EXIT_WAIT_S = 6.0


class Actuator:
    """Holds the two pairs of global limits, in bytes form, and other levers in `levers`.

    After `start()`, `restore()` writes back `originals`.  `dry_run` (observe mode) may be set at
    any time, followed by `restore()`: `apply` then only returns what it would write, after
    restoring values of ours that are left.  Not thread-safe.
    """

    originals: VmLimits

    def __init__(
        self, files: KernelFiles, ledger_path: Path, on_exit: str,
        permit: Callable[[], None] = lambda: None,
        keep_first: Callable[[VmLimits], None] = lambda limits: None,
    ) -> None:
        """`permit` raises LeaseLost if only originals may be written.

        `keep_first` receives the originals before every write, and may raise OSError.
        """
        self.dry_run = False
        self.yielded = False
        self.on_exit = on_exit
        self._files = files
        self._path = ledger_path
        self._permit = permit
        self._keep_first = keep_first
        # The pairs that have a value of ours, with that value.
        self._ours: Dict[Pair, PairValue] = {}
        self._pretended: Optional[Tuple[int, int]] = None
        # The limits in the ledger as last saved.
        self._written: Tuple[Tuple[int, int], ...] = ()
        self._earlier: Tuple[Tuple[int, int], ...] = ()  # as in the ledger
        self._lent: Optional[Ledger] = None  # values of ours that others may set again
        # Why written limits are not in force; None if they are.
        self.not_in_force: Optional[str] = None
        self.levers = Levers(files, lambda: self._store(self._written), permit)
        self.started = False  # whether it is known which values are ours
        self._created_wall_s = time.time()

    def start(self) -> Tuple[str, ...]:
        """Read the current limits and an existing ledger; returns lines for the log.

        Call it again after a lost lease, since only the ledger is valid then.  Raises LedgerError
        if there is a ledger that cannot be read: the current limit may then be one of ours and must
        not become the original.  Raises OSError or ValueError if the limits cannot be read, or an
        outdated ledger cannot be moved.
        """
        self.started = False
        self.originals = limits = read_limits(self._files)
        self._ours, self._written, self._earlier, self._pretended = {}, (), (), None
        ledger, damaged = load_or_first(self._files, self._path)
        self._lent = load_lent(self._path, self._files)
        self.started = True
        if ledger is None:
            self.levers.adopt(())
            return self._take_back(limits)
        if ledger.is_of_an_earlier_boot(self._files):
            return (f"set a ledger of an earlier boot aside: {set_aside(self._path)}",)
        messages = [self._resolve(pair, limits, ledger) for pair in PAIRS if ledger.written]
        messages += damaged
        adopted = self.levers.adopt(ledger.levers)
        self._created_wall_s, self._earlier = ledger.created_wall_s, ledger.earlier
        theirs = {
            pair: pair.value(limits) for pair in PAIRS
            if ledger.written and pair not in self._ours
            and pair.value(limits) != pair.value(ledger.originals)
        }
        if theirs:
            with contextlib.suppress(OSError):
                save_lent(ledger, self._path, self._files, theirs)
                self._lent = load_lent(self._path, self._files)
        messages += self._take_back(limits)
        if self._ours or self.levers.entries:
            self._written = ledger.written if self._ours else ()
            self.set_on_exit(self.on_exit)
        else:
            self._path.unlink()
        return (*(message for message in messages if message), *adopted)

    def _resolve(self, pair: Pair, limits: VmLimits, ledger: Ledger) -> Optional[str]:
        """Find out whether `pair` has a value of an earlier run or of another process."""
        current, original = pair.value(limits), pair.value(ledger.originals)
        if current == original:
            return None
        if is_ours(current, original, ledger.ours(pair)):
            self._ours[pair] = current
            self._set_original(pair, original)
            return (
                f"adopted {pair.describe(current)} of process {ledger.pid}, "
                f"original {pair.describe(original)}"
            )
        return (
            f"{pair.describe(current)} was set by another process since process {ledger.pid} "
            f"(original was {pair.describe(original)}); it is the new original"
        )

    def apply(self, limit_bytes: int, background_bytes: int) -> Tuple[Action, ...]:
        """Set both limits and read them back through /proc/vmstat; never raises.

        Returns an action for each file that had to change; none if the values are already in force,
        or after a yield.  Values that are set but not in force fail in every call.  If one file
        cannot be written, the other is set back.
        """
        if self.dry_run:
            # Values adopted from a crashed run, or left by a failed restore.
            if self._ours:
                return self.restore_limits()
            return self._pretend(limit_bytes, background_bytes)
        self._pretended = None
        if self.yielded:
            return ()
        return self._apply({LIMIT: limit_bytes, BACKGROUND: background_bytes})

    def apply_settings(
        self, settings: Sequence[Setting], keep_adopted: bool = False
    ) -> Tuple[Action, ...]:
        """Set the other levers, and restore those not in `settings`; never raises.

        Call it after `apply`, because a BDI's limits are fractions of the global one.  Writes that
        may hang run in the background and return their action in a later call, so call it in every
        tick.  `keep_adopted` leaves levers of an earlier run alone until they are in `settings`.
        """
        if self.dry_run:
            return self.levers.restore().actions or self.levers.pretend(settings)
        return self.levers.apply(() if self.yielded else settings, keep_adopted)

    def _apply(self, wanted: Mapping[Pair, int]) -> Tuple[Action, ...]:
        try:
            self._permit()
            state = read_state(self._files)
        except (OSError, ValueError) as error:
            return failed(PAIRS, wanted, None, explain(error))
        limits = state.limits
        todo = [pair for pair in order(wanted, state) if not holds(limits, pair, wanted)]
        if not todo and len(self._ours) == len(PAIRS):
            problem = readback_error(wanted[LIMIT], wanted[BACKGROUND], state)
            if not problem:
                self.not_in_force = None
                return ()
            # The same text each time, so that log and history have it once.
            self.not_in_force = self.not_in_force or problem
            return failed(PAIRS, wanted, limits, self.not_in_force)
        strangers = self.foreign(limits)
        if strangers:
            # Written since this tick's sample: the next one shows it, and we yield.
            what = f"another process set {strangers[0].lever}={strangers[0].value}; not restored"
            return failed(todo or PAIRS, wanted, limits, what)
        for pair in PAIRS:
            if pair not in self._ours:
                self._set_original(pair, pair.value(limits))
        try:
            self._keep_first(self.originals)
            self._save(wanted)
        except OSError as error:
            what = f"nothing written, cannot write {error.filename}: {error.strerror}"
            return failed(todo or PAIRS, wanted, limits, what)
        return self._write(todo, wanted, limits)

    def _write(
        self, todo: List[Pair], wanted: Mapping[Pair, int], before: VmLimits
    ) -> Tuple[Action, ...]:
        for index, pair in enumerate(todo):
            try:
                self._permit()
                write_lever(self._files, pair.bytes_lever, wanted[pair])
            except LeaseLost as error:
                # The watcher restores, so do not set `before` back; but remember for
                # `restore` what was written before the loss.
                self._ours.update((done, (wanted[done], 0)) for done in todo[:index])
                return failed(todo, wanted, before, explain(error))
            except OSError as error:
                what = f"{pair.bytes_lever}: {explain(error)}"
                undone = self._roll_back(todo[: index + 1], wanted, before)
                return failed(todo, wanted, before, what + undone)
        self._ours = {pair: (wanted[pair], 0) for pair in PAIRS}
        try:
            state = read_state(self._files)
            problem = readback_error(wanted[LIMIT], wanted[BACKGROUND], state)
        except (OSError, ValueError) as error:
            problem = f"cannot read it back: {explain(error)}"
        self.not_in_force = problem
        if problem:
            return failed(todo, wanted, before, problem)
        return tuple(action(pair, wanted, before) for pair in todo)

    def _roll_back(self, pairs: List[Pair], wanted: Mapping[Pair, int], before: VmLimits) -> str:
        """Undo a write that failed half-way; returns what to add to its error.

        The write that failed is checked as well: it may have taken effect.
        """
        problems = []
        for pair in reversed(pairs):
            try:
                current = pair.value(read_limits(self._files))
            except (OSError, ValueError):
                current = (wanted[pair], 0)
            if current == pair.value(before):
                continue
            action = put_back(self._files, pair, current, pair.value(before))
            if not action.ok:
                self._ours[pair] = current
                problems.append(f"; {pair.describe(current)} stays: {action.error}")
        return "".join(problems)

    def set_on_exit(self, on_exit: str) -> None:
        """Set what `finish` does, also in the ledger for a restore by another process."""
        self.on_exit = on_exit
        with contextlib.suppress(OSError):  # the next write of a limit saves it as well
            if len(self._ours) == len(PAIRS):
                self._save({pair: self._ours[pair][0] for pair in PAIRS})
            elif self.levers.entries:
                self._store(self._written)

    @property
    def held_limit_bytes(self) -> Optional[int]:
        """The limit of ours that is set: written, or adopted at the start."""
        ours = self._ours.get(LIMIT)
        return ours[0] or None if ours is not None else None

    def foreign(self, limits: VmLimits) -> Tuple[ForeignWrite, ...]:
        """Values in `limits` that another process set in place of ours."""
        if self.dry_run:
            return ()
        changed = []
        for pair in PAIRS:
            current, original = pair.value(limits), pair.value(self.originals)
            lent = self._lent is not None and self._lent.came_back(pair, current)
            ours = self._ours.get(pair)
            if not is_ours(current, original, (ours,)) if ours is not None else lent:
                lever, value = pair.in_force(current)
                as_found = current == original
                changed.append(ForeignWrite(lever, str(value), original=as_found, ours=lent))
        return tuple(changed)

    def yield_(self) -> Tuple[Action, ...]:
        """Leave the limits to others until `take_over`, and restore what is still ours."""
        self.yielded = True
        return self.restore()

    def settle(self, writes: Collection[ForeignWrite]) -> Tuple[Action, ...]:
        """While yielded: restore limits of ours that another process saved, and has set again.

        A value that was typed stays, and so does one that is set once more: somebody wants it.
        """
        came_back = [write for write in writes if write.ours]
        if self._lent is None or not came_back:
            return ()
        try:
            limits = read_limits(self._files)
        except (OSError, ValueError):
            return ()  # again in the next tick
        typed = [pair_of(write.lever) for write in came_back if write.typed]
        self._take_back(limits, typed)
        return self.restore_limits()

    def _take_back(self, limits: VmLimits, typed: Collection[Pair] = ()) -> Tuple[str, ...]:
        """Adopt limits of ours that were set by another process, with what they once replaced."""
        lent, messages = self._lent, []
        if lent is None:
            return ()
        for pair in PAIRS:
            current, original = pair.value(limits), pair.value(lent.originals)
            if pair in self._ours or not lent.came_back(pair, current):
                continue
            self._lent = self._lent and self._lent.without(pair, current)
            if pair not in typed:
                self._ours[pair] = current
                self._set_original(pair, original)
                messages.append(
                    f"{pair.describe(current)} was a limit of ours before another process set it"
                    f" again, original {pair.describe(original)}"
                )
        if self._lent is not lent and self._lent is not None:
            with contextlib.suppress(OSError):  # taken back once more, then
                self._lent.save(old(self._path))
        return tuple(messages)

    def take_over(self) -> None:
        """End a yield: the current values become the originals, unless they were ours before."""
        self.yielded = False
        self.levers.take_over()
        limits = read_limits(self._files)
        self._take_back(limits)
        for pair in PAIRS:
            if pair not in self._ours:
                self._set_original(pair, pair.value(limits))

    def restore(self) -> Tuple[Action, ...]:
        """Restore all originals, the limits first; never raises.

        Writes that may hang run in the background; `apply_settings` returns their actions.
        """
        return self.restore_limits() + (self.levers.restore().actions if self.started else ())

    def restore_limits(self) -> Tuple[Action, ...]:
        """Restore the limits that still have our values, in their original form; never raises.

        A pair that another process has set is left alone and becomes the original.  The ledger is
        removed once no value of ours is left, or renamed to `ledger.json.old` if another process's
        value is set.
        """
        self._pretended = None
        if not self.started:
            # Stopped before start() finished: an existing ledger is an earlier run's, and the only
            # record of the originals.
            return ()
        outcome = restore_pairs(
            self._files, self.originals, {pair: (ours,) for pair, ours in self._ours.items()}
        )
        if outcome.ok and self._written:
            ledger, self._written, self._earlier = self._ledger(), (), ()
            rest = self._ledger() if self.levers.entries else None
            close_ledger(self._files, self._path, ledger, outcome, rest)
            self._lent = load_lent(self._path, self._files)
        failed = {action.lever for action in outcome.actions if not action.ok}
        self._ours = {p: ours for p, ours in self._ours.items() if failed.intersection(p)}
        for write in outcome.foreign:
            self._set_original(pair_of(write.lever), value_of(write))
        return outcome.actions

    def finish(self) -> Tuple[Action, ...]:
        """At exit: restore, except the limits if the policy says on-exit = keep.

        Other levers are always restored: a pace or queue setting that is no longer adapted would do
        harm.  The ledger of kept limits stays, so that `writebackctl restore` can undo them and the
        next start adopts them.
        """
        keep = self.on_exit == "keep" and self._ours
        actions = () if keep else self.restore_limits()
        return actions + (self.levers.restore(_EXIT_WAIT_S).actions if self.started else ())

    def _pretend(self, limit_bytes: int, background_bytes: int) -> Tuple[Action, ...]:
        if self._pretended == (limit_bytes, background_bytes):
            return ()
        old = self._pretended
        self._pretended = (limit_bytes, background_bytes)
        wanted = {LIMIT: limit_bytes, BACKGROUND: background_bytes}
        if old:
            before = VmLimits(old[0], 0, old[1], 0)
        else:
            try:
                before = read_limits(self._files)
            except (OSError, ValueError):
                before = self.originals
        return tuple(
            action(pair, wanted, before) for pair in PAIRS if not holds(before, pair, wanted)
        )

    def _set_original(self, pair: Pair, value: PairValue) -> None:
        self.originals = replace(
            self.originals, **{pair.bytes_lever: value[0], pair.ratio_lever: value[1]}
        )

    def _save(self, wanted: Mapping[Pair, int]) -> None:
        new = (wanted[LIMIT], wanted[BACKGROUND])
        # For a pair without a value of ours (or with a bare ratio, see is_ours) use the new value,
        # which is about to be ours.
        last = tuple(self._ours.get(pair, (0, 0))[0] or wanted[pair] for pair in PAIRS)
        written: Tuple[Tuple[int, int], ...] = ((last[0], last[1]), new)
        written = written if written[0] != new else (new,)
        if written != self._written:
            self._earlier = distinct((*self._earlier, *self._written))
        self._store(written)

    def _store(self, written: Tuple[Tuple[int, int], ...]) -> None:
        """Save the ledger with these limits; remove it if it would be empty."""
        if written or self.levers.entries:
            replace(self._ledger(), written=written).save(self._path)
        else:
            self._path.unlink(missing_ok=True)
        self._written = written

    def _ledger(self) -> Ledger:
        return Ledger(
            boot_id=boot_id(self._files),
            pid=os.getpid(),
            created_wall_s=self._created_wall_s,
            on_exit=self.on_exit,
            originals=self.originals,
            written=self._written,
            levers=self.levers.entries,
            earlier=self._earlier,
        )
