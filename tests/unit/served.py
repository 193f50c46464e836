# SPDX-License-Identifier: GPL-2.0-or-later
"""The real control server in a thread, with answers of a test's own."""

from __future__ import annotations

import selectors
import socket
import threading
from pathlib import Path
from typing import Any, Callable, Dict

from writebackd.report.control_server import ControlServer


class Served:
    """Answers until `stop`."""

    def __init__(
        self, runtime_dir: Path, answer: Callable[[str, Dict[str, Any], int], Any]
    ) -> None:
        self._end, self._wake = socket.socketpair()
        self._server = ControlServer(runtime_dir / "control.sock", answer)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            self._server.register(selector)
            selector.register(self._end, selectors.EVENT_READ)
            while True:
                for key, mask in selector.select():
                    if key.fileobj is self._end:
                        self._server.close()
                        return
                    self._server.service(key, mask)

    def stop(self) -> None:
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._end.close()
