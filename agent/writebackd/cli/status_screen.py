# SPDX-License-Identifier: GPL-2.0-or-later
"""The status screen, rendered from the status answer alone.

States are words, so colour is never needed; unknown values are '-'.
"""

from __future__ import annotations

import pwd
from collections import defaultdict
from itertools import groupby
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.cli.output import (
    Answer,
    Paint,
    as_text,
    clean,
    fit,
    labelled,
    moment,
    one_line,
    wrapped,
)

MIN_WIDTH = 40
# Beyond this many devices those with nothing to say share one line.
_MANY_DEVICES = 6
_MANY_LEVERS = 5  # and of targets of levers
_FRESH_S = 10.0  # age of figures that are as good as of now
_WATCHER_S = 2.5  # from the end of a lease until the watcher has seen it (actuate/watcher.py)
# Where to look first; devices of one state stay in the daemon's order.
_URGENCY = ("exhausted", "squeeze", "blind", "yielded", "pace", "probe", "guard", "pinned", "idle")


def render_status(status: Answer, width: int = 80, colour: bool = False) -> str:
    width = max(width, MIN_WIDTH)
    paint = Paint(colour)
    lines = verdict_lines(status, width, paint)
    lines += [paint(line, "heading") for line in wrapped(headline(status), width, "  ", "")]
    for alert in status["alerts"]:
        lines += _alert_lines(alert, status["time_s"], width, paint)
    if status["policy_reason"]:
        lines.append(one_line("policy", status["policy_reason"], width, ".. (policy match)"))
    lines += labelled("limit", limit_line(status), width)
    before = _before_line(status["limits"])
    if status["mode"] == "observe" and status["limits"]["files"] != status["limits"]["original"]:
        before += "; another process has changed it, enforce will treat its value as the original"
    lines += labelled("before", before, width)
    for number, line in enumerate(lever_lines(status["levers"])):
        lines += labelled("" if number else "levers", line, width)
    memory = status["memory"]
    dirty, writeback = formats.size(memory["dirty_bytes"]), formats.size(memory["writeback_bytes"])
    clean_s = memory["time_to_clean_s"]
    clean_in = "" if clean_s is None else f"; clean in {formats.duration(clean_s)}"
    lines += labelled("dirty", f"{dirty}, and {writeback} being written{clean_in}", width)
    elsewhere = [alert["summary"] for alert in status["alerts"]]
    elsewhere += [device["reason"] for device in status["devices"]]
    if status["reason"] and not any(status["reason"] in text for text in elsewhere):
        lines += labelled("why", status["reason"], width)
    for warning in status["warnings"]:
        lines += [paint(line, "warning") for line in labelled("warning", warning, width)]
    lines.append("")
    lines += _table(status["devices"], status["limits"]["dirty_bytes"], width, paint)
    lines.append("")
    if status["dirtiers"]:
        lines += labelled("writers", _dirtiers_line(status["dirtiers"]), width)
    if status["rivals"]:
        lines.append(one_line("rivals", _rivals_line(status["rivals"]), width))
    lease = status["lease"]
    sets = status["mode"] == "enforce" and status["off"] is None and status["yielded"] is None
    if sets and lease["watcher_pid"] is not None:
        lines += labelled("safety", _safety_line(lease), width)
    lines += labelled("cost", _cost_line(status), width)
    return "\n".join(lines)


def verdict_lines(answer: Answer, width: int, paint: Paint) -> List[str]:
    verdict = answer["verdict"]
    return [paint(line, verdict["code"]) for line in wrapped(verdict["text"], width, "  ", "")]


def alert_line(alert: Answer) -> str:
    return formats.alert(alert["name"], alert["device"], alert["severity"], alert["summary"])


def as_of(alert: Answer, now_s: float) -> str:
    """When its figures are from, if not of now: it stands for `hold` after the trouble."""
    end_s = alert["evidence"]["end"] if alert["evidence"] else now_s
    return f", figures of {moment(end_s)}" if now_s - end_s >= _FRESH_S else ""


def _alert_lines(alert: Answer, now_s: float, width: int, paint: Paint) -> List[str]:
    """The alert, its start, its culprit with command line, and what was done."""
    text = f"{alert_line(alert)}; {_since(alert['since'])}{as_of(alert, now_s)}"
    role = "critical" if alert["severity"] == "critical" else "warning"
    lines = [paint(line, role) for line in labelled("alert", text, width)]
    for culprit in alert["culprits"]:
        if culprit["cmdline"] and culprit["cmdline"] not in alert["summary"]:
            lines += labelled("", f"pid {culprit['pid']}: {culprit['cmdline']}", width)
    if alert["done"] and alert["done"] not in alert["summary"]:
        lines += labelled("", f"done: {alert['done']}", width)
    return lines


