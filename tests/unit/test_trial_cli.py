# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl trial` as its user sees it: progress, verdict, page, and every way to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

import pytest

from test_cli import SOURCE, FakeDaemon, Run, daemon, run
from trial_case import FakeTrial, made
from writebackd.cli.client import NoAnswer, request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NO_DAEMON, NOT_PERMITTED, USAGE
from writebackd.report.control_server import RequestError
from writebackd.trial.analysis import Block, block_of
from writebackd.trial.plan import Plan, order
from writebackd.trial.trial_run import TrialTick
from writebackd.types.codec import pack

__all__ = ["daemon", "run"]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("writebackd.cli.trial._ASK_S", 0.001)


Between = Callable[[Callable[[], None]], None]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """Has something done between each question to the daemon and the next."""

    def do(action: Callable[[], None]) -> None:
        def sleep(seconds: float) -> None:
            # All of this process sleep by it; the daemon's thread may while a signal comes.
            if threading.current_thread() is threading.main_thread():
                action()

        monkeypatch.setattr("writebackd.cli.trial.time.sleep", sleep)

    return do


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGTERM and SIGHUP are not ignored, as they may be where nohup runs the tests."""
    before = [(each, signal.signal(each, signal.SIG_DFL))
              for each in (signal.SIGTERM, signal.SIGHUP)]  # fmt: skip
    yield
    for each, handler in before:
        signal.signal(each, handler)


def unwrapped(out: str) -> str:
    """Sentences as they were before the screen's width broke them into lines."""
    return " ".join(out.split())


class Slow(FakeTrial):
    """A block more at each question; `ended` comes with the last one, or with `end`."""

    def __init__(self, blocks: int = 10**6, ended: str = "done", why: str = "") -> None:
        self.blocks, self.ended, self.why = blocks, ended, why
        self.orders: List[str] = []
        self.asked = self.left = 0

    def handle(self, args: Mapping[str, Any]) -> Dict[str, Any]:
        self.orders.append(args["order"])
        if args["order"] == "start":
            return super().handle(args)
        self.asked += args["order"] == "go" and not self.left
        blocks = min(self.asked, self.blocks, len(self.plan.arms))
        ticks = made(self.plan, blocks=blocks)[args["since"] :]
        over = blocks == min(self.blocks, len(self.plan.arms))
        ended = "asked" if args["order"] == "end" else self.ended if over else None
        some = ticks[:17]  # more than one answer holds
        self.left = len(ticks) - len(some)
        return {"ended": ended, "why": self.why, "left": self.left,
                "ticks": [pack(each) for each in some]}  # fmt: skip


def test_progress_verdict_and_page(daemon: FakeDaemon, run: Run, tmp_path: Path) -> None:
    daemon.trial = Slow()
    page = tmp_path / "trial.html"
    code, out, error = run("trial", "--duration", "5m", "--seed", "42", "-o", str(page))
    assert (code, error) == (GOOD, "")
    _, start = daemon.requests[0]
    assert start["arms"] == order(300.0, 30.0, 42) and start["device"] is None
    lines = out.splitlines()
    assert lines[0] == "trial of sda: 10 blocks of 30s, 5m0s, seed 42; Ctrl-C ends it"
    assert "4.4G, cut to 250M" in lines[1]
    assert [line.split()[0] for line in lines[2:12]] == [f"{n}/10" for n in range(1, 11)]
    assert "The agent made commit p99" in out and "over 5 pairs" in unwrapped(out)
    assert "what the disk drains in 1 s" in out.replace("\n", " ")
    assert "better" in out and "commit p50" in out
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert max(map(len, lines[13:-1])) <= 80


def test_a_page_on_stdout_is_alone(daemon: FakeDaemon, run: Run) -> None:
    for words in (("trial", "-o", "-"), ("--json", "trial", "-o", "-")):
        code, out, _ = run(*words)
        assert code == GOOD and out.startswith("<!DOCTYPE html>")
        assert out.rstrip().endswith("</html>")


def test_times_are_written_as_elsewhere(daemon: FakeDaemon, run: Run) -> None:
    assert run("trial", "--duration", "20min", "--block", "1m", "--ceiling", "500ms",
               "--stop-at", "3s")[0] == GOOD  # fmt: skip
    _, start = daemon.requests[0]
    assert len(start["arms"]) == 20
    assert (start["block_s"], start["settle_s"]) == (60.0, 20.0)
    assert (start["ceiling_s"], start["stop_s"]) == (0.5, 3.0)


