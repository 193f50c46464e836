# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of RAID tools: which key means which fact, which words mean which state.

New words of a firmware are one more row. Words in no row have no meaning, but are stored and shown.
"""

from __future__ import annotations

import functools
import re
from typing import Dict, List, Optional, Pattern, Sequence, Tuple, TypeVar

from writebackd.formats import printable
from writebackd.storage import tool_output as out
from writebackd.storage.tool_output import Controller, Volume
from writebackd.types.storage import ArrayWork, CacheMode, Protection

T = TypeVar("T")
# A fact, and the keys that report it; the first with a value counts.
Table = Dict[str, Tuple[str, ...]]
# A meaning, and the phrases that have it; the first row that has the phrase counts. A phrase is all
# that is said, in small letters and without punctuation; "*" stands for any other words.
Words = Sequence[Tuple[T, Tuple[str, ...]]]


def anywhere(*phrases: str) -> Tuple[str, ...]:
    """Phrases that count wherever they occur, unless "not" precedes them."""
    return tuple(f"* {phrase} *" for phrase in phrases)


# What is wrong with a battery, as all vendors say it. "Degraded(Charging)" is charging, which it is
# in every learn cycle; degraded for no such reason has to be replaced.
TROUBLE: Words[Protection] = (
    (Protection.ABSENT, ("none", "no battery", *anywhere(
        "missing", "msng", "absent", "not present", "not installed", "not found", "not detected",
        "not connected", "removed"))),
    (Protection.FAILED, anywhere(
        "failed", "failure", "fail", "fatal", "replace", "replacement", "error", "fault", "faulty",
        "bad", "dead", "critical", "invalid", "defective", "expired", "end of life", "eol")),
    (Protection.LEARNING, anywhere(
        "learning", "learn", "relearn", "relearning", "testing", "calibrating", "recalibrating",
        "calibration", "reconditioning")),
    (Protection.CHARGING, anywhere("charging", "recharging", "not fully charged")),
    (Protection.FAILED, anywhere(
        "degraded", "dgd", "fld", "needs attention", "need attention", "low", "weak", "weakbat",
        "not ready", "not optimal", "not operational", "non operational", "inoperable")),
)  # fmt: skip


class Facts:
    """The facts in one part of an output, by the tool's table; `unread` are words in no row."""

    def __init__(self, table: Table, keys: out.Keys) -> None:
        self._table, self._keys = table, keys
        self.unread: List[str] = []

    def text(self, fact: str) -> str:
        """The text of a fact; empty if it is missing."""
        said = (self._keys.get(key, "").strip() for key in self._table[fact])
        return next(filter(None, said), "")

    def is_reported(self, fact: str) -> bool:
        return any(key in self._keys for key in self._table[fact])

    def state(self, fact: str, words: Words[T]) -> Optional[T]:
        """The meaning of the fact's words; None if they are unknown, or the fact is missing."""
        said = self.text(fact)
        state = meaning(said, words)
        if state is None and said:
            self.unknown(fact, said)
        return state

    def unknown(self, fact: str, said: str) -> None:
        """Store words without a known meaning."""
        if len(self.unread) < out.MOST_WORKS:
            self.unread.append(printable(f'{fact} "{said}"')[:out.MOST_NAME])


def meaning(text: str, words: Words[T]) -> Optional[T]:
    """The meaning in the first row that matches the words."""
    said = " ".join(re.findall("[a-z0-9%]+", text.lower()))
    return next(
        (meant for meant, phrases in words
         if any(_pattern(phrase).fullmatch(said) for phrase in phrases)), None
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def _pattern(phrase: str) -> Pattern[str]:
    before = r"(?:.*(?<!\bnot)(?<!\bno)(?<!\bnon) )?" if phrase.startswith("* ") else ""
    behind = "(?: .*)?" if phrase.endswith(" *") else ""
    return re.compile(before + re.escape(phrase.strip("* ")) + behind)


# A good battery, in the words of all vendors.
GOOD: Words[Protection] = ((Protection.OK, (
    "ok", "okay", "opt", "optl", "optimal", "operational", "healthy", "good", "normal", "ready",
    "charged", "fully charged", "zmm optimal", "zmm ready")),)  # fmt: skip
# Of a cache that is used without a good battery.
UNPROTECTED = anywhere("unprotected", "not protected", "always", "forced")
# Why a cache is off, where it is for its battery: a low charge passes.
_CHARGE: Words[Protection] = (
    (Protection.CHARGING, anywhere("charge is low", "low batteries", "low battery")), *TROUBLE
)  # fmt: skip
_OF_BATTERY = re.compile("batter|capacitor|backup power|charge|cable", re.IGNORECASE)

# The cache as the controllers of Microchip's firmware have it, by ssacli or arcconf: on as a whole,
# on for a volume, with a share for writes, and with or without a battery.
_SWITCH: Words[bool] = (
    # A cache of SSDs is behind the controller's.
    (True, ("ok", "enabled", "on", "true", "controller cache",
            *anywhere("smartcache", "maxcache"))),
    # "Smart Path" and "I/O Bypass" go past the controller's cache, straight to the drives.
    (False, ("off", "false", "none", "not configured", "not supported",
             *anywhere("disabled", "smart path", "smart io path", "io bypass", "i o bypass"))),
    (True, UNPROTECTED),
)  # fmt: skip


def switched_controller(
    own: Facts, battery: Facts, words: Words[Protection], model: str, unit: str,
    write_share: Optional[float], volumes: Tuple[Volume, ...], works: Tuple[ArrayWork, ...] = (),
) -> Controller:
    """A controller that reports its cache in this form; a bare size is in `unit`."""
    size, pci = out.size_bytes(own.text("size"), unit), out.pci_address(own.text("address"))
    protection = battery.state("battery", words)
    if not battery.text("battery") and battery.text("batteries") == "0":
        protection = Protection.ABSENT
    # With a broken cable nothing else is said of the battery, or that it is good.
    why = own.text("why") if meaning(own.text("cache status"), _SWITCH) is False else ""
    if protection in (None, Protection.OK) and _OF_BATTERY.search(why):
        protection = meaning(why, _CHARGE) or protection
    return Controller(
        pci=pci,
        model=out.name(model),
        capacity_bytes=None if size is None or write_share is None else int(size * write_share),
        protection=protection,
        works=works,
        volumes=volumes,
        slot=None if pci else out.whole(own.text("slot")),
        unread=tuple(dict.fromkeys(own.unread + battery.unread)),
    )


def switched_mode(own: Facts, volume: Facts, write_share: Optional[float]) -> Optional[CacheMode]:
    switches = [volume.state(fact, _SWITCH) for fact in ("caching", "method")]
    if own.text("cache board").lower() == "false" or write_share == 0 or False in switches:
        return CacheMode.WRITE_THROUGH
    cache = own.state("cache status", _SWITCH)
    if cache is False:
        return CacheMode.WRITE_THROUGH
    if cache is None or True not in switches or volume.unread:
        return None
    said = (own.text("cache status"), volume.text("caching"), volume.text("method"))
    always = own.state("without battery", _SWITCH) or any(
        meaning(each, ((True, UNPROTECTED),)) for each in said)
    return CacheMode.ALWAYS_WRITE_BACK if always else CacheMode.WRITE_BACK
