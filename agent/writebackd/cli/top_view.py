# SPDX-License-Identifier: GPL-2.0-or-later
"""Draws the live screen.

From 60x16 up; all of it from 80 columns.
"""

from __future__ import annotations

import math
import re
import time
import unicodedata
from itertools import zip_longest
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.cli.io_waits import Wait
from writebackd.cli.output import Paint, as_text, clean, fit
from writebackd.cli.status_screen import alert_line, headline, limit_line, mount_point
from writebackd.cli.top import HELP, KEYS, SHORT_KEYS, Answer, Top

# From 0.1 ms in steps of half a decade: the same height means the same on every device.
_LEAST_S = 1e-4
_PER_DECADE = 2
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.,-=+*#"
_WIDE = 140  # columns from which who dirties and who waits stand side by side
_NARROW = 80  # columns below which sparkline, p50 and drain rate are left out
_ROOMY = 110  # columns from which a device's mount point is shown
_TALL = 30  # lines below the head from which the devices' reasons are shown
_CODES = re.compile(r"\x1b\[[\d;]*m")


class _Column(NamedTuple):
    title: str
    width: int
    text: Callable[[Any], str]  # of a row
    right: bool = True


class View:
    """Draws a Top as lines for a terminal."""

    def __init__(self, colour: bool, blocks: bool) -> None:
        """`blocks`: the terminal can show the characters of a sparkline."""
        self._glyphs = _BLOCKS if blocks else _ASCII
        self._paint = Paint(colour)

    def lines(self, top: Top, width: int, height: int) -> List[str]:
        """`height` lines of at most `width` columns, with escape codes only for colours."""
        if top.status is None:
            lines = [self._line("waiting for the first answer", width)]
        else:
            lines = self._head(top, top.status, width, height)
            if top.helping:
                lines += ["", *(self._line(text, width) for text in HELP)]
            else:
                room = height - len(lines) - 1
                lines += self._devices(top, width, room - self._lower_lines(top, width, room) - 1)
                lines.append("")
                lines += self._load(top, width, height - len(lines) - 1)
        lines = lines[: height - 1]
        return [*lines, *[""] * (height - 1 - len(lines)), self._foot(top, width)]

    # ---- parts ---------------------------------------------------------

    def _head(self, top: Top, status: Answer, width: int, height: int) -> List[str]:
        memory, limits = status["memory"], status["limits"]
        dirty = memory["dirty_bytes"] + memory["writeback_bytes"]
        title = headline(status) + ("  FROZEN" if top.frozen else "")
        # The time of the answer: a saved frame must show when it was made.
        clock = time.strftime("%H:%M:%S", time.localtime(status["time_s"]))
        title = f"{_shorten(clean(title), width - 11):{width - 11}}  {clock}"
        filled = dirty / limits["dirty_bytes"] if limits["dirty_bytes"] else 0.0
        lines = [
            self._line(title, width, "heading"),
            self._line(f"limit {limit_line(status)}", width),
            self._line(
                f"dirty {formats.size(memory['dirty_bytes'])} now, and"
                f" {formats.size(memory['writeback_bytes'])} being written"
                f" {self._bar(filled, 20) + ' ' if width >= _NARROW else ''}"
                f"{formats.percent(filled)} of the limit",
                width,
            ),
        ]
        if status["reason"]:
            lines.append(self._line(f"why   {status['reason']}", width))
        warnings = [alert_line(each) for each in status["alerts"]]
        warnings += [str(each) for each in status["warnings"]]
        room = 1 if height < 30 else 4
        if len(warnings) > room:
            more = f" (+{len(warnings) - room}: writebackctl status)"
            last = warnings[room - 1]
            warnings = [*warnings[: room - 1], _shorten(last, width - len(more) - 3) + more]
        return [*lines, *(self._line(f"! {text}", width, "warning") for text in warnings), ""]

    def _foot(self, top: Top, width: int) -> str:
        if top.problem is not None:
            return self._line(f"! {top.problem}", width, "BLIND")
        if top.message is not None:
            return self._line(top.message, width, "heading")
        return self._line(KEYS if width > len(KEYS) else SHORT_KEYS, width, "faint")

    def _devices(self, top: Top, width: int, room: int) -> List[str]:
        """The table of devices, in at most `room` lines."""
        devices = top.devices
        if not devices:
            return [self._line("no device to manage (see `writebackctl devices`)", width)]
        # Heading, and a line for those that do not fit.
        rows = room - 1 if len(devices) - top.offset <= room - 1 else room - 2
        shown = devices[top.offset : top.offset + max(1, rows)]
        mount = min(40, width - _ROOMY + 12) if width >= _ROOMY else 0
        lines = self._table(self._device_columns(top, width, mount), shown)
        before, after = top.offset, len(devices) - top.offset - len(shown)
        if before or after:
            text = f"{before} above, {after} below (j, k scroll; sorted by {top.sort})"
            lines.append(self._line(text, width, "faint"))
        reasons = [each for each in shown if each["reason"] and each["state"] != "excluded"]
        left = room - len(lines)
        if left > 1 and reasons:
            # The first in the order of the table where there is no room for all.
            lines.append("")
            lines += [self._line(_reason(each, not mount), width) for each in reasons[: left - 1]]
        return lines

    def _device_columns(self, top: Top, width: int, mount: int) -> List[_Column]:
        fixed = 68 + (mount + 1 if mount else 0)
        spark = min(60, max(8, width - 1 - fixed)) if width >= _NARROW else 0

        def tail(row: Answer) -> str:
            points = list(top.p99.get(row["name"], ()))[-spark:]
            return self.sparkline(points).rjust(spark)

        size, milliseconds = formats.size, formats.milliseconds
        columns = [
            _Column("DEVICE", 8, lambda row: str(row["name"]), right=False),
            _Column("MOUNT", mount, mount_point, right=False),
            _Column("STATE", 9, lambda row: as_text(row["state"]), right=False),
            _Column("commit/s", 8, lambda row: formats.count(row["sync_rate"])),
            _Column("p50 ms", 6 if spark else 0, lambda row: milliseconds(row["commit_p50_s"])),
            _Column("p99 ms", 6, lambda row: milliseconds(row["commit_p99_s"])),
            _Column(f"p99, last {spark}" if spark >= 12 else "p99", spark, tail, right=False),
            _Column("writes", 6, lambda row: size(row["write_rate"])),
            _Column("drain", 5 if spark else 0, lambda row: size(row["drain_rate"])),
            _Column("limit", 6, lambda row: size(row["limit_bytes"])),
            _Column("cache", 5, lambda row: formats.percent(row["write_cache"]["fill"])),
        ]
        return [column for column in columns if column.width]

    def _table(self, columns: Sequence[_Column], rows: Iterable[Any]) -> List[str]:
        head = " ".join(_cell(each.title, each.width, each.right) for each in columns)
        lines = [self._paint(head, "faint")]
        for row in rows:
            cells = []
            for title, width, text, right in columns:
                cell = _cell(text(row), width, right)
                cells.append(self._paint(cell, cell.strip() if title == "STATE" else None))
            lines.append(" ".join(cells))
        return lines

    def _line(self, text: str, width: int, role: Optional[str] = None) -> str:
        """One line, cut if it is too long; nothing in it can move the cursor."""
        return self._paint(_cropped(_shorten(clean(text), width - 1), width - 1), role)

    def sparkline(self, points: Iterable[Optional[float]]) -> str:
        """A character for each latency in seconds; a blank for a missing one."""
        return "".join(self._glyph(point) for point in points)

    def _glyph(self, point: Optional[float]) -> str:
        if point is None:
            return " "
        steps = math.log10(max(point, _LEAST_S) / _LEAST_S) * _PER_DECADE
        return self._glyphs[min(len(self._glyphs) - 1, int(steps))]

    def _bar(self, share: float, size: int) -> str:
        filled = round(min(1.0, max(0.0, share)) * size)
        return "[" + "#" * filled + "-" * (size - filled) + "]"

    # ---- who dirties, who waits ----------------------------------------

    def _lower_lines(self, top: Top, width: int, room: int) -> int:
        """Lines to reserve for writers and waiting processes."""
        # The table of devices, whole, and a line with the reason for each of them.
        wanted = 3 + 2 * len(top.devices)
        roomy = room > _TALL or room - wanted >= _load_lines(top, width)
        return max(8, room - max(wanted if roomy else 2 + len(top.devices), 4))

    def _load(self, top: Top, width: int, room: int) -> List[str]:
        if width < _WIDE:
            left = self._dirtiers(top, width, max(3, room // 2))
            return left + self._waiters(top, width, room - len(left))
        half = (width - 3) // 2
        left = self._dirtiers(top, half, room)
        right = self._waiters(top, width - half - 3, room)
        return [
            one + " " * (half + 2 - len(_CODES.sub("", one))) + other
            for one, other in zip_longest(left, right, fillvalue="")
        ]

    def _dirtiers(self, top: Top, width: int, room: int) -> List[str]:
        load = top.load or {"tasks": [], "cgroups": []}
        columns = [
            _Column("DIRTIES", 8, lambda row: _rate(row["dirty_rate"])),
            _Column("sleeps", 6, lambda row: formats.percent(row["throttled_share"])),
        ]
        if top.by_cgroup:
            columns.append(_Column("fsync/s", 7, lambda row: formats.count(row["sync_rate"])))
        else:
            columns += [
                _Column("PID", 7, lambda row: str(row["pid"])),
                _Column("COMMAND", 15, lambda row: str(row["comm"]), right=False),
            ]
        columns.append(_Column("DEVICE", 8, lambda row: as_text(row["device"]), right=False))
        rows = load["cgroups" if top.by_cgroup else "tasks"]
        nothing = "no process dirties memory" + _unseen(top)
        return self._filled(columns, lambda row: row["cgroup"], rows, room, nothing, width)

    def _waiters(self, top: Top, width: int, room: int) -> List[str]:
        rows: Sequence[Any] = top.waits
        if top.by_cgroup:
            rows = waits_by_cgroup(top.waits)
            columns = [
                _Column("WAITS IO", 8, lambda row: formats.percent(row[1])),
                _Column("D", 3, lambda row: str(row[2] or "")),
            ]
        else:
            columns = [
                _Column("WAITS IO", 8, lambda row: formats.percent(row.share)),
                _Column("D", 1, lambda row: "D" * row.stuck, right=False),
                _Column("PID", 7, lambda row: str(row.pid)),
                _Column("COMMAND", 15, lambda row: str(row.name[:15]), right=False),
                _Column("USER", 8, lambda row: as_text(row.user), right=False),
            ]
        note = [] if top.wait_note is None else [
            self._line(f"note: {top.wait_note}", width, "faint")
        ]
        nothing = "" if note else "no process waits for block IO"
        of = (lambda row: row[0]) if top.by_cgroup else (lambda row: row.cgroup)
        return self._filled(columns, of, rows, room - len(note), nothing, width) + note

    def _filled(
        self, columns: List[_Column], cgroup: Callable[[Any], Optional[str]], rows: Sequence[Any],
        room: int, nothing: str, width: int,
    ) -> List[str]:
        """A table, with the cgroup in what is left of `width`, or a note that there are no rows."""
        left = max(1, width - 1 - sum(1 + each.width for each in columns))
        columns.append(_Column("CGROUP", left, lambda row: as_text(cgroup(row)), right=False))
        lines = self._table(columns, rows[: max(0, room - 1)])
        return lines if rows or not nothing or room < 2 else [
            *lines, self._line(nothing, width, "faint")
        ]


def _reason(device: Answer, with_mount: bool) -> str:
    mounts = device["mounts"]
    where = f" ({mounts[0]})" if with_mount and mounts else ""
    return f"{device['name']}{where}: {device['reason']}"


def _load_lines(top: Top, width: int) -> int:
    """Lines that writers and waiting processes take if all are shown."""
    load = top.load or {"tasks": [], "cgroups": []}
    dirtiers = 1 + max(1, len(load["cgroups" if top.by_cgroup else "tasks"]))
    waiters = 1 + max(1, len(top.waits) + (top.wait_note is not None))
    return max(dirtiers, waiters) if width >= _WIDE else dirtiers + waiters


def waits_by_cgroup(waits: Iterable[Wait]) -> List[Tuple[str, Optional[float], int]]:
    """Cgroup, the sum of its processes' shares, and how many sleep; the longest first."""
    shares: Dict[str, Optional[float]] = {}
    stuck: Dict[str, int] = {}
    for each in waits:
        name = each.cgroup or formats.UNKNOWN
        known = shares.get(name)
        shares[name] = known if each.share is None else (known or 0.0) + each.share
        stuck[name] = stuck.get(name, 0) + each.stuck
    ordered = sorted(shares, key=lambda name: (-(shares[name] or 0.0), -stuck[name], name))
    return [(name, shares[name], stuck[name]) for name in ordered]


def _unseen(top: Top) -> str:
    procfs = top.status is not None and top.status["probe"]["backend"] == "procfs"
    return ", not visible to probe procfs" if procfs else ""


def _rate(rate: Optional[float]) -> str:
    return f"{formats.size(rate)}/s" if rate is not None else formats.UNKNOWN


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else text[: max(0, size - 2)].rstrip() + ".."


def _cell(text: str, size: int, right: bool) -> str:
    """`text` in `size` columns: figures on the right, of a long name its end."""
    return _cropped(text[:size].rjust(size) if right else fit(text, size), size)


def _cropped(text: str, size: int) -> str:
    """What fits into `size` columns: some characters take two, others none."""
    if text.isascii():
        return text
    while sum(map(_columns, text)) > size:
        text = text[:-1]
    return text


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
