# SPDX-License-Identifier: GPL-2.0-or-later
"""One scenario: what it is for, what came out, and the drawings."""

from __future__ import annotations

import math
from typing import Callable, List, Optional, Sequence, Tuple

from . import facts, plots, text
from .evaluation import AGENT, Contender, Run, Scenario
from .headline import MARKS, verdict
from .markup import Bar, anchor, bars, swatch
from .palette import Palette
from .text import escape

Column = Tuple[str, Callable[[Contender], str], str]  # head, cell, explanation

LEGEND = (("limit", "dirty limit"), ("background", "background limit"),
          ("dirty", "dirty pages"), ("writeback", "under writeback"),
          ("target", "the agent's target"), ("true", "truth: fill, drain"),
          ("estimate", "the agent's estimate"))


def _score(one: Contender) -> str:
    words = text.number(one.score)
    if one.spread is not None:
        words += f"\n{text.number(one.spread[0])} … {text.number(one.spread[1])}"
    return words


def _extents(one: Contender) -> str:
    found = facts.extents(one.median_run)
    if found is None:
        return text.UNKNOWN
    pieces, size = found
    return f"{text.number(pieces)}\nin {text.size(size)}" if size else str(pieces)


def _bystanders(one: Contender) -> str:
    return "".join(f"\n{each.name} {_rate(each)}, {text.seconds(each.stall)}"
                   for each in facts.bystanders(one.median_run)) or text.UNKNOWN


def _rate(each: facts.Bystander) -> str:
    return text.byte_rate(each.rate) if each.in_bytes else text.rate(each.rate)


def _changed(one: Contender) -> str:
    words = text.number(one.changed)
    return words if one.changed_regret is None else (
        f"{words}\n{text.number(one.changed_regret)} of the best")


def _until(seconds: Optional[float]) -> str:
    return "never" if seconds == math.inf else text.seconds(seconds)


def _repeats(one: Contender) -> str:
    failed = sum(bool(run.get("error")) for run in one.runs)
    return f"{len(one.runs)}" + (f" ({failed} failed)" if failed else "")


COLUMNS: Sequence[Column] = (
    ("score", _score, "median of the repeats; lowest and highest"),
    ("f", lambda one: text.number(one.f), "synchronous rate, of the idle rate"),
    ("g", lambda one: text.number(one.g), "sequential rate, of that under default limits"),
    ("sync", lambda one: text.rate(facts.sync(one.median_run).rate),
     "synchronous operations or transactions"),
    ("p50", lambda one: text.seconds(facts.sync(one.median_run).p50), "of fsync"),
    ("p99", lambda one: text.seconds(facts.sync(one.median_run).p99), "of fsync"),
    ("max", lambda one: text.seconds(facts.sync(one.median_run).max),
     "of fsync; one that did not end counts with its age"),
    ("variation", lambda one: text.percent(facts.sync(one.median_run).unsteady),
     "standard deviation over mean of the operations in each second"),
    ("written", lambda one: text.byte_rate(facts.write_rate(one.median_run)),
     "by the flood and the jobs"),
    ("of best static", lambda one: text.number(one.regret),
     "score, of the best static limit's in hindsight"),
    ("changed", _changed, "score after a change in mid-run was answered; of the best static's"),
    ("protected", lambda one: _until(one.protected_s),
     "from flood, own arrival or change of a disk until p99 is within twice of what it settles at"),
    ("reached", lambda one: _until(one.reached_s),
     "from then until fsyncs come at 90 % of the best static limit's rate"),
    ("worst stall", lambda one: text.seconds(one.stall_s),
     "longest write of a buffered writer since the contender came"),
    ("extents", _extents, "of the flooded files"),
    ("bystanders", _bystanders, "rate and longest stall"),
    ("limit writes", lambda one: text.number(facts.limit_writes(one.median_run)),
     "writes to the sysctl during the run"),
    ("in the end", lambda one: text.UNKNOWN if one.writes_per_min is None
     else f"{text.number(one.writes_per_min)}/min", "writes to the sysctl"),
    ("swings", lambda one: "no" if one.swing == 0 else text.percent(one.swing),
     "amplitude of a limit that comes and goes in periods, of its mean"),
    ("repeats", _repeats, "runs of this contender"),
)


def _cell(words: str) -> str:
    """The first line large, what is below it small."""
    first, *rest = words.split("\n")
    below = "".join(f"<small>{escape(line)}</small>" for line in rest)
    return f'<td class="n">{escape(first)}{below}</td>'


def results(scenario: Scenario, ones: Sequence[Contender], palette: Palette) -> str:
    """The table of contenders, without columns of which nothing is known."""
    columns = [(head, why, [cell(one) for one in ones]) for head, cell, why in COLUMNS]
    columns = [column for column in columns
               if any(cell != text.UNKNOWN for cell in column[2])]
    head = "".join(f'<th scope="col" title="{escape(why)}">{escape(name)}</th>'
                   for name, why, _ in columns)
    rows = []
    for at, one in enumerate(ones):
        mark = " ★" if one.name == scenario.best_static else ""
        cells = "".join(_cell(column[2][at]) for column in columns)
        rows.append(f'<tr class="{one.kind}"><th scope="row" title="{escape(one.summary)}">'
                    f"{swatch(palette.style(one.name))}{escape(one.name)}{mark}</th>{cells}</tr>")
    return (f'<div class="wide"><table class="results"><thead><tr><th scope="col">contender</th>'
            f'{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>')


