# SPDX-License-Identifier: GPL-2.0-or-later
"""Which devices' own limits (BDIs) work on this kernel: each is tested before its first use."""

from __future__ import annotations

import time
from typing import Dict, Iterable, Optional, Tuple

from writebackd.actuate.ledger import LeverEntry
from writebackd.actuate.lever_registry import LeverRegistry, unsaved
from writebackd.kernel import bdi
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever
from writebackd.types.levers import LeverKind

# A kernel that fails will not get better; a BDI may lose the limits of its own.
TEST_AGAIN_S = 300.0


class SelfTests:
    """The BDIs that passed and those that failed, by target."""

    def __init__(self, files: KernelFiles, book: LeverRegistry) -> None:
        self._files = files
        self._book = book
        self._passed: Dict[str, Optional[int]] = {}  # with the identity of the BDI
        # With the identity, until when that holds, and why.
        self._failed: Dict[str, Tuple[Optional[int], float, str]] = {}

    def trust(self, target: str, identity: int) -> None:
        """An earlier run has tested it."""
        self._passed[target] = identity

    def forget_failures(self) -> None:
        self._failed.clear()

    def unfit(self, asked: Iterable[str], threshold: Optional[int]) -> Dict[str, Optional[str]]:
        """Of all that are asked for, those not to be used, with the reason where it is new.

        A cap that the policy asks for is asked for in every tick: what the test of before
        came to as well is told once, however often it is made again.  Without the global
        `threshold` (bytes) nothing is tested.
        """
        targets = sorted(set(asked))
        # Who asks for it anew is told anew.
        self._failed = {x: self._failed[x] for x in targets if x in self._failed}
        found: Dict[str, Optional[str]] = {}
        for target in targets if threshold is not None else ():
            identity = self._files.inode(bdi.directory(target))
            if identity is not None and self._passed.get(target) == identity:
                continue
            known, until, told = self._failed.get(target, (None, 0.0, ""))
            if known == identity and time.monotonic() < until:
                found[target] = None
                continue
            trouble = self._test(target, identity, threshold or 0)
            if trouble is not None:
                found[target] = trouble if (known, told) != (identity, trouble) else None
                self._failed[target] = (identity, time.monotonic() + TEST_AGAIN_S, trouble)
        return found

    def _test(self, target: str, identity: Optional[int], threshold: int) -> Optional[str]:
        """Why the BDI cannot be used; what the test writes is in the ledger meanwhile."""
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
        """Drop what is known of BDIs that are gone, and what has run out."""
        now = time.monotonic()
        self._failed = {
            target: (known, until, told)
            for target, (known, until, told) in self._failed.items()
            if self._files.inode(bdi.directory(target)) == known
            and (known is not None or now < until)
        }
        self._passed = {
            target: known
            for target, known in self._passed.items()
            if self._files.inode(bdi.directory(target)) == known
        }
