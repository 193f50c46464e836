# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests of the daemon share: its start, fast if wanted, and what has to hold after faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import pytest

from writebackd.actuate.actuator import Actuator
from writebackd.actuate.host_lock import HostLock
from writebackd.actuate.lease import read_watch
from writebackd.actuate.ledger import load
from writebackd.actuate.lock import open_private
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import PAIRS, read_limits, write_pair
from writebackd.paths import LEDGER, SOCKET, WATCH
from writebackd.types.levers import VmLimits

AGENT = Path(__file__).resolve().parents[2] / "agent"
DAEMON = (sys.executable, "-m", "writebackd.cli.daemon_main")
VM = Path("/proc/sys/vm")
FILES = KernelFiles()
PIN = 32 << 20
# The shortest that a policy takes; the tests wait for its end.
LEASE_S = 1.0
# After that, and the grace of a watcher that woke up late.
HOME_S = LEASE_S + 1.5 + 2.0
POLICY = f"[limits]\nlease = {LEASE_S:g}s\n"

# In front of a daemon: it is pinned from its first tick on, at a limit that changes in every
# tick, so that it always writes.
PINNED = """
from dataclasses import replace
import writebackd.daemon as d
real, count = d.decide, [0]
def decide(policy, memory, sample, estimates):
    count[0] += 1
    memory = replace(memory, pin_bytes=(32 + 16 * (count[0] % 2)) << 20)
    return real(policy, memory, sample, estimates)
d.decide = decide
"""
# Begins with everything imported, and forks a daemon for each line of arguments: a start
# of Python takes longer than the life that these daemons have.
FORKING = """
import json, os, sys
import pyroute2
from writebackd.cli.daemon_main import main
for line in sys.stdin:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    log, *argv = json.loads(line)
    pid = os.fork()
    if not pid:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number in (1, 2):
            os.dup2(fd, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = 99
        try:
            code = main(argv)
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(pid, flush=True)
"""


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch it."""


class CrashingFiles(KernelFiles):
    """The real files, and a process that dies right before its write number `crash_before`."""

    crash_before: Optional[int] = None

    def write(self, name: str, value: str) -> None:
        if self.crash_before is not None:
            if self.crash_before == 0:
                raise Crash
            self.crash_before -= 1
        super().write(name, value)


def started(files: KernelFiles, path: Path) -> Actuator:
    """One that knows what it found, or goes on from the ledger at `path`."""
    actuator = Actuator(files, path, "restore")
    actuator.start()
    return actuator


def limits() -> VmLimits:
    return read_limits(FILES)


@contextlib.contextmanager
def limits_kept() -> Iterator[VmLimits]:
    """Whatever happens inside, the host's limits are what they were; gives them."""
    before = limits()
    try:
        yield before
    finally:
        for pair in PAIRS:
            write_pair(FILES, pair, pair.value(limits()), pair.value(before))
        assert limits() == before


def wait_for(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain {what}"
        time.sleep(0.01)


def resident_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def is_alive(pid: int) -> bool:
    """Not gone, and no zombie that only waits for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@contextlib.contextmanager
def runtime_in_memory() -> Iterator[Path]:
    """A runtime directory as /run has it: a disk that a test floods would hold up the lease."""
    # A guest has no such mount, and all it has in memory.
    memory = "/dev/shm" if os.path.ismount("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="writebackd-test-") as name:
        top = Path(name)
        try:
            yield top / "run"
        finally:
            # What was killed has left its limits: its successor restores them.
            (top / "next").mkdir()
            HostLock(FILES, top / "next").close()


class Home:
    """The directories of a daemon and its successors, and what can be asked of them."""

    def __init__(self, tmp: Path) -> None:
        tmp.mkdir(parents=True, exist_ok=True)
        self.runtime_dir, self.state_dir, self.log = tmp / "run", tmp / "state", tmp / "log"
        self.policy = tmp / "fault.conf"
        self.policy.write_text(POLICY)
        self.log.touch()
        self.runtime_dir.mkdir()
        self._watch_fd = open_private(self.runtime_dir / WATCH)

    def options(self, *more: str) -> List[str]:
        # No disk of the host has a say, whoever else writes to it meanwhile.
        return [
            "--runtime-dir", str(self.runtime_dir), "--state-dir", str(self.state_dir),
            "--policy", str(self.policy), "--probe", "procfs", "--interval", "0.05",
            "--device", "none*", *more,
        ]  # fmt: skip

    @property
    def watcher(self) -> Optional[int]:
        """The live watcher's process."""
        line = read_watch(self._watch_fd)
        return line.pid if line is not None and is_alive(line.pid) else None

    def ask(self, verb: str, **args: Any) -> Optional[Dict[str, Any]]:
        """The daemon's answer over its socket; None when nobody answers."""
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5.0)
                sock.connect(str(self.runtime_dir / SOCKET))
                sock.sendall(json.dumps({"verb": verb, "args": args}).encode() + b"\n")
                answer = json.loads(sock.makefile().readline())
        except (OSError, ValueError):
            return None
        data: Optional[Dict[str, Any]] = answer.get("data")
        return data

    def check_way_home(self, found: VmLimits) -> bool:
        """Whether the limits are as found; where not, the ledger has to know them."""
        now = limits()
        if now == found:
            return True
        ledger = load(self.runtime_dir / LEDGER)
        if ledger is None:
            # It goes after what it knows: the watcher has restored since the limits were read.
            assert limits() == found, f"{now} stands, and nothing says that it was {found}"
            return True
        assert ledger.originals == found
        for pair in PAIRS:
            mine = (pair.value(found), *ledger.ours(pair))
            assert pair.value(now) in mine, "in the kernel, and not in the ledger"
        return False

    def check_log(self) -> str:
        text = self.log.read_text()
        assert "Traceback" not in text and "program error" not in text, text[-3000:]
        return text

    def close(self) -> None:
        os.close(self._watch_fd)


class Running:
    """A daemon in a process of its own."""

    def __init__(self, home: Home, *more: str, argv: Sequence[str] = DAEMON) -> None:
        self.home = home
        with open(home.log, "ab") as log:
            self.process = subprocess.Popen(
                [*argv, *home.options(*more)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(AGENT)},
            )  # fmt: skip

    def answering(self) -> Running:
        wait_for(lambda: self.home.ask("status"), what="for the daemon to answer")
        return self

    def pinned(self) -> Running:
        self.answering()
        assert self.home.ask("pin", bytes=PIN) is not None
        wait_for(lambda: limits().dirty_bytes == PIN, what="for the limit")
        return self

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


class Starter:
    """Starts daemons within milliseconds."""

    def __init__(self, law: str = PINNED) -> None:
        """`law`: code in front of the daemons."""
        self._server = subprocess.Popen(
            [sys.executable, "-c", law + FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(AGENT)},
        )  # fmt: skip

    def start(self, home: Home, *more: str) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(home.log), *home.options(*more)]) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.communicate()


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    if number == signal.SIGKILL:
        wait_for(lambda: not is_alive(pid))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture
def found() -> Iterator[VmLimits]:
    with limits_kept() as found:
        yield found
