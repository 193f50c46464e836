# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own arrays and caches: md, bcache, dm-writecache, dm-cache.

The loop reads none of these files. bcache's take bch_register_lock, which is held while a cache is
registered or stopped; md's, and since 6.14 /proc/mdstat too, take locks that are held while the
bitmap is written (md_seq_show(), bitmap_info.mutex).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.storage.tool_output import (
    MOST_VOLUMES,
    Controller,
    Volume,
    possible,
    share,
    size_bytes,
    whole,
)
from writebackd.types.storage import ArrayWork, CacheMode, Threshold

MDSTAT = "/proc/mdstat"
# Status of some targets writes their metadata out first, unless told not to.
DMSETUP = (("table", "--target"), ("status", "--noflush", "--target"))

# mdadm.conf with "CREATE names=yes" calls them md_ANYTHING.
_ARRAY = re.compile(r"([^\s:]{1,31}) : (?:active|inactive)")
# "[=>....]  recovery = 12.6% (37043392/292945152) finish=127.5min speed=33440K/sec"
_SYNC = re.compile(r"\b(resync|recovery|reshape|check|repair)\s*=\s*([0-9.]{1,8}%)")
_SPEED = re.compile(r"\bspeed=([0-9]{1,12})K/sec")
_KINDS = {
    "recovery": "rebuild", "resync": "resync", "repair": "check", "check": "check",
    "reshape": "migration",
}  # fmt: skip
_JOURNAL = re.compile(r"\]\(J\)")
_JOURNAL_MODES = {
    "write-back": CacheMode.WRITE_BACK, "write-through": CacheMode.WRITE_THROUGH,
}  # fmt: skip
_BCACHE = {
    "writeback": CacheMode.WRITE_BACK, "writethrough": CacheMode.WRITE_THROUGH,
    "writearound": CacheMode.WRITE_THROUGH, "none": CacheMode.WRITE_THROUGH,
}  # fmt: skip
# Above this share of the cache, in per cent, every write goes past it (CUTOFF_WRITEBACK_SYNC).
_BCACHE_MOST = 70
BCACHE_THRESHOLDS = ("writeback_percent", "writeback_delay", "writeback_rate_minimum")
# With their defaults: the table has only those that were given.
_WRITECACHE_THRESHOLDS = {"high_watermark": 50, "low_watermark": 45}
_SECTOR = 512


def parse_mdstat(text: str) -> Tuple[Volume, ...]:
    """Arrays with background work or a journal; speed is per disk."""
    arrays: List[Volume] = []
    array: Optional[str] = None
    for line in text.split("\n")[: 16 * MOST_VOLUMES]:
        head = _ARRAY.match(line[:4096])
        if head is not None:
            array = head.group(1) if head.group(1).startswith("md") else None
            if array and _JOURNAL.search(line[:4096]):
                arrays.append(Volume(disk=array))
        work = _SYNC.search(line[:4096])
        if array is not None and work is not None:
            speed = _SPEED.search(line[:4096])
            rate = float(int(speed.group(1)) << 10) if speed else None
            done = ArrayWork(_KINDS[work.group(1)], share(work.group(2)), rate)
            arrays.append(Volume(disk=array, works=(done,)))
            array = None
    return tuple(arrays[:MOST_VOLUMES])


def read_bcache(files: KernelFiles) -> Tuple[Controller, ...]:
    """Each bcache device with its mode and the dirty data in its cache, which several may share."""
    caches: Dict[str, Controller] = {}
    sets: Dict[str, str] = {}
    for name in files.listdir("/sys/block"):
        here = f"/sys/block/{name}/bcache"
        state = files.try_read(f"{here}/state") if name.startswith("bcache") else None
        if state is None:
            continue
        mode = _BCACHE.get(_chosen(f"{here}/cache_mode", files))
        if state == "no cache":
            mode = CacheMode.WRITE_THROUGH  # the disk alone: every write is the disk's
        dirty = size_bytes(files.try_read(f"{here}/dirty_data"), "B")
        sets[name] = files.readlink(f"{here}/cache") or ""
        caches[name] = Controller(
            capacity_bytes=_bcache_capacity(here, files),
            dirty_bytes=dirty,
            volumes=(Volume(disk=name, mode=mode),),
            thresholds=_thresholds(
                (file, files.try_read(f"{here}/{file}")) for file in BCACHE_THRESHOLDS
            ),
        )
    return tuple(
        replace(mine, capacity_bytes=max(0, mine.capacity_bytes - sum(
            other.dirty_bytes or 0
            for at, other in caches.items() if at != name and sets[at] == sets[name]
        ))) if mine.capacity_bytes is not None else mine
        for name, mine in caches.items()
    )  # fmt: skip


