# SPDX-License-Identifier: GPL-2.0-or-later
"""Carries out decisions, restores all settings, adopts settings of an earlier run.

Every write is logged and counted.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from writebackd.actuate.actuator import Actuator
from writebackd.alerts.alert_types import AlertName
from writebackd.control.resume import resumed
from writebackd.kernel import bdi
from writebackd.notify import journal_route
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, Mode
from writebackd.types.levers import Action
from writebackd.types.storage import Device

log = logging.getLogger(__name__)

Actions = Tuple[Action, ...]

# Seconds.  After a restart, adopted limits are kept until sync demand has been measured again.
ADOPTED_HOLD_S = 15.0


class Executor:
    """The daemon's access to the levers. Nothing here raises except `switch`."""

    def __init__(self, actuator: Actuator, count: Callable[[Actions], None]) -> None:
        """`count` receives the writes that were actually tried."""
        self._actuator = actuator
        self._count = count
        self._refusals: Dict[str, str] = {}  # by lever, the last error that was logged

    def set_dry_run(self, mode: Mode, off: bool) -> None:
        """`off`: the kill switch is set."""
        self._actuator.dry_run = mode is Mode.OBSERVE or off

    def execute(
        self, decision: Decision, memory: Memory, was_yielded: bool, now_s: float
    ) -> Actions:
        """Carry out the decision; after a foreign write, release everything instead."""
        if memory.yielded is not None:
            if not was_yielded:
                log.warning(
                    "%s: %s: yielding", AlertName.FOREIGN_WRITER.value, memory.yielded,
                    extra=journal_route.foreign_limits(memory.intrusions),
                )
                return self._logged(self._actuator.yield_())
            back = self._actuator.settle([intrusion.write for intrusion in memory.intrusions])
            if back:
                log.warning("%s: %s", AlertName.FOREIGN_WRITER.value, memory.yielded)
            # Collects the results of restores in the background.
            return self._logged(back + self._actuator.apply_settings(()))
        if was_yielded:  # by settings of the boot that were applied again
            with contextlib.suppress(OSError, ValueError):  # the originals are in force
                self._actuator.take_over()
        if decision.limit_bytes is None or decision.background_bytes is None:
            actions = self._actuator.restore_limits()
        else:
            actions = self._actuator.apply(decision.limit_bytes, decision.background_bytes)
        just_restarted = now_s < memory.hold_until_s
        actions += self._actuator.apply_settings(decision.settings, just_restarted)
        return self._logged(actions, decision.reason, decision.decision_id)

    def switch(self, mode: Mode) -> Actions:
        """Call before a mode change: observe restores; enforce takes current values as originals.

        Raises OSError or ValueError if these cannot be read.
        """
        if mode is Mode.OBSERVE:
            return self.restore()
        # After a yield the current values are another process's, and become the originals.
        self._actuator.take_over()
        return ()

    def restore(self) -> Actions:
        return self._logged(self._actuator.restore())

    def finish(self) -> Actions:
        """At exit: restore or keep, as `on-exit` in the policy says."""
        return self._logged(self._actuator.finish())

    def _logged(
        self, actions: Actions, reason: str = "", decision_id: Optional[str] = None
    ) -> Actions:
        """`reason` is the decision's; empty for a restore."""
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
                    extra=journal_route.lever(action, reason, decision_id),
                )
        if not self._actuator.dry_run:
            self._count(tuple(tried))
        # A refused write is tried again in every tick, and logged once.
        for error, values in failed.items():
            # No error: without per-device limits the global limit is used.
            level = logging.INFO if error == bdi.MISSING else logging.ERROR
            log.log(level, "%s failed: %s", ", ".join(values), error)
        return actions


def taken_over(
    memory: Memory, actuator: Actuator, devices: Sequence[Device], now_s: float
) -> Memory:
    """The initial memory, with what was adopted from an earlier run."""
    if memory.yielded is not None:  # before the restart
        actuator.yield_()
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
