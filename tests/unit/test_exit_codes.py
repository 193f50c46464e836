# SPDX-License-Identifier: GPL-2.0-or-later
"""Exit codes and output where a stream is full, closed or read no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Tuple

import pytest

import samples
import writebackd
from test_cli import FakeDaemon, daemon
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NO_DAEMON, NOT_PERMITTED, USAGE
from writebackd.storage.report_file import CollectorReport, Tool, decode

__all__ = ["daemon"]

PACKAGE = Path(writebackd.__file__).resolve().parent
# The collector as on a host with one tool.
RAID = (
    "import sys; from writebackd.storage import collector as raid, report_file as report;"
    "found = report.CollectorReport(1.0, 1.0, 'boot', '1', (report.Tool('ssacli',"
    " '/bin/ssacli'),));"
    "raid.collect, raid.with_kernel = lambda *_, **more: found, lambda found, files: found;"
    "sys.exit(raid.main())"
)


def command(program: str, *words: str) -> List[str]:
    """`program` is a module of cli/, `raid`, or lines of Python."""
    if program in ("ctl", "daemon_main"):
        return [sys.executable, "-m", f"writebackd.cli.{program}", *words]
    return [sys.executable, "-c", RAID if program == "raid" else program, *words]


def without(fd: int, argv: List[str]) -> List[str]:
    """`argv` with that stream closed; no preexec_fn, which would copy this large process."""
    return ["sh", "-c", f'exec "$@" {fd}>&-', "sh", *argv]


def environment(**more: str) -> "dict[str, str]":
    """As a user's: unbuffered, nothing is left to write at the exit."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE.parent), **more}


def ended(
    program: str, *words: str, closed: int = 0, **more: Any
) -> "subprocess.CompletedProcess[bytes]":
    argv = command(program, *words)
    argv = without(closed, argv) if closed else argv
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(), **more}
    return subprocess.run(argv, timeout=60, check=False, **more)


# ---- stderr ------------------------------------------------------------

# One of each program and each way to an error: a usage, a warning, a log, data.
CASES: List[Tuple[str, List[str], int]] = [
    ("ctl", ["policy", "check", "{bad}/bad.conf"], USAGE),
    ("ctl", ["policy", "match", "--config-dir", "{bad}"], GOOD),
    ("ctl", ["alerts", "--runtime-dir", "{tmp}", "--state-dir", "{tmp}"], NO_DAEMON),
    ("daemon_main", ["--nosuch"], USAGE),
    ("raid", ["--limit", "0"], USAGE),
    ("raid", ["--output", "-"], GOOD),
]


@pytest.mark.parametrize("program, words, code", CASES, ids=[" ".join(c[1][:2]) for c in CASES])
@pytest.mark.parametrize("stderr", ["full", "broken", "closed"])
def test_a_stderr_that_takes_nothing_changes_no_exit_code(
    tmp_path: Path, program: str, words: List[str], code: int, stderr: str
) -> None:
    bad = tmp_path / "policies"
    bad.mkdir()
    (bad / "bad.conf").write_text("[limits]\nnosuch = 1\n")
    (tmp_path / "history.db").write_text("no database\n" * 1000)
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    done = ended(
        program, *(word.format(bad=bad, tmp=tmp_path) for word in words),
        stderr=full if stderr == "full" else writer, closed=2 if stderr == "closed" else 0,
    )  # fmt: skip
    for fd in (full, writer):
        os.close(fd)
    assert done.returncode == code
    if words[-1] == "-":
        # Not mixed into the data.
        found = CollectorReport(1.0, 1.0, "boot", "1", (Tool("ssacli", "/bin/ssacli"),))
        assert decode(done.stdout) == found
    elif "alerts" not in words and "match" not in words:
        assert not done.stdout