def lever_lines(levers: Sequence[Answer]) -> List[str]:
    """Levers other than the limits, one line per target: name, value and original value."""
    targets: defaultdict[str, List[str]] = defaultdict(list)
    for lever in levers:
        name = lever["name"] if lever["kind"] != "pace" else f"on {lever['name']}"
        value, original = (_lever_value(lever, lever[key]) for key in ("value", "original"))
        targets[f"{lever['kind']} {lever['target']}"].append(f"{name} {value} (before {original})")
    lines = [f"{target}: {', '.join(values)}" for target, values in targets.items()]
    if len(lines) > _MANY_LEVERS:
        more = len(lines) - _MANY_LEVERS
        lines = [*lines[:_MANY_LEVERS], f"and {more} more (writebackctl --json status)"]
    return lines


def _lever_value(lever: Answer, value: Optional[int]) -> str:
    if value is None:
        return "no limit"
    if lever["kind"] == "pace":
        return f"{formats.size(value)}/s"
    return formats.size(value) if lever["name"].endswith("_bytes") else str(value)


def _safety_line(lease: Answer) -> str:
    within = formats.duration(round((lease["remaining_s"] or 0.0) + _WATCHER_S))
    text = f"if the daemon dies, pid {lease['watcher_pid']} restores within {within}"
    if not lease["lost"]:
        return text
    times = "once" if lease["lost"] == 1 else f"{lease['lost']} times"
    return f"{text}; lease lost {times}"


def headline(status: Answer) -> str:
    mode = status["mode"]
    if status["off"] is not None:
        mode += " (off)"
    elif mode == "observe":
        mode += " (writes nothing until `writebackctl enforce`)"
    elif status["yielded"] is not None:
        left_s = status.get("yield_left_s")
        mode += " (yielded until `writebackctl enforce`)" if left_s is None else (
            f" (yielded, enforcing again in {formats.duration(left_s)})")
    elif status["pin_bytes"] is not None:
        mode += f" (pinned to {formats.size(status['pin_bytes'])}{by_whom(status.get('pin'))}"
        mode += "; `writebackctl release` ends it)"
    elif status["drain"] is not None:
        drain = status["drain"]
        mode += f" (draining {clean(', '.join(drain['devices']))}{by_whom(drain)})"
    elif status["trial"] is not None:
        mode += f" ({trial_words(status['trial'])})"
    return (
        f"writebackd: {mode}, policy {status['policy']}{in_window(status.get('window'))},"
        f" up {formats.duration(status['uptime_s'])}, probe {status['probe']['backend']}"
    )


def trial_words(trial: Answer) -> str:
    """The current block of a trial, and what follows it."""
    arm = "original limits" if trial["arm"] == "original" else "writebackd's limits"
    after = "" if trial["returns_to"] == "enforce" else f"; then {trial['returns_to']}"
    return f"trial of {trial['device']}, block {trial['block']} of {trial['blocks']}: {arm}{after}"


def in_window(window: Optional[Answer]) -> str:
    """The open window of the policy; empty if none is."""
    return f" (window {clean(window['name'])} until {window['until']})" if window else ""


def by_whom(pin: Optional[Answer]) -> str:
    """Who pinned, since when, for how much longer; empty if unknown."""
    if pin is None:
        return ""
    try:
        name = f"{pwd.getpwuid(pin['uid']).pw_name}, uid {pin['uid']}"
    except KeyError:
        name = f"uid {pin['uid']}"
    left_s = pin.get("left_s")
    left = "" if left_s is None else f", {formats.duration(left_s)} left"
    return f" by {clean(name)}, {_since(pin['since_s'])}{left}"


def limit_line(status: Answer) -> str:
    limits = status["limits"]
    goal, goes, instead = limits["goal_bytes"], "", ""
    if status["mode"] != "observe" and status["off"] is None:
        goes = heading(limits["wanted_bytes"], goal)
    elif goal is not None:
        would = "enforce would" if status["mode"] == "observe" else "would"
        instead = f"; {would} set {formats.size(goal)}"
    return (
        f"{formats.size(limits['dirty_bytes'])}{goes},"
        f" background {formats.size(limits['dirty_background_bytes'])}{instead}"
    )


def heading(limit: Optional[int], goal: Optional[int]) -> str:
    """The limit's goal; empty if it is reached, or formats the same."""
    if limit is None or goal is None or formats.size(limit) == formats.size(goal):
        return ""
    return f" -> {formats.size(goal)} ({'lowering' if goal < limit else 'raising'})"


