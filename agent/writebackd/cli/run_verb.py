# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb run: runs a command in a systemd scope of its own.

systemd makes the scope if it runs, else the verb makes a child cgroup (v2).  A login session
that syncs is not paced (docs/explanation/pacing.md), so root's scope goes to system.slice, which
is where systemd-run puts it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional

from writebackd.cli.exit_codes import NOT_PERMITTED, USAGE, CommandError
from writebackd.cli.signals import handled
from writebackd.command_line import complain, drop_unwritten
from writebackd.kernel.cgroup_io_max import cgroup2_mount, path_of_process
from writebackd.kernel.files import KernelFiles

# As shells have it.
NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 126, 127, 128
SYSTEMD = "/run/systemd/system"  # sd_booted(3)
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Python ignores SIGPIPE, and exec() would pass that on.
_OF_A_SHELL: Dict[int, Any] = {signal.SIGPIPE: signal.SIG_DFL}
_NAME = re.compile(r"[A-Za-z0-9:_.@-]{1,60}")
# The processes of a cgroup are gone from it a moment after the last was waited for.
_EMPTY_S = 1.0


def run(options: argparse.Namespace) -> int:
    """The command's exit code; 128 plus the signal's number if a signal ended it."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise CommandError("run needs a command: writebackctl run -- rsync -a /srv /backup", USAGE)
    name = options.name or os.path.basename(command[0])
    if options.name is not None and not _NAME.fullmatch(name):
        raise CommandError(f"--name {name!r}: use letters, digits and :_.@- only", USAGE)
    unit = f"run-{re.sub('[^A-Za-z0-9:_.]', '_', name)[:60]}-{os.getpid()}"
    program = shutil.which(command[0])
    if program is None:
        exists = os.path.exists(command[0]) and "/" in command[0]
        raise CommandError(
            f"run: {command[0]} {'is not executable' if exists else 'not found'}",
            NOT_EXECUTABLE if exists else NOT_FOUND,
        )
    if os.path.isdir(SYSTEMD) and shutil.which("systemd-run"):
        _by_systemd(unit, options.slice, command)
    if options.slice is not None:
        raise CommandError("run --slice needs systemd, which does not run here", USAGE)
    directory = _make_cgroup(unit)
    try:
        return _run_in(directory, program, command)
    finally:
        _remove(directory)


def systemd_command(unit: str, slice_: Optional[str], command: List[str], root: bool) -> List[str]:
    """The command line: systemd-run only makes the scope, then becomes the command."""
    words = ["systemd-run", *(() if root else ("--user",)), "--scope", "--quiet", "--collect",
             f"--unit={unit}", f"--description=writebackctl run {command[0]}"]  # fmt: skip
    # With it systemd enables the io controller there: pacing is an io.max.
    words += ["--property=IOAccounting=yes", "--property=MemoryAccounting=yes"]
    words += [f"--slice={slice_}"] if slice_ is not None else []
    return [*words, "--", *command]


def _by_systemd(unit: str, slice_: Optional[str], command: List[str]) -> NoReturn:
    root = os.geteuid() == 0
    if not root:
        _find_manager()
        _note("a scope of the user's systemd is watched but never paced; with sudo it can be")
    words = systemd_command(unit, slice_, command, root)
    sys.stdout.flush()
    try:
        with handled(_OF_A_SHELL):
            os.execvp(words[0], words)
    except OSError as error:
        raise CommandError(
            f"run: {words[0]}: {error.strerror}",
            NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE,
        ) from None
    raise AssertionError("exec() came back")


def _find_manager() -> None:
    """Checked first, as systemd-run would exit with 1 like any command. Raises CommandError."""
    import subprocess  # 10 ms, which root need not wait for

    # Looks for it where systemd-run does.
    words = ["systemctl", "--user", "show", "--property=Version"]
    try:
        result = subprocess.run(words, check=False, capture_output=True, text=True)
    except OSError:
        return  # systemd-run itself has to tell
    if not result.returncode:
        return
    said = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
    raise CommandError(
        f"run: the systemd of this user does not answer ({said}); cron and su do not start it: try"
        " again with sudo, or after `loginctl enable-linger` with"
        f" XDG_RUNTIME_DIR=/run/user/{os.geteuid()} set",
        NOT_EXECUTABLE,
    )


def _make_cgroup(unit: str) -> Path:
    """Make a cgroup next to ours or below it. Raises CommandError."""
    files = KernelFiles()
    mount = cgroup2_mount(files)
    if mount is None:
        raise CommandError(
            "run needs systemd or cgroup v2, and neither is available: try"
            " `mount -t cgroup2 none /sys/fs/cgroup/unified`", NOT_PERMITTED,
        )  # fmt: skip
    own = Path(mount + (path_of_process(files, "self") or "").rstrip("/"))
    directory = own / unit
    try:
        directory.mkdir()
    except OSError as error:
        raise CommandError(
            f"run: cannot create {directory} ({error.strerror}): try again with sudo",
            NOT_PERMITTED,
        ) from None
    if "io" not in _controllers(directory):
        on = f": `echo +io >{own}/cgroup.subtree_control` helps"
        helps = on if "io" in _controllers(own) else ", a cgroup v1 may have it"
        _note(f"command can be watched but not paced: no io controller in its cgroup{helps}")
    return directory


def _controllers(directory: Path) -> List[str]:
    try:
        return (directory / "cgroup.controllers").read_text().split()
    except OSError:
        return []


def _run_in(directory: Path, path: str, command: List[str]) -> int:
    sys.stdout.flush()
    drop_unwritten()  # the child would write it once more
    child = os.fork()
    if not child:
        _become(directory, path, command)
    with handled(_forwarding(child)):
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return BY_SIGNAL - code if code < 0 else code


def _become(directory: Path, path: str, command: List[str]) -> NoReturn:
    """In the child: enter the cgroup first, so that nothing of the command runs outside."""
    code = NOT_EXECUTABLE
    try:
        (directory / "cgroup.procs").write_text("0")
        with handled(_OF_A_SHELL):
            os.execv(path, command)
    except OSError as error:
        complain(f"writebackctl: run: {error}")
    os._exit(code)


def _forwarding(child: int) -> Dict[int, Any]:
    """Handlers that forward signals to the command; Ctrl-C reaches it through the terminal."""

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    by_terminal = (signal.SIGINT, signal.SIGQUIT)
    return {**dict.fromkeys(_FORWARDED, forward), **dict.fromkeys(by_terminal, signal.SIG_IGN)}


def _remove(directory: Path) -> None:
    """Remove the cgroup, unless the command left processes in it."""
    deadline = time.monotonic() + _EMPTY_S
    while True:
        try:
            directory.rmdir()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                _note(f"{directory} is kept ({error.strerror}): it still has processes")
                return
        time.sleep(0.02)


def _note(text: str) -> None:
    complain(f"writebackctl: note: {text}")
