# SPDX-License-Identifier: GPL-2.0-or-later
"""What somebody orders, carried out: over the control socket (verbs.py), or by a new policy."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Optional, Tuple

from writebackd.actuate.actuator import Actuator
from writebackd.alert.values import AlertName
from writebackd.control.decide import rebounded, released
from writebackd.estimate.learned import forgotten
from writebackd.hands import Hands
from writebackd.model import Action, Mode
from writebackd.policy import Policy
from writebackd.report.history_schema import Event
from writebackd.report.history_store import History
from writebackd.report.keeper import Keeper
from writebackd.report.snapshot import Pinned
from writebackd.state import State
from writebackd.trial.course import End
from writebackd.trial.desk import Desk


class Orders:
    """Mode, pin, trial, what is to be forgotten; and what another policy changes of these."""

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
        self._mode_by_verb = False
        self._trial_over = False  # and what holds on exit is still a trial's
        self._mode_before_trial = state.memory.mode
        self.desk = Desk(self._begin_trial, self._end_trial)

    def mode(self, mode: Mode) -> Tuple[Action, ...]:
        """Switch, for good; the answer is what was put back.  Raises OSError or ValueError."""
        self.desk.end(End.DISTURBED, f"{mode.value} was asked for")
        actions = self._set_mode(mode)
        self._mode_by_verb = True
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

    def change_over(self, policy: Policy, with_mode: bool) -> None:
        """To a policy that was read again, and `with_mode` to its mode.

        Raises OSError or ValueError.
        """
        self.desk.end(End.DISTURBED, "the policy was read again")
        # Bounds may have moved; what the policy has no caps for goes with the next decision.
        self._state.memory = rebounded(self._state.memory)
        # The verb beats the command line, which beats the policy.
        if with_mode and not self._mode_by_verb:
            mode = Mode(policy.mode)
            if mode is not self._state.memory.mode:
                self._set_mode(mode)
        if not self._trial_over:
            self._actuator.set_on_exit(policy.on_exit)

    def acted(self, on_exit: str) -> None:
        """A tick has acted: after a trial what holds on exit is the policy's again.

        Not before: until then a limit of the trial stands, which is never kept.
        """
        if self._trial_over:
            self._trial_over = False
            self._actuator.set_on_exit(on_exit)

    def _set_mode(self, mode: Mode) -> Tuple[Action, ...]:
        """As `mode`, but a reload of the policy may undo it."""
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

    def _begin_trial(self, text: str) -> None:
        """Work, whatever the mode; and however this ends, no limit of a trial stays."""
        self._mode_before_trial = self._state.memory.mode
        if self._state.memory.mode is Mode.OBSERVE:
            self._set_mode(Mode.ENFORCE)
        self._trial_over = False
        self._actuator.set_on_exit("restore")
        self._history.record(Event(time.time(), "trial", text=text))

    def _end_trial(self, text: str) -> None:
        self._trial_over = True
        self._state.memory = replace(self._state.memory, trial=None)
        self._history.record(Event(time.time(), "trial", text=text))
        if self._mode_before_trial is not self._state.memory.mode:
            self._set_mode(self._mode_before_trial)
