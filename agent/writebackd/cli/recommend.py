# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb recommend: one fixed limit for this host, from its history; needs no daemon."""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.actuate.host_lock import first_found
from writebackd.actuate.ledger import LedgerError, load
from writebackd.cli.arguments import kernel_name
from writebackd.cli.client import NoAnswer, NoDaemon, request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NO_DAEMON, USAGE, CommandError
from writebackd.cli.history import device_in, span, state_dir
from writebackd.cli.output import width
from writebackd.cli.policy import in_force
from writebackd.cli.report import write_page
from writebackd.cli.status_screen import Paint, clean, labelled, wants_colour, wrapped
from writebackd.command_line import complain
from writebackd.control.device_decision import kernel_floor_bytes
from writebackd.kernel.conflicting_tools import find_conflicting_tools
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.topology import scan
from writebackd.kernel.tuned_profiles import (
    active_profile,
    included,
    tuned_file,
    tuned_files,
    tuned_lines,
)
from writebackd.kernel.vm import host_info, read_limits
from writebackd.paths import CALIBRATIONS, HISTORY, LEARNED, LEDGER
from writebackd.policy import Policy, PolicyError, check
from writebackd.policy.find import SITE_NAME, drop_in_of, search_dirs
from writebackd.report.alert_answers import past_json
from writebackd.report.calibration_store import Calibrated, median, unexpired
from writebackd.report.calibration_store import load as calibrations
from writebackd.report.device_figures import Figures
from writebackd.report.flood_culprits import blamed
from writebackd.report.history_query import (
    HistoryError,
    read_alerts,
    read_figures,
    read_history,
)
from writebackd.report.history_schema import Event
from writebackd.report.history_store import MAX_ALERTS
from writebackd.report.learned_store import MAX_BYTES, decode
from writebackd.report.recommendation import (
    DeviceAdvice,
    Host,
    Recommendation,
    price,
    reason,
    recommend,
)
from writebackd.report.recommendation_files import (
    FILES,
    MADE_BY,
    Surroundings,
    as_json,
    contradicting,
    device_lines,
    undo,
    undone_to,
)
from writebackd.report.timeline import drain_spans, pin_spans, trial_spans
from writebackd.tuning import DIRTYABLE_SHARE
from writebackd.types.device_memory import Learned
from writebackd.types.levers import VmLimits
from writebackd.types.storage import Device

log = logging.getLogger(__name__)

_HEAD = 4096  # of a file, that says whether it is ours
_MOST = 1 << 20  # of it, that may have its undo line


def run(options: argparse.Namespace) -> int:
    form = "json" if options.json else options.format
    earlier = "" if options.output is None else _own(options.output)
    if earlier is None and not options.force:
        raise CommandError(
            f"{options.output} was not written by `{MADE_BY}`: use another name, or --force",
            BAD_NEWS,
        )
    found, around = _look(options, earlier or "")
    if form in FILES and (found.missing or not found.settings):
        # A file is put where nobody reads what it rests on.
        raise CommandError(f"no {form} file: {_missing(found, around)}", BAD_NEWS)
    if form == "text":
        colour = options.output is None and wants_colour(sys.stdout, options.color)
        text = render(found, around, width(), Paint(colour)) + "\n"
    elif form == "json":
        text = json.dumps(as_json(found, around), indent=2) + "\n"
    else:
        text = FILES[form](found, around)
    problems = _problems(text, options) if form == "policy" else []
    if problems:
        raise CommandError(f"no policy file: {'; '.join(problems)}", BAD_NEWS)
    write_page(options.output or Path("-"), text)
    if form == "text" and options.output is None:
        return BAD_NEWS if found.missing else GOOD
    if found.missing:
        complain(f"writebackctl: {_missing(found, around)}")
    return BAD_NEWS if found.missing else GOOD


def _missing(found: Recommendation, around: Surroundings) -> str:
    needed = "; ".join(found.missing) or "a limit"
    return ". ".join([f"not enough evidence; still needed: {needed}", *_left_out(around)])


def _left_out(around: Surroundings) -> List[str]:
    names = [f"{clean(name)} ({why})" for name, why in around.left_out.items()]
    return [f"Left out: {', '.join(names)}"] if names else []


def _problems(text: str, options: argparse.Namespace) -> List[str]:
    """What keeps a daemon from starting with the drop-in, as a part of every policy or -o's."""
    place = str(options.output)
    if drop_in_of(place) is None:
        place = f"{search_dirs(options.config_dir)[-1]}/{SITE_NAME}.conf.d/50-recommend.conf"
    with open(os.memfd_create("drop-in"), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}"
        return [line.replace(name, place) for line in check(name, options.config_dir, place=place)]


def _own(output: Path) -> Optional[str]:
    """The text of an earlier recommendation; empty where no file is, None of somebody else's."""
    if not output.is_file():
        return ""  # there is none, or it is no file that could be replaced
    try:
        with open(output, "rb") as file:
            text = file.read(_MOST).decode(errors="replace")
    except OSError:
        return None
    return text if MADE_BY in text[:_HEAD] else None


