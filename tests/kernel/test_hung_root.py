# SPDX-License-Identifier: GPL-2.0-or-later
"""Nothing in the loop waits for a disk: the disk that the daemon itself lies on hangs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from tests.kernel import hung_root
from tests.kernel.fault_rig import limits, limits_kept, wait_for
from tests.lab.disks import Disk
from tests.lab.rig import Rig
from writebackd.cli.client import request
from writebackd.cli.exit_codes import CommandError
from writebackd.kernel.child_process import Job, Run

STALL_S = 28.0
# How long the flooded disk hangs as well, in the middle of that.
BOTH_S = 8.0
# A tick is due every second; answers to questions and a busy host take their part.
LONGEST_GAP_S = 2.5
POLICY = """[policy]
name = hung
[levers]
pace = on
per-device = off
[limits]
lease = 5s
"""


@contextlib.contextmanager
def flood(mountpoint: Path) -> Iterator[None]:
    """A file written over and over, and somebody who syncs beside it."""
    writer = subprocess.Popen(
        ["sh", "-c", f"while :; do dd if=/dev/zero of={mountpoint}/flood bs=1M count=512 "
         "conv=notrunc status=none; done"], start_new_session=True,
    )  # fmt: skip
    going = True

    def sync() -> None:
        fd = os.open(mountpoint / "db", os.O_RDWR | os.O_CREAT)
        try:
            while going:
                os.pwrite(fd, b"x" * 4096, 0)
                os.fdatasync(fd)
                time.sleep(0.02)
        finally:
            os.close(fd)

    syncer = threading.Thread(target=sync)
    syncer.start()
    try:
        yield
    finally:
        going = False
        os.killpg(writer.pid, signal.SIGKILL)
        writer.wait()
        syncer.join()


@contextlib.contextmanager
def deaf(path: Path) -> Iterator[None]:
    """systemd's socket, full and never read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, \
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
        systemd.bind(str(path))
        with contextlib.suppress(BlockingIOError):
            while True:
                other.sendto(b"", str(path))
        yield


class Ticks(threading.Thread):
    """Asks for the status again and again; when each tick was seen first, and its limits."""

    def __init__(self, runtime_dir: Path) -> None:
        super().__init__()
        self.seen: List[Tuple[float, Dict[str, Any]]] = []
        self.unanswered: List[Tuple[float, str]] = []
        self.going = True
        self._dir = runtime_dir

    def run(self) -> None:
        last = None
        while self.going:
            try:
                status = request(self._dir, "status")
            except CommandError as error:
                self.unanswered.append((time.monotonic(), str(error)))
            else:
                if status["time_s"] != last:
                    last = status["time_s"]
                    self.seen.append((time.monotonic(), status))
            time.sleep(0.25)


class Foreign:
    """Somebody who writes queue/max_sectors_kb of a disk that hangs, which has requests."""

    def __init__(self, disk: Rig, sectors: int) -> None:
        self._children = [
            subprocess.Popen(["dd", f"if=/dev/{disk.device}", "of=/dev/null", "bs=4k", "count=1",
                              "skip=4096", "iflag=direct", "status=none"])
        ]  # fmt: skip
        time.sleep(0.5)
        write = f"echo {sectors} >/sys/block/{disk.device}/queue/max_sectors_kb"
        self._children.append(subprocess.Popen(["sh", "-c", write]))
        time.sleep(0.5)
        assert self.stuck, "nothing held it up"

    @property
    def stuck(self) -> bool:
        return self._children[-1].poll() is None

    def wait(self) -> None:
        for child in self._children:
            child.wait(timeout=STALL_S)


