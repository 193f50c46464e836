# SPDX-License-Identifier: GPL-2.0-or-later
"""Database servers of a load's own: data on the modelled disk, a socket, no port, no service."""

from __future__ import annotations

import abc
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, List, Mapping, Optional

from ..remains import RigError
from .base import Place
from .own import end
from .tool import Tool

READY_S = 60  # an emulated machine is slow, and recovery may wait for a flooded disk


class Database(Tool):
    """A tool that measures a server, which runs from `prepare` to `stop`."""

    QUICK = signal.SIGTERM  # ends the server in good order, without waiting for clients

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        super().__init__(place, options)
        self._server: Optional[subprocess.Popen[bytes]] = None

    @abc.abstractmethod
    def server(self, durable: bool) -> List[str]:
        """Command line of the server; not durable: for quick loading of data."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether it takes connections."""

    @abc.abstractmethod
    def make(self) -> None:
        """What has to be there before the server can run."""

    @abc.abstractmethod
    def fill(self) -> None:
        """Load the data into the running server."""

    @property
    def data(self) -> Path:
        return self.place.directory / "data"

    def prepare(self) -> None:
        self.make()
        self._serve(durable=False)
        self.fill()
        # It comes back as after a boot: nothing to recover, nothing left to write.
        assert self._server is not None
        self._server.send_signal(self.QUICK)
        try:
            self._server.wait(READY_S)
        except subprocess.TimeoutExpired:
            raise RigError(f"{self.KIND}: the server does not end: {self._said()}") from None
        self._serve(durable=True)

    def start(self) -> None:
        if self._server is None:
            self._serve(durable=True)

    def stop(self) -> None:
        super().stop()
        if self._server is not None:
            self.end_server(self._server)
            self._server = None

    def end_server(self, server: subprocess.Popen[bytes]) -> None:
        """At once: its data is not needed any more."""
        end(server, self.KIND)

    def _serve(self, durable: bool) -> None:
        with open(self.place.runtime / "server.log", "ab") as log:
            self._server = self.place.spawn(self.server(durable), stdout=log, stderr=log,
                                            cwd=self.place.runtime)
        deadline = time.monotonic() + READY_S
        while not self.ready():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RigError(f"{self.KIND}: the server does not start: {self._said()}")
            time.sleep(0.05)

    def server_said(self) -> str:
        return (self.place.runtime / "server.log").read_text(errors="replace")

    def _said(self) -> str:
        return self.server_said().strip()[-800:] or "it said nothing"
