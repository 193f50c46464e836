# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes that failed, and until when they are not tried again."""

from __future__ import annotations

import time
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from writebackd.actuate.outcome import Change
from writebackd.kernel.lever_files import Lever
from writebackd.types.levers import Action, LeverKind, Setting

# What the kernel refused it is not asked again at once.
RETRY_S = 30.0


class Refusals:
    """By lever the value that failed last (None: the original)."""

    def __init__(self) -> None:
        self._refused: Dict[Lever, Tuple[Optional[int], float]] = {}

    def waits(self, lever: Lever, wanted: Optional[int]) -> bool:
        """Whether it is too early to try this value."""
        value, until = self._refused.get(lever, (None, 0.0))
        same = value == wanted
        if lever.kind is LeverKind.PACE and None not in (value, wanted):
            same = True  # a pace moves every tick, and systemd is not asked that often
        return same and time.monotonic() < until

    def add(self, lever: Lever, change: Change, problem: str) -> Action:
        self._refused[lever] = (change.wanted, time.monotonic() + RETRY_S)
        return change.action(lever, problem)

    def add_setting(self, lever: Lever, setting: Setting, old: str, problem: str) -> Action:
        """The same before there is anything to write; `old` is what stands, for people."""
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
        """Drop what has run out: units come and go by the thousand."""
        now = time.monotonic()
        self._refused = {x: each for x, each in self._refused.items() if now < each[1]}
