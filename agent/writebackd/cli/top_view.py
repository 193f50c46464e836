# SPDX-License-Identifier: GPL-2.0-or-later
"""Draws the live screen with rich.

From 60x16 up; all of it from 80 columns.
"""

from __future__ import annotations

import math
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from writebackd import formats
from writebackd.cli.io_waits import Wait
from writebackd.cli.output import Answer, clean, fit
from writebackd.cli.status_screen import alert_line, headline, limit_line, mount_point
from writebackd.cli.top import HELP, KEYS, SHORT_KEYS, Top

_STYLES = {
    "guard": "green", "pace": "green", "probe": "cyan", "pinned": "cyan", "squeeze": "yellow",
    "blind": "yellow", "yielded": "magenta", "exhausted": "bold red",
}  # fmt: skip
# From 0.1 ms in steps of half a decade: the same height means the same on every device.
_LEAST_S = 1e-4
_PER_DECADE = 2
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.,-=+*#"
_WIDE = 140  # columns from which who dirties and who waits stand side by side
_NARROW = 80  # columns below which sparkline, p50 and drain rate are left out
_ROOMY = 110  # columns from which a device's mount point is shown
_TALL = 30  # lines below the head from which the devices' reasons are shown


class View:
    """Draws a Top as lines for a terminal."""

    def __init__(self, colour: bool, blocks: bool) -> None:
        """`blocks`: the terminal can show the characters of a sparkline."""
        self._glyphs = _BLOCKS if blocks else _ASCII
        self._console = Console(
            force_terminal=colour,
            no_color=not colour,
            color_system="standard" if colour else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def lines(self, top: Top, width: int, height: int) -> List[str]:
        """At most `height` lines of at most `width` columns, with escape codes only for colours."""
        # One column is left free: some terminals wrap a line that fills the last one.
        self._console.size = (width, height)
        with self._console.capture() as captured:
            self._console.print(self._screen(top, width, height), end="", crop=True)
        return captured.get().split("\n")[:height]

    # ---- parts ---------------------------------------------------------

    def _screen(self, top: Top, width: int, height: int) -> RenderableType:
        foot = self._foot(top, width)
        if top.status is None:
            return Group(*self._fill([_line("waiting for the first answer", width)], foot, height))
        head = self._head(top, width, height)
        if top.helping:
            body = [_line("", width), *(_line(text, width) for text in HELP)]
            return Group(*self._fill([*head, *body], foot, height))
        room = height - len(head) - 1
        parts: List[RenderableType] = list(head)
        lower = self._lower_lines(top, width, room)
        devices, used = self._devices(top, width, room - lower - 1)
        parts += [devices, _line("", width)]
        room -= used + 1
        lower_part, lower_used = self._load(top, width, room)
        parts.append(lower_part)
        parts += [_line("", width)] * (room - lower_used)
        parts.append(foot)
        return Group(*parts)

    @staticmethod
    def _fill(
        lines: List[RenderableType], foot: RenderableType, height: int
    ) -> List[RenderableType]:
        lines = lines[: height - 1]
        return [*lines, *[Text("")] * (height - 1 - len(lines)), foot]

    def _head(self, top: Top, width: int, height: int) -> List[RenderableType]:
        status = top.status
        assert status is not None
        memory, limits = status["memory"], status["limits"]
        dirty = memory["dirty_bytes"] + memory["writeback_bytes"]
        title = headline(status) + ("  FROZEN" if top.frozen else "")
        # The time of the answer: a saved frame must show when it was made.
        clock = time.strftime("%H:%M:%S", time.localtime(status["time_s"]))
        title = f"{_shorten(clean(title), width - 11):{width - 11}}  {clock}"
        filled = dirty / limits["dirty_bytes"] if limits["dirty_bytes"] else 0.0
        bar = ("#" * round(min(1.0, filled) * 20)).ljust(20, "-")
        lines = [
            _line(title, width, "bold"),
            _line(f"limit {limit_line(status)}", width),
            _line(
                f"dirty {formats.size(memory['dirty_bytes'])} now, and"
                f" {formats.size(memory['writeback_bytes'])} being written"
                f" {f'[{bar}] ' if width >= _NARROW else ''}{formats.percent(filled)} of the limit",
                width,
            ),
        ]
        if status["reason"]:
            lines.append(_line(f"why   {status['reason']}", width))
        warnings = [alert_line(each) for each in status["alerts"]]
        warnings += [str(each) for each in status["warnings"]]
        room = 1 if height < 30 else 4
        if len(warnings) > room:
            more = f" (+{len(warnings) - room}: writebackctl status)"
            last = warnings[room - 1]
            warnings = [*warnings[: room - 1], _shorten(last, width - len(more) - 3) + more]
        lines += [_line(f"! {text}", width, "yellow") for text in warnings]
        return [*lines, _line("", width)]

    def _foot(self, top: Top, width: int) -> RenderableType:
        if top.problem is not None:
            return _line(f"! {top.problem}", width, "bold yellow")
        if top.message is not None:
            return _line(top.message, width, "bold")
        return _line(KEYS if width > len(KEYS) else SHORT_KEYS, width, "dim")

    def _devices(self, top: Top, width: int, room: int) -> Tuple[RenderableType, int]:
        """The table of devices in at most `room` lines, and its number of lines."""
        devices = top.devices
        if not devices:
            return _line("no device to manage (see `writebackctl devices`)", width), 1
        # Heading, and a line for those that do not fit.
        rows = room - 1 if len(devices) - top.offset <= room - 1 else room - 2
        shown = devices[top.offset : top.offset + max(1, rows)]
        mount = min(40, width - _ROOMY + 12) if width >= _ROOMY else 0
        fixed = 68 + (mount + 1 if mount else 0)
        spark = min(60, max(8, width - 1 - fixed)) if width >= _NARROW else 0
        table = _table()
        for name, size, right in (
            ("DEVICE", 8, False),
            *((("MOUNT", mount, False),) if mount else ()),
            ("STATE", 9, False),
            ("commit/s", 8, True),
            *((("p50 ms", 6, True),) if spark else ()),
            ("p99 ms", 6, True),
            *(((f"p99, last {spark}" if spark >= 12 else "p99", spark, False),) if spark else ()),
            ("writes", 6, True),
            *((("drain", 5, True),) if spark else ()),
            ("limit", 6, True),
            ("cache", 5, True),
        ):
            _column(table, name, size, right)
        for device in shown:
            table.add_row(*self._device(top, device, mount, spark))
        below: List[RenderableType] = []
        before, after = top.offset, len(devices) - top.offset - len(shown)
        if before or after:
            text = f"{before} above, {after} below (j, k scroll; sorted by {top.sort})"
            below.append(_line(text, width, "dim"))
        reasons = [each for each in shown if each["reason"] and each["state"] != "excluded"]
        left = room - 1 - len(shown) - len(below)
        if left > 1 and reasons:
            # The first in the order of the table where there is no room for all.
            below.append(_line("", width))
            below += [_line(_reason(each, not mount), width) for each in reasons[: left - 1]]
        return Group(table, *below), 1 + len(shown) + len(below)

    def _device(self, top: Top, device: Answer, mount: int, spark: int) -> List[Text]:
        state = device["state"] or formats.UNKNOWN
        cells = [Text(fit(device["name"], 8))]
        if mount:
            cells.append(Text(fit(mount_point(device), mount)))
        fill = device["write_cache"]["fill"]
        points = list(top.p99.get(device["name"], ()))[-spark:]
        cells += [Text(state, _STYLES.get(state, "")), Text(formats.count(device["sync_rate"]))]
        cells += [Text(formats.milliseconds(device["commit_p50_s"]))] * bool(spark)
        cells.append(Text(formats.milliseconds(device["commit_p99_s"])))
        cells += [Text(self.sparkline(points).rjust(spark))] * bool(spark)
        cells.append(Text(formats.size(device["write_rate"])))
        cells += [Text(formats.size(device["drain_rate"]))] * bool(spark)
        return [
            *cells, Text(formats.size(device["limit_bytes"])), Text(formats.percent(fill))
        ]

    def sparkline(self, points: Iterable[Optional[float]]) -> str:
        """A character for each latency in seconds; a blank for a missing one."""
        glyphs = ""
        for point in points:
            step = int(math.log10(max(point or 0.0, _LEAST_S) / _LEAST_S) * _PER_DECADE)
            glyphs += " " if point is None else self._glyphs[min(len(self._glyphs) - 1, step)]
        return glyphs

    # ---- who dirties, who waits ----------------------------------------

    def _lower_lines(self, top: Top, width: int, room: int) -> int:
        """Lines to reserve for writers and waiting processes."""
        # The table of devices, whole, and a line with the reason for each of them.
        wanted = 3 + 2 * len(top.devices)
        roomy = room > _TALL or room - wanted >= _load_lines(top, width)
        return max(8, room - max(wanted if roomy else 2 + len(top.devices), 4))

    def _load(self, top: Top, width: int, room: int) -> Tuple[RenderableType, int]:
        if width >= _WIDE:
            half = (width - 3) // 2
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(width=half, no_wrap=True)
            grid.add_column(width=width - half - 3, no_wrap=True)
            left, left_used = self._dirtiers(top, half, room)
            right, right_used = self._waiters(top, width - half - 3, room)
            grid.add_row(left, right)
            return grid, max(left_used, right_used)
        upper = max(3, room // 2)
        left, left_used = self._dirtiers(top, width, upper)
        right, right_used = self._waiters(top, width, room - left_used)
        return Group(left, right), left_used + right_used

    def _dirtiers(self, top: Top, width: int, room: int) -> Tuple[RenderableType, int]:
        load = top.load or {"tasks": [], "cgroups": []}
        rows: List[Sequence[str]] = []
        table = _table()
        if top.by_cgroup:
            columns = [("DIRTIES", 8, True), ("sleeps", 6, True), ("fsync/s", 7, True)]
            columns += [("DEVICE", 8, False), ("CGROUP", width - 34, False)]
            rows = [
                (_rate(each["dirty_rate"]), formats.percent(each["throttled_share"]),
                 formats.count(each["sync_rate"]), fit(each["device"] or formats.UNKNOWN, 8),
                 fit(each["cgroup"] or formats.UNKNOWN, width - 34))
                for each in load["cgroups"]
            ]  # fmt: skip
        else:
            columns = [("DIRTIES", 8, True), ("sleeps", 6, True), ("PID", 7, True)]
            columns += [("COMMAND", 15, False), ("DEVICE", 8, False)]
            columns += [("CGROUP", width - 50, False)]
            rows = [
                (_rate(each["dirty_rate"]), formats.percent(each["throttled_share"]),
                 str(each["pid"]), clean(each["comm"]), fit(each["device"] or formats.UNKNOWN, 8),
                 fit(each["cgroup"] or formats.UNKNOWN, width - 50))
                for each in load["tasks"]
            ]  # fmt: skip
        for name, size, right in columns:
            _column(table, name, size, right)
        return _filled(table, rows, room, "no process dirties memory" + _unseen(top), width)

    def _waiters(self, top: Top, width: int, room: int) -> Tuple[RenderableType, int]:
        table = _table()
        rows: List[Sequence[str]] = []
        if top.by_cgroup:
            columns = [("WAITS IO", 8, True), ("D", 3, True)]
            columns += [("CGROUP", width - 14, False)]
            rows = [
                (formats.percent(share), str(stuck or ""), fit(cgroup, width - 14))
                for cgroup, share, stuck in waits_by_cgroup(top.waits)
            ]
        else:
            columns = [("WAITS IO", 8, True), ("D", 1, False), ("PID", 7, True)]
            columns += [("COMMAND", 15, False), ("USER", 8, False), ("CGROUP", width - 46, False)]
            rows = [
                (formats.percent(each.share), "D" * each.stuck, str(each.pid),
                 clean(each.name)[:15], fit(each.user or formats.UNKNOWN, 8),
                 fit(each.cgroup or formats.UNKNOWN, width - 46))
                for each in top.waits
            ]  # fmt: skip
        for name, size, right in columns:
            _column(table, name, size, right)
        if top.wait_note is None:
            return _filled(table, rows, room, "no process waits for block IO", width)
        part, used = _filled(table, rows, room - 1, "", width)
        return Group(part, _line(f"note: {top.wait_note}", width, "dim")), used + 1


def _reason(device: Answer, with_mount: bool) -> str:
    mounts = device["mounts"]
    where = f" ({mounts[0]})" if with_mount and mounts else ""
    return f"{device['name']}{where}: {device['reason']}"


def _load_lines(top: Top, width: int) -> int:
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
    status: Mapping[str, Any] = top.status or {}
    backend = status.get("probe", {}).get("backend")
    return ", not visible to probe procfs" if backend == "procfs" else ""


def _rate(rate: Optional[float]) -> str:
    return f"{formats.size(rate)}/s" if rate is not None else formats.UNKNOWN


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else text[: max(0, size - 2)].rstrip() + ".."


def _line(text: str, width: int, style: str = "") -> Text:
    """One line, cut if it is too long; nothing in it can move the cursor."""
    return Text(_shorten(clean(text), width - 1), style, no_wrap=True, overflow="crop")


def _table() -> Table:
    return Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_edge=False
    )


def _column(table: Table, name: str, size: int, right: bool) -> None:
    table.add_column(
        name, width=max(1, size), no_wrap=True, overflow="crop",
        justify="right" if right else "left",
    )  # fmt: skip


def _filled(
    table: Table, rows: Sequence[Sequence[str]], room: int, nothing: str, width: int
) -> Tuple[RenderableType, int]:
    """The table with as many rows as fit, or a note that there are none."""
    for row in rows[: max(0, room - 1)]:
        table.add_row(*(Text(cell) for cell in row))
    shown = min(len(rows), max(0, room - 1))
    if rows or not nothing or room < 2:
        return table, 1 + shown
    return Group(table, _line(nothing, width, "dim")), 2
