# SPDX-License-Identifier: GPL-2.0-or-later
"""From the start of the daemon to its first decision, and the memory it takes until then.

    python -m tests.bench.start_cost

The daemon runs on this kernel in mode observe, which sets nothing, without the packages that only
`writebackctl top` needs.  Seconds are printed and not judged: they are the machine's.  Exit code 1
where the daemon then has more than LIMIT_MB resident.
"""

from __future__ import annotations

import os
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
LIMIT_MB = 45.0
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("psutil", "pyroute2", "rich")))
sys.path.insert(0, sys.argv.pop(1))
from writebackd.cli.daemon_main import main
sys.exit(main())
"""
AGENT = Path(__file__).resolve().parents[2] / "agent"


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
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="writebackd-start-") as name:
            found.append(start(Path(name)))
    wall, busy = (" ".join(f"{each[n]:.2f}" for each in sorted(found)) for n in (0, 1))
    resident = max(rss for *_, rss in found) / 1e6
    print(f"start to first decision: {wall} s (wanted: 1), of it processor time"
          f" {busy}; {resident:.0f} MB resident (at most {LIMIT_MB:.0f})")
    return int(resident > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
