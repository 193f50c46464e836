# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl` against a daemon's socket: answers, exit codes, errors that help."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import os
import pty
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest

import samples
import schema
import writebackd
from served import Served
from trial_case import FakeTrial
from writebackd.actuate.lock import is_locked, open_private, take_lock
from writebackd.cli import client, ctl, doctor_checks, lease_watcher
from writebackd.cli.daemon_main import parser as daemon_parser
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NO_DAEMON, NOT_PERMITTED, USAGE, CommandError
from writebackd.cli.history import span
from writebackd.cli.restore import is_watched
from writebackd.commands import metrics_answer
from writebackd.kernel.files import KernelFiles
from writebackd.report import control_server as server_module
from writebackd.report.alert_answers import alert_answer
from writebackd.report.answer_parts import verify_json
from writebackd.report.control_server import (
    RequestError,
    seconds_argument,
    size_argument,
    text_argument,
)
from writebackd.report.device_answers import devices_json, find_devices
from writebackd.report.device_figures import Figures
from writebackd.report.history_schema import Event
from writebackd.report.history_store import History
from writebackd.report.status_answer import status_json, top_json, why_json
from writebackd.types.decision import Mode
from writebackd.types.levers import VmLimits
from writebackd.types.samples import VmState

SOURCE = Path(writebackd.__file__).resolve().parents[1]
CTL = [sys.executable, "-m", "writebackd.cli.ctl"]


class FakeDaemon(Served):
    """The real server and the real answers on made-up snapshots, in a thread."""

    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir
        self.snapshot = samples.several()
        self.written = (4 << 20, 2 << 20)
        self.requests: List[Tuple[str, Dict[str, Any]]] = []
        self.trial = FakeTrial()
        super().__init__(runtime_dir, self.handle)

    def handle(self, verb: str, args: Dict[str, Any], uid: int) -> Any:
        self.requests.append((verb, args))
        shown = self.snapshot
        state = VmState(VmLimits(4 << 20, 0, 2 << 20, 0), 0, 0, 4 << 20, 2 << 20)
        answers: Dict[str, Callable[[], Any]] = {
            "status": lambda: status_json(shown),
            "devices": lambda: devices_json(shown),
            "why": lambda: why_json(shown, text_argument(args, "device")),
            "metrics": lambda: metrics_answer(shown, args["format"]),
            "alerts": lambda: alert_answer(shown, text_argument(args, "device")),
            "top": lambda: top_json(shown),
            "verify": lambda: verify_json(state, self.written),
            "mode": lambda: {
                "mode": Mode(args["mode"]).value, "good": True, "lines": ["dirty_ratio=20 (was 0)"],
            },
            "pin": lambda: {
                "pin_bytes": size_argument(args, "bytes"),
                "for_s": seconds_argument(args, "for_s"), "lines": [],
            },
            "forget": lambda: {
                "device": find_devices(shown, args["device"])[0].device.name, "lines": [],
            },
            "release": lambda: {"pin_bytes": None, "for_s": None, "lines": []},
            "drain": lambda: self.drain(args),
            "reset-stats": lambda: {"reset_s": 1_717_200_000.0, "lines": ["metrics, and"]},
            "trial": lambda: self.trial.handle(args),
        }
        if verb not in answers:
            raise RequestError(f"unknown verb {verb}")
        return answers[verb]()

    def drain(self, args: Dict[str, Any]) -> Any:
        """All is clean in a second tick."""
        self.snapshot = replace(
            self.snapshot, sample=replace(self.snapshot.sample, wall_s=time.time() + 1.0)
        )
        return {"number": args.get("number", 1), "devices": ["sda"], "lowered": True, "lines": []}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path)
    yield daemon
    daemon.stop()


