# SPDX-License-Identifier: GPL-2.0-or-later
"""Exit codes of the programs whose stderr takes nothing: they are all that tells the error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest

import writebackd
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NO_DAEMON, USAGE
from writebackd.storage.report_file import CollectorReport, Tool, decode

PACKAGE = Path(writebackd.__file__).resolve().parent
# The collector as on a host with one tool.
RAID = (
    "import sys; from writebackd.storage import __main__ as raid, report_file as report;"
    "found = report.CollectorReport(1.0, 1.0, 'boot', '1', (report.Tool('ssacli',"
    " '/bin/ssacli'),));"
    "raid.collect, raid.with_kernel = lambda *_, **more: found, lambda found, files: found;"
    "sys.exit(raid.main())"
)
CASES: List[Tuple[str, List[str], int]] = [
    ("ctl", ["policy", "check", "{bad}/bad.conf"], USAGE),
    ("ctl", ["policy", "match", "--config-dir", "{bad}"], GOOD),
    ("ctl", ["alerts", "--runtime-dir", "{tmp}", "--state-dir", "{tmp}"], NO_DAEMON),
    ("ctl", ["status", "--runtime-dir", "{tmp}"], NO_DAEMON),
    ("ctl", ["nosuch"], USAGE),
    ("daemon_main", ["--nosuch"], USAGE),
    ("raid", ["--nosuch"], USAGE),
    ("raid", ["--limit", "0"], USAGE),
    ("raid", ["--output", "/proc/none/raid.json"], BAD_NEWS),
    ("raid", ["--output", "-"], GOOD),
]


@pytest.mark.parametrize("program, words, code", CASES, ids=[" ".join(c[1][:2]) for c in CASES])
@pytest.mark.parametrize("stderr", ["read", "full", "broken", "closed"])
def test_a_stderr_that_takes_nothing_changes_no_exit_code(
    tmp_path: Path, program: str, words: List[str], code: int, stderr: str
) -> None:
    bad = tmp_path / "policies"
    bad.mkdir()
    (bad / "bad.conf").write_text("[limits]\nnosuch = 1\n")
    (tmp_path / "history.db").write_text("no database\n" * 1000)
    run = ["-c", RAID] if program == "raid" else ["-m", f"writebackd.cli.{program}"]
    reader, writer = os.pipe()
    os.close(reader)
    sinks = {"full": os.open("/dev/full", os.O_WRONLY), "broken": writer, "closed": writer}
    done = subprocess.run(
        [sys.executable, *run, *(word.format(bad=bad, tmp=tmp_path) for word in words)],
        # As a user's: unbuffered, nothing is left to write at the exit.
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE.parent)},
        stdout=subprocess.PIPE, stderr=sinks.get(stderr, subprocess.PIPE), timeout=60,
        check=False, preexec_fn=(lambda: os.close(2)) if stderr == "closed" else None,
    )  # fmt: skip
    for fd in {sinks["full"], writer}:
        os.close(fd)
    assert done.returncode == code
    assert done.stderr is None or done.stderr
    if words[-1] == "-":
        # Not mixed into the data.
        found = CollectorReport(1.0, 1.0, "boot", "1", (Tool("ssacli", "/bin/ssacli"),))
        assert decode(done.stdout) == found
    elif "alerts" not in words and "match" not in words:
        assert not done.stdout


@pytest.mark.parametrize("words, code", [
    (["alerts", "--runtime-dir", "{tmp}", "--state-dir", "{tmp}"], NO_DAEMON),
    (["policy", "check", "default"], BAD_NEWS),
])  # fmt: skip
def test_a_full_stdout_hides_no_error(tmp_path: Path, words: List[str], code: int) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "writebackd.cli.ctl",
             *(word.format(tmp=tmp_path) for word in words)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE.parent)},
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == code and done.stderr.startswith(b"writebackctl: ")


def test_the_collector_says_that_its_output_is_full() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", RAID, "--output", "-"], stdout=full, stderr=subprocess.PIPE,
            env={"PYTHONPATH": str(PACKAGE.parent)}, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == BAD_NEWS
    assert done.stderr == b"writebackd-raid: -: No space left on device\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the daemon")
def test_the_daemon_starts_with_its_output_closed(tmp_path: Path) -> None:
    program = (
        "import sys; from types import SimpleNamespace as Fake; from writebackd.cli import"
        " daemon_main as daemon;daemon.Daemon = lambda *_: Fake(run=lambda ready: None);"
        "daemon.memory_lock = Fake(lock_used=str, read_in_code=str);"
        "sys.exit(daemon.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--live", "--policy", "default",
         "--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state")],
        env={"PYTHONPATH": str(PACKAGE.parent)}, stderr=subprocess.PIPE, timeout=60, check=False,
        preexec_fn=lambda: os.close(1),
    )  # fmt: skip
    assert (done.returncode, b"Traceback" in done.stderr) == (GOOD, False), done.stderr


def test_errors_are_told_in_one_place() -> None:
    raw = re.compile(r"file=sys\.stderr|sys\.stderr\.write")
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")
        if raw.search(path.read_text())
    }  # fmt: skip
    assert found == {"command_line.py"}