@pytest.mark.parametrize("words", [
    ("--duration", "8"), ("--duration", "soon"), ("--block", "2s"), ("--duration", "10s"),
    ("--stop-at", "m"), ("--seed", "x"),
])  # fmt: skip
def test_nonsense_is_wrong_use(daemon: FakeDaemon, run: Run, words: "tuple[str, str]") -> None:
    code, _, error = run("trial", *words)
    assert code == USAGE and error
    assert daemon.requests == []


@pytest.mark.parametrize("ended, code", [
    ("done", GOOD), ("enough", GOOD), ("asked", GOOD), ("stopped", BAD_NEWS), ("quiet", BAD_NEWS),
    ("disturbed", BAD_NEWS), ("abandoned", BAD_NEWS),
])  # fmt: skip
def test_the_exit_code_tells_how_it_ended(
    daemon: FakeDaemon, run: Run, ended: str, code: int
) -> None:
    daemon.trial = Slow(blocks=9, ended=ended, why="for a reason")
    got, out, _ = run("trial")
    assert got == code
    assert ("Ended before its time: for a reason." in out) is (ended not in ("done", "enough"))
    assert ("Ended early: for a reason." in out) is (ended == "enough")
    # What was measured is told in any case.
    assert "over 4 pairs" in unwrapped(out)


def test_an_agent_that_is_worse_is_bad_news(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worse(plan: Any, **more: Any) -> Any:
        return made(plan, lambda block, original: 0.1 if original else 0.4, **more)

    monkeypatch.setattr("trial_case.made", worse)
    code, out, _ = run("trial")
    assert code == BAD_NEWS and "longer" in out


def test_a_refusal_is_passed_on(daemon: FakeDaemon, run: Run) -> None:
    class Refusing(FakeTrial):
        def handle(self, args: Mapping[str, Any]) -> Dict[str, Any]:
            raise RequestError("no trial now: an alert stands", 1)

    daemon.trial = Refusing()
    assert run("trial") == (BAD_NEWS, "", "writebackctl: no trial now: an alert stands\n")


def test_only_root_and_only_with_a_daemon(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("writebackd.report.control_server._peer_uid", lambda sock: 1000)
    code, _, error = run("trial")
    assert code == NOT_PERMITTED and "needs root" in error
    assert run("--runtime-dir", str(tmp_path / "none"), "trial")[0] == NO_DAEMON


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_what_was_measured(
    daemon: FakeDaemon, run: Run, between: Between, heard: None, number: int
) -> None:
    slow = daemon.trial = Slow()
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)]
    between(lambda: signal.raise_signal(number) if slow.asked == 9 else None)
    # Tests that run in the background of a shell have it ignored.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, out, _ = run("trial")
    finally:
        signal.signal(signal.SIGINT, usual)
    assert code == GOOD and slow.orders[-1] == "end"
    assert "over 4 pairs" in unwrapped(out) and "block 9 of 16" in out
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_finds_the_page_written(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch, between: Between, heard: None,
    tmp_path: Path, again: int,
) -> None:
    """Where ssh drops, SIGHUP comes from the shell, and from the kernel when that has ended."""
    slow = daemon.trial = Slow()
    told = slow.handle

    def handle(args: Mapping[str, Any]) -> Dict[str, Any]:
        if args["order"] == "end":
            os.kill(os.getpid(), again)
        return told(args)

    def write_page(output: Path, page: str) -> None:
        signal.raise_signal(again)
        output.write_text(page)

    monkeypatch.setattr(slow, "handle", handle)
    between(lambda: signal.raise_signal(signal.SIGHUP) if slow.asked == 9 else None)
    monkeypatch.setattr("writebackd.cli.trial.write_page", write_page)
    page = tmp_path / "trial.html"
    assert run("trial", "-o", str(page))[0] == GOOD
    assert slow.orders[-1] == "end" and page.read_text().startswith("<!DOCTYPE html>")


def test_what_nohup_ignores_ends_nothing(
    daemon: FakeDaemon, run: Run, between: Between, heard: None
) -> None:
    slow = daemon.trial = Slow()
    between(lambda: signal.raise_signal(signal.SIGHUP))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code, out, _ = run("trial")
    assert code == GOOD and "end" not in slow.orders and "over 8 pairs" in unwrapped(out)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


