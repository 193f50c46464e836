# SPDX-License-Identifier: GPL-2.0-or-later
"""A host without a kernel, and the daemon on it, one tick at a time."""

from __future__ import annotations

import gc
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from fake_sysfs import SATA, FakeSysfs
from fake_vm import DEFAULT, SYSCTL, FakeVm
from writebackd import daemon as daemon_module
from writebackd import host_monitor
from writebackd.daemon import Daemon, Options
from writebackd.kernel.map_readers import Known, Reading, unknown
from writebackd.policy import load_policy
from writebackd.types.decision import Mode
from writebackd.types.levers import VmLimits
from writebackd.types.samples import ProbeInfo

# Those that the fake kernel computes; the rest are files below the root.
COMPUTED = (SYSCTL, "/proc/vmstat", "/proc/meminfo", "/proc/sys/kernel", "/sys/devices/system")
COUNTERS = "100 0 3000 40 500 0 {sectors} 80 0 {busy} 1000 0 0 0 0 0 0"
# The daemon's own settings of the collector are not for the process of the tests.
_NO_GC = ("freeze", "set_threshold")


class FakeHost(FakeVm):
    """The fake kernel's limits, and everything else from a directory.

    `raw[name]` is what a file has instead.
    """

    def __init__(self, root: Path, limits: VmLimits = DEFAULT) -> None:
        super().__init__(limits)
        root.mkdir(parents=True, exist_ok=True)
        self.tree = FakeSysfs(root)
        self.root, self._prefix = root, str(root)
        self.raw: Dict[str, bytes] = {}
        self.tree.disk("sda", "8:0", SATA, rotational=True, diskseq=1)
        self.tree.partition("sda", "sda1", "8:1")
        self.tree.mount("8:1", "ext4", "/dev/sda1", "/srv")
        self.written = 0
        self.flow(0)

    def flow(self, size: int) -> None:
        """The disk has written so many bytes more."""
        self.written += size
        line = COUNTERS.format(sectors=self.written // 512, busy=self.written >> 20)
        self.tree.text("/proc/diskstats", f"   8       0 sda {line}\n   8       1 sda1 {line}")

    def read(self, name: str) -> str:
        if name in self.raw and name not in self.errors:
            return self.raw[name].decode("utf-8", "surrogateescape").strip()
        if name.startswith(COMPUTED) or name in self.errors:
            return super().read(name)
        return super(FakeVm, self).read(name)

    def write(self, name: str, value: str) -> None:
        if name.startswith(COMPUTED):
            super().write(name, value)
        else:
            super(FakeVm, self).write(name, value)


class FakeProbe:
    """Gives the readings it was handed; an exception among them is raised."""

    def __init__(self) -> None:
        self.next: Any = Reading()

    def read(self, known: Known = unknown) -> Optional[Reading]:
        if isinstance(self.next, Exception):
            raise self.next
        result: Optional[Reading] = self.next
        return result

    def info(self) -> ProbeInfo:
        return ProbeInfo("fake")

    def covers(self, types: object) -> bool:
        return True

    def close(self) -> None:
        pass


class FakeWatch:
    """No process: what becomes of the limits without the daemon is tested with a kernel."""

    pid = 4711

    def __init__(self, runtime_dir: Path, patience_s: float) -> None:
        pass

    def tend(self) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        return True


class Rig:
    """A daemon, its host, its clocks: `tick()` is one second."""

    def __init__(
        self,
        tmp: Path,
        monkeypatch: pytest.MonkeyPatch,
        host: Optional[FakeHost] = None,
        probe: Optional[FakeProbe] = None,
    ) -> None:
        self.host = host or FakeHost(tmp / "root")
        self.probe = probe or FakeProbe()
        self.now = 1000.0
        self.wall = 1_764_000_000.0
        self.runtime_dir = tmp / "run"
        for name in ("run", "state"):
            (tmp / name).mkdir(exist_ok=True)
        for name in _NO_GC:
            monkeypatch.setattr(gc, name, lambda *_: None)
        monkeypatch.setattr(host_monitor, "open_uevents", lambda: (None, None))
        monkeypatch.setattr(host_monitor, "open_probe", lambda *_: self.probe)
        monkeypatch.setattr(daemon_module, "WatcherSupervisor", FakeWatch)
        monkeypatch.setattr(daemon_module, "_boottime", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: self.wall)
        self._options = Options(
            self.runtime_dir, tmp / "state", 1.0, "auto", "auto", (), Mode.ENFORCE
        )
        self.daemon = self.start()

    def start(self) -> Daemon:
        daemon = Daemon(self._options, lambda: load_policy(None, None), files=self.host)
        daemon._adopt()
        return daemon

    def tick(self, count: int = 1, wall_step_s: float = 1.0) -> None:
        for _ in range(count):
            self.daemon._tick()
            self.now += 1.0
            self.wall += wall_step_s

    def pin(self, size: Optional[int]) -> None:
        pinned = replace(self.daemon.state.memory, pin_bytes=size)
        self.daemon.state.memory = pinned

    def end(self) -> None:
        """As the end of run(): the originals first."""
        self.daemon._actuator.finish()
        self.daemon._lease.release()
        self.close()

    def close(self) -> None:
        """As a kill: nothing is put back."""
        self.daemon._report.close()
        self.daemon._learned.close(1.0)
        self.daemon._history.close(1.0)
        self.daemon._monitor.topology.close()
        self.daemon._signals.close()
        self.daemon._lease.close()
        self.daemon._off_switch.close()
        self.daemon._host_lock.close()

    def status(self) -> Any:
        return self.daemon.handle("status", {}, 0)


def no_trace(records: List[logging.LogRecord]) -> bool:
    """Whether nothing was logged with a traceback."""
    return not any(record.exc_info for record in records)
