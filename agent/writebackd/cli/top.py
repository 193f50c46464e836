# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb top: a live screen of devices, writers and waiting processes; it changes nothing.

Each frame is one write: over ssh that is a few packets, and never half a screen.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from writebackd.cli.client import NoAnswer, NoDaemon, request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, CommandError
from writebackd.cli.output import show_json, wants_colour, width
from writebackd.cli.top_state import Top

if TYPE_CHECKING:
    from writebackd.cli.io_waits import Waits
    from writebackd.cli.top_view import View

# For all of it; and for the least that helps, in a part of a window.
FULL_WIDTH, MIN_WIDTH, MIN_HEIGHT = 80, 60, 16
# How often the size of the window is looked at while no key comes.
_GLANCE_S = 0.25
_TIMEOUT_S = 2.0
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# Terminals that have no block elements in their fonts.
_PLAIN_TERMS = ("dumb", "linux", "vt100", "vt220")
# Those that the rest does without.
_PACKAGES = ("psutil", "pyroute2", "rich")
# An escape that nothing follows for so long was the key of that name; ssh may take a while.
_ESCAPE_S = 0.1


def top(options: argparse.Namespace) -> int:
    """Run until q; without a capable terminal, or with --frames: frames one below another."""
    if options.json:
        show_json(request(options.runtime_dir, "top"))
        return GOOD
    view, waits = _parts(options.color)
    state = Top()
    try:
        _ask(options, state, waits)
        terminal = sys.stdout.isatty() and sys.stdin.isatty()
        dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
        if not terminal or dumb or options.frames:
            frames = options.frames or (None if terminal else 1)
            return _print_frames(options, state, waits, view, frames)
        with _Terminal() as terminal:
            return _interact(options, state, waits, view, terminal)
    finally:
        waits.close()


def _parts(when: str) -> "Tuple[View, Waits]":
    """The parts that need optional packages. Raises CommandError."""
    try:
        from writebackd.cli.io_waits import Waits
        from writebackd.cli.top_view import View
    except ImportError as error:
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if not missing:  # one is too old, or damaged
            missing = [error.name.partition(".")[0]] if error.name else list(_PACKAGES)
        by = "pip install"
        if shutil.which("apt-get"):
            by, missing = "sudo apt-get install", [f"python3-{name}" for name in missing]
        raise CommandError(f"top needs: {by} {' '.join(missing)}", BAD_NEWS) from None
    return View(wants_colour(sys.stdout, when), _has_blocks()), Waits()


def _has_blocks() -> bool:
    try:
        encoding = codecs.lookup(sys.stdout.encoding or "ascii").name
    except LookupError:
        return False
    # Python takes the locale C for UTF-8; a terminal that is in it may not.
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
    said = "utf8" in locale.lower().replace("-", "")
    return said and encoding == "utf-8" and os.environ.get("TERM", "dumb") not in _PLAIN_TERMS


def _ask(options: argparse.Namespace, state: Top, waits: "Waits") -> None:
    status = request(options.runtime_dir, "status", timeout_s=_TIMEOUT_S)
    load = request(options.runtime_dir, "top", timeout_s=_TIMEOUT_S)
    state.take(status, load)
    state.waits = waits.read([task["pid"] for task in load["tasks"]])
    state.wait_note = waits.note


def _ask_again(options: argparse.Namespace, state: Top, waits: "Waits") -> None:
    """As `_ask`; an error is shown, and the last answer kept."""
    try:
        _ask(options, state, waits)
    except (NoDaemon, NoAnswer):
        state.problem = "no answer from the daemon: these values are old; trying again"
    except CommandError as error:
        state.problem = str(error)


# ---- without keys ------------------------------------------------------


def _print_frames(
    options: argparse.Namespace, state: Top, waits: "Waits", view: "View", frames: Optional[int]
) -> int:
    """`frames` None: until Ctrl-C."""
    number = 0
    while True:
        # The first look at the waits shows nothing: it is what the second is compared to.
        time.sleep(options.interval)
        _ask(options, state, waits)
        if number:
            print()
        print("\n".join(_page(view, state)), flush=True)
        number += 1
        if frames is not None and number >= frames:
            return GOOD


