# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent as a user would start it, with no state from before, on one device of the lab."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Optional, Sequence, Type

from .remains import RigError
from .rig import Rig

BIN = Path(sys.executable).parent  # of the environment that the package is installed in


class Agent:
    """A context manager: `writebackd` runs and answers inside it."""

    START_S = 2  # what a start takes, for progress bars
    PATIENCE_S = 20

    def __init__(self, rig: Rig, options: Sequence[str] = ()) -> None:
        self.rig = rig
        self.options = options
        self.runtime = rig.directory / "agent"
        self.log = rig.directory / "agent.log"

    def __enter__(self) -> Agent:
        daemon = BIN / "writebackd"
        if not daemon.exists():
            raise RigError(f"no {daemon}: run agent/setup.sh lab, then build/venv/bin/python")
        with open(self.log, "wb") as log:
            self._process = self.rig.spawn(
                [str(daemon), "--device", self.rig.device, "--runtime-dir", str(self.runtime),
                 "--state-dir", str(self.rig.directory / "state"), *self.options],
                stdout=log, stderr=log)
        deadline = time.monotonic() + self.PATIENCE_S
        while not self._managed():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RigError(f"writebackd did not take {self.rig.device}; it said: "
                               f"{self.log.read_text().strip()}")
            time.sleep(0.2)
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self._process.terminate()
        try:
            self._process.wait(self.PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            if error is None:
                raise RigError("writebackd did not end on SIGTERM") from None

    def status(self) -> Dict[str, Any]:
        """Its answer to `status --json`; RigError when there is none."""
        done = subprocess.run([str(BIN / "writebackctl"), "--json", "--runtime-dir",
                               str(self.runtime), "status"], capture_output=True, text=True)
        if done.returncode:
            raise RigError(f"writebackctl status: {(done.stderr or done.stdout).strip()}")
        answer: Dict[str, Any] = json.loads(done.stdout)
        return answer

    def _managed(self) -> bool:
        try:
            devices = self.status().get("devices", [])
        except RigError:
            return False
        return any(device.get("name") == self.rig.device for device in devices)
