# SPDX-License-Identifier: GPL-2.0-or-later
"""The rules of [match], ``POINTS: WHAT``, parsed and formatted exactly; the facts they test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from . import units

# What stands behind a disk, as far as the kernel knows. `controller` is a guess by the driver:
# queue/write_cache says "write through" of a RAID controller whose cache is protected.
CACHES = ("controller", "drive", "none")
# `host` is a Xen dom0: a guest by its CPU flags, and the machine's own by all else.
VIRTUALISATIONS = ("metal", "guest", "host")


@dataclass(frozen=True)
class DiskFacts:
    """A disk that is not stacked on others."""

    name: str
    driver: Optional[str] = None
    cache: Optional[str] = None  # one of CACHES
    rotational: Optional[bool] = None
    removable: bool = False  # behind USB, or with media that can be taken out


@dataclass(frozen=True)
class HostFacts:
    """The facts about a host at one time; None means unknown, not "no"."""

    disks: Tuple[DiskFacts, ...] = ()
    units: Optional[Tuple[str, ...]] = None  # systemd units that have a process, sorted
    # Names as the kernel keeps them (15 bytes, kernel threads more), sorted.
    processes: Optional[Tuple[str, ...]] = None
    unseen: Optional[str] = None  # the option of /proc that hides others of both
    virtualisation: Optional[str] = None  # one of VIRTUALISATIONS
    virtualisation_shown_by: str = ""
    memory_bytes: Optional[int] = None

    @property
    def fixed_disks(self) -> Tuple[DiskFacts, ...]:
        """The disks that are not removable: a USB stick calls itself rotational."""
        return tuple(disk for disk in self.disks if not disk.removable)


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


def format_rule(rule: object) -> str:
    """``40: nvme virtio_blk``; empty for None, a missing rule."""
    return f"{rule.points}: {rule}" if isinstance(rule, Rule) else ""


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


def _services(text: str) -> Tuple[str, ...]:
    names = units.parse_units(text)
    for name in names:
        if re.search(r"\.(?:timer|socket|target|(?:auto)?mount|path|device|swap)$", name):
            raise units.UnitError(
                f"'{units.shorten(name)}' has no process of its own: name its service"
            )
    return names


parse_drivers = _rule("40: megaraid_sas hpsa 3w-*", _driver_globs)
parse_cache = _rule("20: controller", _words(*CACHES))
parse_rotational = _rule("20: yes", _yes_or_no)
parse_services = _rule("50: postgresql*.service mysqld", _services)
parse_virtualisation = _rule("20: metal", _words(*VIRTUALISATIONS))


def bounds(word: str) -> Tuple[Optional[int], Optional[int]]:
    """Bytes of ``64G..``, ``..8G``, ``8G..64G``; raises UnitError."""
    low, dots, high = (part.strip(" \t") for part in word.partition(".."))
    if not dots or not (low or high):
        raise units.UnitError(f"'{units.shorten(word)}' is not a range: write it like '20: 64G..'")
    least, most = (units.parse_size(end) if end else None for end in (low, high))
    if least is not None and most is not None and least > most:
        raise units.UnitError(f"'{units.shorten(word)}' is empty: swap its ends")
    return least, most


def _range(text: str) -> Tuple[str, ...]:
    ends = ("" if end is None else units.format_size(end) for end in bounds(text))
    return ("..".join(ends),)


parse_memory = _rule("20: 64G..", _range)
