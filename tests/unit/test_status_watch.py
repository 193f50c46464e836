# SPDX-License-Identifier: GPL-2.0-or-later
"""`status --watch` and `version`, as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

import samples
import writebackd
from test_cli import FakeDaemon
from writebackd.cli.output import frame

SOURCE = Path(writebackd.__file__).resolve().parents[1]
LINE = re.compile(r"\d\d:\d\d:\d\d (OK|NO ANSWER): .*")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path)
    daemon.snapshot = samples.idle()
    yield daemon
    if daemon.runtime_dir.joinpath("control.sock").exists():
        daemon.stop()


def command(tmp_path: Path, *words: str) -> List[str]:
    return [sys.executable, "-m", "writebackd.cli.ctl", "--runtime-dir", str(tmp_path), *words]


def environment() -> "dict[str, str]":
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "TERM": "xterm",
            "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip


def watched(tmp_path: Path, lines: int, *words: str) -> Tuple[List[str], int, str]:
    """The first lines on a pipe, then Ctrl-C: exit code and stderr."""
    with subprocess.Popen(
        command(tmp_path, "status", "--watch", "0.2", *words), env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stderr is not None
        seen = [child.stdout.readline().rstrip("\n") for _ in range(lines)]
        child.send_signal(signal.SIGINT)
        return seen, child.wait(20), child.stderr.read()


def test_without_a_terminal_each_look_is_a_line(daemon: FakeDaemon, tmp_path: Path) -> None:
    seen, code, err = watched(tmp_path, 3)
    assert (code, err) == (0, "")
    assert all(LINE.fullmatch(line) for line in seen), seen
    seen, code, err = watched(tmp_path, 2, "--json")
    assert (code, err) == (0, "")
    assert all(json.loads(line)["verdict"]["code"] == "OK" for line in seen)


def test_a_daemon_that_goes_away_meanwhile(daemon: FakeDaemon, tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "status", "--watch", "0.2"), env=environment(), text=True,
        stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert " OK: " in child.stdout.readline()
        daemon.stop()
        assert any(" NO ANSWER: " in child.stdout.readline() for _ in range(20))
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0


def test_without_a_daemon_to_begin_with_it_ends(tmp_path: Path) -> None:
    ended = subprocess.run(
        command(tmp_path, "status", "--watch"), env=environment(), capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (3, "") and "no daemon" in ended.stderr


def test_on_a_terminal_it_draws_in_place(daemon: FakeDaemon, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(tmp_path, "status", "--watch", "0.2"), env=environment(), stdout=theirs,
        stderr=theirs, stdin=theirs, start_new_session=True,
    ) as child:  # fmt: skip
        os.close(theirs)
        text, deadline = "", time.monotonic() + 30
        while text.count("\x1b[H") < 3:
            assert time.monotonic() < deadline, text
            text += os.read(ours, 1 << 16).decode()
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
    os.close(ours)
    first, second, *_ = text.split("\x1b[H")[1:]
    assert text.startswith("\x1b[2J") and second.startswith(first.split("\x1b[K")[0])
    assert "Traceback" not in text


def test_a_frame_leaves_nothing_of_the_one_before_and_fits() -> None:
    assert frame("a\nb\nc\nd", 3) == "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J"


def test_version_of_all_parts(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from writebackd.cli import ctl

    assert ctl.main(["--runtime-dir", str(tmp_path), "version"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"(?m)^writebackctl +{re.escape(writebackd.__version__)}$", out)
    assert re.search(r"(?m)^writebackd +0\.1\.0, probe libbpf$", out)
    assert re.search(rf"(?m)^kernel +{re.escape(os.uname().release)}$", out)
    nowhere = str(tmp_path / "none")
    assert ctl.main(["--runtime-dir", nowhere, "--json", "version"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["writebackd"], found["probe"]) == (None, None)
    assert found["writebackctl"] == writebackd.__version__
