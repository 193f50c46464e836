# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb alerts: text, JSON, and output for Nagios."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from writebackd import formats
from writebackd.alerts.alert_types import Culprit
from writebackd.cli.client import kernel_name, request
from writebackd.cli.exit_codes import GOOD, NO_DAEMON, USAGE, CommandError
from writebackd.cli.output import Paint, clean, labelled, moment, show_screen, wrapped
from writebackd.cli.status_screen import alert_line, as_of
from writebackd.command_line import complain
from writebackd.notify.alert_events import fact, who
from writebackd.paths import HISTORY, STATE_DIR
from writebackd.report.alert_answers import past_json
from writebackd.report.history_schema import HistoryError, read_alerts

if TYPE_CHECKING:
    from writebackd.report.answers import AlertsAnswer

Json = Mapping[str, Any]

# Nagios' plugin API.
_OK, _WARNING, _CRITICAL, _UNKNOWN = 0, 1, 2, 3
_WORDS = {_OK: "OK", _WARNING: "WARNING", _CRITICAL: "CRITICAL", _UNKNOWN: "UNKNOWN"}


def alerts(options: argparse.Namespace) -> int:
    try:
        arguments = {"device": options.device}
        response: Optional[Dict[str, Any]] = request(options.runtime_dir, "alerts", arguments)
        problem = ""
    except CommandError as error:
        if options.check:
            # On standard output, where Nagios looks; the daemon's silence is not good news.
            return unknown(str(error))
        if error.exit_code != NO_DAEMON:
            raise
        response, problem = None, str(error)
    strange = ""
    if response is not None and options.device and not response["devices"]:
        strange = f"no device is called {options.device!r}: `writebackctl devices`"
        if options.check:
            return unknown(strange)
    devices = _meant(options.device, response)
    active: List[Any] = sorted(
        _of(response["active"] if response else [], devices),
        key=lambda each: (each["severity"] != "critical", each["since"]),
    )
    if options.check:
        code, text = check(active)
        print(text)
        return code
    past = _past(options, response, active, devices)
    answer: AlertsAnswer = {"time_s": None, "active": None, "past": past, "routes": None}
    if response is not None:
        answer = {**answer, "time_s": response["time_s"], "routes": response["routes"]}
        answer["active"] = active
    show_screen(options, answer, render)
    if response is None:
        raise CommandError(problem, NO_DAEMON)
    if strange and not any(each["device"] for each in past):
        # A misspelt name is no all-clear; a device that is gone may have past alerts.
        raise CommandError(strange, USAGE)
    return GOOD


def unknown(why: str) -> int:
    """Print the state of a plugin that cannot tell; returns its exit code."""
    print(f"WRITEBACKD {_WORDS[_UNKNOWN]} - {_line(why)}")
    return _UNKNOWN


def _meant(device: Optional[str], response: Optional[Json]) -> Optional[List[str]]:
    """Names of the devices to show; None: all. An unknown device may have past alerts."""
    if device is None:
        return None
    return (response and response["devices"]) or [kernel_name(device)]


def _of(alerts: List[Dict[str, Any]], devices: Optional[List[str]]) -> List[Dict[str, Any]]:
    return [
        each for each in alerts
        if devices is None or each["device"] is None or each["device"] in devices
    ]  # fmt: skip


def _past(
    options: argparse.Namespace,
    response: Optional[Json],
    active: List[Any],
    devices: Optional[List[str]],
) -> List[Any]:
    directory = Path(options.state_dir or (response and response["state_dir"]) or STATE_DIR)
    try:
        # All of them: those of the device that is asked for may lie behind another's, and how often
        # one changed nobody knows before it is read.  5 000 take 50 ms.
        records = read_alerts(directory / HISTORY)
    except HistoryError as error:
        # What is wrong now is not to be missed for what was.
        complain(f"writebackctl: {error}")
        return []
    return _of(past_json(records, active), devices)[-options.limit :]


def check(active: List[Dict[str, Any]]) -> Tuple[int, str]:
    """Exit code and output of a Nagios plugin: a line with figures after a bar, then the rest."""
    critical = sum(each["severity"] == "critical" for each in active)
    code = _CRITICAL if critical else _WARNING if active else _OK
    lines = [_line(alert_line(each)) for each in active]
    first = lines[0] if lines else "no alerts"
    if len(lines) > 1:
        first = f"{len(lines)} alerts, {first}"
    figures = f"alerts={len(active)};;;0 critical={critical};;;0"
    return code, "\n".join([f"WRITEBACKD {_WORDS[code]} - {first} | {figures}", *lines[1:]])


def _line(text: str) -> str:
    return clean(text).replace("|", "/")  # a bar would begin the figures


def render(answer: Json, columns: int = 80, colour: bool = False) -> str:
    """A paragraph for each active alert, a line for each past one; None: no daemon."""
    paint, active, past = Paint(colour), answer["active"], answer["past"]
    lines: List[str] = []
    if active is None:
        lines.append("current alerts unknown: no daemon")
    elif not active:
        lines.append(paint("no alerts", "good"))
    for each in active or ():
        lines += [*_paragraph(each, columns, paint), ""]
    if past:
        lines += [*([""] if lines[-1] else []), *_table(past, columns, paint)]
    broken = [each for each in answer["routes"] or () if each["error"] or each["lost"]]
    if broken and lines[-1]:
        lines.append("")
    for each in broken:
        text = f"{each['name']} {each['target']}: {each['error'] or 'works again'}"
        if each["waiting"]:
            text += f"; {each['waiting']} waiting"
        if each["lost"]:
            text += f"; {each['lost']} lost"
        lines += [paint(line, "warning") for line in labelled("route", text, columns)]
    return "\n".join(lines).rstrip("\n")


def _paragraph(alert: Json, columns: int, paint: Paint) -> List[str]:
    severity = alert["severity"]
    role = "blocker" if severity == "critical" else "warning"
    title = f"{severity.upper()}  {alert['name']} on {clean(alert['device'] or 'the host')}"
    now_s = time.time()
    lasts = formats.duration(max(0.0, now_s - alert["since"]))
    lines = [f"{paint(title, role)}  since {moment(alert['since'])}, {lasts} ago"]
    lines += labelled("what", alert["summary"] + as_of(alert, now_s), columns)
    lines += labelled("why", _why(alert), columns)
    for number, culprit in enumerate(alert["culprits"]):
        lines += labelled("" if number else "who", _who(culprit), columns)
    lines += labelled("done", alert["done"], columns)
    return [*lines, f"runbook  {clean(alert['runbook'])}"]


def _why(alert: Json) -> str:
    evidence = alert["evidence"]
    if not evidence or not evidence["facts"]:
        return str(alert["cause"])
    facts = ", ".join(fact(name, value) for name, value in evidence["facts"].items())
    span = formats.duration(max(0.0, evidence["end"] - evidence["begin"]))
    return f"{alert['cause']} (over {span}: {facts})"


def _who(culprit: Json) -> str:
    return who(Culprit(**culprit))


def _table(past: List[Dict[str, Any]], columns: int, paint: Paint) -> List[str]:
    lines = [paint("PAST           LASTED   WORST     WHAT", "faint")]
    for each in past:
        lasted = "?" if each["end"] is None else formats.duration(each["end"] - each["since"])
        what = f"{each['name']} on {each['device'] or 'the host'}: {', then '.join(each['causes'])}"
        lines.append(f"{moment(each['since'])} {lasted:<8} {each['severity']:<9} {clean(what)}")
        for text in (each["summary"], *(_who(one) for one in each["culprits"][:1])):
            lines += wrapped(text, columns, " " * len("PAST           "))
    return lines
