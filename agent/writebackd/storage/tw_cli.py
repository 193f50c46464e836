# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the output of 3ware's (AMCC's, LSI's) tw_cli."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Sequence, Tuple

from writebackd.storage import tool_output as out
from writebackd.storage import tool_table as table
from writebackd.storage.tool_output import Controller, Volume
from writebackd.types.storage import ArrayWork, CacheMode, Protection

# The second of each controller that the first lists; it does not name the controller.
COMMANDS = (("info",), ("/c{number}", "show", "unitstatus"))

KEYS: table.Table = {
    "controller": ("ctl",), "model": ("model",), "battery": ("bbu",), "volume": ("unit",),
    "mode": ("cache",), "work": ("status",), "rebuilt": ("%rcmpl",), "done": ("%cmpl", "%v/i/m"),
}  # fmt: skip
BATTERY: table.Words[Protection] = (
    *table.GOOD, (Protection.ABSENT, ("off", "notpresent")), *table.TROUBLE,
)  # fmt: skip
# The read cache is R, with i (intelligent) or b (basic), the write cache W.
MODES: table.Words[CacheMode] = (
    (CacheMode.WRITE_BACK, ("on", "w", "riw", "rbw", "rw")),
    (CacheMode.WRITE_THROUGH, ("off", "ri", "rb", "r")),
)
WORK: table.Words[str] = (
    ("rebuild", ("rebuilding",)), ("check", ("verifying",)),
    ("initialisation", ("initializing",)), ("migration", ("migrating",)),
)  # fmt: skip


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """Parse the output of COMMANDS: the list, then each controller's units. Raises ToolError."""
    controllers: List[table.Facts] = []
    units: Dict[int, List[table.Facts]] = {}
    for number, text in enumerate(outputs):
        for row in _rows(text):
            facts = table.Facts(KEYS, row)
            if re.fullmatch(r"c[0-9]{1,3}", facts.text("controller")):
                controllers.append(facts)
            elif row.get("unittype", "").lower() == "spare":
                continue
            elif re.fullmatch("u[0-9]{1,3}", row.get("unit", "")):
                units.setdefault(max(0, number - 1), []).append(facts)
    said = "\n".join(outputs).lower()
    if not controllers and "ctl " not in said and "no controller found" not in said:
        raise out.complaint("\n".join(outputs), "no list of controllers in it")
    return tuple(
        _controller(controller, units.get(number, ()))
        for number, controller in enumerate(controllers)
    )


def more(listed: str) -> List[Tuple[str, ...]]:
    """The commands for the units of each controller in the list."""
    matches = (re.match(r"c([0-9]{1,3}) ", line.text) for line in out.lines_of(listed))
    numbers = [match.group(1) for match in matches if match][: out.MOST_CONTROLLERS]
    return [tuple(word.format(number=number) for word in COMMANDS[1]) for number in numbers]


def _rows(text: str) -> Iterator[out.Keys]:
    """The rows of tables, the last cells of which may be blank; those with more are skipped."""
    heading: List[str] = []
    for line in out.lines_of(text):
        cells = line.text.split()
        if cells[0].lower() in ("ctl", "unit", "vport", "port", "name", "encl"):
            heading = [cell.lower() for cell in cells]
        elif len(cells) <= len(heading):
            yield dict(zip(heading, [*cells, *[""] * len(heading)]))


def _controller(facts: table.Facts, units: Sequence[table.Facts]) -> Controller:
    # "-" is a card without a battery; to table.meaning() it is nothing.
    none = facts.text("battery") == "-"
    protection = Protection.ABSENT if none else facts.state("battery", BATTERY)
    return Controller(
        model=out.name(facts.text("model")),
        protection=protection,
        volumes=tuple(_volume(unit, protection is Protection.ABSENT) for unit in units),
        unread=tuple(facts.unread),
    )


def _volume(facts: table.Facts, bare: bool) -> Volume:
    """`bare`: a cache that is on holds writes without a battery."""
    mode = facts.state("mode", MODES)
    mode = CacheMode.ALWAYS_WRITE_BACK if bare and mode is CacheMode.WRITE_BACK else mode
    kind = table.meaning(facts.text("work"), WORK)
    shares = (out.share(f"{facts.text(fact)}%") for fact in ("rebuilt", "done"))  # old: no "%"
    done = next((share for share in shares if share is not None), None)
    return Volume(
        int(facts.text("volume")[1:]), mode=mode,
        works=(ArrayWork(kind, done),) if kind else (), unread=tuple(facts.unread),
    )  # fmt: skip
