# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe opened again: a filesystem came whose module had not been there to hook.

Opening takes 1 to 3 s, and closing waits for the kernel hook by hook: threads do both.
"""

from __future__ import annotations

import logging
import threading
from typing import Callable, Optional, Sequence, Set

from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.probe import BpfProbe, Probe
from writebackd.model import Device

log = logging.getLogger(__name__)


class Reprobe:
    """Opens the probe again where that may show more."""

    def __init__(self, open_again: Callable[[], Probe], devices: Sequence[Device]) -> None:
        """`devices` are those that the probe was opened for."""
        self._open = open_again
        self._devices = devices
        self._tried: Set[str] = set()  # filesystems that the probe was opened anew for
        self._thread: Optional[threading.Thread] = None
        self._renewed: Optional[Probe] = None  # by the thread

    def better(self, probe: Probe, devices: Sequence[Device]) -> Probe:
        """The same probe, or one that sees more; then `probe` is being closed. Never waits."""
        if self._thread is not None:
            if self._thread.is_alive():
                return probe
            self._thread = None
            return self._instead_of(probe)
        if devices is self._devices:
            return probe
        self._devices = devices
        types = {kind for device in devices for _, kind, _ in device.filesystems}
        if not probe.covers(sorted(types - self._tried)):
            self._tried |= types  # what is refused now will be refused again
            log.info("opening the probe again for %s", ", ".join(sorted(types)))
            self._thread = _start(self._open_again)
        return probe

    def join(self, timeout_s: float) -> None:
        """Until the probe that is being opened is open, or the time is over."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _open_again(self) -> None:
        try:
            self._renewed = self._open()
        except (OSError, BpfError) as error:
            log.error("the probe stays as it was: %s", error)

    def _instead_of(self, probe: Probe) -> Probe:
        renewed, self._renewed = self._renewed, None
        if not isinstance(renewed, BpfProbe):
            return probe  # better what we have than nothing
        if isinstance(probe, BpfProbe):
            try:
                renewed.go_on_from(probe)
            except BpfError as error:
                log.warning("syncs that are stuck are not seen any more: %s", error)
        _start(probe.close)
        return renewed


def _start(work: Callable[[], None]) -> Optional[threading.Thread]:
    thread = threading.Thread(target=work, name="probe", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # TasksMax= of the unit
        log.error("no thread for the probe: %s", error)
        return None
    return thread
