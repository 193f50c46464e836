# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to verify: written values compared with the kernel's. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from writebackd.report.answer_parts import held_json
from writebackd.types.levers import ForeignWrite, HeldLever
from writebackd.types.samples import VmState

if TYPE_CHECKING:
    from writebackd.report.answers import Difference, VerifyAnswer

# Name, file, value written last and current value.
LeverDifference = Tuple[str, str, str, str]
# The same, with numbers; None: no limit.
_Row = Tuple[str, str, Optional[int], Optional[int]]
_PAIR = ("dirty_bytes", "dirty_background_bytes")


def verify_json(
    vm: VmState,
    page_size: int,
    written: Optional[Tuple[int, int]],
    foreign: Sequence[ForeignWrite] = (),
    yielded: Optional[str] = None,
    levers: Sequence[HeldLever] = (),
    differing: Sequence[LeverDifference] = (),
) -> VerifyAnswer:
    """Whether the values written last are in force.

    `written` is the last (limit, background) pair in bytes, None while the
    daemon has nothing of its own in the kernel; `vm` has just been read.
    `levers` are those held beside the pair, `differing` those that read otherwise.
    """
    writers = {each.lever: each for each in foreign}
    differences: List[Difference] = []
    for lever, file, expected, current in (
        *(_differences(vm, page_size, written) if written is not None else ()),
        *((name, file, _natural(old), _natural(new)) for name, file, old, new in differing),
    ):
        who = writers.get(lever, ForeignWrite(lever, ""))
        differences.append({
            "lever": lever, "file": file, "expected": expected, "found": current,
            "pid": who.pid, "comm": who.comm, "cgroup": who.cgroup, "cmdline": who.cmdline,
        })  # fmt: skip
    return {
        "good": not differences and yielded is None,
        "written": None if written is None else {
            "dirty_bytes": written[0], "dirty_background_bytes": written[1],
        },
        "found": asdict(vm.limits),
        "levers": held_json(levers),
        "yielded": yielded,
        "differences": differences,
    }


def _differences(vm: VmState, page_size: int, written: Tuple[int, int]) -> List[_Row]:
    limit, background = written
    in_files = (vm.limits.dirty_bytes, vm.limits.dirty_background_bytes)
    rows: List[_Row] = [
        (lever, f"/proc/sys/vm/{lever}", expected, current)
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
        (lever, f"/proc/vmstat {name}", expected, current)
        for lever, name, expected, current in zip(_PAIR, names, effective, in_force)
        if abs(expected - current) > page_size
    ]


def _natural(text: str) -> Optional[int]:
    """The number in a file; None for `max`, which is no limit."""
    return int(text) if text.isdigit() else None