def _checks(scenario: Scenario) -> str:
    items = "".join(
        f'<li class="{MARKS[check.ok][0]}"><b>{MARKS[check.ok][1]}</b> {escape(check.text)} '
        f"<em>{'' if check.ok is None else 'measured: '}{escape(check.value)}</em></li>"
        for check in scenario.checks)
    return f'<ul class="checks">{items}</ul>' if items else ""


def _source(scenario: Scenario) -> str:
    """`evidence 4` is the fourth of the published cases."""
    word, _, number = scenario.source.partition(" ")
    if word == "evidence" and number in "12345":
        return f' <a class="rig" href="#published-{number}">published case {number}</a>'
    return f' <span class="rig">{escape(scenario.source)}</span>' if scenario.source else ""


def _failures(ones: Sequence[Contender]) -> str:
    items = "".join(f"<li>{escape(one.name)}, run {escape(run.get('repeat', '?'))}: "
                    f"{escape(run['error'])}</li>"
                    for one in ones for run in one.runs if run.get("error"))
    return f'<ul class="failed">{items}</ul>' if items else ""


def _keys(scenario: Scenario, ones: Sequence[Contender], palette: Palette) -> str:
    """The legend of the curves, which also switches them on and off."""
    shown = {one.name for one in plots.main_ones(scenario)}
    boxes = "".join(
        f'<label><input type="checkbox" class="t{palette.style(one.name)[1:]}"'
        f'{" checked" if one.name in shown else ""}>'
        f'<svg class="key" viewBox="0 0 26 10"><path class="l {palette.style(one.name)} '
        f'{one.kind}" d="M1 5H25"/></svg>{escape(one.name)}</label>'
        for one in ones)
    more = ""
    if scenario.has_sync:
        more = (_key("l idle-line", "before the flood") + _key("l contour", "equal score")
                + _key("l sweep", "static limits in order of size") + _key("rule", "99 %"))
    more += "".join(_key(name, f"{name} window", "M0 0H26V10H0Z") for name in ("idle", "judged"))
    return f'<p class="keys">{boxes}{more}{_key("event", "event, numbered as below")}</p>'


def _key(style: str, words: str, shape: str = "M1 5H25") -> str:
    return (f'<span><svg class="key" viewBox="0 0 26 10"><path class="{style}" d="{shape}"/>'
            f"</svg>{escape(words)}</span>")


def _legend(style: str) -> str:
    """What the lines of the limits and of the cache mean; `style` lends its colour."""
    return '<p class="keys">' + "".join(
        _key(f"l {style} {line}", words) for line, words in LEGEND) + "</p>"


def _events(run: Optional[Run]) -> str:
    items = "".join(f"<li>{text.number(time)} s: {escape(event)}</li>"
                    for time, event in facts.events(run))
    return f'<ol class="events">{items}</ol>' if items else ""


def _grid(drawings: Sequence[str]) -> str:
    figures = "".join(f"<figure>{svg}</figure>" for svg in drawings if svg)
    return f'<div class="grid">{figures}</div>' if figures else ""


def bystander_bars(ones: Sequence[Contender], palette: Palette) -> List[str]:
    """Rate and longest stall of each bystander, a bar for each contender."""
    found = {one.name: {each.name: each for each in facts.bystanders(one.median_run)}
             for one in ones}
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    drawn: List[str] = []
    for name in names:
        rates: List[Bar] = []
        stalls: List[Bar] = []
        for one in ones:
            each, style = found[one.name].get(name), palette.style(one.name)
            if each is not None:
                rates.append((one.name, style, each.rate, _rate(each)))
                stalls.append((one.name, style, each.stall, text.seconds(each.stall)))
        for rows, title in ((rates, "rate"), (stalls, "longest stall")):
            if any(value is not None for _, _, value, _ in rows):
                drawn.append(bars(rows, f"bystander {name}: {title}"))
    return drawn


def section(scenario: Scenario, palette: Palette) -> str:
    ones = plots.sorted_by(scenario, palette)
    there = [one for one in plots.main_ones(scenario) if one.median_run is not None]
    agents = [one for one in there if one.kind == AGENT]
    run = plots.reference(scenario)
    overall = ([plots.frontier(scenario, palette), plots.latencies(scenario, palette)]
               if scenario.has_sync else
               [bars([(one.name, palette.style(one.name), one.g, text.number(one.g))
                      for one in ones], "g: rate, of that under default limits")])
    overlaid = plots.overlaid(scenario, palette)
    inside = [*plots.limits(there, palette), *plots.fill(there, palette)]
    inside += [svg for one in agents for svg in plots.drain(one, palette)]
    shows = f"<p><b>It must show:</b> {escape(scenario.shows)}</p>" if scenario.shows else ""
    legend = _legend(palette.style((agents or there)[0].name)) if inside else ""
    return (
        f'<section class="scenario" id="{anchor(scenario.name)}"><h3>{escape(scenario.name)} '
        f"{verdict(scenario)}</h3><p>{escape(scenario.summary)}{_source(scenario)}</p>{shows}"
        f"{_checks(scenario)}{results(scenario, ones, palette)}{_failures(ones)}"
        f"{_keys(scenario, ones, palette)}"
        f"{_grid(overall + overlaid)}{_events(run)}{_grid(bystander_bars(ones, palette))}"
        f"{legend}{_grid(inside)}</section>")
