# SPDX-License-Identifier: GPL-2.0-or-later
"""Restores the originals from the ledger, with or without a daemon."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Collection, Mapping, Optional, Tuple

from writebackd.actuate import lease
from writebackd.actuate.ledger import Ledger, LedgerError, load, load_or_first, save_lent, set_aside
from writebackd.actuate.lever_registry import say
from writebackd.actuate.lever_writer import Levers
from writebackd.actuate.lock import AlreadyRunning, is_locked, open_private
from writebackd.actuate.outcome import RestoreOutcome, describe_action, explain
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import read
from writebackd.kernel.vm import PAIRS, Pair, PairValue, in_words, read_limits, write_pair
from writebackd.paths import LEASE, LEDGER
from writebackd.types.levers import Action, ForeignWrite, VmLimits

# Seconds to wait for writes that hang; ExecStopPost= has 15 s.
WAIT_S = 10.0


@dataclass(frozen=True)
class RestoreResult:
    """The result of `writebackctl restore`; `lines` are for display.

    `restored`: all four files have their originals.  `nothing`: there is nothing to undo.
    `foreign`: our values were undone, another process's value stays.  `failed`: see the lines; the
    ledger is kept for another try.
    """

    status: str
    lines: Tuple[str, ...]


def is_ours(current: PairValue, original: PairValue, ours: Collection[PairValue]) -> bool:
    """Whether `current` is a value of ours.

    A ratio of 1 is ours if the original is 0: a restore to 0 first writes 1 (`vm.write_pair`), and
    may have been interrupted there.
    """
    return current in ours or (bool(ours) and original == (0, 0) and current == (0, 1))


def put_back(files: KernelFiles, pair: Pair, current: PairValue, original: PairValue) -> Action:
    """Write the original in its own form and read all four files back; never raises."""
    lever, value = pair.in_force(original)
    old = str(current[0] if lever == pair.bytes_lever else pair.describe(current))
    problem: Optional[str] = None
    try:
        write_pair(files, pair, current, original)
    except OSError as error:
        problem = explain(error)
    try:
        read_back = pair.value(read_limits(files))
    except (OSError, ValueError) as error:
        problem = problem or explain(error)
    else:
        # Judge by the value read back, not by the result of write(2).
        wrong = None if read_back == original else f"reads back as {pair.describe(read_back)}"
        problem = wrong and (problem or wrong)
    return Action(lever, old, str(value), ok=problem is None, error=problem)


def restore_pairs(
    files: KernelFiles, originals: VmLimits, ours: Mapping[Pair, Collection[PairValue]]
) -> RestoreOutcome:
    """Restore every pair that still has a value in `ours`; never raises.

    The limit is first, since it throttles writers.  If one pair fails the other is still restored.
    """
    try:
        limits = read_limits(files)
    except (OSError, ValueError) as error:
        # An unreadable value may be another process's: do not write.
        unread = [(*pair.in_force(pair.value(originals)), explain(error)) for pair in ours]
        return RestoreOutcome(tuple(Action(lv, "unknown", str(v), False, e) for lv, v, e in unread))
    actions, foreign = [], []
    for pair in (pair for pair in PAIRS if pair in ours):
        current, original = pair.value(limits), pair.value(originals)
        if current == original:
            continue
        if is_ours(current, original, ours[pair]):
            actions.append(put_back(files, pair, current, original))
        else:
            lever, value = pair.in_force(current)
            foreign.append(ForeignWrite(lever, str(value)))
    return RestoreOutcome(tuple(actions), tuple(foreign))


def close_ledger(
    files: KernelFiles, path: Path, ledger: Ledger, outcome: RestoreOutcome,
    rest: Optional[Ledger] = None,
) -> Optional[str]:  # fmt: skip
    """After a restore: keep the ledger for another try, set it aside, or remove it.

    `rest` is the ledger to keep for the other levers; None if there are none.  Returns why it could
    not be done, which does no harm: the next start finds only original values.
    """
    if not outcome.ok:
        return None
    try:
        if outcome.foreign:
            save_lent(ledger, path, files, _theirs(outcome.foreign))
        if rest is not None:
            rest.save(path)
        else:
            path.unlink()
    except OSError as error:
        return f"{path} stays, and is of no use now: {error.strerror}"
    return None


def _theirs(foreign: Collection[ForeignWrite]) -> Mapping[Pair, PairValue]:
    limits = [write for write in foreign if write.is_limit]
    return {pair_of(limit.lever): value_of(limit) for limit in limits}


def value_of(write: ForeignWrite) -> PairValue:
    """The pair's value after the write of one of the global limits."""
    size = int(write.value)
    return (size, 0) if write.lever == pair_of(write.lever).bytes_lever else (0, size)


