# SPDX-License-Identifier: GPL-2.0-or-later
"""The rate of the paced cgroups: cut while the cache is full, raised while it never is."""

from __future__ import annotations

from typing import Sequence, Tuple

from writebackd import human
from writebackd.model import PaceMemory, replace
from writebackd.tuning import MARK

# Share of the drain rate that a flood begins with: the cache makes room with the rest.
HOLD = 0.9
# Steps of the rate.  A cut has to undo a few raises at once, since a full cache hurts
# every sync; a raise is a small probe that fills no cache before the next cut.
CUT, RAISE = 0.9, 1.03
# The disk takes the pace where the flusher writes at least this share of it.
TAKEN = 0.9
# Cuts below the share that the paced keep, one for each window in which it did not help.
TRIES = 3
# The cache must have been full for so long: two ticks while somebody waits.
CUT_FULL_S = 0.9
# Between two cuts the cache must have made room: a tenth of the drain rate for 3 s.
CUT_SETTLE_S = 3.0
RAISE_EVERY_S = 10.0
# Share of the syncs' time in slow ones.  While paced, from here on the cache is taken for full: a
# cut costs throughput for minutes (BAD_REMEMBERED_S), and by time a full one shows 35 % and more.
FULL_SHARE_PACED = 0.35
# A tick is free of slow syncs below this share.
CLEAR_SHARE = MARK
# A rate at which the cache filled up is not tried again for so long.
BAD_REMEMBERED_S = 300.0
# A cgroup that writes less than this share of its pace is not limited by it.
LIMITED_SHARE = 0.85
# No cgroup is held below this: a single write of the flusher (up to 4 MB) would take seconds.
LEAST_RATE = 1 << 20


def step(
    memory: PaceMemory,
    now_s: float,
    dt_s: float,
    share: float,
    drain_rate: float,
    slow_share: float,
    flooding: Sequence[str],
    late: bool,
    helps: bool,
) -> Tuple[PaceMemory, str]:
    """Cut while the cache is full, raise while it never is; then hand it out.

    `share` is what the paced keep; `slow_share` tells how full the write cache is; `late`:
    syncs miss the objective; `helps`: nothing is known to the contrary.
    """
    rate = memory.rate or 0.0
    full = slow_share > FULL_SHARE_PACED
    room = memory.room or 0.0
    if full and 0 < drain_rate < rate:
        # The disk does not even take the pace: a rebuild, or it was thought to be faster.
        # Where it does, syncs fill the cache, and what drains beside them must not become
        # the measure: a pace that follows it makes them more, and so on down.
        room = min(room, drain_rate)
    if full and rate <= max(share * room, LEAST_RATE) and memory.background_rate < TAKEN * rate:
        # Down to the share that is kept, and not even that is written: the disk has become slower.
        # Syncs that take so much of it look the same, and the flood then keeps its share of the
        # rest only.
        room = min(room, memory.background_rate)
    kept = max(share * room, LEAST_RATE)
    memory = replace(
        memory,
        room=room,
        slow_s=memory.slow_s + dt_s if full else 0.0,
        unclear_s=now_s if late or slow_share > CLEAR_SHARE else memory.unclear_s,
    )
    uneven = False  # somebody has more than he uses while another one is held
    new, why = rate, f"{100 * slow_share:.0f} % of the syncs' time goes to slow ones"
    if not helps:
        # One window at the share itself: from 0.9 R a whole cut goes past it, to 0.81 R, and the
        # way back takes a minute.  Not where next to nothing is left below it.
        lowest = least(memory, share)
        floor = kept if rate > kept > RAISE * lowest else lowest
        new, why = max(floor, CUT * rate), "it does not help yet: slower"
    elif memory.slow_s >= CUT_FULL_S:
        if rate <= kept:
            why += ", and it is down to the share that it keeps"
        elif now_s - memory.step_s < CUT_SETTLE_S:
            why += ": waiting for the last step to settle"
        else:
            new, why = max(kept, CUT * rate), why + ": slower"
            memory = replace(memory, bad_rate=rate, bad_s=now_s)
    elif full:
        why += ": does it last?"
    elif now_s - max(memory.step_s, memory.unclear_s) >= RAISE_EVERY_S:
        known_bad = now_s - memory.bad_s < BAD_REMEMBERED_S
        used = sum(memory.used.get(path, 0.0) for path in memory.rates)
        if used < LIMITED_SHARE * rate:
            uneven = not all(_leaves(memory, path) for path in memory.rates)
            why += ", and it is not used up"
        elif not known_bad or RAISE * rate <= memory.bad_rate:
            new, why = RAISE * rate, "few syncs wait: trying a little more"
    if new > rate:
        memory = replace(memory, room=max(room, new))
    elif rate > room:
        new, why = HOLD * room, f"the disk drains {human.size(room)}/s now: slower"
        memory = replace(memory, bad_rate=rate, bad_s=now_s)
    stepped = new != rate or uneven
    if stepped or set(flooding) != set(memory.rates):
        memory = replace(memory, step_s=now_s if stepped else memory.step_s)
        memory = divide(memory, new, flooding)
    return memory, why


def least(memory: PaceMemory, share: float) -> float:
    """What the paced keep even where it does not help: the policy's share of what syncs
    leave, and not much less than the share of all, or the tries would take minutes."""
    room = memory.room or 0.0
    return max(share * (room - memory.sync_rate), share * room * CUT**TRIES, LEAST_RATE)


def _leaves(memory: PaceMemory, path: str) -> bool:
    """Whether he leaves some of his part; the one that he got for that counts, cut to a byte."""
    return memory.used.get(path, 0.0) < LIMITED_SHARE * memory.rates[path] + 1


def divide(memory: PaceMemory, rate: float, paths: Sequence[str]) -> PaceMemory:
    """Hand the rate out: who does not use his part leaves it to those that would."""
    modest = {
        path: memory.used[path] / LIMITED_SHARE
        for path in paths
        if path in memory.rates and path in memory.used and _leaves(memory, path)
    }
    rates = {}
    left, todo = rate, sorted(paths, key=lambda path: modest.get(path, float("inf")))
    for index, path in enumerate(todo):
        even = left / (len(todo) - index)
        # The last one gets what is there: nobody else could use it.
        part = even if index == len(todo) - 1 else min(even, modest.get(path, even))
        part = max(part, even / 4)
        rates[path] = max(int(part), LEAST_RATE)
        left -= part
    return replace(memory, rate=rate, rates=rates)
