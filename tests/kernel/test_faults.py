# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults on this kernel, one at a time: stopped, hung, blind, read-only, full, unplugged.

After each the limits are exactly the ledger's originals, or held by a lease that
a live daemon renews, and the test says which; the log has a line for it, and no
traceback.  Kills at random points are in test_faults_kill.py, what needs no
kernel in tests/unit/test_faults.py, and a module's unload in tests/vm/inside: loop is
the only driver of disks that this kernel is sure to have, and it holds the others up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set

import pytest

from tests.kernel.fault_rig import (
    DAEMON,
    FILES,
    HOME_S,
    LEASE_S,
    PIN,
    VM,
    Home,
    Running,
    found,
    home,
    is_alive,
    kill,
    limits,
    resident_kb,
    wait_for,
)
from tests.kernel.scratch import run
from writebackd.kernel.disk_identity import leaf_identity
from writebackd.paths import LEARNED, LEDGER
from writebackd.report.learned_store import save_learned
from writebackd.types.device_memory import Fact, Learned
from writebackd.types.levers import VmLimits

__all__ = ["found", "home"]  # fixtures
# Twenty ticks.
A_WHILE_S = 1.0

Start = Callable[..., Running]


@pytest.fixture
def start(home: Home, found: VmLimits) -> Iterator[Start]:
    running: List[Running] = []

    def starter(*more: str, argv: Sequence[str] = DAEMON) -> Running:
        running.append(Running(home, *more, argv=argv))
        return running[-1]

    yield starter
    for each in running:
        if each.process.poll() is None:
            kill(each.process.pid, signal.SIGCONT)
            kill(each.process.pid)
        each.process.wait()
    watcher = home.watcher
    if watcher is not None:
        kill(watcher)


def check_end(daemon: Running, found: VmLimits) -> None:
    """Asked to stop, it restores; and its watcher is not needed any more."""
    assert daemon.end() == 0
    assert limits() == found
    wait_for(lambda: daemon.home.watcher is None, 3.0, "for the watcher to end")


def patched(code: str, flag: Path) -> List[str]:
    """The daemon with `code` in front of it, in which `flag` is a path."""
    head = f"import sys\nfrom pathlib import Path\nflag = Path({str(flag)!r})\n"
    tail = "\nfrom writebackd.cli.daemon_main import main\nsys.exit(main(sys.argv[1:]))\n"
    return [sys.executable, "-c", head + code + tail]


def said(home: Home, words: str, times: int = 1) -> None:
    """The log has exactly so many lines with these words, and no trace."""
    # A thread writes it.
    wait_for(lambda: home.log.read_text().count(words) >= times, 5.0, f"for {words!r}")
    text = home.check_log()
    assert sum(words in line for line in text.splitlines()) == times, text[-3000:]


def warned(home: Home, words: str) -> bool:
    """Whether `status` says so now."""
    return any(words in line for line in (home.ask("status") or {})["warnings"])


@pytest.mark.parametrize("stopped_s", [
    6 * LEASE_S, pytest.param(60.0, marks=pytest.mark.full("stands still for a minute"))])
def test_stopped(start: Start, home: Home, found: VmLimits, stopped_s: float) -> None:
    """Home when the lease has run out, and taken up again when it wakes."""
    daemon = start().pinned()
    os.kill(daemon.process.pid, signal.SIGSTOP)
    begun = time.monotonic()
    wait_for(lambda: limits() == found, HOME_S, "for the watcher to restore")
    took = time.monotonic() - begun
    time.sleep(stopped_s - took)
    assert limits() == found
    assert (home.runtime_dir / LEDGER).exists(), "it may wake up within a write"
    os.kill(daemon.process.pid, signal.SIGCONT)
    wait_for(lambda: limits().dirty_bytes == PIN, what="for the daemon to go on")
    said(home, "lease expired: restoring")
    said(home, "lease expired and limits were restored; applying them again")
    status = home.ask("status")
    assert status is not None and (status["lease"]["lost"], status["yielded"]) == (1, None)
    assert status["limits"]["original"] == vars(found)
    check_end(daemon, found)
    print(f"\nhome {took:.1f} s after SIGSTOP")