PROGRAM = """
import signal, sys
from writebackd.cli import ctl, trial
trial._ASK_S = 0.001
for each in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.SIG_DFL)
sys.exit(ctl.main(sys.argv[1:]))
"""


def started(daemon: FakeDaemon, *words: str, **more: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--runtime-dir", str(daemon.runtime_dir), "trial", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("output", ["full", "closed"])
def test_an_output_that_is_gone_costs_the_text_and_not_the_page(
    daemon: FakeDaemon, tmp_path: Path, output: str
) -> None:
    slow = daemon.trial = Slow()
    page = tmp_path / "trial.html"
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "wb") as full, open(writer, "wb") as closed:
        stdout = full if output == "full" else closed
        with started(
            daemon, "-o", str(page), stdout=stdout, stderr=subprocess.PIPE
        ) as process:
            _, said = process.communicate(timeout=30)
        assert process.returncode == GOOD
        why = b"No space left on device" if output == "full" else b"Broken pipe"
        assert said.startswith(b"writebackctl: cannot write the output: " + why)
        assert said.endswith(f"; {page} has all of it\n".encode()) and said.count(b"\n") == 1
        assert "end" not in slow.orders and "over 8 pairs" in page.read_text()
        # Without a page nobody would ever know: it ends at once, and says it as all verbs do.
        slow = daemon.trial = Slow()
        with started(daemon, stdout=stdout, stderr=subprocess.PIPE) as process:
            _, said = process.communicate(timeout=30)
    assert slow.orders[-1] == "end" and len(slow.orders) < 6
    full_said = b"writebackctl: cannot write the output: No space left on device\n"
    wanted = (BAD_NEWS, full_said) if output == "full" else (GOOD, b"")
    assert (process.returncode, said) == wanted


def test_what_was_measured_outlives_a_daemon_that_hangs(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch, between: Between, tmp_path: Path
) -> None:
    slow = daemon.trial = Slow()
    silent: List[str] = []

    def hung(runtime_dir: Path, verb: str, args: Mapping[str, Any], **more: Any) -> Any:
        # Once for a while, and then for good.
        if (slow.asked == 4 and len(silent) < 3) or (slow.asked >= 10 and not slow.left):
            silent.append(args["order"])
            raise NoAnswer("writebackd does not answer within 2 s", NO_DAEMON)
        return request(runtime_dir, verb, args, **more)

    def patience_ends() -> None:
        if len(silent) > 5:
            monkeypatch.setattr("writebackd.cli.trial._SILENT_S", 0.0)

    monkeypatch.setattr("writebackd.cli.trial.request", hung)
    between(patience_ends)
    page = tmp_path / "trial.html"
    code, out, error = run("trial", "--output", str(page))
    assert (code, error) == (BAD_NEWS, "") and len(silent) > 5
    assert "Ended before its time: writebackd has not answered for" in out
    assert "over 5 pairs" in unwrapped(out) and "10/16" in out
    assert "has not answered for" in page.read_text()


def test_each_tick_is_looked_at_once_while_it_goes_on(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Some(FakeTrial):
        """Ends of questions and of blocks never meet."""

        def handle(self, args: Mapping[str, Any]) -> Dict[str, Any]:
            answer = super().handle(args)
            if args["order"] != "start":
                answer["ended"] = None if len(answer["ticks"]) > 13 else "done"
                answer["ticks"] = answer["ticks"][:13]
            return answer

    daemon.trial = some = Some()
    looked: List[int] = []

    def spy(plan: Plan, number: int, ticks: Sequence[TrialTick]) -> Block:
        looked.append(len(ticks))
        return block_of(plan, number, ticks)

    monkeypatch.setattr("writebackd.cli.trial.block_of", spy)
    code, out, _ = run("trial")
    assert code == GOOD and looked == [30] * len(some.plan.arms)
    assert [line.split("/")[0].strip() for line in out.splitlines()[2:18]] == [
        str(number) for number in range(1, 17)
    ]


def test_what_was_measured_outlives_the_daemon(
    daemon: FakeDaemon, run: Run, between: Between, tmp_path: Path
) -> None:
    slow = daemon.trial = Slow()

    def daemon_ends() -> None:
        if slow.asked >= 10:  # a question of a busy machine may be asked twice
            (tmp_path / "control.sock").unlink(missing_ok=True)

    between(daemon_ends)
    code, out, error = run("trial")
    assert (code, error) == (BAD_NEWS, "")
    assert "Ended before its time: no daemon at" in out and "over 5 pairs" in unwrapped(out)
