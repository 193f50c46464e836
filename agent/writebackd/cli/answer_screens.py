# SPDX-License-Identifier: GPL-2.0-or-later
"""Text screens of the answers other than status."""

from __future__ import annotations

from typing import List, Sequence

from writebackd import formats
from writebackd.cli.status_screen import (
    Answer,
    Paint,
    as_text,
    by_whom,
    clean,
    heading,
    in_window,
    labelled,
    trial_words,
    verdict_lines,
    wrapped,
)


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
            lines += _device_reasoning(device, width, paint, verbose)
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


def _device_reasoning(device: Answer, width: int, paint: Paint, verbose: bool) -> List[str]:
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
    lines += labelled("next", device["next"], width)
    if device["sections"]:
        lines += labelled("policy", ", ".join(device["sections"]), width)
    steps = [step for step in device["steps"] if step != device["reason"]] if verbose else []
    for number, step in enumerate(steps, 1):
        label = "steps" if number == 1 else ""
        lines += wrapped(step, width, " " * 12, f"{label:<9}{number}. ")
    return lines


def render_devices(answer: Answer, width: int = 80, colour: bool = False) -> str:
    """Every device with its disks, and whether it is managed."""
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
    """The values in the kernel compared with those written last."""
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


def render_findings(findings: Sequence[Answer], width: int = 80, colour: bool = False) -> str:
    """Findings of doctor, the worst last, so that they stay on the screen."""
    paint = Paint(colour)
    lines: List[str] = []
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
