# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers and words of answers by unit and range, which docs/man/schemas.py puts into the schemas.

To mypy and to the program they are plain numbers and text.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Optional


class Range(NamedTuple):
    """A range, both ends included."""

    least: float
    most: Optional[float] = None
    unit: str = ""  # where the name of the key does not say it


Bytes = Annotated[int, Range(0)]
Count = Annotated[int, Range(0)]
Number = Annotated[int, Range(1)]
Seconds = Annotated[float, Range(0)]
Time = Annotated[float, Range(0, unit="seconds since 1970")]
Rate = Annotated[float, Range(0, unit="bytes per second")]
Hz = Annotated[float, Range(0, unit="per second")]
Share = Annotated[float, Range(0, 1)]
Figure = Annotated[float, Range(0)]
