# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb policy: list, check and match policy files; needs no daemon."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from writebackd.cli.client import NoDaemon, request
from writebackd.cli.exit_codes import GOOD, USAGE, CommandError
from writebackd.cli.output import clean, show_answer, show_json, width, wrapped
from writebackd.command_line import complain
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_facts
from writebackd.kernel.topology import scan
from writebackd.paths import read_taken
from writebackd.policy import Policy, check, list_policies, load_files, load_policy, render
from writebackd.policy.keys import KEYS, WHEN, Key
from writebackd.policy.load import unresolved
from writebackd.policy.match import Choice, Verdict, choose
from writebackd.policy.reload import Open, read_timetable

if TYPE_CHECKING:
    from writebackd.cli.client_answers import (
        PolicyCheckAnswer,
        PolicyListAnswer,
        PolicyMatchAnswer,
        PolicyShowAnswer,
        Setting,
    )

_HOLDS = {True: "yes", False: "no", None: "unknown"}


def list_(options: argparse.Namespace) -> int:
    entries = list_policies(options.config_dir)
    lines: List[str] = []
    for entry in entries:
        text = entry.summary if not entry.problems else "; ".join(entry.problems)
        row = wrapped(text, width(), " " * 18, f"{clean(entry.name):<17} ")
        lines += row or [clean(entry.name)]
    answer: PolicyListAnswer = {"policies": [
        {"name": e.name, "path": e.path, "summary": e.summary, "problems": list(e.problems)}
        for e in entries
    ]}  # fmt: skip
    show_answer(options, answer, lambda: "\n".join(lines))
    return GOOD


def show_(options: argparse.Namespace) -> int:
    if options.name is not None:
        policy = load_policy(options.name, options.config_dir)
    else:
        policy = in_force(options.runtime_dir, options.config_dir)
    if options.json:
        show_json(_as_json(policy))
    elif options.effective:
        print(rendered(policy))
    else:
        for path in policy.files:
            with open(path, encoding="utf-8") as file:
                print(f"# {path}\n{file.read().rstrip()}")
    return GOOD


def _open_window(policy: Policy) -> Optional[Open]:
    return read_timetable(policy).at(time.time()).window


def rendered(policy: Policy) -> str:
    """The merged values, and which window is open."""
    text = render(policy).rstrip("\n")
    if not policy.windows:
        return text
    opened = _open_window(policy)
    now = "No window is open now."
    if opened is not None:
        now = f"Window {opened.name} is open now, until {opened.until}: its values are in force."
    return f"{text}\n\n# {now}"


def check_(options: argparse.Namespace) -> int:
    if options.place is not None and len(options.files) != 1:
        raise CommandError("--as is where one file is to go: name one", USAGE)
    problems = [
        line for file in options.files
        for line in check(file, options.config_dir, place=options.place)
    ]  # fmt: skip
    devices = () if problems else scan(KernelFiles())
    warnings = [] if problems else [
        line for file in options.files for line in unresolved(file, devices, options.config_dir)
    ]  # fmt: skip
    if options.json:
        answer: PolicyCheckAnswer = {
            "good": not problems, "problems": problems, "warnings": warnings
        }
        show_json(answer)
    elif problems:
        complain("\n".join(problems))
    else:
        print(f"{', '.join(options.files)}: good")
        for line in warnings:
            complain(f"warning: {line}")
    return USAGE if problems else GOOD


def match_(options: argparse.Namespace) -> int:
    """Which policy a daemon without `--policy` chooses on this host, and why."""
    choice = _choose(options.runtime_dir, options.config_dir)
    show_answer(
        options, _match_json(choice), lambda: "\n".join(_match_lines(choice, options.all))
    )
    for line in () if options.json else choice.skipped:
        complain(f"skipped: {line}")
    return GOOD


def _choose(runtime_dir: Path, config_dir: Optional[Path]) -> Choice:
    return choose(read_facts(KernelFiles()), config_dir, before=read_taken(runtime_dir))


def in_force(runtime_dir: Path, config_dir: Optional[Path]) -> Policy:
    """The policy of the running daemon, or the one it would choose.

    Missing files of it are skipped, and reported on stderr.
    """
    try:
        status = request(runtime_dir, "status", timeout_s=1.0)
    except NoDaemon:
        return _choose(runtime_dir, config_dir).policy
    files = list(map(Path, status["policy_files"]))
    if files and config_dir is None:
        # By name it would not be found, or another, where it is a file or has its own directory.
        return load_files(str(status["policy"]), _still_there(files))
    return load_policy(str(status["policy"]), config_dir)


def _still_there(files: Sequence[Path]) -> List[Path]:
    """Raises CommandError if the base file is gone: the others only add to it."""
    there = list(files)
    for file in files:
        try:
            file.lstat()
        except FileNotFoundError:
            said = f"{file} is gone since the daemon read it: systemctl reload writebackd"
            if file == files[0]:
                raise CommandError(said, USAGE) from None
            complain(f"writebackctl: {said}")
            there.remove(file)
        except OSError:
            pass  # who loads it tells what
    return there


def _match_json(choice: Choice) -> PolicyMatchAnswer:
    runner_up = choice.runner_up
    return {
        "policy": choice.policy.name,
        "reason": choice.policy.chosen,
        "runner_up": runner_up.name if runner_up is not None else None,
        "candidates": [
            {
                "name": each.name, "summary": each.summary, "fits": each.fits,
                "points": each.points, "least": each.least,
                "rules": [asdict(finding) for finding in each.findings],
            }
            for each in choice.verdicts if each.findings
        ],
    }


def _match_lines(choice: Choice, everything: bool) -> List[str]:
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
    lines = [f"{clean(verdict.name)} {fits}: {verdict.points} points, {verdict.least} needed"]
    for each in verdict.findings:
        points, evidence = f"+{each.points}", each.evidence
        if not each.holds:
            points, evidence = "0", f"{evidence} (worth {each.points}: {each.wanted})"
        rule = f"  {each.rule:<15}{points:>5} {_HOLDS[each.holds]:<8} "
        lines += wrapped(evidence, width(), " " * 32, rule)
    return lines


def _as_json(policy: Policy) -> PolicyShowAnswer:
    opened = _open_window(policy)
    sections: Dict[str, Dict[str, Setting]] = {}

    def add(section: str, key: Key, value: Any, origin: str) -> None:
        sections.setdefault(section, {})[key.name] = {
            "value": key.kind.format(value), "from": origin
        }

    for key in KEYS:
        add(key.section, key, policy.value(key), policy.origins[key.section, key.name])
    for setting in policy.devices.settings:
        add(f"device {setting.glob}", setting.key, setting.value, setting.origin)
    for window in policy.windows:
        section = f"window {window.name}"
        add(section, WHEN, window.when, window.origin)
        for each in window.settings:
            add(section, each.key, each.value, each.origin)
    return {
        "name": policy.name,
        "files": list(policy.files),
        "sections": sections,
        "window": asdict(opened) if opened is not None else None,
    }
