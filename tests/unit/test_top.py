# SPDX-License-Identifier: GPL-2.0-or-later
"""The live screen: what its keys do, what it draws, and how that looks in a real terminal."""

from __future__ import annotations

import errno
import itertools
import math
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import psutil
import pytest

import samples
from busy_host import busy_host
from test_cli import SOURCE, FakeDaemon
from writebackd.cli import io_waits
from writebackd.cli.exit_codes import CommandError
from writebackd.cli.io_waits import Delays, Wait, Waits
from writebackd.cli.top import _has_blocks, _parts, _Terminal
from writebackd.cli.top_state import HELP, KEPT, SORTS, Top
from writebackd.cli.top_view import View, waits_by_cgroup
from writebackd.report.snapshot import Snapshot
from writebackd.report.status_answer import status_json, top_json
from writebackd.types.samples import CgroupSample

CGROUPS = (
    CgroupSample(1, "/system.slice/backup.service", "sda", 248 << 20, 0.93),
    CgroupSample(2, "/system.slice/postgresql@15-main.service", "sda", 3 << 20, 0.02, 1500),
)
WAITS = (
    Wait(4711, "dd", "root", "/system.slice/backup.service", 0.93, True),
    Wait(812, "postgres", "postgres", "/system.slice/postgresql@15-main.service", 0.4, False),
    Wait(813, "postgres", "postgres", "/system.slice/postgresql@15-main.service", 0.35, False),
)
SIZES = ((60, 20), (80, 24), (200, 60))


def scene(number: int = 0, made: Optional[Snapshot] = None) -> Snapshot:
    """The situation with most to show, some ticks on: p99 of sda goes up and down."""
    shown = made or samples.several()
    estimates = dict(shown.estimates)
    if "sda" in estimates:
        p99_s = 0.004 * math.exp(3 * math.sin(number / 4))
        estimates["sda"] = replace(
            estimates["sda"], fsync_p99_s=p99_s, commit_p99_s=p99_s,
            cache_bytes=512.0 * samples.MIB, fill_bytes=300.0 * samples.MIB,
        )  # fmt: skip
    sample = replace(shown.sample, wall_s=shown.sample.wall_s + number, cgroups=CGROUPS)
    return replace(shown, estimates=estimates, sample=sample)


def filled(made: Optional[Snapshot] = None, ticks: int = 30) -> Top:
    top = Top(waits=WAITS)
    for number in range(ticks):
        shown = scene(number, made)
        top.take(status_json(shown), top_json(shown))
    return top


def press(top: Top, *keys: str) -> None:
    for key in keys:
        assert top.press(key)


# ---- keys --------------------------------------------------------------


def test_sorting_goes_round() -> None:
    top = filled()
    assert top.devices[0]["name"] == "sda"
    orders = []
    for _ in SORTS:
        press(top, "s")
        orders.append((top.sort, [device["name"] for device in top.devices]))
    assert dict(orders)["name"] == sorted(dict(orders)["name"])
    assert dict(orders)["writes"][:2] == ["sda", "sdb"]
    assert orders[-1][0] == SORTS[0]


def test_quitting_and_scrolling() -> None:
    top = filled()
    assert not top.press("q") and not top.press("\x03")
    press(top, "?", "q", "k", "j", "\x1b[B")  # that leaves the page alone
    assert top.offset == 2
    press(top, *"j" * 99)
    assert top.offset == len(top.devices) - 1


def test_a_tick_is_one_point_and_old_ones_go() -> None:
    top = filled(ticks=KEPT + 5)
    again = scene(KEPT + 4)
    top.take(status_json(again), top_json(again))
    assert len(top.p99["sda"]) == KEPT
    top.take(status_json(replace(samples.idle())), top_json(samples.idle()))
    assert set(top.p99) == {"sda"}


# ---- drawing -----------------------------------------------------------


