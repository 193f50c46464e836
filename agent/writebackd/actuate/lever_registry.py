# SPDX-License-Identifier: GPL-2.0-or-later
"""Registry of levers: which have a value of ours, which were released, and their ledger entries.

Also tests per-device limits (BDIs) on this kernel, each device before its first use.
"""

from __future__ import annotations

import contextlib
import time
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from writebackd.actuate.ledger import LeverEntry
from writebackd.kernel import bdi, lever_files
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever
from writebackd.types.levers import HeldLever, LeverKind


class LeverRegistry:
    """The ledger entries by lever; not thread-safe.

    `save` must write them to the ledger at once, or raise OSError.
    """

    def __init__(self, files: KernelFiles, save: Callable[[], None]) -> None:
        self.entries: Dict[Lever, LeverEntry] = {}
        self.adopted: Set[Lever] = set()  # from an earlier run, and not in any settings since
        # Target gone, but a unit still has the value, which must be removed.
        self.orphans: Set[Lever] = set()
        self.left: Dict[Lever, Optional[int]] = {}  # to others, with its identity
        self._files = files
        self._save = save
        self._saved: Tuple[LeverEntry, ...] = ()

    def all(self) -> Tuple[LeverEntry, ...]:
        return tuple(self.entries.values())

    def held(self, threshold_bytes: int) -> Tuple[HeldLever, ...]:
        """All entries, with the limits of BDIs in bytes of the global `threshold_bytes`."""
        return tuple(
            HeldLever(
                lever.kind, lever.target, lever.name,
                lever_files.value_of(lever, entry.written[-1], threshold_bytes),
                lever_files.value_of(lever, entry.original, threshold_bytes),
            )
            for lever, entry in self.entries.items()
        )  # fmt: skip

    def resume(self, entries: Sequence[LeverEntry]) -> None:
        self.entries = {entry.lever: entry for entry in entries}
        self._saved = self.all()

    def adopt(self, entries: Sequence[LeverEntry]) -> Tuple[str, ...]:
        """Adopt the levers of an earlier run of this boot; returns lines for the log.

        After a lost lease everything known before is dropped: values that looked foreign were
        restored by the watcher.
        """
        messages = []
        self.entries = {}
        self.adopted.clear()
        for lever in [entry.lever for entry in entries]:
            self.left.pop(lever, None)
        for entry in entries:
            lever = entry.lever
            gone = lever_files.identity(self._files, lever) != entry.identity
            if gone and not lever_files.outlives(self._files, lever):
                continue
            current = self.read(lever)
            if current == entry.original and not gone and not self.under_way(entry):
                continue
            if current in (None, entry.original, *entry.written):
                self.entries[lever] = entry
                self.adopted.add(lever)
                messages.append(f"adopted {lever}={say(lever, current)}")
            else:
                messages.append(f"{lever}={say(lever, current)} was set by another process")
        self._saved = tuple(entries)
        return tuple(messages)

    def forget_gone(self) -> None:
        """Drop levers of removed devices and cgroups, even if others have their names now."""
        self.orphans.clear()
        for lever, entry in list(self.entries.items()):
            if lever_files.identity(self._files, lever) == entry.identity:
                continue
            if lever_files.outlives(self._files, lever):
                self.orphans.add(lever)
            else:
                del self.entries[lever]
        for lever, identity in list(self.left.items()):
            if lever_files.identity(self._files, lever) != identity:
                del self.left[lever]
        self.adopted &= self.entries.keys()

    def tidy(self) -> None:
        """Forget released levers of units that ended; if such a unit returns it is checked anew."""
        self.left = {
            x: identity for x, identity in self.left.items() if lever_files.present(self._files, x)
        }

    def let_go(self, lever: Lever) -> None:
        """Release the lever to another process, with those that are useless without it."""
        del self.entries[lever]
        for useless in together(lever):
            self.left[useless] = lever_files.identity(self._files, useless)

    def read(self, lever: Lever) -> Optional[str]:
        """The value in the kernel; None if it cannot be read."""
        try:
            return lever_files.read(self._files, lever)
        except OSError:
            return None

    def is_foreign(self, lever: Lever, current: Optional[str]) -> bool:
        entry = self.entries[lever]
        left_over = lever in self.orphans and current == entry.original
        return current is not None and current not in entry.written and not left_over

    def under_way(self, entry: LeverEntry) -> bool:
        """Whether a write of ours may still take effect, whatever the lever reads now.

        A child may wait for a lock in the kernel, and systemd may carry out a request later, even
        if the process that asked is dead.
        """
        return lever_files.is_slow(entry.lever) and len(set(entry.written)) > 1

    def store(self) -> None:
        """Save the ledger. Raises OSError."""
        self._save()
        self._saved = self.all()

    def store_if_changed(self) -> None:
        if self.all() != self._saved:
            # A superfluous entry does no harm: its lever already has the original.
            with contextlib.suppress(OSError):
                self.store()


