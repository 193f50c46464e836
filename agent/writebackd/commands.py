# SPDX-License-Identifier: GPL-2.0-or-later
"""What the control socket answers, and its commands as values that the daemon applies.

A command is applied and then answered when it arrives, between two ticks.  The next tick may be
10 s away (--interval), and a client waits for 5.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple, Union

from writebackd import formats
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.executor import Actions
from writebackd.actuate.first_found import first_found
from writebackd.actuate.outcome import describe_action
from writebackd.control.decide import released
from writebackd.estimate.learned import forgotten
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import file_of
from writebackd.kernel.vm import in_words, read_state
from writebackd.report.alert_answers import alert_answer
from writebackd.report.answer_parts import (
    drain_json,
    forget_json,
    mode_json,
    pin_json,
    reset_stats_json,
    verify_json,
)
from writebackd.report.attribution import for_user
from writebackd.report.control_server import (
    RequestError,
    Shared,
    names_argument,
    seconds_argument,
    size_argument,
    text_argument,
)
from writebackd.report.device_answers import devices_json, find_devices
from writebackd.report.history_schema import Event
from writebackd.report.learned_store import LearnedStore
from writebackd.report.metrics import CONTENT_TYPES, OPENMETRICS
from writebackd.report.snapshot import Draining, Pinned, Snapshot
from writebackd.report.status_answer import status_json, top_json, why_json
from writebackd.runtime_state import RuntimeState
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode

log = logging.getLogger(__name__)

Answer = Mapping[str, Any]  # see report/answers.py

# Two pages: below it the kernel answers EINVAL (mm/page-writeback.c).
LEAST_LIMIT_BYTES = 2 * os.sysconf("SC_PAGESIZE")
# The client of a drain renews it every second, and may be killed.
DRAIN_LEASE_S = 10.0


@dataclass(frozen=True)
class SetMode:
    """Change the mode to enforce or observe."""

    mode: Mode
    by_verb: bool = True  # False: a policy or a trial wants it, and the next policy may differ

    @property
    def disturbs_trial(self) -> Optional[str]:
        return f"{self.mode.value} was asked for" if self.by_verb else None

    def applied(self, memory: Memory) -> Memory:
        return replace(released(memory), mode=self.mode, yielded=None, intrusions=(), retry=None)

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "mode", text=self.mode.value)


@dataclass(frozen=True)
class Pin:
    """Hold the limit at this many bytes until released, or until a time."""

    bytes: int
    uid: int
    until_s: Optional[float] = None  # as Sample.time_s
    disturbs_trial = "pinned"

    def applied(self, memory: Memory) -> Memory:
        return replace(memory, pin_bytes=self.bytes, hold_until_s=float("-inf"))

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "pin", text=f"pinned to {formats.size(self.bytes)} by uid {self.uid}")


@dataclass(frozen=True)
class EndPin:
    """End an expired pin; a drain continues."""

    disturbs_trial = None  # there is none beside a pin

    def applied(self, memory: Memory) -> Memory:
        return replace(memory, pin_bytes=None, hold_until_s=float("-inf"))

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "pin", text="released when the pin expired")


@dataclass(frozen=True)
class Release:
    """End a pin, and a drain."""

    uid: int
    disturbs_trial = "released"

    def applied(self, memory: Memory) -> Memory:
        return replace(memory, pin_bytes=None, draining=(), hold_until_s=float("-inf"))

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "pin", text=f"released by uid {self.uid}")


@dataclass(frozen=True)
class StartDrain:
    """Lower the limits of these devices to the floor; replaces an earlier drain."""

    devices: Tuple[str, ...]
    draining: Draining
    disturbs_trial = "drained"

    def applied(self, memory: Memory) -> Memory:
        return replace(memory, draining=self.devices, hold_until_s=float("-inf"))

    def event(self, wall_s: float) -> Event:
        names = ", ".join(self.devices)
        return Event(wall_s, "drain", text=f"drain of {names} by uid {self.draining.uid}")


@dataclass(frozen=True)
class EndDrain:
    """Decide the limits again, unless they are pinned."""

    why: str
    disturbs_trial = None  # there is none beside a drain

    def applied(self, memory: Memory) -> Memory:
        return replace(memory, draining=())

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "drain", text=f"drain ended {self.why}")


@dataclass(frozen=True)
class ResetStats:
    """Reset the counters."""

    uid: int
    disturbs_trial = None

    def applied(self, memory: Memory) -> Memory:
        return memory

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "reset", text=f"counters zeroed by uid {self.uid}")


@dataclass(frozen=True)
class Forget:
    """Drop the learned values of a device."""

    device: str
    disturbs_trial = None

    def applied(self, memory: Memory) -> Memory:
        return forgotten(memory, self.device)

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, "forget", device=self.device)


Command = Union[SetMode, Pin, EndPin, Release, StartDrain, EndDrain, ResetStats, Forget]


def overdue(state: RuntimeState, now_s: float) -> Iterator[Command]:
    """Commands that end an expired pin, or a drain whose client is gone."""
    if state.pinned is not None and state.pinned.is_over(now_s):
        log.info("pin expired")
        yield EndPin()
    if state.draining is not None and state.draining.is_over(now_s):
        log.info("drain ended: its client is gone")
        yield EndDrain("since its client is gone")


def note_order(state: RuntimeState, command: Command, wall_s: float) -> None:
    """Remember who gave the order, and reset the counters if that was the order."""
    if isinstance(command, Pin):
        state.pinned = Pinned(command.uid, wall_s, command.until_s)
    elif isinstance(command, EndPin):
        state.pinned = None
    elif isinstance(command, Release):
        state.pinned = state.draining = None
    elif isinstance(command, StartDrain):
        state.draining = command.draining
    elif isinstance(command, EndDrain):
        state.draining = None
    elif isinstance(command, ResetStats):
        state.totals = state.totals.zeroed(wall_s)


@dataclass(frozen=True)
class Commands:
    """Answers requests from the state; changes to the memory are left to `apply`."""

    files: KernelFiles
    actuator: Actuator
    state: RuntimeState
    learned: LearnedStore
    # Answers with what was put back, and may raise OSError or ValueError.
    apply: Callable[[Command], Actions]
    trial: Callable[[Dict[str, Any], Snapshot], Answer]
    metrics: Callable[[str], Optional[Shared]]
    hidepid: Callable[[], Optional[str]]  # the option by which /proc hides processes, or None
    now: Callable[[], float]  # the clock of Sample.time_s

    def handle(self, verb: str, args: Dict[str, Any], uid: int) -> Answer:
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
        answers: Dict[str, Callable[[], Answer]] = {
            "status": lambda: status_json(shown),
            "devices": lambda: devices_json(shown),
            "why": lambda: why_json(shown, text_argument(args, "device")),
            "alerts": lambda: alert_answer(shown, text_argument(args, "device")),
            "forget": lambda: self._forget(shown, args, uid),
            "drain": lambda: self._drain(shown, args, uid),
            "reset-stats": lambda: self._reset_stats(uid),
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

    def _forget(self, snapshot: Snapshot, args: Dict[str, Any], uid: int) -> Answer:
        wanted = text_argument(args, "device")
        if wanted is None:
            raise RequestError("forget needs a device: `writebackctl devices` lists them")
        names = [each.device.name for each in find_devices(snapshot, wanted)]
        if len(names) > 1:
            raise RequestError(f"{wanted!r} may be {' or '.join(names)}: name one of these")
        if names[0] not in self.state.memory.devices or not self.learned.was_read:
            raise RequestError("learned values are still being read: try again in a second", 1)
        self.apply(Forget(names[0]))
        log.info("learned values of %s dropped by uid %d", names[0], uid)
        return forget_json(names[0], ["learned again from the next flood and fsync"])

    def _drain(self, snapshot: Snapshot, args: Dict[str, Any], uid: int) -> Answer:
        """`start`, then `renew` until `end` or `hold`; without renewal a drain ends by itself."""
        order = text_argument(args, "order")
        if order == "start":
            return self._start_drain(snapshot, args, uid)
        if order not in ("renew", "hold", "end"):
            raise RequestError("order is start, renew, hold or end")
        number, now = size_argument(args, "number", of=""), self.state.draining
        if now is None or now.number != number:
            return drain_json(number, ())  # released, or another one has taken its place
        if order == "end":
            self.apply(EndDrain(f"by uid {uid}"))
            return drain_json(number, ())
        if order == "hold":
            self.state.draining = now._replace(until_s=None)
            log.info("drain held by uid %d", uid)
        elif now.until_s is not None:
            self.state.draining = now._replace(until_s=self.now() + DRAIN_LEASE_S)
        return drain_json(number, self.state.memory.draining, self._not_lowered())

    def _start_drain(
        self, snapshot: Snapshot, args: Dict[str, Any], uid: int
    ) -> Answer:
        wanted = names_argument(args, "devices")
        chosen = {
            seen.device.name: seen
            for each in (wanted or (None,)) for seen in find_devices(snapshot, each)
            if wanted or seen.excluded is None
        }
        for name, seen in chosen.items():
            if seen.excluded is not None:
                raise RequestError(
                    f"{name} is not managed ({seen.excluded}): use `sync -f` and a mount point"
                )
        if not chosen:
            raise RequestError("no device is managed: `writebackctl devices` says why")
        begun_s = self.now()
        draining = Draining(int(begun_s * 1e6), uid, time.time(), begun_s + DRAIN_LEASE_S)
        self.apply(StartDrain(tuple(chosen), draining))
        log.info("drain of %s by uid %d", ", ".join(chosen), uid)
        return drain_json(draining.number, tuple(chosen), self._not_lowered())

    def _not_lowered(self) -> Sequence[str]:
        """Why a drain does not lower the limits."""
        memory, off = self.state.memory, self.state.off
        if off is not None:
            return [f"limits stay as they are: {off} exists"]
        if memory.mode is Mode.OBSERVE or memory.yielded is not None:
            return ["limits stay as they are until `writebackctl enforce`"]
        if memory.pin_bytes is not None:
            return [f"limits stay pinned to {formats.size(memory.pin_bytes)}"]
        return []

    def _reset_stats(self, uid: int) -> Answer:
        self.apply(ResetStats(uid))
        log.info("counters zeroed by uid %d", uid)
        return reset_stats_json(self.state.totals)

    def _verify(self, snapshot: Snapshot) -> Answer:
        vm = read_state(self.files)
        return verify_json(
            vm,
            snapshot.sample.host.page_size,
            self._written(snapshot),
            snapshot.sample.foreign,
            self.state.memory.yielded,
            self.actuator.levers.held(vm.threshold_bytes),
            [
                (str(lever), file_of(lever), written, current)
                for lever, written, current in self.actuator.levers.differing()
            ],
        )

    def _written(self, snapshot: Snapshot) -> Optional[Tuple[int, int]]:
        """The values this daemon has in the kernel, according to the last decision."""
        decision = snapshot.decision
        if self.actuator.dry_run or self.state.memory.limit_bytes is None:
            return None
        if decision.limit_bytes is None or decision.background_bytes is None:
            return None
        return decision.limit_bytes, decision.background_bytes

    def _mode(self, args: Dict[str, Any], uid: int) -> Answer:
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
        """What exit restores: not the first original limits if somebody has changed them."""
        originals, first = self.actuator.originals, first_found(self.files)
        keep = self.actuator.on_exit == "keep"
        text = f"{'`writebackctl observe`' if keep else 'exit'} restores {in_words(originals)}"
        if first is None or first == originals:
            return text
        return f"{text} (was {in_words(first)}: `writebackctl restore --first-found`)"

    def _pin(self, verb: str, args: Dict[str, Any], uid: int) -> Answer:
        if verb == "release":
            self.apply(Release(uid))
            log.info("released by uid %d", uid)
            return pin_json(None)
        pin, for_s = size_argument(args, "bytes"), seconds_argument(args, "for_s")
        if pin < LEAST_LIMIT_BYTES:
            raise RequestError(
                f"{pin} bytes: the kernel's minimum is {LEAST_LIMIT_BYTES}; write it with a unit,"
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
        log.info("pinned to %s%s by uid %d", formats.size(pin), lasts, uid)
        memory, off = self.state.memory, self.state.off
        waits = memory.mode is Mode.OBSERVE or memory.yielded is not None
        lines = ["takes effect after `writebackctl enforce`"] if waits else []
        if off is not None:
            lines.append(f"takes effect when {off} is removed")
        return pin_json(pin, lines, for_s)
