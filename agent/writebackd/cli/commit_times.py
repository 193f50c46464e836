# SPDX-License-Identifier: GPL-2.0-or-later
"""Shows how long commits waited."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple

from writebackd import formats

SHOWN_SHARE = 0.01  # of the commits' time that is slept in write()
STUCK_S = 1.0  # a commit in flight for longer than this has a line


def measured(devices: Sequence[Mapping[str, Any]]) -> str:
    """What the times include: only fsync if the kernel does not show the sleep in write()."""
    timed = [each for each in devices if each["commit_p99_s"] is not None]
    seen = [each for each in timed if each["commit_write_share"] is not None]
    return "fsync" if timed and not seen else "commit"


def notes(device: Mapping[str, Any]) -> Iterator[Tuple[str, Optional[str]]]:
    """Where commits wait, and a long pending one; with a role for Paint."""
    share = device["commit_write_share"] or 0.0
    if share >= SHOWN_SHARE:
        yield f"commits wait in write(): {formats.percent(share)}", None
    oldest_s = device["oldest_commit_s"] or 0.0
    if oldest_s >= STUCK_S:
        asleep = oldest_s > (device["oldest_fsync_s"] or 0.0)
        what = "commit, in write()" if asleep else "fsync"
        yield f"oldest pending {what}: {formats.duration(oldest_s)}", "warning"
