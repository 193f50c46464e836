# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb policy: list, show, check and match policy files; needs no daemon."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from writebackd.cli.client import NoDaemon, request
from writebackd.cli.exit_codes import GOOD, USAGE, CommandError
from writebackd.cli.output import show, show_json, width
from writebackd.cli.status_screen import clean, wrapped
from writebackd.command_line import complain
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_facts
from writebackd.paths import read_taken
from writebackd.policy import (
    Policy,
    PolicyError,
    check,
    list_policies,
    load_files,
    load_policy,
    render,
)
from writebackd.policy.keys import KEYS, WHEN
from writebackd.policy.match import (
    NAMED,
    Choice,
    Finding,
    Verdict,
    choose,
    without_unwanted_levers,
)
from writebackd.policy.timetable import Open, read_timetable

_HOLDS = {True: "yes", False: "no", None: "unknown"}


def list_(options: argparse.Namespace) -> int:
    try:
        entries = list_policies(options.config_dir)
    except PolicyError as error:
        raise CommandError(str(error), USAGE) from None
    if options.json:
        rows = [
            {"name": e.name, "path": e.path, "summary": e.summary, "problems": list(e.problems)}
            for e in entries
        ]
        show_json({"policies": rows})
        return GOOD
    for entry in entries:
        text = entry.summary if not entry.problems else "; ".join(entry.problems)
        lines = wrapped(text, width(), " " * 18, f"{clean(entry.name):<17} ")
        show("\n".join(lines or [clean(entry.name)]))
    return GOOD


def show_(options: argparse.Namespace) -> int:
    """The files as they are, or what they come to together (`--effective`)."""
    try:
        if options.name is not None:
            policy = load_policy(options.name, options.config_dir)
        else:
            policy = _in_force(options.runtime_dir, options.config_dir)
        opened = read_timetable(policy).at(time.time()).window
    except PolicyError as error:
        raise CommandError(str(error), USAGE) from None
    if options.json:
        show_json(_as_json(policy, opened))
    elif options.effective:
        show(_rendered(policy, opened))
    else:
        for path in policy.files:
            with open(path, encoding="utf-8") as file:
                show(f"# {path}\n{file.read().rstrip()}")
    return GOOD


def files_in_force(runtime_dir: Path) -> Sequence[str]:
    """Those that the running daemon has read, or would. Raises PolicyError or CommandError."""
    try:
        status = request(runtime_dir, "status", timeout_s=1.0)
    except NoDaemon:
        status = {}
    files: Sequence[str] = status.get("policy_files", ())  # an older one does not tell
    return files or _in_force(runtime_dir, None).files


def effective(runtime_dir: Path) -> str:
    """What `show --effective` prints. Raises PolicyError or CommandError."""
    policy = _in_force(runtime_dir, None)
    return _rendered(policy, read_timetable(policy).at(time.time()).window)


def _rendered(policy: Policy, opened: Optional[Open]) -> str:
    text = render(policy).rstrip("\n")
    return f"{text}\n\n# {_now(opened)}" if policy.windows else text


def check_(options: argparse.Namespace) -> int:
    if options.place is not None and len(options.files) != 1:
        raise CommandError("--as is where one file is to go: name one", USAGE)
    problems = [
        line for file in options.files
        for line in check(file, options.config_dir, place=options.place)
    ]  # fmt: skip
    if options.json:
        show_json({"good": not problems, "problems": problems})
    elif problems:
        complain("\n".join(problems))
    else:
        show(f"{', '.join(options.files)}: good")
    return USAGE if problems else GOOD


def match_(options: argparse.Namespace) -> int:
    """Which policy a daemon without `--policy` takes on this host, and why."""
    choice = _choose(options.runtime_dir, options.config_dir)
    if options.json:
        show_json(_match_json(choice))
    else:
        show("\n".join(_match_lines(choice, options.all)))
        for line in choice.skipped:
            complain(f"skipped: {line}")
    return GOOD


def _choose(runtime_dir: Path, config_dir: Optional[Path]) -> Choice:
    try:
        before = read_taken(runtime_dir)
        return choose(read_facts(KernelFiles()), config_dir, before=before)
    except PolicyError as error:
        raise CommandError(str(error), USAGE) from None