@pytest.mark.parametrize("name", samples.ALL)
def test_every_situation_fits(name: str) -> None:
    top = filled(samples.ALL[name](), ticks=3)
    for (width, height), colour, key in itertools.product(SIZES, (False, True), "gg??"):
        press(top, key)
        lines = View(colour, blocks=True).lines(top, width, height)
        plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
        assert len(lines) == height
        assert max(map(len, plain)) <= width
        assert all(colour or line == bare for line, bare in zip(lines, plain))
        assert not re.search(r"[\x00-\x1f\x7f]", "".join(plain))


def test_colours_are_words_as_well() -> None:
    top = filled()
    text = "\n".join(View(False, blocks=True).lines(top, 80, 24))
    for word in ("guard", "idle", "excluded", "enforce"):
        assert word in text
    assert "\x1b[" in "\n".join(View(True, blocks=True).lines(top, 80, 24))


def test_names_cannot_write_on_the_terminal() -> None:
    evil = "\x1b[2Jx\r\n\x9b31m\u202e"
    top = filled(replace(samples.hostile(evil), messages=(evil,)), ticks=2)
    top.waits = (Wait(1, evil, evil, "/" + evil, 1.0, True),)
    for keys in ((), ("g",)):
        press(top, *keys)
        text = "\n".join(View(False, blocks=True).lines(top, 200, 60))
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_a_sparkline_has_a_step_for_each_factor_of_three() -> None:
    view = View(False, blocks=True)
    points = [None, 0.0, 1e-4, 4e-4, 1.1e-3, 4e-3, 0.011, 0.04, 0.11, 0.4, 60.0]
    assert view.sparkline(points) == " ▁▁▂▃▄▅▆▇██"
    assert View(False, blocks=False).sparkline(points).isascii()


def test_many_devices_leave_room_for_the_rest() -> None:
    shown, many = samples.several(), busy_host(300)
    sample = replace(shown.sample, devices=many.sample.devices)
    shown = replace(shown, sample=sample, estimates=many.estimates, decision=many.decision)
    top = filled(shown, ticks=1)
    for width, height in SIZES:
        press(top, "j")
        text = "\n".join(View(False, blocks=True).lines(top, width, height))
        assert "below (j, k scroll" in text
        assert "DIRTIES" in text and "WAITS IO" in text and "4711" in text


def drawn(top: Top, width: int, height: int) -> List[str]:
    return [line.rstrip() for line in View(False, blocks=True).lines(top, width, height)]


def test_a_small_screen_says_why_where_there_is_room_for_it() -> None:
    alone = filled(samples.guard(), ticks=2)
    lines = drawn(alone, 80, 24)
    assert any(re.match(r"sda \(/\S*\): sync demand", line) for line in lines), lines
    assert any("4711" in line for line in lines)
    # Who dirties and who waits come first where there is not.
    alone.waits = tuple(replace(WAITS[0], pid=9000 + n) for n in range(12))
    crowded = "\n".join(drawn(alone, 80, 24))
    assert "4711" in crowded and "9003" in crowded and "sda (/" not in crowded


def test_a_frame_tells_when_it_was_and_where_help_is() -> None:
    top = filled(ticks=2)
    assert top.status is not None
    clock = time.strftime("%H:%M:%S", time.localtime(top.status["time_s"]))
    for width, height in SIZES:
        lines = drawn(top, width, height)
        assert lines[0].endswith("  " + clock) and lines[-1].endswith("? help")


def test_a_part_of_a_window_has_what_counts() -> None:
    text = "\n".join(drawn(filled(ticks=2), 60, 20))
    assert re.search(r"DEVICE +STATE +commit/s +p99 ms +writes +limit +cache", text)
    assert re.search(r"sda +guard +1523 +[\d.]+ +248M +1.9M +59 %", text)
    assert "of the limit" in text and "4711" in text


