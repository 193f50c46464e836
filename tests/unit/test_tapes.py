# SPDX-License-Identifier: GPL-2.0-or-later
"""Recorded hosts and ticks: tapes that are replayed, cases of hosts."""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from tests.lab.judge import Tick, again, judge, play
from tests.lab.tapes import DIRECTORY, runs
from tests.lab.truth import ROOM, Truth
from writebackd.cli import doctor_checks
from writebackd.kernel.conflicting_tools import find_conflicting_tools
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_facts
from writebackd.policy.load import check
from writebackd.policy.match import choose
from writebackd.report.recorder import read_recording
from writebackd.types.copying import replace

NAMES = tuple(runs())
MOST_BYTES = 150 << 10


@dataclass(frozen=True)
class Bounds:
    """Shares; of R and of the cache's size the range of what is believed / what is so."""

    false_full: float  # at most: ticks with room that are marked
    false_room: float  # at most: full ticks that are not
    r: Tuple[float, float]
    r_near: float  # at least: ticks with R within 15 %
    learned_s: float  # at most: of floods until R is known


BOUNDS = {
    "array": Bounds(0.52, 0.02, (0.97, 1.04), 0.97, 14),
    "slow-array": Bounds(0.32, 0.02, (0.96, 1.03), 0.77, 10),
    "ssd": Bounds(0.00, 0.02, (0.66, 1.05), 0.00, 11),
    "no-cache": Bounds(0.00, 0.02, (0.43, 1.05), 0.00, 7),
    "halves": Bounds(0.50, 0.02, (0.92, 1.05), 0.78, 8),
    "observed": Bounds(1.00, 0.02, (0.97, 1.04), 0.97, 10),
}


@functools.lru_cache(maxsize=None)
def ticks_of(name: str) -> List[Tick]:
    return play(DIRECTORY / name)


@pytest.mark.parametrize("name", NAMES)
def test_the_mark_says_what_the_cache_is(name: str) -> None:
    found, bounds = judge(ticks_of(name)), BOUNDS[name]
    assert found.ticks > 100
    assert (found.false_full or 0.0) <= bounds.false_full, found
    assert (found.false_room or 0.0) <= bounds.false_room, found


@pytest.mark.parametrize("name", NAMES)
def test_r_is_what_the_media_take(name: str) -> None:
    found, bounds = judge(ticks_of(name)), BOUNDS[name]
    assert found.learned_s is not None and found.learned_s <= bounds.learned_s, found
    assert found.r is not None and bounds.r[0] <= found.r <= bounds.r[1], found
    assert found.r_near is not None and found.r_near >= bounds.r_near, found


def test_the_cache_of_the_slow_array_is_seen_to_fill() -> None:
    """A fast one's is not, yet: it is taken for full while it has room."""
    found = judge(ticks_of("slow-array"))
    # Its R is the link's at first, where the limits of the tape let syncs wait there.
    assert found.cache is not None and 0.74 <= found.cache <= 1.03, found
    assert found.fill is not None and found.fill <= 0.25, found


@pytest.mark.parametrize("name", NAMES)
def test_estimates_go_by_the_limits_of_then_whatever_a_later_law_asks_for(name: str) -> None:
    ticks = [replace(tick, policy=re.sub(r"(?m)^(ceiling|rest) = .*$", r"\1 = 1M", tick.policy))
             for tick in read_recording(DIRECTORY / name)]
    steps = list(again(ticks))
    otherwise = 0
    for last, step in zip(steps, steps[1:]):
        now = {each.name: each.target_bytes for each in last.decision.devices}
        for device, _, _, then in last.outcome.devices:
            if then is not None and then != now[device]:
                share = last.estimates[device].limit_share
                assert step.before.devices[device].law.limit_bytes == pytest.approx(then * share)
                otherwise += 1
    assert otherwise > 30


@pytest.mark.parametrize("name", NAMES)
def test_a_tape_is_small_and_tells_nothing_of_its_host(name: str) -> None:
    files = sorted((DIRECTORY / name).iterdir())
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    for tick in read_recording(DIRECTORY / name):
        sample = tick.sample
        assert {task.comm for task in sample.tasks} <= {"writer"}
        assert not (sample.cgroups or sample.backings or sample.errors or sample.foreign)
        for seen in sample.devices:
            assert seen.device.identity is None
            assert {mount for _, _, mount in seen.device.filesystems} <= {"/"}


def looks(fill: List[float]) -> Truth:
    size = len(fill)
    return Truth(False, {"t": [0.1 * i for i in range(size)], "fill": fill,
                         "capacity": [512 << 20] * size, "drain_rate": [1e8] * size})


