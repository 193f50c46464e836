# SPDX-License-Identifier: GPL-2.0-or-later
"""Queue settings of a disk: /sys/block/X/queue/{nr_requests,max_sectors_kb}.

A write freezes the queue, which waits for every request in flight: it is for a
child (child_process.py), never for the loop.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Dict, List, Union

from writebackd.kernel.child_process import Work, write_in_child
from writebackd.kernel.files import KernelFiles

NAMES = ("nr_requests", "max_sectors_kb")
# BLKDEV_MIN_RQ: the kernel makes 4 of anything below it.
LEAST_REQUESTS = 4
# A read takes 20 us, or as long as a foreign write that waits for a disk that hangs.
_READ_S = 0.05
# While one hangs the others are waited for this long, so that a whole shelf costs little.
_READ_MORE_S = 0.002
# Each keeps a thread, of which the unit has few (TasksMax=).
_MOST_HANGING = 8

_hanging: Dict[str, threading.Thread] = {}  # reads that have not come back, by directory


def directory(disk: str) -> str:
    return f"/sys/block/{disk}/queue"


def path(disk: str, name: str) -> str:
    return f"{directory(disk)}/{name}"


def read(files: KernelFiles, disk: str, name: str) -> str:
    """The value, read by a thread. Raises OSError, EBUSY among it where the kernel keeps it."""
    for home in [home for home, thread in _hanging.items() if not thread.is_alive()]:
        del _hanging[home]
    home, file = str(files.path(directory(disk))), path(disk, name)
    if home not in _hanging and len(_hanging) < _MOST_HANGING:
        found: List[Union[str, BaseException]] = []

        def work() -> None:
            try:
                found.append(files.read(file))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=work, name="queue", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # TasksMax= of the unit
            raise OSError(errno.EAGAIN, str(error), file) from None
        thread.join(_READ_MORE_S if _hanging else _READ_S)
        for result in found:
            if isinstance(result, str):
                return result
            raise result
        _hanging[home] = thread
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), file)


def write(files: KernelFiles, disk: str, name: str, text: str) -> Work:
    """The write, as work for a child."""
    return write_in_child(str(files.path(path(disk, name))), text)
