# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's table: redrawn in place on a terminal, line by line elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from typing import Dict, Optional, Sequence

from writebackd import formats

from .loads.base import Measured

NAMES = {"idle": "no flood", "default": "flood, default limits",
         "static": "flood, static 15 MB", "agent": "flood, writebackd"}
HEAD = (f"{'':21}{'fsync/s':>8}{'of idle':>9}{'p99 ms':>8}{'worst ms':>9}"
        f"{'flood':>10}{'dirty limit':>12}")
BAR = 30
LINE_EVERY_S = 5  # where the output is no terminal


@dataclass
class Row:
    sync: Measured
    flood_rate: Optional[float]
    dirty_limit: int
    live: bool


def number(value: float) -> str:
    """Three figures are all that such a measurement is good for."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def milliseconds(seconds: Optional[float]) -> str:
    return "-" if seconds is None else number(seconds * 1e3)


def render_row(name: str, row: Optional[Row], idle: Optional[Row]) -> str:
    label = f"{NAMES.get(name, name):21}"
    if row is None:
        return label + "       -"
    rate, share = row.sync.rate or 0.0, "-"
    if idle is not None and idle.sync.rate:
        share = f"{number(100 * rate / idle.sync.rate)} %"
    limit = f"{row.dirty_limit / (1 << 20):.3g} MB"
    if row.dirty_limit >= 1 << 30:
        limit = f"{row.dirty_limit / (1 << 30):.3g} GB"
    flood = "-" if row.flood_rate is None else f"{row.flood_rate / 1e6:.0f} MB/s"
    return (f"{label}{number(rate):>8}{share:>9}{milliseconds(row.sync.p99):>8}"
            f"{milliseconds(row.sync.max):>9}{flood:>10}{limit:>12}{' *' if row.live else ''}")


def render(title: str, rows: Dict[str, Optional[Row]]) -> str:
    idle = rows.get("idle")
    lines = [title, "", HEAD]
    lines += [render_row(name, row, idle) for name, row in rows.items()]
    return "\n".join(lines)


def table(rows: Dict[str, Optional[Row]]) -> str:
    """For the README."""
    lines = ["| 4 KiB write + fsync | fsync/s | p99 | worst | flood |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        if row is not None:
            flood = "" if row.flood_rate is None else f"{row.flood_rate / 1e6:.0f} MB/s"
            cells = [NAMES[name], number(row.sync.rate or 0.0), *(
                formats.latency(each) for each in (row.sync.p99, row.sync.max)), flood]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


class Screen:
    """Rows by phase, a progress bar and the time left."""

    def __init__(self, phases: Sequence[str], expected_s: float) -> None:
        self.title = ""
        self.rows: Dict[str, Optional[Row]] = dict.fromkeys(phases)
        self.terminal = sys.stdout.isatty()
        self._left = expected_s
        self._expected = expected_s
        self._doing = ""
        self._step_end = time.monotonic()
        self._drawn = 0
        self._last_line = 0.0

    def step(self, doing: str, seconds: float) -> None:
        """What comes now and how long it will take."""
        self._left -= seconds
        self._doing = doing
        self._step_end = time.monotonic() + seconds
        self._last_line = 0.0
        self.draw()

    def row(self, name: str, sync: Measured, flood_rate: Optional[float], dirty_limit: int,
            live: bool) -> None:
        self.rows[name] = Row(sync, flood_rate, dirty_limit, live)

    def progress(self) -> str:
        left = max(0.0, self._left) + max(0.0, self._step_end - time.monotonic())
        share = min(1.0, max(0.0, 1 - left / self._expected))
        bar = "#" * round(share * BAR)
        return f"[{bar:.<{BAR}}] {share:4.0%}, {left:.0f} s left   {self._doing}"

    def draw(self) -> None:
        if self.terminal:
            width = shutil.get_terminal_size().columns
            text = render(self.title, self.rows) + "\n\n" + self.progress()
            lines = [line[:width - 1] for line in text.splitlines()]
            up = f"\x1b[{self._drawn}F" if self._drawn else ""
            print(f"{up}\x1b[J" + "\n".join(lines), flush=True)
            self._drawn = len(lines)
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            live = [(name, row) for name, row in self.rows.items() if row and row.live]
            print(self.progress(), flush=True)
            for name, row in live:
                print("    " + render_row(name, row, self.rows.get("idle")), flush=True)

    def end(self) -> None:
        """Leave the table as it is, without the bar."""
        if self.terminal and self._drawn:
            print(f"\x1b[{self._drawn}F\x1b[J" + render(self.title, self.rows), flush=True)
            self._drawn = 0
