# SPDX-License-Identifier: GPL-2.0-or-later
"""Records of runs on kernels, from JUnit XML to the tables of the manual."""

from __future__ import annotations

import sys
from typing import Dict

import pytest

from checkout import ROOT

sys.path += [str(ROOT / "docs" / "man"), str(ROOT)]
import kernel_tables
from tests.vm import matrix, records
from tests.vm.records import CLAIMS, PASSED, Record

JUNIT = """
<testsuites><testsuite>
<properties><property name="miss" value="a"/><property name="miss" value="b"/></properties>
<testcase classname="tests.vm.inside.storage_cases" name="test_syncs_are_exact[lvm-xfs-msync]"/>
<testcase classname="tests.vm.inside.storage_cases" name="test_syncs_are_exact[lvm-xfs-fsync]">
<failure message="assert 9 == 50&#10;more">long</failure></testcase>
<testcase classname="tests.vm.inside.daemon_cases" name="test_alone">
<skipped message="this kernel has none"/></testcase>
<testcase classname="tests.kernel.test_probe" name="test_tier[fentry]">
<skipped type="pytest.xfail" message="fentry refused for ext4"/></testcase>
<testcase classname="tests.vm.inside.daemon_cases" name="test_broken"><error message=""/></testcase>
</testsuite></testsuites>
"""


def record(
    release: str = "6.1.0-9-amd64", place: str = "virtual machine", **more: object
) -> Record:
    values: Dict[str, object] = {
        "kernel": "Debian x", "machine": "x86_64", "date": "2026-01-02", "probe": "libbpf",
        "fsync_hook": "fentry: ext4_sync_file; kprobe: b", **more,
    }  # fmt: skip
    return Record(release=release, place=place, **values)  # type: ignore[arg-type]


def test_each_test_has_its_outcome_with_the_first_line_of_why() -> None:
    outcomes, properties = records.of_junit(JUNIT)
    assert outcomes == {
        "storage_cases.test_syncs_are_exact": {
            "lvm-xfs-msync": PASSED, "lvm-xfs-fsync": "failed: assert 9 == 50",
        },
        "daemon_cases.test_alone": {"": "skipped: this kernel has none"},
        "test_probe.test_tier": {"fentry": "refused: fentry refused for ext4"},
        "daemon_cases.test_broken": {"": "failed: "},
    }  # fmt: skip
    assert properties == {"miss": ["a", "b"]}


@pytest.mark.parametrize("outcomes, cell", [
    ([], "not run"),
    ([PASSED, PASSED], "yes"),
    ([PASSED, "skipped: no bfq"], "1 of 2"),
    (["skipped: no bfq"], "no"),
    ([PASSED, "skipped: no bfq", "failed: "], "**1 of 3 failed**"),
])  # fmt: skip
def test_a_cell_says_yes_only_where_all_passed(outcomes: "list[str]", cell: str) -> None:
    rows = {str(number): outcome for number, outcome in enumerate(outcomes)}
    tests = {"daemon_cases.test_a_flood_is_held_with_its_fsyncs_seen": rows} if rows else {}
    table = kernel_tables.proven({"x": record(outcomes=tests)})
    row = table.splitlines()[2].strip("| ").split(" | ")
    assert row[:2] == ["6.1 (Debian x)", "libbpf: fentry, kprobe"]
    assert row[2:] == ["not run"] * (len(CLAIMS) - 1) + [cell]


def test_a_skip_is_fair_only_for_what_the_kernel_lacks() -> None:
    outcomes = {"m.t": {"1": PASSED, "2": "skipped: no bdi", "3": "skipped: no raid10",
                        "4": "failed: no bdi", "5": "refused: fentry"}}  # fmt: skip
    assert records.unexpected(outcomes, ["no bdi"]) == [
        "m.t[3] skipped: no raid10", "m.t[4] failed: no bdi"
    ]
    assert len(records.unexpected(outcomes, [])) == 3


def test_every_claim_names_tests_that_exist() -> None:
    """A test that is renamed would leave its claim without proof."""
    sources = {path.stem: path.read_text() for folder in ("tests/kernel", "tests/vm/inside")
               for path in (ROOT / folder).glob("*.py")}  # fmt: skip
    for tests in CLAIMS.values():
        for name in tests:
            module, _, test = name.partition(".")
            assert f"def {test}(" in sources[module], name


@pytest.mark.parametrize("name", sorted(path.stem for path in records.RESULTS.glob("*.json")))
def test_a_record_is_of_the_present_bpf_sources(name: str) -> None:
    assert records.load()[name].bpf_sha256 == records.bpf_sha256(), (
        f"tests/vm/results/{name}.json was made with other bpf/*.[ch]: renew it by"
        f" `python -m tests.vm.matrix {name}`, then `make docs`"
    )


def test_records_have_no_failure_and_no_skip_that_is_not_expected() -> None:
    wrong = {name: matrix.wrong_in(name, each) for name, each in records.load().items()}
    assert not any(wrong.values()), wrong
