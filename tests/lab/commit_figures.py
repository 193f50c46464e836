# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of commits beside a flood, and what has to hold of them."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.trial import ladder

Found = Dict[str, Dict[str, float]]  # figures by window: idle, first, second
Record = Tuple[str, str, Found]  # disk, contender: one run

SLOW_S = 0.1
FROM_S = 3  # from this second of a flood on no second may be slow
FEWEST_S = 5
PLAIN = "16000/8000"
IN_WRITE = 0.25  # of a commit, at most
BUSY = 4 << 20  # bytes in the cache, so that the media are never idle
SWEPT = 0.5  # of the media's rate: below it they write scattered blocks
OFTEN = 0.9  # of the windows or runs


@dataclass(frozen=True)
class Window:
    """Commits of one flood, and what the flood wrote meanwhile."""

    seconds: float
    commits: Tuple[Tuple[float, float, float], ...]  # begin since the start, write s, fsync s
    flood_bytes: float
    room_bytes: float  # what disk and cache could take in that time
    # Time since the start, bytes destaged, bytes in the cache.
    drained: Tuple[Tuple[float, float, float], ...] = ()
    drain_rate: float = 0.0  # of the media where nothing is scattered

    @property
    def rate(self) -> float:
        return len(self.commits) / self.seconds

    def in_sweep(self, begin: float, lasts: float) -> bool:
        """Whether the media wrote scattered blocks of the cache meanwhile: at half of their rate.

        As long as anything is in the cache they write without a pause.
        """
        times = [at for at, _, _ in self.drained]
        looks = self.drained[max(0, bisect_right(times, begin) - 1):
                             bisect_left(times, begin + lasts) + 1]
        if not looks or min(fill for _, _, fill in looks) < BUSY:
            return False
        seconds, size = (looks[-1][at] - looks[0][at] for at in (0, 1))
        return size < SWEPT * self.drain_rate * seconds

    def figures(self, idle: float) -> Dict[str, float]:
        """Latencies in ms; without any commit the whole window counts as one."""
        both = sorted(write + sync for _, write, sync in self.commits) or [self.seconds]
        writes = sorted(write for _, write, _ in self.commits)
        by_second: Dict[int, List[float]] = {}
        for begin, write, sync in self.commits:
            by_second.setdefault(int(begin), []).append(write + sync)
        p99s = {second: p99(sorted(each)) for second, each in by_second.items()}
        counts = [len(by_second.get(second, ())) for second in range(int(self.seconds))]
        f, g = self.rate / idle, self.flood_bytes / self.room_bytes
        return {
            "rate": self.rate, "f": f, "g": g, "score": ladder.score(f, g),
            "write": sum(writes) / sum(both), "p99": 1e3 * p99(both),
            "worst": 1e3 * max(p99s.values(), default=self.seconds), "longest": 1e3 * both[-1],
            "fewest": min(sum(counts[at:at + FEWEST_S]) / FEWEST_S
                          for at in range(max(1, len(counts) - FEWEST_S + 1))),
            "slow_seconds": float(sum(each > SLOW_S for second, each in p99s.items()
                                      if second >= FROM_S)),
            "over100": float(sum(each > SLOW_S for each in both)),
            "swept": float(sum(write + sync > SLOW_S and self.in_sweep(begin, write + sync)
                               for begin, write, sync in self.commits)),
            "write_p99": 1e3 * p99(writes), "write_max": 1e3 * max(writes, default=0.0),
            "sync_p99": 1e3 * p99(sorted(sync for _, _, sync in self.commits)),
        }


def p99(ordered: Sequence[float]) -> float:
    return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0


def musts(records: Sequence[Record]) -> List[str]:
    """A line for each thing that has to hold of each agent on each disk, and over all disks."""
    lines: List[str] = []
    ratios: Dict[Tuple[str, str], List[float]] = {}
    for disk, agent in sorted({(disk, name) for disk, name, _ in records if is_agent(name)}):
        runs = Runs([record for record in records if record[0] == disk], agent)
        lines += [f"{disk} {agent}: {text}" for text in runs.musts()]
        for turn in ("first", "second"):
            ratio = runs.of_best(turn)
            if ratio is not None:
                ratios.setdefault((agent, turn), []).append(ratio)
    for (agent, turn), values in ratios.items():
        if len(values) > 1:
            least = 1.0 if turn == "second" else 0.9
            mean = statistics.geometric_mean(values)
            lines.append(f"{len(values)} disks {agent}: {verdict(mean >= least)} {turn} flood: "
                         f"score {mean:.2f} of the best pair's, at least {least:g}")
    return lines


