# SPDX-License-Identifier: GPL-2.0-or-later
"""Fuzz all targets, or those named: `python -m tests.fuzz [--seconds N] [TARGET]...`.

Each runs in a process of its own with 512 MB at most and 5 s of processor an input.  What was
found to lead somewhere is kept in build/fuzz, so that the next run goes on from there; an
input that broke something is kept there too, and named.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Optional, Sequence, Tuple

KEPT = Path(__file__).resolve().parents[2] / "build" / "fuzz"
MEMORY_MB, INPUT_S, INPUT_BYTES = 512, 5, 8192
# libFuzzer's own limit counts wall time, also of a process that is stopped or starved: only
# for what waits for ever.
WAIT_S = 3600


def too_slow(number: int, frame: Optional[FrameType]) -> None:
    raise AssertionError(f"more than {INPUT_S} s of processor for one input")


def inside(target: str, options: Sequence[str]) -> None:
    """In a process of its own: libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["writebackd", "tests.fuzz"]):
        from tests.fuzz.targets import TARGETS
    signal.signal(signal.SIGPROF, too_slow)

    def timed(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, INPUT_S)
        TARGETS[target](data)

    atheris.Setup([target, *options], timed)
    atheris.Fuzz()


def run(target: str, seconds: int, kept: Path) -> Tuple[int, int]:
    """Exit code and the number of inputs tried."""
    from tests.fuzz.targets import seeds

    corpus = kept / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(target)):
        (corpus / f"seed-{number}").write_bytes(data)
    options = [
        f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={WAIT_S}",
        f"-max_len={INPUT_BYTES}", f"-artifact_prefix={kept}/{target}-", str(corpus),
    ]  # fmt: skip
    argv = [sys.executable, "-m", "tests.fuzz", "--inside", target, *options]
    # libFuzzer ends the process at once, which leaves its files.
    with tempfile.TemporaryDirectory(prefix="writebackd-fuzz-", dir="/dev/shm") as home:
        done = subprocess.run(
            argv, stderr=subprocess.PIPE, text=True, errors="replace",
            env={**os.environ, "TMPDIR": home},
        )
    found = re.search(r"^Done (\d+) runs", done.stderr, re.M)
    if done.returncode or found is None:
        print(done.stderr[-4000:], file=sys.stderr)
        return done.returncode or 1, 0
    return 0, int(found.group(1))


def main(argv: Sequence[str]) -> int:
    """1 when an input broke something."""
    if argv[:1] == ["--inside"]:
        inside(argv[1], argv[2:])
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target; default 60")
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="DIR")
    parser.add_argument("targets", nargs="*", metavar="TARGET", default=list(TARGETS))
    options = parser.parse_args(argv)
    failed = 0
    for target in options.targets:
        code, tried = run(target, options.seconds, options.kept.absolute())
        failed |= code
        print(f"{target:8} {tried:9} inputs in {options.seconds} s: "
              f"{'nothing broke' if not code else 'BROKEN, see above'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
