# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens the probe again when a filesystem is mounted that was not hooked.

Opening takes 1 to 3 s, and closing waits for the kernel at each hook, so threads do both.
"""

from __future__ import annotations

import logging
import threading
from typing import Callable, Optional, Sequence, Set

from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.probe import BpfProbe, Probe
from writebackd.types.storage import Device

log = logging.getLogger(__name__)


class Reprobe:
    """Reopens the probe if that may show more."""

    def __init__(self, open_again: Callable[[], Probe], devices: Sequence[Device]) -> None:
        """`devices` are those for which the probe was opened."""
        self._open = open_again
        self._devices = devices
        self._tried: Set[str] = set()  # filesystems that the probe was opened anew for
        self._thread: Optional[threading.Thread] = None
        self._renewed: Optional[Probe] = None  # by the thread

    def better(self, probe: Probe, devices: Sequence[Device]) -> Probe:
        """The same probe, or a better one, while `probe` is being closed. Never waits.

        Call it before reading a tick: the old probe reads that tick, the new one all later ones.
        """
        if self._thread is not None:
            if not self._thread.is_alive():
                self._thread = None
                self._begin_after(probe)
            return probe
        if self._renewed is not None:
            renewed, self._renewed = self._renewed, None
            _start(probe.close)
            return renewed
        if devices is self._devices:
            return probe
        self._devices = devices
        types = {kind for device in devices for _, kind, _ in device.filesystems}
        self._tried &= types  # what is mounted again later may have lost its hooks meanwhile
        if not probe.covers(sorted(types - self._tried)):
            self._tried |= types  # what is refused now will be refused again
            log.info("reopening the probe for %s", ", ".join(sorted(types)))
            self._thread = _start(self._open_again)
        return probe

    def join(self, timeout_s: float) -> None:
        """Wait until the probe being opened is open, or the time is over."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _open_again(self) -> None:
        try:
            self._renewed = self._open()
        except (OSError, BpfError) as error:
            log.error("probe not reopened: %s", error)

    def _begin_after(self, probe: Probe) -> None:
        """Discard what the new probe has read so far, except the stuck syncs of `probe`."""
        renewed = self._renewed
        if not isinstance(renewed, BpfProbe):
            self._renewed = None  # better what we have than nothing
            return
        try:
            if isinstance(probe, BpfProbe):
                renewed.go_on_from(probe)
            renewed.read()
        except BpfError as error:
            log.warning("the probe opened again may miss stuck syncs, or count twice: %s", error)


def _start(work: Callable[[], None]) -> Optional[threading.Thread]:
    thread = threading.Thread(target=work, name="probe", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # TasksMax= of the unit
        log.error("no thread for the probe: %s", error)
        return None
    return thread
