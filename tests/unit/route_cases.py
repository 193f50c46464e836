# SPDX-License-Identifier: GPL-2.0-or-later
"""Made-up alerts, and the settings of routes."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator

from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Evidence, Severity
from writebackd.notify.alert_events import AlertEvent, EventKind
from writebackd.policy.keys import Routing

WALL_S = 1_764_000_000.0
DD = Culprit(
    4242, "dd", "dd if=/dev/zero of=/backup/x", "/system.slice/backup.service", "backup.service",
    None, 310e6,
)  # fmt: skip
FLOOD = Alert(
    AlertName.COLLAPSE,
    "sda",
    Severity.WARNING,
    Cause.FLOOD,
    WALL_S - 12.0,
    "syncs 12/s against 340/s, p99 2.1 s against 3 ms",
    "limit 4.0G -> 15M",
    (DD,),
    Evidence(WALL_S - 15, WALL_S, (("sync_rate", 12.0), ("fsync_p99_s", 2.1))),
)
BATTERY = replace(FLOOD, cause=Cause.WRITE_THROUGH, culprits=())
CRITICAL = replace(FLOOD, severity=Severity.CRITICAL)
BLIND = Alert(AlertName.BLIND, None, Severity.WARNING, Cause.NO_DATA, WALL_S, "no data", "held")

OFF = Routing(
    journal=False, alertmanager=(), exec="", mail=(), sendmail="/usr/sbin/sendmail",
    resend_s=60.0, timeout_s=2.0, runbook="",
)  # fmt: skip


def settings(**changes: Any) -> Routing:
    """No route but those that are named."""
    return replace(OFF, **changes)


def happening(
    what: EventKind = EventKind.BEGIN, alert: Alert = FLOOD, **changes: Any
) -> AlertEvent:
    return replace(AlertEvent(what, "COLLAPSE/sda/1", alert, WALL_S), **changes)


@contextmanager
def open_directory() -> Iterator[Path]:
    """One that programs of routes reach, which run as nobody: pytest's are root's alone."""
    with tempfile.TemporaryDirectory(prefix="writebackd-test-") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def wait_for(what: Callable[[], Any], limit_s: float = 10.0) -> Any:
    """The first answer that is true; fails when none is within the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {found!r}"
        time.sleep(0.01)
