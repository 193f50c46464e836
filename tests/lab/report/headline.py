# SPDX-License-Identifier: GPL-2.0-or-later
"""The top of the page: what was run, the totals, the answer; and the matrix of all scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import facts, text
from .evaluation import AGENT, STATIC, Contender, Evaluation, Run, Scenario
from .markup import Bar, anchor, bars, swatch
from .palette import Palette
from .text import escape

AGENT_GOAL = 0.95  # of the best static value, promised for every scenario
LEAST = 1e-6  # a score of nothing at all, for geometric means


def agent_of(scenario: Scenario) -> Optional[Contender]:
    """The agent with its default policy: variants of it answer other questions."""
    return scenario.contenders.get("agent")


def against_best(scenario: Scenario) -> Optional[float]:
    """The agent's score over that of the best static limit in hindsight."""
    agent, best = agent_of(scenario), scenario.contenders.get(scenario.best_static or "")
    if agent is None or agent.score is None or best is None or not best.score:
        return None
    return agent.score / best.score


@dataclass(frozen=True)
class Duel:
    """Another contender against the agent, in the scenarios that both were run in."""

    other: Contender
    share: float  # its total of the agent's
    scenarios: int
    own: float  # the agent's total in these


def duels(evaluation: Evaluation, palette: Palette, agent: str = "agent") -> List[Duel]:
    """One for each other contender, the best first.

    Pairs and not totals: a sweep has the values that suit its disk, so that most limits
    were run in some scenarios only.
    """
    found = []
    for other in palette.contenders:
        pairs = [(own.score, its.score) for scenario in evaluation.scenarios
                 for own, its in [(scenario.contenders.get(agent),
                                   scenario.contenders.get(other.name))]
                 if own is not None and own.score is not None
                 and its is not None and its.score is not None]
        if pairs and other.kind != AGENT:
            ratios = [max(its, LEAST) / max(own, LEAST) for own, its in pairs]
            found.append(Duel(other, mean(ratios), len(ratios), mean([own for own, _ in pairs])))
    return sorted(found, key=lambda duel: -duel.share)


def mean(ratios: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(math.fsum(math.log(max(ratio, LEAST)) for ratio in ratios) / len(ratios))


def answer(evaluation: Evaluation, palette: Palette) -> str:
    """The sentence that the report is made for."""
    ratios = [ratio for scenario in evaluation.scenarios
              for ratio in [against_best(scenario)] if ratio is not None]
    statics = [duel for duel in duels(evaluation, palette) if duel.other.kind == STATIC]
    if not ratios or not statics:
        return ("No answer yet: no scenario has both a run of the agent and one of a static "
                "limit without an error.")
    held = sum(ratio >= AGENT_GOAL for ratio in ratios)
    closest = statics[0]
    return (f"The agent reaches {text.number(mean(ratios))} of the best static limit in hindsight "
            f"(geometric mean over {text.count('scenario', len(ratios))}; at least {AGENT_GOAL} "
            f"of it in {held}). Better total than every single static value: "
            f"{'yes' if closest.share < 1 else 'no'} (the best of them, {closest.other.name}, has "
            f"{text.number(closest.share)} of the agent's, in the "
            f"{text.count('scenario', closest.scenarios)} that both were run in).")


def _distinct(runs: Sequence[Run], key: str) -> List[Any]:
    return sorted({run[key] for run in runs if run.get(key) is not None}, key=str)


def conditions(runs: Sequence[Run]) -> List[Tuple[str, str]]:
    """What the runs were done on, as names and values."""
    failed = sum(bool(run.get("error")) for run in runs)
    took = math.fsum(text.known(run.get("took_s")) or 0.0 for run in runs)
    dates = [str(date)[:10] for date in _distinct(runs, "started")]
    span = dates[0] if dates and dates[0] == dates[-1] else " to ".join(dates[:1] + dates[-1:])
    scenarios, contenders = _distinct(runs, "scenario"), _distinct(runs, "contender")

    def listed(key: str) -> str:
        return ", ".join(map(str, _distinct(runs, key))) or text.UNKNOWN

    return [
        ("runs", f"{len(runs)}" + (f", {failed} failed" if failed else "")),
        ("of", f"{text.count('scenario', len(scenarios))}, "
               f"{text.count('contender', len(contenders))}"),
        ("time for them", f"{text.number(took / 3600)} h" if took >= 3600
         else f"{text.number(took / 60)} min" if took >= 100 else text.seconds(took)),
        ("date", span or text.UNKNOWN),
        ("way", listed("way")), ("kernel", listed("kernel")), ("CPUs", listed("cpus")),
        ("memory", ", ".join(text.size(text.known(value))
                             for value in _distinct(runs, "memory_bytes")) or text.UNKNOWN),
        ("scale", ", ".join(text.number(text.known(value))
                            for value in _distinct(runs, "scale")) or text.UNKNOWN)]


def cost(evaluation: Evaluation) -> List[Tuple[str, str]]:
    """What the agent itself took: the worst of its median runs."""
    own = [run["agent"] for scenario in evaluation.scenarios for one in [agent_of(scenario)]
           if one is not None for run in [one.median_run] if run is not None and run.get("agent")]

    def worst(key: str) -> Optional[float]:
        return facts.largest([text.known(each.get(key)) for each in own])

    if not own:
        return []
    nanoseconds = worst("bpf_ns_per_io")
    return [("agent's CPU, at most", f"{text.percent(worst('cpu_fraction'))} of a core"
             if worst("cpu_fraction") is not None else text.UNKNOWN),
            ("agent's memory, at most", text.size(worst("rss_bytes"))),
            ("probe per IO, at most", text.UNKNOWN if nanoseconds is None
             else f"{text.number(nanoseconds)} ns")]


def headline(evaluation: Evaluation, palette: Palette) -> str:
    runs = [run for scenario in evaluation.scenarios
            for one in scenario.contenders.values() for run in one.runs]
    totals = [(name, palette.style(name), score, text.number(score))
              for name, score in evaluation.totals.items()
              if any(name == one.name for one in palette.contenders)]
    # Same scores keep the page's order, whatever order the totals came in.
    place = {one.name: at for at, one in enumerate(palette.contenders)}
    totals.sort(key=lambda row: (-(row[2] if row[2] is not None else -1.0), place[row[0]]))
    checks = [check for scenario in evaluation.scenarios for check in scenario.checks]
    about = conditions(runs) + cost(evaluation)
    if checks:
        about.append(("expectations met", f"{sum(check.ok is True for check in checks)} of "
                                          f"{len(checks)}"))
    terms = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
                    for name, value in about)
    return (f'<p class="answer">{escape(answer(evaluation, palette))}</p><dl>{terms}</dl>'
            f'<div class="sides">{_lists(totals, duels(evaluation, palette), palette)}</div>')


