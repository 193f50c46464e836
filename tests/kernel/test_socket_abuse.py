# SPDX-License-Identifier: GPL-2.0-or-later
"""The running daemon's control socket under clients that mean no good, as another user.

tests/unit/test_control_server.py has the server alone; here is what it costs the daemon:
its memory, its descriptors, and the time of its ticks.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from tests.kernel.fault_rig import AGENT, resident_kb, wait_for
from writebackd.cli.client import request
from writebackd.cli.exit_codes import CommandError

TICK_S = 0.1
# Six seconds: longer than a client is given (report/control_server.py, DEADLINE_S).
ATTACK_S = 6.0
CLIENTS = 1000

# The daemon, which also writes down when its ticks began.
TIMED = """
import sys, time
import writebackd.daemon as d
path, real, times = sys.argv.pop(), d.Daemon._tick, []
def tick(self):
    times.append(time.monotonic())
    return real(self)
d.Daemon._tick = tick
from writebackd.cli.daemon_main import main
code = main(sys.argv[1:])
with open(path, "w") as file:
    print(*times, sep="\\n", file=file)
sys.exit(code)
"""

# Runs as nobody, with nothing of this checkout: /usr/bin/python3 and a path to the socket.
ATTACKER = r"""
import json, os, random, resource, socket, sys, time
path, kind, seconds, clients = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
dice, until, done, answers = random.Random(kind), time.monotonic() + seconds, 0, []
def connect(timeout=2.0):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout)
    sock.connect(path)
    return sock
def line():
    good = dice.choice([b'{"verb": "status"}', b'{"verb": "why", "args": {"device": "sda"}}',
                        b'[' * 2000, b'{"verb": "pin", "args": {"bytes": 1e400}}', b'"\\ud800"'])
    data = bytearray(good)
    for _ in range(dice.randrange(6)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data) + b"\n"
held = []
while time.monotonic() < until:
    done += 1
    try:
        if kind == "fuzz":
            with connect() as sock:
                raw = dice.randbytes(dice.randrange(5000))
                sock.sendall(line() if dice.random() < 0.7 else raw)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass
        elif kind == "oversize":
            with connect() as sock:
                sock.sendall(b"x" * (1 << 20))
        elif kind == "slow":
            if len(held) < clients:
                # Non-blocking: what the backlog does not take is tried again.
                sock = socket.socket(socket.AF_UNIX)
                sock.setblocking(False)
                sock.connect(path)
                held.append(sock)
            talking = held[::2]  # the others say nothing at all
            for sock in dice.sample(talking, min(len(talking), 20)):
                try:
                    sock.send(b"{")
                except OSError:
                    sock.close()
                    held.remove(sock)
        elif kind == "deaf":
            sock = connect()
            sock.sendall(b'{"verb": "status"}\n')
            held.append(sock)  # and never reads
            if len(held) > clients:
                held.pop(0).close()
        elif kind == "write":
            for request in ({"verb": "mode", "args": {"mode": "enforce"}}, {"verb": "release"},
                            {"verb": "pin", "args": {"bytes": 1 << 24}}):
                with connect() as sock:
                    sock.sendall(json.dumps(request).encode() + b"\n")
                    answer = json.loads(sock.makefile().readline())
                    if "busy" not in answer.get("error", ""):
                        answers.append(answer)
    except (OSError, ValueError):
        time.sleep(0.001)
print(json.dumps({"done": done, "answers": answers[-30:], "uid": os.getuid()}))
"""


class Attacked:
    """A daemon that writes nothing, in a directory that everybody can go to."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.times = home / "times"
        self.log = home / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", TIMED, "--mode", "observe", "--probe", "procfs",
                 "--interval", str(TICK_S), "--policy", "default",
                 "--runtime-dir", str(home / "run"), "--state-dir", str(home / "state"),
                 str(self.times)],
                env={**os.environ, "PYTHONPATH": str(AGENT)}, stdout=log, stderr=log,
            )
        wait_for(self.answers, what=f"for the daemon to answer: {self.log}")

    def answers(self) -> Dict[str, Any]:
        try:
            return request(self.home / "run", "status", timeout_s=20.0)
        except CommandError:
            return {}

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def attack(self) -> List[Dict[str, Any]]:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert hard == resource.RLIM_INFINITY or hard > CLIENTS
        running = [
            subprocess.Popen(
                ["/usr/bin/python3", "-c", ATTACKER, str(self.home / "run/control.sock"), kind,
                 str(ATTACK_S), str(CLIENTS)],
                user=user, group="nogroup", extra_groups=[], cwd="/", env={},
                stdout=subprocess.PIPE,
            )
            for kind, user in zip(KINDS, USERS)
        ]
        status = []
        while any(process.poll() is None for process in running):
            begun = time.monotonic()
            assert self.answers(), "root was locked out"
            status.append(time.monotonic() - begun)
            time.sleep(0.2)
        outputs = [process.communicate()[0] for process in running]
        assert all(process.returncode == 0 for process in running)
        assert max(status) < 5, "root had to wait"
        return [json.loads(output) for output in outputs]

    def end(self) -> List[float]:
        """Seconds between its ticks."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=20) == 0
        times = [float(text) for text in self.times.read_text().split()]
        return [after - before for before, after in zip(times, times[1:])]


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    home = Path(tempfile.mkdtemp(prefix="writebackd-test-"))
    home.chmod(0o755)
    daemon = Attacked(home)
    yield daemon
    if daemon.process.poll() is None:
        daemon.process.kill()
        daemon.process.wait()
    shutil.rmtree(home)


# Two users, who take all places together.
KINDS = ("fuzz", "slow", "oversize", "deaf", "write", "slow")
USERS = ("nobody",) * 5 + ("games",)


def test_it_costs_neither_ticks_nor_memory(attacked: Attacked) -> None:
    time.sleep(1.0)
    rss, descriptors = resident_kb(attacked.process.pid), attacked.descriptors
    results = attacked.attack()
    grown = resident_kb(attacked.process.pid) - rss
    after = attacked.answers()
    # Whoever is left of them goes at his deadline.
    wait_for(lambda: attacked.descriptors <= descriptors, 10.0, "for its descriptors")
    gaps = attacked.end()
    tried = [(kind, result["done"]) for kind, result in zip(KINDS, results)]
    print(f"\n{tried} requests in {ATTACK_S:.0f} s: RSS {grown:+d} kB, longest tick "
          f"{max(gaps):.3f} s of {TICK_S}, median {sorted(gaps)[len(gaps) // 2]:.3f} s")
    assert all(count > 0 for _, count in tried)
    # MAX_CLIENTS with a request and an answer each are below 1 MB; the rest is the allocator's.
    assert grown < 4096
    assert sorted(gaps)[len(gaps) // 2] < 1.5 * TICK_S
    assert max(gaps) < 5 * TICK_S
    assert (after["mode"], after["pin_bytes"]) == ("observe", None)
    for kind, result in zip(KINDS, results):
        if kind == "write":
            assert result["uid"] != 0 and result["answers"]
            assert {each["exit"] for each in result["answers"]} == {4}
            assert all("needs root" in each["error"] for each in result["answers"])
    assert "Traceback" not in attacked.log.read_text()
