# SPDX-License-Identifier: GPL-2.0-or-later
"""What the control socket answers, and its commands as values that the daemon applies.

A command is applied and then answered when it arrives, between two ticks.  The next tick may be
10 s away (--interval), and a client waits for 5.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

from writebackd import formats
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.executor import Actions
from writebackd.actuate.ledger import first_found
from writebackd.actuate.outcome import describe_action
from writebackd.control.decide import released
from writebackd.estimate.learned import forgotten
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import file_of
from writebackd.kernel.vm import in_words, read_state
from writebackd.report.alert_answers import alert_answer
from writebackd.report.answer_parts import verify_json
from writebackd.report.attribution import for_user
from writebackd.report.control_server import (
    RequestError,
    names_argument,
    seconds_argument,
    size_argument,
    text_argument,
)
from writebackd.report.device_answers import devices_json, find_devices
from writebackd.report.history_schema import Event
from writebackd.report.learned_store import LearnedStore
from writebackd.report.metrics import CONTENT_TYPES, OPENMETRICS, render
from writebackd.report.snapshot import Draining, Pinned, Snapshot
from writebackd.report.status_answer import status_json, top_json, why_json
from writebackd.runtime_state import RuntimeState
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode

if TYPE_CHECKING:
    from writebackd.report import answers

log = logging.getLogger(__name__)

Answer = Mapping[str, Any]  # see report/answers.py

# Two pages: below it the kernel answers EINVAL (mm/page-writeback.c).
LEAST_LIMIT_BYTES = 2 * os.sysconf("SC_PAGESIZE")
# The client of a drain renews it every second, and may be killed.
DRAIN_LEASE_S = 10.0


@dataclass(frozen=True)
class Command:
    """A change of memory and state, and the event that reports it."""

    kind: str  # of the event
    text: str = ""
    disturbs_trial: Optional[str] = None  # why it ends a trial; None: it does not
    memory: Mapping[str, Any] = field(default_factory=dict)  # new values of its fields
    state: Mapping[str, Any] = field(default_factory=dict)  # the same of RuntimeState
    mode: Optional[Mode] = None  # the new one
    forgets: Optional[str] = None  # the device whose learned values are dropped

    def applied(self, memory: Memory) -> Memory:
        if self.mode is not None:
            memory = released(memory)
        return forgotten(memory, self.forgets) if self.forgets else replace(memory, **self.memory)

    def event(self, wall_s: float) -> Event:
        return Event(wall_s, self.kind, device=self.forgets, text=self.text)


# A limit adopted from an earlier run is held no longer.
_AT_ONCE = {"hold_until_s": float("-inf")}


def set_mode(mode: Mode, by_verb: bool = True) -> Command:
    """Change the mode; not `by_verb`: a policy or a trial wants it, and the next may differ."""
    return Command(
        "mode", mode.value, f"{mode.value} was asked for" if by_verb else None,
        {"mode": mode, "yielded": None, "intrusions": (), "retry": None},
        {"mode_by_verb": mode} if by_verb else {}, mode,
    )  # fmt: skip


def pin(limit_bytes: int, pinned: Pinned) -> Command:
    """Hold the limit at this many bytes until released, or until a time."""
    return Command(
        "pin", f"pinned to {formats.size(limit_bytes)} by uid {pinned.uid}", "pinned",
        {"pin_bytes": limit_bytes, **_AT_ONCE}, {"pinned": pinned},
    )  # fmt: skip


def end_drain(why: str) -> Command:
    state = {"draining": None}
    return Command("drain", f"drain ended {why}", memory={"draining": ()}, state=state)


def overdue(state: RuntimeState, now_s: float) -> Iterator[Command]:
    """Commands that end an expired pin, or a drain whose client is gone."""
    def is_over(order: Union[Pinned, Draining, None]) -> bool:
        return order is not None and order.until_s is not None and now_s >= order.until_s

    if is_over(state.pinned):
        log.info("pin expired")
        unpinned = {"pin_bytes": None, **_AT_ONCE}
        text = "released when the pin expired"
        yield Command("pin", text, memory=unpinned, state={"pinned": None})
    if is_over(state.draining):
        log.info("drain ended: its client is gone")
        yield end_drain("since its client is gone")


def metrics_answer(snapshot: Snapshot, form: Optional[str]) -> answers.MetricsAnswer:
    form = form or OPENMETRICS
    if form not in CONTENT_TYPES:
        raise RequestError(f"format is {' or '.join(CONTENT_TYPES)}")
    return {"content_type": CONTENT_TYPES[form], "text": render(snapshot, form)}


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
            "metrics": lambda: metrics_answer(shown, text_argument(args, "format")),
        }
        if verb not in answers:
            raise RequestError(f"unknown verb {verb!r}")
        return answers[verb]()

    def _forget(
        self, snapshot: Snapshot, args: Dict[str, Any], uid: int
    ) -> answers.ForgetAnswer:
        wanted = text_argument(args, "device")
        if wanted is None:
            raise RequestError("forget needs a device: `writebackctl devices` lists them")
        names = [seen.device.name for seen in find_devices(snapshot, wanted)]
        if len(names) > 1:
            raise RequestError(f"{wanted!r} may be {' or '.join(names)}: name one of these")
        if names[0] not in self.state.memory.devices or not self.learned.was_read:
            raise RequestError("learned values are still being read: try again in a second", 1)
        self.apply(Command("forget", forgets=names[0]))
        log.info("learned values of %s dropped by uid %d", names[0], uid)
        return {"device": names[0], "lines": ["learned again from the next flood and fsync"]}

    def _drain(self, snapshot: Snapshot, args: Dict[str, Any], uid: int) -> answers.DrainState:
        """`start`, then `renew` until `end` or `hold`; without renewal a drain ends by itself."""
        order = text_argument(args, "order")
        if order == "start":
            return self._start_drain(snapshot, args, uid)
        if order not in ("renew", "hold", "end"):
            raise RequestError("order is start, renew, hold or end")
        number, now = size_argument(args, "number", of=""), self.state.draining
        if now is None or now.number != number:
            # Released, or another one has taken its place.
            return {"number": number, "devices": [], "lowered": False, "lines": []}
        if order == "end":
            self.apply(end_drain(f"by uid {uid}"))
        elif order == "hold":
            self.state.draining = now._replace(until_s=None)
            log.info("drain held by uid %d", uid)
        elif now.until_s is not None:
            self.state.draining = now._replace(until_s=self.now() + DRAIN_LEASE_S)
        return self._draining(number)

    def _start_drain(
        self, snapshot: Snapshot, args: Dict[str, Any], uid: int
    ) -> answers.DrainState:
        wanted = names_argument(args, "devices")
        chosen = {
            seen.device.name: seen
            for word in (wanted or (None,)) for seen in find_devices(snapshot, word)
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
        text = f"drain of {', '.join(chosen)} by uid {uid}"
        memory = {"draining": tuple(chosen), **_AT_ONCE}
        self.apply(Command("drain", text, "drained", memory, {"draining": draining}))
        log.info("%s", text)
        return self._draining(draining.number)

    def _draining(self, number: int) -> answers.DrainState:
        """Which devices are drained, and why that does not lower the limits if it does not."""
        memory, off = self.state.memory, self.state.off
        lines: List[str] = []
        if off is not None:
            lines.append(f"limits stay as they are: {off} exists")
        elif memory.mode is Mode.OBSERVE or memory.yielded is not None:
            lines.append("limits stay as they are until `writebackctl enforce`")
        elif memory.pin_bytes is not None:
            lines.append(f"limits stay pinned to {formats.size(memory.pin_bytes)}")
        devices = list(memory.draining)
        return {
            "number": number, "devices": devices, "lowered": bool(devices) and not lines,
            "lines": lines if devices else [],
        }  # fmt: skip

    def _reset_stats(self, uid: int) -> answers.ResetStatsAnswer:
        totals = self.state.totals.zeroed(time.time())
        self.apply(Command("reset", f"counters zeroed by uid {uid}", state={"totals": totals}))
        log.info("counters zeroed by uid %d", uid)
        lines = ["metrics, and the counters of `writebackctl --json status`; history is kept"]
        return {"reset_s": totals.reset_s, "lines": lines}

    def _verify(self, snapshot: Snapshot) -> answers.VerifyAnswer:
        vm, decision, memory = read_state(self.files), snapshot.decision, self.state.memory
        written = None
        if not self.actuator.dry_run and memory.limit_bytes is not None:
            if decision.limit_bytes is not None and decision.background_bytes is not None:
                written = decision.limit_bytes, decision.background_bytes
        differing = [
            (str(lever), file_of(lever), ours, current)
            for lever, ours, current in self.actuator.levers.differing()
        ]
        held = self.actuator.levers.held(vm.threshold_bytes)
        foreign = snapshot.sample.foreign
        return verify_json(vm, written, foreign, memory.yielded, held, differing)

    def _mode(self, args: Dict[str, Any], uid: int) -> answers.ModeAnswer:
        try:
            mode = Mode(text_argument(args, "mode"))
        except ValueError:
            raise RequestError("mode is observe or enforce") from None
        try:
            actions = self.apply(set_mode(mode))
        except (OSError, ValueError) as error:
            raise RequestError(f"cannot read the limits: {error}", 1) from None
        log.info("mode %s by uid %d", mode.value, uid)
        lines = [describe_action(action) for action in actions]
        if mode is Mode.ENFORCE:
            lines.append(self._restores())
        off = self.state.off
        if mode is Mode.ENFORCE and off is not None:
            lines.append(f"takes effect when {off} is removed")
        good = all(action.ok for action in actions)
        return {"mode": mode.value, "good": good, "lines": lines}

    def _restores(self) -> str:
        """What exit restores: not the first original limits if somebody has changed them."""
        originals, first = self.actuator.originals, first_found(self.files)
        keep = self.actuator.on_exit == "keep"
        text = f"{'`writebackctl observe`' if keep else 'exit'} restores {in_words(originals)}"
        if first is None or first == originals:
            return text
        return f"{text} (was {in_words(first)}: `writebackctl restore --first-found`)"

    def _pin(self, verb: str, args: Dict[str, Any], uid: int) -> answers.PinAnswer:
        if verb == "release":
            self.apply(Command(
                "pin", f"released by uid {uid}", "released",
                {"pin_bytes": None, "draining": (), **_AT_ONCE},
                {"pinned": None, "draining": None},
            ))  # fmt: skip
            log.info("released by uid %d", uid)
            return {"pin_bytes": None, "for_s": None, "lines": []}
        wanted, for_s = size_argument(args, "bytes"), seconds_argument(args, "for_s")
        if wanted < LEAST_LIMIT_BYTES:
            raise RequestError(
                f"{wanted} bytes: the kernel's minimum is {LEAST_LIMIT_BYTES}; write it with a"
                " unit, like 15M"
            )
        snapshot = self.state.snapshot
        memory_bytes = snapshot.sample.host.memory_bytes if snapshot is not None else 0
        if 0 < memory_bytes < wanted:
            raise RequestError(
                f"{formats.size(wanted)} is more than the {formats.size(memory_bytes)} of memory:"
                " such a limit throttles nothing"
            )
        until_s = self.now() + for_s if for_s is not None else None
        self.apply(pin(wanted, Pinned(uid, time.time(), until_s)))
        lasts = "" if for_s is None else f" for {formats.duration(for_s)}"
        log.info("pinned to %s%s by uid %d", formats.size(wanted), lasts, uid)
        memory, off = self.state.memory, self.state.off
        waits = memory.mode is Mode.OBSERVE or memory.yielded is not None
        lines = ["takes effect after `writebackctl enforce`"] if waits else []
        if off is not None:
            lines.append(f"takes effect when {off} is removed")
        return {"pin_bytes": wanted, "for_s": for_s, "lines": lines}
