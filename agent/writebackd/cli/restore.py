# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb restore: restores the original limits, with or without a daemon."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Optional, Tuple

from writebackd.actuate.ledger import first_found
from writebackd.actuate.ledger_restore import (
    RestoreResult,
    put_back,
    restore_from_ledger,
    restore_left,
)
from writebackd.actuate.lock import AlreadyRunning, is_held, is_locked
from writebackd.actuate.outcome import describe_action
from writebackd.cli.client import NoAnswer, NoDaemon, request
from writebackd.cli.daemon_verbs import report
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NO_DAEMON, NOT_PERMITTED, USAGE, CommandError
from writebackd.cli.output import show_answer
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import PAIRS, in_words, read_limits
from writebackd.paths import LEDGER, WATCH

if TYPE_CHECKING:
    from writebackd.cli.client_answers import RestoreAnswer


def restore(options: argparse.Namespace) -> int:
    """Restore through the daemon, or from its ledger if there is none."""
    if options.lease or options.honour_keep:
        # ExecStopPost= also runs where a start was refused because there is a daemon:
        # that one is not to be put into the mode observe.
        return _restore_from_ledger(options)
    if options.first_found and os.geteuid() != 0:
        raise CommandError("restore needs root: try again with sudo", NOT_PERMITTED)
    try:
        answer = request(options.runtime_dir, "mode", {"mode": "observe"})
    except NoDaemon:
        return _restore_from_ledger(options)
    except NoAnswer as error:
        # A daemon that hangs may still write: restoring behind its back would
        # be undone, or taken for a foreign write.
        raise CommandError(
            f"{error}; to restore without it, stop it first: `systemctl stop writebackd`",
            NO_DAEMON,
        ) from None
    lines, good = list(answer["lines"]), bool(answer.get("good", True))
    if options.first_found and good:
        more, good = _to_first_found()
        lines += more
    done: RestoreAnswer = {"status": "observe" if good else "failed", "lines": lines}
    report(options, done, "writebackd is running, mode: observe")
    return GOOD if good else BAD_NEWS


def _restore_from_ledger(options: argparse.Namespace) -> int:
    try:
        result = _restore(options)
    except AlreadyRunning:
        if not (options.lease or options.honour_keep):
            raise CommandError(
                "writebackd is starting or stopping: try again,"
                " or stop it with `systemctl stop writebackd`",
                NO_DAEMON,
            ) from None
        result = RestoreResult("nothing", ("nothing restored: writebackd is running",))
    if options.first_found and result.status != "failed":
        more, good = _to_first_found()
        status = "restored" if good else "failed"
        result = RestoreResult(status, (*result.lines, *more))
    answer: RestoreAnswer = {"status": result.status, "lines": list(result.lines)}
    show_answer(options, answer, lambda: "\n".join(result.lines))
    return BAD_NEWS if result.status == "failed" else GOOD


def _to_first_found() -> Tuple[Tuple[str, ...], bool]:
    """Restore, whoever set the current values; lines for display, and whether it succeeded."""
    files = KernelFiles()
    first = first_found(files)
    if first is None:
        return ("no writebackd has set limits since boot",), True
    try:
        limits = read_limits(files)
    except (OSError, ValueError) as error:
        return (f"cannot read the limits: {error}",), False
    actions = [
        put_back(files, pair, pair.value(limits), pair.value(first))
        for pair in PAIRS if pair.value(limits) != pair.value(first)
    ]  # fmt: skip
    lines = (*map(describe_action, actions), f"limits at boot: {in_words(first)}")
    return lines, all(action.ok for action in actions)


def _restore(options: argparse.Namespace) -> RestoreResult:
    path = options.runtime_dir / LEDGER
    if is_locked(options.runtime_dir):
        raise AlreadyRunning()
    if os.geteuid() != 0 and path.exists():
        raise CommandError("restore needs root: try again with sudo", NOT_PERMITTED)
    if options.lease and restart_follows(os.environ) and is_watched(options.runtime_dir):
        line = "nothing restored: a restart follows, and the watcher restores if it does not"
        return RestoreResult("nothing", (line,))
    if not path.exists():  # and maybe no directory, and no root
        return restore_from_ledger(KernelFiles(), path)
    return restore_left(KernelFiles(), options.runtime_dir, options.honour_keep)


def restart_follows(environment: Mapping[str, str]) -> bool:
    """Whether systemd will restart the service, from the variables of ExecStopPost=.

    By Restart=on-failure and RestartPreventExitStatus= of the unit.  The restart may
    still not happen: after a stop that had to kill, or with StartLimitBurst=.
    """
    if environment.get("SERVICE_RESULT", "success") in ("success", "start-limit-hit"):
        return False
    hopeless = (str(USAGE), str(NOT_PERMITTED))
    exited = environment.get("EXIT_CODE") == "exited"
    return not (exited and environment.get("EXIT_STATUS") in hopeless)


def is_watched(runtime_dir: Path) -> Optional[bool]:
    """Whether a watcher runs; None without permission to check."""
    try:
        fd = os.open(runtime_dir / WATCH, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError:
        return False
    try:
        return is_held(fd)
    finally:
        os.close(fd)