Run = Callable[..., Tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """writebackctl in this process: (exit code, stdout, stderr)."""

    def call(*words: str) -> Tuple[int, str, str]:
        try:
            code = ctl.main(["--runtime-dir", str(tmp_path), *words])
        except SystemExit as error:  # argparse
            code = error.code if isinstance(error.code, int) else 1
        return (code, *capsys.readouterr())

    return call


BY_SCHEMA: Dict[str, List[List[str]]] = {
    "status": [["status"]], "devices": [["devices"]], "why": [["why"], ["why", "sda"]],
    "top": [["top"]], "metrics": [["metrics"]], "verify": [["verify"]],
    "mode": [["observe"], ["enforce"]], "pin": [["pin", "15M"], ["release"]],
    "forget": [["forget", "sda"]], "version": [["version"]], "restore": [["restore"]],
    "reset-stats": [["reset-stats"]], "trial": [["trial", "--duration", "4m"]],
    "doctor": [["doctor"]], "policy-list": [["policy", "list"]],
    "policy-show": [["policy", "show", "default"]],
    "policy-check": [["policy", "check", "default"]], "policy-match": [["policy", "match"]],
}  # fmt: skip
# Of verbs that need no daemon, or more than that.
ELSEWHERE = {"alerts", "drain", "history", "report", "replay", "doctor-bundle", "recommend",
             "calibrate"}


def test_every_schema_is_of_a_verb_that_is_tested() -> None:
    assert {path.stem for path in schema.DIRECTORY.glob("*.json")} == {*BY_SCHEMA, *ELSEWHERE}


@pytest.mark.parametrize(
    "words, name", [(words, name) for name, calls in BY_SCHEMA.items() for words in calls]
)
def test_json_is_the_data_only_and_follows_the_schema(
    daemon: FakeDaemon, run: Run, words: List[str], name: str
) -> None:
    before = run("--json", *words)
    after = run(*words, "--json")
    assert before[0] == after[0] == GOOD
    assert before[2] == after[2] == ""
    for _, out, _ in (before, after):
        assert list(schema.problems(json.loads(out), schema.load(name))) == []


@pytest.mark.parametrize("words, expected", [
    (["status"], "sync demand (1523 fsync/s)"),
    (["devices"], "dm-0 (254:0)"),
    (["why", "sda"], "decision sda-42"),
    (["metrics"], "writebackd_build_info{version="),
    (["verify"], "good: dirty_bytes 4194304"),
    (["observe"], "mode: observe\n  dirty_ratio=20 (was 0)"),
    (["enforce"], "mode: enforce"),
    (["pin", "15M"], "pinned to 15M"),
    (["release"], "released"), (["reset-stats"], "counters zeroed\n  metrics, and"),
    (["restore"], "writebackd is running, mode: observe"),
    (["policy", "list"], "default"),
    (["policy", "show", "default"], "[limits]"),
    (["policy", "show", "default", "--effective"], "[limits]"),
    (["policy", "check", "default"], "default: good"),
])  # fmt: skip
def test_text(daemon: FakeDaemon, run: Run, words: List[str], expected: str) -> None:
    code, out, err = run(*words)
    assert (code, err) == (GOOD, "")
    assert expected in out
    assert "\x1b" not in out


@pytest.mark.parametrize("verb", ["status", "devices", "why", "doctor"])
def test_colour_is_as_it_is_asked_for(daemon: FakeDaemon, run: Run, verb: str) -> None:
    assert "\x1b[" in run("--color", "always", verb)[1]
    assert "\x1b[" in run(verb, "--color=always")[1]
    assert "\x1b[" not in run(verb, "--color=never")[1] + run(verb)[1]


@pytest.mark.parametrize("words, sent", [
    (["why", "/dev/sda"], ("why", {"device": "/dev/sda"})),
    (["why"], ("why", {})),
    (["metrics"], ("metrics", {"format": "openmetrics"})),
    (["metrics", "--format", "prometheus"], ("metrics", {"format": "prometheus"})),
    (["observe"], ("mode", {"mode": "observe"})),
    (["enforce"], ("mode", {"mode": "enforce"})),
    (["restore"], ("mode", {"mode": "observe"})),
    (["pin", "1.5M"], ("pin", {"bytes": 1_572_864})),
    (["pin", "4194304"], ("pin", {"bytes": 4_194_304})),
    (["pin", "15M", "--for", "10m"], ("pin", {"bytes": 15 << 20, "for_s": 600.0})),
    (["pin", "15M", "--for", "1.5h"], ("pin", {"bytes": 15 << 20, "for_s": 5400.0})),
    (["release"], ("release", {})), (["reset-stats"], ("reset-stats", {})),
])  # fmt: skip
def test_what_is_asked(
    daemon: FakeDaemon, run: Run, words: List[str], sent: Tuple[str, Dict[str, Any]]
) -> None:
    run(*words)
    assert daemon.requests == [sent]


@pytest.mark.parametrize(
    "words",
    [["status"], ["devices"], ["why"], ["verify"], ["observe"], ["pin", "15M"], ["release"],
     ["drain"], ["reset-stats"]],
)
def test_without_a_daemon(run: Run, words: List[str]) -> None:
    code, out, err = run(*words)
    assert (code, out) == (NO_DAEMON, "")
    assert "start it with" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words, hint", [
    ([], "no verb: `writebackctl --help` lists them"),
    (["statsu"], "argument VERB: invalid choice 'statsu': did you mean status?"),
    (["zzz"], "argument VERB: invalid choice 'zzz': known are status, devices, why"),
    (["metrics", "--format", "promethius"], "did you mean prometheus?"),
    (["policy", "chekc"], "did you mean check?"),
    (["policy"], "list|show|check|match"),
    (["policy", "show", "no-such-policy"], "no-such-policy"),
    (["status", "extra"], "unrecognized arguments: extra"),
    (["status", "--watch", "0"], "takes 0.2 to 3600 seconds"),
    (["pin"], "the following arguments are required: BYTES"),
    (["pin", "15Q"], "units are B, K, M, G, T"),
    (["pin", "much"], "write it like 15M"),
    (["pin", "1.9M"], "1992294.4 bytes, not a whole number: write 1992295"),
    (["pin", "0"], "above 0"),
    (["pin", "15M", "--for", "soon"], "write it like 20ms, 5s, 2min or 1h"),
    (["pin", "15M", "--for", "10"], "has no unit"),
    (["pin", "15M", "--for", "0s"], "must be above 0"),
    (["history", "--since", "yesterday"], "write it like 30m"),
    (["history", "--limit", "x"], "argument --limit: invalid integer: 'x'"),
    (["alerts", "--limit", "0"], "argument --limit: must be above 0: '0'"),
    (["top", "--interval", "fast"], "takes 0.2 to 3600 seconds, as a number"),
    (["top", "--interval", "nan"], "takes 0.2 to 3600 seconds, as a number"),
    (["top", "--frames", "1.5"], "invalid integer: '1.5'"),
    (["trial", "--seed", "abc"], "argument --seed: invalid integer: 'abc'"),
    (["why", "sda", "sdb"], "unrecognized arguments: sdb"),
    (["why", "sdz"], "known devices: sda"),
])  # fmt: skip
def test_a_slip_is_one_line_that_says_what_to_do(
    daemon: FakeDaemon, run: Run, words: List[str], hint: str
) -> None:
    code, out, err = run(*words)
    assert (code, out) == (USAGE, "")
    assert hint in err
    assert err.count("\n") == 1
    assert ("argument" in err) is err.endswith("--help` says more\n")