@pytest.mark.parametrize("environ, blocks", [
    ({"LANG": "de_DE.UTF-8"}, True), ({"LC_ALL": "C.utf8"}, True), ({}, False),
    ({"LC_ALL": "C", "LANG": "en_GB.UTF-8"}, False), ({"LANG": "POSIX"}, False),
])  # fmt: skip
def test_blocks_are_for_terminals_that_say_they_have_them(
    environ: Dict[str, str], blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself writes UTF-8 in the locale C."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environ}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding="utf-8"))
    found = _has_blocks()
    monkeypatch.undo()
    assert found is blocks


def test_waits_of_a_cgroup_are_added() -> None:
    rows = waits_by_cgroup(WAITS)
    assert rows[0] == ("/system.slice/backup.service", 0.93, 1)
    assert rows[1][1] == pytest.approx(0.75)


# ---- who waits ---------------------------------------------------------


class FakeDelays(Delays):
    def __init__(self, delays: Dict[int, float]) -> None:
        self.delays, self.note, self._stats = delays, None, None

    def of(self, pid: int) -> Optional[float]:
        return self.delays.get(pid)


def processes(monkeypatch: pytest.MonkeyPatch, *rows: Tuple[int, int, str, str]) -> None:
    found = [
        SimpleNamespace(
            info={"pid": pid, "ppid": ppid, "name": name, "status": status, "create_time": 1.0},
            num_threads=lambda: 2, username=lambda: "somebody",
        )
        for pid, ppid, name, status in rows
    ]  # fmt: skip
    monkeypatch.setattr(psutil, "process_iter", lambda attributes: iter(found))


def test_waits_are_rates_and_the_longest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(io_waits, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    processes(
        monkeypatch, (2, 0, "kthreadd", "sleeping"), (30, 2, "kworker", "disk-sleep"),
        (41, 1, "quick", "sleeping"), (42, 1, "slow", "sleeping"), (43, 1, "calm", "sleeping"),
        (44, 1, "odd", "sleeping"), (45, 1, "stuck", "disk-sleep"),
    )  # fmt: skip
    delays = {30: 0.0, 41: 5.0, 42: 7.0, 43: 9.0, 44: 0.0}
    looker = Waits(FakeDelays(delays))
    assert [each.pid for each in looker.read()] == [45]
    clock[0] += 2.0
    # 44 slept while the counting began: the kernel counts from the boot on.
    delays.update({30: 1.0, 41: 5.5, 42: 8.0, 44: 9000.0})
    found = looker.read()
    assert [(each.pid, each.share) for each in found] == [(42, 0.5), (41, 0.25), (45, None)]
    assert found[2].stuck and found[0].user == "somebody"


def test_a_host_with_many_processes_is_asked_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    asked: List[int] = []

    class Slow(FakeDelays):
        def of(self, pid: int) -> Optional[float]:
            clock[0] += io_waits.BUDGET_S / 4
            asked.append(pid)
            return 0.0

    monkeypatch.setattr(io_waits, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    processes(monkeypatch, *((pid, 1, "p", "sleeping") for pid in range(10, 30)))
    looker = Waits(Slow({}))
    for _ in range(6):
        looker.read(first=[25])
    assert asked.count(25) == 6
    assert set(asked) == set(range(10, 30))


def test_what_hinders_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = tmp_path / "task_delayacct"
    switch.write_text("0\n")
    assert "kernel.task_delayacct=1" in str(Delays(str(switch)).note)
    switch.write_text("1\n")

    def refuse() -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(io_waits, "_open", refuse)
    denied = Delays(str(switch))
    assert "root" in str(denied.note) and denied.of(1) is None


# ---- as a program ------------------------------------------------------

Python = Callable[..., "subprocess.CompletedProcess[str]"]


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip


def test_the_daemon_never_imports_rich() -> None:
    result = python(
        "import sys, writebackd.cli.daemon_main, writebackd.cli.status_screen,"
        " writebackd.cli.daemon_verbs; sys.exit('rich' in sys.modules)"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("modules, packages", [
    (("rich.console", "rich"), ("rich",)),
    (("rich.console",), ("rich",)),  # one that is too old
    (("psutil", "pyroute2", "rich.console", "rich"), ("psutil", "pyroute2", "rich")),
])  # fmt: skip
def test_without_packages_it_says_how_to_get_all_of_them(
    modules: Tuple[str, ...], packages: Tuple[str, ...]
) -> None:
    apt = " ".join(f"python3-{name}" for name in packages)
    for found, command in (("'/usr/bin/apt-get'", f"sudo apt-get install {apt}"),
                           ("None", f"pip install {' '.join(packages)}")):  # fmt: skip
        result = python(
            f"import shutil, sys; sys.modules.update(dict.fromkeys({modules}));"
            f" shutil.which = lambda name: {found};"
            " from writebackd.cli.ctl import main; sys.exit(main(['top']))"
        )
        assert result.returncode == 1
        assert result.stderr.endswith(f"top needs: {command}\n")
        assert len(result.stderr.splitlines()) == 1


def test_a_failure_to_import_without_a_name_names_all_packages(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    class Damaged(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError("damaged")

    name = "writebackd.cli.io_waits"
    monkeypatch.setitem(sys.modules, name, Damaged(name))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(CommandError, match="^top needs: pip install psutil pyroute2 rich$"):
        _parts("never")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path)
    fake.snapshot = scene()
    yield fake
    fake.stop()


def test_without_a_terminal_it_is_text(daemon: FakeDaemon) -> None:
    words = ["--runtime-dir", str(daemon.runtime_dir), "top", "--interval", "0.2", "--frames", "2"]
    result = subprocess.run(
        [*CTL, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "100"},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("writebackd: enforce") == 2
    assert "\x1b" not in result.stdout


CTL = [sys.executable, "-m", "writebackd.cli.ctl"]


class Terminal:
    """`writebackctl top` in a tmux of its own."""

    def __init__(
        self, runtime_dir: Path, width: int, height: int, shell: str = "", **environ: str
    ) -> None:
        # The socket's path: at most 107 bytes.
        self._tmux = ["tmux", "-u", "-S", str(runtime_dir / "tmux"), "-f", "/dev/null"]
        words = ["env", f"PYTHONPATH={SOURCE}", "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"]
        words += [f"{name}={value}" for name, value in environ.items()]
        words += [*CTL, "--runtime-dir", str(runtime_dir), "top", "--interval", "0.2"]
        command = shlex.join(words) + "; echo ended with $?; exec sleep 60"
        typed, command = (shlex.join(words), shell) if shell else ("", command)
        self._do("new-session", "-d", "-x", str(width), "-y", str(height), command)
        if typed:
            self.keys(typed, "Enter")

    def _do(self, *words: str) -> str:
        return subprocess.run(
            [*self._tmux, *words], check=True, timeout=20, stdout=subprocess.PIPE, text=True,
            env={name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        ).stdout  # fmt: skip

    def keys(self, *keys: str) -> None:
        for key in keys:
            self._do("send-keys", key)

    def text(self, *options: str) -> str:
        return self._do("capture-pane", "-p", *options)

    def until(self, wanted: str, *options: str) -> str:
        """The screen as soon as it holds `wanted`."""
        deadline = time.monotonic() + 20
        while wanted not in (shown := self.text(*options)):
            assert time.monotonic() < deadline, f"no {wanted!r} in\n{shown}"
            time.sleep(0.05)
        return shown

    def resize(self, width: int, height: int) -> None:
        self._do("resize-window", "-x", str(width), "-y", str(height))

    def state(self) -> str:
        """Whether it is on a screen of its own, and whether there is a cursor."""
        return self._do("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip()

    def kill(self, number: int) -> None:
        pid = int(self._do("display-message", "-p", "#{pane_pid}"))
        (top,) = psutil.Process(pid).children()
        top.send_signal(number)

    def close(self) -> None:
        self._do("kill-server")


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(daemon: FakeDaemon) -> Iterator[Open]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is missing: apt-get install tmux")
    opened: List[Terminal] = []

    def start(width: int, height: int, **environ: str) -> Terminal:
        opened.append(Terminal(daemon.runtime_dir, width, height, **environ))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_in_a_small_terminal(daemon: FakeDaemon, terminal: Open) -> None:
    shown = terminal(80, 24)
    first = shown.until("q quit").splitlines()
    assert len(first) == 24 and max(map(len, first)) < 80
    assert first[0].startswith("writebackd: enforce, policy db-hwraid")
    assert re.search(r"sda +guard +1523 +0.42 .* 248M +250M +1.9M +59 %", "\n".join(first))
    assert "4711 dd" in "\n".join(first) and first[-1].startswith("q quit  s sort")
    for number in range(1, 8):
        daemon.snapshot = scene(number)
        time.sleep(0.25)
    assert re.search("▄[▄▅]*▆", shown.until("▆"))
    assert "\x1b[32m" in shown.text("-e")  # guard is green
    shown.keys("p", "r", "m", "y")
    shown.keys("g")
    shown.until("/system.slice/postgresql@15-main.service")
    shown.keys("?")
    assert HELP[0] in shown.until("each step is a factor of 3")
    shown.keys("Escape", "q")
    shown.until("ended with 0")
    assert {verb for verb, _ in daemon.requests} == {"status", "top"}  # no key changes anything


def test_in_a_large_terminal_that_gets_small_while_the_daemon_goes_and_comes(
    terminal: Open, tmp_path: Path
) -> None:
    shown = terminal(200, 60)
    lines = shown.until("q quit").splitlines()
    assert len(lines) == 60 and max(map(len, lines)) < 200
    (heading,) = (line for line in lines if "DIRTIES" in line)
    assert "WAITS IO" in heading
    assert any("sync demand (1523 fsync/s): resting at" in line for line in lines)
    assert "/srv/backup/archive/2024" in "\n".join(lines)
    (tmp_path / "control.sock").rename(tmp_path / "elsewhere")
    shown.until("no answer from the daemon: these values are old")
    (tmp_path / "elsewhere").rename(tmp_path / "control.sock")
    shown.until("q quit")
    shown.resize(40, 10)
    shown.until("top needs 80x16,")
    shown.keys("C-c")
    shown.until("ended with 130")


def test_on_a_dumb_terminal(terminal: Open) -> None:
    shown = terminal(80, 24, TERM="dumb")
    shown.until("writebackd: enforce")
    text = shown.text("-e")
    assert "\x1b" not in text and not set("▁▂▃▄▅▆▇█") & set(text)
    shown.keys("C-c")
    shown.until("ended with 130")


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal of its own as standard input and output; what it is is put back."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    before = {number: signal.getsignal(number) for number in numbers}
    main, side = pty.openpty()
    with open(side, closefd=False) as keys, open(side, "w", closefd=False) as screen:
        monkeypatch.setattr(sys, "stdin", keys)
        monkeypatch.setattr(sys, "stdout", screen)
        yield side
        monkeypatch.undo()
    for number, handler in before.items():
        signal.signal(number, handler)
    os.close(main)
    os.close(side)


def test_a_terminal_that_cannot_be_taken_is_left_as_it_was(
    keyboard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError(errno.EIO, "hung up")

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    handlers, settings = [signal.getsignal(each) for each in numbers], termios.tcgetattr(keyboard)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=lambda text: None, flush=fails))
    with pytest.raises(OSError, match="hung up"):
        _Terminal().__enter__()
    assert [signal.getsignal(each) for each in numbers] == handlers
    assert termios.tcgetattr(keyboard) == settings


@pytest.mark.parametrize("ignored", [True, False])
def test_under_nohup_a_hangup_stays_ignored(keyboard: int, ignored: bool) -> None:
    before = signal.SIG_IGN if ignored else signal.SIG_DFL
    signal.signal(signal.SIGHUP, before)
    with _Terminal():
        assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) == ignored
        assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGHUP) is before


def test_it_can_be_stopped_and_goes_on_and_a_signal_ends_it(terminal: Open) -> None:
    shown = terminal(80, 24, shell="bash --norc -i")
    shown.until("q quit")
    shown.keys("C-z")
    shown.until("Stopped")
    assert shown.state() == "0 1"
    shown.keys("fg", "Enter")
    shown.until("q quit")
    assert shown.state() == "1 0"  # its own screen, without a cursor
    shown.kill(signal.SIGTERM)
    shown.keys("echo ended with $?", "Enter")
    assert "q quit" not in shown.until("ended with 143") and shown.state() == "0 1"
