# SPDX-License-Identifier: GPL-2.0-or-later
"""Replay: a recorded history, decided again, comes to the same decisions with the same ids.

    PYTHONPATH=agent python3 tests/unit/test_replay.py

records tests/unit/flood.tape anew, after a change of the law that was meant to be one.
"""

from __future__ import annotations

import errno
import grp
import json
import os
import shutil
import stat
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Callable, List, NoReturn, Tuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import schema
from fake_host import Rig
from route_cases import wait_for
from tests.bench import day_replay
from tests.sim.plant import Loop
from tests.sim.scenarios import BY_NAME
from writebackd.cli import ctl
from writebackd.cli.replay import policy_of
from writebackd.commands import set_mode
from writebackd.policy import Policy, load_policy, render
from writebackd.report import recorder
from writebackd.report.recorder import Recorded, Recorder, RecordingError, read_recording
from writebackd.report.replayer import Tally, replay
from writebackd.types.codec import pack, unpack
from writebackd.types.core_memory import Memory
from writebackd.types.decision import DeviceState, Mode
from writebackd.types.device_memory import DeviceMemory, Drain, Fact, LawMemory, Learned

TRACE = Path(__file__).with_name("flood.tape")
TIMEOUT_S = 20.0


def play(
    directory: Path, name: str = "flood", seconds: float = 60.0, max_bytes: int = 1 << 30,
    pins: "Tuple[float, float]" = (1e9, 1e9), drains: "Tuple[float, float]" = (1e9, 1e9),
) -> int:
    """Record a scenario; the number of ticks. Between the times of `pins` the admin holds 8 MB,
    between those of `drains` the disk is drained."""
    loop, ticks = Loop(load_policy(None, None), BY_NAME[name].plant()), 0
    tape = Recorder(directory, max_bytes)
    while loop.plant.now_s < seconds:
        pinned = 8 << 20 if pins[0] <= loop.plant.now_s < pins[1] else None
        drained = ("sda",) if drains[0] <= loop.plant.now_s < drains[1] else ()
        if (loop.memory.pin_bytes, loop.memory.draining) != (pinned, drained):
            loop.memory = replace(loop.memory, pin_bytes=pinned, draining=drained)
        before = loop.memory
        sample, _, decision = loop.tick()
        while tape._waiting.full():
            time.sleep(0.001)
        tape.record(loop.policy, before, sample, decision, loop.memory)
        ticks += 1
    assert tape.close(TIMEOUT_S) and tape.dropped == 0, tape.error
    return ticks


def tally(ticks: "List[Recorded]", other: "Policy | None" = None) -> Tally:
    result = Tally()
    for tick in replay(ticks, policy_of, other):
        result.add(tick)
    return result


@pytest.mark.parametrize("name", ["flood", "two-raids", "stick", "waves-5s", "battery"])
def test_the_same_policy_comes_to_the_same_decisions(tmp_path: Path, name: str) -> None:
    ticks = play(tmp_path, name)
    recorded = list(read_recording(tmp_path))
    result = tally(recorded)
    assert result.ticks == len(recorded) == ticks and result.decisions > 3
    assert result.different == 0, result.differences
    # One memory only: all others follow from it.
    assert [bool(tick.memory) for tick in recorded].count(True) == 1


def test_orders_of_then_are_followed(tmp_path: Path) -> None:
    play(tmp_path, pins=(20.0, 30.0))
    recorded = list(read_recording(tmp_path))
    result = tally(recorded)
    assert result.different == 0 and "pinned" in result.states["sda"]
    assert [bool(tick.memory) for tick in recorded].count(True) == 3


def test_drains_of_then_are_followed_under_another_policy_too(tmp_path: Path) -> None:
    play(tmp_path, drains=(20.0, 30.0))
    recorded = list(read_recording(tmp_path))
    for other in (None, load_policy(None, None)):
        result = tally(recorded, other)
        assert result.different == 0 and "pinned" in result.states["sda"]


def test_another_policy_decides_otherwise_and_it_is_told_where(tmp_path: Path) -> None:
    play(tmp_path)
    policy = load_policy(None, None)
    # Smaller ones: what is dirty in the samples fills the limits of then, and a larger one is only
    # reached in steps from there.
    most = 1536 << 10
    low = replace(policy, limits=replace(policy.limits, ceiling_bytes=most, rest_bytes=most))
    result = tally(list(read_recording(tmp_path)), low)
    assert result.different > 10
    assert (result.median_limit(1) or 0) <= most < (result.median_limit(0) or 0)
    assert result.differences[0][1] != result.differences[0][2]


def test_a_changed_sample_does_not_go_unnoticed(tmp_path: Path) -> None:
    play(tmp_path)
    recorded = list(read_recording(tmp_path))
    at = next(n for n, tick in enumerate(recorded) if tick.sample.time_s > 1006.0)
    for number in range(at, at + 10):
        sample = recorded[number].sample
        quiet = tuple(replace(seen, classes={}, write_bytes=0) for seen in sample.devices)
        recorded[number] = replace(recorded[number], sample=replace(sample, devices=quiet))
    assert tally(recorded).different > 0


