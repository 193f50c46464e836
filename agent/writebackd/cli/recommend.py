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
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

from writebackd import formats
from writebackd.actuate.ledger import LedgerError, first_found, load
from writebackd.cli.client import kernel_name
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, CommandError
from writebackd.cli.history import device_in, span, state_dir
from writebackd.cli.output import Paint, clean, labelled, wants_colour, width, wrapped, write_page
from writebackd.cli.policy import in_force
from writebackd.control.device_decision import kernel_floor_bytes
from writebackd.kernel.conflicting_tools import find_conflicting_tools
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.topology import scan
from writebackd.kernel.tuned_profiles import active_profile, included, read_profiles, tuned_file
from writebackd.kernel.vm import host_info, read_limits
from writebackd.paths import CALIBRATIONS, HISTORY, LEARNED, LEDGER
from writebackd.policy import check
from writebackd.policy.load import SITE_NAME, drop_in_of, search_dirs
from writebackd.policy.schema import DevicePolicy
from writebackd.report.alert_answers import blamed, past_json
from writebackd.report.device_figures import Figures
from writebackd.report.history_schema import Event, read_alerts, read_figures, read_history
from writebackd.report.learned_store import load as calibrations
from writebackd.report.learned_store import median, read_learned, unexpired_runs
from writebackd.report.recommendation import DeviceAdvice, Host, Recommendation, recommend
from writebackd.report.recommendation_files import (
    FILES,
    MADE_BY,
    Surroundings,
    as_json,
    contradicting,
    device_lines,
    is_ours,
    notes,
    undone_to,
)
from writebackd.report.timeline import drain_spans, pin_spans, trial_spans
from writebackd.tuning import DIRTYABLE_SHARE
from writebackd.types.levers import VmLimits
from writebackd.types.storage import Device

T = TypeVar("T")
log = logging.getLogger(__name__)

_MOST = 1 << 20  # of a file, that may have its undo line


def run(options: argparse.Namespace) -> int:
    form = "json" if options.json else options.format
    advice, around = _look(options, _earlier(options.output))
    if advice.missing and (form in FILES or options.output is not None):
        # A file ends up where its basis is not shown.
        needed = "; ".join(advice.missing)
        said = [f"no {form} file: not enough evidence; still needed: {needed}", *_left_out(around)]
        raise CommandError(". ".join(said), BAD_NEWS)
    if form == "text":
        colour = options.output is None and wants_colour(sys.stdout, options.color)
        text = render(advice, around, width(), Paint(colour)) + "\n"
    elif form == "json":
        text = json.dumps(as_json(advice, around), indent=2) + "\n"
    else:
        text = FILES[form](advice, around)
    problems = _problems(text, options) if form == "policy" else []
    if problems:
        raise CommandError(f"no policy file: {'; '.join(problems)}", BAD_NEWS)
    write_page(options.output or Path("-"), text)
    return BAD_NEWS if advice.missing else GOOD


def _left_out(around: Surroundings) -> List[str]:
    names = [f"{clean(name)} ({why})" for name, why in around.left_out.items()]
    return [f"Left out: {', '.join(names)}"] if names else []


def _problems(text: str, options: argparse.Namespace) -> List[str]:
    """Errors that would keep a daemon from starting with the drop-in in any policy, or in -o's."""
    place = str(options.output)
    if drop_in_of(place) is None:
        place = f"{search_dirs(options.config_dir)[-1]}/{SITE_NAME}.conf.d/50-recommend.conf"
    with open(os.memfd_create("drop-in"), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}"
        return [line.replace(name, place) for line in check(name, options.config_dir, place=place)]


def _earlier(output: Optional[Path]) -> str:
    """The recommendation that -o replaces, if any. Raises CommandError for another file."""
    if output is None or not output.is_file():
        return ""
    try:
        with open(output, "rb") as file:
            text = file.read(_MOST).decode(errors="replace")
    except OSError:
        text = ""
    if not is_ours(text):
        raise CommandError(
            f"{output} was not written by `{MADE_BY}`: remove it, or use another name", BAD_NEWS
        )
    return text


def _look(options: argparse.Namespace, earlier: str) -> Tuple[Recommendation, Surroundings]:
    """Read all inputs; `earlier` is the text that will be replaced."""
    files, now_s = KernelFiles(), time.time()
    # Each weekday has its jobs.
    options.since = options.since or "7d"
    since_s, until_s = span(options, now_s)
    end_s = now_s if until_s is None else until_s
    state = state_dir(options)
    devices = {each.name: each for each in scan(files)}
    calibrated = {
        name: each
        for name, runs in _of_disks(calibrations, state / CALIBRATIONS, devices).items()
        if options.device is None or kernel_name(options.device) == name
        for each in [median(unexpired_runs(runs, now_s))] if each is not None
    }  # fmt: skip
    path = state / HISTORY
    rows: Sequence[Figures] = ()
    events: Sequence[Event] = ()
    past: List[Dict[str, Any]] = []
    if path.exists() or not calibrated:
        device = device_in(path, options)
        rows = read_figures(path, since_s, device, until_s)
        events = read_history(path)
        past = past_json(read_alerts(path))
    policy = in_force(options.runtime_dir, options.config_dir)
    policies: Dict[str, DevicePolicy] = {}
    left_out: Dict[str, str] = {}
    for name in sorted({row.device for row in rows} | calibrated.keys()):
        known = devices.get(name, Device(name, "", ""))
        why = policy.selects(known) if name in devices else "not on this host now"
        # Who names a device wants it, as on the daemon's command line.
        if why is not None and not options.device:
            left_out[name] = why
        else:
            policies[name] = policy.of(known)
    try:
        host, limits = host_info(files), read_limits(files)
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read the limits of this kernel: {error}", BAD_NEWS) from None
    floor = max(policy.limits.floor_bytes, kernel_floor_bytes(host))
    most = min(policy.limits.ceiling_bytes, int(DIRTYABLE_SHARE * host.memory_bytes))
    advice = recommend(
        rows, Host(floor, max(floor, most), policy.limits.background), policies,
        _of_disks(read_learned, state / LEARNED, devices), trial_spans(events),
        [*pin_spans(events), *drain_spans(events)], end_s, calibrated,
    )  # fmt: skip
    base, tools = _tuned_base(files, options.output), find_conflicting_tools(files)
    texts = [earlier, *(files.try_read(each.path) or "" for each in tools if each.path)]
    return advice, Surroundings(
        host=socket.gethostname(),
        made=time.strftime("%Y-%m-%d %H:%M", time.localtime(now_s)),
        original=_original(options, files, texts, advice, limits),
        # What the file said that is replaced is gone then.
        conflicts=contradicting(
            advice, [each for each in tools if not _is_at(files, each.path, options.output)]
        ),
        tuned_base=base,
        inherited=read_profiles(files, base).lines,
        left_out=left_out,
        blamed={name: blamed(past, name, since_s or 0.0, end_s) for name in policies},
    )


