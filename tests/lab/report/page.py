# SPDX-License-Identifier: GPL-2.0-or-later
"""One page of HTML for all runs: the tables that bench prints, with curves and frontiers."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from writebackd.report.plot import escape
from writebackd.report.report_page import head

from ..show import MEANING, block, summary
from . import plots
from .evaluation import Evaluation, Scenario
from .palette import Palette

STYLE = Path(__file__).with_name("style.css")
TITLE = "writebackd: report of the lab"
LEGEND = (("limit", "dirty limit"), ("background", "background limit"), ("dirty", "dirty pages"),
          ("writeback", "under writeback"), ("target", "the agent's target"),
          ("true", "true cache fill"), ("estimate", "the agent's estimate"))


def write_report(evaluation: Evaluation, path: Path) -> None:
    path.write_text(render(evaluation), encoding="utf-8")


def render(evaluation: Evaluation) -> str:
    """A page that needs nothing else; the same input gives the same page."""
    palette = Palette(evaluation)
    links = " ".join(f'<a href="#s-{escape(scenario.name)}">{escape(scenario.name)}</a>'
                     for scenario in evaluation.scenarios)
    sections = "".join(_section(scenario, palette) for scenario in evaluation.scenarios)
    style = STYLE.read_text(encoding="utf-8") + palette.css()
    return f"""{head(TITLE, style)}<body>
<h1>{TITLE}</h1>
{_pre(summary(evaluation))}
<nav>{links}</nav>
{sections}
<h2>What the figures are</h2>
{_pre(MEANING.splitlines())}
<p>Figures are medians of the repeats, curves are of the repeat with the median score. At a scale
below 1 sizes and rates of disk and loads are multiplied by it, latencies stay. Compare figures of
one report with each other, not with those of another machine: tests/lab/README.md says why.</p>
</body></html>
"""


def _section(scenario: Scenario, palette: Palette) -> str:
    drawn = [one for one in palette.contenders if one.name in scenario.contenders
             and scenario.contenders[one.name].median_run is not None]
    ones = [scenario.contenders[one.name] for one in drawn]
    main = plots.main_ones(scenario, ones)
    shown = {one.name for one in main}
    boxes = "".join(
        f'<label><input type="checkbox" class="t{palette.style(one.name)[1:]}"'
        f'{" checked" if one.name in shown else ""}>'
        f"{_key(f'l {palette.style(one.name)} {one.kind}', one.name)}</label>" for one in ones)
    compared = plots.overlaid(ones, palette)
    if scenario.has_sync:
        compared = [plots.frontier(ones, palette), plots.latencies(ones, palette), *compared]
    inside = [*plots.limits(main, palette), *plots.fill(main, palette)]
    legend = "".join(_key(f"l {line}", words) for line, words in LEGEND)
    return (f'<section id="s-{escape(scenario.name)}"><h2>{escape(scenario.name)}</h2>'
            f"<p>It must show: {escape(scenario.shows)}</p>{_pre(block(scenario))}"
            f'<p class="keys">{boxes}</p>{_grid(compared)}'
            f'<p class="keys">{legend}</p>{_grid(inside)}</section>')


def _pre(lines: Sequence[str]) -> str:
    return "<pre>" + "\n".join(map(escape, lines)) + "</pre>"


def _key(style: str, words: str) -> str:
    return (f'<span><svg class="key" viewBox="0 0 26 10"><path class="{style}" d="M1 5H25"/></svg>'
            f"{escape(words)}</span>")


def _grid(drawings: Sequence[str]) -> str:
    return ('<div class="grid">'
            + "".join(f"<figure>{svg}</figure>" for svg in drawings if svg) + "</div>")