def is_agent(name: str) -> bool:
    return name.startswith("agent")


def verdict(holds: Optional[bool]) -> str:
    return {True: "good", False: "MISSED", None: "open"}[holds]


class Runs:
    """All runs on one disk, looked at for one agent."""

    def __init__(self, records: Sequence[Record], agent: str) -> None:
        self.agent = agent
        self._found: Dict[str, List[Found]] = {}
        for _, contender, found in records:
            self._found.setdefault(contender, []).append(found)
        # Pairs have no memory: their one flood stands for both.
        self.pairs = [name for name in self._found if not is_agent(name) and name != "default"]
        # Four seconds of idle commits differ by a factor of four between runs on one disk.
        self.idle = statistics.median(found["idle"]["rate"] for _, _, found in records)

    def each(self, name: str, turn: str, key: str) -> List[float]:
        """A figure of all repeats; shares are those of the disk's median idle rate."""
        turn = turn if is_agent(name) else "first"
        runs = [found for found in self._found.get(name, ()) if turn in found]
        if key not in ("f", "score"):
            return [found[turn][key] for found in runs]
        return [found[turn][key] * found["idle"]["rate"] / self.idle for found in runs]

    def median(self, name: str, turn: str, key: str) -> float:
        """NaN where it was not measured: no comparison with it holds."""
        return statistics.median(self.each(name, turn, key) or [math.nan])

    def of_best(self, turn: str) -> Optional[float]:
        best = max((self.median(name, turn, "score") for name in self.pairs), default=math.nan)
        ratio = self.median(self.agent, turn, "score") / best
        return None if math.isnan(ratio) else ratio

    def musts(self) -> List[str]:
        return [self._in_write(), self._longest(), *self._beside_plain(), self._best("first", 0.0),
                self._best("second", 0.85)]

    def _in_write(self) -> str:
        own, rate = (self.median(self.agent, "second", key) for key in ("write", "rate"))
        asked = [name for name in self.pairs if self.median(name, "second", "rate") >= rate
                 and self.median(name, "second", "write") <= IN_WRITE]
        holds = None if math.isnan(own) else own <= IN_WRITE or not asked
        return (f"{verdict(holds)} at rest: {own:.0%} of a commit in write(), at most "
                f"{IN_WRITE:.0%} where a pair with as many commits has that "
                f"({', '.join(asked) or 'none has'})")

    def _longest(self) -> str:
        slow, swept = (self.each(self.agent, "second", key) for key in ("over100", "swept"))
        other = [all_ - part for all_, part in zip(slow, swept)]
        longest = max(self.each(self.agent, "second", "longest"), default=0)
        return (f"{often(other)} at rest: windows without a commit above 100 ms but in sweeps of "
                f"the disk ({sum(swept):.0f} of {sum(slow):.0f}), longest {longest:.0f} ms")

    def _beside_plain(self) -> List[str]:
        """The first flood, beside what a plain sysctl does."""
        plain = self.each(PLAIN, "first", "slow_seconds")
        lines = [f"{often(self.each(self.agent, 'first', 'slow_seconds'))} first flood: runs "
                 "without a second of p99 above 100 ms after the third, "
                 f"{PLAIN} {sum(not each for each in plain)} of {len(plain)}"]
        for turn, key, share in (("first", "fewest", 0.9), ("first", "score", 1.0),
                                 ("second", "score", 1.0)):
            ratio = self.median(self.agent, turn, key) / max(self.median(PLAIN, turn, key), 1e-6)
            holds = None if math.isnan(ratio) else ratio >= share
            what = "fewest commits in 5 s" if key == "fewest" else key
            lines.append(f"{verdict(holds)} {turn} flood: {what} {ratio:.2f} of {PLAIN}'s, "
                         f"at least {share:g}")
        return lines

    def _best(self, turn: str, least: float) -> str:
        ratio = self.of_best(turn)
        best = max(self.pairs, key=lambda name: self.median(name, turn, "score"), default="none")
        return (f"{verdict(None if ratio is None else ratio >= least)} {turn} flood: score "
                f"{math.nan if ratio is None else ratio:.2f} of the best pair's ({best}), "
                f"at least {least:g}")


def often(slow: Sequence[float]) -> str:
    """Whether it was never slow in OFTEN of them, and how often."""
    good = sum(not each for each in slow)
    return f"{verdict(good >= OFTEN * len(slow) if slow else None)} {good} of {len(slow)}"
