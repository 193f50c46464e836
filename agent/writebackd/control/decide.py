# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes one tick's decision: the law for each device, then one global limit for all."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.control import reasons
from writebackd.control.destage import plan_destage
from writebackd.control.device_decision import decide_device, kernel_floor_bytes
from writebackd.control.device_limits import DeviceLimits, plan_device_limits
from writebackd.control.pacing.pace import pace, remember_syncers
from writebackd.control.ramp import near, next_background, next_limit, slowest
from writebackd.control.small_cgroups import raise_limit
from writebackd.estimate.hung_device import hung_devices
from writebackd.estimate.limit_shares import paces, shared_limit
from writebackd.policy.schema import Policy
from writebackd.tuning import DIRTYABLE_SHARE, GRAIN_BYTES
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory, Retry, Stuck, Trial
from writebackd.types.decision import Decision, DeviceDecision, DeviceState, Rule
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate
from writebackd.types.levers import ForeignWrite, Intrusion
from writebackd.types.samples import Sample, VmState

# Levers remembered as changed by other processes.  Each disk has several.
MOST_INTRUSIONS = 64
# Seconds, and number in an hour.  Yields to the original limits, when systemd-sysctl or sysctl(8)
# applied settings of the boot again, end after a minute: an upgrade's triggers follow each other
# within seconds.  Who applies them more often than that keeps the daemon away.
REAPPLIED_S = 60.0
REAPPLIED_MOST = 3


class _Goal(NamedTuple):
    """Where the global limit is heading."""

    limit: Optional[int]  # None: the original limits
    background_of: Optional[int]  # the goal that the background limit follows
    reason: str
    held: bool  # since a restart: the limit of before, with the bytes that were stuck then


def decide(
    policy: Policy, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
) -> Tuple[Decision, Memory]:
    """The decision, and the memory for the next tick.

    Pure: the same policy, memory (which includes the mode) and sample give the same decision.  The
    actuator carries it out, or not.
    """
    memory = _noted(_retried(memory, sample), sample)
    if memory.trial is not None and memory.trial.original and memory.yielded is None:
        return _as_found(policy, memory, memory.trial, sample, estimates)
    least = kernel_floor_bytes(sample.host)
    wants, remembered = _wants(policy, memory, sample, estimates, least)
    paced = pace(policy, memory, sample, estimates, wants, remembered)
    wants, memory = paced.wants, paced.memory
    if memory.draining and memory.yielded is None and memory.pin_bytes is None:
        wants = _at_the_floor(policy, memory, sample, wants, least)
    devices = tuple(_numbered(want, remembered) for want in wants)
    extra = plan_device_limits(policy, replace(memory, devices=remembered), sample, wants)
    destage, memory = plan_destage(policy, extra.memory, sample, estimates)
    if extra.memory.caps:
        devices = tuple([_with_ceiling(device, extra.memory) for device in devices])
    needed, reason, decider = _arbitrate(extra.shared, memory)
    devices = tuple([
        _held_to(device, decider, needed, memory) if device.rule is Rule.COMING else device
        for device in devices
    ])
    goal, memory = _goal(policy, memory, sample, extra, needed, reason)
    hurry = any(estimates[want.name].flooded for want in wants if want.demand)
    decision = Decision(
        None, None, None, goal.reason, devices, paced.settings + extra.settings + destage, hurry,
        next((device.decision_id for device in devices if device.name == decider), None),
    )  # fmt: skip
    if goal.limit is not None:
        return _next_step(policy, memory, sample, estimates, goal, goal.limit, decision)
    return decision, replace(
        memory, limit_bytes=None, goal_bytes=None, background_bytes=None, hurry=hurry, stuck_room=0
    )


def _wants(
    policy: Policy, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate], least: int
) -> Tuple[List[DeviceDecision], Dict[str, DeviceMemory]]:
    """What each device needs by itself, or what overrides that, and its memory."""
    wants: List[DeviceDecision] = []
    remembered: Dict[str, DeviceMemory] = {}
    shared, caps, held_at = shared_limit(memory, sample), memory.caps, paces(memory)
    most = memory_most(policy, sample.vm)
    for seen in sample.devices:
        device = seen.device
        name = device.name
        if seen.excluded is not None:
            remembered[name] = memory.devices[name]
            wants.append(_excluded(name, seen.excluded))
            continue
        cap = caps.get(name)
        want, remembered[name] = decide_device(
            policy,
            policy.of(device),
            least,
            sample.time_s,
            sample.dt_s,
            # The limit in force for the device: the global one, or its own.
            cap.bytes if cap is not None and cap.in_force
            else shared if seen.strict_bytes is None else min(shared, seen.strict_bytes),
            estimates[name],
            memory.devices[name],
            most,
            reasons.unset(memory, name),
            held_at.get(name),
        )
        wants.append(want)
    if memory.yielded is not None:
        # The decision's reason names the process.
        wants = [_override(want, DeviceState.YIELDED, None, reasons.YIELDED) for want in wants]
    elif memory.pin_bytes is not None:
        wants = [
            _override(want, DeviceState.PINNED, memory.pin_bytes, reasons.pinned(memory))
            for want in wants
        ]
    return wants, remembered