def test_it_goes_on_while_its_own_disk_hangs() -> None:
    with limits_kept() as before, \
            tempfile.TemporaryDirectory(dir="/dev/shm", prefix="writebackd-test-") as name, \
            deaf(Path(name) / "notify"), \
            Rig("hungroot", "ext4", Disk(size="1G", rate="400M")) as root, \
            Rig("flooded", "xfs", Disk(size="2G", cache="128M", rate="120M")) as data:
        run = Path(name)
        hung_root.build(root.mountpoint)
        (root.mountpoint / "hung.conf").write_text(POLICY)
        with open(root.mountpoint / "log", "wb") as log:
            daemon = subprocess.Popen(
                hung_root.command(root.mountpoint, run, data.mountpoint, "--policy", "/hung.conf",
                                  "--state-dir", "/var/lib/writebackd", "--device", data.device),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        ticks = Ticks(run / "writebackd")
        ticks.start()
        try:
            wait_for(lambda: len(ticks.seen) > 2 or daemon.poll() is not None)
            assert daemon.poll() is None, (root.mountpoint / "log").read_text()
            watcher = ticks.seen[-1][1]["lease"]["watcher_pid"]
            assert watcher is not None
            os.sync()
            with flood(data.mountpoint):
                wait_for(lambda: limits() != before)
                Path("/proc/sys/vm/drop_caches").write_text("3")
                root.control.set("stall", str(STALL_S))
                began = time.monotonic()
                # What a person may ask of it meanwhile, and what may happen to it.
                strangers = [Foreign(root, 64)]
                Path(f"/sys/block/{data.device}/uevent").write_text("change")
                daemon.send_signal(signal.SIGHUP)  # the policy is on the disk
                time.sleep(5)
                os.kill(watcher, signal.SIGKILL)  # and so is the next one's program
                time.sleep(3)
                tight = limits().dirty_bytes
                data.control.set("stall", str(BOTH_S))
                strangers.append(Foreign(data, 128))
                time.sleep(BOTH_S - 2)
                assert all(each.stuck for each in strangers)
                time.sleep(4)
            request(run / "writebackd", "pin", {"bytes": 48 << 20})
            time.sleep(2)
            pinned = limits().dirty_bytes
            told = ticks.seen[-1][1]["warnings"]
            time.sleep(max(0.0, began + STALL_S - time.monotonic()))
            ended = time.monotonic()
            ticks.going = False
            ticks.join()
            wait_for(lambda: request(run / "writebackd", "status")["lease"]["watcher_pid"])
        finally:
            ticks.going = False
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            ticks.join()
            said = (root.mountpoint / "log").read_text()
        assert limits() == before
        for stranger in strangers:
            stranger.wait()
    seen = [(at, status) for at, status in ticks.seen if began < at < ended]
    times = [began, *(at for at, _ in seen), ended]
    gaps = [after - before for before, after in zip(times, times[1:])]
    print(f"\n{len(gaps)} ticks in {STALL_S:.0f} s with the root disk hung, the longest gap "
          f"{max(gaps):.1f} s; limit under the flood {tight >> 10} KiB")
    print(said)
    assert max(gaps) <= LONGEST_GAP_S
    assert [error for at, error in ticks.unanswered if began < at < ended] == []
    leases = [status["lease"] for _, status in seen]
    assert all(lease["remaining_s"] > 0 and lease["lost"] == 0 for lease in leases)
    assert any("the scan of /sys has taken over" in message for message in told)
    assert 0 < tight < 512 << 20
    assert pinned == 48 << 20
    assert daemon.returncode == 0
    assert "Traceback" not in said


def test_starting_a_program_from_a_disk_that_hangs_holds_up_nobody() -> None:
    ended: List[float] = []

    def work(run: Run) -> None:
        run([str(program)])
        ended.append(time.monotonic())

    with Rig("hungprogram", "ext4", Disk(size="512M")) as rig:
        program = rig.mountpoint / "true"
        shutil.copy2("/bin/true", program)
        fd = os.open(program, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        rig.control.set("stall", "3")
        began = last = time.monotonic()
        job, gap = Job(work, 10.0), 0.0
        while job.busy:
            time.sleep(0.01)
            gap, last = max(gap, time.monotonic() - last), time.monotonic()
    assert job.failure() is None
    assert ended[0] - began > 2.0, "the program did not have to wait for its disk"
    assert gap < 1.0
