# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes on between the ticks: waiting for signals, and for whoever asks on a socket."""

from __future__ import annotations

import selectors
import time
from typing import Callable, Sequence

from writebackd.control.decide import HURRY
from writebackd.kernel.signals import Signals
from writebackd.report.server import LoopServer


def run_loop(
    selector: selectors.BaseSelector,
    signals: Signals,
    servers: Sequence[LoopServer],
    interval_s: float,
    tick: Callable[[], bool],
    reload: Callable[[], None],
) -> None:
    """Until a signal. `tick` tells whether the next one is in a hurry.

    `signals` and `servers` are registered with `selector`; the first tick comes after `interval_s`.
    """
    next_tick = time.monotonic() + interval_s
    while signals.stop is None:
        for key, mask in selector.select(max(0.0, next_tick - time.monotonic())):
            if isinstance(key.data, LoopServer):
                key.data.service(key, mask)
            elif key.fileobj is signals:
                signals.drain()
            if time.monotonic() >= next_tick:
                break  # who still waits is ready in the next round as well
        if signals.take_reload():
            reload()
        now = time.monotonic()
        if now >= next_tick and signals.stop is None:
            for server in servers:
                server.expire(now)
            # Ticks missed while the machine was busy are not made up for: one
            # of a few milliseconds would count as much as a whole one.
            next_tick += interval_s * (HURRY if tick() else 1.0)
            if next_tick < time.monotonic():
                next_tick = time.monotonic() + interval_s