def test_a_cache_is_full_where_a_write_finds_no_room() -> None:
    full, room = float(512 << 20), float((512 << 20) - ROOM)
    truth = looks([room] * 4 + [full] * 6)
    assert not truth.between(-1.0, 0.35).is_full and truth.between(0.35, 1.0).full == 1.0
    assert truth.between(-1.0, 1.0).full == pytest.approx(0.6)
    assert replace(truth, flushed=True).between(-1.0, 0.35).full == 1.0
    with pytest.raises(ValueError, match="no look"):
        truth.between(2.0, 3.0)


CASES = Path(__file__).parent / "host_cases"
PROFILES = "/usr/lib/tuned/profiles"
UDEV = "/etc/udev/rules.d"
# What the first words of the lines say.  Of conflicts: level, setting, place; of others as below.
EXPECTED: Dict[str, List[str]] = {
    "alertmanager-with-path": [
        "/etc/writebackd/policies.d/all.conf.d/50-site.conf:2: alertmanager:"
        " 'http://alertmanager.example:9093/api/v2/alerts': leave out /api and what follows"
    ],
    "amanda-client-on-database": ["db-hwraid metal"],
    "amanda-client-sticks": ["db-hwraid metal"],
    "arm64-guest-unknown-maker": ["vm-guest guest"],
    "by-id-in-a-device-section": [],
    "hypervisor-with-backup-server": ["hypervisor metal"],
    "laptop-mode-tools": ["warning laptop-mode-tools /etc/laptop-mode/laptop-mode.conf:1"],
    "lockdown": [
        "good Linux 6.18", "good kernel types", "warning lockdown=confidentiality: the kernel"
        " refuses kprobes, and reads of its memory by BPF; only hooks with types", "good tracefs",
        "good cgroup2", "note no per-device",
    ],
    "microk8s": ["etcd metal"],
    "plasma-login": ["desktop metal"],
    "postmaster": ["db-hwraid metal"],
    "rc-local-two-in-a-line": [
        "note vm.dirty_background_ratio=5 /etc/rc.local:2", "note vm.dirty_ratio=10 /etc/rc.local:2"
    ],
    "sysctl-conf-without-link": ["note vm.dirty_ratio=40 /etc/sysctl.conf:1"],
    "sysctl-pair-last-wins": [
        "note vm.dirty_bytes=268435456 /etc/sysctl.d/99-site.conf:1",
        "note vm.dirty_background_bytes=67108864 /etc/sysctl.d/99-site.conf:2",
    ],
    "tuned-include-function": [f"warning cluster-node {PROFILES}/cluster-node/tuned.conf:1"],
    "tuned-inline-comment": ["warning vm.dirty_ratio=20 /etc/tuned/profiles/site/tuned.conf:3"],
    "tuned-percent": [
        f"warning vm.dirty_ratio=40 {PROFILES}/throughput-performance/tuned.conf:4",
        f"warning vm.dirty_background_ratio=10 {PROFILES}/throughput-performance/tuned.conf:5",
    ],
    "tuned-replace": [],
    "tuned-runs-without-profile-here": ["warning tuned pid 412"],
    "udev-run-bdi": [
        f"note bdi/strict_limit=1 {UDEV}/99-usb-cache.rules:1",
        f"note bdi/max_bytes=16777216 {UDEV}/99-usb-cache.rules:1",
    ],
    "udev-sysctl-key": [f"note vm.dirty_ratio=30 {UDEV}/80-power.rules:1"],
    "udev-two-attributes": [
        f"note bdi/strict_limit=1 {UDEV}/60-slow-disk.rules:1",
        f"note bdi/max_bytes=268435456 {UDEV}/60-slow-disk.rules:1",
    ],
}  # fmt: skip


def said(case: Dict[str, Any], root: Path) -> List[str]:
    for name in (*case["files"], *case.get("links", {})):
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
    for name, text in case["files"].items():
        (root / name[1:]).write_text(text)
    for name, target in case.get("links", {}).items():
        os.symlink(target, root / name[1:])
    files = KernelFiles(root)
    if case["kind"] == "conflicts":
        found = find_conflicting_tools(files)
        return [f"{each.level} {each.setting or each.name} {each.where}" for each in found]
    if case["kind"] == "match":
        facts = read_facts(files)
        choice = choose(facts, root=root / "nowhere", before=case.get("before"))
        return [f"{choice.policy.name} {facts.virtualisation}"]
    if case["kind"] == "doctor-kernel":
        return [" ".join(each) for each in doctor_checks.kernel(files, case["release"])]
    lines = check(str(root / case["place"][1:]), root / "etc/writebackd/policies.d")
    return [line.replace(str(root), "") for line in lines]


def test_every_case_has_an_answer() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in CASES.glob("*.json"))


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_said_of_a_host(tmp_path: Path, name: str) -> None:
    lines = said(json.loads((CASES / f"{name}.json").read_text(encoding="utf-8")), tmp_path)
    assert len(lines) == len(EXPECTED[name])
    for line, expected in zip(lines, EXPECTED[name]):
        assert line.startswith(expected)