def _before_line(limits: Answer) -> str:
    original, in_bytes = limits["original"], limits["original_in_bytes"]
    sizes = [formats.size(in_bytes[key]) for key in ("dirty_bytes", "dirty_background_bytes")]
    shares = [
        None if original[f"{pair}_bytes"] else f"{original[f'{pair}_ratio']} %"
        for pair in ("dirty", "dirty_background")
    ]
    if shares == [None, None]:
        text = " / ".join(sizes)
    elif None in shares:
        text = " / ".join(
            size if share is None else f"{share} of memory = {size}"
            for share, size in zip(shares, sizes)
        )
    else:
        text = f"{' / '.join(map(str, shares))} of memory = {' / '.join(sizes)}"
    if limits["files"] == original:
        return text + ", in force"
    # Of dirtyable memory, which is known only while the ratio is in force.
    return text.replace("memory = ", "memory, about ")


def _dirtiers_line(tasks: Sequence[Answer]) -> str:
    parts = []
    for task in tasks:
        who = "several processes" if task["several"] else task["pid"]
        part = f"{task['comm']} ({who}) {formats.size(task['dirty_rate'])}/s"
        if task["device"]:
            part += f" on {task['device']}"
        if task["throttled_share"]:
            part += f", throttled {formats.percent(task['throttled_share'])}"
        parts.append(part)
    return "; ".join(parts)


def _since(wall_s: Optional[float]) -> str:
    return "since an unknown time" if wall_s is None else f"since {moment(wall_s)}"


def _rivals_line(rivals: Sequence[Answer]) -> str:
    return "; ".join(
        f"{each['name']}{' sets ' + each['setting'] if each['setting'] else ''} ({each['where']})"
        for each in rivals
    )


def _cost_line(status: Answer) -> str:
    cost = status["self"]
    text = (
        f"{formats.percent(cost['cpu_fraction'])} of a core, {formats.size(cost['rss_bytes'])}"
        f" resident, {formats.size(cost['map_bytes'])} BPF maps"
    )
    if cost["bpf_ns_per_io"] is not None:
        text += f", {cost['bpf_ns_per_io']:.0f} ns per IO"
    return text


def _cache_line(cache: Answer) -> str:
    """The reading of the cache, or how its behaviour and a tool's report agree; or nothing."""
    if cache["fill_source"] in (None, "estimate"):
        seen, said = cache["capacity_bytes"], [
            each for each in cache["reported"] if each["capacity_bytes"]
        ]
        if seen is None or not said:
            return ""
        stated = said[0]["capacity_bytes"]
        return (
            f"write cache {formats.size(seen)} measured, {formats.percent(seen / stated)} of what"
            f" {as_text(said[0]['source'])} reports"
        )
    return (
        f"{cache['fill_source']} {formats.percent(cache['fill'])} full of"
        f" {formats.size(cache['capacity_bytes'])}, {as_text(cache['mode'])}"
    )


def own_limit(device: Answer, host_bytes: int) -> str:
    """The limit in force for this device alone; empty where that is the host's."""
    own = device["limit_bytes"]
    return "" if own == host_bytes else f"{formats.size(own)}, for this device alone"


def _table(devices: Sequence[Answer], host_bytes: int, width: int, paint: Paint) -> List[str]:
    if not devices:
        return wrapped("no device to manage (see `writebackctl devices`)", width, "")
    shown = sorted(devices, key=urgency)
    quiet = [
        device for device in shown
        if len(devices) > _MANY_DEVICES and device["state"] == "idle"
        and not device["write_rate"] and not device["sync_rate"]
    ]  # fmt: skip
    excluded = [device for device in shown if device["state"] == "excluded"]
    shown = [device for device in shown if device not in quiet and device not in excluded]
    layout = _layout(width)
    lines = [paint(line, "faint") for line in _heading(*layout, measured(shown))]
    for device in shown:
        lines.append(_row(device, *layout, paint))
        if device["reason"]:
            lines += wrapped(device["reason"], width, "    ")
        lines += wrapped(own_limit(device, host_bytes), width, "    ", "    limit ")
        lines += wrapped(_cache_line(device["write_cache"]), width, "    ")
        for text, role in notes(device):
            lines += [paint(line, role) for line in wrapped(text, width, "    ")]
    for label, some in (("quiet", quiet), ("excluded", excluded)):
        if some:
            lines += labelled(label, " ".join(device["name"] for device in some), width)
    return lines


def urgency(device: Answer) -> int:
    """A key to sort devices by: the smallest is the most urgent."""
    state = device["state"]
    return _URGENCY.index(state) if state in _URGENCY else len(_URGENCY)


