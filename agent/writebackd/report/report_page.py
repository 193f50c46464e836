# SPDX-License-Identifier: GPL-2.0-or-later
"""Renders a span of the history as a self-contained HTML page.  Pure."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from writebackd import formats
from writebackd.formats import latency
from writebackd.kernel.vm import BACKGROUND, LIMIT
from writebackd.report.alert_answers import blamed, sentence
from writebackd.report.device_figures import STEP_S, Figures
from writebackd.report.device_plot import Mark, bins, device_plot
from writebackd.report.effectiveness import (
    Effectiveness,
    Period,
    headline,
    measure,
    number,
    sentences,
)
from writebackd.report.history_events import RESOLVED, WOULD_BE, readable
from writebackd.report.history_schema import Event
from writebackd.report.plot import escape
from writebackd.report.timeline import (
    STATES,
    Signs,
    Span,
    alert_marks,
    moment_marks,
    state_marks,
    trial_spans,
)
from writebackd.tuning import FLOOD_RATE

# May link nowhere and run nothing, also where a name should get past the escaping.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Rows of the table of events; `history --csv` has all.
MAX_EVENTS = 300


def render(
    span: Span, rows: Sequence[Figures], events: Sequence[Event],
    past: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page; the same input gives the same page in the same time zone.

    `events` may begin before the span, for the states and alerts at its beginning, and end after
    it, as they tell whether the daemon lived to its end. `past` are alerts as past_json() has them.
    """
    by_device: Dict[str, List[Figures]] = {}
    for row in rows:
        by_device.setdefault(row.device, []).append(row)
    trials = trial_spans(events)
    judged = [measure(of_one, trials) for of_one in by_device.values()]
    # Where syncs met floods comes first, then who wrote most.
    judged.sort(
        key=lambda each: (
            -(each.held.waited_s + each.loose.waited_s),
            -sum(row.write_rate * row.span_s for row in by_device[each.device]),
            each.device,
        )
    )
    inside = [event for event in events if span.begin_s <= event.wall_s <= span.end_s]
    moments, signs = moment_marks(inside), Signs(events, rows, span)
    sections = "".join(
        _section(each, by_device[each.device], events, moments, signs, span, past)
        for each in judged
    )
    if not judged:
        sections = (
            f'<p class="absent">No figures of this time: a device has a row for each {STEP_S:g} s'
            " in which it wrote or synced.</p>"
        )
    title = f"writebackd on {span.host}"
    # A limit is the host's, but rows are of times only in which their device did something.
    held_s, flooded_s = (
        max((sum(map(seconds, of_one)) for of_one in by_device.values()), default=0.0)
        for seconds in (lambda row: row.ours_s, lambda row: row.flooded_s)
    )
    return f"""{head(title, STYLE)}<body>
<header><h1>{escape(title)}</h1>
<p class="when">{period(span.begin_s, span.end_s)}</p>
<p class="answer">{_text(headline(judged))}</p>
{facts(_counts(held_s, flooded_s, len(judged), inside))}</header>
<main>{sections}
{_events(inside)}</main>
<footer><p>Latencies are of commits: fsync, fdatasync, msync and O_SYNC writes, and the sleep in
write() before them where the kernel shows it. A percentile is exact to 12.5 %. Waiting is weighted
by time: one commit of a second counts as much as a thousand
of a millisecond. Sizes and rates are 1024-based. A device is busy in each 10 s in which it wrote or
synced; of other times no figures are kept. A time counts as flooded while the kernel writes
{formats.size(FLOOD_RATE)}/s or more back to the device, and a quarter of the background limit or
more is dirty, or writers sleep for the limit. Times with and without writebackd are different
times; the load may have differed. A limit found as a ratio of memory is an estimate. The fill of
the cache is computed from what goes in and what drains.</p>
<p>writebackd {escape(span.version)}, page made {when(span.made_s)} (local time of that host). The
same as data: <code>writebackctl history --figures --csv</code></p></footer>
</body></html>
"""


