# SPDX-License-Identifier: GPL-2.0-or-later
"""What the law does next and on what that depends, in words: only `why` asks.

It reckons with the law's own constants and functions, so that a change of the law changes what is
said of it.
"""

from __future__ import annotations

from typing import Mapping, Optional

from writebackd import human
from writebackd.control.climb import (
    EARNS,
    FIRST_JUDGED_S,
    FIRST_TRIES,
    GAVE_UP_S,
    LEAP,
    STEP,
    WIDE,
    WIDE_GAIN,
    WIDEST_S,
    goes_up,
    leap,
    pause_s,
    starved,
)
from writebackd.control.hold import (
    ELSEWHERE,
    FILL_FROM,
    FILL_LIMIT,
    FILL_TO,
    FOLLOW_S,
    FULL_LASTS_S,
    GROW_LEAST,
    GROW_MOST,
    GROW_TO,
    LATE_LASTS_S,
    PROBE_GAIN,
    PROBE_STEP,
    PROOF_STEP,
    below_the_knee,
    may_starve,
)
from writebackd.control.room import DRAIN_LEAST_S, DRAIN_MOST_S, DRAIN_SHARE, room_wanted, with_room
from writebackd.control.seek import (
    SEEK_GAIN,
    SEEK_GROWS,
    SEEK_LATER_S,
    SEEK_SLOW,
    SEEK_STEP,
    seek_most,
    seek_to,
)
from writebackd.control.steps import (
    EARNED_S,
    JUDGE_S,
    LOOSE_S,
    MUCH_SHORT,
    REMEMBERED_S,
    SOON_JUDGED_S,
)
from writebackd.estimate.drain import FAST_LASTS_S, UNSETTLED_S
from writebackd.estimate.sync import DEMAND_WINDOW_S, RELEASE_S
from writebackd.model import Basis, DeviceDecision, Estimate, Hold, Phase, State, replace
from writebackd.policy.schema import Objective

# When a cache is full is told up to here: what it depends on changes sooner.
FORESEEN_S = 120.0
# Rates that near to one another may pass each other in the next tick.
TURNS = 0.01
# States in which the law's own memory tells what comes.
REGULATED = (State.GUARD, State.SQUEEZE, State.PROBE, State.EXHAUSTED)

# That a limit was given up says that it cost more throughput than it was worth to fsync, or brought
# nothing: which of both the memory does not tell.
_SICK = (
    " If this lasts: a smaller limit may still shorten fsync at the cost of throughput, which"
    " `writebackctl pin` tries. If none does, the queue is not made of dirty pages: look for direct"
    " IO, another host behind the array, or a sick disk."
)
_NEXT: Mapping[State, str] = {
    State.IDLE: "{follows}. When something on this device syncs as often as"
    " the policy's min-sync-rate{rate}, or one fsync waits longer than the objective, the device is"
    " guarded from the next tick on.",
    State.GUARD: "The target follows the drain rate. When fsync misses the objective for"
    " several ticks it is tightened (squeeze); when the flood gets too little throughput"
    " it is loosened (probe).",
    State.SQUEEZE: "If fsync still misses the objective when this step has settled, the target"
    " shrinks another step, down to the floor or to where throughput suffers.",
    State.PROBE: "The target grows step by step until the flood has the throughput that the"
    " policy keeps for it.",
    State.PACE: "The flooding unit is held just below the drain rate until the flood ends.",
    State.EXHAUSTED: "The target stays until fsync meets the objective again." + _SICK,
    State.BLIND: "{follows}.",
    State.YIELDED: "Nothing is written until `writebackctl enforce`.",
    State.PINNED: "The pinned limit stays until `writebackctl release` or a restart.",
    State.EXCLUDED: "Nothing: this device has no say in the limit.",
}


