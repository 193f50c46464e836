# SPDX-License-Identifier: GPL-2.0-or-later
"""Scenarios by name: those of files, those drawn by seed, and disks of this host."""

from __future__ import annotations

from . import drawn, ground, scenario
from .remains import RigError
from .scenario import Scenario


def load(name: str) -> Scenario:
    """Raises RigError. A disk of this host can be judged by its name, but not run."""
    if name.startswith(ground.PREFIX):
        return ground.named(name)
    if not name.startswith(drawn.PREFIX):
        return scenario.load(name)
    seed = name[len(drawn.PREFIX):]
    if not (seed.isascii() and seed.isdigit()):
        raise RigError(f"no scenario {name}: take {drawn.PREFIX}SEED, like {drawn.PREFIX}2")
    return drawn.draw(int(seed))
