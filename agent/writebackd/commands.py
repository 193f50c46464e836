# SPDX-License-Identifier: GPL-2.0-or-later
"""What the control socket answers, and its commands as values that the daemon applies.

A command is applied when it arrives, between two ticks, and answered after that.  Until the next
tick it may be 10 s (--interval), and a client waits for 5.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Optional, Tuple, Union

from writebackd import formats
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.executor import Actions
from writebackd.actuate.host_lock import first_found
from writebackd.actuate.outcome import describe_action
from writebackd.control.decide import released
from writebackd.estimate.learned import forgotten
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import file_of
from writebackd.kernel.vm import in_words, read_state
from writebackd.report.alert_answers import alert_answer
from writebackd.report.answer_parts import forget_json, mode_json, pin_json
from writebackd.report.attribution import for_user
from writebackd.report.control_server import (
    RequestError,
    Shared,
    seconds_argument,
    size_argument,
    text_argument,
)
from writebackd.report.device_answers import devices_json, find_devices
from writebackd.report.history_schema import Event
from writebackd.report.learned_store import LearnedStore
from writebackd.report.metrics import CONTENT_TYPES, OPENMETRICS
from writebackd.report.snapshot import Snapshot
from writebackd.report.status_answer import status_json
from writebackd.report.top_answer import top_json
from writebackd.report.verify_answer import verify_json
from writebackd.report.why_answer import why_json
from writebackd.runtime_state import RuntimeState
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode

log = logging.getLogger(__name__)

# Two pages: below it the kernel answers EINVAL (mm/page-writeback.c).
LEAST_LIMIT_BYTES = 2 * os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True)
class SetMode:
    """Enforce or observe."""

    mode: Mode
    by_verb: bool = True  # False: a policy or a trial wants it, and the next policy may differ

    @property
    def disturbs_trial(self) -> Optional[str]:
        return f"{self.mode.value} was asked for" if self.by_verb else None

    def applied(self, memory: Memory) -> Memory:
        return replace(released(memory), mode=self.mode, yielded=None, intrusions=())

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "mode", text=self.mode.value)


@dataclass(frozen=True)
class Pin:
    """Hold the limit at so many bytes until released, or until a time."""

    bytes: int
    uid: int
    until_s: Optional[float] = None  # as Sample.time_s
    disturbs_trial = "pinned"

    def applied(self, memory: Memory) -> Memory:
        return replace(memory, pin_bytes=self.bytes, hold_until_s=float("-inf"))

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "pin", text=f"pinned to {self.bytes} bytes by uid {self.uid}")


@dataclass(frozen=True)
class Release:
    """End a pin."""

    why: str  # by whom, or that its time is over
    disturbs_trial = "released"

    def applied(self, memory: Memory) -> Memory:
        return replace(memory, pin_bytes=None, hold_until_s=float("-inf"))

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "pin", text=f"released {self.why}")


@dataclass(frozen=True)
class Forget:
    """Drop what was learned of a device."""

    device: str
    disturbs_trial = None

    def applied(self, memory: Memory) -> Memory:
        return forgotten(memory, self.device)

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "forget", device=self.device)


Command = Union[SetMode, Pin, Release, Forget]


@dataclass(frozen=True)
class Commands:
    """Questions are answered from the state; what changes it is left to `apply`."""

    files: KernelFiles
    actuator: Actuator
    state: RuntimeState
    keeper: LearnedStore
    # Answers with what was put back, and may raise OSError or ValueError.
    apply: Callable[[Command], Actions]
    trial: Callable[[Dict[str, Any], Snapshot], Dict[str, Any]]
    metrics: Callable[[str], Optional[Shared]]
    hidepid: Callable[[], Optional[str]]  # the option by which /proc hides processes, or None
    now: Callable[[], float]  # the clock of Sample.time_s

    def handle(self, verb: str, args: Dict[str, Any], uid: int) -> Dict[str, Any]:
        """Answer a request of `writebackctl`; raises RequestError."""
        if verb == "mode":
            return self._mode(args, uid)
        if verb in ("pin", "release"):
            return self._pin(verb, args, uid)
        option = self.hidepid() if uid != 0 and verb != "metrics" else None
        if option is not None:
            # Names of processes and cgroups are in most answers, in words as well.
            raise RequestError(
                f"/proc is mounted {option}, only root sees processes: try again with sudo", 4
            )
        snapshot, problem = self.state.snapshot, self.state.problem
        if snapshot is None:
            why = problem or "just started"
            raise RequestError(f"{why}, no measurement yet: try again in a second", 1)
        shown = for_user(snapshot, uid)
        answers: Dict[str, Callable[[], Dict[str, Any]]] = {
            "status": lambda: status_json(shown),
            "devices": lambda: devices_json(shown),
            "why": lambda: why_json(shown, text_argument(args, "device")),
            "alerts": lambda: alert_answer(shown, text_argument(args, "device")),
            "forget": lambda: self._forget(shown, args, uid),
            "trial": lambda: self.trial(args, shown),
            "top": lambda: top_json(shown),
            "verify": lambda: self._verify(shown),
            "metrics": lambda: self._metrics_page(args),
        }
        if verb not in answers:
            raise RequestError(f"unknown verb {verb!r}")
        return answers[verb]()

    def _metrics_page(self, args: Dict[str, Any]) -> Shared:
        form = text_argument(args, "format") or OPENMETRICS
        if form not in CONTENT_TYPES:
            raise RequestError(f"format is {' or '.join(CONTENT_TYPES)}")
        page = self.metrics(form)
        assert page is not None  # there is a snapshot
        return page

    def _forget(self, snapshot: Snapshot, args: Dict[str, Any], uid: int) -> Dict[str, Any]:
        wanted = text_argument(args, "device")
        if wanted is None:
            raise RequestError("forget needs a device: `writebackctl devices` lists them")
        found = [each.device.name for each in find_devices(snapshot, wanted)]
        if len(found) > 1:
            raise RequestError(f"{wanted!r} may be {' or '.join(found)}: name one of these")
        if found[0] not in self.state.memory.devices or not self.keeper.was_read:
            raise RequestError("learned values are still being read: try again in a second", 1)
        self.apply(Forget(found[0]))
        log.info("learned values of %s dropped by uid %d", found[0], uid)
        return forget_json(found[0], ["learned again from the next flood and fsync"])

    def _verify(self, snapshot: Snapshot) -> Dict[str, Any]:
        vm = read_state(self.files)
        return verify_json(
            vm,
            snapshot.sample.host.page_size,
            self._written(snapshot),
            snapshot.sample.foreign,
            self.state.memory.yielded,
            self.actuator.levers.held(vm.threshold_bytes),
            [
                (str(lever), file_of(lever), written, found)
                for lever, written, found in self.actuator.levers.differing()
            ],
        )

    def _written(self, snapshot: Snapshot) -> Optional[Tuple[int, int]]:
        """What this daemon holds in the kernel, as the last decision says."""
        decision = snapshot.decision
        if self.actuator.dry_run or self.state.memory.limit_bytes is None:
            return None
        if decision.limit_bytes is None or decision.background_bytes is None:
            return None
        return decision.limit_bytes, decision.background_bytes

    def _mode(self, args: Dict[str, Any], uid: int) -> Dict[str, Any]:
        try:
            mode = Mode(text_argument(args, "mode"))
        except ValueError:
            raise RequestError("mode is observe or enforce") from None
        try:
            actions = self.apply(SetMode(mode))
        except (OSError, ValueError) as error:
            raise RequestError(f"cannot read the limits: {error}", 1) from None
        log.info("mode %s by uid %d", mode.value, uid)
        lines = [describe_action(action) for action in actions]
        if mode is Mode.ENFORCE:
            lines.append(self._restores())
        off = self.state.off
        if mode is Mode.ENFORCE and off is not None:
            lines.append(f"takes effect when {off} is removed")
        return mode_json(mode, lines, good=all(action.ok for action in actions))

    def _restores(self) -> str:
        """What the end restores; not what was found first, once somebody else has set limits."""
        originals, first = self.actuator.originals, first_found(self.files)
        keep = self.actuator.on_exit == "keep"
        text = f"{'`writebackctl observe`' if keep else 'exit'} restores {in_words(originals)}"
        if first is None or first == originals:
            return text
        return f"{text} (was {in_words(first)}: `writebackctl restore --first-found`)"

    def _pin(self, verb: str, args: Dict[str, Any], uid: int) -> Dict[str, Any]:
        if verb == "release":
            self.apply(Release(f"by uid {uid}"))
            log.info("pin released by uid %d", uid)
            return pin_json(None)
        pin, for_s = size_argument(args, "bytes"), seconds_argument(args, "for_s")
        if pin < LEAST_LIMIT_BYTES:
            raise RequestError(
                f"{pin} bytes: the kernel takes {LEAST_LIMIT_BYTES} at least; write it with a unit,"
                " like 15M"
            )
        snapshot = self.state.snapshot
        memory_bytes = snapshot.sample.host.memory_bytes if snapshot is not None else 0
        if 0 < memory_bytes < pin:
            raise RequestError(
                f"{formats.size(pin)} is more than the {formats.size(memory_bytes)} of memory:"
                " such a limit throttles nothing"
            )
        until_s = self.now() + for_s if for_s is not None else None
        self.apply(Pin(pin, uid, until_s))
        lasts = "" if for_s is None else f" for {formats.duration(for_s)}"
        log.info("pinned to %d bytes%s by uid %d", pin, lasts, uid)
        memory, off = self.state.memory, self.state.off
        waits = memory.mode is Mode.OBSERVE or memory.yielded is not None
        lines = ["takes effect after `writebackctl enforce`"] if waits else []
        if off is not None:
            lines.append(f"takes effect when {off} is removed")
        return pin_json(pin, lines, for_s)
