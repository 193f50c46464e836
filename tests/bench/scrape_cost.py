# SPDX-License-Identifier: GPL-2.0-or-later
"""What a scrape costs on a host with 100 devices, and what it takes to count for it.

    python -m tests.bench.scrape_cost

A whole HTTP request over the Unix socket, the answer rendered anew as after every tick, the
server in the daemon's own kind of loop; every series that a device can have is there.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from busy_host import busy_host, counted
from writebackd.report.metrics import OPENMETRICS, render
from writebackd.report.metrics_server import Exposition, open_unix
from writebackd.report.snapshot import Snapshot

DEVICES = 100
MANY = 1024
TURNS = 40
ROUNDS = 3
LIMIT_MS = 20.0  # a scrape with 100 devices
LIMIT_COUNT_MS = 6.0  # counting in one tick with 1 024
_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n"


def milliseconds(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(TURNS):
        begun = time.monotonic()
        work()
        spent.append((time.monotonic() - begun) * 1e3)
    return statistics.median(spent)


def scrape_ms(shown: Snapshot) -> float:
    """One scrape after another, each of another tick."""
    with tempfile.TemporaryDirectory(prefix="writebackd-scrape-") as directory:
        now = shown

        def scrape() -> None:
            nonlocal now
            now = replace(now)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(server_path))
                sock.sendall(_REQUEST)
                sock.setblocking(False)
                received, done = bytearray(), False
                while not done:
                    for key, mask in selector.select(1.0):
                        if key.data is server:
                            server.service(key, mask)
                    while not done:
                        try:
                            chunk = sock.recv(1 << 20)
                        except BlockingIOError:
                            break
                        received += chunk
                        done = not chunk
            assert received.endswith(b"\n# EOF\n")

        server_path = Path(directory, "metrics.sock")
        server = open_unix(server_path, Exposition(lambda: now))
        with selectors.DefaultSelector() as selector:
            server.register(selector)
            try:
                return milliseconds(scrape)
            finally:
                server.close()


def measure() -> bool:
    """Print the figures; whether they are as promised."""
    shown, many = counted(busy_host(DEVICES)), counted(busy_host(MANY))
    text = render(shown, OPENMETRICS)
    series = sum(not line.startswith("#") for line in text.splitlines())
    scrape, render_many = scrape_ms(shown), milliseconds(lambda: render(many, OPENMETRICS))
    counting = milliseconds(lambda: counted(many))
    print(f"a scrape with {DEVICES} devices: {scrape:.1f} ms (promised: {LIMIT_MS:.0f}),"
          f" {series} series, {len(text) / 1024:.0f} KB")
    print(f"with {MANY}: {render_many:.0f} ms to render; counting in each tick: {counting:.1f} ms")
    return scrape <= LIMIT_MS and counting <= LIMIT_COUNT_MS


def main() -> int:
    """1 when a scrape costs more than is promised."""
    return 0 if any(measure() for _ in range(ROUNDS)) else 1


if __name__ == "__main__":
    sys.exit(main())
