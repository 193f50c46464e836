# SPDX-License-Identifier: GPL-2.0-or-later
"""Carries out decisions, puts everything back, adopts what an earlier run of the daemon left.

Every write is logged and counted.
"""

from __future__ import annotations

import logging
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from writebackd.actuate.actuator import Actuator
from writebackd.alerts.alert_types import AlertName
from writebackd.control.resume import resumed
from writebackd.kernel import bdi
from writebackd.notify import journal_fields
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, Mode
from writebackd.types.levers import Action
from writebackd.types.storage import Device

log = logging.getLogger(__name__)

Actions = Tuple[Action, ...]

# After a restart the limits adopted from the run before are kept this long,
# which is what it takes to see again whether anybody syncs.
ADOPTED_HOLD_S = 15.0


class Executor:
    """The daemon's way to the levers. Nothing here raises, but for `switch`."""

    def __init__(self, actuator: Actuator, count: Callable[[Actions], None]) -> None:
        """`count` gets the writes that were really tried."""
        self._actuator = actuator
        self._count = count
        self._refusals: Dict[str, str] = {}  # by lever, the last error that was logged

    def set_dry_run(self, mode: Mode, off: bool) -> None:
        """`off`: the kill switch is set."""
        self._actuator.dry_run = mode is Mode.OBSERVE or off

    def execute(
        self, decision: Decision, memory: Memory, was_yielded: bool, now_s: float
    ) -> Actions:
        """The decision; after a foreign write, let go of all that is ours."""
        if memory.yielded is not None:
            if not was_yielded:
                log.warning(
                    "%s: %s: yielding", AlertName.FOREIGN_WRITER.value, memory.yielded,
                    extra=journal_fields.foreign_limits(memory.intrusions),
                )
                return self._logged(self._actuator.yield_())
            # Restores that run in the background come to their end here.
            return self._logged(self._actuator.apply_settings(()))
        if decision.limit_bytes is None or decision.background_bytes is None:
            actions = self._actuator.restore_limits()
        else:
            actions = self._actuator.apply(decision.limit_bytes, decision.background_bytes)
        just_restarted = now_s < memory.hold_until_s
        actions += self._actuator.apply_settings(decision.settings, just_restarted)
        return self._logged(actions, decision.reason, decision.decision_id)

    def switch(self, mode: Mode) -> Actions:
        """Before the mode changes: observe restores, for enforce what stands is the original.

        Raises OSError or ValueError where that cannot be read.
        """
        if mode is Mode.OBSERVE:
            return self.restore()
        # After a yield what stands now is somebody else's wish, and what to go back to.
        self._actuator.take_over()
        return ()

    def restore(self) -> Actions:
        return self._logged(self._actuator.restore())

    def finish(self) -> Actions:
        """At exit: restore, or keep, as the policy says."""
        return self._logged(self._actuator.finish())

    def _logged(
        self, actions: Actions, reason: str = "", decision_id: Optional[str] = None
    ) -> Actions:
        """`reason`: the decision's; empty where the originals came back."""
        failed: Dict[str, List[str]] = {}
        tried = []
        for action in actions:
            if not action.ok:
                error = str(action.error)
                if self._refusals.get(action.lever) != error:
                    failed.setdefault(error, []).append(f"{action.lever}={action.new}")
                elif error == self._actuator.not_in_force:
                    continue  # it was written in an earlier tick
                tried.append(action)
                self._refusals[action.lever] = error
                continue
            tried.append(action)
            self._refusals.pop(action.lever, None)
            if not self._actuator.dry_run:
                log.info(
                    "%s %s -> %s", action.lever, action.old, action.new,
                    extra=journal_fields.lever(action, reason, decision_id),
                )
        if not self._actuator.dry_run:
            self._count(tuple(tried))
        # A refused write is tried again in every tick, and logged once.
        for error, values in failed.items():
            # The global limit does instead, as the policy's `per-device` means it to.
            level = logging.INFO if error == bdi.MISSING else logging.ERROR
            log.log(level, "%s failed: %s", ", ".join(values), error)
        return actions


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
