# SPDX-License-Identifier: GPL-2.0-or-later
"""The rules of [match], ``POINTS: WHAT``: parsed and formatted exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from . import units
from .facts import CACHES, VIRTUALISATIONS

_RULE = re.compile(r"([0-9]{1,4})[ \t]*:[ \t]*(.*)")
_DRIVER_GLOB = re.compile(r"(?!.{256})(?:[A-Za-z0-9_*?-]|\[!?[A-Za-z0-9-]+\])+")
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
    """``40: nvme virtio_blk``; empty for None, a missing rule."""
    return f"{rule.points}: {rule}" if isinstance(rule, (Rule, MemoryRule)) else ""


def _split(text: str, example: str) -> Tuple[int, str]:
    match = _RULE.fullmatch(text)
    if match is None or not match.group(2):
        raise units.UnitError(
            f"'{units.shorten(text)}' is not POINTS: WHAT: write it like '{example}'"
        )
    points = int(match.group(1))
    if not 1 <= points <= MOST_POINTS:
        raise units.UnitError(f"{points} points: use 1 to {MOST_POINTS}")
    return points, match.group(2)


def _rule(
    example: str, parse_words: Callable[[str], Tuple[str, ...]]
) -> Callable[[str], Optional[Rule]]:
    """A parser of rules; None for empty text; it raises UnitError."""

    def parse(text: str) -> Optional[Rule]:
        if not text:
            return None
        points, what = _split(text, example)
        return Rule(points, parse_words(what))

    return parse


def _driver_globs(text: str) -> Tuple[str, ...]:
    driver = units.matching(_DRIVER_GLOB, "a driver: write it like nvme or 3w-*")
    return units.parse_list(text, driver)


def _words(*known: str) -> Callable[[str], Tuple[str, ...]]:
    return lambda text: units.parse_list(text, units.one_of(*known))


def _yes_or_no(text: str) -> Tuple[str, ...]:
    words = _words("yes", "no")(text)
    if len(words) != 1:
        raise units.UnitError("yes and no hold for every host: write one of them")
    return words


parse_drivers = _rule("40: megaraid_sas hpsa 3w-*", _driver_globs)
parse_cache = _rule("20: controller", _words(*CACHES))
parse_rotational = _rule("20: yes", _yes_or_no)
parse_services = _rule("50: postgresql*.service mysqld", units.parse_units)
parse_virtualisation = _rule("20: metal", _words(*VIRTUALISATIONS))


def parse_memory(text: str) -> Optional[MemoryRule]:
    """``20: 64G..``, ``20: ..8G``, ``20: 8G..64G``; raises UnitError."""
    if not text:
        return None
    example = "20: 64G.."
    points, what = _split(text, example)
    low, dots, high = (part.strip(" \t") for part in what.partition(".."))
    if not dots or not (low or high):
        raise units.UnitError(f"'{units.shorten(what)}' is not a range: write it like '{example}'")
    least, most = (units.parse_size(each) if each else None for each in (low, high))
    if least is not None and most is not None and least > most:
        raise units.UnitError(f"'{units.shorten(what)}' is empty: swap its ends")
    return MemoryRule(points, least, most)
