# SPDX-License-Identifier: GPL-2.0-or-later
"""Draws the live screen with rich.

From 60x16 up; all of it from 80 columns.
"""

from __future__ import annotations

import math
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from writebackd import formats
from writebackd.cli.io_waits import Wait
from writebackd.cli.output import Answer, clean, fit
from writebackd.cli.status_screen import alert_line, headline, limit_line, mount_point
from writebackd.cli.top_state import HELP, KEYS, SHORT_KEYS, Top

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
# Title, width, whether it is to the right, and what a row has in it.
_Column = Tuple[str, int, bool, Callable[[Any], Union[str, Text]]]
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
        columns: List[Optional[_Column]] = [
            ("DEVICE", 8, False, lambda device: fit(device["name"], 8)),
            ("MOUNT", mount, False, lambda device: fit(mount_point(device), mount))
            if mount else None,
            ("STATE", 9, False, lambda device: Text(
                device["state"] or formats.UNKNOWN, _STYLES.get(device["state"], ""))),
            ("commit/s", 8, True, lambda device: formats.count(device["sync_rate"])),
            ("p50 ms", 6, True, lambda device: formats.milliseconds(device["commit_p50_s"]))
            if spark else None,
            ("p99 ms", 6, True, lambda device: formats.milliseconds(device["commit_p99_s"])),
            (f"p99, last {spark}" if spark >= 12 else "p99", spark, False, lambda device:
                self.sparkline(list(top.p99.get(device["name"], ()))[-spark:]).rjust(spark))
            if spark else None,
            ("writes", 6, True, lambda device: formats.size(device["write_rate"])),
            ("drain", 5, True, lambda device: formats.size(device["drain_rate"]))
            if spark else None,
            ("limit", 6, True, lambda device: formats.size(device["limit_bytes"])),
            ("cache", 5, True, lambda device: formats.percent(device["write_cache"]["fill"])),
        ]  # fmt: skip
        table = _table([each for each in columns if each is not None], shown)
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
        columns: List[_Column] = [
            ("DIRTIES", 8, True, lambda each: _rate(each["dirty_rate"])),
            ("sleeps", 6, True, lambda each: formats.percent(each["throttled_share"])),
        ]
        if top.by_cgroup:
            columns += [("fsync/s", 7, True, lambda each: formats.count(each["sync_rate"]))]
        else:
            columns += [
                ("PID", 7, True, lambda each: str(each["pid"])),
                ("COMMAND", 15, False, lambda each: clean(each["comm"])),
            ]
        columns.append(("DEVICE", 8, False, lambda each: fit(each["device"] or formats.UNKNOWN, 8)))
        columns.append(_cgroup(columns, width, lambda each: each["cgroup"]))
        rows = load["cgroups" if top.by_cgroup else "tasks"]
        return _filled(columns, rows, room, "no process dirties memory" + _unseen(top), width)

    def _waiters(self, top: Top, width: int, room: int) -> Tuple[RenderableType, int]:
        rows: Sequence[Any] = top.waits
        if top.by_cgroup:
            rows = waits_by_cgroup(top.waits)
            columns: List[_Column] = [
                ("WAITS IO", 8, True, lambda each: formats.percent(each[1])),
                ("D", 3, True, lambda each: str(each[2] or "")),
            ]
            columns.append(_cgroup(columns, width, lambda each: each[0]))
        else:
            columns = [
                ("WAITS IO", 8, True, lambda each: formats.percent(each.share)),
                ("D", 1, False, lambda each: "D" * each.stuck),
                ("PID", 7, True, lambda each: str(each.pid)),
                ("COMMAND", 15, False, lambda each: clean(each.name)[:15]),
                ("USER", 8, False, lambda each: fit(each.user or formats.UNKNOWN, 8)),
            ]
            columns.append(_cgroup(columns, width, lambda each: each.cgroup))
        if top.wait_note is None:
            return _filled(columns, rows, room, "no process waits for block IO", width)
        part, used = _filled(columns, rows, room - 1, "", width)
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


def _cgroup(
    others: Sequence[_Column], width: int, cgroup: Callable[[Any], Optional[str]]
) -> _Column:
    """The last column, of what the others leave."""
    left = width - 1 - sum(size + 1 for _, size, _, _ in others)
    return "CGROUP", left, False, lambda each: fit(cgroup(each) or formats.UNKNOWN, left)


def _table(columns: Sequence[_Column], rows: Iterable[Any]) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_edge=False
    )
    for name, size, right, _ in columns:
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(name, width=max(1, size), no_wrap=True, overflow="crop", justify=justify)
    for row in rows:
        table.add_row(*(cell(row) for *_, cell in columns))
    return table


def _filled(
    columns: Sequence[_Column], rows: Sequence[Any], room: int, nothing: str, width: int
) -> Tuple[RenderableType, int]:
    """A table with as many rows as fit, or a note that there are none; and its lines."""
    shown = rows[: max(0, room - 1)]
    table = _table(columns, shown)
    if rows or not nothing or room < 2:
        return table, 1 + len(shown)
    return Group(table, _line(nothing, width, "dim")), 2
