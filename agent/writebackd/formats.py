# SPDX-License-Identifier: GPL-2.0-or-later
"""Formats numbers for people: short, 1024-based, '-' for unknown; makes text printable."""

from __future__ import annotations

import math
from typing import Optional

UNKNOWN = "-"


def size(count: Optional[float]) -> str:
    """Bytes in at most five characters: 512, 960K, 1.9M, 250M, 4.7G."""
    if count is None:
        return UNKNOWN
    value = float(count)
    if value < 1024:
        return f"{value:.0f}"
    for unit in "KMGTP":
        value /= 1024
        # 999.5 rather than 1024: "1.0M" is shorter than "1000K".
        if value < 999.5 or unit == "P":
            break
    # One digit behind the point only where it says something: 1.9M, 16M.
    return f"{value:.1f}{unit}" if value < 9.95 and unit != "K" else f"{value:.0f}{unit}"


def count(value: Optional[float]) -> str:
    """A rate of operations: 0.4, 7.5, 1523, 210k."""
    if value is None:
        return UNKNOWN
    if value >= 99_999.5:
        return f"{value / 1000:.0f}k"
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"


def milliseconds(seconds: Optional[float]) -> str:
    """A latency in milliseconds with two significant digits: 0.35, 1.9, 30, 1183."""
    if seconds is None:
        return UNKNOWN
    value = seconds * 1000
    if value < 0.995:
        return f"{value:.2f}"
    if value < 9.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 99_999.5 else f"{value / 1000:.0f}s"


def latency(seconds: Optional[float]) -> str:
    """The time of an operation: 0.35 ms, 30 ms, from a second on as a span of time."""
    if seconds is None:
        return "unknown"
    return duration(seconds) if seconds >= 0.995 else f"{milliseconds(seconds)} ms"


def duration(seconds: Optional[float]) -> str:
    """A span of time: 0.2s, 45s, 12m30s, 3h12m, 5d4h."""
    if seconds is None:
        return UNKNOWN
    if seconds < 9.95:
        return f"{seconds:.1f}s" if seconds % 1 else f"{seconds:.0f}s"
    whole = math.floor(seconds + 0.5)
    for unit, span, below, below_span in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= span:
            return f"{whole // span}{unit}{whole % span // below_span}{below}"
    return f"{whole}s"


def percent(share: Optional[float]) -> str:
    """A share of one as a percentage: 0.3 %, 12 %."""
    if share is None:
        return UNKNOWN
    value = share * 100
    return f"{value:.0f} %" if value >= 9.95 or not value else f"{value:.1f} %"


def printable(text: str) -> str:
    """Replace what ends a line or moves the cursor by "?": users name processes and mounts.

    Includes special blanks, marks that change the writing direction, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def alert(name: str, device: Optional[str], severity: str, summary: str) -> str:
    """An alert as one line: COLLAPSE sda: 6.8 fsync/s (usually 107), caused by dd (pid 42)."""
    title = f"{name} (critical)" if severity == "critical" else name
    if device is not None and not summary.startswith(f"{device}:"):
        title += f" {device}"
    return f"{title} {summary}" if summary.startswith(f"{device}:") else f"{title}: {summary}"