class _Figure(NamedTuple):
    """A column of the table: a title above values that fit below it."""

    title: str
    width: int
    kind: str  # what stands above columns that have it in common, and shorter
    short: str
    text: Callable[[Answer], str]


_RATES, _TIMES = ("per second", "/s"), ("{}, ms", "ms")
_FIGURES = (
    _Figure("target", 7, "limit", "", lambda device: formats.size(device["target_bytes"])),
    _Figure("drain", 6, *_RATES, lambda device: formats.size(device["drain_rate"])),
    _Figure("writes", 6, *_RATES, lambda device: formats.size(device["write_rate"])),
    _Figure("fsyncs", 6, *_RATES, lambda device: formats.count(device["sync_rate"])),
    _Figure("p50", 5, *_TIMES, lambda device: formats.milliseconds(device["commit_p50_s"])),
    _Figure("p99", 5, *_TIMES, lambda device: formats.milliseconds(device["commit_p99_s"])),
    _Figure("obj.", 5, *_TIMES, lambda device: formats.milliseconds(device["objective_s"])),
)
# What a narrow terminal goes without, in this order, once there is no room for a mount point;
# what is left is as wide as the narrowest.
_LESS = ("p50", "drain", "fsyncs", "obj.")
_NAME_WIDTH = _STATE_WIDTH = 9
_MOUNT_WIDTHS = range(6, 41)


def _layout(width: int) -> Tuple[int, List[_Figure]]:
    """The width of the mount point, 0 for none, and the columns that fit."""
    shown = list(_FIGURES)
    for title in ("", *_LESS):
        shown = [each for each in shown if each.title != title]
        left = width - _NAME_WIDTH - 1 - _STATE_WIDTH - sum(1 + each.width for each in shown)
        if left >= 0:
            break
    if left - 1 < _MOUNT_WIDTHS.start:
        return 0, shown
    # At 80 a column is left over, as long as it is no wider.
    return min(left - 1 if width < 80 else left - 2, _MOUNT_WIDTHS[-1]), shown


def _heading(mount_width: int, figures: Sequence[_Figure], what: str) -> List[str]:
    kinds: List[str] = []
    for (kind, short), group in groupby(figures, lambda each: (each.kind, each.short)):
        kind, wide = kind.format(what), sum(1 + each.width for each in group) - 1
        if len(f"- {kind} -") <= wide:
            kinds.append(f" {kind} ".center(wide, "-"))
        else:
            kinds.append((kind if len(kind) <= wide else short).rjust(wide))
    mount = ["MOUNT".ljust(mount_width)] if mount_width else []
    words = ["DEVICE".ljust(_NAME_WIDTH), *mount, "STATE".ljust(_STATE_WIDTH)]
    titles = [each.title.rjust(each.width) for each in figures]
    return [" ".join([*(" " * len(word) for word in words), *kinds]), " ".join([*words, *titles])]


def _row(device: Answer, mount_width: int, figures: Sequence[_Figure], paint: Paint) -> str:
    state = device["state"] or formats.UNKNOWN
    mount = [fit(mount_point(device), mount_width)] if mount_width else []
    return " ".join(
        [fit(device["name"], _NAME_WIDTH), *mount, paint(state.ljust(_STATE_WIDTH), state),
         *(each.text(device).rjust(each.width) for each in figures)]
    )  # fmt: skip


def mount_point(device: Answer) -> str:
    mounts: Sequence[str] = device["mounts"] or (formats.UNKNOWN,)
    first, *more = mounts
    return first + (f" +{len(more)}" if more else "")


SHOWN_SHARE = 0.01  # of the commits' time that is slept in write()
STUCK_S = 1.0  # a commit in flight for longer than this has a line


def measured(devices: Sequence[Mapping[str, Any]]) -> str:
    """What the times include: only fsync if the kernel does not show the sleep in write()."""
    timed = [each for each in devices if each["commit_p99_s"] is not None]
    seen = [each for each in timed if each["commit_write_share"] is not None]
    return "fsync" if timed and not seen else "commit"


def notes(device: Mapping[str, Any]) -> Iterator[Tuple[str, Optional[str]]]:
    """Where commits wait, and a long pending one; with a role for Paint."""
    share = device["commit_write_share"] or 0.0
    if share >= SHOWN_SHARE:
        yield f"commits wait in write(): {formats.percent(share)}", None
    oldest_s = device["oldest_commit_s"] or 0.0
    if oldest_s >= STUCK_S:
        asleep = oldest_s > (device["oldest_fsync_s"] or 0.0)
        what = "commit, in write()" if asleep else "fsync"
        yield f"oldest pending {what}: {formats.duration(oldest_s)}", "warning"
