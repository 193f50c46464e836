# SPDX-License-Identifier: GPL-2.0-or-later
"""What the agent costs a disk that nobody floods: its fsync rate with and without, in turns.

    python -m tests.bench.idle_fsync DIRECTORY [--pairs 10] [--seconds 20]

On a real disk: one thread writes 4 KiB at random into a file in DIRECTORY (64 MB, removed at the
end) and waits for fsync, as fast as it can.  In each pair once with the agent, as its users start
it, and once without; which comes first changes from pair to pair.  Wants an idle host.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator, List, NamedTuple

from tests.kernel.fault_rig import limits_kept
from tests.kernel.test_daemon import Running

WANTED = 0.99
FILE_BYTES = 64 << 20


class Load(NamedTuple):
    rate: float  # fsyncs per second
    cpu_us: float  # fio's own for each, the system calls included


def synced(file: Path, seconds: int) -> Load:
    """What fio did in so many seconds."""
    done = subprocess.run(
        ["fio", "--name=f", f"--filename={file}", f"--size={FILE_BYTES}", "--bs=4k",
         "--rw=randwrite", "--ioengine=psync", "--fsync=1", "--time_based",
         f"--runtime={seconds}", "--output-format=json"],
        check=True, capture_output=True, text=True,
    )
    job = json.loads(done.stdout)["jobs"][0]
    rate = job["sync"]["total_ios"] / (job["job_runtime"] / 1000.0)
    return Load(rate, (job["usr_cpu"] + job["sys_cpu"]) * 1e4 / rate)


@contextlib.contextmanager
def agent(directory: Path) -> Iterator[None]:
    running = Running(directory, "--interval", "1")
    try:
        assert running.status()["probe"]["backend"] == "libbpf", "nothing to measure"
        yield
    finally:
        code = running.end()
    assert code == 0, running.log.read_text()


def pairs(directory: Path, count: int, seconds: int) -> Iterator[List[Load]]:
    """`[without, with]` the agent, of one pair after the other."""
    with limits_kept(), tempfile.TemporaryDirectory(dir=directory) as own, \
            tempfile.TemporaryDirectory(dir="/dev/shm") as runtime:
        file = Path(own) / "file"
        synced(file, 5)  # lays it out, and the disk awakes
        for number in range(count):
            loads = [Load(0.0, 0.0), Load(0.0, 0.0)]
            for with_agent in (0, 1) if number % 2 else (1, 0):
                with agent(Path(runtime)) if with_agent else contextlib.nullcontext():
                    loads[with_agent] = synced(file, seconds)
            yield loads


def main() -> int:
    """Print a line a pair and the median of their ratios; 1 when that is less than wanted."""
    parser = argparse.ArgumentParser(description="fsync rate of an idle disk, with and without")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the agent ends as well
    ratios, more_us = [], []
    for without, with_agent in pairs(options.directory, options.pairs, options.seconds):
        ratios.append(with_agent.rate / without.rate)
        more_us.append(with_agent.cpu_us - without.cpu_us)
        print(f"without {without.rate:.0f}/s, with {with_agent.rate:.0f}/s: {ratios[-1]:.3f}; "
              f"{without.cpu_us:.1f} and {with_agent.cpu_us:.1f} us of CPU each", flush=True)
    median = statistics.median(ratios)
    print(f"an fsync takes {statistics.median(more_us):.1f} us more of CPU with the agent (median)")
    print(f"median {median:.3f} of {len(ratios)} pairs, {min(ratios):.3f} to {max(ratios):.3f} "
          f"(wanted: {WANTED}{'' if median >= WANTED else ', MISSED'})")
    return 0 if median >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