def what_next(
    decision: DeviceDecision,
    estimate: Optional[Estimate],
    hold: Optional[Hold] = None,
    now_s: float = 0.0,
    objective: Optional[Objective] = None,
) -> str:
    """What happens next, and on what it depends.

    `hold` is the law's memory after the decision, `now_s` its time (Sample.time_s), `objective`
    the policy's in force; without it its numbers are left out.
    """
    basis = decision.basis
    if estimate is None or hold is None or basis is None or decision.state not in REGULATED:
        rate = ""
        if objective is not None:
            rate = f" ({objective.min_sync_rate:g}/s over {DEMAND_WINDOW_S:g} s)"
        follows = "The target follows the drain rate"
        if decision.target_bytes is None:
            follows = "The limits stay as found until a flood lasts"
        return _NEXT[decision.state].format(rate=rate, follows=follows)
    return _Law(decision, basis, estimate, hold, now_s).next()


class _Law:
    """One decision of the law, and what it goes by."""

    def __init__(
        self,
        decision: DeviceDecision,
        basis: Basis,
        estimate: Estimate,
        hold: Hold,
        now_s: float,
    ) -> None:
        self._decision, self._basis, self._estimate = decision, basis, estimate
        self._hold, self._now_s = hold, now_s
        # What is asked for in DRAIN and FILL is another.
        self._limit = hold.limit_bytes or 0
        self._drain_rate = estimate.drain_rate or 0.0
        # No rate of a limit is judged before.
        self._judged_s = max(0.0, hold.changed_s + FOLLOW_S - now_s)
        self._judged_s += max(0.0, JUDGE_S - hold.carried[1])

    def next(self) -> str:
        hold, estimate = self._hold, self._estimate
        if not estimate.flooded:
            return self._rest()
        if hold.phase is Phase.DRAIN and not estimate.flushes_wait:
            return self._draining()
        if self._decision.reason == ELSEWHERE:
            return (
                "Nothing is judged until the limit in force is within a fifth of this target: until"
                " then it is on its way there, or another device's need decides, or nothing is"
                " written (observe)."
            )
        if hold.phase is Phase.FILL and not estimate.flushes_wait:
            return (
                f"The limit goes back to {self._size(self._limit)} when the write cache is"
                f" {100 * FILL_TO:.0f} % full."
            )
        if estimate.flushes_wait and not hold.climb.from_bytes:
            return self._flushed()
        if hold.phase is Phase.SEEK and not estimate.flushes_wait:
            return self._seek()
        return self._of_hold()

    def _draining(self) -> str:
        hold = self._hold
        over_s = max(0.0, self._now_s - hold.changed_s)
        least_s, most_s = max(0.0, DRAIN_LEAST_S - over_s), max(0.0, DRAIN_MOST_S - over_s)
        back = with_room(hold, self._basis.forward_bytes, self._drain_rate, self._now_s)
        slows = (
            f"it is kept, and no room is made for {human.duration(REMEMBERED_S)}"
            if hold.drain_bytes <= self._basis.floor_bytes
            else "about half of it is tried first, and those seconds begin anew"
        )
        return (
            f"The limit goes back to about {self._size(back)} when"
            f" {human.size(room_wanted(self._estimate))} of room is made in the write cache,"
            f" {DRAIN_LEAST_S:g} to {DRAIN_MOST_S:g} s after this began: {least_s:.1f} to"
            f" {most_s:.1f} s from now. Where this limit does not slow the flood, {slows}."
        )

    def _flushed(self) -> str:
        """Where flushes are what syncs wait for: control/climb.py alone decides."""
        if not (self._estimate.held_back or self._hold.late_s >= LATE_LASTS_S):
            return "The target stays while it holds nobody back."
        if self._hold.loose_s >= LOOSE_S and self._limit <= self._basis.floor_bytes:
            return f"The target stays: it holds nobody back, and is at its floor.{_SICK}"
        return self._search()

    def _rest(self) -> str:
        hold = self._hold
        if self._estimate.drain_rate is None:
            then = (
                "Then it doubles for as long as that brings more throughput, until the drain rate"
                " is known."
            )
        elif hold.phase is Phase.FILL:
            then = (
                f"A flood gets this target until the write cache is {100 * FILL_TO:.0f} % full,"
                f" then {self._size(self._limit)}."
            )
        else:
            then = (
                "A flood starts under this target; where it gets below"
                f" {100 * self._basis.keep:.0f} % of the drain rate, it is loosened by"
                f" {GROW_LEAST:g} to {GROW_MOST:g} times.{self._larger_then()}{self._emptied()}"
            )
        return (
            f"The target stays until a flood begins, which the next tick sees. {then} Without"
            f" syncs for {RELEASE_S:g} s the device becomes idle."
        )

    def _larger_then(self) -> str:
        when_s = self._larger_s()
        if self._estimate.flushes_wait or when_s >= FORESEEN_S:
            return ""
        return (
            f" A larger one, {self._size(self._probe_size())}, is tried in a flood that it still"
            f" holds {_in(when_s)}."
        )

    def _emptied(self) -> str:
        if not self._estimate.cache_bytes or self._estimate.flushes_wait:
            return ""
        return (
            f" Without a flood it is {FILL_LIMIT:g} times as large as soon as the write cache is"
            f" {100 * (1 - FILL_FROM):.0f} % empty."
        )

    def _seek(self) -> str:
        hold, estimate = self._hold, self._estimate
        known = (
            "the drain rate is known, and the limit becomes drain rate x the kernel's writeback"
            " delay; if there is a write cache and it is full, about half of that for"
            f" {DRAIN_LEAST_S:g} to {DRAIN_MOST_S:g} s"
        )
        if estimate.full:
            return (
                "If the write cache is still full in the next two ticks, or for up to"
                f" {UNSETTLED_S + 1:g} s where the rate jumps, {known}."
            )
        later = (
            "When the write cache is full, that is measured for two ticks at this limit; where the"
            f" rate jumps, for up to {UNSETTLED_S + 1:g} s, in the end at rate x that delay if it"
            f" is less. Then, or when one rate has lasted for {FAST_LASTS_S:g} s, {known}."
        )
        if not estimate.held_back:
            return f"The limit stays while it holds nobody back. {later}"
        larger = self._size(SEEK_STEP * self._limit)
        again_s = hold.changed_s + EARNED_S - self._now_s
        if hold.sought and again_s > 0:
            return f"{larger} is tried once more {_in(again_s)}. {later}"
        carried, lasted = hold.carried
        rate = carried / lasted if lasted else estimate.rate
        gain = SEEK_GAIN
        # Larger ones only while the rate grows nearly as the limit does.
        if SEEK_STEP * self._limit > seek_to(estimate, replace(hold, seek_rate=0.0), rate):
            gain = SEEK_GROWS
        if SEEK_STEP * self._limit > seek_to(estimate, hold, rate):
            ends, back = "", hold.waved_bytes
            if 0 < back < self._limit:
                ends = f", and goes back to {self._size(back)} should this flood outlast the last"
            return f"The limit does not grow any more{ends}. {later}"
        if not hold.seek_rate:
            return f"Within two ticks {larger} is tried, unless the rate is falling. {later}"
        lasts = "within two ticks" if estimate.in_waves else f"for {SEEK_LATER_S:g} s"
        unless = ""
        if estimate.in_waves and estimate.slow_share is not None:
            unless = f", unless less than {100 * SEEK_SLOW:.0f} % of writes wait for the media"
        less = ", else the limit"
        if gain > SEEK_GAIN:
            less = f"; with less than {100 * (SEEK_GAIN - 1):.0f} % more the limit"
        return (
            f"If this limit brings {100 * (gain - 1):.0f} % more than"
            f" {human.size(hold.seek_rate)}/s {lasts}, {larger} is tried{less}"
            f" goes back to {self._size(self._limit / SEEK_STEP)}{unless}. {later}"
        )

    def _of_hold(self) -> str:
        hold, estimate = self._hold, self._estimate
        drains = self._now_s - hold.useless_s >= REMEMBERED_S and not estimate.in_waves
        if hold.climb.from_bytes:
            return (
                f"This limit is on trial: {_in(self._judged_s)}{self._sooner()} it is kept if"
                f" {self._gain(hold.climb.tries <= FIRST_TRIES)}, else it goes back to"
                f" {self._size(hold.climb.from_bytes)}."
            )
        if hold.full_s and drains:
            return (
                f"If the write cache stays full for {FULL_LASTS_S:g} s ({hold.full_s:.1f} s are"
                f" over), about {self._tighter()} makes room in it for {DRAIN_LEAST_S:g} to"
                f" {DRAIN_MOST_S:g} s; if not, the target stays."
            )
        if self._searches():
            return self._search()
        if hold.probe_bytes:
            return self._probe(drains)
        if hold.late_s >= LATE_LASTS_S:
            return (
                "The target stays while fsync is above the objective and the write cache has room:"
                f" a smaller limit would cost throughput. {self._larger()}"
            )
        if hold.late_s:
            return (
                f"If fsync stays above the objective for {LATE_LASTS_S:g} s ({hold.late_s:.1f} s"
                f" are over) {self._when_late()}; if it does not, the target stays."
                f" {self._larger()}"
            )
        return self._stay(drains)

    def _searches(self) -> bool:
        """Whether trying limits decides (control/climb.py), rather than R x tau."""
        hold, useless = self._hold, self._now_s - self._hold.useless_s < REMEMBERED_S
        if useless and hold.full_s:
            return not self._estimate.in_waves
        return self._decision.state is State.EXHAUSTED

    def _search(self) -> str:
        hold, now_s = self._hold, self._now_s
        gave_up_s = hold.climb.gave_up_s + GAVE_UP_S - now_s
        exhausted = self._decision.state is State.EXHAUSTED
        until = "Exhausted until fsync meets the objective; meanwhile " if exhausted else ""
        sick = _SICK if exhausted else ""
        if gave_up_s > 0:
            said = f"{until}no limit is tried for {human.duration(gave_up_s)}.{sick}"
            return said[0].upper() + said[1:]
        began = hold.climb.tries or hold.climb.begin_bytes
        unseen = hold.carried[1] < JUDGE_S and not self._starved()
        if not began and unseen and not self._estimate.flushes_wait:
            return (
                f"{_in(self._judged_s).capitalize()} another limit is tried:"
                f" {self._size(self._limit / STEP)}, or {self._size(self._limit * STEP)} should the"
                f" flood be short of {100 * self._basis.keep:.0f} % of the drain rate."
                f"{self._may_leap()}{self._with_room()}{sick}"
            )
        when_s, larger, size = self._try(self._enough())
        when = _in(when_s)
        if hold.carried[1] < JUDGE_S or self._may_turn():
            # The pause goes by the flood's rate, and little was seen of it under this limit, or
            # it is near to what decides.
            (soon_s, up, _), (late_s, also_up, _) = self._try(False), self._try(True)
            if up == also_up and soon_s < late_s:
                missing = f"if no throughput is missing{self._so_far()},"
                when = f"{_in(soon_s)}, or {_in(late_s)} {missing}"
        said = (
            f"{until}the target stays, and {when} a"
            f" {'larger' if larger else 'smaller'} limit is tried, {self._size(size)}, which is"
            f" kept if {self._gain(larger and hold.climb.tries < FIRST_TRIES)}."
            f"{self._may_leap()}{self._with_room()}{sick}"
        )
        return said[0].upper() + said[1:]

    def _gain(self, first: bool) -> str:
        """What a trial has to bring; `first`: it is one of those that begin the search."""
        shorter = (
            f"waiting for fsync gets {100 * (EARNS - 1):.0f} % shorter at no cost of throughput"
        )
        if first and self._estimate.flushes_wait:
            return f"it brings {100 * (WIDE_GAIN - 1):.0f} % more throughput, or {shorter}"
        return shorter

    def _with_room(self) -> str:
        if self._estimate.flushes_wait:
            return ""
        return (
            " Should the write cache have room by then,"
            f" {self._size(self._probe_size())} is tried {_in(self._larger_s())}."
        )

    def _enough(self) -> bool:
        carried, lasted = self._hold.carried
        rate = carried / lasted if lasted else self._estimate.rate
        return rate >= self._basis.keep * self._drain_rate

    def _may_turn(self) -> bool:
        """Whether the flood's rate may soon be on the other side of what the policy keeps."""
        carried, lasted = self._hold.carried
        kept = self._basis.keep * self._drain_rate
        return bool(lasted and kept) and abs(carried / lasted / kept - 1) < TURNS

    def _try(self, enough: bool) -> "tuple[float, bool, float]":
        """In how many seconds the search tries which limit: `(when, larger, bytes)`.

        `enough`: the flood has the throughput that the policy keeps for it.
        """
        hold = self._hold
        if self._estimate.flushes_wait and hold.loose_s >= LOOSE_S:
            # What holds nobody back is only made smaller.
            down = replace(hold.climb, up=False)
            pause = hold.changed_s + pause_s(down, True) - self._now_s
            return max(self._judged_s, pause), False, self._step(False)
        if self._estimate.flushes_wait and not hold.climb.begin_bytes:
            first_s = max(0.0, hold.changed_s + FOLLOW_S - self._now_s)
            first_s += max(0.0, FIRST_JUDGED_S - hold.carried[1])
            return first_s, True, self._step(True)
        pause = hold.changed_s + pause_s(hold.climb, enough) - self._now_s
        when_s = max(0.0 if self._starved() else self._judged_s, pause)
        larger = goes_up(hold.climb, enough)
        if self._bound(self._step(larger)) == self._bound(self._limit):
            # Is taken for a failure, and the other direction comes next.
            larger = not larger
            after = replace(
                hold.climb, up=larger, failed=hold.climb.failed + 1, tries=hold.climb.tries + 1
            )
            when_s = max(when_s, hold.changed_s + pause_s(after, enough) - self._now_s)
        return when_s, larger, self._step(larger)

    def _step(self, larger: bool) -> float:
        if not self._estimate.flushes_wait:
            if larger and self._starved():
                return leap(self._estimate, self._hold, self._limit, may_starve(self._estimate))
            return self._limit * STEP if larger else self._limit / STEP
        if not larger:
            return self._limit / WIDE
        carried, lasted = self._hold.carried
        rate = carried / lasted if lasted else self._estimate.rate
        most = min(WIDE * self._limit, WIDEST_S * max(rate, self._drain_rate))
        return max(self._limit, seek_most(rate), most)

    def _sooner(self) -> str:
        """What a larger limit on trial is judged by before its time."""
        if not self._hold.climb.up or self._limit >= may_starve(self._estimate):
            return ""
        return f", or sooner below {100 * MUCH_SHORT:.0f} % of the drain rate,"

    def _starved(self) -> bool:
        far = may_starve(self._estimate)
        return not self._estimate.flushes_wait and starved(
            self._estimate, self._hold, self._limit, far
        )

    def _may_leap(self) -> str:
        """That a larger limit comes sooner where much is missing, unless this tick has said it."""
        if self._estimate.flushes_wait or self._starved():
            return ""
        if self._limit >= may_starve(self._estimate):
            return ""
        return (
            f" Below {100 * MUCH_SHORT:.0f} % of the drain rate for {SOON_JUDGED_S:g} s a larger"
            f" one comes sooner, up to {self._size(LEAP * self._limit)}."
        )

    def _probe(self, drains: bool) -> str:
        hold, basis = self._hold, self._basis
        back = f"back to {self._size(hold.probe_bytes)}"
        further = PROOF_STEP * hold.probe_bytes
        if further > 1.01 * self._limit and hold.probe_rate < basis.keep * self._drain_rate:
            back += f", or on to {self._size(further)} while the flood is short of"
            back += f" {100 * basis.keep:.0f} % of the drain rate"
        full = (
            f"the write cache is full for {FULL_LASTS_S:g} s: room is made first"
            if drains
            else "the write cache is full: the search for a better limit goes on from here"
        )
        return (
            f"This larger limit is judged {_in(self._judged_s)}, after {JUDGE_S:g} s of it:"
            f" it is kept if it brings {100 * (PROBE_GAIN - 1):.0f} % more than"
            f" {human.size(hold.probe_rate)}/s; else {back}. Unless {full}.{self._much_short()}"
        )

    def _when_late(self) -> str:
        if below_the_knee(self._basis.keep, self._estimate, self._limit):
            return "it stays all the same: a smaller limit would cost throughput"
        _, larger, size = self._try(self._enough())
        which = "larger" if larger else "smaller"
        return f"other limits are tried, a {which} one first, {self._size(size)}"

    def _stay(self, drains: bool) -> str:
        """What may come while all is well: what has a time first, the nearest of it at the top."""
        timed, any_time = [(self._larger_s(), self._larger())], []
        if drains:
            full_s, when = self._full_in()
            room = (
                f"the write cache full for {FULL_LASTS_S:g} s{when}: about {self._tighter()} for"
                f" {DRAIN_LEAST_S:g} to {DRAIN_MOST_S:g} s"
            )
            if full_s is None:
                any_time.append(room)
            else:
                timed.append((full_s, f"{room[0].upper()}{room[1:]}."))
        if self._ours():
            any_time.append(
                f"the flood held below {100 * self._basis.keep:.0f} % of the drain rate for"
                f" {JUDGE_S:g} s{self._so_far()} and room in the write cache: looser,"
                f" {self._size(GROW_LEAST * self._limit)} or more"
            )
        late, stays = f"fsync above the objective for {LATE_LASTS_S:g} s", ""
        if below_the_knee(self._basis.keep, self._estimate, self._limit):
            stays = f" An {late} does not change it: a smaller limit would cost throughput."
        else:
            any_time.append(f"{late}: {self._when_late()}")
        if not drains and self._estimate.in_waves:
            stays += " Nor does a full write cache: the flood before was soon over."
        any_time.append(self._flood_ends())
        return (
            f"The target stays until one of these. {' '.join(said for _, said in sorted(timed))}"
            f" At any time: {'; '.join(any_time)}.{stays}"
        )

    def _ours(self) -> bool:
        """Whether the limit is what holds the flood, and not far above R x tau."""
        return self._limit < GROW_TO * (self._basis.forward_bytes or self._limit)

    def _flood_ends(self) -> str:
        if not self._estimate.cache_bytes:
            return "the flood's end, and it stays what it is for the next one"
        return (
            f"the flood's end: {self._size(FILL_LIMIT * self._limit)} once the write cache is"
            f" {100 * (1 - FILL_FROM):.0f} % empty"
        )

    def _full_in(self) -> "tuple[Optional[float], str]":
        """When the write cache is full at the rate that this limit lets in, as an aside."""
        cache, (carried, lasted) = self._estimate.cache_bytes, self._hold.carried
        if cache is None:
            return None, " (when is not known: nor is how much it takes)"
        if not lasted:
            return None, " (when is not known: this limit is new)"
        surplus = carried / lasted - self._drain_rate
        full_s = max(0.0, cache - self._estimate.fill_bytes) / surplus if surplus > 0 else None
        if full_s is None or full_s >= FORESEEN_S:
            return None, " (not soon at this rate)"
        # Both rates are uncertain by a few percent, and their difference is what fills it.
        return full_s, f" ({_in(full_s)} at {human.size(carried / lasted)}/s, often sooner)"

    def _so_far(self) -> str:
        carried, lasted = self._hold.carried
        if not lasted:
            return ""
        return (
            f" ({human.size(carried / lasted)}/s of {human.size(self._drain_rate)}/s under this"
            " limit so far)"
        )

    def _much_short(self) -> str:
        if not self._ours():
            return ""
        return (
            f" Below {100 * MUCH_SHORT:.0f} % of the drain rate for {SOON_JUDGED_S:g} s, with room"
            " in the write cache, it is loosened sooner,"
            f" {self._size(GROW_LEAST * self._limit)} or more."
        )

    def _larger_s(self) -> float:
        hold = self._hold
        return max(self._judged_s, hold.changed_s + hold.probe_again_s - self._now_s)

    def _larger(self) -> str:
        return (
            f"A larger one, {self._size(self._probe_size())}, is tried {_in(self._larger_s())} if"
            " writers still sleep for the limit."
        )

    def _probe_size(self) -> float:
        return self._limit * float(min(GROW_MOST, PROBE_STEP ** (1 + self._hold.earned)))

    def _tighter(self) -> str:
        forward = self._basis.forward_bytes or self._limit
        return self._size(DRAIN_SHARE * min(self._limit, forward))

    def _size(self, bytes_: float) -> str:
        """A limit as the target is told: of all devices together, within the bounds."""
        return human.size(self._bound(bytes_) / self._estimate.limit_share)

    def _bound(self, bytes_: float) -> int:
        return int(min(max(bytes_, self._basis.floor_bytes), self._basis.ceiling_bytes))


def _in(seconds: float) -> str:
    return "within two ticks" if seconds < 1 else f"in {human.duration(seconds)}"
