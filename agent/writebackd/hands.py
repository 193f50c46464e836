# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon does to the levers; each action is logged and counted."""

from __future__ import annotations

import logging
from typing import Dict, List, Optional, Tuple

from writebackd.actuate.actuator import Actuator
from writebackd.alert.values import AlertName
from writebackd.kernel import bdi
from writebackd.model import Action, Decision, Mode
from writebackd.report import entry
from writebackd.state import State

log = logging.getLogger(__name__)


class Hands:
    """Carries out decisions, and takes everything back."""

    def __init__(self, state: State, actuator: Actuator) -> None:
        self._state = state
        self._actuator = actuator
        self._refusals: Dict[str, str] = {}  # by lever, the last error that was told
        self.set_dry_run()

    def set_dry_run(self) -> None:
        """By the mode, and the file that holds us off."""
        observe = self._state.memory.mode is Mode.OBSERVE
        self._actuator.dry_run = observe or self._state.off is not None

    def act(
        self, decision: Decision, was_yielded: Optional[str], now_s: float
    ) -> Tuple[Action, ...]:
        """As decided; where limits are somebody else's by now, let go of all that is ours."""
        memory = self._state.memory
        if memory.yielded is not None:
            if was_yielded is None:
                log.warning(
                    "%s: %s: yielding", AlertName.FOREIGN_WRITER.value, memory.yielded,
                    extra=entry.foreign_limits(memory.intrusions),
                )
                return self._told(self._actuator.yield_())
            # What went home in the background comes to its end here.
            return self._told(self._actuator.apply_settings(()))
        if decision.limit_bytes is None or decision.background_bytes is None:
            actions = self._actuator.restore_limits()
        else:
            actions = self._actuator.apply(decision.limit_bytes, decision.background_bytes)
        just_restarted = now_s < memory.hold_until_s
        actions += self._actuator.apply_settings(decision.settings, just_restarted)
        return self._told(actions, decision.reason, decision.decision_id)

    def restore(self) -> Tuple[Action, ...]:
        """Back to what was found."""
        return self._told(self._actuator.restore())

    def finish(self) -> Tuple[Action, ...]:
        """At the end: what the policy says of it."""
        return self._told(self._actuator.finish())

    def _told(
        self, actions: Tuple[Action, ...], reason: str = "", decision_id: Optional[str] = None
    ) -> Tuple[Action, ...]:
        """Each that was done, for the `reason` of a decision, or else as the way back."""
        failed: Dict[str, List[str]] = {}
        for action in actions:
            error = None if action.ok else str(action.error)
            if error is not None and self._refusals.get(action.lever) != error:
                failed.setdefault(error, []).append(f"{action.lever}={action.new}")
            elif error is None and not self._actuator.dry_run:
                log.info(
                    "%s %s -> %s", action.lever, action.old, action.new,
                    extra=entry.lever(action, reason, decision_id),
                )
            if error is None:
                self._refusals.pop(action.lever, None)
            else:
                self._refusals[action.lever] = error
        if not self._actuator.dry_run:
            self._state.totals = self._state.totals.acted(actions)
        # What is refused is tried again in every tick, and told once.
        for error, values in failed.items():
            # The global limit does instead, as the policy's `per-device` means it to.
            level = logging.INFO if error == bdi.MISSING else logging.ERROR
            log.log(level, "%s failed: %s", ", ".join(values), error)
        return actions
