# SPDX-License-Identifier: GPL-2.0-or-later
"""What one device asks for: the law within its bounds, and what holds without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

import samples
from plant import DISK
from writebackd.control import reasons
from writebackd.control.device_decision import decide_device
from writebackd.policy import load_policy
from writebackd.policy.schema import DevicePolicy
from writebackd.tuning import BURST_S, RELEASE_S, SHOWN_S
from writebackd.types.decision import Basis, DeviceDecision, DeviceState, Rule
from writebackd.types.device_memory import DeviceMemory, Drain, LawMemory
from writebackd.types.estimate import Estimate

MB = 1 << 20
R = 256.0 * MB
LIMIT = 4.0 * MB
NOW, DT_S = 1000.0, 0.5
POLICY = load_policy("default")
OWN = POLICY.of(DISK)
LEAST = MB // 4  # what the kernel's counting allows


def flood(**more: object) -> Estimate:
    usual = samples.estimate(
        "sda", flooded=True, demand=True, held_back=True, full=True, drain_rate=R,
        commit_p99_s=1e-3, background_rate=R, rate=R,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def memory(
    law: LawMemory = LawMemory(LIMIT), full_s: float = 5.0, rate: float = R  # noqa: B008
) -> DeviceMemory:
    """A flood at `rate` under LIMIT, of which syncs cost a tenth."""
    d = Drain(rate=rate, sync_rate=100.0, lost_s=0.1, syncs=100.0, full_s=max(0.0, full_s),
              room_s=max(0.0, -full_s),
              full_ticks=(rate,) * round(SHOWN_S / DT_S))  # fmt: skip
    return DeviceMemory(drain_rate=R, drain=d, law=law, last_flood_s=NOW, flood_began_s=NOW - 60)


def decided(
    seen: Estimate, before: Optional[DeviceMemory] = None, in_force: float = LIMIT,
    own: DevicePolicy = OWN, most: Optional[int] = None, least: int = LEAST, pace: float = 0.0,
) -> "tuple[DeviceDecision, DeviceMemory]":  # fmt: skip
    before = memory() if before is None else before
    return decide_device(
        POLICY, own, least, NOW, DT_S, int(in_force), seen, before, most, pace=pace or None
    )


def basis(want: DeviceDecision) -> Basis:
    assert want.basis is not None
    return want.basis


# ---- bounds ----------------------------------------------------------------


def test_the_floor_is_the_policys_or_what_the_kernel_can_count() -> None:
    for policys, kernels in ((8, 2), (2, 8)):
        own = replace(OWN, floor_bytes=policys * MB)
        want, _ = decided(flood(), own=own, least=kernels * MB)
        assert basis(want).floor_bytes == 8 * MB == want.target_bytes


def test_no_limit_is_larger_than_memory_allows() -> None:
    most = 64 * MB
    for seen, before in (
        (flood(drain_rate=1e12), memory()),
        (flood(demand=False), memory()),
        (flood(demand_known=False, demand=False, drain_rate=1e12), memory()),
    ):
        assert decided(seen, before, most=most)[0].target_bytes == most
        free, _ = decided(seen, before)
        assert free.target_bytes is not None and free.target_bytes > most
        # Nor is the policy's own ceiling.
        low = replace(OWN, ceiling_bytes=most // 2)
        assert decided(seen, before, own=low, most=most)[0].target_bytes == most // 2
    # What the kernel cannot count is no limit, however little memory there is.
    tiny, _ = decided(flood(), most=MB, least=8 * MB)
    assert tiny.target_bytes == 8 * MB


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_of_a_shared_limit_it_judges_its_own_part(share: float) -> None:
    seen = flood(limit_share=share)
    want, after = decided(seen, in_force=LIMIT / share)
    assert want.rule is Rule.KNEE
    # And all ask for the whole.
    assert after.law.limit_bytes == pytest.approx(4.096 * MB)
    assert want.target_bytes == pytest.approx(4.096 * MB / share, rel=1e-6)
    assert decided(seen, in_force=0.5 * LIMIT / share)[0].rule is Rule.COMING
    low = replace(OWN, floor_bytes=8 * MB)
    assert basis(decided(seen, own=low)[0]).floor_bytes == 8 * MB * share


@pytest.mark.parametrize("prefer,delay_s,limit,paced", [
    ("latency", 8e-3, 2.048, "25 %"), ("balanced", 16e-3, 4.096, "25 %"),
    ("throughput", 32e-3, 8.192, "14 %"),
])  # fmt: skip
def test_what_is_preferred_halves_or_doubles_the_delay(
    prefer: str, delay_s: float, limit: float, paced: str
) -> None:
    policy = replace(POLICY, objective=replace(POLICY.objective, prefer=prefer))
    want, _ = decide_device(policy, OWN, LEAST, NOW, DT_S, int(LIMIT), flood(), memory())
    assert want.target_bytes == int(limit * MB) and basis(want).delay_s == delay_s
    # Under a pace it is a share of R, so far as the flood keeps its own.
    want, _ = decide_device(
        policy, OWN, LEAST, NOW, DT_S, int(LIMIT), flood(), memory(), pace=0.9 * R
    )
    assert want.reason == f"fsyncs take 10 % of 256M/s, {paced} allowed"
    assert basis(want).delay_s is None and want.state is DeviceState.PACE


@pytest.mark.parametrize("alone_ms,delay_s,limit", [
    (None, 16e-3, 4.096), (3.0, 16e-3, 4.096), (7.0, 35e-3, 8.96),
])  # fmt: skip
def test_where_a_commit_alone_takes_long_it_is_what_drains_in_five_of_them(
    alone_ms: Optional[float], delay_s: float, limit: float
) -> None:
    seen = flood(baseline_s=alone_ms and alone_ms / 1e3)
    want, _ = decided(seen)
    assert want.target_bytes == int(limit * MB) and basis(want).delay_s == pytest.approx(delay_s)
    strict = replace(OWN, baseline_multiple=3.0)
    assert decided(seen, own=strict)[0].target_bytes == int(4.096 * MB)


def test_under_a_pace_the_policy_says_what_the_flood_keeps_while_there_is_room() -> None:
    paces = []
    for keep in (0.9, 0.7):
        policy = replace(POLICY, objective=replace(POLICY.objective, keep_throughput=keep))
        own, before = replace(POLICY.levers, pace_share=0.5), memory(full_s=0.0)
        want, _ = decide_device(
            replace(policy, levers=own), OWN, LEAST, NOW, DT_S, int(LIMIT), flood(), before,
            pace=0.9 * R,
        )  # fmt: skip
        paces.append((want.rule, 0.9 * want.pace_by))
    assert [rule for rule, _ in paces] == [Rule.ROOM, Rule.ROOM]
    assert [pace for _, pace in paces] == pytest.approx([0.9, 0.75], rel=0.01)


# ---- the law's ticks -------------------------------------------------------


def test_it_begins_with_what_drains_in_the_allowed_delay() -> None:
    new = memory(LawMemory())
    want, _ = decided(flood(), new, in_force=1 << 40)
    first = R * OWN.allowed_delay_s
    assert want.target_bytes == pytest.approx(first) and first != OWN.rest_bytes
    for bound in ("floor_bytes", "ceiling_bytes"):
        own = replace(OWN, **{bound: 2 * int(first) if bound[0] == "f" else int(first) // 2})
        assert decided(flood(), new, own=own, in_force=1 << 40)[1].law.limit_bytes == getattr(
            own, bound
        )
    unknown, _ = decided(flood(drain_rate=None), new, in_force=1 << 40)
    assert unknown.target_bytes == OWN.rest_bytes
    # That is the part of each; only what is more by the device's own section is shared.
    for rest, part in ((POLICY.limits.rest_bytes, POLICY.limits.rest_bytes), (64 * MB, 32 * MB)):
        own = replace(OWN, rest_bytes=rest)
        shared = flood(drain_rate=None, limit_share=0.5)
        assert decided(shared, new, own=own, in_force=1 << 40)[1].law.limit_bytes == part


@pytest.mark.parametrize("limit,ticks,shown_mb", [
    (8.0, 6, 256.0), (8.0, 5, None),
    # 4 MB are worth 16 ms of it, and may hold it.
    (4.0, 6, None),
])  # fmt: skip
def test_three_seconds_of_a_full_cache_show_the_drain_rate_under_a_limit_that_lets_it_in(
    limit: float, ticks: int, shown_mb: Optional[float]
) -> None:
    before = replace(memory(LawMemory(limit * MB)), drain_rate=None)
    before = replace(before, drain=replace(before.drain, full_ticks=(R,) * ticks))
    seen = flood(drain_rate=None)
    want, after = decided(seen, before, in_force=limit * MB)
    assert want.rule in (Rule.MEASURE, Rule.SEEK)
    assert after.drain_rate == (None if shown_mb is None else shown_mb * MB)
    # Not under a limit of somebody else's, which may be the one that holds it.
    assert decided(seen, before, in_force=0.7 * limit * MB)[1].drain_rate is None
    # What a smaller one let in is forgotten.
    assert (after.drain.full_ticks == ()) is (shown_mb is None)


def test_only_at_the_floor_a_missed_objective_is_the_end() -> None:
    low = replace(OWN, floor_bytes=6 * MB)
    late = flood(commit_p99_s=1.0)
    assert decided(late, own=low)[0].state is DeviceState.EXHAUSTED
    assert decided(flood(), own=low)[0].state is DeviceState.GUARD
    assert decided(late)[0].state is DeviceState.GUARD


# ---- without the law -------------------------------------------------------


def test_without_demand_a_flood_is_relaxed_and_soon_after_it_the_limits_are_as_found() -> None:
    for ago_s, relaxed in ((0.9 * RELEASE_S, True), (1.1 * RELEASE_S, False)):
        before = replace(memory(), last_flood_s=NOW - ago_s, flood_began_s=NOW - 60.0)
        want, _ = decided(flood(demand=False, flooded=False), before)
        assert (want.rule is Rule.RELAXED) is relaxed
        assert want.target_bytes == (R * OWN.drain_time_s if relaxed else None)
    burst = replace(memory(), flood_began_s=NOW - 0.9 * BURST_S)
    assert decided(flood(demand=False), burst)[0].rule is Rule.AS_FOUND
    unknown, _ = decided(flood(demand=False, drain_rate=None))
    assert unknown.rule is Rule.AS_FOUND
    assert unknown.reason == reasons.without_demand(flooded_lately=True)


def test_blind_it_never_asks_for_less_than_it_may_begin_with() -> None:
    blind = flood(demand_known=False, demand=False)
    slow = replace(blind, drain_rate=float(MB))
    assert decided(slow)[0].target_bytes == POLICY.limits.rest_bytes
    assert decided(slow, least=64 * MB)[0].target_bytes == 64 * MB
    assert decided(blind)[0].target_bytes == pytest.approx(
        max(R * OWN.allowed_delay_s, POLICY.limits.rest_bytes)
    )
