# SPDX-License-Identifier: GPL-2.0-or-later
"""The kill switch: a file that makes the daemon restore the originals and stop writing.

For whoever has no time to find out how to talk to it, and for tools that only know how to make a
file.  While one is there, in whatever form, nothing is written; when it is gone the daemon goes on.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Optional

from writebackd.kernel.files import KernelFiles
from writebackd.paths import OFF, OFF_ON_DISK, RUNTIME_DIR

# The file in /etc is looked at so often.
_LOOK_S = 1.0


class KillSwitch:
    """Only files in memory are looked at by the loop itself.

    /etc may lie on the disk that hangs, and even a look at a file may then wait:
    a thread looks, and while it waits what it saw last holds.
    """

    def __init__(self, in_memory: Path, on_disk: Path, *also_in_memory: Path) -> None:
        """Look at each once, before anything is written, and start the thread."""
        self._in_memory = {path: _is_there(path, True) for path in (in_memory, *also_in_memory)}
        self._on_disk = on_disk
        self._closing = threading.Event()
        self._seen_on_disk = _is_there(on_disk, True)
        threading.Thread(target=self._look, name="off", daemon=True).start()

    def file(self) -> Optional[Path]:
        """The file that says so; None when all are gone.  Waits for no disk."""
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
    """That of the host, whatever `runtime_dir` is: who makes the file in a hurry knows no other."""
    in_memory = files.path(str(RUNTIME_DIR / OFF))
    return KillSwitch(runtime_dir / OFF, files.path(OFF_ON_DISK), in_memory)


def _is_there(path: Path, before: bool) -> bool:
    """Whether there is such a file; where the disk does not tell, it is as it was `before`."""
    try:
        # A link is a file that is there: what it points at may be on another disk.
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return before
    return True
