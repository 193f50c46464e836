# SPDX-License-Identifier: GPL-2.0-or-later
"""The write caches behind a device that is drained: what is left in them, and who says so."""

from __future__ import annotations

import time
from typing import Mapping, Optional

from writebackd import formats
from writebackd.cli.drain_children import Child
from writebackd.cli.status_screen import Answer, clean

# A cache with no more than that in it counts as empty: a filesystem in use is never still.
_EMPTY_SHARE, _EMPTY_BYTES = 0.02, 1 << 20


class Cache:
    """The write caches behind a device, as `status` has them, and what came of flushing them."""

    def __init__(self, row: Answer, flushes: Mapping[str, Child]) -> None:
        """`flushes` have ended; by the disk of the cache."""
        cache = row["write_cache"]
        self.name: str = row["name"]
        self._kind = cache["kind"] or "behind it"
        said = [each for each in cache["reported"] if each["dirty_bytes"] is not None]
        flushed = [
            flushes[each["disk"]] for each in cache["reported"] if each.get("disk") in flushes
        ]
        self.flush_failed = any(each.problem() for each in flushed)
        self._seen_s: Optional[float] = min((each["time_s"] for each in said), default=None)
        self._capacity = cache["capacity_bytes"] or 0.0
        self.left: Optional[float] = None  # bytes; None: not known
        self._how = ""
        if said:
            self.left = float(sum(each["dirty_bytes"] for each in said))
            self._capacity = float(sum(each["capacity_bytes"] or 0 for each in said))
            if self._seen_s is not None:
                self._how = f", as of {time.strftime('%H:%M:%S', time.localtime(self._seen_s))}"
        elif cache["fill"] is not None and self._capacity:
            self.left, self._how = cache["fill"] * self._capacity, ", estimated"
        # Nothing that would hold writes back is known of.
        self.none = self.left is None and (
            cache["kind"] is None or cache["mode"] == "write-through"
        )
        # Whether it was read how full it is, and not estimated.
        self.verified = bool(said) or self.none
        # What came in after it was flushed is not waited for.
        flushed_or_unknown = self.left is None or len(flushed) == len(said) > 0
        self.is_empty = (flushed_or_unknown and not self.flush_failed) or (
            self.left is not None
            and self.left <= max(_EMPTY_BYTES, _EMPTY_SHARE * self._capacity)
        )

    def is_read_since(self, wall_s: float) -> bool:
        """Whether nobody reads it, or somebody has after `wall_s`: that is now and then."""
        return self._seen_s is None or self._seen_s >= wall_s

    def words(self) -> str:
        if self.left is None:
            return f"{clean(self.name)}: write cache ({self._kind}): fill not known, not verified"
        of = f" of {formats.size(self._capacity)}" if self._capacity else ""
        unverified = "" if self.verified else ", not verified"
        return (
            f"{clean(self.name)}: write cache ({self._kind}): {formats.size(self.left)}{of} left"
            f"{self._how}{unverified}"
        )
