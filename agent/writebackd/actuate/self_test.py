# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests per-device limits (BDIs) on this kernel, each device before its first use."""

from __future__ import annotations

import time
from typing import Dict, Iterable, Optional, Tuple

from writebackd.actuate.ledger import LeverEntry
from writebackd.actuate.lever_registry import LeverRegistry, unsaved
from writebackd.kernel import bdi
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever
from writebackd.types.levers import LeverKind

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
        """Drop results of BDIs that are gone, and expired failures."""
        now = time.monotonic()
        self._failed = {
            target: (known, until, reported)
            for target, (known, until, reported) in self._failed.items()
            if self._files.inode(bdi.directory(target)) == known
            and (known is not None or now < until)
        }
        self._passed = {
            target: known
            for target, known in self._passed.items()
            if self._files.inode(bdi.directory(target)) == known
        }