def head(title: str, style: str) -> str:
    """The head of a page that loads nothing and runs no script."""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>{style}</style></head>"""


def facts(pairs: Sequence[Tuple[str, str]]) -> str:
    cells = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f"<dl>{cells}</dl>"


def table(head: Sequence[str], rows: Sequence[Tuple[str, Sequence[str]]]) -> str:
    """Figures: the name of each row, and its cells."""
    body = "".join(
        f'<tr><th scope="row">{name}</th>'
        + "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    return _table(head, body)


def _table(head: Sequence[str], body: str, style: str = "figures") -> str:
    columns = "".join(f'<th scope="col">{name}</th>' for name in head)
    return (
        f'<div class="wide"><table class="{style}"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def period(begin_s: float, end_s: float) -> str:
    return f"{when(begin_s)} to {when(end_s)}, {formats.duration(end_s - begin_s)}"


def when(wall_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))


def _counts(
    held_s: float, flooded_s: float, devices: int, events: Sequence[Event]
) -> List[Tuple[str, str]]:
    kinds = Counter(event.kind for event in events)
    # One that got worse is still the same.
    raised = {
        event.decision_id or event.text
        for event in events
        if event.kind == "alert" and event.state != RESOLVED
    }
    actions = [event.text for event in events if event.kind == "action"]
    failed = sum(" failed: " in text for text in actions)
    # What observe would set is not set. Both limits go together, and are one change.
    levers = [
        text.split(" ", 1)[0]
        for text in actions if " failed: " not in text and not text.startswith(WOULD_BE)
    ]  # fmt: skip
    others = sum(lever not in (*LIMIT, *BACKGROUND) for lever in levers)
    counts = [
        ("busy under writebackd's limit, longest device", formats.duration(held_s)),
        ("flooded, longest device", formats.duration(flooded_s)),
        ("devices with figures", str(devices)),
        ("decisions", str(kinds["decision"])),
        ("limit set", str(sum(lever in LIMIT for lever in levers))),
        ("alerts", str(len(raised))),
        ("limits set by another process", str(kinds["foreign"])),
    ]
    optional = (("other levers set", others), ("failed writes", failed))
    return counts + [(name, str(count)) for name, count in optional if count]


def _section(
    each: Effectiveness,
    rows: Sequence[Figures],
    events: Sequence[Event],
    moments: Sequence[Mark],
    signs: Signs,
    span: Span,
    past: Sequence[Mapping[str, Any]],
) -> str:
    name, states = each.device, state_marks(events, signs, each.device, span)
    alerts = alert_marks(events, signs, name, span)
    drawn = bins(rows, span.begin_s, span.end_s)
    plot = device_plot(name, drawn, states, alerts, moments, span.begin_s, span.end_s)
    who = sentence(blamed(past, name, span.begin_s, span.end_s))
    lines = [*sentences(each), *([who] if who else [])]
    said = "".join(f"<p>{_text(line)}</p>" for line in lines)
    return (
        f"<section><h2>{escape(name)}</h2>{said}{_compared(each)}"
        f'<div class="wide"><figure>{plot}</figure></div>'
        f"{_legend(states, alerts, moments)}</section>"
    )


def _legend(states: Sequence[Mark], alerts: Sequence[Mark], moments: Sequence[Mark]) -> str:
    """The other elements of the plot, and their meaning."""
    shown = dict.fromkeys(mark.style for mark in states if mark.style in STATES)
    keys = [(state, f"{state}: {STATES[state]}") for state in shown]
    severities = dict.fromkeys(mark.style for mark in alerts)
    keys += [(style, f"{style} alert; shaded while it lasted") for style in severities]
    if moments:
        kinds = dict.fromkeys(mark.style for mark in moments)
        keys.append(("moment", f"event: {', '.join(kinds)}"))
    return '<p class="legend">' + " ".join(
        f'<span><i class="{style}"></i>{escape(text)}</span>' for style, text in keys
    ) + "</p>"


def _compared(each: Effectiveness) -> str:
    rows = [
        (name, _cells(stretch))
        for name, stretch in (
            ("flood, writebackd's limit", each.held),
            ("flood, limit as found", each.loose),
            ("no flood", each.calm),
        )
        if stretch.span_s
    ]
    head = (
        "", "time", "limit", "written", "commits", "per second", "p50", "p99",
        "time-weighted median wait", "longest seen",
    )  # fmt: skip
    return table(head, rows) if rows else ""


def _cells(stretch: Period) -> Tuple[str, ...]:
    return (
        formats.duration(stretch.span_s),
        formats.size(stretch.limit_bytes),
        f"{formats.size(stretch.written_bytes / stretch.span_s)}/s",
        number(stretch.latency.total),
        formats.count(stretch.sync_rate),
        *map(latency, (stretch.p50_s, stretch.p99_s, stretch.wait_s, stretch.longest_s)),
    )


def _whose(event: Event) -> str:
    """The decision's id, which begins with the device, or the device: an alert's id is too long."""
    own = None if event.kind == "alert" else event.decision_id
    return own or event.device or ""


def _events(events: Sequence[Event]) -> str:
    if not events:
        return ""
    shown = events[-MAX_EVENTS:]
    left = len(events) - len(shown)
    note = f"<p>The last {len(shown)}; {left} before them are not shown.</p>" if left else ""
    body = "".join(
        f'<tr><td class="t">{when(event.wall_s)}</td><td>{escape(event.kind)}</td>'
        f"<td>{escape(_whose(event))}</td>"
        f"<td>{escape(event.state or '')}</td>"
        f'<td class="n">{"" if event.limit_bytes is None else formats.size(event.limit_bytes)}</td>'
        f'<td class="text">{escape(readable(event.text))}</td></tr>'
        for event in shown
    )
    head = ("when", "what", "decision", "state", "limit", "why")
    return f"<section><h2>Events</h2>{note}{_table(head, body, 'events')}</section>"


def _text(said: str) -> str:
    """A sentence whose figures stay on one line with their units."""
    return re.sub(r"(?<=\d) (?=(%|ms|times)\b|%)", "&nbsp;", escape(said))


STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--soft:#59636d;--rule:#d9dee3;--panel:#f4f6f8;
--one:#0068a3;--two:#c8470a;--three:#007a58;--found:#8a6d00;--target:#8b5aa0;
--warning:#e0a100;--critical:#d0342c;
--idle:#dfe4e8;--guard:#bfe3d3;--squeeze:#f6c79a;--probe:#bcdcf5;--pace:#dcc9ec;
--exhausted:#f0a59f;--blind:#e3dccb;--yielded:#f3dfa0;--pinned:#d4d8f5;--excluded:#eef0f2}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e4e7ea;--soft:#9aa4ad;
--rule:#333a41;--panel:#1b2025;--one:#62b5e8;--two:#ff8a4c;--three:#4fc79d;--found:#d9b84a;
--target:#c79be0;--warning:#e0a100;--critical:#ff6b60;
--idle:#2c343b;--guard:#1d5a43;--squeeze:#7a4413;--probe:#1f5075;--pace:#553a6c;
--exhausted:#7c2a25;--blind:#4a4434;--yielded:#66551a;--pinned:#3c4278;--excluded:#20262b}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem clamp(.8rem,3vw,2.5rem) 3rem;max-width:1100px;
background:var(--paper);color:var(--ink);
font:.94rem/1.5 system-ui,"Segoe UI","Liberation Sans","DejaVu Sans",sans-serif}
h1{font-size:1.15rem;margin:0;color:var(--soft);font-weight:600;overflow-wrap:anywhere}
h2{font-size:1.35rem;margin:2.4rem 0 .5rem;padding-top:.7rem;border-top:2px solid var(--ink);
overflow-wrap:anywhere}
p{margin:.3rem 0;max-width:80ch}
.when{color:var(--soft)}
.answer{font-size:1.4rem;line-height:1.38;max-width:62ch;margin:.8rem 0 1.2rem}
.absent{font-style:italic;color:var(--soft);margin:2rem 0}
footer{margin-top:2.5rem;border-top:1px solid var(--rule);color:var(--soft);font-size:.85rem}
dl{display:grid;gap:.6rem 1.4rem;margin:1rem 0;
grid-template-columns:repeat(auto-fill,minmax(128px,1fr))}
dl div{min-width:0}
dt{color:var(--soft);font-size:.82rem}
dd{margin:0;font-weight:600}
.wide{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.88rem;margin:.7rem 0}
th,td{padding:.22rem .6rem;text-align:left;vertical-align:baseline;
border-bottom:1px solid var(--rule)}
th:first-child,td:first-child{padding-left:0}
thead th{color:var(--soft);font-size:.8rem;font-weight:600}
tbody th{font-weight:400;white-space:nowrap}
.figures thead th:not(:first-child),td.n{text-align:right}
td.n,td.t{white-space:nowrap}
.events{font-size:.82rem}
td.text{min-width:24ch;overflow-wrap:anywhere}
figure{margin:.8rem 0 0;min-width:680px}
svg{display:block;width:100%;height:auto;
font:12px system-ui,"Liberation Sans","DejaVu Sans",sans-serif}
svg text{fill:var(--soft)}
svg .title{fill:var(--ink);font-weight:600}
svg .word{fill:var(--ink);font-size:11px;pointer-events:none}
svg .word.warning,svg .word.critical{fill:#14171a}
.grid{stroke:var(--rule);fill:none}
.beside{text-anchor:end}.below{text-anchor:middle}
.l{fill:none;stroke-width:1.5;stroke-linejoin:round}
.l.one{stroke:var(--one)}.l.two{stroke:var(--two)}.l.three{stroke:var(--three)}
.l.found{stroke:var(--found);stroke-dasharray:5 3}
.l.target{stroke:var(--target);stroke-dasharray:2 2}
svg tspan.one{fill:var(--one)}svg tspan.two{fill:var(--two)}svg tspan.three{fill:var(--three)}
svg tspan.found{fill:var(--found)}svg tspan.target{fill:var(--target)}
.legend{color:var(--soft);font-size:.82rem;max-width:none;margin-top:.6rem}
.legend span{display:inline-block;margin-right:1.2em}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
.legend .warning{background:var(--warning)}.legend .critical{background:var(--critical)}
.legend .moment{width:0;border-left:2px dotted var(--soft)}
.empty{fill:var(--panel)}
.hover{fill:transparent}
.hover:hover{fill:var(--ink);fill-opacity:.08}
.moment{stroke:var(--soft);stroke-dasharray:2 4;fill:none}
.shade{fill-opacity:.09}
.mark.warning,.shade.warning{fill:var(--warning)}
.mark.critical,.shade.critical{fill:var(--critical)}
""" + "".join(
    f".mark.{state}{{fill:var(--{state})}}.legend .{state}{{background:var(--{state})}}\n"
    for state in STATES
) + """
.mark.unknown{fill:var(--rule)}
@media print{body{max-width:none;padding:0;font-size:9.5pt}.wide{overflow:visible}
figure{min-width:0;break-inside:avoid}h2{break-after:avoid}tr{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.hover{display:none}}
@page{margin:14mm}
"""
