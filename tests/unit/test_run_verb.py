# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl run`: where the command ends up, and what becomes of its exit code."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List, NoReturn

import pytest

from test_cli import SOURCE
from writebackd.cli import run_verb
from writebackd.cli.ctl import main
from writebackd.cli.exit_codes import NOT_PERMITTED, USAGE, CommandError

# The program with a directory in the place of cgroup v2, and without systemd.
PROGRAM = """
import sys
from pathlib import Path
from writebackd.cli import run_verb as scope
scope.SYSTEMD = "/nonexistent"
scope._own_cgroup = lambda mount: Path(sys.argv[1])
scope.cgroup2_mount = lambda files: sys.argv[1]
real = Path.rmdir
def rmdir(path):  # a real cgroup's files need no unlink()
    for file in path.iterdir():
        file.unlink()
    real(path)
Path.rmdir = rmdir
from writebackd.cli.ctl import main
sys.exit(main(sys.argv[2:]))
"""


def start(tree: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tree), "run", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip


@pytest.mark.parametrize(
    "words, code, out",
    [
        (("--", "sh", "-c", "echo $0 $1; exit 7", "--json", "-h"), 7, "--json -h\n"),
        (("true",), 0, ""),
        (("--", "sh", "-c", "kill -9 $$"), 137, ""),
        (("--", "sh", "-c", "kill -TERM $$"), 143, ""),
    ],
)
def test_the_exit_code_is_the_commands(
    tmp_path: Path, words: List[str], code: int, out: str
) -> None:
    process = start(tmp_path, *words)
    assert process.communicate(timeout=60)[0] == out
    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_in_its_cgroup_before_it_begins(tmp_path: Path) -> None:
    look = f"cat {tmp_path}/*/cgroup.procs; ls {tmp_path}"
    process = start(tmp_path, "--name", "nightly", "--", "sh", "-c", look)
    out, errors = process.communicate(timeout=60)
    # 0: whoever writes it, which is the child itself.
    assert out.startswith("0") and out[1:].strip().startswith("run-nightly-")
    assert "cannot be paced" in errors


def test_a_signal_goes_on_to_the_command(tmp_path: Path) -> None:
    waits = "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done"
    process = start(tmp_path, "--", "sh", "-c", waits)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 9


def test_what_cannot_be_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_verb, "SYSTEMD", "/nonexistent")
    plain = tmp_path / "plain"
    plain.write_text("")
    assert main(["run"]) == USAGE
    assert main(["run", "--"]) == USAGE
    assert main(["run", "--", "no-such-command"]) == run_verb.NOT_FOUND
    assert main(["run", "--", str(plain)]) == run_verb.NOT_EXECUTABLE
    assert main(["run", "--name", "a/b", "--", "true"]) == USAGE
    assert main(["run", "--slice", "backup.slice", "--", "true"]) == USAGE
    monkeypatch.setattr(run_verb, "cgroup2_mount", lambda files: None)
    assert main(["run", "true"]) == NOT_PERMITTED
    errors = capsys.readouterr().err
    assert "writebackctl run -- rsync" in errors and "mount -t cgroup2" in errors


def test_systemd_makes_the_scope() -> None:
    words = run_verb.systemd_command("run-x-1", "backup.slice", ["cp", "-a", "--", "x"], root=True)
    assert words[0] == "systemd-run" and words[words.index("--") + 1 :] == ["cp", "-a", "--", "x"]
    assert {"--scope", "--unit=run-x-1", "--slice=backup.slice"} <= set(words)
    assert "--property=IOAccounting=yes" in words and "--user" not in words
    assert "--user" in run_verb.systemd_command("run-x-1", None, ["true"], root=False)


def test_the_command_takes_our_place_under_systemd(tmp_path: Path) -> None:
    fake = tmp_path / "systemd-run"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    code = f"from writebackd.cli import run_verb as scope; scope.SYSTEMD = {str(tmp_path)!r};"
    code += "scope._find_manager = lambda: None;"  # not root's
    code += "from writebackd.cli.ctl import main; main(['run', '--', 'sh', '-c', 'exit 5'])"
    path = f"{tmp_path}:{os.environ['PATH']}"
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PATH": path},
    )  # fmt: skip
    assert result.returncode == 5


