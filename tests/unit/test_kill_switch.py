# SPDX-License-Identifier: GPL-2.0-or-later
"""The kill switch where a look at its files fails: it never lets go by mistake."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from writebackd.actuate.kill_switch import KillSwitch

CODES = [errno.EIO, errno.EACCES, errno.ELOOP]


@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_what_cannot_be_looked_at_is_as_it_was_seen_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing = False
    look = os.lstat

    def lstat(path: Any, **more: Any) -> os.stat_result:
        if failing and str(path).startswith(str(tmp_path)):
            raise OSError(code, os.strerror(code), str(path))
        return look(path, **more)

    monkeypatch.setattr(os, "lstat", lstat)
    memory, disk = tmp_path / "run-off", tmp_path / "etc-off"
    switch = KillSwitch(memory, disk)
    try:
        failing = True
        assert switch.file() is None
        failing = False
        memory.symlink_to(tmp_path / "nowhere")
        assert switch.file() == memory
        failing = True
        assert switch.file() == memory
        failing = False
        memory.unlink()
        assert switch.file() is None
        # Never seen at all, it is taken to be there.
        failing = True
        other = KillSwitch(memory, disk)
        assert other.file() == memory
        other.close()
    finally:
        switch.close()


def test_a_directory_that_is_none_holds_no_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    switch = KillSwitch(tmp_path / "off", tmp_path / "plain/off")
    assert switch.file() is None
    switch.close()


def test_a_file_on_the_disk_is_seen_within_seconds(tmp_path: Path) -> None:
    switch = KillSwitch(tmp_path / "run-off", tmp_path / "etc-off")
    try:
        (tmp_path / "etc-off").touch()
        until = time.monotonic() + 3.0
        while switch.file() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert switch.file() == tmp_path / "etc-off"
    finally:
        switch.close()
