# SPDX-License-Identifier: GPL-2.0-or-later
"""Adopts limits and levers that an earlier run of the daemon left."""

from __future__ import annotations

from typing import Sequence

from writebackd.actuate.actuator import Actuator
from writebackd.control.resume import resumed
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode
from writebackd.types.storage import Device

# After a restart the limits adopted from the run before are kept this long,
# which is what it takes to see again whether anybody syncs.
ADOPTED_HOLD_S = 15.0


def taken_over(
    memory: Memory, actuator: Actuator, devices: Sequence[Device], now_s: float
) -> Memory:
    """The memory to begin with, when an earlier run has left something that stands."""
    adopted = actuator.held_limit_bytes
    if memory.mode is not Mode.ENFORCE or (adopted is None and not actuator.levers.entries):
        return memory
    memory = replace(
        memory,
        limit_bytes=adopted,
        goal_bytes=adopted,
        hold_until_s=now_s + ADOPTED_HOLD_S,
    )
    return resumed(memory, actuator.levers.adopted(), devices, now_s)
