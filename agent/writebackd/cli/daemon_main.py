# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackd`: command line, logging and start of the daemon."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import logging
import logging.handlers
import os
import queue
import shutil
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

from writebackd import __version__, journald
from writebackd.actuate.ledger import LedgerError
from writebackd.actuate.lock import AlreadyRunning
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NOT_PERMITTED, USAGE
from writebackd.cli.sd_notify import notifier, tell
from writebackd.command_line import Parser, complain, drop_unwritten, open_streams, seconds
from writebackd.daemon import Daemon, Options
from writebackd.kernel import memory_lock
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.hooks import AUTO, TIERS
from writebackd.kernel.host_facts import read_facts
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.probe import compiled_programs, object_image
from writebackd.kernel.vm import in_words, read_limits
from writebackd.paths import RUNTIME_DIR, STATE_DIR, TAKEN, others_may_choose, read_taken
from writebackd.policy import Policy, PolicyError, load_policy
from writebackd.policy.load import DEFAULT_NAME, unsafe, unused_drop_ins
from writebackd.policy.match import NAMED, choose
from writebackd.report.snapshot import Snapshot
from writebackd.safe_files import write_atomically
from writebackd.types.decision import Mode

log = logging.getLogger("writebackd")

# Log lines that may wait for a stuck disk or terminal; beyond these they are dropped and counted.
_LOG_LINES = 1000
# When after the start the host is matched again: the services that identify it may start
# after this one, or be down while it restarts. Ten minutes are more than databases take to recover
# in most cases; what is set up or recovers later is found within the hour.
_REMATCH_S = (60.0, 180.0, 600.0)
_HOURLY_S = 3600.0
# How long the end waits for room in systemd's queue.
_LAST_WORD_S = 0.5
_EXAMPLES = """examples:
  writebackd                         the policy that fits, until SIGTERM or Ctrl-C
  writebackd --mode observe          decide and report, write nothing
  writebackd --policy db-hwraid --device sdb
"""


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="writebackd",
        description="Keeps dirty pages where they do not starve synchronous IO. "
        "Restores the original limits when it stops.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--mode", choices=[m.value for m in Mode], help="default: as the policy says")
    p.add_argument("--policy", metavar="NAME|FILE",
                   help="default: the best match for this host, see `writebackctl policy match`")
    p.add_argument(
        "--device", action="append", default=[], metavar="NAME",
        help="manage only this device (repeatable); it must exist, but a pattern may match later."
        " Loop devices have to be named",
    )
    p.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="policies (default: the system's)"
    )
    p.add_argument(
        "--state-dir", type=Path, default=STATE_DIR, metavar="DIR",
        help=f"directory of history and learned values (default {STATE_DIR})",
    )
    p.add_argument(
        "--runtime-dir", type=Path, default=RUNTIME_DIR, metavar="DIR",
        help=f"directory of socket, ledger, lease and lock (default {RUNTIME_DIR})",
    )
    p.add_argument(
        "--probe", choices=["auto", "libbpf", "bcc", "procfs"], default="auto",
        help="default: libbpf, or bcc where the kernel has no BTF",
    )
    p.add_argument(
        "--fsync-hook", choices=[AUTO, *TIERS], default=AUTO,
        help="watch fsync only with this kind of hook, or do not start (default: the best one that"
        " works for each filesystem)",
    )
    p.add_argument(
        "--compile-probe", action="store_true",
        help="compile and store the probe with bcc, for a kernel without BTF, and exit",
    )
    p.add_argument(  # longer, and the watchdog of the unit takes it for dead
        "--interval", type=seconds(0.05, 10), default=1.0, metavar="SECONDS",
        help="length of a tick, 0.05 to 10 (default 1)",
    )
    p.add_argument("--live", action="store_true", help="show the status on the terminal")
    p.add_argument("--verbose", action="store_true", help="also log messages of libbpf")
    p.add_argument("--version", action="version", version=f"writebackd {__version__}")
    return p


