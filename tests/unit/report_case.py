# SPDX-License-Identifier: GPL-2.0-or-later
"""A history as the daemon would have written it, of a host that the plant model plays.

    python3 tests/unit/report_case.py FILE [SECONDS]

writes one to look at: `writebackctl report --state-dir DIRECTORY`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.sim.plant import MB, RATIOS, Disk, Flood, Loop, Plant, SyncLoad
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.notify.alert_events import Tracker
from writebackd.policy import load_policy
from writebackd.report.device_figures import Collector
from writebackd.report.history_events import alert_events, events_of
from writebackd.report.history_schema import Event
from writebackd.report.history_store import History
from writebackd.report.snapshot import Snapshot
from writebackd.types.decision import Mode
from writebackd.types.samples import ProbeInfo

BEGIN_S = 1_790_000_000.0
ALERT = Alert(
    AlertName.COLLAPSE, "sda", Severity.WARNING, Cause.FLOOD, BEGIN_S,
    "2 fsync/s, 0.01 of its own 3000; <script>alert(1)</script> wrote 250M/s",
    "observing: nothing was done",
)  # fmt: skip


def write(path: Path, seconds: int = 900) -> None:
    """A fifth of the time without the agent, floods in waves, a stick that is written slowly."""
    plant = Plant(
        disks=(Disk(), Disk(drain=12.0 * MB, cache=0.0, link=35.0 * MB, baseline_s=20e-3)),
        floods=(Flood(0, 60.0, on_s=200.0, off_s=100.0),
                Flood(1, 300.0, seconds * 0.7, rate=8.0 * MB)),
        syncs=(SyncLoad(0, think_s=2e-3),),
    )  # fmt: skip
    policy = load_policy(None, None)
    loop = Loop(policy, plant)
    history, collector, tracker = History(path), Collector(), Tracker()
    last: Optional[Snapshot] = None
    for _ in range(seconds * 2):
        if plant.now_s >= seconds:
            break
        mode = Mode.OBSERVE if 0.4 < plant.now_s / seconds < 0.6 else Mode.ENFORCE
        memory = loop.memory
        sample, estimates, decision = loop.tick()
        if mode is Mode.OBSERVE:
            plant.set_limits(None, None)
            loop.memory = replace(
                loop.memory, limit_bytes=None, goal_bytes=None, background_bytes=None
            )
        if last is not None and last.memory.mode is not mode:
            history.record(Event(BEGIN_S + sample.time_s, "mode", text=mode.value))
        snapshot = Snapshot(
            version="0.1.0", policy=policy, started_s=0.0,
            sample=replace(sample, wall_s=BEGIN_S + sample.time_s), estimates=estimates,
            decision=decision, memory=replace(memory, mode=mode), originals=RATIOS,
            probe=ProbeInfo("libbpf"), self_cpu_fraction=0.002, self_rss_bytes=19 * MB,
            state_dir=str(path.parent), alerts=(ALERT,) * (mode is Mode.OBSERVE),
        )  # fmt: skip
        happened = tracker.tell(snapshot.alerts, snapshot.sample.wall_s)
        told = alert_events(happened, "host", "https://example.org/runbook")
        for event in (*told, *events_of(last, snapshot, ())):
            history.record(event)
        history.record_figures(collector.add(snapshot))
        last = snapshot
    if not history.close(10.0) or history.dropped:
        raise OSError(f"{path}: {history.error}, {history.dropped} dropped")


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3600)
