# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb policy: list, show and check policy files; needs no daemon."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Dict

from writebackd.cli.client import NoDaemon, request
from writebackd.cli.exits import GOOD, USAGE, CommandError
from writebackd.cli.output import show, show_json, width
from writebackd.cli.render import clean, wrapped
from writebackd.policy import Policy, PolicyError, check, list_policies, load_policy, render
from writebackd.policy.load import DEFAULT_NAME
from writebackd.policy.schema import KEYS


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
        policy = load_policy(options.name or _running(options), options.config_dir)
    except PolicyError as error:
        raise CommandError(str(error), USAGE) from None
    if options.json:
        show_json(_as_json(policy))
    elif options.effective:
        show(render(policy).rstrip("\n"))
    else:
        for path in policy.files:
            with open(path, encoding="utf-8") as file:
                show(f"# {path}\n{file.read().rstrip()}")
    return GOOD


def check_(options: argparse.Namespace) -> int:
    problems = [line for file in options.files for line in check(file, options.config_dir)]
    if options.json:
        show_json({"good": not problems, "problems": problems})
    elif problems:
        print("\n".join(problems), file=sys.stderr)
    else:
        show(f"{', '.join(options.files)}: good")
    return USAGE if problems else GOOD


def _running(options: argparse.Namespace) -> str:
    """The policy of the running daemon; the default one when none runs."""
    try:
        return str(request(options.runtime_dir, "status", timeout_s=1.0)["policy"])
    except NoDaemon:
        return DEFAULT_NAME


def _as_json(policy: Policy) -> Dict[str, Any]:
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
    return {"name": policy.name, "files": list(policy.files), "sections": values}
