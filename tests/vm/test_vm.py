# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel tests, run under a Debian kernel in a virtual machine.

The host's kernel may refuse fentry and kprobes; a distribution's kernel has both, and filesystems
as modules. The guest's pytest writes JUnit XML, of which only passed tests count as evidence: a
skip fails.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .fetch_kernel import KernelUnavailable, fetch, parse_depends, parse_uri
from .machine import GuestFailed, Machine, MachineMissing, Result, check_host

KERNEL_TESTS = (
    "tests/kernel/test_kernel_types.py", "tests/kernel/test_probe.py",
    "tests/kernel/test_unit_rights.py",
)  # fmt: skip
# What the guest's tests may expect of a Debian kernel: they fail there, not skip, without it.
GUEST_SETTINGS = {
    "WRITEBACKD_VM": "1", "WRITEBACKD_EXPECT_FENTRY": "1", "WRITEBACKD_EXPECT_KPROBES": "1",
}  # fmt: skip
# The oldest kernel that is supported: Debian 11's, 5.10. It has no fentry on modules' functions.
OLDEST_SUITE = "bullseye"
OLDEST_SETTINGS = {"WRITEBACKD_VM": "1", "WRITEBACKD_EXPECT_KPROBES": "1"}
# What is special about it in the probe, and that limits are restored.
PROBE = "tests/kernel/test_probe.py::test_"
QUICK_TESTS = (
    f"{PROBE}sync_counts_are_exact[ext4-fdatasync]",
    f"{PROBE}syncfs_has_a_histogram_of_its_own[ext4]",
    f"{PROBE}a_freeze_is_one_where_functions_can_be_hooked[ext4]",
    f"{PROBE}syncs_and_dirtied_bytes_are_told_by_cgroup[ext4]",
    f"{PROBE}who_sleeps_for_dirty_pages_is_named[ext4]",
    f"{PROBE}who_writes_a_dirty_sysctl_is_named[ext4]",
    f"{PROBE}of_a_storm_the_last_sixteen_writes_are_left[ext4]",
    "tests/kernel/test_vm_limits.py::test_restored_in_the_form_it_was_found",
)
# Seconds. The boot takes 12-20 on an idle host, each probe that is opened 10, on a busy one three
# times that.
TIME_LIMIT = 900.0


@dataclass(frozen=True)
class Tally:
    """Outcome of a test run; passed counts tests that ran to their end and held."""

    passed: int
    failed: tuple[str, ...]
    skipped: tuple[str, ...]

    @property
    def proves(self) -> bool:
        """True when something ran, and nothing failed or was skipped."""
        return self.passed > 0 and not self.failed and not self.skipped


def read_junit(text: str) -> Tally:
    """Count the test cases of a JUnit XML report."""
    passed = 0
    failed: list[str] = []
    skipped: list[str] = []
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = case.get("name")
        skip = case.find("skipped")
        # A test that failed may also have an error, in the teardown.
        wrong = [each for each in case if each.tag in ("failure", "error")]
        failed += [f"{name}: {each.text or each.get('message')}" for each in wrong]
        if skip is not None and not wrong:
            skipped.append(f"{name}: {skip.get('message')}")
        passed += skip is None and not wrong
    return Tally(passed, tuple(failed), tuple(skipped))


def check_run(result: Result, report: str) -> None:
    """Fail unless the guest's tests, of which `report` is the JUnit XML, prove something.

    What failed comes last: whoever cuts a long report keeps its end.
    """
    print(f"\nguest: booted in {result.booted_s:.0f} s, off after {result.seconds:.0f} s")
    tally = read_junit(report)
    if not tally.proves or result.returncode:
        pytest.fail("\n\n".join([
            result.output.rstrip(), f"{tally.passed} passed, exit code {result.returncode}",
            *(f"skipped: {each}" for each in tally.skipped),
            *(f"failed: {each}" for each in tally.failed),
        ]), pytrace=False)  # fmt: skip
    print(result.output)


@pytest.fixture(scope="module")
def kernel() -> Path:
    """Image of the suite's default kernel; WRITEBACKD_REQUIRE_VM turns the skip into a failure."""
    return fetched()


def fetched(suite: str | None = None) -> Path:
    if os.geteuid() != 0:
        return missing("virtual machines with a root guest need root")
    try:
        check_host()
        return fetch(suite=suite)
    except (MachineMissing, KernelUnavailable) as error:
        return missing(str(error))


def missing(reason: str) -> Path:
    if os.environ.get("WRITEBACKD_REQUIRE_VM"):
        pytest.fail(reason)
    pytest.skip(reason)


def test_kernel_tests_hold_on_debian_kernel(kernel: Path, tmp_path: Path) -> None:
    run_tests(kernel, KERNEL_TESTS, GUEST_SETTINGS, tmp_path)


@pytest.mark.parametrize("tests", [
    pytest.param(QUICK_TESTS, id="quick", marks=pytest.mark.full("another suite's kernel")),
    pytest.param(KERNEL_TESTS, id="all", marks=pytest.mark.full("all tests of the probe on 5.10"))])
def test_the_probe_holds_on_the_oldest_kernel(tests: Sequence[str], tmp_path: Path) -> None:
    run_tests(fetched(OLDEST_SUITE), tests, OLDEST_SETTINGS, tmp_path)


