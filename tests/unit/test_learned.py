# SPDX-License-Identifier: GPL-2.0-or-later
"""What was learned comes back after a restart: to the same device, while it holds."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from route_cases import wait_for
from writebackd.estimate.learned import FACTS, earlier_drain_age_s, learn, recall, seed
from writebackd.report import learned_store as store_module
from writebackd.report.learned_store import (
    MAX_DEVICES,
    LearnedStore,
    read_learned,
    save_learned,
)
from writebackd.safe_files import MOST_BYTES, with_checksum
from writebackd.tuning import KEEP_S
from writebackd.types.core_memory import Memory
from writebackd.types.decision import DeviceState
from writebackd.types.device_memory import DeviceMemory, Drain, Fact, LawMemory, Learned
from writebackd.types.storage import Device

TIMEOUT_S = 10.0
NOW = 1.7e9
SDA = Device("sda", "8:0", "8:0", ("sda",), ("8:0",), diskseq=7, identity="naa.5a, cache x")
LEARNED = Learned(
    drain_rate=Fact(2.5e8, NOW - 3600), baseline_s=Fact(4e-4, NOW - 60),
    write_baseline_s=Fact(9e-5, NOW - 60),
    cache_bytes=Fact(5e8, NOW - 60),
)  # fmt: skip
MEMORY = DeviceMemory(
    identity=("8:0", 7), known_as=SDA.identity, drain_rate=2.5e8,
    drain=Drain(full_s=9.0, full_ticks=(2.5e8,), lost_s=2.0, syncs=4000.0),
    baseline_s=4e-4, write_baseline_s=9e-5,
    cache_bytes=5e8,
)  # fmt: skip


def of(*devices: Device, **learned: Learned) -> Memory:
    return recall(Memory(), devices, {d.identity or "": learned[d.name] for d in devices}, NOW)


def seeded(path: Path, device: Device = SDA, wall_s: float = NOW) -> DeviceMemory:
    """The device's memory as the first ticks of a new run have it."""
    store = LearnedStore(path)
    memory = begun(store, device, wall_s)
    assert store.close(TIMEOUT_S)
    return memory.devices[device.name]


def begun(store: LearnedStore, device: Device = SDA, wall_s: float = NOW) -> Memory:
    """The memory of the first tick after the file was read."""

    def recalled() -> Optional[Memory]:
        memory = store.recall(Memory(), [device], wall_s)
        return memory if memory.devices else None

    memory: Memory = wait_for(recalled)
    return memory


# --- pure ---


def test_every_fact_is_a_value_of_the_memory() -> None:
    for name in FACTS:
        assert getattr(DeviceMemory(), name) is None


def test_memory_to_learned_and_back() -> None:
    learned = learn(MEMORY, Learned(), NOW)
    assert learned.drain_rate == Fact(2.5e8, NOW)
    back = seed(DeviceMemory(), learned, NOW + 10)
    for name in FACTS:
        assert getattr(back, name) == getattr(MEMORY, name)
    assert back.drain == Drain()


def test_only_what_was_learned_again_gets_a_new_date() -> None:
    later = learn(replace(MEMORY, baseline_s=5e-4), learn(MEMORY, Learned(), NOW), NOW + 100)
    assert later.drain_rate == Fact(2.5e8, NOW)
    assert later.baseline_s == Fact(5e-4, NOW + 100)


