# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to verify: written values compared with the kernel's. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import List, Optional, Sequence, Tuple

from writebackd.report.answer_parts import Json, held_json
from writebackd.types.levers import ForeignWrite, HeldLever
from writebackd.types.samples import VmState

# Name, file, value written last and current value.
LeverDifference = Tuple[str, str, str, str]
_PAIR = ("dirty_bytes", "dirty_background_bytes")


def verify_json(
    vm: VmState,
    page_size: int,
    written: Optional[Tuple[int, int]],
    foreign: Sequence[ForeignWrite] = (),
    yielded: Optional[str] = None,
    levers: Sequence[HeldLever] = (),
    differing: Sequence[LeverDifference] = (),
) -> Json:
    """Whether the values written last are in force.

    `written` is the last (limit, background) pair in bytes, None while the
    daemon has nothing of its own in the kernel; `vm` has just been read.
    `levers` are those held beside the pair, `differing` those that read otherwise.
    """
    differences = _differences(vm, page_size, written) if written is not None else []
    differences += [
        {"lever": lever, "file": file, "expected": _natural(expected), "found": _natural(current)}
        for lever, file, expected, current in differing
    ]
    writers = {each.lever: each for each in foreign}
    for difference in differences:
        writer = writers.get(str(difference["lever"]))
        for field in ("pid", "comm", "cgroup", "cmdline"):
            difference[field] = getattr(writer, field, None)
    return {
        "good": not differences and yielded is None,
        "written": None if written is None else dict(zip(_PAIR, written)),
        "found": asdict(vm.limits),
        "levers": held_json(levers),
        "yielded": yielded,
        "differences": differences,
    }


def _differences(vm: VmState, page_size: int, written: Tuple[int, int]) -> List[Json]:
    limit, background = written
    in_files = (vm.limits.dirty_bytes, vm.limits.dirty_background_bytes)
    rows = [
        {"lever": lever, "file": f"/proc/sys/vm/{lever}", "expected": expected, "found": current}
        for lever, expected, current in zip(_PAIR, written, in_files)
        if expected != current
    ]
    if rows:
        return rows
    # Reading a sysctl back proves nothing: the thresholds show what the kernel
    # made of it.  Pages round up; background >= limit means half of the limit.
    effective = (limit, background if background < limit else limit // 2)
    names = ("nr_dirty_threshold", "nr_dirty_background_threshold")
    in_force = (vm.threshold_bytes, vm.background_threshold_bytes)
    return [
        {"lever": lever, "file": f"/proc/vmstat {name}", "expected": expected, "found": current}
        for lever, name, expected, current in zip(_PAIR, names, effective, in_force)
        if abs(expected - current) > page_size
    ]


def _natural(text: str) -> Optional[int]:
    """The number in a file; None for `max`, which is no limit."""
    return int(text) if text.isdigit() else None