def _look(options: argparse.Namespace, earlier: str) -> Tuple[Recommendation, Surroundings]:
    """Everything that is read; `earlier` is the text that is about to be replaced."""
    files, now_s = KernelFiles(), time.time()
    # Each weekday has its jobs.
    options.since = options.since or "7d"
    since_s, until_s = span(options, now_s)
    state = state_dir(options)
    devices = {each.name: each for each in scan(files)}
    calibrated = _calibrated(state / CALIBRATIONS, devices, options.device, now_s)
    path = state / HISTORY
    rows: Sequence[Figures] = ()
    events: Sequence[Event] = ()
    past: List[Dict[str, Any]] = []
    if path.exists() or not calibrated:
        try:
            device = device_in(path, options)
            rows = read_figures(path, since_s, device, until_s)
            events = read_history(path)
            past = past_json(read_alerts(path, MAX_ALERTS), ())
        except HistoryError as error:
            raise CommandError(str(error), BAD_NEWS) from None
    try:
        policy = in_force(options.runtime_dir, options.config_dir)
    except PolicyError as error:
        raise CommandError(str(error), USAGE) from None
    names = {row.device for row in rows} | calibrated.keys()
    # Who names a device wants it, as on the daemon's command line.
    left_out = {} if options.device else _without_a_say(names, devices, policy)
    rows = [row for row in rows if row.device not in left_out]
    calibrated = {name: each for name, each in calibrated.items() if name not in left_out}
    names -= left_out.keys()
    owns = {}
    for name in names:
        known = devices.get(name)
        owns[name] = (
            policy.for_device(name, known.devno, known.driver) if known
            else policy.for_device(name, "")
        )  # fmt: skip
    try:
        host, limits = host_info(files), read_limits(files)
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read the limits of this kernel: {error}", BAD_NEWS) from None
    floor = max(policy.limits.floor_bytes, kernel_floor_bytes(host))
    most = min(policy.limits.ceiling_bytes, int(DIRTYABLE_SHARE * host.memory_bytes))
    found = recommend(
        rows, Host(floor, max(floor, most), policy.limits.background), owns,
        _learned(state / LEARNED, devices), trial_spans(events),
        [*pin_spans(events), *drain_spans(events)], now_s if until_s is None else until_s,
        calibrated,
    )  # fmt: skip
    base, tools = _tuned_base(files, options.output), find_conflicting_tools(files)
    texts = [earlier, *(files.try_read(each.path) or "" for each in tools if each.path)]
    begin_s = min((row.wall_s for row in rows), default=now_s)
    end_s = max((row.end_s for row in rows), default=now_s)
    return found, Surroundings(
        host=socket.gethostname(),
        made=time.strftime("%Y-%m-%d %H:%M", time.localtime(now_s)),
        original=_original(options, files, texts, found, limits),
        # What the file said that is replaced is gone then.
        conflicts=contradicting(
            found, [each for each in tools if not _is_at(files, each.path, options.output)]
        ),
        tuned_base=base,
        inherited=tuned_lines(files, base),
        left_out=left_out,
        blamed={name: blamed(past, name, begin_s, end_s) for name in names},
    )


def _tuned_base(files: KernelFiles, output: Optional[Path]) -> Sequence[str]:
    """The active profiles; in place of one that is ours or that -o replaces, what it includes.

    tuned leaves out a profile that includes itself, without a word: the one below would be lost.
    Raises CommandError where that would be so by way of another.
    """
    names: List[str] = []
    for name in active_profile(files).split():
        path, text = tuned_file(files, name) or ("", "")
        is_replaced = _is_at(files, path, output)
        base = included(text) if is_replaced or MADE_BY in text[:_HEAD] else [name]
        names += base
        # One that is replaced has been read by then, so tuned does not come back to it.
        if not is_replaced and any(
            _is_at(files, each, output) for each in tuned_files(files, base)
        ):
            raise CommandError(
                f"the active tuned profile {clean(name)} includes {output}, which cannot include it"
                " in turn: name a new profile with -o",
                BAD_NEWS,
            )
    return list(dict.fromkeys(names))


def _is_at(files: KernelFiles, path: str, output: Optional[Path]) -> bool:
    """Whether a path of this host is the file that -o names."""
    if output is None or not path:
        return False
    return os.path.realpath(files.path(path)) == os.path.realpath(output)


def _without_a_say(
    names: Iterable[str], devices: Mapping[str, Device], policy: Policy
) -> Dict[str, str]:
    """Devices that must not decide the limit of this host, each with the reason."""
    found = {
        name: policy.selects(devices[name]) if name in devices else "not on this host now"
        for name in sorted(names)
    }
    return {name: why for name, why in found.items() if why is not None}


def _learned(path: Path, devices: Mapping[str, Device]) -> Dict[str, Learned]:
    """By device name; none of a disk that nothing tells apart from others."""
    try:
        with open(path, "rb") as file:
            known = decode(file.read(MAX_BYTES + 1))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning("%s cannot be read (%s): sizes of write caches are left out", path, error)
        return {}
    return {
        name: known[device.identity] for name, device in devices.items()
        if device.identity is not None and device.identity in known
    }  # fmt: skip


