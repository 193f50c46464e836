# SPDX-License-Identifier: GPL-2.0-or-later
"""`why`: what it says comes next, comes next."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import List, Tuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.sim.plant import Loop
from tests.sim.scenarios import BY_NAME
from writebackd import human
from writebackd.control.explain import explain, what_next
from writebackd.model import DeviceDecision, Hold, Phase, State
from writebackd.policy import load_policy

Step = Tuple[float, DeviceDecision, Hold, str, Tuple[str, ...]]


def played(name: str, seconds: float = 60.0) -> List[Step]:
    """Each tick of the first device: time, decision, memory, what comes next, reasoning."""
    loop, steps = Loop(load_policy(None, None), BY_NAME[name].plant()), []
    while loop.plant.now_s < seconds:
        sample, estimates, decision = loop.tick()
        (device, *_) = decision.devices
        hold, estimate = loop.memory.devices[device.name].hold, estimates[device.name]
        said = what_next(device, estimate, hold, sample.time_s)
        why = explain(device, estimate, hold, sample.time_s)
        steps.append((sample.time_s, device, hold, said, why))
    return steps


def test_making_room_ends_when_and_where_it_says() -> None:
    steps = played("flood", 400.0)
    checked = 0
    for (_, _, hold, _, _), (begun_s, _, drain, said, _), at in zip(
        steps, steps[1:], range(2, len(steps))
    ):
        if hold.phase is Phase.DRAIN or drain.phase is not Phase.DRAIN:
            continue
        found = re.search(r"back to about (\S+) when .* (\S+) to (\S+) s after", said)
        assert found is not None, said
        after = next((each for each in steps[at:] if each[2].phase is not Phase.DRAIN), None)
        if after is None:
            break
        low, high = float(found.group(2)), float(found.group(3))
        assert low - 0.1 <= after[0] - begun_s <= high + 1.0
        assert after[1].target_bytes is not None
        ratio = after[1].target_bytes / _bytes(found.group(1))
        assert 0.5 < ratio < 1.6, (found.group(1), human.size(after[1].target_bytes))
        checked += 1
    assert checked >= 2


def test_a_larger_limit_is_kept_or_taken_back_as_it_says() -> None:
    steps = played("flood", 400.0)
    checked = 0
    for (_, _, before, _, _), (_, now, hold, said, _), at in zip(
        steps, steps[1:], range(2, len(steps))
    ):
        if before.probe_bytes or not hold.probe_bytes or hold.phase is not Phase.HOLD:
            continue
        assert "is kept if it brings" in said and human.size(hold.probe_bytes) in said
        end = next((each for each in steps[at:] if not each[2].probe_bytes), None)
        if end is None:
            break
        full, back = end[2].phase is Phase.DRAIN, end[2].limit_bytes == hold.probe_bytes
        assert full or back or (end[2].limit_bytes or 0) >= (now.target_bytes or 0) * 0.8
        checked += 1
    assert checked >= 2


@pytest.mark.parametrize("name", ["flood", "battery-gone", "stick", "no-sync", "waves-5s"])
def test_every_tick_has_its_reasons(name: str) -> None:
    for _, device, _, said, why in played(name, 40.0):
        assert said.endswith(".") and "None" not in said
        assert not [step for step in why if "None" in step or "nan" in step]
        heads = [step.split(":", 1)[0] for step in why[: -len(device.steps)]]
        order = [("seen", "means", "law", "considered").index(head) for head in heads]
        assert order == sorted(order) and "seen" in heads and "means" in heads


def test_what_was_given_up_is_told_with_its_time() -> None:
    steps = played("battery-gone", 30.0)
    told = [why for _, _, _, _, why in steps if any("brought nothing" in step for step in why)]
    assert told, "no cache, and making room in it was never said to be given up"


def test_without_the_laws_memory_the_state_alone_speaks() -> None:
    decision = DeviceDecision("sda", State.PINNED, 1 << 20, "pinned by the admin", "sda#1")
    assert "release" in what_next(decision, None)


def _bytes(text: str) -> float:
    return float(float(text[:-1]) * 1024 ** " KMG".index(text[-1]))
