# SPDX-License-Identifier: GPL-2.0-or-later
"""The host during a calibration: samples, loads, and limits under lock, ledger and lease.

A process floods, one syncs, each with a file without a name, and both die with their parent:
nothing is left after kill -9. If the parent hangs, its limits are restored, and the loads idle.
The limits are held as the daemon holds them, so no daemon may run meanwhile: it would act on the
calibration's flood.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import IO, Callable, List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.actuate import kill_switch
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.host_lock import HostLock
from writebackd.actuate.ledger import LedgerError
from writebackd.actuate.lock import AlreadyRunning
from writebackd.actuate.watcher_supervisor import LeaseHolder, WatcherSupervisor
from writebackd.host_monitor import HostMonitor
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.mounts import mount_of
from writebackd.paths import LEDGER
from writebackd.policy.schema import Policy, PolicyError
from writebackd.trial.calibration import TICK_S
from writebackd.trial.ladder import Order, Own
from writebackd.types.samples import Sample
from writebackd.types.storage import Device

# Of the file that is synced: more blocks than a few seconds write twice.
DATABASE_BYTES = 64 << 20
_PREPARE_S = 2.0  # that its making may take, on a slow disk
BLOCK_BYTES = 1 << 20  # that the flood writes at once
_COMMIT, _PIECE = 4096, 4 << 20
# Pages so far behind what may be dirty are clean, and leave memory to the host's own.
_BEHIND = 64 << 20
_IDLE_S = 0.005  # between two looks at the orders
# An order lasts half of the default lease, at whose end the limits are restored.
ORDER_S = 5.0
_END_S = 10.0  # for a process that is killed: one in the kernel ends when the disk lets it
_PR_SET_PDEATHSIG = 1
# Numbers of 64 bits, which both sides read and one writes.
_FLOOD, _WAIT_NS, _WRITTEN, _SYNCS, _SYNC_NS, _READY, _ERROR, _LIMIT, _UNTIL_NS = range(9)
_NO_SYNCS = -1


class Loads:
    """Both are idle until the first `order`.

    Create it before the first thread, since it forks.
    """

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        """Raises OSError naming the directory."""
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._shared = memoryview(self._memory).cast("q")
        self._shared[_WAIT_NS] = _NO_SYNCS
        self.pids: Tuple[int, ...] = ()
        self._files: List[IO[bytes]] = []
        try:
            for work in (self._flood, self._sync):
                self._files.append(tempfile.TemporaryFile(dir=directory))
                self.pids += (self._started(work, self._files[-1].fileno(), budget_bytes),)
        except BaseException:
            self.close()
            raise

    def _started(self, work: Callable[[int, int], None], file: int, budget_bytes: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            # Ctrl-C is for the parent, which ends this one; its own end does so in any case.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent:
                work(file, budget_bytes)
        except OSError as error:
            self._shared[_ERROR] = error.errno or errno.EIO
        finally:
            self._shared[_ERROR] = self._shared[_ERROR] or errno.EIO  # no work ends by itself
            os._exit(0)

    # ---- in the children ---------------------------------------------------

    def _flood(self, file: int, budget_bytes: int) -> None:
        shared, block, dropped = self._shared, os.urandom(BLOCK_BYTES), 0
        while True:
            written = shared[_WRITTEN]
            if not shared[_FLOOD] or written + BLOCK_BYTES > budget_bytes or self._is_stale():
                time.sleep(_IDLE_S)
                continue
            shared[_WRITTEN] = written + os.pwrite(file, block, written)
            clean = written - 2 * shared[_LIMIT] - _BEHIND
            if clean - dropped >= _BEHIND:
                os.posix_fadvise(file, dropped, clean - dropped, os.POSIX_FADV_DONTNEED)
                dropped = clean

    def _sync(self, file: int, _budget_bytes: int) -> None:
        shared, piece, size = self._shared, os.urandom(_PIECE), 0
        while self._is_stale():
            time.sleep(_IDLE_S)
        begun = time.monotonic()
        while size < DATABASE_BYTES and (not size or time.monotonic() - begun < _PREPARE_S):
            size += os.pwrite(file, piece, size)
            os.fsync(file)
        # Written at once, megabytes are one folio, all of which counts as dirty for any block.
        os.posix_fadvise(file, 0, size, os.POSIX_FADV_DONTNEED)
        shared[_READY] = 1
        chance, blocks = random.Random(1), size // _COMMIT
        while True:
            wait_ns = shared[_WAIT_NS]
            if wait_ns == _NO_SYNCS or self._is_stale():
                time.sleep(_IDLE_S)
                continue
            began_ns = time.monotonic_ns()
            os.pwrite(file, piece[:_COMMIT], chance.randrange(blocks) * _COMMIT)
            os.fsync(file)
            shared[_SYNCS] += 1
            shared[_SYNC_NS] += time.monotonic_ns() - began_ns
            if wait_ns:
                time.sleep(wait_ns / 1e9)

    def _is_stale(self) -> bool:
        return time.monotonic_ns() > self._shared[_UNTIL_NS]

    # ---- in the parent -----------------------------------------------------

    @property
    def ready(self) -> bool:
        return bool(self._shared[_READY])

    @property
    def problem(self) -> str:
        """Why one of them ended; empty if none did."""
        if self._shared[_ERROR]:
            return os.strerror(self._shared[_ERROR])
        killed = next(filter(_has_ended, self.pids), None)
        return "" if killed is None else f"load (pid {killed}) was killed"

    @property
    def syncs(self) -> int:
        return self._shared[_SYNCS]

    @property
    def sync_s(self) -> float:
        """How long the syncs took, with the writes before them."""
        return self._shared[_SYNC_NS] / 1e9

    @property
    def written_bytes(self) -> int:
        return self._shared[_WRITTEN]

    def order(self, flood: bool, sync_wait_s: Optional[float], limit_bytes: int) -> None:
        """Run for ORDER_S; then both become idle."""
        self._shared[_LIMIT] = limit_bytes
        self._shared[_WAIT_NS] = _NO_SYNCS if sync_wait_s is None else int(sync_wait_s * 1e9)
        self._shared[_FLOOD] = int(flood)
        self._shared[_UNTIL_NS] = time.monotonic_ns() + int(ORDER_S * 1e9)

    def stop(self) -> None:
        """Stop writing. Does not wait."""
        self.order(False, None, 0)
        for pid in self.pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Drop the files, and their dirty pages."""
        self.stop()
        for file in self._files:
            file.close()
        until, left = time.monotonic() + _END_S, list(self.pids)
        while left and time.monotonic() < until:
            left = [pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == 0]
            time.sleep(_IDLE_S)