def _lists(totals: Sequence[Bar], against: Sequence[Duel], palette: Palette) -> str:
    drawn = ""
    if totals:
        drawn += bars(totals, "total of those run everywhere")
    if against:
        drawn += bars([(duel.other.name, palette.style(duel.other.name), duel.share,
                        f"{text.number(duel.share)} ({duel.scenarios})") for duel in against],
                      "total, of the agent's (in as many scenarios that both ran)")
    return drawn


def verdict(scenario: Scenario) -> str:
    """How many of its expectations were met, as a mark."""
    if not scenario.checks:
        return ""
    met = sum(check.ok is True for check in scenario.checks)
    wrong = any(check.ok is False for check in scenario.checks)
    style, mark = ("bad", "✗") if wrong else (
        ("good", "✓") if met == len(scenario.checks) else ("open", "?"))
    hover = "\n".join(f"{MARKS[check.ok][1]} {check.text}: {check.value}"
                      for check in scenario.checks)
    return (f'<span class="{style}" title="{escape(hover)}">{mark} {met} of '
            f"{len(scenario.checks)}</span>")


MARKS: Dict[Optional[bool], Tuple[str, str]] = {
    True: ("good", "✓"), False: ("bad", "✗"), None: ("open", "?")}


def _cell(scenario: Scenario, one: Optional[Contender], best: float) -> str:
    if one is None:
        return '<td class="none" title="not run">·</td>'
    if one.score is None:
        errors = [str(run["error"]) for run in one.runs if run.get("error")]
        return (f'<td class="none" title="{escape(errors[0] if errors else "no score")}">'
                f"{'failed' if errors else text.UNKNOWN}</td>")
    marked = one.name == scenario.best_static
    hover = f"{one.name} in {scenario.name}: score {text.number(one.score)}"
    if one.spread is not None:
        hover += f", from {text.number(one.spread[0])} to {text.number(one.spread[1])}"
    if marked:
        hover += ", best static limit in hindsight"
    share = 100 * one.score / best if best > 0 else 0.0
    f = f"<small>f {text.number(one.f)}</small>" if scenario.has_sync else ""
    return (f'<td class="score{" best" if marked else ""}{" own" if one.kind == AGENT else ""}" '
            f'style="--v:{min(100.0, max(0.0, share)):.0f}%" title="{escape(hover)}">'
            f"{'★ ' if marked else ''}{text.number(one.score)}"
            f"{f}<small>g {text.number(one.g)}</small></td>")


def matrix(evaluation: Evaluation, palette: Palette) -> str:
    """Scenarios by contenders, the agent first; the colour compares within a row."""
    contenders = sorted(palette.contenders, key=lambda one: one.kind != AGENT)
    agents = sum(one.kind == AGENT for one in contenders)
    head = ['<th scope="col" class="name">scenario, and what it must show</th>']
    head += [f'<th scope="col"><span>{swatch(palette.style(one.name))}{escape(one.name)}</span>'
             "</th>" for one in contenders]
    head.insert(1 + agents, '<th scope="col"><span>agent : best static</span></th>')
    rows = []
    for scenario in evaluation.scenarios:
        best = max((one.score for one in scenario.contenders.values()
                    if one.score is not None), default=0.0)
        cells = [_cell(scenario, scenario.contenders.get(one.name), best) for one in contenders]
        cells.insert(agents, _regret(scenario))
        rows.append(
            f'<tr><th scope="row"><a href="#{anchor(scenario.name)}" '
            f'title="{escape(scenario.summary)}">{escape(scenario.name)}</a> {verdict(scenario)}'
            f'<small>{escape(scenario.shows)}</small></th>{"".join(cells)}</tr>')
    foot = [f'<td class="n">{text.number(evaluation.totals.get(one.name))}</td>'
            for one in contenders]
    foot.insert(agents, "<td></td>")
    return (f'<div class="wide"><table class="matrix"><thead><tr>{"".join(head)}</tr></thead>'
            f'<tbody>{"".join(rows)}</tbody><tfoot><tr><th scope="row">total</th>'
            f'{"".join(foot)}</tr></tfoot></table></div>')


def _regret(scenario: Scenario) -> str:
    ratio = against_best(scenario)
    if ratio is None:
        return f'<td class="open">{text.UNKNOWN}</td>'
    style = "good" if ratio >= AGENT_GOAL else "bad"
    return (f'<td class="{style}">{text.number(ratio)}<small>regret</small>'
            f"<small>{text.percent(max(0.0, 1 - ratio))}</small></td>")
