# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates the time until page cache and write caches have no dirty data left. Pure."""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Optional, Sequence

from writebackd.report.device_answers import backings_of
from writebackd.types.estimate import Estimate
from writebackd.types.samples import Sample
from writebackd.types.storage import Backing


class TimeToClean(NamedTuple):
    """Seconds; None: unknown."""

    host_s: Optional[float]
    devices: Mapping[str, Optional[float]]  # of those that are managed


def time_to_clean(sample: Sample, estimates: Mapping[str, Estimate]) -> TimeToClean:
    """The dirty data divided by the drain rate.

    The kernel counts dirty pages of the host. They are those of the flooded devices, by their
    parts of the limit. Where none is flooded they are the only device's; of several nobody knows
    whose, and the host's time is that of the slowest, as if all were its own.
    """
    waiting = sample.vm.dirty_bytes + sample.vm.writeback_bytes
    managed = [estimates[each.device.name] for each in sample.devices if each.excluded is None]
    flooded = any(each.flooded for each in managed)
    devices, all_s, said = {}, [], backings_of(sample.backings)
    for each in managed:
        part = float(waiting)
        if flooded:
            part = waiting * each.limit_share if each.flooded else 0.0
        part += cache_bytes(each, said.get(each.name, ()))
        takes_s = part / each.drain_rate if each.drain_rate else None
        if part:
            all_s.append(takes_s)
        devices[each.name] = takes_s if flooded or len(managed) == 1 else None
    return TimeToClean(_longest(all_s) if managed else None, devices)


def cache_bytes(estimate: Estimate, backings: Sequence[Backing]) -> float:
    """Dirty bytes in the write caches: as reported, else as estimated; 0: unknown."""
    said = [each.dirty_bytes for each in backings if each.dirty_bytes is not None]
    if said:
        return float(sum(said))
    return min(estimate.fill_bytes, estimate.cache_bytes or 0.0)


def _longest(all_s: Sequence[Optional[float]]) -> Optional[float]:
    known: List[float] = [each for each in all_s if each is not None]
    return max(known, default=0.0) if len(known) == len(all_s) else None
