# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon without BPF, under a flood: /proc alone, and no fsync that it could see."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kernel.fault_rig import limits, limits_kept, wait_for
from tests.kernel.test_daemon import Running
from tests.vm.inside.flood import MIB, SCRATCH, dirty_bytes, flood, scratch_disk_name
from tests.vm.inside.recorded import FLOOD, Record, record_probe

# One line for each: when it ended, and how long it took.
SYNCS = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
while True:
    os.pwrite(file, b"x" * 4096, 0)
    begun = time.monotonic()
    os.fsync(file)
    print(time.monotonic(), time.monotonic() - begun, flush=True)
    time.sleep(0.02)
"""
REST_S = 20.0


class Syncs:
    """A program that syncs, and what it saw."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "syncs"
        with open(self._log, "w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SYNCS, str(SCRATCH / "synced")], stdout=output
            )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def seen(self) -> bool:
        return self._log.stat().st_size > 0

    def slowest(self, name: str, begin: float, end: float) -> float:
        """Seconds, of those that ended in that time."""
        lines = (map(float, line.split()) for line in self._log.read_text().splitlines())
        took = sorted(each for at, each in lines if begin <= at < end)
        assert took, f"no sync {name}"
        print(f"{name}: {len(took)} syncs, median {took[len(took) // 2] * 1e3:.0f} ms,"
              f" slowest {took[-1]:.2f} s")  # fmt: skip
        return took[-1]


def test_a_flood_is_held_without_a_probe(record_testsuite_property: Record) -> None:
    with limits_kept() as found, tempfile.TemporaryDirectory(dir="/run") as own:
        device = scratch_disk_name()
        running = Running(Path(own), "--interval", "1", "--probe", "procfs", "--mode", "enforce",
                          within_s=90.0)  # fmt: skip
        syncs = Syncs(Path(own))
        try:
            probe = running.status()["probe"]
            record_probe(record_testsuite_property, probe)
            assert probe["backend"] == "procfs"
            wait_for(syncs.seen, 60.0, "for the first sync")
            time.sleep(5.0)
            with flood():
                began, most, way = time.monotonic(), 0, []

                def at_rest() -> bool:
                    nonlocal most
                    limit, dirty = limits().dirty_bytes, dirty_bytes()
                    most = max(most, dirty)
                    way.append((time.monotonic() - began, limit / MIB, dirty / MIB))
                    target = running.device(device).get("target_bytes")
                    return bool(limit and target and limit <= 1.1 * target)

                wait_for(at_rest, 120.0, "for the limit to come down")
                rest = time.monotonic()
                time.sleep(REST_S)
                held = max(dirty_bytes() for _ in range(20))
                limit, row, over = limits().dirty_bytes, running.device(device), time.monotonic()
        finally:
            syncs.end()
            code = running.end()
        print("\nseconds, limit and dirty in MiB:")
        print("; ".join(f"{at:.1f} {limit:.0f} {dirty:.0f}" for at, limit, dirty in way[::3]))
        print(f"at rest after {rest - began:.1f} s: {limit / MIB:.1f} MiB; dirty at most"
              f" {most / MIB:.0f} MiB on the way, then {held / MIB:.1f} MiB\n{row}")  # fmt: skip
        syncs.slowest("before the flood", 0.0, began)
        coming = syncs.slowest("on the way", began, rest)
        resting = syncs.slowest("at rest", rest, over)
        for name, value in (
            ("dirty at most, MB", most / 1e6), ("limit at rest after, s", rest - began),
            ("slowest fsync until then, s", coming), ("at rest, s", resting),
        ):  # fmt: skip
            record_testsuite_property(f"{FLOOD}{name}", f"{value:.3g}")
        assert resting < coming / 2
        assert limit < 64 * MIB and held < 2 * limit + 32 * MIB and held < most / 2
        assert row["state"] == "blind" and row["fsync_p99_s"] is None
        assert code == 0 and limits() == found
