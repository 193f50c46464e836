# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl drain` above real caches, and beside a filesystem."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Iterator

import pytest

from tests.kernel.fault_rig import HOME_S, Home, Running, found, home, kill
from tests.kernel.scratch import run
from tests.vm.inside.cache_rig import (
    bcache,
    dirty_bytes,
    disk,
    dm_cache,
    followed,
    settings,
    writecache,
)
from tests.vm.inside.rig import MIB, wait_for
from writebackd.cli.drain_verb import INTERRUPTED
from writebackd.commands import DRAIN_LEASE_S
from writebackd.control.destage import SECTOR
from writebackd.kernel import lever_files
from writebackd.types.levers import VmLimits

__all__ = ["found", "home"]


@contextlib.contextmanager
def managed(home: Home, device: str, node: str, mount: Path) -> Iterator[Running]:
    """A filesystem on `node`, and a daemon that manages `device`."""
    mount.mkdir()
    # Or else the kernel goes on writing inode tables after the mount.
    run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", node)
    run("mount", node, str(mount))
    daemon = Running(home, "--device", device, "--interval", "0.2")
    try:
        wait_for(lambda: home.ask("status"), what="for the daemon to answer")
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()
        wait_for(lambda: not subprocess.run(["umount", mount]).returncode, 60.0, "for umount", 1.0)


def fill(mount: Path, megabytes: int) -> None:
    run("dd", "if=/dev/zero", f"of={mount}/file", "bs=1M", f"count={megabytes}", "conv=fsync")


def drain(home: Home, device: str) -> "subprocess.Popen[str]":
    argv = ["/usr/bin/writebackctl", "--runtime-dir", str(home.runtime_dir), "--json", "drain"]
    return subprocess.Popen([*argv, device, "--timeout", "120s"], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("who, number, code", [
    ("nobody", 0, 0), ("client", signal.SIGINT, INTERRUPTED), ("client", signal.SIGKILL, -9),
    ("daemon", signal.SIGKILL, 3),
])  # fmt: skip
def test_a_drain_empties_bcache_and_puts_its_settings_back(
    who: str, number: int, code: int, home: Home, found: VmLimits, tmp_path: Path
) -> None:
    """Also when it is interrupted, or client or daemon are killed."""
    mount = tmp_path / "mount"
    with bcache() as device, followed(device), managed(
        home, device, f"/dev/{device}", mount
    ) as daemon:
        born = settings()
        fill(mount, 60)
        client = drain(home, device)
        wait_for(lambda: settings()[lever_files.PERCENT] == "0", what="for the drain")
        assert settings() == {**born, lever_files.PERCENT: "0", lever_files.DELAY: "0"}
        before = dirty_bytes() / MIB
        if number:
            kill(client.pid if who == "client" else daemon.process.pid, number)
        out, _ = client.communicate(timeout=150)
        after = dirty_bytes()
        print(f"\n{before:.0f} MB dirty, then {after / MIB:.1f}; exit {client.returncode} {out}")
        assert client.returncode == code
        if not number:
            assert after <= MIB and json.loads(out)["verified"]
        wait_for(lambda: settings() == born, DRAIN_LEASE_S + HOME_S, "for the way home", 0.5)
    home.check_log()


@pytest.mark.parametrize("make", [writecache, dm_cache])
def test_a_drain_empties_a_cache_of_the_mapper(
    make: Callable[[], "contextlib.AbstractContextManager[str]"], home: Home, found: VmLimits,
    tmp_path: Path,
) -> None:  # fmt: skip
    """dm-writecache by a message, below its low watermark as well; dm-cache by itself."""
    mount = tmp_path / "mount"
    with make() as device, followed(device) as seen, managed(
        home, device, f"/dev/{device}", mount
    ):  # fmt: skip
        # dm-cache keeps what was written to more than once; dm-writecache holds old and new blocks
        # for a while, and writes out above 60 % of it, some 76 MB.
        for _ in range(3):
            fill(mount, 24)
        time.sleep(2.5)
        before = seen()
        assert before is not None and before.dirty_bytes is not None
        client = drain(home, device)
        out, _ = client.communicate(timeout=150)
        after = seen()
        assert after is not None and after.dirty_bytes is not None
        print(f"\n{device}: {before.dirty_bytes / MIB:.0f} MB dirty, then"
              f" {after.dirty_bytes / MIB:.1f}; {out}")  # fmt: skip
        assert before.dirty_bytes > 16 * MIB
        answer = json.loads(out)
        assert (client.returncode, answer["problems"], answer["verified"]) == (0, [], True)
        assert after.dirty_bytes <= 4 * MIB
    home.check_log()


def test_a_drain_writes_the_pages_of_a_partition_beside_a_mounted_one(
    home: Home, found: VmLimits, tmp_path: Path
) -> None:
    with disk("plain", 256) as node:
        for number in (1, 2):
            run("addpart", node, str(number), str(number * 200_000), "150000")
        first, second = sorted(Path("/dev").glob(f"{Path(node).name}*[12]"))
        with managed(home, Path(node).name, str(first), tmp_path / "mount"):
            written = Path("/sys/class/block") / second.name / "stat"
            raw = os.open(second, os.O_WRONLY)
            try:
                os.write(raw, bytes(8 * MIB))
                assert int(written.read_text().split()[6]) < 8 * MIB // SECTOR
                assert drain(home, Path(node).name).wait(60) == 0
                assert int(written.read_text().split()[6]) == 8 * MIB // SECTOR
            finally:
                os.close(raw)
    home.check_log()