def test_every_file_can_be_begun_with_and_the_oldest_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "FILE_S", 60.0)
    play(tmp_path / "all", seconds=180.0)
    files = sorted((tmp_path / "all").iterdir())
    assert len(files) == 4 or len(files) == 3
    size = sum(path.stat().st_size for path in files)
    begin_s = int(files[1].stem) / 1000
    later = list(read_recording(tmp_path / "all", since_s=begin_s + 1.0))
    assert later[0].memory is not None and later[0].sample.wall_s >= begin_s - 0.001
    assert tally(later).different == 0
    play(tmp_path / "few", seconds=180.0, max_bytes=size // 2)
    kept = sum(path.stat().st_size for path in (tmp_path / "few").iterdir())
    assert 0 < kept <= 0.9 * (size // 2) + size / 3
    assert tally(list(read_recording(tmp_path / "few"))).different == 0


def test_a_tape_cut_short_or_damaged_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    play(tmp_path)
    (path,) = tmp_path.iterdir()
    data, whole = path.read_bytes(), len(list(read_recording(tmp_path)))
    lengths = []
    for length in range(0, len(data), len(data) // 40):
        path.write_bytes(data[:length])
        lengths.append(len(list(read_recording(tmp_path))))
    assert lengths == sorted(lengths) and lengths[0] == 0 and whole - 70 < lengths[-1] <= whole
    for at in range(3, len(data), len(data) // 40):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        assert len(list(read_recording(tmp_path))) <= whole
    path.write_bytes(zlib.compress(b'{"v": 99, "policy": ""}\n{"s": {}, "n": []}\n'))
    assert list(read_recording(tmp_path)) == []


def test_a_stuck_disk_costs_ticks_and_what_follows_is_whole(tmp_path: Path) -> None:
    loop = Loop(load_policy(None, None), BY_NAME["flood"].plant())
    tape = Recorder(tmp_path, 1 << 30)
    gate, write = [True], tape._write

    def stuck(data: bytes) -> None:
        wait_for(lambda: not gate[0], TIMEOUT_S)
        write(data)

    tape._write = stuck  # type: ignore[method-assign]
    for number in range(200):
        if number == 150:
            gate[0] = False
            wait_for(tape._waiting.empty, TIMEOUT_S)
        before = loop.memory
        sample, _, decision = loop.tick()
        tape.record(loop.policy, before, sample, decision, loop.memory)
    assert 50 < tape.dropped < 150
    assert tape.close(TIMEOUT_S)
    recorded = list(read_recording(tmp_path))
    assert len(recorded) == 200 - tape.dropped
    assert tally(recorded).different == 0


def test_the_policy_of_then_is_kept_as_it_was() -> None:
    policy = load_policy(None, None)
    assert replace(policy_of(render(policy)), name="default") == policy


def test_the_daemon_records_what_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    tape = rig.daemon._recorder = Recorder(tmp_path / "samples", 1 << 20)
    rig.tick(8)
    rig.pin(8 << 20)
    rig.tick(3)
    rig.daemon.apply(set_mode(Mode.OBSERVE))
    rig.tick(3)
    assert tape.close(TIMEOUT_S) and tape.dropped == 0, tape.error
    rig.end()
    recorded = list(read_recording(tmp_path / "samples"))
    assert len(recorded) == 13  # the first tick only sets the counters
    assert tally(recorded).different == 0
    assert sum(tick.memory is not None for tick in recorded) < 6


def test_by_default_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.tick(3)
    assert rig.daemon._recorder is None
    rig.end()


def test_part_of_a_day_with_a_rebuild_is_decided_again_from_anywhere_in_it(tmp_path: Path) -> None:
    """The day of tests/bench/day_replay.py, shortened: a rebuild ends in it at 15:00."""
    ticks = day_replay.record(tmp_path, day_replay.host(), 14.7, 0.55)
    assert ticks > 0.55 * day_replay.HOUR_S and len(list(tmp_path.iterdir())) >= 3
    whole = list(read_recording(tmp_path))
    result = tally(whole)
    assert result.ticks == ticks and result.different == 0, result.differences
    assert {"guard", "probe"} <= result.states["sda"].keys() and result.decisions > 15
    rates = [device.drain_rate for device in (_after(whole[:900]), _after(whole))]
    assert rates[0] and rates[1] and rates[1] > 1.5 * rates[0]
    later = list(read_recording(tmp_path, since_s=whole[len(whole) // 2].sample.wall_s))
    assert 0 < len(later) < ticks and tally(later).different == 0


def _after(ticks: "List[Recorded]") -> DeviceMemory:
    """What is remembered of the disk in the last checkpoint."""
    memory = [tick.memory for tick in ticks if tick.memory is not None][-1]
    return memory.devices["sda"]


# ---- the verb ----------------------------------------------------------

Run = Callable[..., Tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    shutil.copy(TRACE, tmp_path)

    def call(*arguments: str) -> Tuple[int, str]:
        code = ctl.main(["replay", "--tape", str(tmp_path), *arguments])
        out, err = capsys.readouterr()
        return code, out + err

    return call


def test_the_recorded_trace_is_decided_as_it_was(run: Run) -> None:
    code, out = run()
    assert code == 0 and "no tick differs" in out, (
        f"{out}\nThe law decides otherwise than before. If that was meant: "
        "PYTHONPATH=agent python3 tests/unit/test_replay.py"
    )


def test_what_another_policy_would_have_done(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.conf"
    other.write_text("[limits]\nceiling = 1M\nrest = 1M\n")
    code, out = run("--policy", str(other))
    assert code == 0 and "ticks differ" in out and "behaved differently" in out
    code, out = run("--policy", str(other), "--json")
    answer = json.loads(out)
    assert list(schema.problems(answer, schema.load("replay"))) == []
    assert answer["limit_bytes"]["now"] == 1 << 20


def test_no_tape_says_what_to_do(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="samples"):
        list(read_recording(tmp_path / "none"))
    assert "no samples of that time" in run("--until", "1970-01-01")[1]
    assert run("--policy", str(tmp_path / "missing.conf"))[0] == 2
    assert ctl.main(["replay", "--tape", str(tmp_path / "none")]) == 1


def test_samples_are_for_root_and_adm(tmp_path: Path) -> None:
    """They name processes, with what they were called by."""
    play(tmp_path, seconds=3.0)
    (tape,) = tmp_path.glob("*.tape")
    assert stat.S_IMODE(tape.stat().st_mode) == 0o640
    groups = {group.gr_name: group.gr_gid for group in grp.getgrall()}
    if os.geteuid() == 0 and "adm" in groups:
        assert tape.stat().st_gid == groups["adm"]


def test_samples_of_root_are_not_said_to_be_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "1.tape").touch()
    monkeypatch.setattr(recorder, "open", refused, raising=False)
    assert ctl.main(["replay", "--tape", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.endswith("1.tape: samples are for root and the group adm, try with sudo\n")


def test_memory_and_samples_of_a_first_tick_come_back() -> None:
    # What the law knows has names that earlier recordings have in other places.
    known = DeviceMemory(
        law=LawMemory(limit_bytes=2.0**21), drain=Drain(full_ticks=(1e8,))
    )
    for memory in (Memory(), Memory(devices={"sda": known})):
        packed = json.loads(json.dumps(pack(memory)))
        assert unpack(Memory, packed) == memory


def test_a_recording_may_have_a_field_that_is_gone() -> None:
    packed = {
        "flooded_before": True, "last_flood_s": 5.0, "window_limit_bytes": 1 << 20,
        "drain_window": [[1.0, 2e8], [0.5, 2.1e8]], "sync_window": [[1.0, 40.0]],
    }
    mine = unpack(DeviceMemory, packed)
    assert mine == DeviceMemory(last_flood_s=5.0) and mine.flooded_before
    with pytest.raises(ValueError, match="decisions: no int"):
        unpack(DeviceMemory, {"decisions": 1.5})


def test_a_recording_of_the_law_that_searched_for_the_limit_is_read() -> None:
    """As 0.1 wrote it in the middle of a flood: its search is gone, what was learned is not."""
    mine = {
        "identity": ["8:0", 7], "known_as": "naa.5a", "drain_rate": 2.5e8, "cache_bytes": 5e8,
        "earlier": {"drain_rate": {"value": 2.4e8, "wall_s": 1.7e9},
                    "tau_s": {"value": 8e-3, "wall_s": 1.7e9}},
        "tau_s": 7.5e-3, "drain_limit_bytes": 2 << 20, "was_full": True, "fast": [1.0, 2e8],
        "filling": 3, "flood_lasted_s": 20.0, "flushed": [0.1, 5.0],
        "full_window": [[1.0, 2.4e8, 1 << 20]], "recent_writes": [[1.0, 40, 2]],
        "hold": {"phase": "drain", "limit_bytes": 2 << 20, "changed_s": 1000.0,
                 "carried": [7e8, 3.0], "climb": {"from_bytes": 2 << 20, "rate": 2e8}},
        "target_bytes": 2 << 20, "state": "squeeze", "decisions": 7,
    }  # fmt: skip
    memory = unpack(Memory, {"devices": [["sda", mine]], "limit_bytes": 2 << 20})
    assert memory == Memory(
        limit_bytes=2 << 20,
        devices={"sda": DeviceMemory(
            identity=("8:0", 7), known_as="naa.5a", drain_rate=2.5e8, cache_bytes=5e8,
            earlier=Learned(drain_rate=Fact(2.4e8, 1.7e9)), target_bytes=2 << 20,
            state=DeviceState.SQUEEZE, decisions=7,
        )},
    )  # fmt: skip


if __name__ == "__main__":
    scratch = TRACE.with_suffix(".new")
    play(scratch, "flood", 60.0)
    (made,) = scratch.iterdir()
    made.replace(TRACE)
    scratch.rmdir()
    print(f"{TRACE}: {TRACE.stat().st_size} bytes")
