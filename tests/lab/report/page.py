# SPDX-License-Identifier: GPL-2.0-or-later
"""The page as a whole."""

from __future__ import annotations

from pathlib import Path

from .evaluation import Evaluation
from .headline import headline, matrix
from .markup import anchor
from .palette import Palette
from .sections import section
from .seed import comparison
from .text import escape

STYLE = Path(__file__).with_name("style.css")
TITLE = "writebackd: report of the lab"

# May link nowhere and run nothing, also where a name in the runs should get past the escaping.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

METHOD = """
<p>The disk is a model: a controller with a write cache, a link in front and media behind it that
pay for seeks and bytes. All above it is real: kernel, block layer, filesystem, programs. Every
run has fresh disks and filesystems; the contenders of a scenario take turns, so that a machine
whose speed drifts treats them alike.</p>
<dl class="method">
<div><dt>f</dt><dd>rate of the synchronous load in the judged window, of its rate before the flood
(idle window, median over the contenders of the same repeat); of several loads the geometric
mean.</dd></div>
<div><dt>g</dt><dd>rate at which the flood was written, of that under default limits in the same
repeat.</dd></div>
<div><dt>score</dt><dd>f &times; min(1, g / 0.95)<sup>4</sup>; g alone where nothing is
synchronous.</dd></div>
<div><dt>total</dt><dd>geometric mean of a contender's scores over the scenarios in which default
limits, 4 MB, 15 MB and the agent have all run; special scenarios with fewer contenders are not in
it.</dd></div>
<div><dt>best static in hindsight (&starf;)</dt><dd>the fixed limit of the sweep with the best
score in that very scenario: nobody could have known it before.</dd></div>
<div><dt>regret</dt><dd>what the agent's score lacks of the best static one's.</dd></div>
</dl>
<p>Scores are medians of the repeats; every other figure and every curve is of the repeat with the
median score. Several synchronous loads in one run count together: their rates added up, the
worst of their latencies. Sizes are 1024-based, rates 1000-based. At a scale below 1 sizes and rates
of disk and loads are multiplied by it, latencies stay.</p>
<p>What the media drained is computed from what the device took and what its cache gained, over one
second. Compare figures of one report with each other, not with those of another machine.</p>
<pre># what would run, and how long; without --plan: run it
sudo build/venv/bin/python -m tests.lab.bench --plan
# this page, from the runs in a directory
build/venv/bin/python -m tests.lab.report DIRECTORY</pre>
<p>tests/lab/README.md has the whole of it.</p>
"""


def render(evaluation: Evaluation) -> str:
    """One page of HTML that needs nothing else; the same input gives the same page."""
    palette = Palette(evaluation)
    links = "".join(f'<a href="#{anchor(scenario.name)}">{escape(scenario.name)}</a> '
                    for scenario in evaluation.scenarios)
    sections = "".join(section(scenario, palette) for scenario in evaluation.scenarios)
    style = STYLE.read_text(encoding="utf-8") + palette.css()
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>{style}</style></head><body>
<header><h1>{TITLE}</h1>{headline(evaluation, palette)}</header>
<main>
<section id="published"><h2>Beside published figures</h2>
<p>Other machines, most of them many years older: compare the ratios between the lines of one table,
not the absolute figures.</p>{comparison(evaluation)}</section>
<section id="matrix"><h2>All scenarios</h2>
<p>Large: the score; the fuller its colour, the closer to the best of the row. &starf; marks
the best static limit in hindsight.</p>{matrix(evaluation, palette)}</section>
<h2>One by one</h2>
<nav>{links}</nav>
{sections}
<section id="method"><h2>Method, and how to get it again</h2>{METHOD}</section>
</main></body></html>
"""


def write_report(evaluation: Evaluation, path: Path) -> None:
    path.write_text(render(evaluation), encoding="utf-8")
