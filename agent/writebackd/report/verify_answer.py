# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to verify: what was written against what the kernel says. Pure."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from writebackd.report.answer_parts import Json, held_json, limits_json
from writebackd.types.levers import ForeignWrite, HeldLever
from writebackd.types.samples import VmState

# Name, file, what was written last and what is found.
LeverDifference = Tuple[str, str, str, str]
_VM = "/proc/sys/vm/"


def verify_json(
    vm: VmState,
    page_size: int,
    written: Optional[Tuple[int, int]],
    foreign: Sequence[ForeignWrite] = (),
    yielded: Optional[str] = None,
    levers: Sequence[HeldLever] = (),
    differing: Sequence[LeverDifference] = (),
) -> Json:
    """The answer to `verify`: does what was last written stand in the kernel?

    `written` is the last (limit, background) pair in bytes, None while the
    daemon has nothing of its own in the kernel; `vm` has just been read.
    `levers` are those held beside the pair, `differing` those that read otherwise.
    """
    differences = _differences(vm, page_size, written) if written is not None else []
    differences += [
        {"lever": lever, "file": file, "expected": _natural(expected), "found": _natural(found)}
        for lever, file, expected, found in differing
    ]
    writers = {each.lever: each for each in foreign}
    for difference in differences:
        writer = writers.get(str(difference["lever"]))
        for field in ("pid", "comm", "cgroup", "cmdline"):
            difference[field] = getattr(writer, field, None)
    return {
        "good": not differences and yielded is None,
        "written": None
        if written is None
        else {"dirty_bytes": written[0], "dirty_background_bytes": written[1]},
        "found": limits_json(vm.limits),
        "levers": held_json(levers),
        "yielded": yielded,
        "differences": differences,
    }


def _differences(vm: VmState, page_size: int, written: Tuple[int, int]) -> List[Json]:
    limit, background = written
    rows: List[Json] = []

    def check(lever: str, path: str, expected: int, found: int, slack: int = 0) -> None:
        if abs(expected - found) > slack:
            rows.append({"lever": lever, "file": path, "expected": expected, "found": found})

    check("dirty_bytes", _VM + "dirty_bytes", limit, vm.limits.dirty_bytes)
    check(
        "dirty_background_bytes",
        _VM + "dirty_background_bytes",
        background,
        vm.limits.dirty_background_bytes,
    )
    if rows:
        return rows
    # Reading a sysctl back proves nothing: the thresholds show what the kernel
    # made of it.  Pages round up; background >= limit means half of the limit.
    effective = background if background < limit else limit // 2
    check("dirty_bytes", "/proc/vmstat nr_dirty_threshold", limit, vm.threshold_bytes, page_size)
    check(
        "dirty_background_bytes",
        "/proc/vmstat nr_dirty_background_threshold",
        effective,
        vm.background_threshold_bytes,
        page_size,
    )
    return rows


def _natural(text: str) -> Optional[int]:
    """The number in a file; None for `max`, which is no limit."""
    return int(text) if text.isdigit() else None
