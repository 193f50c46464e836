# SPDX-License-Identifier: GPL-2.0-or-later
"""What is said of whole hosts: other people's settings, the class, doctor, policy check.

Each file of host_cases/ is a host: `files` and `links` below a root, `kind` says who looks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

import pytest

from writebackd.cli import doctor_checks
from writebackd.kernel.conflicting_tools import find_conflicting_tools
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_facts
from writebackd.policy.load import check
from writebackd.policy.match import choose

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