def _in_force(runtime_dir: Path, config_dir: Optional[Path]) -> Policy:
    """The policy of the running daemon; the one that it would take when none runs.

    Of its files those that are still there; the others are told on stderr.
    """
    try:
        status = request(runtime_dir, "status", timeout_s=1.0)
    except NoDaemon:
        return _choose(runtime_dir, config_dir).policy
    files = list(map(Path, status.get("policy_files", ())))
    if files and config_dir is None:
        # By name it would not be found, or another, where it is a file or has its own directory.
        policy = load_files(str(status["policy"]), _still_there(files))
    else:
        policy = load_policy(str(status["policy"]), config_dir)
    named = status.get("policy_reason", NAMED) == NAMED  # none in the answer of an older one
    return policy if named else without_unwanted_levers(policy)


def _still_there(files: Sequence[Path]) -> List[Path]:
    """Raises CommandError where the first is gone, which the others only add to."""
    gone = list(filter(_is_gone, files))
    for file in gone:
        said = f"{file} is gone since the daemon read it: systemctl reload writebackd"
        if file == files[0]:
            raise CommandError(said, USAGE)
        complain(f"writebackctl: {said}")
    return [file for file in files if file not in gone]


def _is_gone(file: Path) -> bool:
    try:
        file.lstat()
    except FileNotFoundError:
        return True
    except OSError:  # who loads it tells what
        return False
    return False


def _match_json(choice: Choice) -> Dict[str, Any]:
    runner_up = choice.runner_up
    return {
        "policy": choice.policy.name,
        "reason": choice.policy.chosen,
        "runner_up": runner_up.name if runner_up is not None else None,
        "candidates": [
            {
                "name": verdict.name,
                "summary": verdict.summary,
                "fits": verdict.fits,
                "points": verdict.points,
                "least": verdict.least,
                "rules": [asdict(finding) for finding in verdict.findings],
            }
            for verdict in choice.verdicts
            if verdict.findings
        ],
    }


def _match_lines(choice: Choice, everything: bool) -> List[str]:
    """The policy taken and the runner-up, or all that have rules."""
    name, runner_up = choice.policy.name, choice.runner_up
    best = next((each for each in choice.verdicts if each.name == name), None)
    if best is None or not best.fits:
        lines = wrapped(f"{name}: {choice.policy.chosen}", width(), "  ", "")
        best = None
    else:
        lines = _verdict_lines(best)
        held, parted, _ = choice.policy.chosen.rpartition("; best match")
        if parted:
            lines += wrapped(held, width(), "  ", "  ")
    others = [each for each in choice.verdicts if each is not best and each.findings]
    if not everything:
        others = [runner_up] if runner_up is not None else []
    for verdict in others:
        lines += ["", *_verdict_lines(verdict)]
    return lines


def _verdict_lines(verdict: Verdict) -> List[str]:
    fits = "fits" if verdict.fits else "does not fit"
    title = f"{clean(verdict.name)} {fits}: {verdict.points} points, {verdict.least} needed"
    lines = [title]
    for finding in verdict.findings:
        lines += wrapped(_evidence(finding), width(), " " * 32, f"  {_rule(finding)}")
    return lines


def _rule(finding: Finding) -> str:
    points = f"+{finding.points}" if finding.holds else "0"
    return f"{finding.rule:<15}{points:>5} {_HOLDS[finding.holds]:<8} "


def _evidence(finding: Finding) -> str:
    if finding.holds:
        return finding.evidence
    return f"{finding.evidence} (worth {finding.points}: {finding.wanted})"


def _now(opened: Optional[Open]) -> str:
    if opened is None:
        return "No window is open now."
    return f"Window {opened.name} is open now, until {opened.until}: what it says is in force."


def _as_json(policy: Policy, opened: Optional[Open]) -> Dict[str, Any]:
    values: Dict[str, Dict[str, Any]] = {}
    for key in KEYS:
        values.setdefault(key.section, {})[key.name] = {
            "value": key.kind.format(policy.value(key)),
            "from": policy.origins[key.section, key.name],
        }
    for setting in policy.devices.settings:
        values.setdefault(f"device {setting.glob}", {})[setting.key.name] = {
            "value": setting.key.kind.format(setting.value),
            "from": setting.origin,
        }
    for window in policy.windows:
        lines = {"when": {"value": WHEN.kind.format(window.when), "from": window.origin}}
        for each in window.settings:
            value = each.key.kind.format(each.value)
            lines[each.key.name] = {"value": value, "from": each.origin}
        values[f"window {window.name}"] = lines
    return {
        "name": policy.name,
        "files": list(policy.files),
        "sections": values,
        "window": asdict(opened) if opened is not None else None,
    }
