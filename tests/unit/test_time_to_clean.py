# SPDX-License-Identifier: GPL-2.0-or-later
"""How long until nothing dirty is left, and whose pages these are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Tuple

import pytest

import samples
from writebackd.cli.status_screen import render_status
from writebackd.report.device_answers import TimeToClean, time_to_clean
from writebackd.report.metrics import PROMETHEUS, render
from writebackd.report.status_answer import status_json
from writebackd.types.decision import Decision, DeviceDecision, DeviceState
from writebackd.types.samples import DeviceSample
from writebackd.types.storage import Backing

MIB = 1 << 20
SDA, SDB = samples.RAID, samples.STICK


def took(
    dirty_mib: int, *rows: "dict[str, Any]", backings: Tuple[Backing, ...] = ()
) -> TimeToClean:
    """Of devices with these estimates; half of the dirty is under writeback."""
    estimates = {row["name"]: samples.estimate(**row) for row in rows}
    state = samples.vm(1 << 30, 1 << 29, dirty_mib * MIB // 2, dirty_mib * MIB // 2)
    shown = samples.snapshot(state, (), Decision(None, None, None, ""))
    devices = tuple(
        DeviceSample(device) for device in (SDA, SDB) if device.name in estimates
    )
    return time_to_clean(replace(shown.sample, devices=devices, backings=backings), estimates)


def row(name: str, rate_mib: Optional[float], **more: Any) -> "dict[str, Any]":
    return {"name": name, "drain_rate": None if rate_mib is None else rate_mib * MIB, **more}


def test_one_device_has_all_of_it() -> None:
    assert took(500, row("sda", 250.0)) == TimeToClean(2.0, {"sda": 2.0})


def test_of_several_that_are_flooded_each_has_its_part_and_the_slowest_is_the_host_s() -> None:
    found = took(
        400, row("sda", 300.0, flooded=True, limit_share=0.75),
        row("sdb", 10.0, flooded=True, limit_share=0.25),
    )
    assert found == TimeToClean(10.0, {"sda": 1.0, "sdb": 10.0})


def test_a_device_without_a_flood_has_none_of_another_s() -> None:
    found = took(300, row("sda", 300.0, flooded=True), row("sdb", None))
    assert found == TimeToClean(1.0, {"sda": 1.0, "sdb": None})


def test_where_nobody_knows_whose_it_is_the_host_has_the_longest_and_devices_none() -> None:
    assert took(100, row("sda", 200.0), row("sdb", 10.0)) == TimeToClean(
        10.0, {"sda": None, "sdb": None})


@pytest.mark.parametrize("rate", [None, 0.0])
def test_without_a_drain_rate_it_is_not_known(rate: Optional[float]) -> None:
    assert took(100, row("sda", rate)) == TimeToClean(None, {"sda": None})
    assert took(100, row("sda", 200.0), row("sdb", rate)).host_s is None


def test_without_a_device_it_is_not_known() -> None:
    assert took(100) == TimeToClean(None, {})


def test_what_is_in_the_write_cache_counts_and_who_tells_it_is_believed_first() -> None:
    cache = row("sda", 100.0, cache_bytes=512.0 * MIB, fill_bytes=300.0 * MIB)
    assert took(100, cache).host_s == 4.0
    said = Backing("sda", "bcache", 0.0, dirty_bytes=700 * MIB)
    assert took(100, cache, backings=(said,)).host_s == 8.0
    of_another = replace(said, device="sdb")
    assert took(100, cache, backings=(of_another,)).host_s == 4.0
    # What must have gone in, with no cache ever seen to fill.
    assert took(100, row("sda", 100.0, fill_bytes=300.0 * MIB)).host_s == 1.0


def test_an_excluded_device_does_not_count() -> None:
    shown = samples.several()
    names = time_to_clean(shown.sample, shown.estimates).devices
    assert {"sda", "sdb", "dm-0"} <= set(names)
    left_alone = tuple(
        replace(each, excluded="as the policy says") for each in shown.sample.devices
    )
    assert time_to_clean(
        replace(shown.sample, devices=left_alone), shown.estimates
    ) == TimeToClean(None, {})


def test_status_and_metrics_have_it_and_are_silent_where_it_is_not_known() -> None:
    device = (SDA, samples.estimate("sda", drain_rate=250.0 * MIB),
              DeviceDecision("sda", DeviceState.IDLE, None, "", ""))
    state = samples.vm(4 << 30, 2 << 30, 250 * MIB, 250 * MIB)
    known = samples.snapshot(state, (device,), Decision(None, None, None, ""))
    answer = status_json(known)
    assert answer["memory"]["time_to_clean_s"] == answer["devices"][0]["time_to_clean_s"] == 2.0
    assert "dirty    250M, and 250M being written; clean in 2s\n" in render_status(answer, 80)
    page = render(known, PROMETHEUS)
    assert "\nwritebackd_time_to_clean_seconds 2.0\n" in page
    assert '\nwritebackd_device_time_to_clean_seconds{device="sda"} 2.0\n' in page
    unknown = replace(known, estimates={"sda": samples.estimate("sda")})
    assert "clean in" not in render_status(status_json(unknown), 80)
    assert "time_to_clean_seconds 2" not in render(unknown, PROMETHEUS)
    assert status_json(unknown)["memory"]["time_to_clean_s"] is None
