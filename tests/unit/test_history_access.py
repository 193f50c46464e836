# SPDX-License-Identifier: GPL-2.0-or-later
"""Who may read the history: root and the group adm, whoever made the file and when."""

from __future__ import annotations

import grp
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from history_cases import TIMEOUT_S, event, readable, written
from route_cases import wait_for
from writebackd.report import history_store as history_module
from writebackd.report.history_schema import HistoryError, read_history
from writebackd.report.history_store import History

ADM = next((group.gr_gid for group in grp.getgrall() if group.gr_name == "adm"), None)
root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
with_adm = pytest.mark.skipif(ADM is None, reason="no group adm: groupadd --system adm")


@root
@with_adm
def test_the_group_adm_can_read_while_it_is_written() -> None:
    # pytest's own directories are closed to other users.
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    path = directory / "history.db"
    history = History(path)
    source = Path(history_module.__file__).resolve().parents[2]
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from writebackd.report.history_schema import read_history;"
        # In the script, not by Popen: other users may not be able to run this interpreter.
        "os.setgroups([int(sys.argv[3])]); os.setgid(65534); os.setuid(65534);"
        "print(len(read_history(Path(sys.argv[2]))))"
    )
    old_umask = os.umask(0o077)
    try:
        history.record(event(0))
        wait_for(lambda: len(readable(path)) == 1)
        with subprocess.Popen(
            [sys.executable, "-c", script, str(source), str(path), str(ADM)],
            stdout=subprocess.PIPE,
        ) as reader:
            number = 1
            while reader.poll() is None:
                history.record(event(number))
                number += 1
                time.sleep(0.001)
            assert reader.stdout is not None
            assert int(reader.stdout.read()) >= 1
        assert reader.returncode == 0
    finally:
        os.umask(old_umask)
        history.close(TIMEOUT_S)
        shutil.rmtree(directory)


@root
def test_other_users_are_told_whom_it_is_for() -> None:
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    written(directory / "history.db", [event(0)])
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            read_history(directory / "history.db")
        except HistoryError as error:
            code = 0 if "is for root and the group adm" in str(error) else 2
        finally:
            os._exit(code)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_it_is_for_root_and_adm(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "history.db"
    old_umask = os.umask(umask)
    try:
        history_module.open_database(path).close()
        path.chmod(0o644)
        written(path, [event(0)])
    finally:
        os.umask(old_umask)
    for each in tmp_path.iterdir():
        status = each.stat()
        assert stat.S_IMODE(status.st_mode) == 0o640, each
        if ADM is not None and os.getuid() == 0:
            assert status.st_gid == ADM, each


def test_it_is_never_open_to_all_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    connect = sqlite3.connect

    def spy(name: str, **options: Any) -> sqlite3.Connection:
        seen.append(stat.S_IMODE(Path(name).stat().st_mode))
        connection: sqlite3.Connection = connect(name, **options)
        return connection

    monkeypatch.setattr(sqlite3, "connect", spy)
    history_module.open_database(tmp_path / "history.db").close()
    assert seen == [0o640]
