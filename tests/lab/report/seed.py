# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's figures beside the published ones that the project comes from."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from . import facts, published, text
from .evaluation import AGENT, DEFAULT, STATIC, Contender, Evaluation, Run, Scenario
from .markup import table
from .plots import main_ones
from .text import escape

NOTHING = '<p class="absent">No run of this report is comparable.</p>'


def first_of(scenario: Scenario, kind: str, limit_bytes: int = 0) -> Optional[Contender]:
    return next((one for one in scenario.contenders.values() if one.kind == kind
                 and (not limit_bytes or one.limit_bytes == limit_bytes)), None)


def _median_run(one: Optional[Contender]) -> Optional[Run]:
    return one.median_run if one is not None else None


def same_line(scenario: Scenario, line: published.Line) -> facts.Sync:
    """What the lab measured where the published line is."""
    if line.like == "idle":
        runs = [_median_run(first_of(scenario, STATIC, 15 * published.MIB)),
                _median_run(first_of(scenario, DEFAULT)), _median_run(first_of(scenario, AGENT))]
        return facts.sync(next((run for run in runs if run is not None), None), "idle")
    if line.like:
        return facts.sync(_median_run(first_of(scenario, line.like)))
    return facts.sync(_median_run(first_of(scenario, STATIC, line.limit_bytes)))


def tuned_table(case: published.Tuned, scenario: Optional[Scenario]) -> str:
    """Published and own figures line by line; only the published ones without a scenario."""
    lines = [line for line in case.lines if line.told or scenario is not None]
    rows = []
    for line in lines:
        told = [*line.told, *(text.UNKNOWN,) * 4][:4]
        cells = "".join(f'<td class="n published">{escape(word)}</td>' for word in told)
        if scenario is not None:
            ours = same_line(scenario, line)
            cells += "".join(f'<td class="n ours">{escape(word)}</td>' for word in (
                text.number(ours.rate), text.seconds(ours.mean), text.seconds(ours.p95),
                text.seconds(ours.max)))
        rows.append(f'<tr><th scope="row">{escape(line.name)}</th>{cells}</tr>')
    columns = "<th>requests/s</th><th>avg</th><th>95 %</th><th>max</th>"
    sides = '<th colspan="4" scope="colgroup">published</th>'
    if scenario is not None:
        sides += ('<th colspan="4" scope="colgroup">this lab, scenario '
                  f"{escape(scenario.name)}</th>")
        columns *= 2
    drawn = (f'<div class="wide"><table class="pair"><caption>{escape(case.load)}</caption>'
             f"<thead><tr><td></td>{sides}</tr><tr><td></td>{columns}</tr></thead>"
             f'<tbody>{"".join(rows)}</tbody></table></div>')
    return drawn if scenario is not None else f'<div class="sides">{drawn}{NOTHING}</div>'


def _sequential(scenario: Optional[Scenario]) -> str:
    before, after = published.HAND_TUNED_SEQUENTIAL
    words = (f"The published price: sequential writing without load went from "
             f"{text.byte_rate(before)} to {text.byte_rate(after)} "
             f"({text.number(after / before)}).")
    if scenario is not None:
        ours = [(one, one.g) for one in (first_of(scenario, STATIC, 15 * published.MIB),
                                         first_of(scenario, AGENT)) if one is not None]
        words += "".join(f" Here, under load, {one.name}: {text.number(g)} of that under default "
                         "limits." for one, g in ours if g is not None)
    return f"<p>{escape(words)}</p>"


def _runs_kind(scenario: Scenario, kinds: Sequence[str]) -> bool:
    return any(load.get("kind") in kinds for one in scenario.contenders.values()
               for load in facts.loads(one.median_run, "sync"))


def databases(evaluation: Evaluation) -> str:
    """Rows of transactions, mean, 99 % and steadiness; empty without a database run."""
    head = ("database", "TPS", "mean", "99 %", "max", "of idle TPS", "variation per s")
    rows: List[Tuple[str, ...]] = []
    for scenario in evaluation.scenarios:
        if not _runs_kind(scenario, published.DATABASES):
            continue
        for one in main_ones(scenario):
            if one.median_run is not None:
                ours = facts.sync(one.median_run)
                rows.append((f"{scenario.name}, {one.name}", text.number(ours.rate),
                             text.seconds(ours.mean), text.seconds(ours.p99),
                             text.seconds(ours.max), text.number(one.f),
                             text.percent(ours.unsteady)))
    return table(head, rows, "this lab, with a flood beside the database") if rows else ""


def moving(evaluation: Evaluation) -> str:
    head = ("scenario", "sync/s", "99 %", "written", "score", "variation per s")
    rows: List[Tuple[str, ...]] = []
    for scenario in evaluation.scenarios:
        if scenario.source != published.MOVING:
            continue
        for one in main_ones(scenario):
            if one.median_run is not None:
                ours = facts.sync(one.median_run)
                rows.append((f"{scenario.name}, {one.name}", text.number(ours.rate),
                             text.seconds(ours.p99),
                             text.byte_rate(facts.write_rate(one.median_run)),
                             text.number(one.score), text.percent(ours.unsteady)))
    return table(head, rows, "this lab: drain rates that move") if rows else ""


def _title(number: int, title: str) -> str:
    return f'<h3 id="published-{number}">{number}. {escape(title)}</h3>'


def _case(number: int, case: published.Case, ours: str) -> str:
    return (f'{_title(number, case.title)}<p class="rig">{escape(case.rig)}.</p>'
            f'<div class="sides">{table(case.head, case.rows, "published")}'
            f"{ours or NOTHING}</div>")


def comparison(evaluation: Evaluation) -> str:
    by_name = {scenario.name: scenario for scenario in evaluation.scenarios}
    parts = [_title(1, "The hand-tuned host"),
             f'<p class="rig">{escape(published.HAND_TUNED_RIG)}.</p>']
    parts += [tuned_table(case, by_name.get(case.scenario)) for case in published.HAND_TUNED]
    parts.append(_sequential(by_name.get(published.HAND_TUNED[0].scenario)))
    ours = databases(evaluation)
    parts += [_case(2, published.VCACHE, ours),
              _case(3, published.FLASHCACHE, ""),
              _case(4, published.SCALEFLUX, moving(evaluation)),
              _case(5, published.STORAGEREVIEW, '<p>See the lab\'s databases above.</p>'
                    if ours else "")]
    return "".join(parts)
