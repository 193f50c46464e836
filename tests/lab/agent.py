# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent as a user would start it, with no state from before, on devices of the lab."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Optional, Sequence, Type

from writebackd.actuate.lock import is_locked
from writebackd.cli.client import request
from writebackd.cli.exit_codes import CommandError
from writebackd.paths import runtime_dir_in_use
from writebackd.policy.load import DEFAULT_NAME

from .loads.base import Spawn
from .remains import RigError

BIN = Path(sys.executable).parent  # of the environment that the package is installed in


def refuse_second() -> None:
    """RigError where a daemon lives on this host: two would set the same limits."""
    directory = runtime_dir_in_use()
    if is_locked(directory):
        raise RigError(f"writebackd runs on this host ({directory}): stop it first "
                       "(sudo systemctl stop writebackd)")


class Agent:
    """`writebackd` on some devices; as a context manager it runs and answers inside."""

    START_S = 2  # what a start takes, for progress bars
    PATIENCE_S = 20

    def __init__(self, devices: Sequence[str], directory: Path, spawn: Spawn,
                 options: Sequence[str] = ()) -> None:
        """directory: where its state, its socket and its log are to be."""
        self.devices = devices
        self.options = options
        self.directory = directory
        self.runtime = directory / "agent"
        self.state = directory / "state"
        self.log = directory / "agent.log"
        self.spawn = spawn
        self._process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> None:
        """Does not wait until it answers."""
        daemon = BIN / "writebackd"
        if not daemon.exists():
            raise RigError(f"no {daemon}: run agent/setup.sh lab, then build/venv/bin/python")
        devices = [word for device in self.devices for word in ("--device", device)]
        with open(self.log, "wb") as log:
            self._process = self.spawn(
                [str(daemon), *devices, "--runtime-dir", str(self.runtime),
                 "--state-dir", str(self.state),
                 # Not the one that fits this host: figures are of default.conf.
                 "--policy", DEFAULT_NAME, *self.options],
                stdout=log, stderr=log)

    def wait(self) -> None:
        """Until it manages all of the devices; RigError with its log if it does not."""
        deadline = time.monotonic() + self.PATIENCE_S
        while not self._managed():
            if not self.alive() or time.monotonic() > deadline:
                raise RigError(f"writebackd did not take {', '.join(self.devices)}; it said: "
                               f"{self.log.read_text().strip()}")
            time.sleep(0.2)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self) -> None:
        """It puts the limits back before it ends; RigError when it does not end."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(self.PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RigError("writebackd did not end on SIGTERM") from None

    def __enter__(self) -> Agent:
        self.start()
        self.wait()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        try:
            self.stop()
        except RigError:
            if error is None:
                raise

    def status(self, patience_s: float = PATIENCE_S) -> Dict[str, Any]:
        """Its answer to `status --json`; RigError when there is none."""
        try:
            return request(self.runtime, "status", timeout_s=patience_s)
        except CommandError as error:
            raise RigError(f"writebackd: {error}") from None

    def enforce(self) -> None:
        """As `writebackctl enforce`, of one that observes."""
        try:
            request(self.runtime, "mode", {"mode": "enforce"})
        except CommandError as error:
            raise RigError(f"writebackd: {error}") from None

    def _managed(self) -> bool:
        try:
            devices = self.status().get("devices", [])
        except RigError:
            return False
        # On btrfs the device has another name than the disk that it lies on.
        managed = [device for device in devices if device["state"] != "excluded"]
        return len(managed) >= len(self.devices)
