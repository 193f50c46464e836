# SPDX-License-Identifier: GPL-2.0-or-later
"""The pictures of docs/explanation/how-it-decides.md, drawn from the plant and the law.

    PYTHONPATH=agent python -m tests.sim.pictures [DIRECTORY]

takes 10 s of CPU.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import List, Sequence, Tuple

from tests.lab.drawing import HEIGHT, WIDTH, Plot, image
from tests.sim import bench
from tests.sim.plant import MB, Disk, Flood, Loop
from tests.sim.scenarios import Scenario
from tests.sim.truth import CHANGES, END_S, changing, played
from writebackd.control.reasons import wait_s
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy
from writebackd.report.plot import LOG, SIZES, Axis, Point, axis
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "explanation"
# The disk of the page's example: 250 MB/s, and a quarter of a millisecond of them for each sync.
DISK = Disk(scattered_s=0.25e-3, lag_s=3.5)
LIMITS_MB = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 23.0, 32.0, 45.0, 64.0)
BEGINS_S, ENDS_S = 10.0, 70.0


def page(plots: Sequence[Plot]) -> str:
    """The plots side by side, as an image that needs nothing else."""
    return image(WIDTH * len(plots), HEIGHT, "".join(
        plot.svg().replace("<svg ", f'<svg x="{WIDTH * at}" width="{WIDTH}" height="{HEIGHT}" ', 1)
        for at, plot in enumerate(plots)))


def fixed_limits(policy: Policy) -> str:
    """What fixed limits bring on the disk, and where the law comes to rest."""
    scenario = Scenario("fixed", (DISK,), (Flood(start_s=2.0),), judged=40.0, end=160.0)
    runs = [bench.run(scenario, limit=int(limit * MB)) for limit in LIMITS_MB]
    law = bench.run(scenario, policy=policy)
    rest = statistics.median(limit for at_s, limit in law.limits if at_s >= 40.0) / MB
    x = Axis("vm.dirty_bytes, MiB", 0.9, 72.0, SIZES)
    plots = []
    for title, unit, beside, of in (
        ("Syncs", "per second", 1.3, _syncs), ("Throughput of the disk", "MiB/s", 0.85, _rate),
    ):
        values = [of(run) for run in runs]
        plot = Plot(title, x, axis(unit, [*values, of(law)]))
        plot.line(list(zip(LIMITS_MB, values)), "without", "fixed limits")
        plot.point(rest, of(law), "with", "the law", 5)
        plot.label(LIMITS_MB[-4], values[-4] * beside, "fixed limits", "without")
        plot.label(rest, of(law) * beside, "writebackd", "with")
        plots.append(plot)
    return page(plots)


def _syncs(run: bench.Run) -> float:
    return run.sync_rate[0]


def _rate(run: bench.Run) -> float:
    return run.device_rate / MB


def flood(policy: Policy) -> str:
    """A flood that begins beside syncs, with the law and with default limits."""
    followed, left = _played(policy, Mode.ENFORCE), _played(policy, Mode.OBSERVE)
    x = Axis("seconds", 0.0, ENDS_S)
    waits = Plot("fsync, 99th percentile", x, axis(
        "ms", [y for _, y in followed[0] + left[0]], LOG, floor=0.1))
    limits = Plot("Dirty limit", x, axis(
        "MiB", [y for _, y in followed[1] + left[1]], LOG))
    # The words stand beside the lines, in ms and in MiB.
    for plot, which, above, below in ((waits, 0, 250.0, 2.0), (limits, 1, 1500.0, 20.0)):
        plot.line(left[which], "without", "default limits", step=True)
        plot.line(followed[which], "with", "writebackd", step=True)
        plot.event(BEGINS_S, "flood begins", "flood begins")
        plot.label(0.0, above, "default limits", "without")
        plot.label(45.0, below, "writebackd", "with")
    return page((waits, limits))


def _played(policy: Policy, mode: Mode) -> Tuple[List[Point], List[Point]]:
    """Waits in ms and limits in MiB over time; in observe mode nothing is applied."""
    scenario = Scenario("flood", (DISK,), (Flood(start_s=BEGINS_S),))
    loop = Loop(policy, scenario.plant(), Memory(mode=mode))
    waits: List[Point] = []
    limits: List[Point] = []
    while loop.plant.now_s < ENDS_S - 1e-6:
        _, estimates, _ = loop.tick()
        (seen,) = estimates.values()
        waits.append((loop.plant.now_s, wait_s(seen) * 1e3 or None))
        limits.append((loop.plant.now_s, loop.plant.limit / MB))
    return waits, limits


def drain_rate(policy: Policy) -> str:
    """R, and what the disk really drains, where that depends on the data and on how full it is."""
    x = Axis("seconds", 0.0, END_S)
    plots = []
    for name, disk, slower in CHANGES:
        seconds = played(policy, disk, 1, END_S, changing(disk, slower))
        truth = [(each.now_s, each.truth / MB) for each in seconds]
        known = [(each.now_s, each.rate / MB if each.rate else None) for each in seconds]
        plot = Plot(name, x, axis("MiB/s", [0.0, *(y for _, y in truth), *(y for _, y in known)]))
        plot.line(truth, "without", "the disk", step=True)
        plot.line(known, "with", "R", step=True)
        plot.label(2.0, 0.85 * disk.drain / MB, "writebackd", "with")
        plot.label(60.0, 0.8 * slower / MB, "the disk", "without")
        plots.append(plot)
    return page(plots)


def main() -> int:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY
    policy = load_policy("default")
    (directory / "fixed-limits.svg").write_text(fixed_limits(policy), encoding="utf-8")
    (directory / "flood.svg").write_text(flood(policy), encoding="utf-8")
    (directory / "drain-rate.svg").write_text(drain_rate(policy), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
