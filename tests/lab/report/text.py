# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers and words as the page shows them: three figures, a unit, nothing that is markup.

Sizes are 1024-based as limits and caches are given (15 MB is 15 << 20), rates are
1000-based as disks and dd tell theirs.
"""

from __future__ import annotations

import html
import math
from typing import Optional

UNKNOWN = "\N{EN DASH}"
MIB = 1 << 20


def escape(text: object) -> str:
    """Safe inside an element and inside a double-quoted attribute."""
    return html.escape(str(text), quote=True)


def known(value: object) -> Optional[float]:
    """The number that a run recorded; None for null and for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def number(value: Optional[float]) -> str:
    """Three figures: 0.00123, 0.15, 1.5, 451, 26 500, 1.2e+06."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) < 1e-4 or abs(value) >= 999_500:
        return f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}".replace(",", "\u202f")  # narrow and not a place to break
    text = f"{rounded:.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: Optional[float], base: float, units: str, tail: str) -> str:
    if value is None:
        return UNKNOWN
    power = 0
    while abs(value) >= 0.9995 * base and power < len(units):
        value /= base
        power += 1
    prefix = units[power - 1] if power else ""
    return f"{number(value)} {prefix}{tail}"


def size(value: Optional[float]) -> str:
    return _scaled(value, 1024, "kMGT", "B")


def byte_rate(value: Optional[float]) -> str:
    return _scaled(value, 1000, "kMGT", "B/s")


def seconds(value: Optional[float]) -> str:
    """A latency or a stall in the unit in which it reads best."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if value < 0.9995e-3:
        return f"{number(value * 1e6)} µs"
    return f"{number(value * 1e3)} ms" if value < 0.9995 else f"{number(value)} s"


def rate(value: Optional[float]) -> str:
    return UNKNOWN if value is None else f"{number(value)}/s"


def percent(share: Optional[float]) -> str:
    return UNKNOWN if share is None else f"{number(100 * share)} %"


def count(noun: str, amount: int) -> str:
    return f"{amount} {noun}" + ("" if amount == 1 else "s")
