# SPDX-License-Identifier: GPL-2.0-or-later
"""What `bench` prints: progress, tables of scores, the answer."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Callable, List, Optional, Sequence, Tuple

from .evaluation import AGENT, PEER, Contender, Evaluation, Scenario, order

BAR = 30
FIGURES = "figures.json"  # beside the runs
LEAST = 1e-6  # a score of nothing at all, for geometric means


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


class Progress:
    """A bar on a terminal, a line for each run elsewhere."""

    def __init__(self, expected: Sequence[float], done: int, lines: bool = False) -> None:
        """expected: seconds of each run to come; done: how many were there already."""
        self._expected = list(expected)
        self._number = 0
        self._started = self._begun = time.monotonic()
        self._doing = ""
        self._terminal = sys.stderr.isatty() and not lines
        if done:
            print(f"{done} runs are there already, {len(expected)} to do", file=sys.stderr)

    def begin(self, doing: str) -> None:
        self._doing = doing
        self._begun = time.monotonic()
        self._show()

    def end(self, error: Optional[str]) -> None:
        self._number += 1
        if error or not self._terminal:
            took = time.monotonic() - self._begun
            self._line(f"{self._doing}: {'FAILED: ' + error if error else 'done'}, {took:.0f} s")
            print(file=sys.stderr)

    def at(self, number: int, doing: str) -> None:
        """So many are done, wherever they ran."""
        if self._terminal or number != self._number:
            self._number, self._doing = number, doing
            self._show()

    def close(self) -> None:
        if self._terminal:
            self._line("")

    def _left(self) -> float:
        """By what the plan says, corrected by how long it took so far."""
        past = sum(self._expected[:self._number])
        pace = (time.monotonic() - self._started) / past if past else 1.0
        return sum(self._expected[self._number:]) * max(0.5, min(10.0, pace))

    def _show(self) -> None:
        total = sum(self._expected)
        share = sum(self._expected[:self._number]) / total if total else 1.0
        self._line(f"[{'#' * round(share * BAR):.<{BAR}}] {share:4.0%}, {minutes(self._left())} "
                   f"left   {self._doing}")
        if not self._terminal:
            print(file=sys.stderr)

    def _line(self, text: str) -> None:
        start = "\r\x1b[K" if self._terminal else ""
        print(start + text, end="", file=sys.stderr, flush=True)


def number(value: Optional[float]) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def milliseconds(value: Optional[float]) -> str:
    return number(None if value is None else 1e3 * value)


# Head, what it is, figure; the later ones are of how a contender got there.
COLUMNS: Sequence[Tuple[str, str, Callable[[Contender], str]]] = (
    ("f", "rate of the synchronous load, of its idle rate", lambda one: number(one.f)),
    ("g", "rate of the flood, of that with default limits", lambda one: number(one.g)),
    ("score", "f x min(1, g / 0.95)^4, or g without a synchronous load",
     lambda one: number(one.score)),
    ("lowest", "score of the repeats", lambda one: number(one.spread[0] if one.spread else None)),
    ("highest", "score of the repeats", lambda one: number(one.spread[1] if one.spread else None)),
    ("regret", "score, of the best static limit's in hindsight; 1 is as good",
     lambda one: number(one.regret)),
    ("worst ms", "p99 of commits in the worst second since the flood's first",
     lambda one: milliseconds(one.worst_s)),
    ("longest ms", "the longest commit since then", lambda one: milliseconds(one.longest_s)),
    ("stall s", "longest write of a buffered writer since the contender came",
     lambda one: number(one.stall_s)),
    ("writes/min", "changes of the limits, in the end", lambda one: number(one.writes_per_min)),
    ("changed", "score from 15 to 45 s after a change in mid-run, or of a second flood",
     lambda one: number(one.changed)),
    ("its regret", "the same of the static limit that is best there",
     lambda one: number(one.changed_regret)),
)
MEANING = "\n".join(f"{head:11}{why}" for head, why, _ in COLUMNS)


def table(evaluation: Evaluation) -> str:
    """A block for each scenario, the totals at the end."""
    lines: List[str] = []
    for scenario in evaluation.scenarios:
        lines += [*block(scenario), ""]
    return "\n".join([*lines, *summary(evaluation)]).rstrip()


def block(scenario: Scenario) -> List[str]:
    """Figures of each contender, and what the scenario has to show."""
    found = [(head, [cell(one) for one in scenario.contenders.values()])
             for head, _, cell in COLUMNS]
    columns = [(head, cells) for head, cells in found if set(cells) != {"-"}]
    lines = [f"{scenario.name}: {scenario.summary}",
             f"  {'':30}" + "".join(f"{head:>11}" for head, _ in columns)]
    for at, name in enumerate(scenario.contenders):
        mark = " best static" if name == scenario.best_static else ""
        lines.append(f"  {name:30}" + "".join(f"{cells[at]:>11}" for _, cells in columns) + mark)
    for check in scenario.checks:
        said = {True: "good", False: "MISSED", None: "open"}[check.ok]
        lines.append(f"  {said:7} {check.text}: {check.value}")
    lines += [f"  failed  {one.name}, repeat {run['repeat']}: {run['error']}"
              for one in scenario.contenders.values() for run in one.runs if run["error"]]
    return lines


def summary(evaluation: Evaluation) -> List[str]:
    """Totals, and the two questions: how near to the best limit of each scenario, and is any one
    limit better in all of them?"""
    lines = []
    if len(evaluation.scenarios) > 1 and evaluation.totals:
        lines.append("geometric mean of the scores")
        ranked = sorted(evaluation.totals.items(), key=lambda item: -(item[1] or 0))
        lines += [f"  {name:30}{number(value):>10}" for name, value in ranked]
    agents = [one.name for one in order(evaluation) if one.kind == AGENT]
    if agents and any(scenario.best_static for scenario in evaluation.scenarios):
        lines += ["", "regret: score, of the best static limit's in hindsight",
                  f"  {'':30}" + "".join(f"{name[:15]:>16}" for name in agents) + "  best static"]
    for scenario in evaluation.scenarios:
        found = [scenario.contenders.get(name) for name in agents]
        if any(one is not None and one.regret is not None for one in found):
            lines.append(f"  {scenario.name:30}" + "".join(
                f"{number(one.regret if one else None):>16}" for one in found)
                + f"  {scenario.best_static}")
    for name in agents:
        fixed = [duel for duel in duels(evaluation, name) if duel.other.kind != PEER]
        if fixed:
            lines += ["", f"total of {name} and of each fixed limit, where both ran"]
        for duel in fixed:
            verdict = "good" if duel.its < duel.own else "MISSED"
            plural = "" if duel.scenarios == 1 else "s"
            lines.append(f"  {verdict:7} {duel.other.name:22}{number(duel.own):>10} against "
                         f"{number(duel.its)} in {duel.scenarios} scenario{plural}")
    return lines


@dataclass(frozen=True)
class Duel:
    """Another contender against the agent, in the scenarios that both were run in."""

    other: Contender
    own: float  # the agent's total in these
    its: float
    scenarios: int


def duels(evaluation: Evaluation, agent: str) -> List[Duel]:
    """One for each other contender, the best first.

    Pairs and not totals: a sweep has the values that suit its disk, so that most limits
    were run in some scenarios only.
    """
    found = []
    for other in order(evaluation):
        pairs = [(max(own.score, LEAST), max(its.score, LEAST)) for scenario in evaluation.scenarios
                 for own, its in [(scenario.contenders.get(agent),
                                   scenario.contenders.get(other.name))]
                 if own is not None and own.score is not None
                 and its is not None and its.score is not None]
        if pairs and other.kind != AGENT:
            own, its = (geometric_mean(scores) for scores in zip(*pairs))
            found.append(Duel(other, own, its, len(pairs)))
    return sorted(found, key=lambda duel: duel.own / duel.its)


def figures(evaluation: Evaluation) -> str:
    """What the table has, in JSON: {scenario: {contender: {figure: median}}}, and the totals."""
    names = ("f", "g", "score", "regret", "changed", "changed_regret", "worst_s", "longest_s",
             "stall_s", "writes_per_min")

    return json.dumps({
        "scenarios": {scenario.name: {
            "best_static": scenario.best_static,
            "contenders": {one.name: {name: getattr(one, name) for name in names}
                           for one in scenario.contenders.values()},
            "checks": [{"text": check.text, "ok": check.ok, "value": check.value}
                       for check in scenario.checks]} for scenario in evaluation.scenarios},
        "totals": evaluation.totals}, indent=1, allow_nan=False) + "\n"
