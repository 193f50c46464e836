# SPDX-License-Identifier: GPL-2.0-or-later
"""What is ordered over the control socket, carried out: see verbs.py for how it is asked."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Optional, Tuple

from writebackd.actuate.actuator import Actuator
from writebackd.alert.values import AlertName
from writebackd.control.decide import released
from writebackd.estimate.learned import forgotten
from writebackd.hands import Hands
from writebackd.model import Action, Mode
from writebackd.report.history import Event, History
from writebackd.report.keeper import Keeper
from writebackd.report.snapshot import Pinned
from writebackd.state import State
from writebackd.trial.course import End
from writebackd.trial.desk import Desk


class Orders:
    """Mode, pin, trial, and what is to be forgotten; a reload of the policy sets the mode too."""

    def __init__(
        self,
        state: State,
        actuator: Actuator,
        hands: Hands,
        history: History,
        keeper: Keeper,
    ) -> None:
        self._state = state
        self._actuator = actuator
        self._hands = hands
        self._history = history
        self._keeper = keeper
        self.mode_by_verb = False
        self.trial_over = False  # and what holds on exit is still a trial's
        self._mode_before_trial = state.memory.mode
        self.desk = Desk(self._begin_trial, self._end_trial)

    def mode(self, mode: Mode) -> Tuple[Action, ...]:
        """As `set_mode`, which no reload then undoes."""
        self.desk.end(End.DISTURBED, f"{mode.value} was asked for")
        actions = self.set_mode(mode)
        self.mode_by_verb = True
        return actions

    def set_mode(self, mode: Mode) -> Tuple[Action, ...]:
        """Switch; the answer is what was put back.  Raises OSError or ValueError."""
        state = self._state
        actions: Tuple[Action, ...] = ()
        if mode is Mode.OBSERVE:
            actions = self._hands.restore()
        else:
            # After a yield what stands now is somebody else's wish, and what
            # to go back to.
            self._actuator.take_over()
        state.memory = replace(released(state.memory), mode=mode, yielded=None, intrusions=())
        self._hands.set_dry_run()
        if state.snapshot is not None:
            # Whoever asks now must not be told the mode of the last tick.
            left = [
                each for each in state.snapshot.alerts
                if each.name is not AlertName.FOREIGN_WRITER
            ]  # fmt: skip
            state.snapshot = replace(
                state.snapshot, mode=mode, memory=state.memory, alerts=tuple(left)
            )
        self._history.record(Event(time.time(), "mode", text=mode.value))
        return actions

    def pin(self, pin_bytes: Optional[int], uid: int) -> None:
        """To so many bytes; None: released."""
        self.desk.end(End.DISTURBED, "pinned" if pin_bytes is not None else "released")
        self._state.memory = replace(
            self._state.memory, pin_bytes=pin_bytes, hold_until_s=float("-inf")
        )
        self._state.pinned = Pinned(uid, time.time()) if pin_bytes is not None else None
        text = f"pinned to {pin_bytes} bytes" if pin_bytes is not None else "released"
        self._history.record(Event(time.time(), "pin", text=f"{text} by uid {uid}"))

    def forget(self, name: str) -> bool:
        """What was learned of a device; False while that has not been read yet."""
        state = self._state
        if name not in state.memory.devices or not self._keeper.was_read:
            return False
        state.memory = forgotten(state.memory, name)
        watches = {n: watch for n, watch in state.alerts.watches.items() if n != name}
        state.alerts = replace(state.alerts, watches=watches)
        self._keeper.keep(state.memory, time.time())
        self._history.record(Event(time.time(), "forget", device=name))
        return True

    def _begin_trial(self, text: str) -> None:
        """Work, whatever the mode; and however this ends, no limit of a trial stays."""
        self._mode_before_trial = self._state.memory.mode
        if self._state.memory.mode is Mode.OBSERVE:
            self.set_mode(Mode.ENFORCE)
        self.trial_over = False
        self._actuator.set_on_exit("restore")
        self._history.record(Event(time.time(), "trial", text=text))

    def _end_trial(self, text: str) -> None:
        self.trial_over = True
        self._state.memory = replace(self._state.memory, trial=None)
        self._history.record(Event(time.time(), "trial", text=text))
        if self._mode_before_trial is not self._state.memory.mode:
            self.set_mode(self._mode_before_trial)
