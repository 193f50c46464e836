# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers to the verbs that change something. Pure."""

from __future__ import annotations

from typing import Optional, Sequence

from writebackd.report.answer_parts import Json
from writebackd.types.decision import Mode


def mode_json(mode: Mode, lines: Sequence[str] = (), good: bool = True) -> Json:
    """The answer to `observe` and `enforce`; `lines` say what was done, `good` if all of it."""
    return {"mode": mode.value, "good": good, "lines": list(lines)}


def pin_json(
    pin_bytes: Optional[int], lines: Sequence[str] = (), for_s: Optional[float] = None
) -> Json:
    """The answer to `pin` and `release` (None: no longer pinned)."""
    return {"pin_bytes": pin_bytes, "for_s": for_s, "lines": list(lines)}


def forget_json(device: str, lines: Sequence[str] = ()) -> Json:
    """The answer to `forget`."""
    return {"device": device, "lines": list(lines)}