@open_streams()
def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the daemon; the exit code of design: 0 good, 1 bad news, 2 usage, 4 not root."""
    args = parser().parse_args(argv)
    if os.geteuid() != 0:
        complain("writebackd: needs root, /proc/sys/vm is writable by uid 0 only: try sudo")
        return NOT_PERMITTED

    if args.compile_probe:
        try:
            compiled_programs(object_image())
        except (OSError, BpfError) as error:
            complain(f"writebackd: {error}")
            return BAD_NEWS
        return GOOD

    choose_class = _Chooser(args.config_dir, args.runtime_dir)

    def load() -> Policy:
        if args.policy is None:
            policy = choose_class()
        else:
            policy = replace(load_policy(args.policy, args.config_dir), chosen=NAMED)
        wrong = unsafe(policy.files)
        if wrong:
            raise PolicyError(*wrong)
        return policy

    try:
        first = load()  # before anything is created: a bad policy touches nothing
        for directory, usual in ((args.runtime_dir, RUNTIME_DIR), (args.state_dir, STATE_DIR)):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Who may make links there has root write, empty and open files of their choice.
            why = others_may_choose(str(directory), str(usual.parent))
            if why:
                complain(f"writebackd: {directory}: not used: {why}")
                return USAGE
    except PolicyError as error:
        complain(str(error))
        return USAGE
    except OSError as error:
        complain(f"writebackd: {error.filename}: {error.strerror}")
        return USAGE

    live = args.live and sys.stdout.isatty()
    unlocked = memory_lock.lock_used()  # before the first thread, which is the log's
    listener = _start_logging(args.verbose, quiet=live)
    log.info("policy %s: %s", first.name, first.chosen)
    if args.policy is None:
        unused = unused_drop_ins(first.name, args.config_dir)
        if unused:
            log.warning(
                "drop-ins not used by policy %s: %s; put settings for every policy into"
                " all.conf.d", first.name, ", ".join(map(str, unused)),
            )  # fmt: skip
    if unlocked:
        log.warning("memory is not locked: %s", unlocked)
    options = Options(
        runtime_dir=args.runtime_dir,
        state_dir=args.state_dir,
        interval_s=args.interval,
        probe=args.probe,
        fsync_hook=args.fsync_hook,
        devices=tuple(args.device),
        mode=Mode(args.mode) if args.mode else None,
    )
    notify = notifier()
    watchers: List[Callable[[Snapshot], None]] = []
    if live:
        watchers.append(_Screen().show)

    def on_tick(snapshot: Optional[Snapshot]) -> None:
        notify("WATCHDOG=1")
        if snapshot is not None:
            for watcher in watchers:
                watcher(snapshot)

    try:
        daemon = Daemon(options, load, on_tick)
        if args.policy is None:
            watchers.append(_Rematch(daemon.policies.rematch))
        # libbpf parsed the kernel's BTF and freed it again: 11 MB that the
        # allocator would keep.
        ctypes.CDLL(None).malloc_trim(0)
        unread = memory_lock.read_in_code()
        if unread:
            log.info("not all code is in memory, the rest is read from disk when used: %s", unread)
        daemon.run(ready=lambda: notify("READY=1"))
        if live:
            print(f"\nwritebackd stopped; limits now: {in_words(read_limits(KernelFiles()))}")
        return GOOD
    except PolicyError as error:
        log.error("%s", error)
        return USAGE
    except (AlreadyRunning, BpfError, LedgerError, OSError, ValueError) as error:
        log.error("%s", error)
        return BAD_NEWS
    except Exception as error:
        # The limits are back by now (Daemon.run); one line for the admin, the
        # trace for the caller.
        log.critical("stopped by a program error: %r; please report it", error)
        log.debug("trace", exc_info=True)
        return BAD_NEWS
    finally:
        tell("STOPPING=1", _LAST_WORD_S)
        _stop_logging(listener)


class _Chooser:
    """Chooses the policy for this host, and remembers its name."""

    def __init__(self, config_dir: Optional[Path], runtime_dir: Path) -> None:
        self._config_dir = config_dir
        self._runtime_dir = runtime_dir
        self._skipped: Tuple[str, ...] = ()  # already reported

    def __call__(self) -> Policy:
        """Raises PolicyError."""
        before = read_taken(self._runtime_dir)
        choice = choose(read_facts(KernelFiles()), self._config_dir, before=before)
        if choice.skipped != self._skipped:
            self._skipped = choice.skipped
            for line in choice.skipped:
                log.error("policy skipped: %s", line)
        if choice.policy.name not in (before, DEFAULT_NAME):
            self._remember(choice.policy.name)
        return choice.policy

    def _remember(self, name: str) -> None:
        path = self._runtime_dir / TAKEN
        try:
            self._runtime_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomically(path, f"{name}\n".encode())
        except OSError as error:
            log.warning(
                "%s: %s: a restart while the services of %s are down will use another policy",
                path, error.strerror, name,
            )  # fmt: skip


class _Rematch:
    """Has the policy chosen again, soon after the start and then hourly."""

    def __init__(self, rematch: Callable[[], None]) -> None:
        self._rematch = rematch
        self._start_s: Optional[float] = None
        self._next_s = 0.0  # since the start

    def __call__(self, snapshot: Snapshot) -> None:
        now_s = snapshot.sample.time_s
        if self._start_s is None:
            self._start_s, self._next_s = now_s, _REMATCH_S[0]
        since_s = now_s - self._start_s
        if since_s < self._next_s:
            return
        left = [each for each in _REMATCH_S if each > since_s]
        self._next_s = left[0] if left else since_s + _HOURLY_S
        self._rematch()


class _Frames(logging.Formatter):
    """Traces without source lines: `traceback` reads those from the disk, which may hang."""

    def formatException(self, ei: Any) -> str:
        frames = [
            f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(ei[2])
        ]
        return "\n".join([repr(ei[1]), *frames])


class _DroppingHandler(logging.handlers.QueueHandler):
    """Never blocks the loop and never prints a traceback: drops records if its queue is full."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(lines)
        self.setFormatter(_Frames())  # used by whoever logs, before the record is queued

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def _start_logging(verbose: bool, quiet: bool) -> logging.handlers.QueueListener:
    """Log in a thread: a stuck terminal or journal must not stop the loop."""
    target: logging.Handler = logging.StreamHandler()
    if not os.environ.get("JOURNAL_STREAM"):
        target.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    elif os.path.exists(journald.SOCKET):
        target = journald.JournalHandler()
    else:
        target.setFormatter(journald.PriorityFormatter())
    if quiet:
        # The screen shows the decisions; what goes wrong still has to be seen.
        target.setLevel(logging.ERROR)
    lines: "queue.Queue[logging.LogRecord]" = queue.Queue(_LOG_LINES)
    root = logging.getLogger()
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    root.addHandler(_DroppingHandler(lines))
    listener = logging.handlers.QueueListener(lines, target, respect_handler_level=True)
    listener.start()
    return listener


