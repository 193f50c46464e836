# SPDX-License-Identifier: GPL-2.0-or-later
"""Events, and a history that has written what it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, List, Optional, Union

from writebackd.report.device_figures import Figures
from writebackd.report.history_schema import Event, HistoryError, read_history
from writebackd.report.history_store import MAX_BYTES, MAX_ROWS, History

TIMEOUT_S = 10.0


def event(number: int, device: Optional[str] = "sda", text: str = "") -> Event:
    """One a second from 1 000 on."""
    return Event(
        wall_s=1000.0 + number, kind="decision", device=device, decision_id=f"sda-{number}",
        state="guard", limit_bytes=4 << 20, background_bytes=2 << 20, target_bytes=1 << 20,
        drain_rate=2.5e8, write_rate=None, fsync_p50_s=0.0004, fsync_p99_s=0.002, text=text,
    )  # fmt: skip


def written(
    path: Path, items: Iterable[Union[Event, Figures]], max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Path:
    """The file, after a daemon that recorded these has ended."""
    history = History(path, max_rows, max_bytes)
    for each in items:
        if isinstance(each, Event):
            history.record(each)
        else:
            history.record_figures((each,))
    assert history.close(TIMEOUT_S), history.error
    assert history.dropped == 0
    return path


def readable(path: Path) -> List[Event]:
    """What is in the file; nothing while it is not a whole one yet."""
    try:
        return read_history(path)
    except HistoryError:
        return []
