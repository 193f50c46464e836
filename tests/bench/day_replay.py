# SPDX-License-Identifier: GPL-2.0-or-later
"""What replaying a recorded day takes, and whether it comes to the same decisions.

    python -m tests.bench.day_replay [--flooded] [--hours 24] [--tape DIR]

A host with one RAID goes through a day in the plant model: a database with its hours, a
checkpoint every five minutes, logs rotated every hour, a backup at night, a rebuild at noon, copies
in the afternoon. The pure core decides, and the daemon's own tape keeps the ticks, a second apart
and half of that in a hurry, as in the daemon. Then `writebackctl replay` decides all of it again.
`--flooded` is the worst day, flood and syncs all the time and every tick a short one; `--tape`
keeps the tape in DIR, or replays what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List

from tests.sim.plant import MB, Disk, Event, Flood, Loop, Plant, SyncLoad
from writebackd.policy import load_policy
from writebackd.report.recorder import Recorder

HOUR_S = 3600.0
# For a day of one device, promised in docs/research/2026-11-costs.md; processor time, which others
# on the machine change less than time passed.
LIMIT_S = 60.0
# Flows hardly change within such a step; half of the plant's own would take twice as long.
STEP_S = 0.1


def host() -> Plant:
    """The day, from midnight on."""
    night = Flood(0, 1.0 * HOUR_S, 3.5 * HOUR_S)
    checkpoints = Flood(0, 6.0 * HOUR_S, 22.0 * HOUR_S, on_s=20.0, off_s=280.0, rate=60.0 * MB)
    logs = Flood(0, 0.0, on_s=4.0, off_s=HOUR_S - 4.0, rate=30.0 * MB)
    copies = Flood(0, 14.0 * HOUR_S, 17.0 * HOUR_S, on_s=240.0, off_s=660.0)
    syncs = (
        SyncLoad(0, 6.0 * HOUR_S, 22.0 * HOUR_S, threads=2, think_s=10e-3),
        SyncLoad(0, 9.0 * HOUR_S, 12.0 * HOUR_S, think_s=1e-3),
        SyncLoad(0, 13.0 * HOUR_S, 18.0 * HOUR_S, think_s=1e-3),
        SyncLoad(0, think_s=4.0),  # journald and cron
    )
    events = (
        Event(12.0 * HOUR_S, {"drain": 125.0 * MB}), Event(15.0 * HOUR_S, {"drain": 250.0 * MB})
    )
    return Plant((Disk(),), (night, checkpoints, logs, copies), syncs, events, step_s=STEP_S)


def flooded() -> Plant:
    """The worst day."""
    return Plant((Disk(),), (Flood(0),), (SyncLoad(0, think_s=1e-3),), step_s=STEP_S)


def record(directory: Path, plant: Plant, begin_h: float, hours: float) -> int:
    """Play that part of the day onto a tape; the number of ticks. Raises OSError."""
    loop, ticks = Loop(load_policy(None, None), plant), 0
    # What was before is not played: nothing of it is left but the disk's speed.
    plant.now_s = plant.since_s = plant.next_noise_s = begin_h * HOUR_S
    tape = Recorder(directory, 1 << 40)
    while plant.now_s < (begin_h + hours) * HOUR_S:
        before = loop.memory
        sample, _, decision = loop.tick()
        while tape._waiting.full():  # the daemon would drop it; its ticks are a second apart
            time.sleep(0.001)
        tape.record(loop.policy, before, sample, decision, loop.memory)
        ticks += 1
    if not tape.close(60.0) or tape.dropped:
        raise OSError(f"{directory}: {tape.error}, {tape.dropped} ticks dropped")
    return ticks


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.day_replay", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flooded", action="store_true")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--tape", type=Path, metavar="DIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.tape or Path(temporary)
        if not directory.is_dir() or not any(directory.iterdir()):
            began_s = time.process_time()
            plant = flooded() if options.flooded else host()
            ticks = record(directory, plant, 0.0, options.hours)
            files: List[Path] = list(directory.iterdir())
            size = sum(path.stat().st_size for path in files)
            print(f"recorded: {ticks} ticks of {options.hours:g} h, {size / 1e6:.1f} MB in"
                  f" {len(files)} files, {time.process_time() - began_s:.0f} s of CPU")
        return measure(directory)


def measure(directory: Path) -> int:
    """Replay it as a user does; 1 where it took too long or came to something else."""
    began_s = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-m", "writebackd.cli.ctl", "--json", "replay", "--tape", str(directory)],
        env=environment, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    passed_s = time.monotonic() - began_s
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = usage.ru_utime + usage.ru_stime
    answer = json.loads(done.stdout)
    hours = (answer["end_s"] - answer["begin_s"]) / HOUR_S
    print(f"replayed: {answer['ticks']} ticks of {hours:.1f} h in {passed_s:.1f} s,"
          f" {spent_s:.1f} s of CPU, {usage.ru_maxrss / 1024:.0f} MB;"
          f" {answer['decisions']} decisions, {answer['different']} of the ticks different")
    good = done.returncode == 0 and answer["different"] == 0 and spent_s <= LIMIT_S
    if not good:
        print(f"FAILED: it has to come to the same within {LIMIT_S:g} s of CPU")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
