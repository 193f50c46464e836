# SPDX-License-Identifier: GPL-2.0-or-later
"""Verbs that are one request to the daemon: status, why, pin, observe, ... and their screens."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, List, Mapping

from writebackd import __version__, formats
from writebackd.cli.client import NoDaemon, request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.cli.output import (
    Answer,
    Paint,
    as_text,
    clean,
    frame,
    labelled,
    show_answer,
    show_screen,
    wants_colour,
    width,
    wrapped,
)
from writebackd.cli.status_screen import (
    MIN_WIDTH,
    by_whom,
    heading,
    in_window,
    own_limit,
    render_status,
    trial_words,
    verdict_lines,
)

if TYPE_CHECKING:
    from writebackd.cli.client_answers import VersionAnswer


def render_why(why: Answer, width: int = 80, colour: bool = False, verbose: bool = False) -> str:
    """Verdict, cause, next: of the limit, then of each device; `verbose` adds the reasoning."""
    paint = Paint(colour)
    limit = why["limit"]
    lines = verdict_lines(why, width, paint)
    lines += [paint(line, "heading") for line in wrapped(_limit_title(why), width, "  ", "")]
    cause = limit["reason"] or formats.UNKNOWN
    lines += labelled("cause", cause + by_whom(limit.get("pin")), width)
    if limit.get("trial") is not None:
        lines += labelled("trial", trial_words(limit["trial"]), width)
    lines += labelled("next", limit["next"], width)
    devices = why["devices"]
    # Of many, those that have no say are not worth a paragraph each.
    excluded = [d for d in devices if d["state"] == "excluded"] if len(devices) > 1 else []
    for device in devices:
        if device not in excluded:
            lines.append("")
            lines += _device_reasoning(device, limit["threshold_bytes"], width, paint, verbose)
    if excluded:
        lines.append("")
        lines += labelled("excluded", " ".join(device["name"] for device in excluded), width)
    return "\n".join(lines)


def _limit_title(why: Answer) -> str:
    limit = why["limit"]
    policy = clean(why["policy"]) + in_window(why.get("window"))
    now = formats.size(limit["threshold_bytes"])
    if limit["limit_bytes"] is None:
        return f"limit {now}, not set by writebackd ({why['mode']}, policy {policy})"
    if why["mode"] == "observe":
        goal = formats.size(limit["goal_bytes"])
        return f"limit {now}; enforce would set {goal} (policy {policy})"
    if why["off"] is not None:
        goal = formats.size(limit["goal_bytes"])
        return f"limit {now} (off); would set {goal} (policy {policy})"
    goes = heading(limit["limit_bytes"], limit["goal_bytes"])
    return (
        f"limit {formats.size(limit['limit_bytes'])}{goes},"
        f" background {formats.size(limit['background_bytes'])} (policy {policy})"
    )


def _device_reasoning(
    device: Answer, host_bytes: int, width: int, paint: Paint, verbose: bool
) -> List[str]:
    state = device["state"] or "not decided"
    title = paint(clean(device["name"]), "heading") + "  " + paint(state, state)
    if device["decision_id"]:
        title += f"  decision {clean(device['decision_id'])}"
    if device["mounts"]:
        title += "  " + clean(" ".join(device["mounts"]))[: max(0, width - 40)]
    lines = [title]
    if device["verdict"] is not None:
        lines += labelled("verdict", device["verdict"], width)
    lines += labelled("cause", device["reason"] or formats.UNKNOWN, width)
    own = own_limit(device, host_bytes)
    lines += labelled("limit", own, width) if own else []
    lines += labelled("next", device["next"], width)
    if device["sections"]:
        lines += labelled("policy", ", ".join(device["sections"]), width)
    steps = [step for step in device["steps"] if step != device["reason"]] if verbose else []
    for number, step in enumerate(steps, 1):
        label = "steps" if number == 1 else ""
        lines += wrapped(step, width, " " * 12, f"{label:<9}{number}. ")
    return lines


def render_devices(answer: Answer, width: int = 80, colour: bool = False) -> str:
    paint = Paint(colour)
    if not answer["devices"]:
        return "no device: no filesystem on a block device is mounted"
    lines: List[str] = []
    for device in answer["devices"]:
        managed = "managed" if device["managed"] else "not managed"
        name = paint(clean(device["name"]), "heading")
        lines.append(f"{name} ({as_text(device['devno'])})  {managed}, {as_text(device['state'])}")
        if device["reason"]:
            lines += labelled("  why", device["reason"], width)
        lines += labelled("  disks", _disks(device), width)
        for said in device["reported"]:
            lines += labelled("  behind", _behind(said), width)
        for filesystem in device["filesystems"]:
            text = f"{filesystem['type']} on {filesystem['mount']} ({filesystem['devno']})"
            lines += labelled("  fs", text, width)
    return "\n".join(lines)


def _behind(said: Answer) -> str:
    """What a tool or the kernel reports about cache and array."""
    parts = []
    if said["mode"] is not None or said["capacity_bytes"] is not None:
        size = (
            "" if said["capacity_bytes"] is None else f" of {formats.size(said['capacity_bytes'])}"
        )
        parts.append(f"cache{size}, {as_text(said['mode'])}")
    if said["dirty_bytes"] is not None:
        parts.append(f"{formats.size(said['dirty_bytes'])} dirty")
    if said["protection"] is not None:
        parts.append(f"battery {as_text(said['protection'])}")
    parts += [f"not understood: {as_text(each)}" for each in said["unread"]]
    if said["learn_s"] is not None:
        left_s = max(0.0, said["learn_s"] - said["time_s"])
        parts.append(f"next battery test in {formats.duration(left_s)}")
    parts += [f"{name} {value}" for name, value in said["thresholds"].items()]
    for work in said["works"]:
        done = "" if work["share"] is None else f" {formats.percent(work['share'])} done"
        rate = "" if work["rate"] is None else f" at {formats.size(work['rate'])}/s"
        parts.append(f"{as_text(work['kind'])}{done}{rate}")
    return f"{as_text(said['source'])}: {', '.join(parts) or 'nothing'}"


def _disks(device: Answer) -> str:
    spins = {True: "rotational", False: "not rotational", None: "rotational -"}
    parts = [
        " ".join(device["leaves"]) or formats.UNKNOWN,
        spins[device["rotational"]],
        f"driver {as_text(device['driver'])}",
        f"queue/write_cache {as_text(device['queue_write_cache'])}",
        f"bdi {as_text(device['bdi'])}",
    ]
    return ", ".join(parts)


def render_verify(answer: Answer, width: int = 80) -> str:
    lines: List[str] = []
    for row in answer["differences"]:
        current = "no limit" if row["found"] is None else row["found"]
        text = f"{row['file']} is {current}, writebackd wrote {row['expected']}"
        if row["pid"] is not None:
            text += f"; set by {as_text(row['comm'])} (pid {row['pid']}"
            text += f", cgroup {row.get('cgroup') or 'gone'}"
            text += f", command line: {row['cmdline']})" if row.get("cmdline") else ")"
        lines += wrapped(text, width, "  ", "")
    if answer["yielded"] is not None:
        text = f"yielded: {answer['yielded']}; `writebackctl enforce` takes over again"
        lines += wrapped(text, width, "  ", "")
    if lines:
        return "\n".join(lines)
    written, levers = answer["written"], answer["levers"]
    if written is None and not levers:
        return "good: writebackd holds no limit"
    parts = []
    if written is not None:
        parts.append(
            f"dirty_bytes {written['dirty_bytes']} and dirty_background_bytes"
            f" {written['dirty_background_bytes']}"
        )
    if levers:
        parts.append(f"{len(levers)} other lever{'s' * (len(levers) > 1)}")
    return "\n".join(wrapped(f"good: {' and '.join(parts)} as written", width, "  ", ""))


def render_findings(answer: Answer, width: int = 80, colour: bool = False) -> str:
    """Findings of doctor, the worst last, so that they stay on the screen."""
    paint = Paint(colour)
    lines: List[str] = []
    findings = answer["findings"]
    for level in ("good", "note", "warning", "blocker"):
        for finding in findings:
            if finding["level"] == level:
                text = labelled(level, finding["text"], width)
                lines.append(paint(text[0][:8], level) + text[0][8:])
                lines += text[1:]
    blockers = sum(finding["level"] == "blocker" for finding in findings)
    plural = "" if blockers == 1 else "s"
    verdict = "writebackd can run here"
    if blockers:
        verdict = f"writebackd cannot run here: {blockers} blocker{plural}"
    return "\n".join([*lines, "", verdict])


_CLEAR = "\x1b[2J"

# ---- questions ---------------------------------------------------------


def status(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "status")
    if options.watch is None:
        show_answer(options, answer, lambda: _screen(options, answer))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(options, answer)
    return GOOD


def _screen(options: argparse.Namespace, answer: Answer) -> str:
    return render_status(answer, width(MIN_WIDTH), wants_colour(sys.stdout, options.color))


def _watch(options: argparse.Namespace, answer: Answer) -> None:
    """Repeat until Ctrl-C: the screen in place on a terminal, elsewhere one line each time."""
    in_place = sys.stdout.isatty() and not options.json
    if in_place:
        sys.stdout.write(_CLEAR)
    while True:
        if in_place:
            height = shutil.get_terminal_size().lines
            sys.stdout.write(frame(_screen(options, answer), height))
        elif options.json:
            print(json.dumps(answer))
        else:
            print(f"{time.strftime('%H:%M:%S')} {clean(answer['verdict']['text'])}")
        sys.stdout.flush()
        time.sleep(options.watch)
        try:
            answer = request(options.runtime_dir, "status")
        except CommandError:  # it restarts, hangs, or is gone
            last_s = answer["time_s"]
            since = time.strftime("%H:%M:%S", time.localtime(last_s))
            text = f"BLIND: writebackd does not answer; last values are from {since}"
            verdict = {"code": "BLIND", "device": None, "since_s": last_s, "text": text}
            answer = {**answer, "verdict": verdict}


def devices(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "devices")
    show_screen(options, answer, render_devices)
    return GOOD


def why(options: argparse.Namespace) -> int:
    args = {} if options.device is None else {"device": options.device}
    answer = request(options.runtime_dir, "why", args)
    show_screen(options, answer, render_why, options.verbose)
    return GOOD


def verify(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "verify")
    show_answer(options, answer, lambda: render_verify(answer, width()))
    return GOOD if answer["good"] else BAD_NEWS


def metrics(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "metrics", {"format": options.format})
    show_answer(options, answer, lambda: str(answer["text"]).rstrip("\n"))
    return GOOD


def version(options: argparse.Namespace) -> int:
    """The version of this program, the daemon and the kernel; without a daemon it is no failure."""
    answer: VersionAnswer = {
        "writebackctl": __version__, "writebackd": None, "probe": None,
        "kernel": os.uname().release,
    }  # fmt: skip
    try:
        status = request(options.runtime_dir, "status")
        answer["writebackd"], answer["probe"] = status["version"], status["probe"]["backend"]
        running = f"{as_text(answer['writebackd'])}, probe {as_text(answer['probe'])}"
    except CommandError as error:
        running = "not running" if isinstance(error, NoDaemon) else "no answer"
    show_answer(options, answer, lambda: (
        f"writebackctl  {__version__}\nwritebackd    {running}\nkernel        {answer['kernel']}"
    ))  # fmt: skip
    return GOOD


# ---- orders ------------------------------------------------------------


def mode(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "mode", {"mode": options.verb})
    return report(options, answer, f"mode: {answer['mode']}")


def pin(options: argparse.Namespace) -> int:
    # Imported here: the other verbs do without, and start-up time is imports.
    from writebackd.policy.units import UnitError, parse_size

    try:
        args: Mapping[str, Any] = {"bytes": parse_size(options.size)}
    except UnitError as error:
        raise CommandError(f"pin: {error}", USAGE) from None
    lasts = ""
    if options.span is not None:
        args = {**args, "for_s": options.span}
        lasts = f" for {formats.duration(options.span)}"
    answer = request(options.runtime_dir, "pin", args)
    return report(options, answer, f"pinned to {formats.size(answer['pin_bytes'])}{lasts}")


def release(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "release")
    return report(options, answer, "released")


def reset_stats(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "reset-stats")
    return report(options, answer, "counters zeroed")


def forget(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "forget", {"device": options.device})
    return report(options, answer, f"learned values of {answer['device']} dropped")


def report(options: argparse.Namespace, answer: Answer, headline: str) -> int:
    """Print what was done; BAD_NEWS if the answer says that a part of it failed."""
    lines = [headline, *(f"  {line}" for line in answer["lines"])]
    show_answer(options, answer, lambda: "\n".join(lines))
    return GOOD if answer.get("good", True) else BAD_NEWS