def test_a_slip_at_the_daemon_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--interval", "1s"], ["--interval", "60"], ["--mode", "enforced"], ["x"]):
        with pytest.raises(SystemExit) as ended:
            daemon_parser().parse_args(words)
        assert ended.value.code == USAGE
        err = capsys.readouterr().err
        assert err.startswith("writebackd: ")
        assert err.endswith("; `writebackd --help` says more\n")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["observe"], ["enforce"], ["pin", "1M"], ["release"], ["restore"], ["drain"],
              ["reset-stats"]]
)
def test_steering_is_for_root(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch, words: List[str]
) -> None:
    monkeypatch.setattr(server_module, "_peer_uid", lambda sock: 1000)
    code, out, err = run(*words)
    assert (code, out) == (NOT_PERMITTED, "")
    # Several verbs are one request: its name says nothing to whoever typed another.
    assert err == "writebackctl: this needs root: try again with sudo\n"
    assert daemon.requests == []


def test_verify_brings_bad_news(daemon: FakeDaemon, run: Run) -> None:
    daemon.written = (8 << 20, 2 << 20)
    code, out, _ = run("verify")
    assert code == BAD_NEWS
    assert out == "/proc/sys/vm/dirty_bytes is 4194304, writebackd wrote 8388608\n"
    assert run("verify", "--json")[0] == BAD_NEWS


