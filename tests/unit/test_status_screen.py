# SPDX-License-Identifier: GPL-2.0-or-later
"""The screens: they fit, say what matters, and cannot be hijacked."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import Any, Callable, Dict, Optional, Tuple

import pytest

import samples
from test_answers import assert_valid
from writebackd import formats
from writebackd.cli.daemon_verbs import render_devices, render_findings, render_verify, render_why
from writebackd.cli.output import clean, wants_colour
from writebackd.cli.status_screen import render_status
from writebackd.report.answer_parts import verify_json
from writebackd.report.device_answers import devices_json
from writebackd.report.snapshot import Snapshot
from writebackd.report.status_answer import status_json, why_json

every_sample = pytest.mark.parametrize("make", samples.ALL.values(), ids=samples.ALL.keys())
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def through_json(answer: Any) -> Dict[str, Any]:
    decoded: Dict[str, Any] = json.loads(json.dumps(answer))
    return decoded


def status(snapshot: Snapshot, width: int = 80, colour: bool = False) -> str:
    return render_status(through_json(status_json(snapshot)), width, colour)


@every_sample
def test_screens_fit(make: Callable[[], Snapshot]) -> None:
    snapshot = make()
    for width in (40, 47, 53, 60, 66, 72, 73, 79, 80, 132, 200):
        lines = status(snapshot, width).splitlines()
        assert max(map(len, lines)) <= width
        if width >= 80:
            assert len(lines) <= (24 if len(snapshot.sample.devices) == 1 else 30)
        assert all(line == line.rstrip() or line.startswith("DEVICE") for line in lines), width
    for text in (
        render_why(through_json(why_json(snapshot))),
        render_devices(through_json(devices_json(snapshot))),
    ):
        assert max(map(len, text.splitlines())) <= 80


@every_sample
def test_colour_adds_nothing_but_colour(make: Callable[[], Snapshot]) -> None:
    snapshot = make()
    for render, answer in (
        (render_status, status_json(snapshot)),
        (render_why, why_json(snapshot)),
        (render_devices, devices_json(snapshot)),
    ):
        plain, coloured = render(answer, 80, False), render(answer, 80, True)
        assert "\x1b" not in plain
        assert "\x1b" in coloured
        assert ESCAPE.sub("", coloured) == plain


@pytest.mark.parametrize("make, words", [
    (samples.idle, ["enforce", "policy db-hwraid", "up 3h12m", "idle", "750M"]),
    (
        samples.guard,
        [
            "limit    1.9M, background 960K",
            "OK: sda p99 1.9 ms, limit 1.9M",
            "before   20 % / 10 % of memory, about 4.7G / 2.3G",
            "resting at what drains in 7.5 ms",
            "dd (4711) 248M/s on sda, throttled 93 %",
        ],
    ),
    (samples.squeeze, [
        "MISSES OBJECTIVE: sda p99 47 ms > 5.0 ms, limit 32M", "-> 4.0M (lowering)", "squeeze",
    ]),
    (samples.exhausted, ["exhausted", "oldest pending fsync: 7.4s"]),
    (samples.blind, ["BLIND: probe procfs does not see fsync", "probe procfs", "warning"]),
    (
        samples.yielded,
        [
            "YIELDED: tuned (pid 733) set dirty_bytes=536870912",
            "enforce (yielded until `writebackctl enforce`)",
            "tuned (pid 733)",
            "alert    FOREIGN_WRITER: ",
            "rivals   mine sets vm.dirty_ratio=40",
            "writebackctl enforce",
        ],
    ),
    (
        samples.pinned,
        ["PINNED: limit 15M", "enforce (pinned to 15M; `writebackctl release` ends it)"],
    ),
    (
        samples.observe,
        ["4.4G (observing)", "observe (writes nothing until `writebackctl enforce`)",
         "enforce would set 4.0M", "in force"],
    ),
    (
        samples.collapse,
        [
            "alert    COLLAPSE (critical) sda: 2.0 fsync/s (usually 2857), caused by dd (pid",
            "pid 4711: dd if=/dev/zero of=/srv/dump bs=1024",
            "done: nothing, observing",
        ],
    ),
    (
        samples.levers,
        [
            "levers   flush vm: dirty_writeback_centisecs 100 (before 500)",
            "bdi 8:0: max_bytes 4.0M (before 64M), min_bytes 2.0M (before 0), strict_limit 1",
            "queue sda: nr_requests 8 (before 64)",
            "pace /system.slice/backup.service: on 8:0 225M/s (before no limit)",
        ],
    ),
    (samples.several, ["excluded loop0 loop1 loop2", "sdb", "dm-0", "Read-only file system"]),
])  # fmt: skip
def test_status_says(make: Callable[[], Snapshot], words: "list[str]") -> None:
    text = " ".join(status(make()).split())
    for each in words:
        assert " ".join(each.split()) in text


def test_an_alert_that_nothing_renews_says_when_its_figures_are_from() -> None:
    seen = samples.collapse()
    later = replace(seen, sample=replace(seen.sample, wall_s=seen.sample.wall_s + 20.0))
    assert "figures of" in status(later) and "figures of" not in status(seen)


def test_what_an_alert_tells_is_told_once() -> None:
    text = " ".join(status(samples.yielded()).split())
    # The verdict, and the alert with what to do.
    assert text.count("tuned (pid 733) set") == 2
    assert "why" in status(samples.guard())


def row(text: str, device: str) -> "list[str]":
    line = next(line for line in text.splitlines() if line.startswith(device + " "))
    return line.split()


def test_commits_show_their_times_and_where_they_wait() -> None:
    text = status(samples.throttled(samples.guard()))
    assert row(text, "sda")[-3:] == ["3.1", "140", "-"]
    assert "- commit, ms --" in text
    assert "    commits wait in write(): 80 %" in text.splitlines()
    shown = samples.throttled(samples.guard())
    asleep = replace(shown.estimates["sda"], oldest_commit_s=23.0)
    text = status(replace(shown, estimates={"sda": asleep}))
    assert "    oldest pending commit, in write(): 23s" in text.splitlines()
    # Where the kernel does not show the sleep, the times are of fsync.
    text = status(samples.guard())
    assert "- fsync, ms ---" in text and "commit" not in text.partition("DEVICE")[0]


def test_a_row_holds_the_figures_in_order() -> None:
    assert row(status(samples.squeeze()), "sda")[-8:] == [
        "squeeze", "4.0M", "250M", "248M", "267", "8.1", "47", "5.0",
    ]  # fmt: skip


WHOLE = "DEVICE MOUNT STATE target drain writes fsyncs p50 p99 obj."


@pytest.mark.parametrize("width, gone", [
    (200, ""), (80, ""), (79, ""), (73, ""), (72, "MOUNT"), (66, "MOUNT"), (65, "MOUNT p50"),
    (60, "MOUNT p50"), (59, "MOUNT p50 drain"), (53, "MOUNT p50 drain"),
    (52, "MOUNT p50 drain fsyncs"), (46, "MOUNT p50 drain fsyncs"),
    (45, "MOUNT p50 drain fsyncs obj."), (40, "MOUNT p50 drain fsyncs obj."),
    (20, "MOUNT p50 drain fsyncs obj."),
])  # fmt: skip
def test_a_narrow_terminal_has_the_figures_that_matter_most(width: int, gone: str) -> None:
    lines = status(samples.squeeze(), width).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("DEVICE"))
    expected = [title for title in WHOLE.split() if title not in gone.split()]
    assert lines[at].split() == expected
    values = ["sda", "/+1", "squeeze", "4.0M", "250M", "248M", "267", "8.1", "47", "5.0"]
    by_title = dict(zip(WHOLE.split(), values))
    assert lines[at + 1].replace("/ +1", "/+1").split() == [by_title[title] for title in expected]
    # Each figure ends where its title does, and below what they have in common.
    for title in expected[expected.index("target") :]:
        end = lines[at].index(title) + len(title)
        assert lines[at + 1][:end].endswith(" " + by_title[title])
    groups = lines[at - 1]
    assert len(groups) == len(lines[at]) and groups.strip().startswith("limit")
    assert ("per second" if "fsyncs" in expected else "/s") in groups
    assert ("fsync, ms" if "p99 obj." in " ".join(expected) else "ms") in groups


def test_unknown_is_a_dash() -> None:
    assert row(status(samples.blind()), "sda")[-8:] == [
        "blind", "64M", "-", "248M", "-", "-", "-", "-",
    ]  # fmt: skip
    assert row(status(samples.first_tick()), "sda")[-8:] == ["idle", "-", "-", "0", *"----"]


def test_trouble_comes_first() -> None:
    snapshot = samples.several()
    answer = through_json(status_json(snapshot))
    answer["devices"][2]["state"] = "exhausted"
    text = render_status(answer)
    assert text.index("\ndm-0 ") < text.index("\nsda ") < text.index("\nsdb ")


def test_a_hundred_quiet_devices_leave_the_busy_one_on_the_screen() -> None:
    answer = through_json(status_json(samples.several()))
    quiet = answer["devices"][2]
    assert quiet["name"] == "dm-0"
    answer["devices"] += [{**quiet, "name": f"dm-{n}"} for n in range(1, 100)]
    lines = render_status(answer).splitlines()
    assert any(line.startswith("sda ") for line in lines)
    assert not any(line.startswith("dm-") for line in lines)
    assert "dm-99" in " ".join(lines)
    assert len(lines) < 35


def test_no_device_says_so() -> None:
    answer = through_json(status_json(samples.idle()))
    answer["devices"] = []
    assert "no device to manage" in render_status(answer)
    assert "no device: no filesystem" in render_devices({"devices": []})


@pytest.mark.parametrize(
    "bad", ["\x1b[2J", "a\nb", "\r", "\x07", "\x9b31m", "\u202egnp", "\udcff\udcfe", "\x00", "\t"]
)
def test_names_cannot_write_on_the_terminal(bad: str) -> None:
    snapshot = samples.hostile(f"x{bad}y", mount=f"/{bad}")
    plain = status(samples.hostile("xzy", mount="/z"))
    screens = (
        status(snapshot),
        render_why(through_json(why_json(snapshot))),
        render_devices(through_json(devices_json(snapshot))),
    )
    assert len(screens[0].splitlines()) == len(plain.splitlines())
    for text in screens:
        assert all(char == "\n" or char.isprintable() for char in text)
        text.encode("utf-8")


def test_clean_keeps_text() -> None:
    assert clean("/srv/größer/データ") == "/srv/größer/データ"


@pytest.mark.parametrize("terminal, no_color, term, expected", [
    (True, None, "xterm", True),
    (False, None, "xterm", False),
    (True, "", "xterm", True),
    (True, "1", "xterm", False),
    (True, None, "dumb", False),
])  # fmt: skip
def test_colour_only_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    no_color: Optional[str],
    term: str,
    expected: bool,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert wants_colour(stream) is wants_colour(stream, "auto") is expected
    assert wants_colour(stream, "always") and not wants_colour(stream, "never")


def test_why_tells_the_whole_chain() -> None:
    answer = through_json(why_json(samples.squeeze()))
    assert answer["devices"][0]["rule"] == "knee"
    text = render_why(answer, verbose=True)
    order = (
        "MISSES OBJECTIVE: sda p99 47 ms > 5.0 ms",
        "limit 32M",
        "-> 4.0M (lowering)",
        "decision sda-58",
        "verdict  MISSES OBJECTIVE: p99 47 ms > 5.0 ms",
        "cause    what drains in 16 ms at 250M/s",
        "next     The limit follows the drain rate.",
        "1. seen: writes 248M/s",
        "3. seen: 267 commits/s",
        "means: flood",
        "law: objective p99 5.0 ms; a flood's limit is what drains in 16 ms",
    )
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    # Without -v it ends before the steps.
    assert text.startswith(render_why(answer))
    assert "seen:" not in render_why(answer)


def test_why_says_nothing_twice() -> None:
    answer = through_json(why_json(samples.squeeze()))
    device = answer["devices"][0]
    device["steps"].append(device["reason"])
    assert render_why(answer, verbose=True).count("misses 5") == 1


def test_why_of_all_spends_one_line_on_the_excluded() -> None:
    snapshot = samples.several()
    assert "excluded loop0 loop1 loop2" in render_why(through_json(why_json(snapshot)))
    alone = render_why(through_json(why_json(snapshot, "loop0")))
    assert "loop devices only when named" in alone


DIFFERING = (
    ("pace /x.service 8:0", "io.max of /x.service", "1000", "max"),
    ("queue sda nr_requests", "/sys/block/sda/queue/nr_requests", "8", "64"),
)


@pytest.mark.parametrize("written, more, text", [
    ((8 << 20, 2 << 20), {},
     "good: dirty_bytes 8388608 and dirty_background_bytes 2097152 as written"),
    ((8 << 20, 2 << 20), {"levers": samples.LEVERS},
     "good: dirty_bytes 8388608 and dirty_background_bytes 2097152 and 6 other levers as written"),
    (None, {}, "good: writebackd holds no limit"),
    (None, {"levers": samples.LEVERS[:1]}, "good: 1 other lever as written"),
    ((4 << 20, 2 << 20), {}, "/proc/sys/vm/dirty_bytes is 8388608, writebackd wrote 4194304"),
    (None, {"yielded": "dirty_bytes=8388608"},
     "yielded: dirty_bytes=8388608; `writebackctl enforce` takes over again"),
    (None, {"levers": samples.LEVERS, "differing": DIFFERING},
     "io.max of /x.service is no limit, writebackd wrote 1000"
     " /sys/block/sda/queue/nr_requests is 64, writebackd wrote 8"),
])  # fmt: skip
def test_verify_screen(
    written: Optional[Tuple[int, int]], more: Dict[str, Any], text: str
) -> None:
    answer = verify_json(samples.vm(8 << 20, 2 << 20, 0), written, **more)
    assert_valid(answer, "verify")
    assert " ".join(render_verify(answer).split()) == text


def test_many_levers_leave_the_screen_to_the_devices() -> None:
    flood = samples.LEVERS[-1]
    many = tuple(replace(flood, target=f"/system.slice/job-{n}.service") for n in range(60))
    lines = status(replace(samples.guard(), levers=many)).splitlines()
    assert sum("/system.slice/job-" in line for line in lines) == 5
    assert any("and 55 more" in line for line in lines)


def test_findings_put_the_worst_last() -> None:
    text = render_findings({"findings": [
        {"level": "blocker", "text": "no"}, {"level": "good", "text": "yes"},
        {"level": "warning", "text": "hm"},
    ]})  # fmt: skip
    assert text.splitlines() == [
        "good     yes", "warning  hm", "blocker  no", "",
        "writebackd cannot run here: 1 blocker",
    ]  # fmt: skip


SIZES = (
    (None, "-"), (0, "0"), (1, "1"), (1023, "1023"), (1024, "1K"), (960 << 10, "960K"),
    (1_966_080, "1.9M"), ((10 << 20) - 1, "10M"), (1023 << 10, "1.0M"), (15 << 20, "15M"),
    (int(23.4 * (1 << 30)), "23G"), (5 << 40, "5.0T"), (3.7, "4"), (1 << 62, "4096P"),
)  # fmt: skip
MILLISECONDS = (
    (None, "-"), (0, "0.00"), (41e-6, "0.04"), (0.00035, "0.35"), (0.000996, "1.0"),
    (0.0019, "1.9"), (0.00996, "10"), (1.183, "1183"), (99.9, "99900"), (120.0, "120s"),
)  # fmt: skip
DURATIONS = (
    (None, "-"), (0, "0s"), (0.25, "0.2s"), (9.96, "10s"), (59.4, "59s"), (59.6, "1m0s"),
    (750, "12m30s"), (11_520, "3h12m"), (446_400, "5d4h"),
)  # fmt: skip
COUNTS = (
    (None, "-"), (0, "0"), (0.4, "0.4"), (7.52, "7.5"), (1523.4, "1523"), (210_000, "210k"),
)  # fmt: skip
SHARES = ((None, "-"), (0, "0 %"), (0.0021, "0.2 %"), (0.12, "12 %"), (1, "100 %"))


@pytest.mark.parametrize("form, cases", [
    (formats.size, SIZES), (formats.milliseconds, MILLISECONDS), (formats.duration, DURATIONS),
    (formats.count, COUNTS), (formats.percent, SHARES),
])  # fmt: skip
def test_figures_are_short(
    form: Callable[[Optional[float]], str], cases: Tuple[Tuple[Optional[float], str], ...]
) -> None:
    for value, text in cases:
        assert form(value) == text


def test_originals_in_mixed_forms_are_told_apart() -> None:
    snapshot = samples.guard()
    originals = replace(samples.RATIOS, dirty_bytes=200 << 20, dirty_ratio=0)
    mixed = replace(snapshot, originals=originals)
    # Not 2.3G: the kernel takes half of the limit where the background is above it.
    assert "before   200M / 10 % of memory, about 100M" in status(mixed)
    both = replace(snapshot, originals=replace(snapshot.sample.vm.limits, dirty_bytes=64 << 20))
    assert "before   64M / 960K" in status(both)
