# SPDX-License-Identifier: GPL-2.0-or-later
"""The kill switch: a file that makes the daemon restore the originals and stop writing.

For emergencies, and for tools that can only create a file.  While such a file exists, of any type,
nothing is written; after its removal the daemon continues.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Optional

from writebackd.kernel.files import KernelFiles
from writebackd.paths import OFF, OFF_ON_DISK, RUNTIME_DIR

# Seconds between checks of the file in /etc.
_LOOK_S = 1.0


class KillSwitch:
    """The loop itself checks only files in memory.

    /etc may be on a disk that hangs, where even stat(2) may block.  So a thread checks it, and
    while it blocks the last result is used.
    """

    def __init__(self, in_memory: Path, on_disk: Path, *also_in_memory: Path) -> None:
        """Check each file once before anything is written, and start the thread."""
        self._in_memory = {path: _is_there(path, True) for path in (in_memory, *also_in_memory)}
        self._on_disk = on_disk
        self._closing = threading.Event()
        self._seen_on_disk = _is_there(on_disk, True)
        threading.Thread(target=self._look, name="off", daemon=True).start()

    def file(self) -> Optional[Path]:
        """The existing kill-switch file; None if there is none.  Never waits for a disk."""
        for path, seen in self._in_memory.items():
            self._in_memory[path] = _is_there(path, seen)
        there = [path for path, seen in self._in_memory.items() if seen]
        there += [self._on_disk] * self._seen_on_disk
        return there[0] if there else None

    def close(self) -> None:
        self._closing.set()

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_S):
            self._seen_on_disk = _is_there(self._on_disk, self._seen_on_disk)


def of_host(files: KernelFiles, runtime_dir: Path) -> KillSwitch:
    """The host's file, whatever `runtime_dir` is: in an emergency people know no other."""
    in_memory = files.path(str(RUNTIME_DIR / OFF))
    return KillSwitch(runtime_dir / OFF, files.path(OFF_ON_DISK), in_memory)


def _is_there(path: Path, before: bool) -> bool:
    """Whether the file exists; `before` if the disk gives an error."""
    try:
        # A symbolic link counts as a file: its target may be on another disk.
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return before
    return True
