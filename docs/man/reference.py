# SPDX-License-Identifier: GPL-2.0-or-later
"""reference.py: writes the pages of docs/reference that the code knows; `make docs` runs it.

Of kernels.md and the README it writes the tables, from the records of the last runs on kernels, of
raid-tools.md the table of what is read, from the tables of the parsers.
They are kept in the checkout, so that they can be read there; a test compares them with the code.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "agent"), str(ROOT)]

import kernel_tables  # noqa: E402
from tests.vm import records  # noqa: E402
from writebackd import tuning  # noqa: E402
from writebackd.kernel.files import KernelFiles  # noqa: E402
from writebackd.policy.keys import KEYS, SECTIONS, WHEN, WINDOW_KEYS, Key  # noqa: E402
from writebackd.storage.raid_tools import kinds  # noqa: E402

PLACE = ROOT / "docs" / "reference"
_HEAD = "<!-- SPDX-License-Identifier: GPL-2.0-or-later -->\n<!-- Made by `make docs`. -->\n"
_KEYS = """\
# Policy keys

[policy-files.md](policy-files.md) has where they are written, and the units. A key marked *device*
may also be set for some devices, in `[device PATTERN]`; one marked *window* for certain times, in
`[window NAME]`. The shipped policies (`policies/*.conf`) give the reason for each of their values.
"""
_CONSTANTS = """\
# Constants of the law

None of these is a policy key: they follow from how kernels and disks behave, not from what a site
wants. R is the drain rate: the bytes per second that the media write of a flood. A cache is full
while syncs wait for the media, also where there is no cache. The score is the share of the best
fixed limit in hindsight on simulated hosts; differences below 0.02 are chance.
`python -m tests.sim drawn constants` prints it at half and double of each constant.
"""
_TOPIC = re.compile(r"# ---- (.*) ----")
_VALUE = re.compile(r"([A-Z][A-Z_, ]*) = (.*)")


def pages() -> Dict[str, str]:
    """The text of each page by its name."""
    kernels = records.load()
    with_tables = {name: kernel_tables.filled((PLACE / name).read_text(encoding="utf-8"), kernels)
                   for name in ("kernels.md", "../../README.md")}  # fmt: skip
    return {
        "policy-keys.md": _policy_keys(), "constants.md": _constants(), **with_tables,
        "raid-tools.md": _raid_tools((PLACE / "raid-tools.md").read_text(encoding="utf-8")),
    }  # fmt: skip


# The columns of what is read, and the facts of the parsers' tables that they stand for.
_READ = {
    "mode": ("mode", "write cache", "write cache setting", "cache status", "caching", "method",
             "without battery"),
    "battery": ("battery", "pack", "battery bits", "charging", "replacement", "batteries"),
    "size": ("size", "write share"),
    "matched by": ("address", "slot", "bus", "volume", "disk", "wwn"),
}  # fmt: skip


def _raid_tools(page: str) -> str:
    lines = [f"| cards | tool | {' | '.join(_READ)} |", "|---" * (2 + len(_READ)) + "|"]
    for kind in kinds(KernelFiles()):
        if kind.cards:
            cells = [kind.cards, ", ".join(f"`{each}`" for each in kind.programs)]
            for facts in _READ.values():
                keys = [f"`{key}`" for fact in facts for each in kind.tables
                        for key in each.get(fact, ())]  # fmt: skip
                cells.append(", ".join(dict.fromkeys(keys)) or "not told")
            lines.append(f"| {' | '.join(cells)} |")
    made = "\n".join([*lines, "", ""])
    return re.sub(r"\| cards \|.*?\n\n", lambda _: made, page, count=1, flags=re.DOTALL)


def _policy_keys() -> str:
    lines = [_HEAD + _KEYS]
    for section in (*SECTIONS, "window NAME"):
        keys = [key for key in KEYS if key.section == section] or [WHEN]
        lines += [
            f"## [{section}]", "",
            "| key | unit | default | range | meaning | also in |", "|---|---|---|---|---|---|",
            *map(_row, keys), "",
        ]  # fmt: skip
    return "\n".join(lines)


def _row(key: Key) -> str:
    also = ["device"] if key.per_device else []
    if key in WINDOW_KEYS.values() and key is not WHEN:
        also.append("window")
    cells = (f"`{key.name}`", key.kind.unit, key.default or "empty", key.range, key.doc,
             ", ".join(also))
    return f"| {' | '.join(cells)} |"


def _constants() -> str:
    """Names and values as they stand in the source, under the comment that explains them."""
    lines = [_HEAD + _CONSTANTS]
    comment: List[str] = []
    in_table = False
    for line in _body(inspect.getsource(tuning)):
        topic, value = _TOPIC.fullmatch(line), _VALUE.fullmatch(line)
        if topic is not None:
            place = re.sub(r" \((\w+/\w+\.py)\)", r" (`\1`)", topic[1])
            lines += [*([""] if in_table else []), f"## {place[0].upper()}{place[1:]}", ""]
            lines += ["| constant | value | unit and reason |", "|---|---|---|"]
            in_table, comment = True, []
        elif line.startswith("# "):
            comment.append(line[2:])
        elif value is not None:
            text = re.sub(" +", " ", " ".join(comment)).replace("|", "\\|") or "as above"
            lines.append(f"| `{value[1]}` | `{value[2]}` | {text} |")
            comment = []
    return "\n".join([*lines, ""])


def _body(source: str) -> Iterator[str]:
    """The lines behind the docstring and the imports."""
    yield from source.partition("annotations\n")[2].splitlines()


def main() -> int:
    for name, text in pages().items():
        (PLACE / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
