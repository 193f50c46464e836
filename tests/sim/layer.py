# SPDX-License-Identifier: GPL-2.0-or-later
"""python -m tests.sim.layer [PYTEST OPTIONS]: the tests of this directory, in two processes.

A run needs nothing but CPU, and one core takes five minutes for ten thousand.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
APART = HERE / "test_bounds.py"
NOTHING_CHOSEN = 5  # pytest's exit code when no test matched the options


def main() -> int:
    options = sys.argv[1:]
    pytest = [sys.executable, "-m", "pytest", *options]
    # What the one prints comes after the other, not in between.
    with tempfile.TemporaryFile() as later:
        both = [
            subprocess.Popen([*pytest, str(APART)], stdout=later, stderr=subprocess.STDOUT),
            subprocess.Popen([*pytest, str(HERE), f"--ignore={APART}"]),
        ]
        try:
            codes = {process.wait() for process in both}
        except KeyboardInterrupt:
            for process in both:
                process.send_signal(signal.SIGINT)
            codes = {process.wait() for process in both}
        later.seek(0)
        sys.stdout.flush()
        shutil.copyfileobj(later, sys.stdout.buffer)
    return 0 if codes <= {0, NOTHING_CHOSEN} and 0 in codes else 1


if __name__ == "__main__":
    raise SystemExit(main())
