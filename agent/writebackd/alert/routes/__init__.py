# SPDX-License-Identifier: GPL-2.0-or-later
"""Where alerts are told: the journal, Alertmanager, a program of the admin's, mail."""

from __future__ import annotations

from .dispatch import Routes
from .route import RouteState
from .track import Happening, What

__all__ = ["Happening", "RouteState", "Routes", "What"]
