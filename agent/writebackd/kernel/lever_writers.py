# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds who wrote a lever: the probe's recorded writes against current values."""

from __future__ import annotations

from typing import Collection, Optional, Sequence

from writebackd.kernel import argv_redaction, bpf_layout
from writebackd.types.copying import replace
from writebackd.types.levers import ForeignWrite


def writer_of(
    changed: ForeignWrite, seen: Sequence[Sequence[ForeignWrite]], own: Collection[Optional[int]]
) -> Optional[ForeignWrite]:
    """The newest write in `seen` that set the changed value; None if none was seen.

    `seen`: the content of the probe's queue, by tick; `own`: pids of daemon and watcher.  The probe
    sees a write before the kernel accepts it: a write of another value may have been refused.
    Only if none matches and the queue was full, the last write to the lever counts.
    """
    name = changed.lever.rpartition(" ")[2]  # "flush vm dirty_expire_centisecs"
    same = [w for queue in seen for w in queue if w.lever == name and w.pid not in own]
    fitting = [w for w in same if _number(w.value) == _number(changed.value)]
    overrun = any(len(queue) >= bpf_layout.SYSCTL_WRITES for queue in seen)
    chosen = (fitting or (same if overrun else []))[-1:]
    if not chosen:
        return None
    writer = chosen[0]
    return replace(
        changed, pid=writer.pid, comm=writer.comm, cgroup_id=writer.cgroup_id, cgroup=writer.cgroup,
        cmdline=writer.cmdline,
    )


def command_line(raw: bytes) -> Optional[str]:
    """The part of a command line that the probe saw, as one printable line; None without one.

    Words are separated by NUL; dots mark a line longer than `raw`.
    """
    words = raw.rstrip(b"\0")
    if not words:
        return None
    return argv_redaction.redacted(words.decode(errors="replace")) + (
        "..." if len(words) == len(raw) else ""
    )


def _number(text: str) -> object:
    """A value as the kernel reads it (simple_strtoull: 0x is hexadecimal, 0 octal)."""
    digits = text.strip()
    try:
        if digits[:1] == "0" and digits[1:].isdigit():
            return int(digits, 8)
        return int(digits, 0)
    except ValueError:
        return digits
