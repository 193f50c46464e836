# SPDX-License-Identifier: GPL-2.0-or-later
"""Notifications of alerts: journal, Alertmanager, a program, mail."""

from __future__ import annotations

from .alert_events import AlertEvent, EventKind
from .dispatch import Routes
from .route import RouteState

__all__ = ["AlertEvent", "EventKind", "RouteState", "Routes"]