def run_tests(
    kernel: Path, tests: Sequence[str], settings: Mapping[str, str], tmp_path: Path
) -> None:
    report = tmp_path / "result.xml"
    # Without tests/conftest.py and hypothesis: none of these uses them, to import them takes long.
    plain = ["--noconftest", "-p", "no:hypothesispytest", "--durations=0"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-rs", *plain, f"--junitxml={report}"]
    argv = ["sh", "-c", 'echo "kernel $(uname -r)"; exec "$@"', "sh", *command, *tests]

    result = Machine(kernel).run(argv, TIME_LIMIT, share=tmp_path, env=settings)

    assert report.exists(), f"pytest did not start in the guest:\n{result.output}"
    check_run(result, report.read_text())


# The probe runs on two processors while code is patched below it, as it is when somebody asks for
# BPF's statistics.
PATCHING = """
import os, subprocess, time
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.probe import BpfProbe, object_image
flood = "while dd if=/dev/zero of=$TMPDIR/$0 bs=1M count=200 conv=notrunc status=none; do :; done"
def dirtied_mb():
    with open("/proc/vmstat") as file:
        (pages,) = [line.split()[1] for line in file if line.startswith("nr_dirtied ")]
    return int(pages) * 4096 >> 20
probe = BpfProbe(object_image(), KernelFiles())
floods = [subprocess.Popen(["sh", "-c", flood, str(number)], start_new_session=True)
          for number in range(2)]
before_mb, end_s = dirtied_mb(), time.monotonic() + 30
while time.monotonic() < end_s:
    for value in "10":
        with open("/proc/sys/kernel/bpf_stats_enabled", "w") as file:
            file.write(value)
flood_mb = dirtied_mb() - before_mb
assert flood_mb > 10 and not any(each.poll() for each in floods), flood_mb
for each in floods:
    os.killpg(each.pid, 9)
    each.wait()
probe.close()
"""


@pytest.mark.full("half a minute of flood, emulated")
def test_a_flood_does_not_freeze_the_guest_while_its_kernel_patches_itself(
    kernel: Path, tmp_path: Path
) -> None:
    command = ["env", "PYTHONPATH=agent", sys.executable, "-c", PATCHING]
    result = Machine(kernel).run(command, TIME_LIMIT / 5, share=tmp_path)
    assert result.returncode == 0, result.output


def test_time_limit_ends_the_machine(kernel: Path) -> None:
    odd_size = "1001M"
    with pytest.raises(GuestFailed, match="ran out of time"):
        Machine(kernel, memory=odd_size).run(["sleep", "600"], timeout=4.0)
    assert not [line for line in _command_lines() if odd_size in line]


def _command_lines() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_text(errors="replace"))
    return lines


@pytest.mark.parametrize(
    ("body", "proves"),
    [
        ('<testcase name="a"/>', True),
        ('<testcase name="a"/><testcase name="b"><skipped message="no fio"/></testcase>', False),
        ('<testcase name="b"><skipped message="no fio"/></testcase>', False),
        ("", False),
        ('<testcase name="a"/><testcase name="b"><failure/></testcase>', False),
        ('<testcase name="a"/><testcase name="b"><error/></testcase>', False),
    ],
)
def test_only_passed_tests_are_evidence(body: str, proves: bool) -> None:
    tally = read_junit(f"<testsuites><testsuite>{body}</testsuite></testsuites>")
    assert tally.proves is proves


def test_what_failed_ends_the_report() -> None:
    cases = [
        '<testcase name="a"/>', '<testcase name="b"><skipped message="no fio"/></testcase>',
        '<testcase name="c"><failure message="short">in c\n1 == 2</failure>'
        "<error>teardown of c</error></testcase>",
        '<testcase name="d"><error message="d"/></testcase>',
    ]  # fmt: skip
    report = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    with pytest.raises(pytest.fail.Exception) as failed:
        check_run(Result(1, "output\n", "console", 9.0, 3.0), report)
    assert str(failed.value) == (
        "output\n\n1 passed, exit code 1\n\nskipped: b: no fio\n\n"
        "failed: c: in c\n1 == 2\n\nfailed: c: teardown of c\n\nfailed: d: d"
    )


def test_an_exit_code_fails_a_run_whose_tests_all_passed() -> None:
    report = '<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>'
    check_run(Result(0, "", "", 9.0, 3.0), report)
    with pytest.raises(pytest.fail.Exception, match="1 passed, exit code 3"):
        check_run(Result(3, "", "", 9.0, 3.0), report)


@pytest.mark.parametrize(
    ("text", "package"),
    [
        (
            "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n",
            "linux-image-6.1.0-56-amd64",
        ),
        (
            "linux-image-amd64\n  Depends: linux-image-6.12.107+deb13-amd64\n"
            "  Conflicts: linux-image-6.1.0-9-amd64\n",
            "linux-image-6.12.107+deb13-amd64",
        ),
    ],
)
def test_image_package_of_debian_12_and_13(text: str, package: str) -> None:
    assert parse_depends(text) == package


@pytest.mark.parametrize(
    "text", ["", "linux-image-amd64\n  Depends: <linux-image-x>\n  Recommends: apparmor\n"]
)
def test_unknown_image_package_says_what_to_do(text: str) -> None:
    with pytest.raises(KernelUnavailable, match="apt-get update"):
        parse_depends(text)


def test_download_name_carries_the_version() -> None:
    name = "linux-image-6.1.0-56-amd64_6.1.192-2_amd64"
    assert parse_uri(f"'http://mirror/pool/{name}.deb' {name}.deb 70600000 SHA256:00\n") == name