def together(lever: Lever) -> List[Lever]:
    """This lever and those that are useless without it."""
    if lever.kind is not LeverKind.BDI:
        return [lever]
    return [Lever(lever.kind, lever.target, name) for name in bdi.FILES]


def say(lever: Lever, text: Optional[str]) -> str:
    """A value of the lever, for display."""
    return "unknown" if text is None else lever_files.describe(lever, text)


def unsaved(error: OSError) -> str:
    return f"nothing written, cannot write the ledger: {error.strerror}"


# Seconds until a failed BDI is tested again: other limits set on it may be removed by then.
TEST_AGAIN_S = 300.0


class SelfTests:
    """The BDIs that passed and those that failed, by target."""

    def __init__(self, files: KernelFiles, book: LeverRegistry) -> None:
        self._files = files
        self._book = book
        self._passed: Dict[str, Optional[int]] = {}  # with the identity of the BDI
        # Identity of the BDI, until when the failure is valid, and the reason.
        self._failed: Dict[str, Tuple[Optional[int], float, str]] = {}

    def trust(self, target: str, identity: int) -> None:
        """Count a BDI as passed because an earlier run tested it."""
        self._passed[target] = identity

    def forget_failures(self) -> None:
        self._failed.clear()

    def unfit(self, asked: Iterable[str], threshold: Optional[int]) -> Dict[str, Optional[str]]:
        """The BDIs in `asked` that cannot be used, with the reason if it is new, else None.

        A BDI is asked for in every tick, so the same failure is reported only once even if the test
        is repeated.  Without the global `threshold` (bytes) nothing is tested.
        """
        targets = sorted(set(asked))
        # Forget BDIs that are no longer asked for, so that a later failure is reported again.
        self._failed = {x: self._failed[x] for x in targets if x in self._failed}
        unfit: Dict[str, Optional[str]] = {}
        for target in targets if threshold is not None else ():
            identity = self._files.inode(bdi.directory(target))
            if identity is not None and self._passed.get(target) == identity:
                continue
            known, until, reported = self._failed.get(target, (None, 0.0, ""))
            if known == identity and time.monotonic() < until:
                unfit[target] = None
                continue
            trouble = self._test(target, identity, threshold or 0)
            if trouble is not None:
                unfit[target] = trouble if (known, reported) != (identity, trouble) else None
                self._failed[target] = (identity, time.monotonic() + TEST_AGAIN_S, trouble)
        return unfit

    def _test(self, target: str, identity: Optional[int], threshold: int) -> Optional[str]:
        """Why the BDI cannot be used; during the test its values are in the ledger."""
        names = [Lever(LeverKind.BDI, target, name) for name in ("max_bytes", "min_bytes")]
        if identity is None:
            return "no such device"
        if any(lever in self._book.entries for lever in names):
            return "an earlier self-test is not undone yet"
        for lever, value in zip(names, (bdi.TEST_MAX, bdi.TEST_MIN)):
            original = self._book.read(lever)
            if original is not None:
                self._book.entries[lever] = LeverEntry.of(lever, identity, original, str(value))
        try:
            self._book.store()
        except OSError as error:
            problem: Optional[str] = unsaved(error)
        else:
            problem = bdi.self_test(self._files, target, threshold)
        for lever in names:
            entry = self._book.entries.get(lever)
            if entry is not None and self._book.read(lever) == entry.original:
                del self._book.entries[lever]
        if problem is None:
            self._passed[target] = identity
        return problem

    def tidy(self) -> None:
        """Drop results of BDIs that are gone; failures end with the wish for the BDI."""
        self._passed = {
            target: known
            for target, known in self._passed.items()
            if self._files.inode(bdi.directory(target)) == known
        }