def restore_from_ledger(
    files: KernelFiles, ledger_path: Path, honour_keep: bool = False, close: bool = True,
    writer: Optional[Levers] = None,
) -> RestoreResult:  # fmt: skip
    """Undo what a dead daemon left, at whatever point it stopped; never raises.

    The limits are first, then the other levers.  `honour_keep` is for ExecStopPost=, which also
    runs after a clean stop: limits with `on-exit = keep` in the ledger stay.  Without `close` the
    ledger is not changed: a hung daemon may wake up within a write, and then the originals must
    still be known.  `writer` is for a caller that tries repeatedly: it remembers children that
    hang, and starts no more for the same target.
    """
    try:
        ledger, damaged = load_or_first(files, ledger_path)
    except LedgerError as error:
        return RestoreResult("failed", (str(error),))
    if ledger is None:
        return RestoreResult("nothing", (f"nothing to restore: there is no {ledger_path}",))
    if ledger.is_of_an_earlier_boot(files):
        with contextlib.suppress(OSError):
            set_aside(ledger_path)
        return RestoreResult(
            "nothing", ("nothing to restore: the ledger is from an earlier boot",)
        )
    keep = honour_keep and ledger.on_exit == "keep"
    if keep and not ledger.levers:
        return RestoreResult("nothing", ("nothing restored: the policy says on-exit = keep",))
    pairs = () if keep or not ledger.written else PAIRS
    limits = restore_pairs(files, ledger.originals, {pair: ledger.ours(pair) for pair in pairs})
    written = ledger.written if keep or not limits.ok else ()
    writer = writer or Levers(files)
    writer.resume(ledger.levers)
    levers = writer.restore(WAIT_S)
    rest = replace(ledger, written=written, levers=writer.entries)
    # Restored levers are removed from the ledger even if others failed.
    done = RestoreOutcome(foreign=limits.foreign + levers.foreign)
    stays = None
    if close:
        stays = close_ledger(
            files, ledger_path, ledger, done, rest if written or writer.entries else None
        )
    return RestoreResult(
        _status(RestoreOutcome(limits.actions + levers.actions, done.foreign)),
        (*damaged, *_lines(ledger, limits, levers), *([stays] if stays else ())),
    )


def restore_left(
    files: KernelFiles, runtime_dir: Path, honour_keep: bool = False
) -> RestoreResult:
    """As `restore_from_ledger`, after waiting for a watcher that may be restoring.

    Raises AlreadyRunning if the daemon is running, or OSError.
    """
    try:
        fd = open_private(runtime_dir / LEASE)
    except OSError:
        if is_locked(runtime_dir):
            raise
        return restore_from_ledger(files, runtime_dir / LEDGER, honour_keep)
    try:
        with lease.restoring(fd, WAIT_S):
            if is_locked(runtime_dir):  # a daemon has started meanwhile, and adopted the rest
                raise AlreadyRunning(f"writebackd runs ({runtime_dir})")
            return restore_from_ledger(files, runtime_dir / LEDGER, honour_keep)
    finally:
        os.close(fd)


def left_in_force(files: KernelFiles, ledger_path: Path) -> str:
    """The values of a dead daemon that are still set, for display; empty if there are none.

    Raises LedgerError, OSError or ValueError.
    """
    ledger = load(ledger_path)
    if ledger is None or ledger.is_of_an_earlier_boot(files):
        return ""
    limits = read_limits(files)
    values = []
    for pair in PAIRS:
        current, original = pair.value(limits), pair.value(ledger.originals)
        if current != original and is_ours(current, original, ledger.ours(pair)):
            values.append(pair.describe(current))
    before = f" (before: {in_words(ledger.originals)})" if values else ""
    for entry in ledger.levers:
        with contextlib.suppress(OSError):  # the device or cgroup is gone
            if read(files, entry.lever) in entry.written:
                values.append(f"{entry.lever}={say(entry.lever, entry.written[-1])}")
    kept = ", kept by on-exit = keep" if values and ledger.on_exit == "keep" else ""
    return ", ".join(values) + before + kept


def _status(outcome: RestoreOutcome) -> str:
    if not outcome.ok:
        return "failed"
    return "foreign" if outcome.foreign else "restored"


def _lines(ledger: Ledger, outcome: RestoreOutcome, levers: RestoreOutcome) -> Tuple[str, ...]:
    lines = [describe_action(action) for action in outcome.actions]
    for write in outcome.foreign:
        pair = pair_of(write.lever)
        original = pair.describe(pair.value(ledger.originals))
        lines.append(
            f"{write.lever}={write.value} not restored: another process set it. To undo that as "
            f"well: sysctl -w vm.{original}"
        )
    if not outcome.ok:
        originals = (f"vm.{pair.describe(pair.value(ledger.originals))}" for pair in PAIRS)
        lines.append(f"try again as root, or by hand: sysctl -w {' '.join(originals)}")
    lines += [describe_action(action) for action in levers.actions]
    lines += [f"{x.lever}={x.value} not restored: another process set it" for x in levers.foreign]
    if not lines:
        lines.append("original limits in force")
    return tuple(lines)


def pair_of(lever: str) -> Pair:
    return next(pair for pair in PAIRS if lever in pair)
