# SPDX-License-Identifier: GPL-2.0-or-later
"""On arm64: the probe where only system calls are left to it, and the daemon under a flood."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Callable, Iterator

import pytest

from tests.kernel.fault_rig import limits, wait_for
from tests.kernel.scratch import Scratch
from tests.kernel.test_daemon import Running
from tests.kernel.test_probe import (
    disk,
    test_an_fsync_through_overlayfs_is_the_lower_disks,
    test_fsync_of_the_block_device_itself,
    test_sync_counts_are_exact,
    test_syncfs_has_a_histogram_of_its_own,
)
from tests.vm.inside.bcc_cases import MIB, SCRATCH, daemon, dirty_bytes, load
from writebackd.kernel import hooks
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.probe import BpfProbe, object_image

__all__ = [
    "daemon", "disk", "test_an_fsync_through_overlayfs_is_the_lower_disks",
    "test_fsync_of_the_block_device_itself", "test_sync_counts_are_exact",
    "test_syncfs_has_a_histogram_of_its_own",
]  # fmt: skip


@pytest.fixture(scope="module")
def probe(disk: Scratch) -> Iterator[BpfProbe]:
    """As the kernel would have it without fentry and kprobes; the imported tests use it."""
    opened = BpfProbe(object_image(), KernelFiles(), fsync_hook=hooks.SYSCALL)
    try:
        assert opened.choice.syscalls[0] is hooks.SYSCALLS and not opened.choice.sync
        yield opened
    finally:
        opened.close()


def test_a_flood_is_held_and_the_limits_are_restored(daemon: Callable[..., Running]) -> None:
    found = limits()
    running = daemon("--mode", "enforce")
    device = Path(os.path.realpath(f"/sys/dev/block/{devno(SCRATCH)}")).name
    assert running.status()["probe"]["backend"] == "libbpf"
    with load():
        wait_for(lambda: limits().dirty_bytes, 90.0, "for a limit")
        wait_for(lambda: running.device(device).get("fsync_p99_s"), 30.0, "for a latency")
        time.sleep(10.0)
        limit = limits().dirty_bytes
        most = max(dirty_bytes() for _ in range(20))
        row = running.device(device)
    print(f"\nlimit {limit / MIB:.0f} MiB, dirty at most {most / MIB:.0f} MiB\n{row}")
    assert 0 < limit < 256 * MIB and most < 2 * limit + 32 * MIB
    assert row["sync_rate"] > 0
    assert running.end() == 0 and limits() == found


def devno(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"