VERBS = {
    "status", "devices", "why", "alerts", "metrics", "history", "observe", "enforce", "pin",
    "release", "verify", "restore", "doctor", "policy", "top", "run", "forget",
    "report", "replay", "trial", "version", "recommend", "drain", "reset-stats",
    "calibrate",
}  # fmt: skip


def test_the_manual_describes_every_verb_and_schema() -> None:
    manual = (schema.DIRECTORY.parent / "reference/commands.md").read_text()
    headings = [line for line in manual.splitlines() if line.startswith("### `")]
    assert {heading.split("`")[1].split()[0] for heading in headings} == VERBS
    for path in schema.DIRECTORY.glob("*.json"):
        assert f"schema/{path.name}" in manual


def test_help_and_version(run: Run) -> None:
    assert run("--version")[1] == f"writebackctl {writebackd.__version__}\n"
    code, out, _ = run("--help")
    assert code == GOOD
    for verb in VERBS:
        assert f"\n    {verb}" in out
        assert run(verb, "--help")[0] == GOOD
    assert "examples:" in out


def test_what_only_a_unit_runs_is_hidden_and_refused_on_a_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand it hung without a word, and `watch` is taken for watch(1)."""
    unit = (SOURCE.parent / "systemd/writebackd-watch.service").read_text()
    assert "ExecStart=/usr/bin/writebackctl --runtime-dir /run/writebackd lease-watcher\n" in unit
    assert "lease-watcher" not in run("--help")[1]
    code, _, err = run("watch")
    assert code == USAGE and "lease-watcher" not in err
    monkeypatch.setattr(
        lease_watcher, "run", lambda *args, **kept: pytest.fail("it began to watch")
    )
    mine, terminal = pty.openpty()
    try:
        with open(terminal, "w", closefd=False) as screen:
            monkeypatch.setattr(sys, "stdout", screen)
            with pytest.raises(CommandError, match="not for a terminal.*when the daemon") as told:
                lease_watcher.lease_watcher(argparse.Namespace(runtime_dir=Path("/nowhere")))
    finally:
        os.close(mine)
        os.close(terminal)
    assert told.value.exit_code == USAGE


def listening(path: Path, answer: bytes) -> Tuple[socket.socket, threading.Thread]:
    """A daemon that sends `answer`, whatever is asked; b"" hangs up, None would hang."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, thread


@pytest.mark.parametrize(
    "answer", [b"", b"hello\n", b"[]\n", b"{}\n", b'{"ok": true}\n', b'{"ok": true, "data": {'],
)  # fmt: skip
def test_an_answer_that_makes_no_sense(tmp_path: Path, run: Run, answer: bytes) -> None:
    listener, thread = listening(tmp_path / "control.sock", answer)
    with listener:
        code, out, err = run("status")
        thread.join()
    assert (code, out) == (BAD_NEWS, "")
    assert "try again" in err


