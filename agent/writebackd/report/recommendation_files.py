# SPDX-License-Identifier: GPL-2.0-or-later
"""A recommendation as a sysctl.d file, a tuned profile, a policy drop-in, or data.  Pure."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.kernel.conflicting_tools import ConflictingTool
from writebackd.kernel.tuned_profiles import TunedLine
from writebackd.kernel.vm import PAIRS
from writebackd.policy.keys import DEVICE_KEYS
from writebackd.policy.units import format_size, format_time
from writebackd.report.alert_answers import sentence
from writebackd.report.effectiveness import sentences
from writebackd.report.plot import THIN
from writebackd.report.recommendation import DeviceAdvice, Recommendation, price, reason
from writebackd.types.levers import VmLimits

if TYPE_CHECKING:
    from writebackd.report.answers import Advised, RecommendAnswer

MADE_BY = "writebackctl recommend"
_WIDTH = 92  # of a comment
# allowed-delay is at most drain-time, and the drop-in a part of every policy: no policy may have a
# drain-time below this.
_MOST_DELAY_S = DEVICE_KEYS["drain-time"].kind.parse(DEVICE_KEYS["drain-time"].low)
_HEAD = 4096  # of a text, that says whether it is ours
# `undo` at the beginning of its line, as the forms have it; the screen may break it.
_UNDO = re.compile(
    r'^(?:# undo: |undo +|  "undo": ")sysctl -w'
    r"((?:\s+vm\.dirty_(?:background_)?(?:bytes|ratio)=\d{1,20}){2})\b",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Surroundings:
    """The host and its settings around the recommendation."""

    host: str
    made: str  # date and time
    original: VmLimits  # what undoing goes back to
    conflicts: Tuple[ConflictingTool, ...]  # that set another value, or may
    tuned_base: Sequence[str] = ()  # profiles that one of ours is on top of
    inherited: Sequence[TunedLine] = ()  # that they have
    left_out: Mapping[str, str] = field(default_factory=dict)  # devices of the history, and why
    # By device, as blamed() has them.
    blamed: Mapping[str, Sequence[Tuple[str, int]]] = field(default_factory=dict)


def contradicting(
    advice: Recommendation, tools: Sequence[ConflictingTool]
) -> Tuple[ConflictingTool, ...]:
    """The tools that set these limits to other values, or may."""
    same = {f"{name}={value}" for name, value in advice.settings.items()}
    return tuple(
        each for each in tools
        if (each.setting is None and each.level == "warning")
        or ((each.setting or "").startswith("vm.dirty_") and each.setting not in same)
    )  # fmt: skip


def undo(original: VmLimits) -> str:
    values = [pair.describe(pair.value(original)) for pair in PAIRS]
    return "sysctl -w " + " ".join(f"vm.{value}" for value in values)


def is_ours(text: str) -> bool:
    return MADE_BY in text[:_HEAD]


def undone_to(text: str) -> Optional[VmLimits]:
    """The limits in the undo line of an earlier file, screen or JSON; None without one."""
    line = _UNDO.search(text) if is_ours(text) else None
    if line is None:
        return None
    values = dict(each[3:].split("=") for each in line[1].split())
    return VmLimits(**{each.name: int(values.get(each.name, 0)) for each in fields(VmLimits)})


def notes(advice: Recommendation, around: Surroundings) -> Dict[str, Sequence[str]]:
    """What is printed with the limit, by label."""
    return {
        "why": reason(advice),
        "price": price(advice),
        "undo": [undo(around.original)] if advice.settings else [],
        "conflict": [each.text for each in around.conflicts],
    }


def sysctl(advice: Recommendation, around: Surroundings) -> str:
    lines = _comments(advice, around, "To undo, remove this file first.")
    return "\n".join([*lines, *(f"{n} = {value}" for n, value in advice.settings.items()), ""])


def tuned(advice: Recommendation, around: Surroundings) -> str:
    """tuned.conf of a profile that includes the active one.

    Where that one sets a ratio, or bytes in another section, tuned would set both: `drop` takes a
    line out of the section of the same name. So no line of that one contradicts ours.
    """
    others = tuple(each for each in around.conflicts if each.kind != "tuned" or not each.setting)
    around = replace(around, conflicts=others)
    settings = [f"{name}={value}" for name, value in advice.settings.items()]
    sections = {"sysctl": "sysctl", **{each.section: each.plugin for each in around.inherited}}
    lines = [
        *_comments(advice, around, "To undo, activate the previous profile with tuned-adm first."),
        "[main]",
        f"summary=dirty limits by {MADE_BY}, {advice.id}",
        *([f"include={','.join(around.tuned_base)}"] if around.tuned_base else []),
    ]  # fmt: skip
    for section, plugin in sections.items():
        dropped = dict.fromkeys(each.option for each in around.inherited if each.section == section)
        lines += [
            "", f"[{section}]",
            # tuned takes the type from us: without it, that is the section's name.
            *([f"type={plugin}"] if plugin != section else []),
            *([f"drop={','.join(dropped)}"] if dropped else []),
            *(settings if section == "sysctl" else []),
        ]  # fmt: skip
    return "\n".join([*lines, ""])


def policy(advice: Recommendation, around: Surroundings) -> str:
    """A drop-in for all.conf.d: the daemon starts with each device's best limit, and adapts it."""
    more = "writebackd starts with these limits and adapts them."
    lines = _comments(advice, around, more, ("why", "conflict"))
    for each in advice.devices:
        if not each.counts:
            continue
        limit = each.limit_bytes or 0
        lines += [f"[device {formats.printable(each.name)}]", f"rest = {format_size(limit)}"]
        if each.drain_rate:
            delay_s = min(max(round(limit / each.drain_rate, 3), 0.001), _MOST_DELAY_S)
            lines.append(f"allowed-delay = {format_time(delay_s)}")
        lines.append("")
    return "\n".join(lines)


