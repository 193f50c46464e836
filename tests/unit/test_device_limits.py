# SPDX-License-Identifier: GPL-2.0-or-later
"""The levers beside the global pair: caps per device, queue, flusher; and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

import pytest

from plant import DISK, HOST
from samples import estimate
from writebackd.control.decide import decide, rebounded, released
from writebackd.control.device_limits import DeviceLimits, plan_device_limits
from writebackd.estimate.limit_shares import reserved, shared_limit
from writebackd.kernel.bdi import WHOLE, fraction
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy
from writebackd.tuning import AGAIN_S, CACHE_S, DEADBAND, IN_FORCE, MOST_OWN, WAVE_S
from writebackd.types.core_memory import Cap, Memory, PaceMemory
from writebackd.types.decision import Decision, DeviceDecision, DeviceState, Mode, Rule
from writebackd.types.device_memory import DeviceMemory, Drain, LawMemory
from writebackd.types.estimate import Estimate
from writebackd.types.levers import Action, ForeignWrite, LeverKind, Setting, VmLimits
from writebackd.types.samples import DeviceSample, Sample, TaskSample, VmState

MB = 1 << 20
NOW = 5000.0
ARRAY = replace(DISK, name="sda", devno="8:0", bdi="8:0", leaves=("sda",), leaf_devnos=("8:0",))
# A volume on two disks, whose BDI has another name than the device.
VOLUME = replace(
    DISK, name="dm-0", devno="253:0", bdi="253:0", leaves=("sdb", "sdc"),
    leaf_devnos=("8:16", "8:32"),
)  # fmt: skip
TIGHT, LOOSE = 4 * MB, 400 * MB
SET = f"bdi {ARRAY.bdi} strict_limit"


def policy(**levers: object) -> Policy:
    """The default, with no lever but those that are named."""
    default = load_policy("default")
    none = replace(default.levers, per_device=False, pace="off")
    return replace(default, levers=replace(none, **levers))  # type: ignore[arg-type]


CAPS = policy(per_device=True)


def want(name: str, target: Optional[int] = TIGHT, demand: bool = True) -> DeviceDecision:
    return DeviceDecision(name, DeviceState.GUARD, target, "", demand=demand)


def sample(limit: int = TIGHT, actions: Sequence[Action] = (), now_s: float = NOW) -> Sample:
    return Sample(
        time_s=now_s, wall_s=now_s, dt_s=1.0, host=HOST,
        vm=VmState(VmLimits(limit, 0, 1, 0), 0, 0, limit, limit // 2),
        devices=(DeviceSample(ARRAY), DeviceSample(VOLUME)), actions=tuple(actions),
    )  # fmt: skip


def action(lever: str, ok: bool = True) -> Action:
    return Action(lever, "0", "1", ok, None if ok else "Invalid argument")


def memory(others_flood_s: float = NOW, **more: object) -> Memory:
    """The array flooded now, the volume at `others_flood_s`."""
    devices = {
        "sda": DeviceMemory(last_flood_s=NOW), "dm-0": DeviceMemory(last_flood_s=others_flood_s)
    }
    return replace(Memory(devices=devices), **more)  # type: ignore[arg-type]


# The array holds a database, the volume takes a backup.
WANTS = (want("sda"), want("dm-0", LOOSE, demand=False))


def asked(
    memory_: Memory, sample_: Sample = sample(),  # noqa: B008
    wants: Sequence[DeviceDecision] = WANTS, policy_: Policy = CAPS,
) -> DeviceLimits:  # fmt: skip
    return plan_device_limits(policy_, memory_, sample_, wants)


def names(result: DeviceLimits) -> List[str]:
    return [each.name for each in result.shared]


# ---- caps ------------------------------------------------------------------


def test_a_device_that_needs_a_tight_limit_beside_others_gets_it_alone() -> None:
    result = asked(memory())
    assert result.memory.caps == {"sda": Cap(TIGHT)}
    assert result.settings == (
        Setting(LeverKind.BDI, "8:0", "max_bytes", TIGHT),
        Setting(LeverKind.BDI, "8:0", "min_bytes", TIGHT // 2),
        Setting(LeverKind.BDI, "8:0", "strict_limit", 1),
    )


def test_the_cap_is_asked_for_under_the_name_of_the_bdi() -> None:
    volume = replace(VOLUME, bdi="btrfs-1")
    odd = replace(sample(), devices=(DeviceSample(ARRAY), DeviceSample(volume)))
    wants = (want("sda", LOOSE, demand=False), want("dm-0"))
    result = asked(memory(), odd, wants)
    assert {setting.target for setting in result.settings} == {"btrfs-1"}
    taken = replace(odd, actions=(action("bdi btrfs-1 strict_limit"),))
    assert asked(result.memory, taken, wants).memory.caps["dm-0"].in_force


def test_the_global_limit_meets_a_need_until_the_kernel_has_taken_the_cap() -> None:
    first = asked(memory())
    assert names(first) == ["sda", "dm-0"]
    for not_yet in ("bdi 8:0 max_bytes", "bdi 253:0 strict_limit", "queue 8:0 strict_limit"):
        waiting = asked(first.memory, sample(actions=[action(not_yet)]))
        assert names(waiting) == ["sda", "dm-0"] and not waiting.memory.caps["sda"].in_force
    taken = asked(first.memory, sample(actions=[action(SET)]))
    assert names(taken) == ["dm-0"]
    assert taken.memory.caps == {"sda": Cap(TIGHT, in_force=True)}
    # It stays taken, although the kernel is not written to again.
    assert names(asked(taken.memory, sample(limit=LOOSE))) == ["dm-0"]


def test_the_global_limit_comes_down_before_there_is_a_cap() -> None:
    above = asked(memory(), sample(limit=int(1.01 * IN_FORCE * TIGHT)))
    assert above.memory.caps == {} and above.settings == ()
    assert asked(memory(), sample(limit=int(0.99 * IN_FORCE * TIGHT))).memory.caps


def test_without_need_there_is_no_cap() -> None:
    assert asked(memory(), wants=(want("sda", demand=False),)).memory.caps == {}
    assert asked(memory(), wants=(want("sda", None),)).memory.caps == {}


def test_a_device_gets_its_cap_before_it_is_flooded_itself() -> None:
    # A database that only syncs: the limit would bind the backup on another disk, too.
    dry = {"sda": DeviceMemory(), "dm-0": DeviceMemory(last_flood_s=NOW)}
    assert set(asked(memory(devices=dry)).memory.caps) == {"sda"}
    # Not for a flood that is long over.
    over = {**dry, "dm-0": DeviceMemory(last_flood_s=NOW - 1.1 * 2 * WAVE_S)}
    assert asked(memory(devices=over)).memory.caps == {}


@pytest.mark.parametrize("itself", [True, False], ids=["flooded", "not-flooded"])
@pytest.mark.parametrize("known", [True, False], ids=["has-one", "has-none"])
def test_a_flood_from_another_volume_of_the_same_disk_rules_a_cap_out(
    itself: bool, known: bool
) -> None:
    # Under a wide global limit it would go free, and its queue is the one that syncs wait in.
    caps = {"sda": Cap(TIGHT, in_force=True)} if known else {}
    neighbour = replace(
        VOLUME, name="dm-1", devno="253:1", bdi="253:1", leaves=("sdd", "sda"),
        leaf_devnos=("8:48", "8:0"),
    )  # fmt: skip
    three = replace(sample(), devices=(*sample().devices, DeviceSample(neighbour)))
    wants = (*WANTS, want("dm-1", LOOSE, demand=False))
    for since, capped in ((0.9 * 2 * WAVE_S, False), (1.1 * 2 * WAVE_S, True)):
        devices = {
            "sda": DeviceMemory(last_flood_s=NOW) if itself else DeviceMemory(),
            "dm-0": DeviceMemory(last_flood_s=NOW),
            "dm-1": DeviceMemory(last_flood_s=NOW - since),
        }
        result = asked(memory(devices=devices, caps=caps), three, wants)
        assert set(result.memory.caps) == ({"sda"} if capped else set())
        assert ("sda" in names(result)) is not (capped and known)


def test_writers_without_a_device_are_others() -> None:
    nfs = TaskSample(7, "cp", 1, None, MB, throttled_s=0.7)
    alone = memory(others_flood_s=float("-inf"))
    busy = asked(alone, replace(sample(), tasks=(nfs,)))
    assert busy.memory.caps == {"sda": Cap(TIGHT)}
    # Between two of its waves as well, and not for ever; and less is no flood.
    assert asked(busy.memory, sample(now_s=NOW + 1)).memory.caps == {"sda": Cap(TIGHT)}
    # Nobody needs another limit whom this one does not hold: until there is a cap, under which
    # he goes on without a pause.
    free = replace(sample(), tasks=(replace(nfs, throttled_s=0.5),))
    assert asked(alone, free).memory.caps == {}
    held = {"sda": Cap(TIGHT, in_force=True)}
    assert asked(replace(alone, caps=held), free).memory.others_s == NOW
    later = replace(memory(others_flood_s=float("-inf")), others_s=NOW - 300)
    assert asked(later).memory.caps == {}
    little = replace(sample(), tasks=(replace(nfs, dirtied_bytes=MB - 1),))
    assert asked(alone, little).memory.caps == {}


def test_a_device_alone_has_no_cap() -> None:
    lately, long_ago = NOW - 0.9 * 2 * WAVE_S, NOW - 1.1 * 2 * WAVE_S
    assert asked(memory(lately)).memory.caps and not asked(memory(long_ago)).memory.caps
    held = {"sda": Cap(TIGHT, in_force=True)}
    assert asked(memory(lately, caps=held)).memory.caps == held
    alone = asked(memory(long_ago, caps=held))
    assert alone.memory.caps == {} and alone.settings == () and names(alone) == ["sda", "dm-0"]


def test_a_cap_ends_with_the_need_but_not_with_the_flood() -> None:
    held = memory(caps={"sda": Cap(TIGHT, in_force=True)})
    assert asked(held, wants=(want("sda", demand=False),)).memory.caps == {}
    assert asked(held, wants=(want("sda", None),)).memory.caps == {}
    assert asked(held).memory.caps == held.caps


def test_of_several_needs_the_tightest_is_capped_first() -> None:
    wants = (want("sda", 2 * TIGHT), want("dm-0", TIGHT))
    both = asked(memory(), sample(limit=TIGHT), wants)
    assert set(both.memory.caps) == {"dm-0"}
    # With that one in force the next one is.
    wider = asked(
        replace(both.memory, caps={"dm-0": Cap(TIGHT, in_force=True)}), sample(limit=TIGHT), wants
    )
    assert set(wider.memory.caps) == {"sda", "dm-0"}
    # Who has no demand, or no target, has no need.
    for other in (want("dm-0", MB, demand=False), want("dm-0", None)):
        assert set(asked(memory(), wants=(want("sda"), other)).memory.caps) == {"sda"}


def test_a_cap_follows_its_device_but_not_every_tick() -> None:
    held = memory(caps={"sda": Cap(TIGHT, in_force=True)})
    near = asked(held, wants=(want("sda", int(TIGHT * (1 + 0.9 * DEADBAND))), WANTS[1]))
    assert near.memory.caps == held.caps
    more = int(TIGHT * (1 + 1.1 * DEADBAND))
    moved = asked(held, wants=(want("sda", more), WANTS[1]))
    assert moved.memory.caps == {"sda": Cap(more, in_force=True)}
    assert moved.settings[0].value == more


@pytest.mark.parametrize("name", ["max_bytes", "min_bytes", "strict_limit"])
def test_a_cap_that_the_kernel_refused_is_dropped_and_not_tried_again(name: str) -> None:
    held = memory(caps={"sda": Cap(TIGHT)})
    refused = asked(held, sample(actions=[action(SET), action(f"bdi 8:0 {name}", ok=False)]))
    assert refused.memory.caps == {} and refused.settings == ()
    assert names(refused) == ["sda", "dm-0"]
    assert refused.memory.refused_caps == {"8:0": NOW}
    later = asked(refused.memory)
    assert later.memory.caps == {} and later.memory.refused_caps == {"8:0": NOW}


def test_a_refusal_passes() -> None:
    # An earlier test on its way home, a ledger that could not be saved.
    for since, capped in ((0.99 * AGAIN_S, False), (1.01 * AGAIN_S, True)):
        known = {"8:0": NOW - since}
        result = asked(memory(refused_caps=known))
        assert set(result.memory.caps) == ({"sda"} if capped else set())
        assert result.memory.refused_caps == ({} if capped else known)
    # From the last one on.
    again = sample(actions=[action(SET, ok=False)])
    once = memory(refused_caps={"8:0": NOW - 0.99 * AGAIN_S})
    assert asked(once, again).memory.refused_caps == {"8:0": NOW}


@pytest.mark.parametrize(
    "lever,let_go",
    [("bdi 8:0 max_bytes", True), ("bdi 8:0 strict_limit", True), ("bdi 253:0 max_bytes", False),
     ("queue 8:0 nr_requests", False), ("dirty_bytes", False)],
)  # fmt: skip
def test_a_cap_that_somebody_else_changed_is_let_go(lever: str, let_go: bool) -> None:
    held = memory(caps={"sda": Cap(TIGHT, in_force=True)})
    changed = replace(sample(), foreign=(ForeignWrite(lever, "99"),))
    result = asked(held, changed)
    assert result.memory.caps == ({} if let_go else held.caps)
    assert ("8:0" in result.memory.refused_caps) is let_go
    # And not fought for in the ticks after it.
    assert bool(asked(result.memory).memory.caps) is not let_go
    assert ("sda" in names(result)) is let_go


def test_nothing_comes_into_force_where_nothing_is_written() -> None:
    taken = sample(actions=[action(SET)])
    for mode, in_force in ((Mode.OBSERVE, False), (Mode.ENFORCE, True)):
        result = asked(memory(caps={"sda": Cap(TIGHT)}, mode=mode), taken)
        assert result.memory.caps == {"sda": Cap(TIGHT, in_force)}
        assert ("sda" in names(result)) is not in_force


def test_what_else_failed_is_no_refused_cap() -> None:
    other = sample(actions=[action("queue sda nr_requests", ok=False), action("bdi 8:0 max_bytes"),
                            action("dirty_bytes", ok=False)])  # fmt: skip
    result = asked(memory(), other)
    assert result.memory.refused_caps == {} and set(result.memory.caps) == {"sda"}


def test_a_refused_cap_of_another_device_does_not_matter() -> None:
    result = asked(memory(refused_caps={"253:0": NOW}))
    assert set(result.memory.caps) == {"sda"}


def test_without_the_lever_there_are_no_caps() -> None:
    held = memory(caps={"sda": Cap(TIGHT, in_force=True)})
    result = asked(held, policy_=policy())
    assert result.settings == () and result.memory.caps == {} and names(result) == ["sda", "dm-0"]


# ---- a ceiling of its own ----------------------------------------------------


STICK = replace(
    DISK, name="sdz", devno="65:144", bdi="65:144", leaves=("sdz",), leaf_devnos=("65:144",),
    driver="usb-storage",
)  # fmt: skip
MOST = 48 * MB  # of policies/desktop.conf
DESKTOP = load_policy("desktop")
FOUND = 4096 * MB
NEVER = float("-inf")


def plugged_in(limit: int = FOUND, actions: Sequence[Action] = ()) -> Sample:
    return replace(sample(limit, actions), devices=(DeviceSample(ARRAY), DeviceSample(STICK)))


def stick(target: Optional[int] = None, demand: bool = False) -> DeviceDecision:
    return want(STICK.name, target, demand)


def with_stick(flooded_s: float = NEVER, **more: object) -> Memory:
    devices = {"sda": DeviceMemory(), STICK.name: DeviceMemory(last_flood_s=flooded_s)}
    return replace(Memory(devices=devices), **more)  # type: ignore[arg-type]




def own(
    memory_: Memory,
    sample_: Sample = plugged_in(),  # noqa: B008
    wants: Sequence[DeviceDecision] = (want("sda", None, demand=False), stick()),
    policy_: Policy = DESKTOP,
) -> DeviceLimits:
    return asked(memory_, sample_, wants, policy_)


def test_a_device_with_a_ceiling_of_its_own_is_capped_before_anybody_writes_to_it() -> None:
    result = own(with_stick())
    assert result.memory.caps == {STICK.name: Cap(MOST, standing=True)}
    assert [(s.target, s.name, s.value) for s in result.settings] == [
        (STICK.bdi, "max_bytes", MOST), (STICK.bdi, "min_bytes", MOST // 2),
        (STICK.bdi, "strict_limit", 1)]
    taken = own(result.memory, plugged_in(actions=[action(f"bdi {STICK.bdi} strict_limit")]))
    assert taken.memory.caps == {STICK.name: Cap(MOST, in_force=True, standing=True)}
    assert names(taken) == ["sda"]


def test_what_it_asks_for_itself_makes_its_cap_smaller() -> None:
    held = with_stick(caps={STICK.name: Cap(MOST, True, True)})
    for demand in (False, True):
        wants = (want("sda", None, demand=False), stick(MOST // 2, demand))
        assert own(held, wants=wants).memory.caps == {STICK.name: Cap(MOST // 2, True, True)}
    wants = (want("sda", None, demand=False), stick(2 * MOST))
    assert own(held, wants=wants).memory.caps == held.caps


def test_a_flooded_one_that_needs_less_waits_for_the_global_limit() -> None:
    """Its cap lowered at once would stop its writers until the rest has drained."""
    held = with_stick(NOW, caps={STICK.name: Cap(MOST, True, True)})
    wants = (want("sda", None, demand=False), stick(TIGHT, demand=True))
    result = own(held, wants=wants)
    assert result.memory.caps == {} and names(result) == ["sda", STICK.name]
    # Once it has come down, and only beside another flood, as any device.
    beside_it = replace(
        result.memory, devices={**held.devices, "sda": DeviceMemory(last_flood_s=NOW)}
    )
    assert own(beside_it, wants=wants).memory.caps == {}
    arrived = own(beside_it, plugged_in(TIGHT), wants)
    assert arrived.memory.caps == {STICK.name: Cap(TIGHT)}


def test_the_cap_of_the_run_before_is_the_one_of_the_policy() -> None:
    held = with_stick(caps={STICK.name: Cap(MOST, True)}, hold_until_s=NOW + 1.0)
    assert own(held).memory.caps == {STICK.name: Cap(MOST, True, standing=True)}


def test_its_writers_are_not_stopped_in_mid_flood() -> None:
    assert own(with_stick(NOW)).memory.caps == {}
    assert own(with_stick(NOW), plugged_in(int(IN_FORCE * MOST))).memory.caps != {}
    assert own(with_stick(NOW, caps={STICK.name: Cap(MOST, True, True)})).memory.caps != {}


def test_sticks_are_promised_little_of_a_small_limit() -> None:
    result = own(with_stick(), plugged_in(4 * MB))
    least = {s.name: s.value for s in result.settings}["min_bytes"]
    assert least <= 4 * MB // 16
    # Of the limit that this very tick may lower.
    wants = (want("sda", TIGHT), stick())
    settings = own(with_stick(), wants=wants).settings
    assert {s.name: s.value for s in settings}["min_bytes"] <= TIGHT // 16


@pytest.mark.parametrize("count", [3, 31, 40])
def test_many_of_them_are_promised_half_of_the_limit_at_most(count: int) -> None:
    """The kernel refuses minima of 100 % together, and a cap with them."""
    sticks = [replace(STICK, name=f"s{i}", devno=f"65:{i}", bdi=f"65:{i}") for i in range(count)]
    many = replace(plugged_in(), devices=tuple(map(DeviceSample, sticks)))
    known = replace(Memory(), devices={each.name: DeviceMemory() for each in sticks})
    wants = [want(each.name, None, demand=False) for each in sticks]
    settings = asked(known, many, wants, DESKTOP).settings
    assert sum(s.value for s in settings if s.name == "min_bytes") <= FOUND // 2
    assert len(settings) // 3 == min(count, MOST_OWN)


@pytest.mark.parametrize("limit", [8 * TIGHT, TIGHT, TIGHT // 4])
@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_minima_of_any_number_of_caps_are_half_of_the_lowest_limit_at_most(
    count: int, limit: int
) -> None:
    """Also where they were set under a larger one; a stick of its own ceiling is among them."""
    arrays = [
        replace(ARRAY, name=f"s{i}", devno=f"65:{i}", bdi=f"65:{i}", leaf_devnos=(f"65:{i}",))
        for i in range(count)
    ]
    devices = (*arrays, STICK)
    many = replace(sample(limit), devices=tuple(map(DeviceSample, devices)))
    wants = [*(want(each.name, TIGHT) for each in arrays), stick()]
    known = replace(
        Memory(), devices={each.name: DeviceMemory(last_flood_s=NOW) for each in devices},
        caps={each.name: Cap(TIGHT, in_force=True) for each in arrays},
    )  # fmt: skip
    result = asked(known, many, wants, DESKTOP)
    minima = [s.value for s in result.settings if s.name == "min_bytes"]
    assert len(minima) >= count
    assert sum(fraction(each, min(limit, TIGHT)) for each in minima) <= WHOLE // 2 + len(minima)


def test_a_ceiling_that_all_have_is_no_cap() -> None:
    assert own(with_stick(), policy_=CAPS).memory.caps == {}
    off = replace(DESKTOP, levers=replace(DESKTOP.levers, per_device=False))
    assert own(with_stick(), policy_=off).memory.caps == {}
    excluded = replace(plugged_in(), devices=(
        DeviceSample(ARRAY), DeviceSample(STICK, excluded="by hand")))
    assert own(with_stick(), excluded).memory.caps == {}


def test_the_global_limit_has_room_for_what_a_flooded_stick_may_hold() -> None:
    caps = {STICK.name: Cap(MOST, True, True)}
    assert own(with_stick(NOW, caps=caps)).reserve == MOST
    assert own(with_stick(NOW - 1.1 * CACHE_S, caps=caps)).reserve == 0
    # What is left of it is what the others' rates are seen under.
    held = with_stick(NOW, caps=caps)
    assert shared_limit(held, plugged_in(MOST + TIGHT)) == TIGHT
    assert shared_limit(held, plugged_in(MOST)) == MOST
    assert own(with_stick(NOW, caps={STICK.name: Cap(MOST, False, True)})).reserve == 0
    gone = replace(with_stick(NOW, caps=caps), devices={"sda": DeviceMemory()})
    assert reserved(gone, NOW) == 0
    # With that room taken off, another device's limit has arrived and it gets its own cap.
    wants = (want("sda", TIGHT), stick())
    for limit, arrived in ((int(IN_FORCE * TIGHT) + MOST, True), (2 * TIGHT + MOST, False)):
        found = own(with_stick(NOW, caps=caps), plugged_in(limit), wants)
        assert ("sda" in found.memory.caps) is arrived


def test_a_need_beside_a_flooded_stick_is_met_above_what_that_holds() -> None:
    memory_ = with_stick(NOW, caps={STICK.name: Cap(MOST, True, True)})
    held = replace(memory_.devices["sda"], law=HELD, target_bytes=TIGHT)
    devices = {**memory_.devices, "sda": held}
    estimates = {"sda": database(), STICK.name: estimate(STICK.name, flooded=True)}
    decision, _ = decide(DESKTOP, replace(memory_, devices=devices), plugged_in(TIGHT + MOST),
                         estimates)
    # The law sees the limit that is left for the device: the one that it asked for.
    assert decision.devices[0].rule is not Rule.COMING
    assert decision.devices[0].target_bytes is not None
    assert decision.goal_bytes == decision.devices[0].target_bytes + MOST


@pytest.mark.parametrize("hands", [{"yielded": "somebody else"}, {"pin_bytes": 8 * MB}])
def test_nothing_is_asked_for_while_the_admin_decides(hands: Dict[str, object]) -> None:
    assert asked(memory()).settings
    held = memory(caps={"sda": Cap(TIGHT, in_force=True)})
    result = asked(replace(held, **hands))  # type: ignore[arg-type]
    assert result.settings == () and result.memory.caps == {}
    assert names(result) == ["sda", "dm-0"]


# ---- in the decision -------------------------------------------------------

RATE = 250.0 * MB
HELD = LawMemory(TIGHT, written_s=NOW)  # changed just now, so it stays


def database(**more: object) -> Estimate:
    usual = estimate(
        "sda", flooded=True, demand=True, held_back=True, rate=RATE, drain_rate=RATE,
        fsync_p99_s=1e-3,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def backup(**more: object) -> Estimate:
    usual = estimate("dm-0", flooded=True, held_back=True, rate=RATE, drain_rate=RATE)
    return replace(usual, **more)  # type: ignore[arg-type]


def decided(
    memory_: Memory, sample_: Sample, first: Estimate, policy_: Policy = CAPS
) -> Tuple[Decision, Memory]:
    devices = {**memory_.devices}
    devices["sda"] = replace(devices["sda"], law=HELD)
    return decide(
        policy_, replace(memory_, devices=devices), sample_, {"sda": first, "dm-0": backup()}
    )


def test_a_device_that_is_drained_beside_others_gets_the_floor_alone() -> None:
    quiet = database(demand=False)
    drained = memory(draining=("sda",))
    decision, kept = decided(drained, sample(limit=LOOSE), quiet)
    floor = CAPS.limits.floor_bytes
    assert decision.goal_bytes == floor
    decision, kept = decided(kept, sample(limit=floor), quiet)
    assert Setting(LeverKind.BDI, "8:0", "max_bytes", floor) in decision.settings
    decision, _ = decided(kept, sample(limit=floor, actions=[action(SET)]), quiet)
    assert decision.goal_bytes is not None and decision.goal_bytes > 10 * floor
    assert next(each.target_bytes for each in decision.devices) == floor


def test_global_limit_down_then_cap_then_global_limit_up_again() -> None:
    # Down: while it is high there is no cap.
    decision, kept = decided(memory(), sample(limit=LOOSE), database())
    assert decision.goal_bytes == TIGHT and decision.settings == ()
    # The cap, and the limit still down.
    decision, kept = decided(kept, sample(limit=TIGHT), database())
    assert [s.name for s in decision.settings] == ["max_bytes", "min_bytes", "strict_limit"]
    assert decision.goal_bytes == decision.limit_bytes == TIGHT
    decision, kept = decided(kept, sample(limit=TIGHT), database())
    assert decision.goal_bytes == TIGHT
    # Taken: up to what the backup wants.
    decision, kept = decided(kept, sample(limit=TIGHT, actions=[action(SET)]), database())
    assert decision.goal_bytes is not None and decision.goal_bytes > 10 * TIGHT
    assert decision.settings and decision.limit_bytes is not None
    assert TIGHT < decision.limit_bytes <= TIGHT * CAPS.limits.step_up
    # Refused after all: down again at once, and no more caps.
    failed = sample(limit=LOOSE, actions=[action("bdi 8:0 max_bytes", ok=False)])
    decision, kept = decided(kept, failed, database())
    assert decision.goal_bytes == decision.limit_bytes == TIGHT and decision.settings == ()


@pytest.mark.parametrize("mode, host, own", [
    (Mode.ENFORCE, "original limits", "48M"),
    (Mode.OBSERVE, "no limit needed", "enforce would set 48M"),
])
def test_who_needs_no_limit_names_its_ceiling(mode: Mode, host: str, own: str) -> None:
    quiet = {name: estimate(name) for name in ("sda", STICK.name)}
    held = with_stick(mode=mode, caps={STICK.name: Cap(MOST, standing=True)})
    ready = plugged_in(actions=[action(f"bdi {STICK.bdi} strict_limit")])
    decision, _ = decide(DESKTOP, held, ready, quiet)
    assert decision.reason == f"no sync demand and no flood: {host}"
    assert decision.devices[1].reason == f"{decision.reason}, except its ceiling: {own}"


def test_under_another_policy_a_cap_stays_where_it_may() -> None:
    held = memory(caps={"sda": Cap(TIGHT, in_force=True)}, goal_bytes=LOOSE)
    again = rebounded(held)
    decision, kept = decided(again, sample(limit=LOOSE), database())
    assert kept.caps == held.caps and len(decision.settings) == 3
    assert decision.goal_bytes is not None and decision.goal_bytes > 10 * TIGHT
    # Where it has none, the global limit is what the device needs.
    decision, kept = decided(again, sample(limit=LOOSE), database(), policy())
    assert kept.caps == {} and decision.settings == () and decision.goal_bytes == TIGHT


def test_what_was_put_back_is_not_believed_to_be_in_force() -> None:
    # Into OBSERVE: the daemon puts everything back, and the next ticks only say what they would do.
    held = memory(
        caps={"sda": Cap(TIGHT, in_force=True)}, refused_caps={"253:0": NOW}, limit_bytes=LOOSE,
        goal_bytes=LOOSE, background_bytes=LOOSE // 2, hold_until_s=NOW + 99,
        paces={"8:0": PaceMemory()}, pin_bytes=7 * MB,
    )  # fmt: skip
    put_back = released(held)
    assert put_back == memory(pin_bytes=7 * MB)  # what was learned and asked for stays
    observed = replace(put_back, mode=Mode.OBSERVE, pin_bytes=None)
    for _ in range(3):
        decision, observed = decided(observed, sample(actions=[action(SET)]), database())
        assert decision.goal_bytes == TIGHT
        assert observed.caps == {"sda": Cap(TIGHT)}
    # Had it believed in the cap, the device's need would be met already.
    decision, _ = decided(replace(held, pin_bytes=None), sample(), database())
    assert decision.goal_bytes is not None and decision.goal_bytes > 10 * TIGHT


def test_under_a_cap_the_law_judges_the_cap_and_not_the_global_limit() -> None:
    devices = {**memory().devices}
    devices["sda"] = DeviceMemory(
        last_flood_s=NOW, target_bytes=TIGHT, law=LawMemory(TIGHT, written_s=NOW - 5),
        drain=Drain(rate=RATE, full_s=10.0, full_ticks=(RATE,)),
    )  # fmt: skip
    for in_force in (True, False):
        before = memory(devices=devices, caps={"sda": Cap(TIGHT, in_force)})
        decision, _ = decide(
            CAPS, before, sample(limit=LOOSE), {"sda": database(full=True), "dm-0": backup()}
        )
        assert (decision.devices[0].rule is Rule.COMING) is not in_force


# ---- hurry -----------------------------------------------------------------


@pytest.mark.parametrize("first,hurry", [
    (database(), True),
    (database(flooded=False), False),
    (database(demand=False), False),
    (database(demand=False, flooded=False), False),
], ids=["flood-and-demand", "demand", "flood", "neither"])  # fmt: skip
def test_it_looks_again_sooner_while_somebody_waits_behind_a_flood(
    first: Estimate, hurry: bool
) -> None:
    # The other device's flood is nobody's who waits.
    decision, after = decided(memory(), sample(), first, policy())
    assert decision.hurry is after.hurry is hurry


def test_there_is_no_hurry_once_the_hands_are_off() -> None:
    decision, after = decided(memory(yielded="somebody"), sample(), database(), policy())
    assert decision.limit_bytes is None and not (decision.hurry and not after.hurry)


def test_a_goal_that_moved_by_less_than_the_deadband_moves_nothing() -> None:
    was = int(TIGHT * (1 + 0.9 * DEADBAND))
    kept = memory(goal_bytes=was, limit_bytes=was, background_bytes=was // 2)
    decision, after = decided(kept, sample(limit=was), database(), policy())
    assert decision.limit_bytes == decision.goal_bytes == was
    assert (after.limit_bytes, after.goal_bytes, after.background_bytes) == (was, was, was // 2)
    far = int(TIGHT * (1 + 1.2 * DEADBAND))
    decision, _ = decided(memory(goal_bytes=far, limit_bytes=far), sample(), database(), policy())
    assert decision.limit_bytes == decision.goal_bytes == TIGHT


def test_after_a_step_up_the_next_one_waits_for_the_cooldown() -> None:
    low = TIGHT // 4  # the floor
    decision, kept = decided(memory(), sample(limit=low), database(), policy())
    assert decision.limit_bytes == low * CAPS.limits.step_up and kept.last_raise_s == NOW
    soon = sample(limit=2 * low, now_s=NOW + 0.9 * CAPS.limits.cooldown_s)
    decision, kept = decided(kept, soon, database(), policy())
    assert decision.limit_bytes == 2 * low and kept.last_raise_s == NOW
    later = sample(limit=2 * low, now_s=NOW + CAPS.limits.cooldown_s)
    decision, kept = decided(kept, later, database(), policy())
    assert decision.limit_bytes == 2 * low * CAPS.limits.step_up
