# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel tests, run under Debian's kernels in virtual machines.

The host's kernel may refuse fentry and kprobes; a distribution's kernel has both, and filesystems
as modules.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from .guest_tests import TIME_LIMIT, check_run, check_tests, read_junit
from .kernels import Kernel, fetched, left_out, of_suite
from .machine import GuestFailed, Machine, Result

PROBE_TESTS = (
    "tests/kernel/test_kernel_types.py", "tests/kernel/test_probe.py",
    "tests/kernel/test_unit_rights.py",
)  # fmt: skip
# That it loads, counts and restores, and what was special about 5.10.
PROBE = "tests/kernel/test_probe.py::test_"
RESTORE = "tests/kernel/test_vm_limits.py::test_restored_in_the_form_it_was_found"
# What kernels might answer differently; all forms take two minutes of an emulated processor.
FORMS = ("ledger-what the agent sets", "next_run-default", "next_run-both ratios 0")
QUICK_TESTS = (
    "tests/kernel/test_kernel_types.py",
    f"{PROBE}operations_and_bytes_equal_fio[ext4-randrw]",
    f"{PROBE}sync_counts_are_exact[ext4-fdatasync]",
    f"{PROBE}syncfs_has_a_histogram_of_its_own[ext4]",
    f"{PROBE}a_freeze_is_one_where_functions_can_be_hooked[ext4]",
    f"{PROBE}syncs_and_dirtied_bytes_are_told_by_cgroup[ext4]",
    f"{PROBE}who_sleeps_for_dirty_pages_is_named[ext4]",
    f"{PROBE}who_writes_a_dirty_sysctl_is_named[ext4]",
    f"{PROBE}of_a_storm_the_last_sixteen_writes_are_left[ext4]",
    *(f"{RESTORE}[home_by_{form}]" for form in FORMS),
)
# Name -> suites, of which the first that can be had is taken, and the tests.
QUICK: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "usual": (["bookworm"], QUICK_TESTS),
    "oldest": (["bullseye"], QUICK_TESTS),
    "newest": (["sid", "trixie"], QUICK_TESTS),
}


@pytest.fixture(scope="module")
def kernel() -> Path:
    return fetched("bookworm")


def first_of(suites: Sequence[str]) -> tuple[Kernel, Path]:
    """The first whose kernel can be had; a skip, or a failure, that says why the last cannot.

    That of an unstable suite may be gone from the mirror for a day: the gate says so at its end and
    goes on with the next.
    """
    for suite, following in zip(suites, suites[1:]):
        try:
            return of_suite(suite), fetched(suite)
        except (pytest.skip.Exception, pytest.fail.Exception) as error:
            why = " ".join(str(error).split())
            left_out(f"tests/vm/test_vm.py: kernel of {suite}, tried that of {following}: {why}")
    return of_suite(suites[-1]), fetched(suites[-1])


@pytest.mark.parametrize("name", QUICK)
def test_it_loads_counts_and_restores(name: str, tmp_path: Path) -> None:
    suites, tests = QUICK[name]
    kernel, image = first_of(suites)
    check_tests(Machine(image), tests, kernel.settings, tmp_path)


@pytest.mark.full("all tests of the probe on the other kernels")
@pytest.mark.parametrize("suite", ["bullseye", "bookworm", "trixie", "sid"])
def test_the_probe_holds(suite: str, tmp_path: Path) -> None:
    check_tests(Machine(fetched(suite)), PROBE_TESTS, of_suite(suite).settings, tmp_path)


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
        ('<testcase name="a"/><testcase name="b"><skipped type="pytest.xfail"/></testcase>', True),
        ('<testcase name="b"><skipped type="pytest.xfail"/></testcase>', False),
        ("", False),
        ('<testcase name="a"/><testcase name="b"><failure/></testcase>', False),
        ('<testcase name="a"/><testcase name="b"><error/></testcase>', False),
    ],
)
def test_only_passed_tests_are_evidence(body: str, proves: bool) -> None:
    tally = read_junit(f"<testsuites><testsuite>{body}</testsuite></testsuites>")
    assert tally.proves is proves


def test_an_exit_code_fails_a_run_whose_tests_all_passed() -> None:
    report = '<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>'
    check_run(Result(0, "", "", 9.0, 3.0), report)
    with pytest.raises(pytest.fail.Exception, match="1 passed, exit code 3"):
        check_run(Result(3, "", "", 9.0, 3.0), report)
