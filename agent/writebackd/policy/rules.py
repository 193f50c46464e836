# SPDX-License-Identifier: GPL-2.0-or-later
"""The rules of [match], ``POINTS: WHAT``: parsed and formatted exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from . import units
from .facts import CACHES, VIRTUALISATIONS

_RULE = re.compile(r"([0-9]{1,4})[ \t]*:[ \t]*(.*)")
_DRIVER_GLOB = re.compile(r"(?:[A-Za-z0-9_*?-]|\[!?[A-Za-z0-9-]+\])+")
_LONGEST = 255
MOST_POINTS = 1000


@dataclass(frozen=True)
class Rule:
    """`points` for a host that has one of `words`."""

    points: int
    words: Tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class MemoryRule:
    """`points` for a host with that much memory, in bytes; None: no bound."""

    points: int
    low_bytes: Optional[int]
    high_bytes: Optional[int]

    def __str__(self) -> str:
        bounds = (self.low_bytes, self.high_bytes)
        return "..".join("" if each is None else units.format_size(each) for each in bounds)


def format_rule(rule: object) -> str:
    """``40: nvme virtio_blk``; empty for None, which is no rule."""
    return f"{rule.points}: {rule}" if isinstance(rule, (Rule, MemoryRule)) else ""


def _split(text: str, example: str) -> Tuple[int, str]:
    found = _RULE.fullmatch(text)
    if found is None or not found.group(2):
        raise units.UnitError(
            f"'{units.shorten(text)}' is not POINTS: WHAT: write it like '{example}'"
        )
    points = int(found.group(1))
    if not 1 <= points <= MOST_POINTS:
        raise units.UnitError(f"{points} points: use 1 to {MOST_POINTS}")
    return points, found.group(2)


def parse_drivers(text: str) -> Optional[Rule]:
    """Globs of names of disk drivers; None for no text; raises UnitError."""
    if not text:
        return None
    points, what = _split(text, "40: megaraid_sas hpsa 3w-*")
    words = tuple(what.split())
    if len(words) > units.MOST_GLOBS:
        raise units.UnitError(f"{len(words)} drivers, {units.MOST_GLOBS} at most")
    for word in words:
        if len(word) > _LONGEST or not _DRIVER_GLOB.fullmatch(word):
            raise units.UnitError(
                f"'{units.shorten(word)}' is not a driver: write it like nvme or 3w-*"
            )
    _refuse_twice(words)
    return Rule(points, words)


def parse_services(text: str) -> Optional[Rule]:
    """Globs of units and of processes; None for no text; raises UnitError."""
    if not text:
        return None
    points, what = _split(text, "50: postgresql*.service mysqld")
    return Rule(points, units.parse_units(what))


def _words(*known: str) -> Callable[[str], Optional[Rule]]:
    def parse(text: str) -> Optional[Rule]:
        if not text:
            return None
        points, what = _split(text, f"20: {known[0]}")
        words = tuple(what.split())
        for word in words:
            if word not in known:
                raise units.UnitError(
                    f"'{units.shorten(word)}' is not known here: use {' or '.join(known)}"
                )
        _refuse_twice(words)
        return Rule(points, words)

    return parse


parse_cache = _words(*CACHES)
parse_virtualisation = _words(*VIRTUALISATIONS)
_parse_answer = _words("yes", "no")


def parse_rotational(text: str) -> Optional[Rule]:
    """``20: no``; one word, since both would always hold; raises UnitError."""
    rule = _parse_answer(text)
    if rule is not None and len(rule.words) != 1:
        raise units.UnitError("yes and no hold for every host: write one of them")
    return rule


def parse_memory(text: str) -> Optional[MemoryRule]:
    """``20: 64G..``, ``20: ..8G``, ``20: 8G..64G``; raises UnitError."""
    if not text:
        return None
    example = "20: 64G.."
    points, what = _split(text, example)
    low, dots, high = what.partition("..")
    if not dots or not (low or high):
        raise units.UnitError(f"'{units.shorten(what)}' is not a range: write it like '{example}'")
    bounds = [units.parse_size(each.strip(" \t")) if each.strip(" \t") else None
              for each in (low, high)]
    if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
        raise units.UnitError(f"'{units.shorten(what)}' is empty: turn it round")
    return MemoryRule(points, bounds[0], bounds[1])


def _refuse_twice(words: Tuple[str, ...]) -> None:
    for word in words:
        if words.count(word) > 1:
            raise units.UnitError(f"'{units.shorten(word)}' is listed twice: remove one")
