# SPDX-License-Identifier: GPL-2.0-or-later
"""Detects a /proc mounted with hidepid=, and which processes are hidden."""

from __future__ import annotations

import os
import re
import time
from typing import Callable, Collection, Optional

from writebackd.kernel.files import KernelFiles

# A remount sends no event; read again this often.
_AGAIN_S = 60.0
# The last one on /proc counts. Blanks and newlines in names are escaped.
_PROC = re.compile(r"^(?:[^ \n]+ ){4}/proc [^\n]* - proc [^ \n]* ([^ \n]+)$", re.MULTILINE)
# As Linux 5.8 writes them, and before.
_OPTION = re.compile(r"hidepid=(?:[124]|noaccess|invisible|ptraceable)")
_PTRACE = 1 << 19  # CAP_SYS_PTRACE


class HidePid:
    """How /proc hides processes, from users and from this process; cached."""

    def __init__(
        self, files: KernelFiles, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._clock = clock
        self._hosts: Optional[str] = None
        self._own: Optional[str] = None
        self._next_s = float("-inf")
        status = files.try_read("/proc/self/status") or ""
        powers = re.search(r"^CapEff:\t([0-9a-f]+)$", status, re.MULTILINE)
        self._may_trace = powers is not None and bool(int(powers.group(1), 16) & _PTRACE)

    def option(self) -> Optional[str]:
        """The option of the host's /proc, such as hidepid=invisible,gid=27; None without one.

        systemd 252 mounts another one for the unit, which hides nothing from it.
        """
        self._look()
        return self._hosts or self._own

    def unseen(self) -> Optional[str]:
        """What this process cannot see, in words; None if it sees all."""
        self._look()
        if self._may_trace:
            return None
        return unseen(self._own, {os.getegid(), *os.getgroups()})

    def _look(self) -> None:
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + _AGAIN_S
            self._hosts, self._own = hiding(self._files, "1"), hiding(self._files)


def hiding(files: KernelFiles, pid: str = "self") -> Optional[str]:
    """The mount options of a process' /proc that hide processes; None without any."""
    mounts = _PROC.findall(files.try_read(f"/proc/{pid}/mountinfo") or "")
    options = mounts[-1].split(",") if mounts else []
    if not any(map(_OPTION.fullmatch, options)):
        return None
    shown = [option for option in options if option.startswith(("hidepid=", "gid="))]
    return ",".join(sorted(shown, reverse=True))


def unseen(option: Optional[str], groups: Collection[int] = (0,)) -> Optional[str]:
    """What a process in these groups without ptrace rights cannot see, and the remedy.

    As it is, that is the shipped unit: root, without CAP_SYS_PTRACE.
    """
    if option is None:
        return None
    gid = option.partition("gid=")[2] or "0"
    traced = option.startswith(("hidepid=4", "hidepid=ptraceable"))
    if not traced and int(gid) in groups:
        return None
    helps = "CapabilityBoundingSet=CAP_SYS_PTRACE" if traced else f"SupplementaryGroups={gid}"
    return (
        f"/proc is mounted {option}: services, cgroups and command lines of other users' processes"
        " are not visible, nor other programs that set the limits; to see them, put"
        f" {helps} into a drop-in of the unit"
    )
