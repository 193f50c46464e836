# SPDX-License-Identifier: GPL-2.0-or-later
"""Scenarios drawn by seed, so that no law can be tuned to the disks that it is judged on.

`drawn-SEED` is a disk of a family with a database and a flood on it. The families take turns,
so that any six seeds of one kind in a row have each family once. Even seeds are for work. Odd
seeds are for judging: run each once per candidate, and do not look at why one is lost.

The ranges are those that this lab can model on two processors: a faster disk than 400 MB/s
would show the lab's own speed.
"""

from __future__ import annotations

import math
import random
from typing import Dict, List, Tuple

from .disks import Disk
from .loads import KINDS
from .scenario import DiskSpec, LoadSpec, Scenario, Span

PREFIX = "drawn-"
IDLE = Span(0.5, 4.5)
FLOOD_S = 5.0
# A first and a second flood, each from its first second on, and long enough for whole destage
# cycles of a large cache.
JUDGED, SECOND = Span(FLOOD_S, 65.0), Span(75.0, 135.0)
SWEEP = ("1M", "2M", "4M/400K", "4M", "4M/3200K", "8M/800K", "8M", "16M/1600K", "32M", "64M",
         "128M")
WAVES = 0.25  # of the draws; the others have a steady flood
FAMILIES = ("raid-large", "ssd-flushed", "raid-slow", "ssd-protected", "no-cache", "raid-small")


def draw(seed: int) -> Scenario:
    """The same scenario for the same seed."""
    family = FAMILIES[seed // 2 % len(FAMILIES)]
    luck = random.Random(f"writebackd {seed}")
    disk = _DISKS[family](luck)
    fs = luck.choice(("xfs", "ext4"))
    threads = luck.choice((1, 1, 1, 2, 4, 8))
    database = {"size": f"{_between(luck, 64, 1024):.0f}M", "threads": str(threads)}
    steady = luck.random() >= WAVES
    flood = (JUDGED, SECOND) if steady else (*_waves(luck, JUDGED), *_waves(luck, SECOND))
    loads = (_load("database", "fsync", "sync", (Span(0.0, SECOND.end),), database),
             _load("flood", "dd", "flood", flood, {"size": "auto"}))
    rate = f"{disk.rate_bytes >> 20} MB/s, {disk.cache_bytes >> 20} MB of write cache, "
    return Scenario(
        name=f"{PREFIX}{seed}",
        summary=f"{family}: {rate}{disk.scatter_us} us a scattered block, {fs}, {threads} syncer"
                f"{'s' if threads > 1 else ''}, {'a steady flood' if steady else 'waves'}.",
        shows="What a contender does on a disk that nobody tuned it for.",
        disks=(DiskSpec("db", family, fs, disk, ""),), loads=loads, events=(), expectations=(),
        contenders=("default", "static-16M", "sweep", "knee", "agent"), sweep=SWEEP,
        idle=IDLE, judged=JUDGED, changed=SECOND, contend=0.0, prepare=4.0,
        ways=frozenset(("native",)), tags=frozenset(("extra",)))


def _between(luck: random.Random, least: float, most: float) -> float:
    """Evenly in logarithms: from 10 to 20 as often as from 100 to 200."""
    return math.exp(luck.uniform(math.log(least), math.log(most)))


def _disk(luck: random.Random, rate: Tuple[float, float], cache: Tuple[float, float],
          scatter_us: Tuple[float, float], latency_us: Tuple[float, float],
          **others: object) -> Disk:
    """Of ranges: MB/s, MB, microseconds. The cache takes 2 to 6 times what the media do."""
    media = _between(luck, *rate)
    return Disk(
        rate=f"{media:.0f}M", link=f"{min(1024.0, media * luck.uniform(2, 6)):.0f}M",
        cache=f"{_between(luck, *cache):.0f}M" if cache[0] else "0",
        scatter_us=round(_between(luck, *scatter_us)),
        latency_us=round(_between(luck, *latency_us)), **others)  # type: ignore[arg-type]


_DISKS = {
    "raid-large": lambda luck: _disk(luck, (150, 400), (256, 1024), (20, 1000), (60, 200)),
    "raid-small": lambda luck: _disk(luck, (60, 200), (32, 256), (50, 2000), (60, 200)),
    "raid-slow": lambda luck: _disk(luck, (8, 60), (64, 512), (200, 5000), (60, 300)),
    "ssd-flushed": lambda luck: _disk(luck, (120, 400), (32, 256), (20, 200), (40, 150),
                                      protected=False),
    "ssd-protected": lambda luck: _disk(luck, (150, 400), (64, 1024), (20, 100), (30, 100)),
    "no-cache": lambda luck: _disk(luck, (40, 180), (0, 0), (50, 500), (60, 200), seek_us=round(
        _between(luck, 2000, 8000)), rotational=True, read_cache="8M"),
}


def _waves(luck: random.Random, within: Span) -> Tuple[Span, ...]:
    on_s, off_s, start = luck.uniform(4, 10), luck.uniform(2, 8), within.start
    spans: List[Span] = []
    while start < within.end - 1:
        spans.append(Span(start, min(start + on_s, within.end)))
        start += on_s + off_s
    return tuple(spans)


def _load(name: str, kind: str, role: str, spans: Tuple[Span, ...],
          given: Dict[str, str]) -> LoadSpec:
    options = {key: parser(given.get(key, default))
               for key, (parser, default) in KINDS[kind].OPTIONS.items()}
    return LoadSpec(name, kind, role, "db", spans, options)
