# SPDX-License-Identifier: GPL-2.0-or-later
"""The write caches behind a drained device: how much they hold, and which source says so."""

from __future__ import annotations

import time
from typing import Mapping, Optional, Sequence, Set

from writebackd import formats
from writebackd.cli.drain_children import Child
from writebackd.cli.status_screen import Answer, clean
from writebackd.estimate.cache_size import FILL_FRESH_S
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_disks
from writebackd.paths import CACHES
from writebackd.storage.backing_watch import is_stale
from writebackd.storage.report_file import read
from writebackd.storage.tool_output import ToolError
from writebackd.types.storage import CACHES_OF_THE_KERNEL

_FILES = KernelFiles()
# The modules of those caches on dm that writebackd-caches.service reads.
_MODULES = ("dm_writecache", "dm_cache")
# A cache with no more than that in it counts as empty: a filesystem in use is never still.
_EMPTY_SHARE, _EMPTY_BYTES = 0.02, 1 << 20


def behind_controllers(rows: Sequence[Answer]) -> Set[str]:
    """Devices with a volume of a RAID controller, even if no tool reports it."""
    volumes = {disk.name for disk in read_disks(_FILES) if disk.cache == "controller"}
    return {row["name"] for row in rows if volumes.intersection(row["leaves"])}


def are_caches_unread() -> bool:
    """Whether kernel caches are in use and no report says how much they hold."""
    has_bcache = any(each.startswith("bcache") for each in _FILES.listdir("/sys/block"))
    if not has_bcache and not any(map(_is_module_used, _MODULES)):
        return False
    try:
        report = read(_FILES.path(CACHES))
    except (OSError, ToolError):
        return True
    return is_stale(report, _FILES, time.clock_gettime(time.CLOCK_BOOTTIME), FILL_FRESH_S)


def _is_module_used(module: str) -> bool:
    """Whether a device uses it: a dm-cache policy holds its module even without a cache."""
    here = f"/sys/module/{module}"
    return int(_FILES.try_read(f"{here}/refcnt") or 0) > len(_FILES.listdir(f"{here}/holders"))


def _is_known(said: Answer) -> bool:
    """Whether the dirty data in the cache is known; a write-through cache has none."""
    return said["dirty_bytes"] is not None or said["mode"] == "write-through"


class Cache:
    """The write caches behind a device, as in `status`, and the results of flushing them."""

    def __init__(
        self, row: Answer, flushes: Mapping[str, Child], has_controller: bool, is_unread: bool
    ) -> None:
        """`flushes` have ended; by the disk of the cache.

        `is_unread`: it may be, or be on, a kernel cache that no report covers.
        """
        cache = row["write_cache"]
        self.name: str = row["name"]
        self._kind = cache["kind"] or ("controller" if has_controller else "behind it")
        said = [each for each in cache["reported"] if each["dirty_bytes"] is not None]
        # A row may be only about an array with background work.
        self._is_one_unread = any(
            (each["mode"] or each["capacity_bytes"] or each["protection"]) and not _is_known(each)
            for each in cache["reported"]
        ) or (has_controller and not any(
            _is_known(each) for each in cache["reported"]
            if each["source"] not in CACHES_OF_THE_KERNEL
        )) or is_unread  # fmt: skip
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
        self.none = self.left is None and not self._is_one_unread
        # Whether it was read how full each is, and not estimated.
        self._is_read = bool(said)
        self.verified = self.none or (self._is_read and not self._is_one_unread)
        # What came in after it was flushed is not waited for.
        flushed_or_unknown = self.left is None or len(flushed) == len(said) > 0
        self.is_empty = (flushed_or_unknown and not self.flush_failed) or (
            self.left is not None
            and self.left <= max(_EMPTY_BYTES, _EMPTY_SHARE * self._capacity)
        )

    def is_read_since(self, wall_s: float) -> bool:
        """Whether it was read after `wall_s`, or no source reads it; that takes some time."""
        return self._seen_s is None or self._seen_s >= wall_s

    def words(self) -> str:
        if self.left is None:
            return f"{clean(self.name)}: write cache ({self._kind}): fill not known, not verified"
        of = f" of {formats.size(self._capacity)}" if self._capacity else ""
        another = "; another below: fill not known" if self._is_read else ""
        unverified = "" if self.verified else f"{another}, not verified"
        return (
            f"{clean(self.name)}: write cache ({self._kind}): {formats.size(self.left)}{of} left"
            f"{self._how}{unverified}"
        )
