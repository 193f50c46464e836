# SPDX-License-Identifier: GPL-2.0-or-later
"""Windows of a policy: what is written, what is open when, and what becomes of it in a run."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from bisect import bisect_right
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import schema
from fake_host import Rig
from tests.sim.plant import Loop
from tests.sim.scenarios import BY_NAME
from writebackd import daemon as daemon_module
from writebackd import tick_report
from writebackd.cli import ctl
from writebackd.cli.daemon_verbs import render_why
from writebackd.cli.replay import policy_of
from writebackd.cli.status_screen import render_status
from writebackd.policy import Policy, PolicyError, check, load_policy, render
from writebackd.policy.keys import WINDOW_KEYS
from writebackd.policy.reload import InForce, Timetable, local_zone, read_timetable
from writebackd.policy.units import UnitError
from writebackd.policy.window import DAY, WEEK, When, common_minute, format_when, parse_when
from writebackd.report.recorder import Recorder, read_recording
from writebackd.report.replayer import Tally, replay
from writebackd.report.status_answer import status_json, why_json
from writebackd.types.storage import Device

UTC = timezone.utc
# How long an example takes says more of the machine, which may be shared, than of the code.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca",
         "Asia/Kolkata")  # fmt: skip


def zone(name: str) -> tzinfo:
    """A time zone; Lord Howe moves by half an hour, Casablanca twice a year for Ramadan."""
    zoneinfo = pytest.importorskip("zoneinfo")
    try:
        found: tzinfo = zoneinfo.ZoneInfo(name)
    except zoneinfo.ZoneInfoNotFoundError:
        pytest.skip("no time zones: apt-get install tzdata")
    return found


def load(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "p.conf"
    path.write_text(text)
    return load_policy(str(path))


def window(when: str, lines: str = "fsync-p99 = 100ms", name: str = "night") -> str:
    return f"[window {name}]\nwhen = {when}\n{lines}\n"


# ---- what is written ---------------------------------------------------

WHENS = st.builds(
    lambda days, begin, length: When(
        tuple(sorted(days)), begin, (begin + length) % DAY or DAY
    ),
    st.sets(st.integers(0, 6), min_size=1), st.integers(0, DAY - 1), st.integers(1, DAY - 1),
)  # fmt: skip


@UNHURRIED
@given(WHENS)
def test_a_time_reads_back_as_it_is_written(when: When) -> None:
    text = format_when(when)
    assert parse_when(text) == when, text
    assert parse_when(text.upper()) == when


@pytest.mark.parametrize(("text", "same"), [
    ("Mon..Fri 22:00-06:00", "Mon,Tue,Wed,Thu,Fri 22:00-6:00"),
    ("monday..FRIDAY  22:00-06:00", "Mon..Fri 22:00-06:00"),
    ("Fri..Mon 1:00-2:00", "Mon,Fri..Sun 01:00-02:00"),
    ("Mon..Sun 1:00-2:00", "01:00-02:00"),
    ("Tue..Tue 1:00-2:00", "Tue 01:00-02:00"),
    ("22:00-00:00", "22:00-24:00"),
    ("Sat,Sun 00:00-24:00", "Sat,Sun 00:00-24:00"),
])  # fmt: skip
def test_several_ways_to_write_a_time(text: str, same: str) -> None:
    assert parse_when(text) == parse_when(same)


@UNHURRIED
@given(st.text(max_size=40) | st.from_regex(r"[A-Za-z.,]{0,12} ?[0-9:.-]{0,12}", fullmatch=True))
def test_any_text_is_a_time_or_an_error(text: str) -> None:
    try:
        when = parse_when(text)
    except UnitError:
        return
    assert parse_when(format_when(when)) == when


BAD: List[Tuple[str, int, str]] = [
    (window("22:00-22:00"), 2, "it ends when it begins: write 00:00-24:00"),
    (window("00:00-24:00"), 2, "it is always open"),
    (window("24:00-06:00"), 2, "24:00 is an end"),
    (window("22:60-06:00"), 2, "'22:60' is no time of day"),
    (window("22:00-24:01"), 2, "'24:01' is no time of day"),
    (window("22:00"), 2, "write it like 'Mon..Fri 22:00-06:00'"),
    (window("Mon-Fri 22:00-06:00"), 2, "is not DAYS HH:MM-HH:MM"),
    (window("Mo 22:00-06:00"), 2, "'Mo' is not a day"),
    (window("Mon..Fri..Sun 22:00-06:00"), 2, "is not a day"),
    (window("Mon..Fri,Wed 22:00-06:00"), 2, "Wed is named twice"),
    ("[window night]\nfsync-p99 = 1s\n", 2, "has no when: write 'when = Mon..Fri"),
    (window("22:00-06:00", ""), 2, "window night changes nothing"),
    ("[limits]\nfloor = 2M\n[window night]\n# when = 22:00-06:00\n", 3, "window night is empty"),
    (window("22:00-06:00", "objective.fsync-p99 = 1s"), 3, "did you mean 'fsync-p99'?"),
    (window("22:00-06:00", "lease = 5s"), 3, "lease cannot be set per window, only when, floor"),
    (window("22:00-06:00", "pace = on"), 3, "move it to [levers]"),
    (window("22:00-06:00", "fsync-p99 = 1"), 3, "fsync-p99: "),
    (window("22:00-06:00", "rest = 4M\nwhen = 1:00-2:00"), 4, "duplicate key 'when'"),
    ("[window]\nwhen = 1:00-2:00\n", 1, "write [window night]"),
    ("[window a b]\nwhen = 1:00-2:00\n", 1, "needs one name"),
    ("[window a/b]\nwhen = 1:00-2:00\n", 1, "needs one name"),
    ("[windows night]\n", 1, "write [window NAME]"),
    (window("22:00-06:00", "ceiling = 512K"), 3, "floor 1M (default) is above ceiling 512K"),
    ("[limits]\nceiling = 64M\n" + window("22:00-06:00", "floor = 1G"), 5, "in window night"),
    (window("22:00-06:00", "rest = 64G"), 3, "rest: 64G is outside of floor and ceiling"),
    ("[device sda]\nrest = 8M\nceiling = 4M\n" + window("22:00-06:00"), 2, "for device sda"),
    (window("22:00-06:00", "allowed-delay = 5s"), 3, "is above drain-time 3s (default)"),
    ("[device sda]\nfloor = 2G\n" + window("22:00-06:00", "ceiling = 1G"), 5, "for device sda"),
    (window("22:00-06:00") + window("Sat 05:59-05:58", name="b"), 5,
     "window b is open on Sat 05:59, as window night is ("),
    (window("Sun 23:00-02:00") + window("Mon 01:00-03:00", name="b"), 5, "open on Mon 01:00"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "said"), BAD, ids=[row[2] for row in BAD])
def test_what_is_wrong_is_told_once_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = tmp_path / "p.conf"
    path.write_text(text)
    (message,) = check(str(path))
    assert message.startswith(f"{path}:{line}: ") and said in message, message


def test_what_is_wrong_all_the_time_is_not_told_again_for_a_window(tmp_path: Path) -> None:
    path = tmp_path / "p.conf"
    path.write_text("[limits]\nfloor = 8G\nrest = 1M\n" + window("22:00-06:00"))
    (message,) = check(str(path))
    assert message.startswith(f"{path}:2: floor: floor 8G") and "window" not in message
    # And what is wrong in a window hides nothing of the rest.
    path.write_text("[limits]\nfloor = 8G\n" + window("22:00-06:00", "floor = 1Q"))
    assert [re.findall(r":(\d+):", each)[0] for each in check(str(path))] == ["5", "2"]


def test_too_many_windows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.conf"
    path.write_text("".join(
        window(f"00:{number:02}-00:{number + 1:02}", name=f"w{number}") for number in range(33)
    ))  # fmt: skip
    assert check(str(path))[-1].endswith("more than 32 [window NAME] sections")


def test_a_drop_in_changes_a_window_or_takes_it_out(tmp_path: Path) -> None:
    (tmp_path / "p.conf.d").mkdir()
    drop_in = tmp_path / "p.conf.d" / "a.conf"
    drop_in.write_text("[window night]\nwhen = Sat 22:00-06:00\n")
    (found,) = load(tmp_path, window("22:00-06:00")).windows
    assert format_when(found.when) == "Sat 22:00-06:00"
    assert (found.origin, found.objective.fsync_p99_s) == (f"{drop_in}:2", 0.1)
    drop_in.write_text("[window night]\nwhen =\n")
    policy = load(tmp_path, window("22:00-06:00") + window("23:00-01:00", name="b"))
    assert [each.name for each in policy.windows] == ["b"]
    # With nothing of its own it takes nothing away either.
    drop_in.write_text("[window night]\n")
    assert [each.name for each in load(tmp_path, window("22:00-06:00")).windows] == ["night"]


def test_the_default_rest_moves_with_the_bounds_of_a_window(tmp_path: Path) -> None:
    text = "[limits]\nceiling = 3M\n" + window("22:00-06:00", "ceiling = 1G")
    text += window("06:00-08:00", "floor = 2M\nceiling = 2M", "b")
    policy = load(tmp_path, text)
    rests = [each.limits.rest_bytes >> 20 for each in policy.windows]
    assert (policy.limits.rest_bytes >> 20, rests) == (3, [4, 2])


@settings(UNHURRIED, max_examples=20)
@given(st.lists(WHENS, max_size=4), st.floats(1e-4, 60), st.integers(64 << 20, 1 << 40))
def test_render_reads_back_with_its_windows(
    tmp_path_factory: pytest.TempPathFactory, whens: List[When], fsync_s: float, ceiling: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("p")
    apart: List[When] = []
    for when in whens:
        if when.spans != ((0, WEEK),) and not any(common_minute(when, each) is not None
                                                  for each in apart):
            apart.append(when)
    lines = "\n".join(
        f"{name} = {WINDOW_KEYS[name].kind.format(value)}"
        for name, value in (("fsync-p99", fsync_s), ("ceiling", ceiling))
    )
    policy = load(tmp_path, "".join(
        window(format_when(when), lines, f"w{number}") for number, when in enumerate(apart)
    ))  # fmt: skip
    assert [each.when for each in policy.windows] == apart
    assert all(each.objective.fsync_p99_s == fsync_s for each in policy.windows)
    (tmp_path / "again.conf").write_text(render(replace(policy, name="again")))
    assert load_policy(str(tmp_path / "again.conf")) == replace(policy, name="again")


@settings(UNHURRIED, max_examples=30)
@given(st.lists(WHENS, min_size=2, max_size=3))
def test_overlaps_are_found_and_only_those(
    tmp_path_factory: pytest.TempPathFactory, whens: List[When]
) -> None:
    path = tmp_path_factory.mktemp("p") / "p.conf"
    path.write_text("".join(
        window(format_when(when), name=f"w{number}") for number, when in enumerate(whens)
    ))  # fmt: skip
    lengths = [(each.end - each.begin) % DAY or DAY for each in whens]
    minutes = [
        (day * DAY + when.begin + minute) % WEEK
        for when, length in zip(whens, lengths) for day in when.days for minute in range(length)
    ]
    assert bool(check(str(path))) is (len(set(minutes)) < len(minutes))
    for when, length in zip(whens, lengths):
        assert sum(end - begin for begin, end in when.spans) == length * len(when.days)


# ---- what is open when -------------------------------------------------

NIGHTS = (
    "[limits]\nceiling = 1G\n[objective]\nfsync-p99 = 5ms\n[device sdb]\nfsync-p99 = 50ms\n"
    + window("Mon..Fri 22:00-06:00", "fsync-p99 = 100ms\nceiling = 2G")
    + window("Sat 12:00-02:30", "drain-time = 10s", "weekend")
    + window("Sun 02:30-03:00", "drain-time = 9s", "small")
    + window("Sun 23:00-02:00", "drain-time = 8s", "late")
)


def at(table: Timetable, text: str) -> InForce:
    return table.at(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_the_values_of_an_open_window_are_in_force(tmp_path: Path) -> None:
    policy = load(tmp_path, NIGHTS)
    table = Timetable(policy, UTC)
    day, night = at(table, "2024-05-06 21:59"), at(table, "2024-05-06 22:00")
    assert day.window is None and night.window is not None
    assert (night.window.name, night.window.until) == ("night", "06:00")
    assert night.window.until_s == datetime(2024, 5, 7, 6, tzinfo=UTC).timestamp()
    for found, name, expected in (
        (day, "sda", (0.005, 1 << 30)), (night, "sda", (0.1, 2 << 30)),
        (night, "sdb", (0.05, 2 << 30)),  # of one device, on top
    ):
        values = found.policy.of(Device(name, "8:0", "8:0"))
        assert (values.fsync_p99_s, values.ceiling_bytes) == expected
    assert night.policy.origins["objective", "fsync-p99"].endswith(":9")
    # The same object: what it knows of each device is asked for in every tick.
    assert at(table, "2024-05-08 03:00").policy is night.policy
    assert at(table, "2024-05-12 09:00").policy is day.policy
    assert day.policy.windows == night.policy.windows == ()
    plain = load(tmp_path, "")
    assert Timetable(plain).at(0.0).policy is plain


def test_it_closes_on_the_day_after_it_opened_and_says_which(tmp_path: Path) -> None:
    table = Timetable(load(tmp_path, window("Fri 22:00-24:00") + window(
        "Sat,Sun 00:00-24:00", name="weekend")), UTC)  # fmt: skip
    for text, name, until in (
        ("2024-05-10 23:59:59", "night", "00:00"),
        ("2024-05-11 00:00:00", "weekend", "Mon 00:00"),
        ("2024-05-12 00:00:01", "weekend", "00:00"),
    ):
        found = at(table, text).window
        assert found is not None and (found.name, found.until) == (name, until)
    assert at(table, "2024-05-13 00:00").window is None


def model(where: tzinfo) -> Callable[[int], Optional[str]]:
    """NIGHTS, by the hours and weekdays that the clock shows."""
    def name(wall_s: int) -> Optional[str]:
        local = datetime.fromtimestamp(wall_s, where)
        day, hour, clock = local.weekday(), local.hour, (local.hour, local.minute)
        if (day <= 4 and hour >= 22) or (1 <= day <= 5 and hour < 6):
            return "night"
        if (day == 5 and hour >= 12) or (day == 6 and clock < (2, 30)):
            return "weekend"
        if (day == 6 and hour == 23) or (day == 0 and hour < 2):
            return "late"
        return "small" if day == 6 and (2, 30) <= clock < (3, 0) else None

    return name


@pytest.mark.parametrize("name", ZONES)
def test_every_minute_of_a_year_has_one_answer(tmp_path: Path, name: str) -> None:
    """And the end that is told is the next minute that has another.

    Where the clock is set, what lies in the hour that is left out does not come, and what lies in
    the hour that comes twice does so twice.
    """
    where = zone(name)
    table, expected = Timetable(load(tmp_path, NIGHTS), where), model(where)
    begin = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp())
    # Half hours all year, and each minute on both sides of a change of the clock.
    changes = [
        t for t in range(begin, begin + 366 * 86400, 3600)
        if datetime.fromtimestamp(t, where).utcoffset()
        != datetime.fromtimestamp(t + 3600, where).utcoffset()
    ]
    assert bool(changes) is (name != "Asia/Kolkata")
    minutes = set(range(begin, begin + 366 * 86400, 1800))
    for change in changes:
        minutes |= set(range(change - 8 * 3600, change + 9 * 3600, 60))
    times = sorted(minutes)
    known = [expected(each) for each in times]
    edges = [i for i in range(1, len(times)) if known[i] != known[i - 1]]
    for index, (wall_s, wanted) in enumerate(zip(times, known)):
        found = table.at(wall_s + 0.75).window
        assert (found.name if found else None) == wanted, datetime.fromtimestamp(wall_s, where)
        following = bisect_right(edges, index)
        if found is not None and following < len(edges):
            end = times[edges[following]]
            assert found.until_s == end, datetime.fromtimestamp(wall_s, where)
            assert found.until.endswith(f"{datetime.fromtimestamp(end, where):%H:%M}")


@UNHURRIED
@given(st.integers(0, 1 << 35), st.floats(-1e6, 1e6))
def test_a_clock_that_jumps_leaves_nothing_behind(wall_s: int, jump_s: float) -> None:
    policy = policy_of(NIGHTS)
    table = Timetable(policy, UTC)
    table.at(wall_s + jump_s)
    assert table.at(wall_s) == Timetable(policy, UTC).at(wall_s)


def test_the_time_zone_is_that_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    policy = load(tmp_path, NIGHTS)
    assert local_zone(tmp_path) is UTC  # no file: as the C library does
    assert zone("Europe/Berlin") is not None
    (tmp_path / "etc").mkdir()
    localtime = tmp_path / "etc" / "localtime"
    localtime.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    found = at(read_timetable(policy, tmp_path), "2024-05-06 20:00").window  # 22:00 there
    assert found is not None and found.until == "06:00"
    localtime.unlink()
    localtime.write_text("not a time zone")
    with pytest.raises(PolicyError, match="etc/localtime: cannot read the time zone for windows"):
        read_timetable(policy, tmp_path)
    read_timetable(load(tmp_path, ""), tmp_path)  # which has no use for it


# Wall clock of the plant at its beginning: Tuesday, 2023-11-14 22:13:20 UTC.
WALL_S = 1.7e9

# ---- in a run ----------------------------------------------------------


def record(directory: Path, table: Timetable, seconds: float) -> None:
    """A flood over the time in which a window opens and closes, as the daemon does it."""
    from writebackd.control.decide import rebounded

    loop = Loop(load_policy(None, None), BY_NAME["flood"].plant())
    tape = Recorder(directory, 1 << 30)
    while loop.plant.now_s < seconds:
        policy = table.at(WALL_S + loop.plant.now_s).policy
        if policy is not loop.policy:
            loop.policy, loop.memory = policy, rebounded(loop.memory)
        before = loop.memory
        sample, _, decision = loop.tick()
        while tape._waiting.full():
            pass
        tape.record(loop.policy, before, sample, decision, loop.memory)
    assert tape.close(20.0) and tape.dropped == 0


def test_a_tape_with_a_window_is_decided_again_to_the_same(tmp_path: Path) -> None:
    text = window("22:14-22:15", "ceiling = 8M\nfloor = 8M\nrest = 8M")
    policy = load(tmp_path, text + window("22:15-22:16", "floor = 64M\nrest = 64M", "second"))
    record(tmp_path / "tape", Timetable(policy, UTC), 180.0)
    recorded = list(read_recording(tmp_path / "tape"))
    assert len({tick.policy for tick in recorded}) == 3
    assert not any("[window" in tick.policy for tick in recorded)
    tally = Tally()
    for tick in replay(recorded, policy_of):
        tally.add(tick)
    assert (tally.ticks, tally.different) == (len(recorded), 0), tally.differences
    for floor, ceiling in ((8, 8), (64, 4096)):
        said = f"\nfloor = {floor}M"
        held = [each.outcome.goal_bytes for each in recorded if said in each.policy]
        assert len(held) > 50
        assert all(goal is None or floor << 20 <= goal <= ceiling << 20 for goal in held), held
    # As another policy, its windows are open by the clock of then, where that is.
    goals = {}
    for hours in (0, 1):
        ticks = replay(recorded, policy_of, policy, timezone(timedelta(hours=hours)))
        goals[hours] = max(tick.outcome.goal_bytes or 0 for tick in ticks)
    assert goals[0] >= 64 << 20 > goals[1]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def windows_of_history(tmp_path: Path) -> List[str]:
    with sqlite3.connect(tmp_path / "state" / "history.db") as database:
        found = database.execute("SELECT text FROM events WHERE kind = 'window' ORDER BY wall_s")
        return [text for (text,) in found]


def test_a_run_says_which_window_is_open_and_when_that_changes(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    asked: Dict[str, Policy] = {}

    def spy(module: ModuleType, name: str) -> Callable[..., Any]:
        real = getattr(module, name)

        def call(policy: Policy, *more: Any) -> Any:
            asked[name] = policy
            return real(policy, *more)

        return call

    for module, name in (
        (daemon_module, "estimate"), (daemon_module, "decide"), (tick_report, "detect")
    ):  # fmt: skip
        monkeypatch.setattr(module, name, spy(module, name))
    daemon = rig.daemon
    policy = load(tmp_path, window("Mon 16:01-18:00", "ceiling = 2G"))  # it is Monday 16:00
    daemon.policies.load = lambda: policy
    daemon.reload()
    daemon.policies.join(10)
    rig.tick(3)
    assert daemon.state.snapshot is not None and daemon.state.snapshot.window is None
    rig.tick(60)
    shown = daemon.state.snapshot
    assert shown.window is not None and shown.window.until == "18:00"
    assert len(asked) == 3
    for given_ in asked.values():
        assert (given_.limits.ceiling_bytes, given_.windows) == (2 << 30, ())
    status, why = status_json(shown), why_json(shown)
    for name, answer in (("status", status), ("why", why)):
        assert list(schema.problems(json.loads(json.dumps(answer)), schema.load(name))) == []
        assert answer["window"] and answer["window"]["name"] == "night"
    assert "(window night until 18:00)" in render_status(status, 200)
    assert "(window night until 18:00)" in render_why(why, 200)
    # The clock is set back, and forth; the daemon's own clock goes on.
    for wall in (rig.wall - 3600, rig.wall, rig.wall + 86400):
        rig.wall = wall
        rig.tick(2)
    assert daemon.state.snapshot.window is None
    expected = [
        "window night is open until 18:00", "window night is over",
        "window night is open until 18:00", "window night is over",
    ]  # fmt: skip
    assert [each for each in caplog.messages if each.startswith("window ")] == expected
    assert daemon._history.close(5.0)
    assert sorted(windows_of_history(tmp_path)) == sorted(expected)


def test_the_goal_is_taken_as_it_is_when_a_window_opens_and_only_then(
    rig: Rig, tmp_path: Path
) -> None:
    """One near the last goal would else stay above a new ceiling."""
    daemon = rig.daemon
    policy = load(tmp_path, window("Mon 16:01-18:00", "ceiling = 2G"))
    daemon.policies.timetable = Timetable(policy, UTC)
    rig.tick(2)
    seen = []
    for wall in (rig.wall, rig.wall + 60, rig.wall + 61, rig.wall + 8000):
        daemon.state.memory = replace(daemon.state.memory, goal_bytes=12345)
        daemon._enter_window(wall)
        seen.append(daemon.state.memory.goal_bytes)
    assert seen == [12345, None, 12345, None]
    # What is read again and is the same is no other window.
    daemon.state.memory = replace(daemon.state.memory, goal_bytes=12345)
    same = load(tmp_path, window("Mon 16:01-18:00", "ceiling = 2G"))
    daemon.policies.timetable = Timetable(same, UTC)
    daemon._enter_window(rig.wall + 8000)
    assert daemon.state.memory.goal_bytes == 12345


def test_policy_show_tells_the_windows_and_which_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("writebackd.policy.reload.local_zone", lambda root: UTC)
    monkeypatch.setattr("writebackd.cli.policy.time.time", lambda: 1_764_000_000.0)
    for when, said, name in (
        ("Mon 16:00-02:00", "Window night is open now, until 02:00", "night"),
        ("Mon 16:01-02:00", "No window is open now", None),
    ):
        load(tmp_path, window(when))
        assert ctl.main(["policy", "show", "--effective", str(tmp_path / "p.conf")]) == 0
        out = capsys.readouterr().out
        assert f"[window night]\n# {tmp_path}/p.conf:2\nwhen = {when}\n" in out
        assert said in out.splitlines()[-1]
        assert ctl.main(["--json", "policy", "show", str(tmp_path / "p.conf")]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert list(schema.problems(answer, schema.load("policy-show"))) == []
        assert answer["sections"]["window night"]["when"]["value"] == when
        assert (answer["window"] or {}).get("name") == name


def test_the_window_in_a_shipped_policy_is_one(tmp_path: Path) -> None:
    """It is commented out; who takes the signs away gets what it says."""
    text = (Path(__file__).resolve().parents[2] / "policies" / "db-hwraid.conf").read_text()
    lines = [line for line in text.splitlines() if re.match(r"# (\[window|when|fsync-p99)", line)]
    (found,) = load(tmp_path, "\n".join(line[2:] for line in lines)).windows
    assert (found.name, found.objective.fsync_p99_s) == ("night-backup", 0.1)
