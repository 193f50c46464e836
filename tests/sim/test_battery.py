# SPDX-License-Identifier: GPL-2.0-or-later
"""A lost write cache is told within the promised time, beside a held flood as well, and no other
disk is said to have lost one."""

from __future__ import annotations

from tests.sim import battery

HOSTS = 12
# Told late beside a steady flood, or not at all within 30 s (14), since commits wait in write() too
# and the law of November 27; none until then.
LATE = {"protected-12", "protected-14", "protected-18", "protected-22", "protected-36"}


def test_a_lost_cache_is_told_in_time() -> None:
    found = [battery.answer(seed, flooded) for seed in battery.seeds("work", HOSTS, protected=True)
             for flooded in (False, True)]
    # In waves memory may hold seconds of a flood, behind which every write waits.
    late = [(each.name, each.load, each.told_s) for each in found
            if each.load != battery.LOADS[2]
            and (each.told_s is None or each.told_s > battery.PROMISED_S)]
    assert {name for name, _, _ in late} <= LATE, late
    assert {load for _, load, _ in late} <= {battery.LOADS[1]}, late
    assert {each.load for each in found} == {*battery.LOADS}
    assert [each.name for each in found if each.false_lost] == []


def test_disks_without_a_protected_cache_have_none_to_lose() -> None:
    found = [battery.answer(seed, True) for seed in battery.seeds("work", HOSTS, protected=False)]
    # None, until the law of November 27.
    assert {each.name for each in found if each.false_lost} <= {"none-40"}


def test_the_table_has_a_line_for_each_load() -> None:
    lines = battery.table("work", 4, verbose=True).splitlines()
    assert lines[0].startswith("work: 4 drawn hosts")
    assert sum(line.startswith(battery.LOADS) for line in lines) == 3
    assert sum(line.startswith("protected-") for line in lines) == 8