def _bcache_capacity(here: str, files: KernelFiles) -> Optional[int]:
    """The part of the cache that writes can fill."""
    buckets = whole(files.try_read(f"{here}/cache/cache0/nbuckets"))
    bucket = size_bytes(files.try_read(f"{here}/cache/cache0/bucket_size"), "B")
    if not buckets or not bucket:
        return None
    most = whole(files.try_read(f"{here}/cache/internal/cutoff_writeback_sync")) or _BCACHE_MOST
    return possible(buckets * bucket * most // 100)


def _thresholds(pairs: Iterable[Tuple[str, Optional[str]]]) -> Tuple[Threshold, ...]:
    known = ((name, whole(text)) for name, text in pairs)
    return tuple(Threshold(name, value) for name, value in known if value is not None)


def read_md_journals(files: KernelFiles) -> Tuple[Controller, ...]:
    """Arrays with a journal, which delays writes in write-back mode."""
    arrays = []
    for array in parse_mdstat(files.try_read(MDSTAT) or ""):
        mode = _JOURNAL_MODES.get(_chosen(f"/sys/block/{array.disk}/md/journal_mode", files))
        if mode is not None and not array.works:
            arrays.append(Controller(volumes=(Volume(disk=array.disk, mode=mode),)))
    return tuple(arrays)


def _chosen(name: str, files: KernelFiles) -> str:
    """The word in brackets of a file such as "writethrough [writeback] none"."""
    match = re.search(r"\[([a-z-]{1,20})\]", files.try_read(name) or "")
    return match.group(1) if match else ""


def parse_dmsetup(
    target: str, outputs: Sequence[str], disks: Dict[str, str]
) -> Tuple[Controller, ...]:
    """From the output of DMSETUP, each followed by `target`: "writecache" or "cache".

    `disks` tells the kernel's names of devices.

    Documentation/admin-guide/device-mapper/writecache.rst and cache.rst tell the fields.
    """
    table, status = outputs
    tables = _targets(table)
    parse = _writecache if target == "writecache" else _cache
    return tuple(
        parse(disks[name], tables.get(name, ()), fields)
        for name, fields in _targets(status).items()
        if name in disks
    )


def _targets(text: str) -> Dict[str, Sequence[str]]:
    """Name -> the fields after the target's name, in "NAME: START LENGTH TARGET ...".

    Without any it says "No devices found".
    """
    targets: Dict[str, Sequence[str]] = {}
    for line in text.split("\n"):
        name, colon, rest = line.rpartition(": ")
        fields = rest[:4096].split()
        if colon and len(fields) > 3:
            targets[name] = fields[3:]
    return targets


def _writecache(disk: str, table: Sequence[str], status: Sequence[str]) -> Controller:
    """Table: type, origin, cache, block size, number of options, options. Status: error, blocks,
    free blocks, more."""
    block, blocks, free = _number(table, 3), _number(status, 1), _number(status, 2)
    used = max(0, blocks - free) if blocks is not None and free is not None else None
    # An error of the cache: from then on it takes nothing.
    mode = CacheMode.WRITE_BACK if _number(status, 0) == 0 else CacheMode.WRITE_THROUGH
    options = {**_WRITECACHE_THRESHOLDS, **dict(zip(table[5:], table[6:]))}
    names = (*_WRITECACHE_THRESHOLDS, "writeback_jobs")
    thresholds = _thresholds((name, str(options[name])) for name in names if name in options)
    return _target(disk, mode, block, blocks, used, thresholds)


def _cache(disk: str, table: Sequence[str], status: Sequence[str]) -> Controller:
    """Status: metadata block size and use, block size in sectors, used/all blocks, six counts,
    dirty blocks, number of features, features, number of core arguments, core arguments."""
    block, dirty = _number(status, 2), _number(status, 10)
    blocks = whole(status[3].partition("/")[2]) if len(status) > 3 else None
    count = _number(status, 11) or 0
    features, rest = status[12 : 12 + count], status[12 + count :]
    arguments = rest[1 : 1 + (_number(rest, 0) or 0)]
    mode = (
        CacheMode.WRITE_THROUGH if "writethrough" in features or "passthrough" in features
        else CacheMode.WRITE_BACK if "writeback" in features
        else None
    )  # fmt: skip
    return _target(
        disk, mode, block * _SECTOR if block is not None else None, blocks, dirty,
        _thresholds(zip(arguments[::2], arguments[1::2])),
    )


def _number(fields: Sequence[str], at: int) -> Optional[int]:
    return whole(fields[at]) if len(fields) > at else None


def _target(
    disk: str,
    mode: Optional[CacheMode],
    block_bytes: Optional[int],
    blocks: Optional[int],
    dirty: Optional[int],
    thresholds: Tuple[Threshold, ...],
) -> Controller:
    capacity, used = (
        possible(count * block_bytes) if count is not None and block_bytes is not None else None
        for count in (blocks, dirty)
    )
    return Controller(
        capacity_bytes=capacity, dirty_bytes=used, volumes=(Volume(disk=disk, mode=mode),),
        thresholds=thresholds,
    )
