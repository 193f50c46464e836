# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb replay: decides again from recorded samples, under the same or another policy."""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import timezone
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from writebackd import formats
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, CommandError
from writebackd.cli.history import span, state_dir
from writebackd.cli.output import clean, moment, show_answer
from writebackd.paths import SAMPLES
from writebackd.policy import Policy, load_policy
from writebackd.policy.parse import REMOVED
from writebackd.policy.reload import local_zone
from writebackd.report.recorder import read_recording
from writebackd.report.replayer import Tally, replay

if TYPE_CHECKING:
    from writebackd.cli.client_answers import ReplayAnswer


def run(options: argparse.Namespace) -> int:
    since_s, until_s = span(options, time.time())
    directory = options.tape or state_dir(options) / SAMPLES
    tally = Tally()
    other = load_policy(options.policy, options.config_dir) if options.policy else None
    zone = local_zone() if other is not None and other.windows else timezone.utc
    ticks = read_recording(directory, since_s, until_s)
    for tick in replay(ticks, policy_of, other, zone):
        if since_s is None or tick.sample.wall_s >= since_s:
            tally.add(tick)
    if not tally.ticks:
        raise CommandError(
            f"no samples of that time in {directory}; without --since and --until all are used",
            BAD_NEWS,
        )
    answer = _answer(tally, options.policy)
    show_answer(options, answer, lambda: _text(answer))
    # Under the policy of then it has to come to the same.
    return BAD_NEWS if tally.different and other is None else GOOD


def policy_of(text: str) -> Policy:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "recorded.conf"
        # The file is called otherwise, and its name is a guard against copies.  Samples of an
        # earlier release have keys that were removed.
        left_out = ("name", *(key for _, key in REMOVED))
        lines = [line for line in text.splitlines() if line.partition(" =")[0] not in left_out]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return load_policy(str(path))


def _answer(tally: Tally, policy: Optional[str]) -> ReplayAnswer:
    return {
        "policy": policy,
        "begin_s": tally.begin_s,
        "end_s": tally.end_s,
        "ticks": tally.ticks,
        "decisions": tally.decisions,
        "different": tally.different,
        "limit_bytes": {"then": tally.median_limit(0), "now": tally.median_limit(1)},
        "devices": [
            {
                "name": name,
                "states": [
                    {"state": state, "then_s": then, "now_s": now}
                    for state, (then, now) in sorted(states.items())
                ],
            }
            for name, states in sorted(tally.states.items())
        ],
        "differences": [
            {"wall_s": wall_s, "then": then, "now": now} for wall_s, then, now in tally.differences
        ],
    }


def _text(answer: ReplayAnswer) -> str:
    begin, end = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
        for at_s in (answer["begin_s"], answer["end_s"])
    )
    under = f"policy {clean(answer['policy'])}" if answer["policy"] else "the recorded policy"
    lines = [f"{answer['ticks']} ticks, {begin} to {end}, replayed under {under}:"]
    if answer["different"]:
        lines.append(f"{answer['different']} ticks differ, {answer['decisions']} decisions")
    else:
        lines.append(f"no tick differs, {answer['decisions']} decisions")
    limits = answer["limit_bytes"]
    lines.append(
        f"median limit: then {formats.size(limits['then'])}, now {formats.size(limits['now'])}"
    )
    for device in answer["devices"]:
        for each in device["states"]:
            lines.append(
                f"  {clean(device['name']):9} {each['state']:9}"
                f" then {formats.duration(each['then_s']):>8}"
                f"  now {formats.duration(each['now_s']):>8}"
            )
    for tick in answer["differences"]:
        lines.append(f"{moment(tick['wall_s'])}  then {clean(tick['then'])}")
        lines.append(f"{'':14}  now  {clean(tick['now'])}")
    if answer["policy"]:
        lines.append(
            "These are its decisions on the recorded samples; under its limits the disks would"
            " have behaved differently."
        )
    return "\n".join(lines)
