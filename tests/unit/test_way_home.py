# SPDX-License-Identifier: GPL-2.0-or-later
"""The way back is open with a damaged ledger, a read-only /run, and another mount namespace."""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path
from typing import Dict, Iterator, Tuple

import pytest

from fake_host import FakeHost, Rig
from fake_vm import DEFAULT
from writebackd.actuate.ledger import KERNEL_LOCK, first_found
from writebackd.actuate.ledger_restore import restore_from_ledger, restore_left
from writebackd.actuate.lock import AlreadyRunning
from writebackd.actuate.watcher import Watcher
from writebackd.cli import restore as restore_verb
from writebackd.paths import FIRST, IN_USE, LEDGER

PIN = 32 << 20


class Attributes:
    """Those of the kernel, which belong to no mount namespace."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: Dict[str, bytes] = {}
        monkeypatch.setattr("writebackd.actuate.ledger.os.setxattr", self.set)
        monkeypatch.setattr("writebackd.actuate.ledger.os.getxattr", self.get)
        monkeypatch.setattr(
            "writebackd.actuate.ledger.os.removexattr",
            lambda _, name: self.values.pop(name),
        )

    def set(self, _: str, name: str, value: bytes) -> None:
        self.values[name] = value

    def get(self, _: str, name: str) -> bytes:
        if name not in self.values:
            raise OSError(errno.ENODATA, "No data available")
        return self.values[name]


@pytest.fixture(autouse=True)
def attributes(monkeypatch: pytest.MonkeyPatch) -> Attributes:
    return Attributes(monkeypatch)


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A daemon that is gone, and has left its limit."""
    rig = Rig(tmp_path, monkeypatch, FakeHost(tmp_path / "root"))
    rig.tick(2)
    rig.pin(PIN)
    rig.tick(3)
    rig.close()
    assert rig.host.limits.dirty_bytes == PIN
    yield rig


def damage(rig: Rig) -> Path:
    path = rig.runtime_dir / LEDGER
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


# ---- a damaged ledger ---------------------------------------------------------


def test_with_a_damaged_ledger_the_limits_found_first_come_back(killed: Rig) -> None:
    path = damage(killed)
    result = restore_from_ledger(killed.host, path)
    assert result.status == "restored" and killed.host.limits == DEFAULT
    assert "is damaged" in result.lines[0] and "before the first write" in result.lines[0]
    assert not path.exists()


def test_the_watcher_restores_with_a_damaged_ledger(killed: Rig) -> None:
    damage(killed)
    watcher = Watcher(killed.host, killed.runtime_dir, stay=True)
    watcher.look(10.0)
    watcher._wake_s = None
    watcher.look(1e9)
    assert killed.host.limits == DEFAULT


def test_the_next_start_goes_on_with_a_damaged_ledger(killed: Rig) -> None:
    damage(killed)
    killed.daemon = killed.start()
    assert killed.daemon._actuator.originals == DEFAULT
    killed.pin(PIN)
    killed.tick(3)
    killed.end()
    assert killed.host.limits == DEFAULT


def test_first_found_with_a_damaged_ledger(
    killed: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(killed)
    monkeypatch.setattr(restore_verb, "KernelFiles", lambda: killed.host)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    options = argparse.Namespace(
        runtime_dir=killed.runtime_dir, lease=False, honour_keep=False, first_found=True, json=False
    )
    assert restore_verb.restore(options) == 0
    assert killed.host.limits == DEFAULT
    assert "limits at boot: 20 % / 10 %" in capsys.readouterr().out


def test_without_both_nothing_is_touched(killed: Rig, attributes: Attributes) -> None:
    path = damage(killed)
    killed.host.path(f"/run/writebackd/{FIRST}").unlink()
    attributes.values.clear()
    assert restore_from_ledger(killed.host, path).status == "failed"
    assert killed.host.limits.dirty_bytes == PIN and path.exists()


# ---- a read-only /run ---------------------------------------------------------


@pytest.fixture
def read_only(killed: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    real = os.open

    def refusing(path: object, flags: int, *args: int, **options: object) -> int:
        if str(killed.runtime_dir) in str(path) and flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *args, **options)  # type: ignore[arg-type]

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(Path, "unlink", unlink)
    return killed


def test_in_a_read_only_run_it_restores_and_complains_then(read_only: Rig) -> None:
    result = restore_left(read_only.host, read_only.runtime_dir)
    assert result.status == "restored" and read_only.host.limits == DEFAULT
    assert result.lines[-1].endswith("stays, and is of no use now: Read-only file system")


def test_in_a_read_only_run_it_restores_without_its_lease_file(
    killed: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("writebackd.actuate.ledger_restore.open_private", refused)
    assert restore_left(killed.host, killed.runtime_dir).status == "restored"
    assert killed.host.limits == DEFAULT


def test_the_watcher_starts_and_restores_in_a_read_only_run(read_only: Rig) -> None:
    watcher = Watcher(read_only.host, read_only.runtime_dir, stay=True)
    watcher.look(10.0)
    watcher._wake_s = None
    watcher.look(1e9)
    assert read_only.host.limits == DEFAULT


def test_a_start_in_a_read_only_run_restores_and_fails_then(read_only: Rig) -> None:
    with pytest.raises(OSError):
        read_only.start()
    assert read_only.host.limits == DEFAULT


# ---- another mount namespace ----------------------------------------------------


def in_another_namespace(rig: Rig, tmp: Path) -> Tuple[Path, Path]:
    """/run of its own: nothing of the first daemon's files is there."""
    hidden = rig.host.path("/run/writebackd")
    hidden.rename(hidden.with_name("hidden"))
    rig.runtime_dir.rename(tmp / "hidden-run")
    rig.runtime_dir.mkdir()
    return hidden, tmp / "hidden-run"


def test_a_daemon_in_another_mount_namespace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(tmp_path / "root")
    host.path(KERNEL_LOCK).parent.mkdir(parents=True, exist_ok=True)
    host.path(KERNEL_LOCK).touch()
    rig = Rig(tmp_path, monkeypatch, host)
    first = rig.daemon
    in_another_namespace(rig, tmp_path)
    with pytest.raises(AlreadyRunning, match="in another mount namespace"):
        rig.start()
    first._host_lock.close()
    rig.start()


def test_what_one_in_another_namespace_left_is_no_original(killed: Rig, tmp_path: Path) -> None:
    in_another_namespace(killed, tmp_path)
    assert first_found(killed.host) == DEFAULT
    with pytest.raises(AlreadyRunning, match="--first-found for 20 % / 10 %"):
        killed.start()
    assert killed.host.limits.dirty_bytes == PIN
    killed.host.sysctl("dirty_ratio", 20)
    killed.host.sysctl("dirty_background_ratio", 10)
    killed.daemon = killed.start()
    assert killed.daemon._actuator.originals == DEFAULT


def test_after_a_clean_stop_anybody_s_limits_are_originals_there(
    killed: Rig, tmp_path: Path, attributes: Attributes
) -> None:
    killed.daemon = killed.start()
    killed.end()
    assert f"trusted.writebackd.{IN_USE}" not in attributes.values
    in_another_namespace(killed, tmp_path)
    killed.host.sysctl("dirty_bytes", 96 << 20)
    killed.daemon = killed.start()
    assert killed.daemon._actuator.originals.dirty_bytes == 96 << 20