def test_stopped_and_then_killed(start: Start, home: Home, found: VmLimits) -> None:
    """Restored once, and again: what it wrote when it woke up does not stay."""
    daemon = start().pinned()
    os.kill(daemon.process.pid, signal.SIGSTOP)
    wait_for(lambda: limits() == found, HOME_S, "for the watcher to restore")
    # As if it had been stopped right before a write, and killed right after it.
    (VM / "dirty_bytes").write_text(str(PIN))
    kill(daemon.process.pid)
    wait_for(lambda: limits() == found, HOME_S, "for the watcher to restore again")
    wait_for(lambda: not (home.runtime_dir / LEDGER).exists(), HOME_S, "for the ledger to go")


def test_a_killed_daemon_leaves_nothing_behind(start: Start, home: Home, found: VmLimits) -> None:
    """Held until the lease has run out, then home by the watcher, which ends."""
    daemon = start().pinned()
    kill(daemon.process.pid)
    assert limits().dirty_bytes == PIN
    wait_for(lambda: limits() == found, HOME_S, "for the watcher to restore")
    wait_for(lambda: home.watcher is None, 5.0, "for the watcher to end")
    assert not (home.runtime_dir / LEDGER).exists()
    said(home, f"process {daemon.process.pid} is gone, lease expired")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_watcher_that_does_not_watch_is_replaced(
    start: Start, home: Home, found: VmLimits, how: signal.Signals
) -> None:
    """Held by the lease: the daemon starts another watcher, which restores after it."""
    daemon = start().pinned()
    old = home.watcher
    assert old is not None
    os.kill(old, how)
    try:
        wait_for(lambda: home.watcher not in (None, old), 20.0, "for another watcher")
    finally:
        kill(old, signal.SIGCONT)
    assert limits().dirty_bytes == PIN
    wait_for(lambda: not is_alive(old), 5.0, "for the old watcher to end")
    if how == signal.SIGSTOP:
        said(home, "hangs, starting another")
    kill(daemon.process.pid)
    wait_for(lambda: limits() == found, HOME_S, "for the watcher to restore")


def test_a_restart_within_the_lease_does_not_let_the_limit_jump(
    start: Start, home: Home, found: VmLimits
) -> None:
    home.policy.write_text("[limits]\nlease = 10s\n")
    daemon = start().pinned()
    watcher, over = home.watcher, threading.Event()
    seen: Set[int] = set()

    def look() -> None:
        while not over.wait(0.002):
            seen.add(limits().dirty_bytes)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        kill(daemon.process.pid)
        following = start().answering()
        time.sleep(A_WHILE_S / 2)  # ten ticks
    finally:
        over.set()
        looker.join()
    assert seen == {PIN}
    assert watcher is not None and home.watcher == watcher
    check_end(following, found)


def test_after_a_clean_stop_the_watcher_ends(start: Start, home: Home, found: VmLimits) -> None:
    daemon = start().pinned()
    assert home.watcher is not None
    check_end(daemon, found)
    assert "the lease" not in home.check_log()