def _goal(
    policy: Policy, memory: Memory, sample: Sample, extra: DeviceLimits, needed: Optional[int],
    reason: str,
) -> Tuple[_Goal, Memory]:
    """The limit that the devices need, as far as memory and small cgroups allow it."""
    limit = needed
    if limit is not None:
        limit = min(limit + extra.reserve, max(limit, policy.limits.ceiling_bytes))
        most = memory_most(policy, sample.vm)
        if most is not None and limit > most and memory.pin_bytes is None:
            limit = most
            reason += reasons.of_memory(most, DIRTYABLE_SHARE)
    lifted = raise_limit(policy, memory, sample, limit, extra.shared)
    memory = replace(memory, lift=lifted.memory)
    background_of = limit
    if lifted.reason:
        reason += f"; {lifted.reason}"
    raised = memory.lift.limit_bytes if memory.lift is not None else None
    if raised is not None:
        limit = raised
    held = memory.limit_bytes is not None and sample.time_s < memory.hold_until_s
    held = held and limit is None and not reasons.unset(memory, "")
    if held:
        # A restart must not let the limit jump to 20 % of memory in mid-flood.
        limit, reason = memory.limit_bytes, reasons.RESTARTED
    # With a reserve in the goal, a tenth of it may be as much as the whole need of a device.
    unreserved = memory.pin_bytes is None and not extra.reserve
    if limit is not None and unreserved and near(limit, memory.goal_bytes):
        limit = max(memory.goal_bytes or limit, policy.limits.floor_bytes)
        if raised is None:
            background_of = limit
    return _Goal(limit, background_of or limit, reason, held), memory


def _next_step(
    policy: Policy, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate],
    goal: _Goal, limit: int, decision: Decision,
) -> Tuple[Decision, Memory]:
    """The limits of this tick on the way to `limit`, that of the goal."""
    # The limit held after a restart already includes the bytes stuck before it.
    stuck = 0 if goal.held else room_for_stuck(policy, memory, sample.vm, limit)
    reason = goal.reason
    if stuck:
        reason += reasons.stuck(stuck, ", ".join(memory.stuck.hang))
    # Raise at once: stuck pages leave no room for others, who had the goal to themselves before.
    at_once = stuck + min(limit, memory.goal_bytes or limit) if stuck else 0
    memory = replace(memory, goal_bytes=limit, stuck_room=stuck, hurry=decision.hurry)
    end = limit = limit + stuck
    if memory.pin_bytes is None and memory.limit_bytes != end:
        limit = next_limit(
            end,
            sample.vm,
            sample.time_s,
            memory.last_raise_s,
            policy.limits.step_up,
            policy.limits.cooldown_s,
            # With a hung device, all dirty pages may belong to it.
            0.0 if hung_devices(sample) else slowest(estimates.values()),
            # The original limit may be below the floor, or 0.
            max(at_once, policy.limits.floor_bytes, kernel_floor_bytes(sample.host)),
        )
    background = limit // 2
    if memory.pin_bytes is None:
        # Not that of the raised goal: it counts only pages waiting to be written, which may be few
        # of the stuck ones, so a raised one could keep the flusher from starting.
        background = next_background(limit, goal.background_of or limit, policy.limits.background)
    background = max(sample.host.page_size, background)
    raised_s = sample.time_s if limit > sample.vm.threshold_bytes else memory.last_raise_s
    return replace(
        decision, limit_bytes=limit, background_bytes=background, goal_bytes=end, reason=reason
    ), replace(memory, limit_bytes=limit, background_bytes=background, last_raise_s=raised_s)


def memory_most(policy: Policy, vm: VmState) -> Optional[int]:
    """The largest limit that the host's memory allows, bytes; None if that is not known.

    The policy's ceiling does not depend on memory.  On a host with 8 GB of dirtyable memory, limits
    of 5.5 and 6.6 GB wrote at 0.37 and 0.13 of the rate with default limits, a fifth of it at 0.89.
    """
    if vm.dirtyable_bytes is None:
        return None
    return max(policy.limits.floor_bytes, int(DIRTYABLE_SHARE * vm.dirtyable_bytes))


