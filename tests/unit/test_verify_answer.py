# SPDX-License-Identifier: GPL-2.0-or-later
"""verify: what stands in the kernel against what was written."""

from __future__ import annotations

import re
from typing import Optional, Tuple

import pytest

import samples
from test_answers import assert_valid
from writebackd.cli.daemon_verbs import render_verify
from writebackd.report.answer_parts import verify_json
from writebackd.types.levers import ForeignWrite, VmLimits
from writebackd.types.samples import VmState

MIB = samples.MIB
GIB, PAGE = samples.GIB, 4096


def vm_state(limits: VmLimits, limit: int, background: int) -> VmState:
    return VmState(limits, 0, 0, limit, background)


STANDING = VmLimits(4 * MIB, 0, 2 * MIB, 0)
BOTH = (4 * MIB, 2 * MIB)  # as they were written


@pytest.mark.parametrize("state, written, files", [
    (vm_state(STANDING, 4 * MIB, 2 * MIB), BOTH, []),
    # nothing of ours in the kernel: nothing to differ
    (vm_state(VmLimits(0, 20, 0, 10), GIB, GIB // 2), None, []),
    # the kernel counts in pages, rounded up
    (vm_state(VmLimits(10_000, 0, 5_000, 0), 3 * PAGE, 2 * PAGE), (10_000, 5_000), []),
    # background not below the limit: half of the limit is in force
    (vm_state(VmLimits(4 * MIB, 0, 4 * MIB, 0), 4 * MIB, 2 * MIB), (4 * MIB, 4 * MIB), []),
    (vm_state(VmLimits(8 * MIB, 0, 2 * MIB, 0), 8 * MIB, 2 * MIB), BOTH, ["dirty_bytes"]),
    (vm_state(VmLimits(0, 20, 2 * MIB, 0), GIB, 2 * MIB), BOTH, ["dirty_bytes"]),
    (vm_state(VmLimits(4 * MIB, 0, 0, 5), 4 * MIB, 2 * MIB), BOTH, ["dirty_background_bytes"]),
    # the files read back well, and the kernel made something else of them
    (vm_state(STANDING, 64 * MIB, 2 * MIB), BOTH, ["nr_dirty_threshold"]),
    (vm_state(STANDING, 4 * MIB, 3 * MIB), BOTH, ["nr_dirty_background_threshold"]),
])  # fmt: skip
def test_verify(state: VmState, written: Optional[Tuple[int, int]], files: "list[str]") -> None:
    answer = verify_json(state, written)
    assert_valid(answer, "verify")
    assert [re.split("[/ ]", row["file"])[-1] for row in answer["differences"]] == files
    assert answer["good"] is (not files)


def test_verify_names_the_writer_and_reports_a_yield() -> None:
    state = vm_state(VmLimits(8 * MIB, 0, 2 * MIB, 0), 8 * MIB, 2 * MIB)
    foreign = (
        ForeignWrite("dirty_bytes", str(8 * MIB), 733, "tuned", 9, "/t.service", "tuned -l"),
    )
    answer = verify_json(state, BOTH, foreign)
    assert_valid(answer, "verify")
    text = render_verify(answer, 200)
    assert "; set by tuned (pid 733, cgroup /t.service, command line: tuned -l)" in text
    answer = verify_json(state, None, yielded="tuned (pid 733) set dirty_bytes=8388608")
    assert answer["good"] is False
    assert_valid(answer, "verify")
