# SPDX-License-Identifier: GPL-2.0-or-later
"""What a run of the matrix found on one kernel, as it is kept in results/NAME.json."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple
from xml.etree import ElementTree

RESULTS = Path(__file__).parent / "results"
BPF = Path(__file__).parents[2] / "bpf"
PASSED = "passed"
REFUSED = "pytest.xfail"  # in JUnit XML, of what pytest.xfail() ended
Outcomes = Dict[str, Dict[str, str]]
# What is proven -> the tests that prove it, as MODULE.TEST.
CLAIMS: Mapping[str, Sequence[str]] = {
    "requests": (
        "test_probe.test_operations_and_bytes_equal_fio",
        "storage_cases.test_requests_equal_fio",
        "storage_cases.test_requests_equal_fio_under_each_scheduler",
    ),
    "syncs": ("test_probe.test_sync_counts_are_exact", "storage_cases.test_syncs_are_exact"),
    "limits restored": (
        "test_vm_limits.test_restored_in_the_form_it_was_found",
        "daemon_cases.test_limits_are_restored_in_the_form_they_had",
        "bcc_cases.test_a_flood_is_held_with_its_fsyncs_seen",
        "procfs_cases.test_a_flood_is_held_without_a_probe",
        "arm64_cases.test_a_flood_is_held_and_the_limits_are_restored",
    ),
    "limits per device": (
        "test_levers.test_all_take_effect_and_go_home",
        "test_levers.test_cap_holds_a_flood_and_nothing_but_it",
        "daemon_cases.test_limits_per_device_are_set_and_restored",
    ),
    "flood held": (
        "daemon_cases.test_a_flood_is_held_with_its_fsyncs_seen",
        "bcc_cases.test_a_flood_is_held_with_its_fsyncs_seen",
        "procfs_cases.test_a_flood_is_held_without_a_probe",
        "arm64_cases.test_a_flood_is_held_and_the_limits_are_restored",
    ),
}


@dataclass(frozen=True)
class Record:
    """outcomes: MODULE.TEST -> its parameters -> "passed", or "failed: ", "skipped: ",
    "refused: " (by the kernel, which may) and why.

    place: "virtual machine" or "the host itself". kernel: whose it is, for people.
    io_instructions: of the probe's program for a completed request, by the job of cost_cases.py.
    flood: without a probe, by the figures' names in procfs_cases.py.
    bpf_sha256: of the sources that were tried, see bpf_sha256().
    """

    kernel: str
    release: str
    machine: str
    place: str
    date: str
    probe: str
    request_hook: Optional[str] = None
    fsync_hook: Optional[str] = None
    misses: List[str] = field(default_factory=list)
    io_instructions: Dict[str, int] = field(default_factory=dict)
    flood: Dict[str, float] = field(default_factory=dict)
    bpf_sha256: str = ""
    outcomes: Outcomes = field(default_factory=dict)

    def of_claim(self, claim: str) -> Dict[str, str]:
        """Outcomes of the tests of one of CLAIMS, by their full names."""
        return {
            f"{test}[{row}]": outcome
            for test in CLAIMS[claim] for row, outcome in self.outcomes.get(test, {}).items()
        }  # fmt: skip


def bpf_sha256(folder: Path = BPF) -> str:
    """Of the names and contents of bpf/*.[ch]: a record vouches for no others."""
    sources = hashlib.sha256()
    for path in sorted(folder.glob("*.[ch]")):
        content = path.read_bytes()
        sources.update(f"{path.name} {len(content)}\n".encode() + content)
    return sources.hexdigest()


def of_junit(*reports: str) -> Tuple[Outcomes, Dict[str, List[str]]]:
    """Outcomes and the properties of runs from pytest's JUnit XML."""
    outcomes: Outcomes = {}
    properties: Dict[str, List[str]] = {}
    for report in reports:
        tree = ElementTree.fromstring(report)
        for each in tree.iter("property"):
            properties.setdefault(each.get("name", ""), []).append(each.get("value", ""))
        for case in tree.iter("testcase"):
            test, _, row = case.get("name", "").partition("[")
            module = case.get("classname", "").rpartition(".")[2]
            outcomes.setdefault(f"{module}.{test}", {})[row.rstrip("]")] = _outcome(case)
    return outcomes, properties


def _outcome(case: ElementTree.Element) -> str:
    for tag, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            first, *_ = (found.get("message") or "").split("\n")
            return f"{'refused' if found.get('type') == REFUSED else word}: {first}"
    return PASSED


def unexpected(outcomes: Outcomes, lacks: Sequence[str]) -> List[str]:
    """What failed, or was skipped for another reason than what the kernel lacks."""
    fair = [f"skipped: {each}" for each in lacks]
    return [f"{test}[{row}] {outcome}" for test, rows in outcomes.items()
            for row, outcome in rows.items()
            if outcome != PASSED and not outcome.startswith("refused") and outcome not in fair]


def save(name: str, record: Record) -> Path:
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    return path


def load() -> Dict[str, Record]:
    """All records by their names; the oldest kernel first, and those of this machine last."""
    records = {path.stem: Record(**json.loads(path.read_text(encoding="utf-8")))
               for path in RESULTS.glob("*.json")}  # fmt: skip

    def order(item: Tuple[str, Record]) -> Tuple[bool, List[int], str]:
        name, record = item
        version = [int(part) for part in re.findall(r"\d+", record.release.partition("-")[0])]
        return record.place != "virtual machine", version, name

    return dict(sorted(records.items(), key=order))
