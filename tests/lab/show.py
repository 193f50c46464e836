# SPDX-License-Identifier: GPL-2.0-or-later
"""What `bench` prints: progress with the time left, then a table of scores."""

from __future__ import annotations

import sys
import time
from typing import List, Optional, Sequence

from .report import published, text
from .report.evaluation import Evaluation, Scenario
from .report.seed import same_line

BAR = 30


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


def table(evaluation: Evaluation) -> str:
    """A block for each scenario, the totals at the end."""
    lines: List[str] = []
    for scenario in evaluation.scenarios:
        lines += [*_block(scenario), ""]
    lines += beside_published(evaluation)
    if len(evaluation.scenarios) > 1 and evaluation.totals:
        lines.append("geometric mean of the scores")
        ranked = sorted(evaluation.totals.items(), key=lambda item: -(item[1] or 0))
        lines += [f"  {name:30}{number(value):>10}" for name, value in ranked]
    return "\n".join(lines).rstrip()


def _block(scenario: Scenario) -> List[str]:
    lines = [f"{scenario.name}: {scenario.summary}",
             f"  {'':30}{'f':>10}{'g':>10}{'score':>10}{'lowest':>10}{'highest':>10}"]
    for contender in scenario.contenders.values():
        low, high = contender.spread or (None, None)
        mark = " best static" if contender.name == scenario.best_static else ""
        lines.append(f"  {contender.name:30}{number(contender.f):>10}{number(contender.g):>10}"
                     f"{number(contender.score):>10}{number(low):>10}{number(high):>10}{mark}")
    for check in scenario.checks:
        said = {True: "good", False: "MISSED", None: "open"}[check.ok]
        lines.append(f"  {said:7} {check.text}: {check.value}")
    return lines


def beside_published(evaluation: Evaluation) -> List[str]:
    """The hand-tuned host's tables with the lab's lines beside them."""
    found = {scenario.name: scenario for scenario in evaluation.scenarios}
    lines = []
    for case in published.HAND_TUNED:
        if case.scenario in found:
            lines += [f"sysbench fileio, {case.load}: published | here",
                      f"  {'':24}" + 2 * f"{'requests/s':>12}{'avg':>10}{'95 %':>10}{'max':>10}"]
            for line in case.lines:
                ours = same_line(found[case.scenario], line)
                told = [*line.told, *(text.UNKNOWN,) * 4][:4]
                here = [text.number(ours.rate), text.seconds(ours.mean), text.seconds(ours.p95),
                        text.seconds(ours.max)]
                lines.append(f"  {line.name:24}" + "".join(
                    f"{rate:>12}{mean:>10}{p95:>10}{worst:>10}"
                    for rate, mean, p95, worst in (told, here)))
            lines.append("")
    return lines