def _has_ended(pid: int) -> bool:
    """Whether it has ended; does not reap it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


# Of the filesystem, that stays free for others.
KEEP_FREE = 0.1
_WATCHER_S = 5.0
_READY_S = 60.0  # for the file that is synced, at the slowest


class Refused(Exception):
    """The calibration must not begin or continue; the text says why, and what to do."""


class CalibrationHost:
    """`restore` restores the limits, `close` releases everything else, and the lock."""

    def __init__(
        self, directory: Path, device: Device, budget_bytes: int, policy: Policy, runtime_dir: Path
    ) -> None:
        """Raises Refused."""
        self._files, self._device = KernelFiles(), device
        self._last_s: Optional[float] = None
        self._holds = False  # lease and ledger
        self.own = Own()  # what our loads had done at the last tick
        self._open = contextlib.ExitStack()
        try:
            # First, since it forks.
            self._loads = Loads(directory, budget_bytes)
            self._open.callback(self._loads.close)
            self._hold(policy, runtime_dir)
        except (BpfError, LedgerError, OSError, PolicyError, ValueError) as error:
            self.close()
            raise Refused(str(error)) from None
        except BaseException:
            self.close()
            raise

    def _hold(self, policy: Policy, runtime_dir: Path) -> None:
        runtime_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._off = kill_switch.of_host(self._files, runtime_dir)
        self._open.callback(self._off.close)
        try:
            lock = self._open.enter_context(
                contextlib.closing(HostLock(self._files, runtime_dir))
            )
            ledger = runtime_dir / LEDGER
            if ledger.exists():
                # What `on-exit = keep` left, say: the end of this run would restore it.
                raise Refused(
                    f"limits of an earlier writebackd are in force ({ledger}):"
                    " `sudo writebackctl restore` first"
                )
            # Before the lease: where bcc compiles, it would run out.
            self._monitor = HostMonitor(
                self._files, "auto", "auto", policy.probe, (),
                lambda each: None if each.name == self._device.name else "not calibrated",
            )  # fmt: skip
            self._open.callback(self._monitor.sampler.probe.close)
            self._lease = LeaseHolder(runtime_dir, policy.limits.lease_s)
        except AlreadyRunning as error:
            raise Refused(
                f"{error}. It would limit this flood: `systemctl stop writebackd`,"
                " calibrate, start it again"
            ) from None
        self._watch = WatcherSupervisor(runtime_dir)
        self._actuator = Actuator(
            self._files, runtime_dir / LEDGER, "restore", self._lease.permit, lock.keep_first
        )
        self._holds = True
        if not self._watch.wait(_WATCHER_S):
            raise Refused("cannot start the watcher, which restores the limits after a crash")
        if not self._lease.renew():
            self._lease.take_first()
        self._actuator.start()

    def restore(self) -> None:
        if self._holds:
            self._holds = False
            self._loads.stop()
            if all(action.ok for action in self._actuator.restore()):
                self._lease.release()

    def close(self) -> None:
        try:
            self.restore()
        finally:
            self._open.close()

    # ---- ticks -------------------------------------------------------------

    def make_ready(self) -> None:
        """Wait until the file to sync exists, and the counters have a start value."""
        until_s = time.monotonic() + _READY_S
        while not self._loads.ready and not self._loads.problem:
            if time.monotonic() > until_s:
                raise Refused(f"{formats.size(DATABASE_BYTES)} took more than {_READY_S:g} s")
            self._loads.order(False, None, 0)
            self._pass(TICK_S)
        self.tick(Order())

    def tick(self, order: Order) -> Sample:
        """Apply the order for a tick, and sample. Raises Refused."""
        if order.limit_bytes is None or order.background_bytes is None:
            actions = self._actuator.restore_limits()
        else:
            actions = self._actuator.apply(order.limit_bytes, order.background_bytes)
        failed = next((each for each in actions if not each.ok), None)
        if failed is not None:
            raise Refused(f"{failed.lever}: {failed.error}")
        loads = self._loads
        loads.order(order.flood, order.sync_wait_s, order.limit_bytes or 0)
        self._pass(TICK_S)
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        dt_s = TICK_S if self._last_s is None else max(now_s - self._last_s, 1e-3)
        self._last_s = now_s
        try:
            self._monitor.refresh()
            syncs, sync_s = loads.syncs, loads.sync_s
            sample = self._monitor.read(now_s, time.time(), dt_s, (), False, ())
        except (BpfError, OSError, ValueError) as error:
            raise Refused(f"cannot read kernel statistics: {error}") from None
        self.own = Own(
            syncs, loads.syncs - syncs, sync_s, loads.written_bytes, loads.pids
        )
        for write in self._actuator.foreign(sample.vm.limits):
            raise Refused(f"another process set {write.lever}={write.value}; not restored")
        return sample

    def _pass(self, seconds: float) -> None:
        self._watch.tend()
        if not self._lease.renew():
            raise Refused("the lease expired, and the limits were restored")
        if self._off.file() is not None:
            raise Refused(f"{self._off.file()} exists: remove it first")
        if self._loads.problem:
            raise Refused(f"cannot write: {self._loads.problem}")
        time.sleep(seconds)


def device_of(directory: Path, devices: Sequence[Device]) -> Device:
    """The disk of a directory. Raises Refused or OSError."""
    number = os.stat(directory).st_dev
    st_dev = f"{os.major(number)}:{os.minor(number)}"
    mount = mount_of(KernelFiles(), directory)
    for device in devices:
        # Subvolumes of btrfs have numbers of their own, as its mount has.
        known = {each[0] for each in device.filesystems}
        if st_dev in known or (mount is not None and mount.st_dev in known):
            return device
    kind = f" ({mount.fstype})" if mount is not None else ""
    raise Refused(f"{directory} is not on the filesystem of a block device{kind}: name one that is")


def check_room(directory: Path, budget_bytes: int) -> None:
    """Raises Refused if there is too little space, or OSError."""
    filesystem = os.statvfs(directory)
    free = filesystem.f_bavail * filesystem.f_frsize
    most = free - int(KEEP_FREE * filesystem.f_blocks * filesystem.f_frsize) - DATABASE_BYTES
    if budget_bytes > most:
        less = f"--budget {most >> 30}G" if most >> 30 else "name a directory on another filesystem"
        raise Refused(
            f"{directory}: {formats.size(budget_bytes)} would leave less than"
            f" {formats.percent(KEEP_FREE)} of the filesystem free: {less}"
        )
