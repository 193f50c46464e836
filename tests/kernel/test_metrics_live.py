# SPDX-License-Identifier: GPL-2.0-or-later
"""The metrics of a daemon on this kernel, in observe mode: the verb, the socket, the textfile."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Callable

import pytest

from tests.kernel.fault_rig import wait_for
from tests.kernel.test_daemon import Running, start  # noqa: F401 (a fixture)


def scrape(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while chunk := sock.recv(1 << 16):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    return body


def test_all_ways_out_of_a_running_daemon(
    tmp_path: Path, start: Callable[..., Running]  # noqa: F811
) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: apt-get install prometheus")
    textfile = tmp_path / "host.prom"
    policy = tmp_path / "metrics.conf"
    policy.write_text(f"[metrics]\ntextfile = {textfile}\ntextfile-interval = 1s\n")
    daemon = start("--mode", "observe", "--policy", str(policy))
    wait_for(textfile.exists)
    code, answer, error = daemon.ctl("metrics", "--format", "prometheus")
    assert code == 0, error
    bodies = {
        "verb": answer["text"].encode(),
        "socket": scrape(daemon.runtime_dir / "metrics.sock"),
        "textfile": textfile.read_bytes(),
    }
    for name, body in bodies.items():
        done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b""), (name, done.stderr)
        assert b"\nwritebackd_enforcing 0\n" in body
        assert b'writebackd_lever_writes_total{lever="limits",result="ok"} 0\n' in body
    disks = {row["name"] for row in daemon.ctl("devices")[1]["devices"] if row["managed"]}
    for disk in disks:
        line = f'writebackd_device_written_bytes_total{{device="{disk}"}} '.encode()
        assert line in bodies["socket"]
    assert daemon.end() == 0
    assert not textfile.exists()