def _tuned_base(files: KernelFiles, output: Optional[Path]) -> Sequence[str]:
    """The active profiles; ours is replaced by the profiles it includes.

    tuned silently skips a profile that includes itself, and so loses the one it is based on.
    Raises CommandError if another profile would include ours.
    """
    names: List[str] = []
    for name in (active_profile(files) or "").split():
        _, text = tuned_file(files, name) or ("", "")
        base = included(text) if is_ours(text) else [name]
        names += base
        if any(_is_at(files, each, output) for each in read_profiles(files, base).paths):
            raise CommandError(
                f"the active tuned profile {clean(name)} includes {output}, which cannot include it"
                " in turn: name a new profile with -o",
                BAD_NEWS,
            )
    return list(dict.fromkeys(names))


def _is_at(files: KernelFiles, path: str, output: Optional[Path]) -> bool:
    if output is None or not path:
        return False
    return os.path.realpath(files.path(path)) == os.path.realpath(output)


def _of_disks(
    read: Callable[[Path], Mapping[str, T]], path: Path, devices: Mapping[str, Device]
) -> Dict[str, T]:
    """By device name; without disks that cannot be told apart."""
    try:
        known = read(path)
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s) and is left out", path, error)
        return {}
    return {
        name: known[device.identity] for name, device in devices.items()
        if device.identity is not None and device.identity in known
    }  # fmt: skip


def _original(
    options: argparse.Namespace, files: KernelFiles, texts: Sequence[str], advice: Recommendation,
    now: VmLimits,
) -> VmLimits:  # fmt: skip
    """The limits before writebackd and before an earlier recommendation. Raises CommandError.

    Once a recommendation is in force, the daemon takes its limits for the original ones: the first
    of `texts`, files of earlier recommendations, that has older limits counts.
    """
    for text in texts:
        carried = undone_to(text)
        if carried is not None:
            return carried
    try:
        ledger = load(options.runtime_dir / LEDGER)
    except LedgerError as error:
        raise CommandError(str(error), BAD_NEWS) from None
    if ledger is not None and not ledger.is_of_an_earlier_boot(files):
        now = ledger.originals
    is_advised = now == VmLimits(advice.limit_bytes or 0, 0, advice.background_bytes or 0, 0)
    return (first_found(files) or now) if is_advised else now


# ---- the screen --------------------------------------------------------------


def render(advice: Recommendation, around: Surroundings, width: int, paint: Paint) -> str:
    """A screen: the two values first, then reason, cost and basis."""
    heading, maker = "No limit to recommend", MADE_BY
    if advice.settings:
        settings = ", ".join(f"{name} = {value}" for name, value in advice.settings.items())
        size = f"({formats.size(advice.limit_bytes)}, {formats.size(advice.background_bytes)})"
        heading, maker = f"{settings} {size}", f"{MADE_BY}, id {advice.id}"
    lines = [paint(heading, "heading")]
    said = {
        "made by": [maker],
        **notes(advice, around),
        "evidence": [f"{formats.duration(advice.observed_s)} of history", *_left_out(around)],
        "missing": advice.missing,
    }
    for label, texts in said.items():
        for text in texts:
            lines += labelled(label, text, width)
            label = ""
    if advice.devices:
        lines += ["", paint(_COLUMNS, "faint"), *map(_row, advice.devices)]
    for each in advice.devices:
        for line in device_lines(each, around):
            lines += wrapped(line, width, "  ", f"{clean(each.name)}: ")
    return "\n".join(lines)


_COLUMNS = "DEVICE    DRAIN   SEEN   TAU ms   KNEE  CACHE  LIMIT FLOODS   TIME"


def _row(each: DeviceAdvice) -> str:
    tau = formats.UNKNOWN if each.tau_s is None else f"<{formats.milliseconds(each.tau_s)}"
    cells = (
        formats.size(each.drain_rate), formats.duration(each.drain_age_s), tau,
        formats.size(each.knee_bytes), formats.size(each.cache_bytes),
        formats.size(each.limit_bytes), str(each.floods), formats.duration(each.flood_s),
    )  # fmt: skip
    widths = (6, 6, 8, 6, 6, 6, 6, 6)
    columns = [cell.rjust(width) for cell, width in zip(cells, widths)]
    return " ".join([clean(each.name)[:8].ljust(8), *columns])