def _stop_logging(listener: logging.handlers.QueueListener) -> None:
    """Write the last lines, but do not wait for ever for a stuck terminal."""

    def stop() -> None:
        with contextlib.suppress(queue.Full):
            listener.stop()
        drop_unwritten()

    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    stopper.join(timeout=2.0)
    if stopper.is_alive():  # both would wait for the terminal at exit
        atexit.unregister(logging.shutdown)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


class _Screen:
    """Draws the status in a thread: Ctrl-S or a dead ssh must not stop the loop."""

    def __init__(self) -> None:
        self._next: "queue.Queue[Snapshot]" = queue.Queue(1)
        threading.Thread(target=self._run, name="screen", daemon=True).start()

    def show(self, snapshot: Snapshot) -> None:
        """Draw this screen next; dropped while the terminal has not taken the last one."""
        with contextlib.suppress(queue.Full):
            self._next.put_nowait(snapshot)

    def _run(self) -> None:
        from writebackd.cli.output import frame, wants_colour
        from writebackd.cli.status_screen import render_status
        from writebackd.report.status_answer import status_json

        colour = wants_colour(sys.stdout)
        while True:
            status = status_json(self._next.get())
            width, height = shutil.get_terminal_size()
            print(frame(render_status(status, width, colour), height), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
