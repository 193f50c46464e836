# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl drain` on a real disk: what was dirty is on it, and the limits come back."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, List

import pytest

from tests.installed import make_install
from tests.kernel.fault_rig import AGENT, is_alive, limits, limits_kept, wait_for
from tests.kernel.scratch import Scratch, run, scratch_disk
from tests.kernel.system import booted, why_not
from tests.kernel.test_daemon import Running, start, untouched  # noqa: F401 (fixtures)

SIZE = 32 << 20
CHUNK = 1 << 20
FLOOR = 3 << 20
# One limit for all disks, whatever kernel this is and whoever else writes meanwhile.
POLICY = "[policy]\nname = mine\n[limits]\nfloor = 3M\n[levers]\nper-device = off\n"


@pytest.fixture
def disk() -> Iterator[Scratch]:
    with scratch_disk("ext4", 256) as made:
        yield made


# shutdown.target refuses to be started by hand. Without a service after it nothing powers off.
DOWN = "[Unit]\nDefaultDependencies=no\nRequires=shutdown.target\n"
Start = Callable[..., Running]


@pytest.fixture
def draining(start: Callable[..., Running], disk: Scratch, tmp_path: Path) -> Start:  # noqa: F811
    """Starts a daemon that manages the disk alone."""

    def starter(*options: str) -> Running:
        (tmp_path / "mine.conf").write_text(POLICY)
        daemon = start("--device", disk.device, "--policy", str(tmp_path / "mine.conf"), *options)
        wait_for(lambda: daemon.device(disk.device))
        return daemon

    return starter