def room_for_stuck(policy: Policy, memory: Memory, vm: VmState, goal: int) -> int:
    """Bytes to add to `goal` for stuck pages, in multiples of GRAIN_BYTES.

    The sum may exceed the ceiling, since more may have been dirty before, but not the largest limit
    that memory allows.
    """
    most = memory_most(policy, vm)
    stuck = -(-memory.stuck.bytes // GRAIN_BYTES) * GRAIN_BYTES
    return max(0, min(stuck, (policy.limits.ceiling_bytes if most is None else most) - goal))


def released(memory: Memory) -> Memory:
    """The memory after all original settings were restored."""
    return replace(
        memory, limit_bytes=None, goal_bytes=None, background_bytes=None,
        hold_until_s=float("-inf"), caps={}, refused_caps={}, paces={}, destage={}, lift=None,
        trial=None, stuck=Stuck(), stuck_room=0,
    )


def _as_found(
    policy: Policy, memory: Memory, trial: Trial, sample: Sample,
    estimates: Mapping[str, Estimate],
) -> Tuple[Decision, Memory]:
    """A block of a trial without the law: the original limits, or reduced ones; no other levers.

    The law's memory does not change, since it describes the law's own limits.
    """
    memory = remember_syncers(memory, sample)  # so that the next block paces no syncing cgroup
    goal = limit = trial.limit_bytes
    stuck = 0 if limit is None else room_for_stuck(policy, memory, sample.vm, limit)
    if limit is not None:
        limit += stuck
        if limit < sample.vm.threshold_bytes:
            # Lower it in steps as always, so that no buffered writer blocks.
            limit = next_limit(limit, sample.vm, sample.time_s, sample.time_s, 1.0, 0.0, 0.0)
    reason = reasons.trial(trial)
    wants, remembered = [], {}
    for seen in sample.devices:
        name = seen.device.name
        mine = memory.devices[name]
        if seen.excluded is not None:
            wants.append(_excluded(name, seen.excluded))
        else:
            demand = estimates[name].demand
            state = mine.state or (DeviceState.GUARD if demand else DeviceState.IDLE)
            steps = (reason,)
            wants.append(DeviceDecision(name, state, goal, reason, steps=steps, demand=demand))
        remembered[name] = mine
    devices = tuple(_numbered(want, remembered) for want in wants)
    hurry = any(estimates[want.name].flooded for want in wants if want.demand)
    memory = replace(
        memory, devices=remembered, limit_bytes=limit, goal_bytes=goal,
        background_bytes=trial.background_bytes, caps={}, paces={}, destage={}, lift=None,
        hurry=hurry, stuck_room=stuck,
    )
    return Decision(
        limit, trial.background_bytes, goal, reason, devices, hurry=hurry
    ), memory


def rebounded(memory: Memory) -> Memory:
    """The memory after the policy or its window changed: the next goal is used even if near.

    Caps stay: otherwise their devices would get the wide global limit until that has come down.
    """
    return replace(memory, goal_bytes=None)


def _noted(memory: Memory, sample: Sample) -> Memory:
    """Remember changes by other processes; yield if one of the global limits was changed."""
    if not sample.foreign:
        return memory
    known = {intrusion.write.lever: intrusion for intrusion in memory.intrusions}
    known.update((write.lever, Intrusion(write, sample.wall_s)) for write in sample.foreign)
    limits = [write for write in sample.foreign if write.is_limit]
    yielded, retry, retried_s = memory.yielded, memory.retry, memory.retried_s
    if limits and (yielded is None or any(write.ours for write in limits)):
        yielded, retry = _whose(limits), None
        if all(each.original and each.comm in ("systemd-sysctl", "sysctl") for each in limits):
            retried_s = tuple(at for at in retried_s if at > sample.time_s - 3600.0)
            again = f"the original value, as set at boot{_places(limits)}"
            again += ": nobody wants another limit"
            if len(retried_s) < REAPPLIED_MOST:
                retried_s += (sample.time_s,)
                retry = Retry(sample.time_s + REAPPLIED_S)
                again += f"; enforcing again after {formats.duration(REAPPLIED_S)}"
            yielded += f" ({again})"
    return replace(
        memory, intrusions=tuple(known.values())[-MOST_INTRUSIONS:], yielded=yielded, retry=retry,
        retried_s=retried_s,
    )


def _retried(memory: Memory, sample: Sample) -> Memory:
    """End a yield to settings of the boot that were only applied again, unless others follow."""
    retry, limits = memory.retry, sample.vm.limits
    if retry is None:
        return memory
    if retry.limits not in (None, limits):
        return replace(memory, retry=None)
    if sample.time_s < retry.at_s:
        return replace(memory, retry=replace(retry, limits=limits))
    others = tuple(intrusion for intrusion in memory.intrusions if not intrusion.write.is_limit)
    return replace(memory, yielded=None, retry=None, intrusions=others)


def _places(limits: Sequence[ForeignWrite]) -> str:
    places = dict.fromkeys(write.place for write in limits if write.place)
    return f" by {', '.join(places)}" if places else ""


def _whose(foreign: Sequence[ForeignWrite]) -> str:
    """Names each process with the values it set."""
    by_writer: Dict[str, List[str]] = {}
    for write in foreign:
        what = f"{write.lever}={write.value}"
        if write.ours:
            stays = "stays, as it was typed" if write.typed else "the original is put back"
            what += f" (a limit of writebackd's own, {stays})"
        by_writer.setdefault(write.who, []).append(what)
    return "; ".join(f"{who} set {' and '.join(set_)}" for who, set_ in by_writer.items())


def _at_the_floor(
    policy: Policy, memory: Memory, sample: Sample, wants: Sequence[DeviceDecision], least: int
) -> List[DeviceDecision]:
    """The wants while devices are being drained: these need their floor."""
    floors = {}
    for seen in sample.devices:
        device = seen.device
        if device.name in memory.draining:
            own = policy.of(device)
            floors[device.name] = max(own.floor_bytes, least)
    why = reasons.draining(memory)
    return [
        replace(_override(want, DeviceState.PINNED, floors[want.name], why), demand=True)
        if want.name in floors and want.state is not DeviceState.EXCLUDED else want
        for want in wants
    ]


def _excluded(name: str, reason: str) -> DeviceDecision:
    return DeviceDecision(name, DeviceState.EXCLUDED, None, reason, steps=(reason,))


def _override(
    want: DeviceDecision, state: DeviceState, target: Optional[int], reason: str
) -> DeviceDecision:
    if want.state is DeviceState.EXCLUDED:
        return want
    steps = (*want.steps, reason)
    return replace(
        want, state=state, target_bytes=target, reason=reason, steps=steps, rule=Rule.OTHER
    )


def _numbered(want: DeviceDecision, remembered: Dict[str, DeviceMemory]) -> DeviceDecision:
    """The decision with its id, which is new if state or target changed."""
    memory = remembered[want.name]
    last, new = memory.target_bytes, want.target_bytes
    moved = last is not new and not (new is not None and near(new, last))
    if memory.state is not want.state or moved:
        memory = replace(
            memory, state=want.state, target_bytes=new, decisions=memory.decisions + 1
        )
        remembered[want.name] = memory
    return replace(want, decision_id=f"{want.name}#{memory.decisions}")


def _with_ceiling(device: DeviceDecision, memory: Memory) -> DeviceDecision:
    """Add to the reason that the device has a limit of its own, although it needs none."""
    cap = memory.caps.get(device.name)
    if cap is None or device.target_bytes is not None:
        return device
    after = reasons.unset(memory, device.name)
    if not (after or cap.in_force):
        return device
    return replace(device, reason=device.reason + reasons.ceiling(cap.bytes, after))


def _held_to(
    device: DeviceDecision, tightest: Optional[str], goal: Optional[int], memory: Memory
) -> DeviceDecision:
    """Add to the reason which device's smaller limit applies instead of this device's own."""
    cap = memory.caps.get(device.name)
    if tightest is None or tightest == device.name or (cap is not None and cap.in_force):
        return device
    if goal is None or near(goal, device.target_bytes):
        return device
    note = reasons.held_to(tightest, goal)
    return replace(device, reason=f"{device.reason}; {note}", steps=(*device.steps, note))


def _arbitrate(
    wants: Sequence[DeviceDecision], memory: Memory
) -> Tuple[Optional[int], str, Optional[str]]:
    """One limit for all devices: `(goal, reason, device)`; goal None means the original limits.

    The smallest limit that a device with sync demand needs.  Without demand the largest one among
    recently flooded devices: a slow USB stick must not set the limit of an array, and the kernel
    limits each device to a share that depends on its speed anyway.
    """
    if memory.yielded is not None:
        return None, memory.yielded, None
    if memory.pin_bytes is not None:
        return memory.pin_bytes, reasons.pinned(memory), None
    needs = [(w.target_bytes, w.name) for w in wants if w.demand and w.target_bytes is not None]
    if needs:
        target, name = min(needs)
        return target, reasons.tightest(name), name
    bounds = [(w.target_bytes, w.name) for w in wants if w.target_bytes is not None]
    if bounds:
        target, name = max(bounds)
        return target, reasons.loosest(name), name
    return None, reasons.without_demand(False, reasons.unset(memory, "")), None
