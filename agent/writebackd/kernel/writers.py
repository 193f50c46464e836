# SPDX-License-Identifier: GPL-2.0-or-later
"""Who wrote a lever: the writes that the probe saw against the values that stand."""

from __future__ import annotations

from typing import Optional, Sequence

from writebackd.model import ForeignWrite, replace


def writer_of(
    found: ForeignWrite, seen: Sequence[ForeignWrite], own_pid: int
) -> Optional[ForeignWrite]:
    """The newest of the writes in `seen` that set what was found; None: nobody was seen.

    The probe sees a write before the kernel has judged it, so one of another value
    may have been refused.  Only where none fits (the ring of writes was overrun by
    one who writes on and on) the last one to the same lever is taken.
    """
    name = found.lever.rpartition(" ")[2]  # "flush vm dirty_expire_centisecs"
    same = [w for w in seen if w.lever == name and w.pid != own_pid]
    fitting = [w for w in same if _number(w.value) == _number(found.value)]
    chosen = (fitting or same)[-1:]
    return replace(chosen[0], lever=found.lever, value=found.value) if chosen else None


def command_line(raw: bytes) -> Optional[str]:
    """What the probe took of a command line, as one printable line; None where it has none.

    Not from /proc/PID/cmdline: that waits for the process' memory, which may be on the
    disk that hangs.  Words are parted by NUL; dots where the line was longer than `raw`.
    """
    words = raw.rstrip(b"\0")
    text = words.replace(b"\0", b" ").decode(errors="replace")
    return printable(text) + ("..." if len(words) == len(raw) else "") if text else None


def printable(text: str) -> str:
    """For logs and screens: any user names processes."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _number(text: str) -> object:
    """A value as the kernel reads it (simple_strtoull: 0x is hexadecimal, 0 octal)."""
    digits = text.strip()
    try:
        if digits[:1] == "0" and digits[1:].isdigit():
            return int(digits, 8)
        return int(digits, 0)
    except ValueError:
        return digits