@pytest.mark.parametrize("manager", ["none", "runs", "is not asked"])
def test_without_a_systemd_of_the_user_it_says_so_as_a_shell_would(
    tmp_path: Path, manager: str
) -> None:
    """systemd-run would end with 1, which may be the command's own."""
    asked = tmp_path / "asked"
    for name, text in (
        ("systemd-run", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'),
        ("systemctl", f'echo "$@" >{asked}; echo Failed to connect to bus: No medium found >&2\n'
                      f"exit {int(manager == 'none')}\n"),
    ):  # fmt: skip
        if (name, manager) != ("systemctl", "is not asked"):
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
            (tmp_path / name).chmod(0o755)
    (tmp_path / "sh").symlink_to("/bin/sh")
    code = "import os, sys; from writebackd.cli import run_verb;"
    code += f"run_verb.SYSTEMD = {str(tmp_path)!r};"
    code += "os.geteuid = lambda: 1234; from writebackd.cli.ctl import main;"
    code += "sys.exit(main(['run', '--', 'sh', '-c', 'echo ran; exit 5']))"
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PATH": str(tmp_path)},
    )  # fmt: skip
    if manager == "none":
        assert (result.returncode, result.stdout) == (run_verb.NOT_EXECUTABLE, "")
        assert result.stderr.startswith("writebackctl: run: no systemd of this user answers (Fail")
        assert "XDG_RUNTIME_DIR=/run/user/1234" in result.stderr and "sudo" in result.stderr
        assert result.stderr.count("\n") == 1
    else:
        assert (result.returncode, result.stdout) == (5, "ran\n")
        assert "watched but never paced" in result.stderr
    assert asked.exists() == (manager != "is not asked")
    assert manager == "is not asked" or "--user" in asked.read_text().split()


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="systemctl is missing")
def test_systemctl_tells_whether_there_is_a_systemd_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(CommandError, match="No such file") as failed:
        run_verb._find_manager()
    assert failed.value.exit_code == run_verb.NOT_EXECUTABLE


def test_an_exec_that_fails_leaves_the_program_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "gone since", "systemd-run")

    monkeypatch.setattr(os, "execvp", fails)
    with pytest.raises(CommandError, match="systemd-run: gone since"):
        run_verb._by_systemd("run-x-1", None, ["true"])
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


@pytest.mark.parametrize(
    "start, code",
    [(None, 127), ("#!/nonexistent/shell\n", 127), ("not a program", 126)],
    ids=["gone", "without its interpreter", "no program"],
)
@pytest.mark.parametrize("stderr", ["read", "full"])
def test_a_systemd_run_that_does_not_start(
    tmp_path: Path, start: "str | None", code: int, stderr: str
) -> None:
    """As the manual says, not 1: that may be the command's own."""
    fake = tmp_path / "systemd-run"
    if start is not None:
        fake.write_text(start)
        fake.chmod(0o755)
    program = f"from writebackd.cli import run_verb as scope; scope.SYSTEMD = {str(tmp_path)!r};"
    program += f"scope.shutil.which = lambda name: {str(fake)!r};"
    program += "import sys; from writebackd.cli.ctl import main;"
    program += "sys.exit(main(['run', '--', 'true']))"
    with open("/dev/full" if stderr == "full" else tmp_path / "errors", "w+") as errors:
        result = subprocess.run(
            [sys.executable, "-c", program], check=False, timeout=60, stderr=errors,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PATH": str(tmp_path)},
        )  # fmt: skip
    assert result.returncode == code
    if stderr == "read":
        said = (tmp_path / "errors").read_text().splitlines()
        assert said[-1].startswith("writebackctl: run: systemd-run: ") and len(said) <= 2


def test_a_command_that_cannot_start_has_its_code_where_nothing_can_be_told(
    tmp_path: Path
) -> None:
    command = tmp_path / "command"
    command.write_text("not a program")
    command.chmod(0o755)
    (tmp_path / "tree").mkdir()
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "tree"), "run", "--", str(command)],
            check=False, timeout=60, stderr=full, env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )  # fmt: skip
    assert result.returncode == run_verb.NOT_EXECUTABLE


@pytest.mark.parametrize("systemd", [True, False])
def test_the_command_dies_of_a_broken_pipe_as_in_a_shell(tmp_path: Path, systemd: bool) -> None:
    fake = tmp_path / "systemd-run"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    (tmp_path / "cgroup.procs").touch()
    booted = str(tmp_path) if systemd else "/nonexistent"
    code = f"from writebackd.cli import run_verb as scope; scope.SYSTEMD = {booted!r};"
    code += f"from pathlib import Path; scope._make_cgroup = lambda unit: Path({str(tmp_path)!r});"
    code += "scope._remove = lambda directory: None; scope._find_manager = lambda: None;"
    code += "from writebackd.cli.ctl import main;"
    code += "main(['run', '--', 'grep', 'SigIgn', '/proc/self/status'])"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    ignored = int(result.stdout.split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1, result.stdout
