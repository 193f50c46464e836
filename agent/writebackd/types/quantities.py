# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers by unit and range, which types/codec.py checks, and docs/man/schemas.py documents.

To mypy and to the program they are plain numbers.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Optional


class Range(NamedTuple):
    """A range, both ends included."""

    least: float
    most: Optional[float] = None
    unit: str = ""  # where the name of the key does not say it

    def checked(self, value: float) -> float:
        """Raises ValueError for one outside, also for infinity."""
        if not (self.least <= value < math.inf) or (self.most is not None and value > self.most):
            raise ValueError(f"{value} is impossible")
        return value


Bytes = Annotated[int, Range(0)]
Count = Annotated[int, Range(0)]
Number = Annotated[int, Range(1)]
Seconds = Annotated[float, Range(0)]
Time = Annotated[float, Range(0, unit="seconds since 1970")]
Rate = Annotated[float, Range(0, unit="bytes per second")]
Hz = Annotated[float, Range(0, unit="per second")]
Share = Annotated[float, Range(0, 1)]
Figure = Annotated[float, Range(0)]
Positive = Annotated[float, Range(5e-324)]  # may be divided by
