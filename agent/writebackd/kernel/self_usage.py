# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU time and memory that the daemon uses."""

from __future__ import annotations

import logging
import time
from typing import Optional, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import page_size

log = logging.getLogger(__name__)


class Usage:
    """Counts from the first `read` on: loading and trying BPF programs is not the running cost."""

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._cpu_at_start: Optional[float] = None
        self._resident = 0

    def read(self) -> Tuple[float, int]:
        """CPU seconds since the first call, and resident bytes; the last known on error."""
        spent = time.process_time()
        if self._cpu_at_start is None:
            self._cpu_at_start = spent
        try:
            self._resident = int(self._files.read("/proc/self/statm").split()[1]) * page_size()
        except (OSError, ValueError, IndexError) as error:
            log.debug("own usage: %s", error)
        return spent - self._cpu_at_start, self._resident