def test_a_daemon_that_hangs(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()
        with pytest.raises(client.NoAnswer, match="does not answer within"):
            client.request(tmp_path, "status", timeout_s=0.1)
        impatient = functools.partial(client.request, timeout_s=0.1)
        monkeypatch.setattr("writebackd.cli.restore.request", impatient)
        # Not from the ledger: the daemon may still be writing.
        code, _, err = run("restore")
    assert code == NO_DAEMON
    assert "stop it first" in err


def test_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen(0)
        others = []
        for _ in range(2):
            other = socket.socket(socket.AF_UNIX)
            other.setblocking(False)
            try:
                other.connect(str(tmp_path / "control.sock"))
            except BlockingIOError:
                pass
            others.append(other)
        start = time.monotonic()
        with pytest.raises(client.NoAnswer):
            client.request(tmp_path, "status", timeout_s=0.2)
        assert time.monotonic() - start >= 0.15
        for other in others:
            other.close()


def test_restore_without_daemon_or_ledger(run: Run) -> None:
    code, out, err = run("restore")
    assert (code, err) == (GOOD, "")
    assert "nothing to restore" in out
    code, out, _ = run("restore", "--json")
    assert list(schema.problems(json.loads(out), schema.load("restore"))) == []


def test_restore_says_when_it_fails(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This host may have had a daemon since it booted.
    monkeypatch.setattr("writebackd.actuate.ledger.first_found", lambda files: None)
    (tmp_path / "ledger.json").write_text("damaged")
    code, out, _ = run("restore")
    assert code == (BAD_NEWS if os.geteuid() == 0 else NOT_PERMITTED)
    if os.geteuid() == 0:
        assert "ledger.json" in out


def test_restore_through_a_daemon_that_fails_is_bad_news(
    tmp_path: Path, run: Run
) -> None:
    def handle(verb: str, args: Dict[str, Any], uid: int) -> Any:
        return {"mode": "observe", "good": False, "lines": ["dirty_ratio=20 not set"]}

    with contextlib.ExitStack() as stack:
        stack.callback(Served(tmp_path, handle).stop)
        code, out, _ = run("--json", "restore")
    answer = json.loads(out)
    assert (code, answer["status"]) == (BAD_NEWS, "failed")
    assert list(schema.problems(answer, schema.load("restore"))) == []


def test_restore_keeps_off_a_daemon_without_a_socket(tmp_path: Path, run: Run) -> None:
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, out, err = run("restore")
    assert (code, out) == (NO_DAEMON, "")
    assert "starting or stopping" in err


@pytest.mark.parametrize("words", [["--lease"], ["--honour-keep"], ["--honour-keep", "--lease"]])
def test_the_end_of_a_refused_second_daemon_leaves_the_first_alone(
    daemon: FakeDaemon, tmp_path: Path, run: Run, words: List[str]
) -> None:
    (tmp_path / "ledger.json").write_text("damaged")  # it would fail
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, out, err = run("restore", *words)
    assert (code, err, daemon.requests) == (GOOD, "", [])
    assert "writebackd is running" in out


def test_restore_looks_for_a_daemon_again_when_it_is_its_turn(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has started while another hand was waited for."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (tmp_path / "ledger.json").write_text("damaged")  # would be bad news
    answers = iter([False, True])
    for name in ("cli.restore", "actuate.ledger_restore"):
        monkeypatch.setattr(f"writebackd.{name}.is_locked", lambda _: next(answers))
    code, out, err = run("restore")
    assert (code, out) == (NO_DAEMON, "")
    assert "starting or stopping" in err


def test_locks_are_for_root_and_reading_goes_on_without(run: Run) -> None:
    """flock(2) works on what is open for reading: any user could keep the daemon from starting."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        there.chmod(0o755)
        (there / "lock").touch(0o644)  # of an earlier version
        (there / "lease").touch(0o644)
        held = [take_lock(there), open_private(there / "lease"), open_private(there / "watch")]
        for each in ("lock", "lease", "watch"):
            assert (there / each).stat().st_mode & 0o777 == 0o600
        (there / "ledger.json").touch()
        assert is_locked(there) is True and is_watched(there) is False
        os.seteuid(65534)
        try:
            assert is_locked(there) is None and is_watched(there) is None
            code, _, err = run("--runtime-dir", name, "restore")
            assert (code, "needs root" in err) == (NOT_PERMITTED, True)
            assert run("--runtime-dir", name, "status")[0] == NO_DAEMON
            found = doctor_checks.daemon(KernelFiles(), there)
            levels = [level for level, text in found if "with sudo" in text]
        finally:
            os.seteuid(0)
            for fd in held:
                os.close(fd)
    assert levels == ["note"]


def test_history_finds_the_daemons_file(
    daemon: FakeDaemon, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = tmp_path / "state"
    history = History(state_dir / "history.db")
    now = time.time()
    history.record(Event(now - 7200, "decision", "sda", "sda-1", "guard", text="long ago"))
    history.record(Event(now - 60, "decision", "sda", "sda-2", "squeeze", text="just now"))
    history.record(Event(now - 30, "mode", text="observe"))
    assert history.close(10)
    answer = {"state_dir": str(state_dir), "devices": [{"name": "sdb"}]}
    for module in ("history", "client"):  # the latter asks for the status
        monkeypatch.setattr(f"writebackd.cli.{module}.request", lambda *_, **more: answer)
    code, out, err = run("history")
    assert (code, err) == (GOOD, "")
    assert "sda-1" in out
    assert "sda-2" in out
    code, out, _ = run("history", "--since", "1h", "--json")
    shown = json.loads(out)
    assert [event["text"] for event in shown["events"]] == ["just now", "observe"]
    assert list(schema.problems(shown, schema.load("history"))) == []
    out = run("--json", "history", "--limit", "1", "--device", "sdb")[1]
    assert [event["kind"] for event in json.loads(out)["events"]] == ["mode"]


def test_history_says_how_much_of_it_is_not_shown(tmp_path: Path, run: Run) -> None:
    history = History(tmp_path / "history.db")
    for number in range(53):
        each = Event(1000.0 + number, "decision", "sda", f"sda-{number}", "guard")
        history.record(replace(each, text="x" * number))
    row = Figures(1000.0, 10.0, "sda", 1e6, 1e8, 0.0)
    for number in range(3):
        history.record_figures((replace(row, wall_s=1000.0 + 10 * number),))
    assert history.close(10)
    where = ("--state-dir", str(tmp_path))
    lines = run("history", *where)[1].splitlines()
    assert lines[-1] == "(the last 50 of 53 events; --limit 53 shows all, --since others)"
    assert " sda-2 " not in "\n".join(lines) and " sda-3 " in "\n".join(lines)
    assert "(the last 2 of 3 rows; " in run("history", "--figures", "--limit", "2", *where)[1]
    early = ("--since", "1970-01-01 00:00")
    for words in (("--limit", "53"), (*early, "--limit", "60"), ("--figures",), ("--csv",),
                  ("--csv", "--limit", "4"), ("--csv", "--limit", "60")):  # fmt: skip
        assert "shows all" not in run("history", *where, *words)[1], words
    # Data is data only.
    for more, shown, left in (
        ((), 50, 3), (("--limit", "53"), 53, 0), (("--limit", "60"), 53, 0),
        (("--limit", "1"), 1, 52), ((*early, "--limit", "9"), 9, 44),
        (("--figures", "--limit", "3"), 3, 0), (("--figures", "--limit", "2"), 2, 1),
    ):  # fmt: skip
        answer = json.loads(run("--json", "history", *where, *more)[1])
        assert list(schema.problems(answer, schema.load("history"))) == []
        kind, *rest = answer
        assert (len(answer[kind]), rest, answer["left_out"]) == (shown, ["left_out"], left), more


def test_history_needs_no_daemon(tmp_path: Path, run: Run) -> None:
    history = History(tmp_path / "history.db")
    history.record(Event(1.0, "stop", text="gone"))
    assert history.close(10)
    code, out, _ = run("history", "--state-dir", str(tmp_path))
    assert code == GOOD
    assert "gone" in out
    code, _, err = run("history", "--state-dir", str(tmp_path / "none"))
    assert code == BAD_NEWS
    assert "no history in" in err


@pytest.mark.parametrize("answers", [True, False])
def test_a_device_of_the_past_is_found_by_its_path_daemon_or_not(
    tmp_path: Path, run: Run, request: pytest.FixtureRequest, answers: bool
) -> None:
    if answers:  # but knows no sdq, which is gone since
        request.getfixturevalue("daemon")
    history = History(tmp_path / "history.db")
    for name in ("sdq", "cciss!c0d0"):
        history.record(Event(1000.0, "decision", name, f"{name}#1", "guard", text="of old"))
        history.record_figures((Figures(1000.0, 10.0, name, 1e6, 1e8, 0.0),))
    assert history.close(10)
    where = ("--state-dir", str(tmp_path), "--device")
    for path, name in (("/dev/sdq", "sdq"), ("sdq", "sdq"), ("/dev/cciss/c0d0", "cciss!c0d0")):
        for figures in ((), ("--figures",)):
            code, out, err = run("--json", "history", *figures, *where, path)
            (rows,) = (each for each in json.loads(out).values() if isinstance(each, list))
            assert (code, err, [row["device"] for row in rows]) == (GOOD, "", [name]), path
        code, out, err = run("report", "-o", "-", *where, path)
        assert (code, err) == (GOOD, "") and f"<h2>{name}</h2>" in out
    for verb in (("history",), ("history", "--figures"), ("report", "-o", "-")):
        code, out, err = run("--json", *verb, *where, "/dev/sdzz")
        assert (code, out) == (USAGE, "") and "no device is called '/dev/sdzz'" in err
    # One that the daemon looks after has a history, of nothing yet.
    assert not answers or run("history", *where, "sda")[0] == GOOD


@pytest.mark.parametrize("text, begin_s", [
    ("90s", 1e9 - 90), ("30m", 1e9 - 1800), ("30min", 1e9 - 1800), ("1.5h", 1e9 - 5400),
    ("2d", 1e9 - 172_800), ("1w", 1e9 - 604_800),
    ("1999-05-01 03:00", time.mktime((1999, 5, 1, 3, 0, 0, 0, 0, -1))),
])  # fmt: skip
def test_spans_and_dates_of_history(text: str, begin_s: float) -> None:
    assert span(argparse.Namespace(since=text, until=None), 1e9) == (begin_s, None)
    with pytest.raises(CommandError, match="is not after --since"):
        span(argparse.Namespace(since=text, until=text), 1e9)


def test_policy_show_follows_the_running_daemon(daemon: FakeDaemon, run: Run) -> None:
    code, out, _ = run("policy", "show", "--json")
    assert code == GOOD
    assert json.loads(out)["name"] == "db-hwraid"


def test_policy_check_warns_of_a_name_that_nothing_has(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "p.conf"
    path.write_text("[device wwn-0x1]\nceiling = 9M\n")
    code, out, err = run("policy", "check", str(path))
    assert (code, out) == (0, f"{path}: good\n")
    assert err.startswith(f"warning: [device wwn-0x1] ({path}:2): no device with a filesystem")
    code, out, _ = run("policy", "check", "--json", str(path))
    assert len(json.loads(out)["warnings"]) == 1 and code == 0


def test_policy_check_names_file_and_line(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "mine.conf"
    path.write_text("[limits]\nfloor = 1Q\n")
    code, out, err = run("policy", "check", str(path))
    assert (code, out) == (USAGE, "")
    assert f"{path}:2: " in err
    code, out, _ = run("policy", "check", "--json", str(path))
    assert code == USAGE
    assert json.loads(out)["good"] is False


def test_status_imports_little() -> None:
    # What start-up costs; any of these is 5 to 100 ms on a slow host.
    script = (
        "import sys, writebackd.cli.ctl, writebackd.cli.daemon_verbs;"
        "print(' '.join(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    heavy = {
        "pyroute2", "psutil", "systemd", "sqlite3", "ctypes", "asyncio", "logging", "inspect",
        "subprocess", "decimal", "writebackd.types", "writebackd.policy", "writebackd.daemon",
    }  # fmt: skip
    assert not loaded & heavy


def test_the_runtime_dir_is_found_on_either_side_of_the_verb(
    daemon: FakeDaemon, run: Run, tmp_path: Path
) -> None:
    where = ("--runtime-dir", str(tmp_path))
    assert run("--runtime-dir", "/nowhere", "status")[0] == NO_DAEMON
    assert run("--runtime-dir", "/nowhere", "status", *where)[0] == GOOD
    assert run("--runtime-dir", "/nowhere", "policy", "show", *where)[0] == GOOD
