# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon on a slow disk of the guest: it holds a flood, and puts back what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

from tests.kernel.fault_rig import FILES, PIN, limits, wait_for
from tests.kernel.test_daemon import Running
from tests.vm.inside.flood import MIB, daemon, hold_a_flood, scratch_disk_name
from tests.vm.inside.rig import state
from writebackd.kernel.vm import PAIRS, write_pair
from writebackd.types.levers import VmLimits

__all__ = ["daemon"]
FORMS = {"ratios": VmLimits(0, 30, 0, 7), "bytes": VmLimits(300 * MIB, 0, 100 * MIB, 0)}
CEILING = 16 * MIB


def test_a_flood_is_held_with_its_fsyncs_seen(daemon: Callable[..., Running]) -> None:
    found = limits()
    running = daemon("--mode", "enforce")
    status = hold_a_flood(running)
    assert status["probe"]["backend"] == "libbpf"
    assert running.end() == 0 and limits() == found


@pytest.mark.parametrize("form", FORMS)
def test_limits_are_restored_in_the_form_they_had(
    daemon: Callable[..., Running], form: str
) -> None:
    for pair in PAIRS:
        write_pair(FILES, pair, pair.value(limits()), pair.value(FORMS[form]))
    assert limits() == FORMS[form]
    running = daemon("--mode", "enforce", "--probe", "procfs")
    running.pin()
    assert limits() == VmLimits(PIN, 0, PIN // 2, 0)
    assert running.end() == 0 and limits() == FORMS[form]


def test_limits_per_device_are_set_and_restored(
    daemon: Callable[..., Running], tmp_path: Path
) -> None:
    device = scratch_disk_name()
    bdi = Path(f"/sys/block/{device}/bdi")
    if not (bdi / "max_ratio_fine").exists():
        pytest.skip("this kernel has no limits in bytes per device")
    found, before = state(device), limits()
    policy = tmp_path / "capped.conf"
    policy.write_text(f"[device {device}]\nceiling = {CEILING >> 20}M\n")
    running = daemon("--mode", "enforce", "--probe", "procfs", "--policy", str(policy))
    wait_for(lambda: (bdi / "strict_limit").read_text().strip() == "1", 60.0, "for the cap")
    most, least = (int((bdi / name).read_text()) for name in ("max_bytes", "min_bytes"))
    print(f"\n{device}: at most {most} bytes, at least {least}")
    # The kernel keeps a millionth of the limit in force, rounded.
    assert 0 < least <= most <= 1.001 * CEILING
    assert running.end() == 0 and (state(device), limits()) == (found, before)
