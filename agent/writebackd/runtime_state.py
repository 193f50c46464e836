# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's state between ticks; only daemon.py writes the memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Tuple

from writebackd.actuate.ledger import boot_id, is_other_boot
from writebackd.alerts.detector_memory import AlertMemory
from writebackd.kernel.files import KernelFiles
from writebackd.report.snapshot import Draining, Pinned, Snapshot, Totals
from writebackd.safe_files import load_json, save_json
from writebackd.types.codec import pack, unpack
from writebackd.types.core_memory import Memory, Retry
from writebackd.types.decision import Mode
from writebackd.types.levers import Action, Intrusion

log = logging.getLogger(__name__)


@dataclass
class RuntimeState:
    """The current state; only the event loop's thread uses it."""

    memory: Memory
    alerts: AlertMemory
    snapshot: Optional[Snapshot] = None  # what every answer is made of; None: nothing measured yet
    totals: Totals = field(default_factory=Totals)
    problem: Optional[str] = None  # why the last tick was not whole
    off: Optional[Path] = None  # the kill-switch file that is there
    pinned: Optional[Pinned] = None
    draining: Optional[Draining] = None
    mode_by_verb: Optional[Mode] = None  # which neither a policy nor a restart overrules
    mode_after_trial: Mode = Mode.ENFORCE  # of the trial that is on, or was the last
    trial_just_ended: bool = False  # its limit still stands, and is never kept on exit

    def count_writes(self, actions: Tuple[Action, ...]) -> None:
        self.totals = self.totals.acted(actions)


@dataclass(frozen=True)
class Orders:
    """State that survives a restart, until a command or a reboot ends it."""

    mode: Optional[Mode] = None
    pin_bytes: Optional[int] = None
    pinned: Optional[Tuple[int, float, Optional[float]]] = None  # as Pinned
    yielded: Optional[str] = None
    intrusions: Tuple[Intrusion, ...] = ()
    retry: Optional[Retry] = None
    retried_s: Tuple[float, ...] = ()

    @classmethod
    def of(cls, state: RuntimeState) -> Orders:
        memory, pinned = state.memory, state.pinned
        return cls(
            state.mode_by_verb, memory.pin_bytes if pinned else None,
            pinned and (pinned.uid, pinned.wall_s, pinned.until_s),
            memory.yielded, memory.intrusions, memory.retry, memory.retried_s,
        )

    def state(self, mode: Mode, alerts: AlertMemory) -> RuntimeState:
        """The initial state of a daemon; `mode` is that of its options."""
        memory = Memory(
            mode=self.mode or mode, pin_bytes=self.pin_bytes, yielded=self.yielded,
            intrusions=self.intrusions, retry=self.retry, retried_s=self.retried_s,
        )
        pinned = Pinned(*self.pinned) if self.pinned else None
        return RuntimeState(memory, alerts, pinned=pinned, mode_by_verb=self.mode)


class OrdersFile:
    """Orders in the runtime directory; `saved` is the content of the file."""

    def __init__(self, path: Path, files: KernelFiles) -> None:
        """Read the file; one of another boot is ignored, and a damaged one logged."""
        self._path, self._files = path, files
        self._failed = False
        self.saved = Orders()
        try:
            body = load_json(path)
            if body is not None and not is_other_boot(files, body["boot_id"]):
                self.saved = unpack(Orders, body["orders"])
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s: not used, modes and pins from before are lost: %s", path, error)

    def save(self, state: RuntimeState) -> None:
        """Save the orders if they changed; a failure is logged once."""
        now = Orders.of(state)
        if now == self.saved:
            return
        body = {"boot_id": boot_id(self._files), "orders": pack(now)}
        try:
            save_json(self._path, body)
        except OSError as error:
            if not self._failed:
                log.error("%s: a restart will not know mode, yield and pin: %s", self._path, error)
            self._failed = True
        else:
            self.saved, self._failed = now, False
