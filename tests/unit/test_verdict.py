# SPDX-License-Identifier: GPL-2.0-or-later
"""The first line of status: which code, the worst first, and since when."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional

import pytest

import samples
from fake_host import Rig
from writebackd.kernel.vm import LEVERS
from writebackd.report.snapshot import Snapshot, Standing, VerdictCode
from writebackd.report.verdict import standing, verdict_json
from writebackd.types.core_memory import Memory, Trial
from writebackd.types.decision import Basis, DeviceDecision, DeviceState, Mode
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


def sampled(snapshot: Snapshot, **more: object) -> Snapshot:
    return replace(snapshot, sample=replace(snapshot.sample, **more))  # type: ignore[arg-type]


def remembering(snapshot: Snapshot, **more: object) -> Snapshot:
    return replace(snapshot, memory=replace(Memory(), **more))  # type: ignore[arg-type]


def observing(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, mode=Mode.OBSERVE)


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
    (lambda: off(met()), VerdictCode.OFF, None,
     "OFF: /run/writebackd/off exists, original limits"),
    (lambda: off(samples.squeeze()), VerdictCode.MISSES_OBJECTIVE, "sda",
     "MISSES OBJECTIVE: sda p99 47 ms > 5.0 ms, limit 32M (off)"),
    (samples.yielded, VerdictCode.YIELDED, None,
     "YIELDED: tuned (pid 733) set dirty_bytes=536870912"),
    (samples.blind, VerdictCode.BLIND, None,
     "BLIND: probe procfs does not see fsync; `writebackctl doctor` says why"),
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


def test_of_several_devices_the_one_that_misses_by_most() -> None:
    shown = samples.squeeze()
    sda = shown.estimates["sda"]
    found = {"sda": sda, "sdb": replace(sda, name="sdb", fsync_p99_s=0.4),
             "sdc": replace(sda, name="sdc", fsync_p99_s=0.004)}  # fmt: skip
    (first,) = shown.decision.devices
    devices = tuple(replace(first, name=name) for name in found)
    shown = replace(shown, estimates=found, decision=replace(shown.decision, devices=devices))
    text = verdict_json(shown)["text"]
    assert text.startswith("MISSES OBJECTIVE: sdb p99 400 ms > 5.0 ms (and 1 more), limit 32M")


def test_an_excluded_device_makes_nobody_blind() -> None:
    shown = samples.blind()
    left = DeviceDecision("sda", DeviceState.EXCLUDED, None, "not asked for", "")
    shown = replace(shown, decision=replace(shown.decision, devices=(left,)))
    assert verdict_json(shown)["code"] == "OK"


def test_it_says_for_how_long_the_code_is_the_same() -> None:
    shown = samples.squeeze()
    since_s = shown.sample.wall_s - 185.0
    lasting = replace(shown, standing=Standing(VerdictCode.MISSES_OBJECTIVE, since_s))
    assert standing(lasting) == lasting.standing
    assert verdict_json(lasting)["since_s"] == since_s
    assert verdict_json(lasting)["text"].endswith("limit 32M, for 3m5s")
    # Another code begins anew.
    fresh = replace(shown, standing=Standing(VerdictCode.OK, since_s))
    assert standing(fresh) == Standing(VerdictCode.MISSES_OBJECTIVE, shown.sample.wall_s)
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
