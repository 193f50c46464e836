# SPDX-License-Identifier: GPL-2.0-or-later
"""`status --watch` and `version`, as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Iterator, Tuple

import pytest

import samples
import schema
import writebackd
from test_cli import CTL, SOURCE, FakeDaemon
from writebackd.cli import ctl
from writebackd.cli.exit_codes import NO_DAEMON
from writebackd.cli.output import frame

LINE = re.compile(r"\d\d:\d\d:\d\d (OK|BLIND): .*")
ENVIRONMENT = {
    "PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "TERM": "xterm",
    "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path)
    daemon.snapshot = samples.idle()
    yield daemon
    if daemon.runtime_dir.joinpath("control.sock").exists():
        daemon.stop()


def watching(tmp_path: Path, *words: str, **more: Any) -> "subprocess.Popen[str]":
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen(
        [*CTL, "--runtime-dir", str(tmp_path), "status", "--watch", "0.2", *words],
        env=ENVIRONMENT, text=True, **more,
    )  # fmt: skip


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_without_a_terminal_each_look_is_a_line_also_when_the_daemon_goes_away(
    daemon: FakeDaemon, tmp_path: Path, words: Tuple[str, ...]
) -> None:
    def code(line: str) -> str:
        if not words:
            found = LINE.fullmatch(line.rstrip("\n"))
            assert found, line
            return found[1]
        answer = json.loads(line)
        assert list(schema.problems(answer, schema.load("status"))) == []
        assert answer["verdict"]["text"].startswith(answer["verdict"]["code"])
        return str(answer["verdict"]["code"])

    with watching(tmp_path, *words) as child:
        assert child.stdout is not None and child.stderr is not None
        assert [code(child.stdout.readline()) for _ in range(3)] == ["OK"] * 3
        daemon.stop()
        assert any(code(child.stdout.readline()) == "BLIND" for _ in range(20))
        child.send_signal(signal.SIGINT)
        assert (child.wait(20), child.stderr.read()) == (0, "")


def test_without_a_daemon_to_begin_with_it_ends(tmp_path: Path) -> None:
    with watching(tmp_path) as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (NO_DAEMON, "") and "no daemon" in err


def test_on_a_terminal_it_draws_in_place(daemon: FakeDaemon, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with watching(tmp_path, start_new_session=True, **streams) as child:
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
