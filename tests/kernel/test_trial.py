# SPDX-License-Identifier: GPL-2.0-or-later
"""A trial on this kernel: both limits are in force in turn, and whoever goes leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

from tests.kernel.fault_rig import AGENT, limits, wait_for
from tests.kernel.scratch import Scratch, scratch_disk
from tests.kernel.test_daemon import Running, start, untouched
from writebackd.report.learned_store import read_learned, save_learned
from writebackd.trial.plan import LEASE_S
from writebackd.types.device_memory import Fact

__all__ = ["start", "untouched"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices and BPF")

DRAIN, CEILING_S = 250e6, 0.5
CUT = int(DRAIN * CEILING_S)
# The file behind the scratch disk is on another one, which floods as well: beside that the
# device would have a limit of its own, and the global one would be as found.
POLICY = "[policy]\nname = alone\n[levers]\nper-device = off\n"


class Load:
    """Somebody who syncs every 5 ms, and while `flood` is set a buffered writer of 40 MB/s."""

    def __init__(self, directory: Path) -> None:
        self._over, self.flood = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=each, args=(directory,)) for each in (self._sync, self._write)
        ]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _sync(self, directory: Path) -> None:
        fd = os.open(directory / "db", os.O_RDWR | os.O_CREAT)
        at = 0
        while not self._over.wait(0.005):
            os.pwrite(fd, b"x" * 4096, at % 256 * 4096)
            os.fsync(fd)
            at += 1
        os.close(fd)

    def _write(self, directory: Path) -> None:
        fd = os.open(directory / "flood", os.O_RDWR | os.O_CREAT)
        at = 0
        while not self._over.wait(0.1):
            if not self.flood.is_set():
                continue
            # All of it dirty is far below half of CUT, however slow this disk is today. As a new
            # file each time: what is written over while it is dirty is not seen as dirtied.
            if at % 8 == 0:
                os.ftruncate(fd, 0)
            os.pwrite(fd, b"y" * (4 << 20), at % 8 * (4 << 20))
            at += 1
        os.close(fd)


@pytest.fixture
def disk(start: Callable[..., Running], tmp_path: Path) -> Iterator[Scratch]:
    """A scratch disk that the next daemon knows to drain so much: no flood here shows it."""
    with scratch_disk("ext4", 256) as disk:
        assert disk.mountpoint is not None
        first = start("--device", disk.device, "--mode", "observe")
        if first.status()["probe"]["backend"] != "libbpf":
            pytest.skip("the probe cannot see fsync on this kernel")
        with Load(disk.mountpoint):
            wait_for(lambda: first.device(disk.device).get("fsync_baseline_s"))
        first.end()
        (tmp_path / "alone.conf").write_text(POLICY)
        path = tmp_path / "state" / "learned.json"
        ((identity, learned),) = read_learned(path).items()
        assert learned.baseline_s is not None
        rate = Fact(DRAIN, learned.baseline_s.wall_s)
        save_learned(path, {identity: replace(learned, drain_rate=rate)})
        yield disk


class Client:
    """`writebackctl trial` beside the test, and the limits that it made."""

    def __init__(self, daemon: Running, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "writebackd.cli.ctl", "--runtime-dir", str(daemon.runtime_dir),
             "--json", "trial", "--block", "10s", "--ceiling", f"{CEILING_S}s",
             "--stop-at", "60s", *options],
            env={**os.environ, "PYTHONPATH": str(AGENT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.limits: List[int] = []

    def watch(self) -> Dict[str, Any]:
        """Its answer; the limit is looked at until it has come."""
        while self.process.poll() is None:
            self.limits.append(limits().dirty_bytes)
            time.sleep(0.1)
        out, error = self.process.communicate()
        assert self.process.returncode == 0, error + out
        answer: Dict[str, Any] = json.loads(out)
        return answer


def trial_of(daemon: Running) -> Optional[Dict[str, Any]]:
    trial: Optional[Dict[str, Any]] = daemon.status()["trial"]
    return trial


def test_both_limits_take_turns_and_the_mode_is_as_before(
    disk: Scratch, start: Callable[..., Running], tmp_path: Path
) -> None:
    before = limits()
    daemon = start("--device", disk.device, "--mode", "observe",
                   "--policy", str(tmp_path / "alone.conf"))
    assert disk.mountpoint is not None
    with Load(disk.mountpoint) as load:
        time.sleep(11)  # the rate is that of the last 10 s
        client = Client(daemon, "--duration", "20s", "--device", f"/dev/{disk.device}")
        wait_for(lambda: trial_of(daemon) is not None)
        load.flood.set()  # not before: it may show what this disk really drains
        answer = client.watch()
        load.flood.clear()
        assert answer["ended"] == "done" and answer["pairs"] == 1, answer["left_out"]
        assert (answer["mode"], answer["limit_bytes"]) == ("observe", CUT)
        assert client.limits.count(CUT) > 50
        assert sum(0 < limit < CUT / 2 for limit in client.limits) > 20, client.limits
        for arm in ("agent", "original"):
            assert answer[arm]["fsyncs"] > 20 and answer[arm]["span_s"] > 3.0
        assert "only 1 pair of blocks" in answer["verdict"]
        assert daemon.status()["mode"] == "observe" and trial_of(daemon) is None
        assert limits() == before
        # Nobody sees to it any more: as when ssh drops.
        client = Client(daemon, "--duration", "60s", "--ceiling", "10s", "--seed", "1")
        # Its first block may be one under the limits as found.
        wait_for(lambda: trial_of(daemon) is not None and limits() != before, 40.0)
        client.process.kill()
        client.process.communicate()
        gone_s = time.monotonic()
        wait_for(lambda: trial_of(daemon) is None)
        assert time.monotonic() - gone_s < LEASE_S + 2.0
        assert daemon.status()["mode"] == "observe" and limits() == before
        # In mid-trial: the daemon puts all back as ever.
        client = Client(daemon, "--duration", "60s", "--ceiling", "10s")
        # Its first block may be one under the limits as found.
        wait_for(lambda: trial_of(daemon) is not None and limits() != before, 40.0)
        assert daemon.end(signal.SIGTERM) == 0
        assert limits() == before
        _, error = client.process.communicate(timeout=20)
        assert client.process.returncode == 1 and error == ""
