# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe opened again: a filesystem came whose module had not been there to hook."""

from __future__ import annotations

import logging
from typing import Callable, Sequence, Set

from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.probe import Probe
from writebackd.model import Device

log = logging.getLogger(__name__)


class Reprobe:
    """Opens the probe again where that may show more."""

    def __init__(self, open_again: Callable[[], Probe]) -> None:
        self._open = open_again
        self._tried: Set[str] = set()  # filesystems that the probe was opened anew for

    def better(self, probe: Probe, devices: Sequence[Device]) -> Probe:
        """The same probe, or one that sees more; then `probe` is closed."""
        types = {kind for device in devices for _, kind, _ in device.filesystems}
        if probe.covers(sorted(types - self._tried)):
            return probe
        self._tried |= types  # what is refused now will be refused again
        log.info("opening the probe again for %s", ", ".join(sorted(types)))
        try:
            renewed = self._open()
        except (OSError, BpfError) as error:
            log.error("the probe stays as it was: %s", error)
            return probe
        if renewed.info().backend == "procfs":
            renewed.close()  # better what we have than nothing
            return probe
        probe.close()
        return renewed
