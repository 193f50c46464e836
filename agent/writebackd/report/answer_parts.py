# SPDX-License-Identifier: GPL-2.0-or-later
"""Parts of the answers to several verbs, and the answer to verify.  Pure."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

from writebackd.kernel.vm import PAIRS, wrong_thresholds
from writebackd.report.snapshot import Draining, Pinned, Snapshot
from writebackd.types.codec import pack
from writebackd.types.levers import ForeignWrite, HeldLever
from writebackd.types.samples import VmState

if TYPE_CHECKING:
    from writebackd.report import answers

Json = Dict[str, Any]


def finite(value: Optional[float]) -> Optional[float]:
    """`value` as JSON can represent it: None for infinity and NaN."""
    return value if value is not None and math.isfinite(value) else None


def pinned_json(snapshot: Snapshot) -> Optional[answers.Order]:
    """Who pinned, by uid: names may need the network, for which the daemon never waits."""
    if snapshot.memory.pin_bytes is None or snapshot.pinned is None:
        return None
    return _order_json(snapshot.pinned, snapshot.sample.time_s)


def draining_json(snapshot: Snapshot) -> Optional[answers.DrainOrder]:
    """Which devices are drained, by whom; `left_s` is None while the limits are held."""
    if not snapshot.memory.draining or snapshot.draining is None:
        return None
    return {
        "devices": list(snapshot.memory.draining),
        **_order_json(snapshot.draining, snapshot.sample.time_s),
    }


def _order_json(order: Union[Pinned, Draining], now_s: float) -> answers.Order:
    return {
        "uid": order.uid,
        "since_s": finite(order.wall_s),
        "left_s": None if order.until_s is None else max(0.0, order.until_s - now_s),
    }


def trial_json(snapshot: Snapshot) -> Optional[answers.TrialState]:
    trial = snapshot.memory.trial
    if trial is None:
        return None
    return {
        "device": trial.device,
        "block": trial.block,
        "blocks": trial.blocks,
        "arm": "original" if trial.original else "agent",
        "limit_bytes": trial.limit_bytes,
        "block_left_s": finite(max(0.0, trial.ends_s - snapshot.sample.time_s)),
        "returns_to": trial.returns_to.value,
    }


# Name, file, value written last and current value.
LeverDifference = Tuple[str, str, str, str]
# The same, with numbers; None: no limit.
_Row = Tuple[str, str, Optional[int], Optional[int]]


def verify_json(
    vm: VmState,
    written: Optional[Tuple[int, int]],
    foreign: Sequence[ForeignWrite] = (),
    yielded: Optional[str] = None,
    levers: Sequence[HeldLever] = (),
    differing: Sequence[LeverDifference] = (),
) -> answers.VerifyAnswer:
    """Whether the values written last are in force.

    `written` is the last (limit, background) pair in bytes, None while the
    daemon has nothing of its own in the kernel; `vm` has just been read.
    `levers` are those held beside the pair, `differing` those that read otherwise.
    """
    writers = {each.lever: each for each in foreign}
    differences: List[answers.Difference] = []
    for lever, file, expected, current in (
        *(_differences(vm, written) if written is not None else ()),
        # `max` is no limit.
        *(
            (name, file, *(int(text) if text.isdigit() else None for text in texts))
            for name, file, *texts in differing
        ),
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
        "levers": list(map(pack, levers)),
        "yielded": yielded,
        "differences": differences,
    }


def _differences(vm: VmState, written: Tuple[int, int]) -> List[_Row]:
    rows: List[_Row] = [
        (pair.bytes_lever, f"/proc/sys/vm/{pair.bytes_lever}", expected, pair.value(vm.limits)[0])
        for pair, expected in zip(PAIRS, written) if expected != pair.value(vm.limits)[0]
    ]
    return rows or [
        (pair.bytes_lever, f"/proc/vmstat {name}", expected, current)
        for pair, name, expected, current in wrong_thresholds(*written, vm)
    ]