def not_locked(pid: int) -> List[str]:
    """What of files, heap and stacks may be paged out."""
    maps = Path(f"/proc/{pid}/smaps").read_text()
    loose = []
    for text in filter(None, re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", maps, flags=re.M)):
        head, flags = text.split("\n")[0], text.rpartition("VmFlags:")[2].split()
        name = head[73:] or "anonymous"
        # Pages of the kernel's own and of BPF maps are memory anyway; none can be locked.
        own = name == "[vsyscall]" or {"io", "pf", "de"} & set(flags)
        if "lo" not in flags and not own:
            loose.append(name)
    return loose


def test_both_are_locked_in_memory(start: Start, home: Home, found: VmLimits) -> None:
    """What is not comes from the disk that hangs, or from swap on it."""
    daemon = start().pinned()
    for pid in (daemon.process.pid, home.watcher):
        assert pid is not None and not_locked(pid) == []
    assert "not locked" not in home.log.read_text()
    check_end(daemon, found)


HUNG = """
import time
import writebackd.kernel.sampler as s
real = s.Sampler.read
def read(*args):
    while flag.exists():
        time.sleep(0.05)
    return real(*args)
s.Sampler.read = read
"""


def test_hung_sampler(start: Start, home: Home, tmp_path: Path, found: VmLimits) -> None:
    """A read of /proc or of a map that does not come back: home by the watcher."""
    flag = tmp_path / "hang"
    daemon = start(argv=patched(HUNG, flag)).pinned()
    flag.touch()
    wait_for(lambda: limits() == found, HOME_S, "for the watcher to restore")
    assert is_alive(daemon.process.pid)
    flag.unlink()
    wait_for(lambda: limits().dirty_bytes == PIN, what="for the daemon to go on")
    said(home, "lease expired: restoring")
    said(home, "lease expired and limits were restored; applying them again")
    check_end(daemon, found)


# The kernel's own answer to a bad descriptor, then the good one again.
BROKEN_MAP = """
import os
import writebackd.kernel.map_readers as r
real, kept = r.SyncReader.read, {}
def read(self, known):
    fd = self._inflight_map.fd
    if flag.exists() and not kept:
        kept[fd] = os.dup(fd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), fd)
    elif kept and not flag.exists():
        os.dup2(kept.pop(fd), fd)
    return real(self, known)
r.SyncReader.read = read
"""


def test_map_that_cannot_be_read(
    start: Start, home: Home, tmp_path: Path, found: VmLimits
) -> None:
    """Held for five ticks, then home by the daemon itself; then it goes on."""
    flag = tmp_path / "broken"
    daemon = start("--probe", "libbpf", argv=patched(BROKEN_MAP, flag)).pinned()
    flag.touch()
    wait_for(lambda: limits() == found, 10.0, "for the daemon to restore")
    said(home, "cannot read kernel statistics, keeping current limits: reading map")
    said(home, "statistics unreadable for 5 ticks")
    flag.unlink()
    wait_for(lambda: limits().dirty_bytes == PIN, what="for the daemon to go on")
    check_end(daemon, found)


UNREADABLE = """
import os
import writebackd.kernel.files as f
real = f.KernelFiles.read
def read(self, name):
    if flag.exists() and name == "/proc/vmstat":
        text = flag.read_text()
        if text == "EIO":
            raise OSError(5, os.strerror(5), name)
        return text
    return real(self, name)
f.KernelFiles.read = read
"""


@pytest.mark.parametrize("text", ["EIO", "", "nr_dirty 1", "\0\1\2 garbage", "nr_dirty -1"])
def test_proc_that_cannot_be_read(
    start: Start, home: Home, tmp_path: Path, found: VmLimits, text: str
) -> None:
    """Held, then home by the daemon itself; then it goes on."""
    flag = tmp_path / "unreadable"
    daemon = start(argv=patched(UNREADABLE, flag)).pinned()
    flag.write_text(text)
    wait_for(lambda: limits() == found, 10.0, "for the daemon to restore")
    time.sleep(A_WHILE_S)
    assert limits() == found
    said(home, "cannot read kernel statistics, keeping")
    assert warned(home, "cannot read kernel statistics")
    flag.unlink()
    wait_for(lambda: limits().dirty_bytes == PIN, what="for the daemon to go on")
    assert not warned(home, "cannot read kernel statistics")
    check_end(daemon, found)


READ_ONLY = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"


def in_namespace(setup: str, *flags: str) -> List[str]:
    """The daemon in namespaces of its own, made ready by a line of shell."""
    return ["unshare", "--mount", *flags, "sh", "-c", f'{setup} && exec "$@"', "sh", *DAEMON]


def test_read_only_proc_sys(start: Start, home: Home, found: VmLimits) -> None:
    """As in a container, or with ProtectKernelTunables=: nothing is written, and it says why."""
    daemon = start(argv=in_namespace(READ_ONLY)).answering()
    assert home.ask("pin", bytes=PIN) is not None
    wait_for(lambda: "read-only: a container" in home.log.read_text(), what="for a word")
    time.sleep(A_WHILE_S)
    assert limits() == found
    said(home, "read-only: a container")
    assert warned(home, "read-only: a container")
    check_end(daemon, found)


def test_read_only_in_mid_run_and_the_way_home(
    start: Start, home: Home, found: VmLimits
) -> None:
    """What cannot go home is held, told once, and known to the ledger; later it goes home."""
    daemon = start(argv=in_namespace("true")).pinned()
    enter = ["nsenter", "--mount", f"--target={daemon.process.pid}", "sh", "-c"]
    run(*enter, READ_ONLY)
    assert home.ask("release") is not None  # nobody has demand: home
    wait_for(lambda: "read-only: a container" in home.log.read_text(), what="for a word")
    time.sleep(A_WHILE_S)
    assert limits().dirty_bytes == PIN
    assert not home.check_way_home(found)
    said(home, "read-only: a container")
    run(*enter, "mount -o remount,bind,rw /proc/sys")
    wait_for(lambda: limits() == found, what="for the way home")
    check_end(daemon, found)


def test_without_any_proc(start: Start, home: Home, found: VmLimits) -> None:
    """One line, exit 1."""
    daemon = start(argv=in_namespace("mount -t tmpfs none /proc"))
    assert daemon.process.wait(timeout=20) == 1
    lines = [line for line in home.check_log().splitlines() if " ERROR " in line]
    assert len(lines) == 1 and "/proc/meminfo" in lines[0]
    assert limits() == found


def test_container_with_a_proc_of_its_own(start: Start, home: Home, found: VmLimits) -> None:
    """It works there, and so does the watcher: killed with all of its container, held."""
    daemon = start(argv=in_namespace("true", "--pid", "--fork", "--kill-child", "--mount-proc"))
    daemon.pinned()
    assert not home.check_way_home(found)
    kill(daemon.process.pid)  # unshare, and with it everything in there
    wait_for(lambda: home.ask("status") is None, what="for the container to end")
    assert not home.check_way_home(found), "nobody was left to restore"
    following = start()  # it finds the ledger
    check_end(following.answering(), found)


@contextlib.contextmanager
def full_tmpfs(directory: Path) -> Iterator[None]:
    directory.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", str(directory))
    try:
        with contextlib.suppress(OSError), open(directory / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        yield
    finally:
        run("umount", "--lazy", str(directory))


def test_full_disk_for_state(start: Start, home: Home, found: VmLimits) -> None:
    """Costs history and learning only: the limit is held by the lease."""
    with full_tmpfs(home.state_dir):
        daemon = start().pinned()
        time.sleep(A_WHILE_S)
        assert limits().dirty_bytes == PIN
        said(home, "events wait, then are dropped")
        check_end(daemon, found)


def test_full_run(start: Start, home: Home, found: VmLimits) -> None:
    """Without room for the ledger nothing is written."""
    daemon = start().answering()
    # The ledger's new text goes into a file of this name first.
    blocker = home.runtime_dir / f".{LEDGER}.new"
    blocker.mkdir()
    assert home.ask("pin", bytes=PIN) is not None
    wait_for(lambda: "nothing written" in home.log.read_text(), what="for a word")
    time.sleep(A_WHILE_S)
    assert limits() == found
    said(home, "nothing written")
    blocker.rmdir()
    wait_for(lambda: limits().dirty_bytes == PIN, what="for the limit")
    check_end(daemon, found)


# ---- disks that come and go --------------------------------------------------

LOOP_CTL_REMOVE = 0x4C81
MANY, ROUNDS = 300, 3


@contextlib.contextmanager
def loop_nodes() -> Iterator[None]:
    """Loop devices that were not there before are taken away again."""
    before = {path.name for path in Path("/sys/block").glob("loop*")}
    try:
        yield
    finally:
        fd = os.open("/dev/loop-control", os.O_RDWR)
        for path in Path("/sys/block").glob("loop*"):
            if path.name not in before:
                with contextlib.suppress(OSError):
                    fcntl.ioctl(fd, LOOP_CTL_REMOVE, int(path.name[4:]))
        os.close(fd)


def attach(file: Path) -> str:
    return run("losetup", "--find", "--show", str(file))


def descriptors_of(pid: int) -> int:
    """The least of a second: a file that is just being read, a question, is none that stays."""
    seen = []
    for _ in range(20):
        seen.append(len(os.listdir(f"/proc/{pid}/fd")))
        time.sleep(0.05)
    return min(seen)


@pytest.mark.full("attaches and detaches 900 disks")
def test_300_disks_coming_and_going(
    start: Start, home: Home, tmp_path: Path, found: VmLimits
) -> None:
    """The limit is held by the lease; what they cost goes with them."""
    backing = Path("/dev/shm")
    directory = backing / f"writebackd-test-{os.getpid()}"
    directory.mkdir()
    files = [directory / str(number) for number in range(MANY)]
    for file in files:
        with open(file, "wb") as sparse:
            sparse.truncate(1 << 20)
    attached: Set[str] = set()
    try:
        with loop_nodes():
            daemon = start("--device", "loop*").pinned()
            pid = daemon.process.pid
            dice = random.Random(300)
            sizes, descriptors = [], []
            for _ in range(ROUNDS):
                for file in dice.sample(files, MANY):
                    attached.add(attach(file))
                wait_for(lambda: len(_loops(home)) >= MANY, 40.0, "for all of them to be seen")
                for device in dice.sample(sorted(attached), MANY):
                    run("losetup", "--detach", device)
                    attached.discard(device)
                wait_for(lambda: not _loops(home), 40.0, "for all of them to be gone")
                sizes.append(resident_kb(pid))
                descriptors.append(descriptors_of(pid))
                assert limits().dirty_bytes == PIN
            print(f"\n{ROUNDS * MANY} attached and detached: RSS {sizes} kB, fds {descriptors}")
            # 0.2 MB was seen; 3 to 6 where nothing collects the cycles that they leave.
            assert sizes[-1] - sizes[0] < 1024, "it grows with the disks that are gone"
            assert descriptors[-1] <= descriptors[0]
            assert daemon.end() == 0
    finally:
        for device in attached:
            run("losetup", "--detach", device)
        shutil.rmtree(directory)
    assert limits() == found
    home.check_log()


def _loops(home: Home) -> List[str]:
    status = home.ask("status") or {"devices": []}  # not up yet
    return [row["name"] for row in status["devices"] if row["name"].startswith("loop")]


@pytest.mark.parametrize("same", [True, False], ids=["the same disk", "another disk"])
def test_unplugged_under_a_flood(
    start: Start, home: Home, found: VmLimits, same: bool
) -> None:
    """The row goes and comes back with what was learned; as another disk with nothing of it."""
    directory = Path("/dev/shm") / f"writebackd-test-{os.getpid()}"
    directory.mkdir()
    disks = [directory / "first", directory / "second"]
    for disk in disks:
        with open(disk, "wb") as sparse:
            sparse.truncate(256 << 20)
    device = attach(disks[0])
    name = device.rpartition("/")[2]
    home.state_dir.mkdir()
    known = {_identity(name): Learned(baseline_s=Fact(BASELINE_S, time.time()))}
    save_learned(home.state_dir / LEARNED, known)
    flood = None
    try:
        daemon = start("--device", name)
        wait_for(lambda: _baseline_s(home, name) == BASELINE_S, what="for what was learned")
        for number in range(4):
            first = same or number % 2 == 1
            flood = subprocess.Popen(
                ["dd", "if=/dev/zero", f"of={device}", "bs=1M", "count=200", "conv=notrunc"],
                stderr=subprocess.DEVNULL,
            )
            wait_for(lambda: _write_rate(home, name), what="for the flood")
            kill(flood.pid)  # the last user: the kernel detaches at its close
            flood.wait()
            run("losetup", "--detach", device)
            wait_for(lambda: name not in _loops(home), what="for the row to go")
            run("losetup", device, str(disks[0 if first else 1]))
            wait_for(lambda: _write_rate(home, name) == 0, what="for a measured row to come back")
            assert _baseline_s(home, name) == (BASELINE_S if first else None)
            assert is_alive(daemon.process.pid)
            home.check_way_home(found)
        assert daemon.end() == 0
    finally:
        if flood is not None and flood.poll() is None:
            flood.kill()
            flood.wait()
        with contextlib.suppress(AssertionError):
            run("losetup", "--detach", device)
        shutil.rmtree(directory)
    assert limits() == found
    home.check_log()


# Of a fsync; what this kind of probe does not see is not learned anew meanwhile.
BASELINE_S = 0.0042


def _identity(name: str) -> str:
    """What the daemon calls a disk in what it has learned."""
    cache = Path(f"/sys/block/{name}/queue/write_cache").read_text().strip()
    devno = Path(f"/sys/block/{name}/dev").read_text().strip()
    identity = leaf_identity(FILES, name, devno, cache)
    assert identity is not None
    return identity


def _row(home: Home, name: str) -> Dict[str, Any]:
    status = home.ask("status") or {"devices": []}
    return next((row for row in status["devices"] if row["name"] == name), {})


def _baseline_s(home: Home, name: str) -> Optional[float]:
    found: Optional[float] = _row(home, name).get("fsync_baseline_s")
    return found


def _write_rate(home: Home, name: str) -> Optional[float]:
    """None where the disk is not there, or not measured yet."""
    found: Optional[float] = _row(home, name).get("write_rate")
    return found
