# SPDX-License-Identifier: GPL-2.0-or-later
"""On arm64: the probe where only system calls are left to it, and the daemon under a flood."""

from __future__ import annotations

from typing import Callable, Iterator

import pytest

from tests.kernel.fault_rig import limits
from tests.kernel.scratch import Scratch, scratch_disk
from tests.kernel.test_daemon import Running
from tests.kernel.test_probe import (
    test_an_fsync_through_overlayfs_is_the_lower_disks,
    test_fsync_of_the_block_device_itself,
    test_sync_counts_are_exact,
    test_syncfs_has_a_histogram_of_its_own,
)
from tests.vm.inside.flood import daemon, hold_a_flood
from tests.vm.inside.recorded import Record, record_probe
from writebackd.kernel import hooks
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.probe import BpfProbe, object_image

__all__ = [
    "daemon", "test_an_fsync_through_overlayfs_is_the_lower_disks",
    "test_fsync_of_the_block_device_itself", "test_sync_counts_are_exact",
    "test_syncfs_has_a_histogram_of_its_own",
]  # fmt: skip


@pytest.fixture(scope="module", params=["xfs"])  # ext4's own tracepoints are always there
def disk(request: pytest.FixtureRequest) -> Iterator[Scratch]:
    with scratch_disk(request.param) as scratch:
        yield scratch


@pytest.fixture(scope="module")
def probe(disk: Scratch) -> Iterator[BpfProbe]:
    """As the kernel would have it without fentry and kprobes; the imported tests use it."""
    opened = BpfProbe(object_image(), KernelFiles(), fsync_hook=hooks.SYSCALL)
    try:
        assert opened.choice.syscalls[0] is hooks.SYSCALLS and not opened.choice.sync
        yield opened
    finally:
        opened.close()


def test_a_flood_is_held_and_the_limits_are_restored(
    daemon: Callable[..., Running], record_testsuite_property: Record
) -> None:
    found = limits()
    running = daemon("--mode", "enforce")
    probe = hold_a_flood(running)["probe"]
    record_probe(record_testsuite_property, probe)
    assert probe["backend"] == "libbpf"
    assert running.end() == 0 and limits() == found
