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
from typing import Any, Dict, List, NoReturn, Optional

import pytest

from test_cli import SOURCE
from writebackd.cli import run_verb
from writebackd.cli.ctl import main
from writebackd.cli.exit_codes import NOT_PERMITTED, USAGE, CommandError

# A systemd-run that only runs the command.
SYSTEMD_RUN = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
# With a directory in the place of cgroup v2, and without systemd.
BY_HAND = """
run_verb.SYSTEMD = "/nonexistent"
run_verb._own_cgroup = lambda mount: Path({tree!r})
run_verb.cgroup2_mount = lambda files: {tree!r}
real = Path.rmdir
def rmdir(path):  # a real cgroup's files need no unlink()
    for file in path.iterdir():
        file.unlink()
    real(path)
Path.rmdir = rmdir
"""


def command(patches: str, *words: str) -> List[str]:
    """`writebackctl run WORDS`, after these lines of Python."""
    before = "import os, sys; from pathlib import Path; from writebackd.cli import run_verb, ctl\n"
    after = "sys.exit(ctl.main(sys.argv[1:]))"
    return [sys.executable, "-c", f"{before}{patches}\n{after}", "run", *words]


def environment(**more: str) -> Dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), **more}


def done(
    patches: str, *words: str, path: Optional[str] = None, **more: Any
) -> "subprocess.CompletedProcess[str]":
    path = os.environ["PATH"] if path is None else path
    return subprocess.run(
        command(patches, *words), env=environment(PATH=path), timeout=60, check=False, text=True,
        **more,
    )  # fmt: skip


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("words, code, out", [
    (("--", "sh", "-c", "echo $0 $1; exit 7", "--json", "-h"), 7, "--json -h\n"),
    (("true",), 0, ""),
    (("--", "sh", "-c", "kill -9 $$"), 137, ""),
    (("--", "sh", "-c", "kill -TERM $$"), 143, ""),
])  # fmt: skip
def test_the_exit_code_is_the_commands(
    tmp_path: Path, words: List[str], code: int, out: str
) -> None:
    result = done(BY_HAND.format(tree=str(tmp_path)), *words, stdout=subprocess.PIPE)
    assert (result.returncode, result.stdout) == (code, out)
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_in_its_cgroup_before_it_begins(tmp_path: Path) -> None:
    look = f"cat {tmp_path}/*/cgroup.procs; ls {tmp_path}"
    words = ("--name", "nightly", "--", "sh", "-c", look)
    result = done(BY_HAND.format(tree=str(tmp_path)), *words, capture_output=True)
    # 0: whoever writes it, which is the child itself.
    assert result.stdout.startswith("0") and result.stdout[1:].strip().startswith("run-nightly-")
    assert "watched but not paced" in result.stderr


def test_a_signal_goes_on_to_the_command(tmp_path: Path) -> None:
    waits = "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done"
    words = command(BY_HAND.format(tree=str(tmp_path)), "--", "sh", "-c", waits)
    with subprocess.Popen(
        words, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 9


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


@pytest.mark.parametrize("manager", ["none", "runs", "is not asked"])
def test_the_command_takes_our_place_under_systemd_where_the_user_has_one(
    tmp_path: Path, manager: str
) -> None:
    """systemd-run would end with 1, which may be the command's own; a shell has 126."""
    asked = tmp_path / "asked"
    script(tmp_path / "systemd-run", f"#!/bin/sh\n{SYSTEMD_RUN}")
    if manager != "is not asked":
        script(
            tmp_path / "systemctl",
            f'#!/bin/sh\necho "$@" >{asked}\n'
            "echo Failed to connect to bus: No medium found >&2\n"
            f"exit {int(manager == 'none')}\n",
        )
    (tmp_path / "sh").symlink_to("/bin/sh")
    patches = f"run_verb.SYSTEMD = {str(tmp_path)!r}; os.geteuid = lambda: 1234"
    result = done(
        patches, "--", "sh", "-c", "echo ran; exit 5", path=str(tmp_path), capture_output=True
    )
    if manager == "none":
        assert (result.returncode, result.stdout) == (run_verb.NOT_EXECUTABLE, "")
        assert result.stderr.startswith("writebackctl: run: the systemd of this user does not")
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
    "text, code",
    [(None, 127), ("#!/nonexistent/shell\n", 127), ("not a program", 126)],
    ids=["gone", "without its interpreter", "no program"],
)
def test_a_systemd_run_that_does_not_start(
    tmp_path: Path, text: Optional[str], code: int
) -> None:
    """As the manual says, not 1: that may be the command's own."""
    fake = tmp_path / "systemd-run"
    if text is not None:
        script(fake, text)
    patches = f"run_verb.SYSTEMD = {str(tmp_path)!r}\n"
    patches += f"run_verb.shutil.which = lambda name: {str(fake)!r}"
    result = done(patches, "--", "true", path=str(tmp_path), stderr=subprocess.PIPE)
    assert result.returncode == code
    said = result.stderr.splitlines()
    assert said[-1].startswith("writebackctl: run: systemd-run: ") and len(said) <= 2


def test_a_command_that_cannot_start_has_its_code_where_nothing_can_be_told(
    tmp_path: Path
) -> None:
    program = script(tmp_path / "command", "not a program")
    tree = tmp_path / "tree"
    tree.mkdir()
    with open("/dev/full", "wb") as full:
        result = done(BY_HAND.format(tree=str(tree)), "--", str(program), stderr=full)
    assert result.returncode == run_verb.NOT_EXECUTABLE


@pytest.mark.parametrize("systemd", [True, False])
def test_the_command_dies_of_a_broken_pipe_as_in_a_shell(tmp_path: Path, systemd: bool) -> None:
    script(tmp_path / "systemd-run", f"#!/bin/sh\n{SYSTEMD_RUN}")
    tree = tmp_path / "tree"
    tree.mkdir()
    patches = BY_HAND.format(tree=str(tree)) + "run_verb._find_manager = lambda: None\n"
    patches += f"run_verb.SYSTEMD = {str(tmp_path) if systemd else '/nonexistent'!r}"
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = ("--", "grep", "SigIgn", "/proc/self/status")
    result = done(patches, *words, path=path, capture_output=True)
    ignored = int(result.stdout.split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1, result.stdout