def _comments(
    advice: Recommendation, around: Surroundings, more: str,
    labels: Sequence[str] = ("why", "price", "conflict", "undo"),
) -> List[str]:  # fmt: skip
    by_label = notes(advice, around)
    said = [
        f"{advice.id} by {MADE_BY} on {around.host}, {around.made}.",
        *(f"{label}: {text}" for label in labels for text in by_label[label]),
        more,
    ]
    return [
        f"# {line}" for text in said
        for line in textwrap.wrap(formats.printable(text), _WIDTH, break_on_hyphens=False)
    ]  # fmt: skip


FILES: Mapping[str, Callable[[Recommendation, Surroundings], str]] = {
    "sysctl": sysctl, "tuned": tuned, "policy": policy,
}  # fmt: skip


def as_json(advice: Recommendation, around: Surroundings) -> RecommendAnswer:
    return {
        "made_by": MADE_BY,
        "id": advice.id,
        "enough": not advice.missing,
        "missing": list(advice.missing),
        "dirty_bytes": advice.limit_bytes,
        "dirty_background_bytes": advice.background_bytes,
        "device": advice.decider.name if advice.decider else None,
        "reason": reason(advice),
        "price": price(advice),
        "undo": undo(around.original),
        "conflicts": [
            {
                "kind": each.kind, "name": each.name, "setting": each.setting,
                "where": each.where, "text": each.text,
            }
            for each in around.conflicts
        ],
        "observed_s": advice.observed_s,
        "left_out": [{"name": name, "why": why} for name, why in around.left_out.items()],
        "devices": [_device(each, advice.limit_bytes, around) for each in advice.devices],
    }  # fmt: skip


def _device(each: DeviceAdvice, limit_bytes: Optional[int], around: Surroundings) -> Advised:
    loose = each.effect.loose
    return {
        "name": each.name, "drain_rate": each.drain_rate, "drain_age_s": each.drain_age_s,
        "tau_s": each.tau_s, "knee_bytes": each.knee_bytes, "cache_bytes": each.cache_bytes,
        "limit_bytes": each.limit_bytes, "objective_s": each.objective_s, "floods": each.floods,
        "flood_s": each.flood_s, "held_s": each.held_s,
        "basis": None if each.basis is None else each.basis.value,
        "fsync_p99_s": each.wait_s(limit_bytes) if limit_bytes else None,
        "write_rate": each.rate(limit_bytes) if limit_bytes else None,
        "held_fsync_p99_s": each.effect.held.fsync_latency.quantile(0.99),
        "found_fsync_p99_s": loose.fsync_latency.quantile(0.99),
        "held_commit_p99_s": each.effect.held.p99_s,
        "found_commit_p99_s": loose.p99_s,
        "found_floods": loose.floods,
        "found_floods_missed": loose.missed_floods,
        "blamed": [
            {"name": name, "alerts": count} for name, count in around.blamed.get(each.name, ())
        ],
    }


def device_lines(each: DeviceAdvice, around: Surroundings) -> List[str]:
    """What the device's floods did, and which programs caused them."""
    who = sentence(list(around.blamed.get(each.name, ())))
    # A terminal's fonts have no thin gap.
    return [line.replace(THIN, "") for line in (*sentences(each.effect), who) if line]
