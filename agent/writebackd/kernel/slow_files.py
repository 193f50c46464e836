# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads kernel files that may wait for a lock, each in a thread, with a short time limit."""

from __future__ import annotations

import errno
import os
import threading
from typing import Dict, List, Union

from writebackd.kernel.files import KernelFiles

# A read takes 20 us, or as long as the lock's holder waits for a hung disk.
_READ_S = 0.05
# While one hangs the others are waited for this long, so that a whole shelf costs little.
_READ_MORE_S = 0.002
# Each keeps a thread, of which the unit has few (TasksMax=).
_MOST_HANGING = 8

_hanging: Dict[str, threading.Thread] = {}  # reads that have not come back, by directory


def read(files: KernelFiles, directory: str, name: str) -> str:
    """The content of `name` in `directory`, whose files share a lock.

    Raises OSError; EBUSY if the read takes too long.
    """
    for home in [home for home, thread in _hanging.items() if not thread.is_alive()]:
        del _hanging[home]
    home, file = str(files.path(directory)), f"{directory}/{name}"
    if home not in _hanging and len(_hanging) < _MOST_HANGING:
        results: List[Union[str, BaseException]] = []

        def work() -> None:
            try:
                results.append(files.read(file))
            except BaseException as error:
                results.append(error)

        thread = threading.Thread(target=work, name="read", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # TasksMax= of the unit
            raise OSError(errno.EAGAIN, str(error), file) from None
        thread.join(_READ_MORE_S if _hanging else _READ_S)
        for result in results:
            if isinstance(result, str):
                return result
            raise result
        _hanging[home] = thread
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), file)
