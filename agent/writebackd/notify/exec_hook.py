# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a program of the admin's for each alert event, with the event as JSON on stdin."""

from __future__ import annotations

import json
from functools import partial

from .alert_events import AlertEvent
from .alert_text import alert_event_json
from .route import QueuedRoute
from .unprivileged import run_unprivileged


def hook_route(program: str, host: str, runbook: str, limit_s: float) -> QueuedRoute:
    return QueuedRoute("exec", program, partial(_send, program, host, runbook, limit_s))


def _send(program: str, host: str, runbook: str, limit_s: float, event: AlertEvent) -> None:
    text = json.dumps(alert_event_json(event, host, runbook)) + "\n"
    run_unprivileged("exec", [program], text.encode("ascii"), limit_s)
