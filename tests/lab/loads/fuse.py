# SPDX-License-Identifier: GPL-2.0-or-later
"""A buffered writer behind a FUSE filesystem: the bystander that tiny dirty limits hurt first.

The kernel gives a FUSE device 1 % of the dirty limit, strictly.  fuse-overlayfs has
the kernel's writeback cache on, so what is written to it is dirty memory of its
own device before it goes to the modelled disk below.  Without noxattrs each write
would ask the server for an attribute and hide that.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import Any, ClassVar, Mapping, Optional

from ..remains import RigError, run
from .base import Place
from .own import end
from .writers import Writer

READY_S = 10


class Fuse(Writer):
    KIND = "fuse"
    TOOLS: ClassVar[Mapping[str, str]] = {"fuse-overlayfs": "fuse-overlayfs",
                                          "fusermount3": "fuse3"}

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        super().__init__(place, options)
        self.server: Optional[subprocess.Popen[bytes]] = None

    @property
    def mountpoint(self) -> Path:
        return self.place.runtime / "fuse"

    @property
    def path(self) -> Path:
        return (self.mountpoint if self.server else self.place.directory / "upper") / "table"

    def prepare(self) -> None:
        for name in ("lower", "upper", "work"):
            (self.place.directory / name).mkdir()
        self.mountpoint.mkdir()
        super().prepare()

    def start(self) -> None:
        below = self.place.directory
        log = self.place.runtime / "fuse.log"
        with open(log, "wb") as output:
            self.server = self.place.spawn(
                ["fuse-overlayfs", "-f", "-o", f"lowerdir={below}/lower,upperdir={below}/upper,"
                 f"workdir={below}/work,writeback=1,noxattrs=1", str(self.mountpoint)],
                stdout=output, stderr=output)
        deadline = time.monotonic() + READY_S
        while not self.mountpoint.is_mount():
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise RigError("fuse-overlayfs did not mount: "
                               f"{log.read_text().strip() or 'it said nothing'}")
            time.sleep(0.02)
        super().start()

    def stop(self) -> None:
        """The server goes first, and its dirty pages with it; nothing waits for the disk then."""
        if self.server is not None:
            with contextlib.suppress(ProcessLookupError):
                self.server.kill()
        super().stop()
        if self.server is not None:
            end(self.server, self.KIND)
            self.server = None
            run("umount", str(self.mountpoint))
