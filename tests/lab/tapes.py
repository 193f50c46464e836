# SPDX-License-Identifier: GPL-2.0-or-later
"""Tapes of the agent on modelled disks, beside what the disks did: the unit tests judge them.

    sudo build/venv/bin/python -m tests.lab.tapes record [NAME...]
    build/venv/bin/python -m tests.lab.tapes judge [NAME...]

`record` makes tests/unit/tapes/NAME anew, on a real kernel: each recording is another one, so it is
only for a change of what is sampled or of the model.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Set, Tuple

from writebackd.paths import SAMPLES
from writebackd.report.recorder import Recorded, Recorder, read_recording, recorded_decision
from writebackd.types.samples import Sample, TaskSample
from writebackd.types.storage import Device

from . import contenders
from .ballast import Ballast, left
from .bench import alone
from .disks import Disk, preset
from .judge import TRUTH, again, judge, play, table
from .remains import RigError
from .run import Conditions, Stage, unchanged_limits
from .scenario import DiskSpec, Event, Scenario, parse
from .truth import Looker

DIRECTORY = Path(__file__).parents[1] / "unit/tapes"
FILE = "samples.tape"
PREFIX = "tape"
# The first flood is longer than one that the law takes for a wave; what the cache drains in the
# pause is seen to fill it again.
FLOODS, END_S = "5s..42s 50s..", 75
CHANGE_S = 38
WRITE_S = 10.0  # patience for the file of a tape


@dataclass(frozen=True)
class Run:
    disk: Disk
    fs: str = "xfs"
    floods: str = FLOODS
    events: Tuple[Event, ...] = ()
    mode: str = "enforce"


def runs() -> Dict[str, Run]:
    array = preset("raid-512M-bbu")
    halves = Event(CHANGE_S, "db", (("rate", "125M"),))
    return {
        "array": Run(array),
        "slow-array": Run(preset("slow-raid-256M-60MBps")),
        # Slower than the preset: 450 MB/s beside syncs would show the lab's own speed.
        "ssd": Run(replace(preset("sata-ssd"), rate="250M"), "ext4"),
        "no-cache": Run(preset("hdd-no-cache"), "ext4"),
        "halves": Run(array, floods="5s..", events=(halves,)),
        "observed": Run(array, mode="observe"),
    }


def scenario_of(run: Run) -> Scenario:
    found = parse(PREFIX, {
        "scenario": {"summary": "", "shows": "", "idle": "500ms..4500ms",
                     "judged": f"20s..{END_S}s"},
        "disk db": {"preset": "raid-512M-bbu"},
        "load database": {"kind": "fsync", "role": "sync"},
        "load flood": {"kind": "dd", "role": "flood", "size": "auto", "runs": run.floods},
    })
    return replace(found, disks=(DiskSpec("db", "", run.fs, run.disk, ""),), events=run.events)


def record(run: Run, directory: Path) -> None:
    """Raises RigError; then `directory` is as it was."""
    conditions = Conditions("native", 1.0, PREFIX, left(), f"{platform.release()}")
    lines = ("history", "samples", "64M"), ("policy", "mode", run.mode)
    agent = replace(contenders.named("agent"), policy=lines)
    with unchanged_limits(), ExitStack() as stack:
        stage = Stage(scenario_of(run), agent, conditions, 1, stack)
        (rig,) = stage.rigs.values()
        with Looker(rig.control.path, run.disk) as looker:
            stage.play()
            end_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            stage.end()
        ticks = [tick for tick in read_recording(rig.directory / "state" / SAMPLES)
                 if tick.sample.time_s <= end_s]
    if not ticks:
        raise RigError("the agent has recorded nothing")
    first = ticks[0].sample
    truth = looker.truth.part(first.time_s - first.dt_s, end_s)
    with tempfile.TemporaryDirectory() as made:
        write_tape(without_names(ticks), Path(made))
        (tape,) = Path(made).iterdir()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE).write_bytes(tape.read_bytes())
    truth.write(directory / TRUTH)


def write_tape(ticks: Sequence[Recorded], directory: Path) -> None:
    """RigError where a tick is decided otherwise than it was: something is missing in it."""
    tape = Recorder(directory, 1 << 30)
    different = 0
    for step in again(ticks):
        different += recorded_decision(step.decision) != step.outcome
        tape.record(step.policy, step.before, step.sample, step.decision, step.after)
        time.sleep(0.005)  # or its queue overflows
    if not tape.close(WRITE_S) or tape.dropped:
        raise RigError(f"{directory}: the tape was not written: {tape.error or 'too slow'}")
    if different:
        raise RigError(f"{different} of {len(ticks)} ticks decide otherwise without what was left "
                       "out of them")


def without_names(ticks: Sequence[Recorded]) -> List[Recorded]:
    """The ticks without what tells of this host, and without what no estimate needs."""
    written = {seen.device.name for tick in ticks for seen in tick.sample.devices
               if seen.excluded is None or seen.write_bytes}
    return [replace(tick, sample=_sample(tick.sample, written)) for tick in ticks]


def _sample(sample: Sample, written: Set[str]) -> Sample:
    return replace(
        sample,
        devices=tuple(replace(seen, device=_device(seen.device)) for seen in sample.devices
                      if seen.device.name in written),
        tasks=tuple(TaskSample(number, "writer", 0, task.device, task.dirtied_bytes,
                               task.throttled_s)
                    for number, task in enumerate(sample.tasks, start=1)),
        cgroups=(), backings=(), errors=(), foreign=())


def _device(device: Device) -> Device:
    mounts = tuple((number, kind, "/") for number, kind, _ in device.filesystems)
    return replace(device, filesystems=mounts, identity=None)


def main(argv: Optional[Sequence[str]] = None) -> int:
    known = runs()
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab.tapes",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("record", "judge"))
    parser.add_argument("name", nargs="*", help=f"of {', '.join(known)}; all unless told")
    arguments = parser.parse_args(argv)
    wrong = set(arguments.name) - set(known)
    if wrong:
        parser.error(f"no tape {', '.join(sorted(wrong))}: take one of {', '.join(known)}")
    names = arguments.name or list(known)
    if arguments.verb == "record":
        if os.geteuid():
            print("disks and limits need root", file=sys.stderr)
            return 4
        try:
            for name in names:
                with alone(), Ballast():
                    record(known[name], DIRECTORY / name)
        except RigError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
    print(table({name: judge(play(DIRECTORY / name)) for name in names}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
