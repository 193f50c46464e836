# SPDX-License-Identifier: GPL-2.0-or-later
"""Restores the memory of paces and device limits adopted from an earlier run.

Without it, a paced flood would look as if another process had limited it, and a device with its own
limit as if it had no flood.  Both would be released after a restart and detected again, with a full
write cache meanwhile.
"""

from __future__ import annotations

from typing import Dict, Iterable, Sequence

from writebackd.types.copying import replace
from writebackd.types.core_memory import Cap, Memory, PaceMemory
from writebackd.types.levers import LeverKind, Setting
from writebackd.types.storage import Device


def resumed(
    memory: Memory, settings: Sequence[Setting], devices: Iterable[Device], now_s: float
) -> Memory:
    """Add the paces and device limits in `settings`, which are already in force, to `memory`."""
    paced: Dict[str, Dict[str, int]] = {}
    limits: Dict[str, Dict[str, int]] = {}
    for setting in settings:
        if setting.kind is LeverKind.PACE:
            paced.setdefault(setting.name, {})[setting.target] = setting.value
        elif setting.kind is LeverKind.BDI:
            limits.setdefault(setting.target, {})[setting.name] = setting.value
    paces = {
        devno: PaceMemory(
            rate=float(sum(rates.values())), rates=rates, step_s=now_s, wrote_s=now_s
        )
        for devno, rates in paced.items()
    }
    caps = {
        device.name: Cap(
            limits[device.bdi]["max_bytes"], in_force=limits[device.bdi].get("strict_limit") == 1
        )
        for device in devices
        if "max_bytes" in limits.get(device.bdi, {})
    }
    return replace(memory, paces=paces, caps=caps)