def dirtied(disk: Scratch) -> List[bytes]:
    """Written, and only into the page cache: the beginning of each part."""
    assert disk.mountpoint is not None
    parts = [os.urandom(CHUNK) for _ in range(SIZE // CHUNK)]
    with open(disk.mountpoint / "data", "wb") as file:
        for part in parts:
            file.write(part)
    return [part[:64] for part in parts]


def on_disk(disk: Scratch, parts: List[bytes]) -> int:
    """How many of the parts the disk itself holds."""
    with open(disk.backing, "rb") as file, mmap.mmap(
        file.fileno(), 0, access=mmap.ACCESS_READ
    ) as held:
        return sum(held.find(part) >= 0 for part in parts)


def not_yet_on(disk: Scratch) -> List[bytes]:
    """As `dirtied`, until the flusher is not faster: the tests would show nothing."""
    parts: List[bytes] = []

    def dirty() -> bool:
        parts[:] = dirtied(disk)
        return on_disk(disk, parts) < len(parts)

    wait_for(dirty)
    return parts


def client(daemon: Running, tmp_path: Path) -> "subprocess.Popen[str]":
    """A drain whose sync never ends, as on a disk that hangs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sync").write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/pids\nexec sleep 600\n")
    (tmp_path / "bin/sync").chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    return subprocess.Popen(
        [sys.executable, "-m", "writebackd.cli.ctl", "--runtime-dir", str(daemon.runtime_dir),
         "drain"],
        env={**os.environ, "PYTHONPATH": str(AGENT), "PATH": path},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def lowered(daemon: Running) -> None:
    """Waits for limits on their way to the floor: they follow what all of the host has dirty."""
    wait_for(lambda: daemon.status()["limits"]["goal_bytes"] == FLOOR)
    wait_for(lambda: limits().dirty_bytes > 0)


def test_what_was_dirty_is_on_the_disk_and_the_limits_are_back(
    draining: Start, disk: Scratch
) -> None:
    before = limits()
    daemon = draining()
    parts = not_yet_on(disk)
    code, answer, error = daemon.ctl("drain", str(disk.mountpoint), "--timeout", "120s")
    assert (code, error) == (0, "")
    assert on_disk(disk, parts) == len(parts)
    assert answer["clean"] and answer["outcome"] == "clean" and answer["problems"] == []
    assert [row["name"] for row in answer["devices"]] == [disk.device]
    print(f"\n{answer['written_bytes'] >> 20} MiB in {answer['seconds']:.1f} s")
    wait_for(lambda: limits() == before)

    def told() -> List[str]:
        events = daemon.ctl("history")[1]["events"]
        return [each["text"] for each in events if each["kind"] == "drain"]

    wait_for(lambda: told() == [f"drain of {disk.device} by uid 0", "drain ended by uid 0"])


@contextlib.contextmanager
def elsewhere(mountpoint: Path) -> Iterator[None]:
    """Mounted in another mount namespace alone."""
    (source,) = {
        line.split()[0] for line in Path("/proc/mounts").read_text().splitlines()
        if line.split()[1] == str(mountpoint)
    }  # fmt: skip
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        holder.stdout.readline()
        run("umount", str(mountpoint))
        try:
            yield
        finally:
            run("mount", source, str(mountpoint))
            holder.stdin.close()


@contextlib.contextmanager
def hidden(mountpoint: Path) -> Iterator[None]:
    """Below another mount on the same directory."""
    run("mount", "-t", "tmpfs", "none", str(mountpoint))
    try:
        yield
    finally:
        run("umount", str(mountpoint))


@pytest.mark.parametrize("placed", [elsewhere, hidden])
def test_a_filesystem_that_no_path_leads_to_is_on_the_disk(
    draining: Start, disk: Scratch,
    placed: Callable[[Path], "contextlib.AbstractContextManager[None]"],
) -> None:  # fmt: skip
    daemon = draining("--mode", "observe")  # under a limit at the floor the kernel writes it out
    assert disk.mountpoint is not None
    parts = not_yet_on(disk)
    with placed(disk.mountpoint):
        before = on_disk(disk, parts)
        code, answer, _ = daemon.ctl("drain", disk.device, "--timeout", "120s")
        after = on_disk(disk, parts)
    print(f"\n{before}, then {after} of {len(parts)}")
    assert (code, answer["outcome"], answer["problems"]) == (0, "clean", [])
    assert after == len(parts)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_the_limits_come_back_when_the_client_goes(
    draining: Start, tmp_path: Path, number: signal.Signals
) -> None:
    before = limits()
    daemon = draining()
    process = client(daemon, tmp_path)
    wait_for(lambda: (tmp_path / "pids").exists())  # both are on
    lowered(daemon)
    process.send_signal(number)
    assert process.wait(timeout=20) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    wait_for(lambda: daemon.status()["drain"] is None)
    wait_for(lambda: limits() == before)
    syncs = [int(line) for line in (tmp_path / "pids").read_text().split()]
    if number == signal.SIGINT:  # left alone by the client, but told to end
        wait_for(lambda: not any(map(is_alive, syncs)))
    for sync in filter(is_alive, syncs):
        os.kill(sync, signal.SIGKILL)
    why = "by uid 0" if number == signal.SIGINT else "since its client is gone"
    # The tick that restores the limits tells of it a moment later.
    wait_for(lambda: f"drain ended {why}" in str(daemon.ctl("history")[1]["events"]))


def test_held_limits_outlive_the_client_until_release(draining: Start) -> None:
    before = limits()
    daemon = draining()
    code, answer, _ = daemon.ctl("drain", "--hold", "--timeout", "120s")
    assert code == 0 and answer["held"]
    lowered(daemon)
    # Held by an order of its own, from the next tick on.
    wait_for(lambda: daemon.status()["drain"]["left_s"] is None)
    assert daemon.ctl("release")[0] == 0
    wait_for(lambda: limits() == before)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_shutdown_drains_by_the_unit_as_it_is_installed(
    disk: Scratch, tmp_path: Path
) -> None:
    daemon, drain = "writebackd.service", "writebackd-drain.service"
    with limits_kept(), booted(make_install(tmp_path)) as system:
        system.write(
            "/etc/writebackd/policies.d/all.conf.d/50-test.conf",
            f"[devices]\ninclude = {disk.device}\n",
        )
        system.write("/run/systemd/system/down.target", DOWN)
        system.run("systemctl", "daemon-reload")
        major, minor = disk.devno.split(":")
        system.run("mknod", f"/dev/{disk.device}", "b", major, minor)
        system.run("mount", f"/dev/{disk.device}", "/mnt")
        system.run("systemctl", "start", daemon, drain)
        ready = f"writebackctl --json devices | grep -q {disk.devno}"
        system.run("sh", "-c", f"for n in $(seq 100); do {ready} && exit; sleep 0.2; done; exit 1")
        parts = not_yet_on(disk)
        system.run("systemctl", "start", "down.target")
        system.run("sh", "-c", f"while systemctl -q is-active {daemon}; do sleep 0.2; done")
        assert on_disk(disk, parts) == len(parts)
        assert system.show(drain, "Result") == "success"
        told = system.journal(drain)
        assert f"drain of {disk.device}; " in told and "dirty (host) " in told
        assert re.search(r"^clean: \S+ written in ", told, re.MULTILINE), told
        log = system.journal(daemon)
        assert log.index("drain of") < log.index("stopping: ")
        system.run("umount", "/mnt")
