# SPDX-License-Identifier: GPL-2.0-or-later
"""From the start of the daemon to its first decision, and the memory it takes until then.

    python -m tests.bench.start_cost

The daemon runs on this kernel in mode observe, which sets nothing, without the packages that only
`writebackctl top` needs.  Seconds are printed and not judged: they are the machine's.  Exit code 1
where every start took more than TIMES the processor time of a small program that is started
beside it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List, Tuple

from writebackd.cli.client import request
from writebackd.cli.exit_codes import CommandError

ROUNDS = 3
WAIT_S = 30.0
# Seen: 4.7 to 5.8 on a machine on which the small program takes 0.22 s.
TIMES = 8.0
SMALL = "import asyncio, email.mime.text, http.client, logging.handlers, sqlite3, unittest.mock"
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("psutil", "pyroute2", "rich")))
sys.path.insert(0, sys.argv.pop(1))
from writebackd.cli.daemon_main import main
sys.exit(main())
"""
AGENT = Path(__file__).resolve().parents[2] / "agent"


def small() -> float:
    """Seconds of processor time that a program of the standard library takes to start."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-c", SMALL], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start(work: Path) -> Tuple[float, float, int]:
    """Seconds to the first decision, those of processor time, and bytes resident then."""
    runtime = work / "run"
    argv = [sys.executable, "-I", "-c", PROGRAM, str(AGENT), "--mode", "observe",
            "--runtime-dir", str(runtime), "--state-dir", str(work / "state")]  # fmt: skip
    begun = time.monotonic()
    with open(work / "log", "w") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while True:
            try:
                answer = request(runtime, "status", {})
                break
            except CommandError:
                if process.poll() is not None or time.monotonic() - begun > WAIT_S:
                    raise SystemExit(f"no decision: {(work / 'log').read_text()}") from None
                time.sleep(0.01)
        wall = time.monotonic() - begun
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # utime, stime
        return wall, ticks / os.sysconf("SC_CLK_TCK"), answer["self"]["rss_bytes"]
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    found: List[Tuple[float, float, int]] = []
    times: List[float] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="writebackd-start-") as name:
            beside = small()
            found.append(start(Path(name)))
            times.append(found[-1][1] / beside)
    wall, busy = (" ".join(f"{each[n]:.2f}" for each in sorted(found)) for n in (0, 1))
    print(f"start to first decision: {wall} s (wanted: 1), of it processor time"
          f" {busy}, {min(times):.1f} times that of a small program (at most {TIMES:g});"
          f" {max(rss for *_, rss in found) / 1e6:.0f} MB resident")
    return int(min(times) > TIMES)


if __name__ == "__main__":
    sys.exit(main())