def _page(view: "View", state: Top) -> List[str]:
    columns = max(FULL_WIDTH, width())
    height = max(24, shutil.get_terminal_size((columns, 24)).lines)
    lines = [line.rstrip() for line in view.lines(state, columns, height)[:-1]]
    while lines and not lines[-1]:
        lines.pop()
    return lines


# ---- with a terminal ---------------------------------------------------


class _Terminal:
    """Keys come one at a time without echo; settings are restored at the end, and while stopped.

    Also if a signal ends it: a shell that shows neither the cursor nor what one types would be one
    more problem.
    """

    def __enter__(self) -> "_Terminal":
        self.descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(self.descriptor)
        self._stop = False
        self._handlers: Dict[int, Any] = {}
        try:
            self._handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._end)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
                self._handlers[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._end)
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._ask_to_stop)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, termios.error):  # it may be gone
            self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def stopped(self) -> bool:
        """Stop here if requested (Ctrl-Z). Returns whether it was, and has resumed."""
        if not self._stop:
            return False
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._ask_to_stop)
        self._stop = False
        self._take()
        return True

    def _take(self) -> None:
        tty.setcbreak(self.descriptor)
        sys.stdout.write(_OPEN)
        sys.stdout.flush()

    def _give_back(self) -> None:
        termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._before)
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()

    def _end(self, number: int, _: object) -> None:
        raise SystemExit(128 + number)

    def _ask_to_stop(self, *_: object) -> None:
        # Not here: the signal may arrive during one of our writes.
        self._stop = True


def _interact(
    options: argparse.Namespace, state: Top, waits: "Waits", view: "View", terminal: _Terminal
) -> int:
    due = time.monotonic() + options.interval
    drawn: Optional[os.terminal_size] = None
    while True:
        if terminal.stopped():
            drawn = None
        size = os.get_terminal_size(sys.stdout.fileno())
        now = time.monotonic()
        if now >= due:
            if not state.frozen:
                _ask_again(options, state, waits)
            due = time.monotonic() + options.interval
            drawn = None
        if size != drawn:
            _draw(view, state, size)
            drawn = size
        wait_s = min(_GLANCE_S, max(0.0, due - time.monotonic()))
        for key in _keys(terminal.descriptor, wait_s):
            if not state.press(key):
                return GOOD
            drawn = None


def _draw(view: "View", state: Top, size: os.terminal_size) -> None:
    if size.columns < MIN_WIDTH or size.lines < MIN_HEIGHT:
        lines = [
            f"top needs {FULL_WIDTH}x{MIN_HEIGHT},", f"at least {MIN_WIDTH}x{MIN_HEIGHT},",
            f"not {size.columns}x{size.lines}", "(q quits)",
        ][: size.lines]  # fmt: skip
    else:
        lines = view.lines(state, size.columns, size.lines)
    # Home, each line cleared behind its end, then what is below: no flicker.
    sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")
    sys.stdout.flush()


def _keys(descriptor: int, wait_s: float) -> List[str]:
    """Keys pressed within `wait_s`, an arrow as one. Raises CommandError."""
    if not _ready(descriptor, wait_s):
        return []
    data = os.read(descriptor, 256)
    if not data:
        raise CommandError("terminal closed", BAD_NEWS)
    while data.endswith((b"\x1b", b"\x1b[")) and _ready(descriptor, _ESCAPE_S):
        data += os.read(descriptor, 256)
    keys, text = [], data.decode(errors="replace")
    while text:
        size = 3 if text.startswith(("\x1b[", "\x1bO")) else 1
        keys.append(text[:size].replace("\x1bO", "\x1b["))
        text = text[size:]
    return keys


def _ready(descriptor: int, wait_s: float) -> bool:
    return bool(select.select([descriptor], [], [], wait_s)[0])