def _calibrated(
    path: Path, devices: Mapping[str, Device], wanted: Optional[str], now_s: float
) -> Dict[str, Calibrated]:
    """By device name, of one or all of them: the median of the calibrations that still hold."""
    try:
        known = calibrations(path)
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s): calibrations are left out", path, error)
        return {}
    found = {
        name: median(unexpired(known.get(device.identity or "", ()), now_s))
        for name, device in devices.items()
        if wanted is None or kernel_name(wanted) == name
    }
    return {name: each for name, each in found.items() if each is not None}


def _original(
    options: argparse.Namespace, files: KernelFiles, texts: Sequence[str], found: Recommendation,
    now: VmLimits,
) -> VmLimits:  # fmt: skip
    """The limits before writebackd and before an earlier recommendation. Raises CommandError.

    Once that one is in force, the daemon too finds its limits as the original: of `texts`, the
    files that may be of it, the first that knows says what was before.
    """
    for text in texts:
        carried = undone_to(text) if MADE_BY in text[:_HEAD] else None
        if carried is not None:
            return carried
    before = _before_the_daemon(options.runtime_dir, files, now)
    advised = VmLimits(found.limit_bytes or 0, 0, found.background_bytes or 0, 0)
    if before == advised:
        return first_found(files) or before
    return before


def _before_the_daemon(runtime_dir: Path, files: KernelFiles, now: VmLimits) -> VmLimits:
    try:
        status = request(runtime_dir, "status")
        return VmLimits(**status["limits"]["original"])
    except NoDaemon:
        pass
    except NoAnswer as error:
        raise CommandError(f"the original limits are unknown: {error}", NO_DAEMON) from None
    try:
        ledger = load(runtime_dir / LEDGER)
    except LedgerError as error:
        raise CommandError(str(error), BAD_NEWS) from None
    if ledger is None or ledger.is_of_an_earlier_boot(files):
        return now
    return ledger.originals


# ---- the screen --------------------------------------------------------------


def render(found: Recommendation, around: Surroundings, width: int, paint: Paint) -> str:
    """For people: the two values first, then why, what it costs, and what it rests on."""
    lines: List[str] = []
    if found.settings:
        settings = ", ".join(f"{name} = {value}" for name, value in found.settings.items())
        size = f"({formats.size(found.limit_bytes)}, {formats.size(found.background_bytes)})"
        lines.append(paint(f"{settings} {size}", "heading"))
        lines += labelled("made by", f"{MADE_BY}, id {found.id}", width)
        for label, said in (("why", reason(found)), ("price", price(found))):
            lines += _listed(label, said, width)
        lines += labelled("undo", undo(around.original), width)
    else:
        lines.append(paint(f"No limit to recommend ({MADE_BY})", "heading"))
    lines += _listed("conflict", [each.text for each in around.conflicts], width)
    lines += _listed("evidence", [_evidence(found), *_left_out(around)], width)
    if found.missing:
        lines += [paint("missing".ljust(9), "warning") + "evidence:"]
        lines += [line for each in found.missing for line in wrapped(each, width, " " * 11,
                                                                     " " * 9 + "- ")]
    if found.devices:
        lines += ["", paint(_COLUMNS, "faint"), *map(_row, found.devices)]
    for each in found.devices:
        for line in device_lines(each, around):
            lines += wrapped(line, width, "  ", f"{clean(each.name)}: ")
    return "\n".join(lines)


def _listed(label: str, said: List[str], width: int) -> List[str]:
    lines: List[str] = []
    for text in said:
        lines += labelled("" if lines else label, text, width)
    return lines


def _evidence(found: Recommendation) -> str:
    text = f"{formats.duration(found.observed_s)} of history"
    most = found.decider or next(iter(found.devices), None)
    if most is None:
        return f"{text}, no managed device wrote or synced"
    return (
        f"{text}; on {most.name} {most.floods} floods with fsyncs,"
        f" {formats.duration(most.flood_s)} in all, {formats.duration(most.held_s)} of that under"
        " writebackd's limit"
    )


_COLUMNS = "DEVICE    DRAIN   SEEN   TAU ms   KNEE  CACHE  LIMIT FLOODS   TIME"


def _row(each: DeviceAdvice) -> str:
    tau = formats.UNKNOWN if each.tau_s is None else f"<{formats.milliseconds(each.tau_s)}"
    cells = [
        formats.size(each.drain_rate).rjust(6),
        formats.duration(each.drain_age_s).rjust(6),
        tau.rjust(8),
        formats.size(each.knee_bytes).rjust(6),
        formats.size(each.cache.value if each.cache else None).rjust(6),
        formats.size(each.fixed_bytes).rjust(6),
        str(each.floods).rjust(6),
        formats.duration(each.flood_s).rjust(6),
    ]
    return " ".join([clean(each.name)[:8].ljust(8), *cells])
