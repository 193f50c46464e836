# SPDX-License-Identifier: GPL-2.0-or-later
"""What commits waited for, from an answer of this daemon or of an older one."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple

from writebackd import formats

SHOWN_SHARE = 0.01  # of the commits' time that is slept in write()
STUCK_S = 1.0  # a commit in flight for longer than this has a line


def of_commits(device: Mapping[str, Any], key: str) -> Optional[float]:
    """A time of commits; of fsyncs in the answer of an older daemon."""
    value: Optional[float] = device.get(key.format("commit"))
    return device[key.format("fsync")] if value is None else value


def measured(devices: Sequence[Mapping[str, Any]]) -> str:
    """What the times are of: fsync where the kernel does not show the sleep in write()."""
    timed = [each for each in devices if of_commits(each, "{}_p99_s") is not None]
    seen = [each for each in timed if each.get("commit_write_share") is not None]
    return "fsync" if timed and not seen else "commit"


def notes(device: Mapping[str, Any]) -> Iterator[Tuple[str, Optional[str]]]:
    """Where commits wait, and one that waits for long; with a role for Paint."""
    share = device.get("commit_write_share") or 0.0
    if share >= SHOWN_SHARE:
        yield f"commits wait in write(): {formats.percent(share)}", None
    oldest_s = of_commits(device, "oldest_{}_s") or 0.0
    if oldest_s >= STUCK_S:
        asleep = oldest_s > (device["oldest_fsync_s"] or 0.0)
        what = "commit, in write()" if asleep else "fsync"
        yield f"oldest pending {what}: {formats.duration(oldest_s)}", "warning"
