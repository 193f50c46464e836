# SPDX-License-Identifier: GPL-2.0-or-later
"""The first line of status: which code, the worst first, and since when."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Callable, Dict, Optional, Tuple

import pytest

import samples
from fake_host import Rig
from writebackd.kernel.vm import LEVERS
from writebackd.report.snapshot import Snapshot, Standing, VerdictCode
from writebackd.report.verdict import standing, verdict_json
from writebackd.types.core_memory import Memory, Trial
from writebackd.types.decision import Basis, DeviceDecision, DeviceState, Mode
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.levers import Action

MIB = samples.MIB
REFUSED = Action("dirty_bytes", "1", "2", False, "Read-only file system")
TRIAL = Trial("sda", 3, 8, False, None, None, 1e6, Mode.ENFORCE)


def met() -> Snapshot:
    """Syncs within the objective."""
    shown = samples.guard()
    (device,) = shown.decision.devices
    device = replace(device, basis=Basis(objective_s=0.005))
    return replace(shown, decision=replace(shown.decision, devices=(device,)))


def quiet() -> Snapshot:
    """Sync demand, and no fsync in this tick."""
    shown = met()
    silent = replace(shown.estimates["sda"], commit_p50_s=None, commit_p99_s=None)
    known = DeviceMemory(last_demand=(shown.sample.time_s - 12.0, 0.0, 3, True))
    return replace(shown, estimates={"sda": silent}, memory=Memory(devices={"sda": known}))


def late(waits_s: Dict[str, float], *missing: Tuple[str, float]) -> Snapshot:
    """Devices with their p99, under an objective of 5 ms; `missing` for so many seconds."""
    shown = samples.squeeze()
    (first,), sda = shown.decision.devices, shown.estimates["sda"]
    devices = tuple(replace(first, name=name) for name in waits_s)
    since = tuple((name, shown.sample.wall_s - for_s) for name, for_s in missing)
    return replace(
        shown,
        estimates={n: replace(sda, name=n, commit_p99_s=wait) for n, wait in waits_s.items()},
        decision=replace(shown.decision, devices=devices),
        standing=Standing(VerdictCode.MISSES_OBJECTIVE, shown.sample.wall_s - 900.0, since),
    )


def sampled(snapshot: Snapshot, **more: object) -> Snapshot:
    return replace(snapshot, sample=replace(snapshot.sample, **more))  # type: ignore[arg-type]


def remembering(snapshot: Snapshot, **more: object) -> Snapshot:
    return replace(snapshot, memory=replace(Memory(), **more))  # type: ignore[arg-type]


def observing(snapshot: Snapshot) -> Snapshot:
    return samples.in_mode(snapshot, Mode.OBSERVE)


def off(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, off="/run/writebackd/off")


def hurt(snapshot: Snapshot) -> Snapshot:
    return sampled(snapshot, actions=(REFUSED,))


CASES = [
    (met, VerdictCode.OK, "sda", "OK: sda p99 1.9 ms within 5.0 ms, limit 1.9M"),
    (samples.idle, VerdictCode.OK, None, "OK: no sync demand, limit 750M"),
    (samples.squeeze, VerdictCode.MISSES_OBJECTIVE, "sda",
     "MISSES OBJECTIVE: sda p99 47 ms > 5.0 ms, limit 32M"),
    (lambda: observing(met()), VerdictCode.OBSERVING, "sda",
     "OBSERVING: no limit is written; sda p99 1.9 ms within 5.0 ms"),
    (lambda: observing(samples.squeeze()), VerdictCode.MISSES_OBJECTIVE, "sda",
     "MISSES OBJECTIVE: sda p99 47 ms > 5.0 ms, limit 32M (observing)"),
    (lambda: remembering(met(), pin_bytes=15 * MIB), VerdictCode.PINNED, "sda",
     "PINNED: limit 15M; sda p99 1.9 ms within 5.0 ms"),
    (lambda: remembering(met(), trial=TRIAL), VerdictCode.TRIAL, "sda",
     "TRIAL: block 3 of 8; sda p99 1.9 ms within 5.0 ms"),
    (lambda: remembering(met(), trial=replace(TRIAL, original=True, limit_bytes=250 * MIB)),
     VerdictCode.TRIAL, "sda",
     "TRIAL: block 3 of 8; original limits reduced to 250M, sda p99 1.9 ms; no objective applies"),
    (quiet, VerdictCode.OK, None, "OK: last fsync 12s ago, limit 1.9M"),
    (lambda: off(met()), VerdictCode.OFF, None,
     "OFF: /run/writebackd/off exists, original limits"),
    (lambda: off(samples.squeeze()), VerdictCode.MISSES_OBJECTIVE, "sda",
     "MISSES OBJECTIVE: sda p99 47 ms > 5.0 ms, limit 32M (off)"),
    (samples.yielded, VerdictCode.YIELDED, None,
     "YIELDED: tuned (pid 733) set dirty_bytes=536870912"),
    (samples.blind, VerdictCode.BLIND, None,
     "BLIND: probe procfs does not see fsync; run `writebackctl doctor`"),
    (lambda: hurt(samples.squeeze()), VerdictCode.FAILED, None,
     "FAILED: cannot set dirty_bytes: Read-only file system"),
    (lambda: replace(hurt(samples.squeeze()), problem="/proc/vmstat: EIO"), VerdictCode.BLIND, None,
     "BLIND: /proc/vmstat: EIO"),
    (lambda: replace(met(), alerts=samples.collapse().alerts), VerdictCode.ALERT, "sda",
     "ALERT: COLLAPSE on sda"),
]  # fmt: skip


@pytest.mark.parametrize("make, code, device, text", CASES, ids=[case[3][:60] for case in CASES])
def test_the_worst_is_what_it_says(
    make: Callable[[], Snapshot], code: VerdictCode, device: Optional[str], text: str
) -> None:
    found = verdict_json(make())
    assert (found["code"], found["device"], found["text"]) == (code.value, device, text)


def test_every_code_is_given() -> None:
    assert {case[1] for case in CASES} == set(VerdictCode)


def test_each_device_that_misses_is_named_with_its_own_time_the_worst_first() -> None:
    two = late({"sda": 0.047, "sdb": 0.4, "sdc": 0.004}, ("sda", 185.0), ("sdb", 12.0))
    found = verdict_json(two)
    assert (found["device"], found["since_s"]) == ("sdb", two.sample.wall_s - 900.0)
    assert found["text"] == (
        "MISSES OBJECTIVE: sdb p99 400 ms > 5.0 ms for 12s; sda p99 47 ms > 5.0 ms for 3m5s,"
        " limit 32M"
    )
    many = late({f"sd{n}": 0.1 + n for n in range(5)})
    assert "sd2 p99 2.1s > 5.0 ms (and 2 more), limit 32M" in verdict_json(many)["text"]


def test_how_long_a_device_misses_outlives_a_tick_without_fsync_and_no_good_one() -> None:
    shown = late({"sda": 0.047}, ("sda", 185.0))
    since = shown.standing
    assert since is not None and standing(shown) == since
    assert standing(replace(quiet(), standing=since)).missing == since.missing
    assert standing(replace(met(), standing=since)).missing == ()
    again = standing(replace(shown, standing=standing(replace(met(), standing=since))))
    assert again.missing == (("sda", shown.sample.wall_s),)


def test_an_excluded_device_makes_nobody_blind() -> None:
    shown = samples.blind()
    left = DeviceDecision("sda", DeviceState.EXCLUDED, None, "not asked for", "")
    shown = replace(shown, decision=replace(shown.decision, devices=(left,)))
    assert verdict_json(shown)["code"] == "OK"


def test_it_says_for_how_long_the_code_is_the_same() -> None:
    shown = hurt(samples.squeeze())
    since_s = shown.sample.wall_s - 185.0
    lasting = replace(shown, standing=Standing(VerdictCode.FAILED, since_s))
    assert standing(lasting).since_s == verdict_json(lasting)["since_s"] == since_s
    assert verdict_json(lasting)["text"].startswith("FAILED for 3m5s: cannot set ")
    # Another code begins anew.
    fresh = replace(shown, standing=Standing(VerdictCode.OK, since_s))
    assert standing(fresh)[:2] == (VerdictCode.FAILED, shown.sample.wall_s)
    assert "for" not in verdict_json(fresh)["text"].split()


def test_the_daemon_keeps_it_from_tick_to_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.tick(3)
    first = rig.status()["verdict"]
    rig.tick(5)
    assert rig.status()["verdict"] == first
    rig.host.errors["/proc/vmstat"] = errno.EIO
    rig.tick()
    blind = rig.status()["verdict"]
    assert blind["code"] == "BLIND" and "cannot read kernel statistics for 1 tick:" in blind["text"]
    rig.tick(2)
    assert rig.status()["verdict"]["since_s"] == blind["since_s"]
    del rig.host.errors["/proc/vmstat"]
    rig.tick(2)
    assert rig.status()["verdict"]["code"] == first["code"]
    assert rig.status()["verdict"]["since_s"] > blind["since_s"]
    rig.end()


@pytest.mark.parametrize("lever", LEVERS)
def test_a_limit_that_could_not_be_restored_is_a_failure_in_either_form(lever: str) -> None:
    failed = sampled(met(), actions=(replace(REFUSED, lever=lever),))
    assert verdict_json(failed)["code"] == VerdictCode.FAILED.value
