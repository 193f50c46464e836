# SPDX-License-Identifier: GPL-2.0-or-later
"""The screen of the history: repetitions are folded, and nothing else is."""

from __future__ import annotations

import time
from typing import Any, Dict, List

from writebackd.cli.history import folded, render_history


def event(wall_s: float, kind: str, **more: object) -> Dict[str, Any]:
    keys = (
        "device", "decision_id", "state", "limit_bytes", "background_bytes", "target_bytes",
        "drain_rate", "write_rate", "commit_p50_s", "commit_p99_s",
    )  # fmt: skip
    return {"wall_s": wall_s, "kind": kind, **dict.fromkeys(keys), "text": "", **more}


DECISION = event(
    1_717_200_725.0, "decision", device="sda", decision_id="sda-58", state="squeeze",
    limit_bytes=32 << 20, target_bytes=4 << 20, write_rate=2.6e8, commit_p99_s=0.047,
    text="fsync is slow",
)  # fmt: skip


def shown(*events: Dict[str, Any], width: int = 80) -> List[str]:
    lines = render_history(folded(events), width).splitlines()
    assert max(map(len, lines)) <= width
    return lines


def test_history_screen() -> None:
    lines = shown(DECISION, event(1.0, "mode", text="observe"))
    assert lines[1].split()[-7:] == ["decision", "sda-58", "squeeze", "32M", "4.0M", "248M", "47"]
    assert lines[2] == "    fsync is slow"
    assert lines[3].endswith(" mode      observe") and len(lines) == 4
    assert shown() == ["no events in that time"]


def test_what_was_written_in_one_go_is_one_change_in_sizes() -> None:
    texts = ("dirty_bytes dirty_ratio=20 -> 67108864", "dirty_background_bytes 4096 -> 8192")
    lines = " ".join(" ".join(shown(*(event(5.0, "action", text=text) for text in texts))).split())
    assert lines.endswith(" dirty_bytes dirty_ratio=20 -> 64M; dirty_background_bytes 4K -> 8K")


def test_repetitions_are_folded_and_their_last_is_told() -> None:
    steps = [
        event(1000.0 + at, "action", text=f"dirty_bytes {at << 20} -> {at + 1 << 20}")
        for at in range(4, 18)
    ]
    stop = event(2000.0, "stop", text="SIGTERM")
    lines = " ".join(" ".join(shown(stop, *steps, stop)).split())
    until = time.strftime("%H:%M:%S", time.localtime(1017.0))
    assert "dirty_bytes 4.0M -> 5.0M x14 until " + until in lines
    assert "last: dirty_bytes 17M -> 18M" in lines and lines.count("SIGTERM") == 2


def test_states_that_come_and_go_are_folded_with_what_was_done_about_them() -> None:
    back = {**DECISION, "state": "guard", "text": "rests at 12M"}
    steps = (DECISION, event(0.0, "action", text="x 1 -> 2"), back, back)
    found = [
        {**each, "wall_s": 1000.0 + 10 * turn + at, "limit_bytes": turn + 1 << 20,
         "commit_p99_s": 0.001 * turn}
        for turn in range(5) for at, each in enumerate(steps[: 3 + turn % 2])
    ]  # fmt: skip
    entries = folded(found)
    assert [len(each.events) for each in entries] == [5, 5, 7]
    text = " ".join(" ".join(shown(*found)).split())
    until = time.strftime("%H:%M:%S", time.localtime(1040.0))
    assert f"x5 until {until}, limit 1.0M to 5.0M, p99 up to 4.0 ms" in text
    # Another device's are not the same, nor is what comes after an order or much later.
    other = [{**each, "device": "sdb"} if at % 2 else each for at, each in enumerate(found)]
    assert sum(each.count for each in folded(other)) == len(found) and len(folded(other)) > 3
    order = event(1020.5, "pin", text="64M")
    assert len(folded([*found[:4], order, *found[4:]])) == 7
    many = [event(1000.0, "alert", device=f"sd{name}") for name in "abcdefghijklmnopq"]
    assert [each.count for each in folded([DECISION, *many, DECISION])] == [1] * 19


def test_orders_are_never_folded() -> None:
    orders = [event(1000.0 + at, "mode", text="observe") for at in range(3)]
    assert [line[-7:] for line in shown(*orders)[1:]] == ["observe"] * 3
