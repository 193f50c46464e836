# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk whose driver is unloaded while it is flooded, capped, squeezed and paced.

A module that is in use cannot be unloaded: of null_blk the flood is killed right
before.  A disk of scsi_debug is taken away under it, as if it were unplugged, and
what is left of it writes on into nothing.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import Iterator

import pytest

from tests.kernel.fault_rig import PIN, Home, Starter, found, home, is_alive, kill, limits
from tests.vm.inside.rig import (
    CGROUPS,
    MIB,
    devno_of,
    group,
    insert,
    io_max,
    remove,
    starter,
    state,
    wait_for,
    wish,
    wishes_for,
)
from writebackd.actuate.ledger import load
from writebackd.paths import LEDGER
from writebackd.types.levers import LeverKind, VmLimits

__all__ = ["found", "home", "starter"]  # fixtures
# The module, its disk, and options that make it a disk one can flood.
DISKS = [
    ("null_blk", "nullb*", ("memory_backed=1", "gb=1", "nr_devices=1")),
    ("scsi_debug", "sd*", ("dev_size_mb=64", "delay=1")),
]


@contextlib.contextmanager
def flooded(device: str, cgroup: str) -> Iterator[None]:
    """Writers without end, until killed; the last one's close is waited for."""
    script = f"while :; do dd if=/dev/zero of=/dev/{device} bs=64k conv=nocreat; done"
    flood = subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL)
    (CGROUPS / cgroup[1:] / "cgroup.procs").write_text(str(flood.pid))
    try:
        yield
    finally:
        (CGROUPS / cgroup[1:] / "cgroup.kill").write_text("1")
        flood.wait()
        wait_for(lambda: not (CGROUPS / cgroup[1:] / "cgroup.procs").read_text(), what="for it")


def disk_of(pattern: str) -> str:
    wait_for(lambda: list(Path("/sys/block").glob(pattern)), what=f"for {pattern}")
    (path,) = Path("/sys/block").glob(pattern)
    return path.name


@pytest.mark.parametrize(("module", "pattern", "options"), DISKS, ids=[row[0] for row in DISKS])
def test_unloaded_under_a_flood(
    home: Home, starter: Starter, found: VmLimits, module: str, pattern: str, options: "tuple[str]"
) -> None:
    """No trace, nothing known of it any more; the next disk of that name is as it was born."""
    remove(module)
    insert(module, *options)
    with group("flood") as cgroup:
        disk = disk_of(pattern)
        devno, born = devno_of(disk), state(disk)
        flush = born.keys() - {name for name in born if "/block/" in name}
        wishes = [*wishes_for(disk, devno), (LeverKind.PACE, cgroup, devno, [5 * MIB])]
        wish([PIN], wishes)
        pid = starter.start(home)

        def levers() -> "set[str]":
            ledger = load(home.runtime_dir / LEDGER)
            return {entry.name for entry in ledger.levers} if ledger is not None else set()

        wait_for(lambda: io_max(cgroup, devno).get("wbps") == str(5 * MIB), what="for the pace")
        wait_for(lambda: len(levers()) == len(wishes), what="for all levers")
        with flooded(disk, cgroup):
            time.sleep(2.0)
            assert is_alive(pid)
            if module == "scsi_debug":
                Path(f"/sys/block/{disk}/device/delete").write_text("1")
                time.sleep(1.0)
        remove(module)
        assert not Path(f"/sys/block/{disk}").exists()
        wait_for(lambda: levers() == {"dirty_writeback_centisecs"}, what="for them to be forgotten")
        assert is_alive(pid) and limits().dirty_bytes == PIN
        status = home.ask("status")
        assert status is not None and disk not in str(status["levers"])
        wish([PIN])
        insert(module, *options)
        assert (disk_of(pattern), devno_of(disk)) == (disk, devno)
        wait_for(lambda: state(disk) == born, what=f"for {born}")
        time.sleep(1.0)
        assert state(disk) == born and io_max(cgroup, devno) == {}
        kill(pid, 15)
        wait_for(lambda: not is_alive(pid), what="for the daemon to end")
        assert limits() == found and {name: state(disk)[name] for name in flush} == {
            name: born[name] for name in flush
        }
        remove(module)
    text = home.check_log()
    print(f"\n{module}: {len(text.splitlines())} lines in the log")