def test_the_daemon_ends_while_nobody_takes_what_it_logs() -> None:
    program = (
        "import logging, sys; from writebackd.cli import daemon_main as daemon;"
        "listener = daemon._start_logging(verbose=False, quiet=False);"
        "[logging.error('x' * 1000) for _ in range(100)];"
        "daemon._stop_logging(listener); sys.exit(4)"
    )
    process = subprocess.Popen(command(program), env=environment(), stderr=subprocess.PIPE)
    try:
        assert process.wait(30) == NOT_PERMITTED
    finally:
        process.kill()
        process.communicate()


def test_errors_are_told_in_one_place() -> None:
    raw = re.compile(r"file=sys\.stderr|sys\.stderr\.write")
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")
        if raw.search(path.read_text())
    }  # fmt: skip
    assert found == {"command_line.py"}


# ---- stdout ------------------------------------------------------------


@pytest.mark.parametrize("program, words, code, said", [
    ("ctl", ["status"], BAD_NEWS, "writebackctl: cannot write the output: No space left on device"),
    ("ctl", ["--json", "why"], BAD_NEWS,
     "writebackctl: cannot write the output: No space left on device"),
    ("ctl", ["policy", "check", "default"], BAD_NEWS,
     "writebackctl: cannot write the output: No space left on device"),
    # What else is wrong is not hidden by it.
    ("ctl", ["alerts", "--runtime-dir", "{tmp}/none", "--state-dir", "{tmp}"], NO_DAEMON,
     "writebackctl: no "),
    ("raid", ["--output", "-"], BAD_NEWS, "writebackd-raid: -: No space left on device"),
])  # fmt: skip
def test_a_full_disk_behind_the_output_is_one_line(
    daemon: FakeDaemon, tmp_path: Path, program: str, words: List[str], code: int, said: str
) -> None:
    where = ["--runtime-dir", str(tmp_path)] if program == "ctl" else []
    with open("/dev/full", "wb") as full:
        done = ended(program, *where, *(word.format(tmp=tmp_path) for word in words), stdout=full)
    error = done.stderr.decode()
    assert done.returncode == code and error.startswith(said)
    assert error.count("\n") == 1 + ("alerts" in words)  # and that there is no history


def test_a_reader_that_has_seen_enough_is_no_error(daemon: FakeDaemon, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = ended("ctl", "--runtime-dir", str(tmp_path), "status", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (GOOD, b"")


def test_a_closed_output_does_not_keep_an_order_from_its_way(
    daemon: FakeDaemon, tmp_path: Path
) -> None:
    for verb in ("release", "status"):
        done = ended("ctl", "--runtime-dir", str(tmp_path), verb, closed=1)
        assert (done.returncode, done.stderr) == (GOOD, b"")
    assert [verb for verb, _ in daemon.requests] == ["release", "status"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the daemon")
def test_the_daemon_starts_with_its_output_closed(tmp_path: Path) -> None:
    program = (
        "import sys; from types import SimpleNamespace as Fake; from writebackd.cli import"
        " daemon_main as daemon;daemon.Daemon = lambda *_: Fake(run=lambda ready: None);"
        "daemon.memory_lock = Fake(lock_used=str, read_in_code=str);"
        "sys.exit(daemon.main(sys.argv[1:]))"
    )
    done = ended(
        program, "--live", "--policy", "default", "--runtime-dir", str(tmp_path / "run"),
        "--state-dir", str(tmp_path / "state"), closed=1,
    )  # fmt: skip
    assert (done.returncode, b"Traceback" in done.stderr) == (GOOD, False), done.stderr


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_names_without_text_do_not_end_it(
    daemon: FakeDaemon, tmp_path: Path, locale: str
) -> None:
    daemon.snapshot = samples.hostile("caf\udce9", mount="/m\udcff/größer")
    env = environment(LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    for words in (["status"], ["--json", "status"], ["devices"]):
        done = ended("ctl", "--runtime-dir", str(tmp_path), *words, env=env)
        assert (done.returncode, done.stderr) == (GOOD, b"")