@pytest.mark.parametrize("value", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_rate_is_not_kept(value: Any) -> None:
    assert learn(replace(MEMORY, drain_rate=value), LEARNED, NOW).drain_rate is None


def test_measured_values_are_not_overwritten() -> None:
    mine = DeviceMemory(drain_rate=6e7)
    back = seed(mine, LEARNED, NOW)
    assert (back.drain_rate, back.baseline_s) == (6e7, 4e-4)
    assert earlier_drain_age_s(back, NOW) is None


# The second is a clock that was wrong.
@pytest.mark.parametrize("when_s", [NOW - KEEP_S - 1, NOW + KEEP_S + 1])
def test_a_month_later_it_is_forgotten(when_s: float) -> None:
    learned = replace(LEARNED, drain_rate=Fact(2.5e8, when_s))
    back = seed(DeviceMemory(), learned, NOW)
    assert (back.drain_rate, back.baseline_s) == (None, 4e-4)


def test_a_device_that_is_known_is_seeded_when_it_comes() -> None:
    memory = of(SDA, sda=LEARNED)
    mine = memory.devices["sda"]
    assert (mine.identity, mine.known_as) == (("8:0", 7), SDA.identity)
    assert mine.drain_rate == 2.5e8
    assert earlier_drain_age_s(mine, NOW) == 3600
    # And left alone from then on.
    assert recall(memory, [SDA], {"naa.5a, cache x": Learned()}, NOW) is memory


def test_it_is_known_in_another_slot_too() -> None:
    moved = replace(SDA, name="sdq", devno="65:0", diskseq=99)
    known = {"naa.5a, cache x": LEARNED}
    assert recall(Memory(), [moved], known, NOW).devices["sdq"].drain_rate == 2.5e8


def test_another_cache_mode_starts_anew_in_mid_run() -> None:
    through = replace(SDA, identity="naa.5a, cache write through")
    memory = recall(of(SDA, sda=LEARNED), [through], {SDA.identity or "": LEARNED}, NOW)
    assert memory.devices["sda"].drain_rate is None
    assert memory.devices["sda"].known_as == through.identity


def test_another_cache_mode_is_the_same_host_that_syncs() -> None:
    mine = of(SDA, sda=LEARNED).devices["sda"]
    busy = replace(
        mine,
        decisions=7,
        recent_syncs=(1.0, 40),
        last_demand=(55.0, 0.0, 3, True),
        state=DeviceState.SQUEEZE,
        target_bytes=2 << 20,
        law=LawMemory(limit_bytes=2.0**21),
        drain=MEMORY.drain,
    )
    through = replace(SDA, identity="naa.5a, cache write through")
    memory = recall(Memory(devices={"sda": busy}), [through], {}, NOW)
    now = memory.devices["sda"]
    # No decision id comes twice, and a flood with slow syncs does not go free for 10 s.
    assert (now.decisions, now.recent_syncs) == (7, (1.0, 40))
    assert now.last_demand == (55.0, 0.0, 3, True)
    assert (now.state, now.target_bytes) == (DeviceState.SQUEEZE, 2 << 20)
    # What was learned and tried is another mode's, and its date with it.
    assert (now.law, now.drain, now.earlier) == (LawMemory(), Drain(), Learned())
    assert [name for name in FACTS if getattr(now, name) is not None] == []
    # On another disk in its place nobody has synced yet.
    other = replace(through, diskseq=8)
    assert recall(memory, [other], {}, NOW).devices["sda"].last_demand is None


def test_what_nothing_tells_apart_is_not_seeded_and_not_reset() -> None:
    nameless = replace(SDA, identity=None)
    known = {SDA.identity or "": LEARNED, "None": LEARNED, "": LEARNED}
    memory = recall(Memory(), [nameless], known, NOW)
    assert memory.devices["sda"].drain_rate is None
    # A clone was plugged in: its twin goes on with what it knows.
    assert recall(of(SDA, sda=LEARNED), [nameless], {}, NOW).devices["sda"].drain_rate == 2.5e8


# --- the file ---

FACT = st.builds(
    Fact,
    st.floats(min_value=1e-12, max_value=1e15),
    st.floats(min_value=0, max_value=1e11),
)
ANY = st.builds(
    Learned,
    **{name: st.none() | FACT for name in FACTS},
)


@settings(deadline=None)  # each writes a file
@given(st.dictionaries(st.text(), ANY, max_size=8))
def test_round_trip(known: Dict[str, Learned]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "learned.json"
        save_learned(path, known)
        assert read_learned(path) == known


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two devices."""
    path = tmp_path / "learned.json"
    save_learned(path, {
        "naa.5a, cache x": LEARNED, 'odd "näme\\': replace(LEARNED, baseline_s=None)
    })  # fmt: skip
    return path


def read(path: Path, data: bytes) -> Optional[Dict[str, Learned]]:
    """What is read of other contents; None where they are rejected."""
    path.write_bytes(data)
    with contextlib.suppress(ValueError):
        return read_learned(path)
    return None


def test_truncated_anywhere_it_is_rejected(path: Path) -> None:
    data = path.read_bytes()
    assert [end for end in range(len(data.rstrip())) if read(path, data[:end]) is not None] == []


def test_no_flipped_bit_changes_what_is_read(path: Path) -> None:
    data, told = path.read_bytes(), read_learned(path)
    harmless = 0
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            found = read(path, bytes(broken))
            if found is not None:
                assert found == told, (at, bit)
                harmless += 1
    assert harmless < 100  # blanks between the values


@pytest.mark.parametrize("data", [
    b"", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000, b" " * (MOST_BYTES + 1),
    json.dumps(with_checksum({"version": 3, "devices": {}})).encode(),
], ids=["empty", "list", "null", "object", "binary", "deep", "large", "newer"])  # fmt: skip
def test_a_foreign_file_is_set_aside_with_one_line(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned.json"
    path.write_bytes(data)
    with caplog.at_level(logging.INFO):
        assert seeded(path).drain_rate is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "starts anew" in caplog.text
    assert (tmp_path / "learned.json.damaged").read_bytes() == data
    assert not path.exists()


def test_impossible_values_are_damage(path: Path) -> None:
    rows: List[Tuple[str, float]] = [("drain_rate", -1.0), ("write_baseline_s", 0.0),
                                    ("baseline_s", float("inf"))]
    for name, value in rows:
        save_learned(path, {"a": replace(LEARNED, **{name: Fact(value, NOW)})})
        with pytest.raises(ValueError, match=f"{name}: value: .* is impossible"):
            read_learned(path)


def test_a_value_that_another_release_knows_does_no_harm(path: Path) -> None:
    fact = {"value": 1.0, "wall_s": NOW}
    body = {"version": 2, "devices": {"a": {"baseline_s": fact, "a fact of tomorrow": fact}}}
    path.write_text(json.dumps(with_checksum(body)))
    assert read_learned(path) == {"a": Learned(baseline_s=Fact(1.0, NOW))}


# --- kept and recalled ---


def test_a_new_run_goes_on_with_what_the_last_one_learned(tmp_path: Path) -> None:
    path = tmp_path / "state" / "learned.json"
    first = LearnedStore(path)
    begun(first)
    first.keep(Memory(devices={"sda": MEMORY}), NOW)
    assert first.close(TIMEOUT_S)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in path.parent.iterdir()] == ["learned.json"]
    mine = seeded(path, wall_s=NOW + 3 * 3600)
    assert (mine.drain_rate, mine.baseline_s) == (2.5e8, 4e-4)
    assert earlier_drain_age_s(mine, NOW + 3 * 3600) == 3 * 3600
    assert seeded(path, replace(SDA, identity="naa.5b")).drain_rate is None
    assert seeded(path, wall_s=NOW + KEEP_S + 1).drain_rate is None


def test_unplugged_and_plugged_in_again_it_is_known(tmp_path: Path) -> None:
    store = LearnedStore(tmp_path / "learned.json")
    begun(store)
    memory = store.recall(Memory(devices={"sda": MEMORY}), [], NOW)
    assert memory.devices  # forgetting is the estimator's business
    back = store.recall(Memory(), [replace(SDA, diskseq=8)], NOW).devices["sda"]
    assert back.drain_rate == 2.5e8
    # Within one tick, so that it was never seen missing.
    faster = replace(MEMORY, drain_rate=3e8)
    memory = store.recall(Memory(devices={"sda": faster}), [replace(SDA, diskseq=9)], NOW)
    assert memory.devices["sda"].drain_rate == 3e8
    assert store.close(TIMEOUT_S)


def test_nothing_is_written_when_nothing_was_learned(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    save_learned(path, {SDA.identity or "": LEARNED})
    before = path.stat().st_ino, path.stat().st_mtime_ns
    store = LearnedStore(path)
    store.keep(begun(store), NOW + 1)
    assert store.close(TIMEOUT_S)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_more_devices_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_DEVICES >= 1024
    monkeypatch.setattr(store_module, "MAX_DEVICES", 3)
    path = tmp_path / "learned.json"
    store = LearnedStore(path)
    begun(store)
    for number in range(5):
        mine = replace(MEMORY, known_as=f"naa.{number}")
        store.keep(Memory(devices={"sda": mine}), NOW + number)
    assert store.close(TIMEOUT_S)
    assert sorted(read_learned(path)) == ["naa.2", "naa.3", "naa.4"]


def test_a_disk_that_hangs_holds_up_neither_start_nor_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "learned.json"
    os.mkfifo(path)  # open(2) waits, as it does for a server that is gone
    begun = time.monotonic()
    store = LearnedStore(path)
    assert store.recall(Memory(), [SDA], NOW) == Memory()
    store.keep(Memory(devices={"sda": MEMORY}), NOW)
    assert not store.close(0.1)
    assert time.monotonic() - begun < 1.0
    # Late, and seen all the same.
    save_learned(tmp_path / "kept", {"naa.5a, cache x": LEARNED})
    with open(path, "wb") as writer:
        writer.write((tmp_path / "kept").read_bytes())

    def recalled() -> bool:
        known = Memory(devices={"sda": DeviceMemory(identity=("8:0", 7), baseline_s=1e-3)})
        mine = store.recall(known, [SDA], NOW).devices["sda"]
        return (mine.drain_rate, mine.baseline_s) == (2.5e8, 1e-3)

    wait_for(recalled)


def test_a_directory_that_takes_no_file_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state" / "learned.json"
    (tmp_path / "state").write_text("a file")
    store = LearnedStore(path)
    begun(store)
    for number in range(3):
        store.keep(Memory(devices={"sda": replace(MEMORY, drain_rate=1e8 + number)}), NOW)
        time.sleep(0.05)
    assert not store.close(TIMEOUT_S)
    assert caplog.text.count("cannot be written") == 1


def test_the_file_is_json_that_a_person_can_read(path: Path) -> None:
    devices = json.loads(path.read_bytes())["devices"]
    known = devices["naa.5a, cache x"]["drain_rate"]
    assert known == {"value": 2.5e8, "wall_s": NOW - 3600}
