# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose command lines alerts have, and who may see them."""

from __future__ import annotations

from typing import Sequence, Tuple

from writebackd.alerts.alert_types import Alert
from writebackd.kernel.argv_redaction import CommandLines
from writebackd.report.snapshot import Snapshot
from writebackd.types.copying import replace
from writebackd.types.levers import ForeignWrite


def with_command_lines(alerts: Sequence[Alert], lines: CommandLines) -> Tuple[Alert, ...]:
    """The same alerts with the command lines of their culprits, as far as known, and who exited."""
    missing, named = [], []
    for alert in alerts:
        culprits, summary = [], alert.summary
        for each in alert.culprits:
            if each.cmdline is None and each.pid is not None and each.comm is not None:
                missing.append((each.pid, each.comm))
                line = lines.of(each.pid, each.comm)
                if line is not None:
                    each = replace(each, cmdline=line.text, uid=line.uid)
            if each.pid is not None and each.comm is not None and not each.several:
                if lines.is_gone(each.pid, each.comm):
                    gone = replace(each, exited=True)
                    each, summary = gone, summary.replace(each.who, gone.who)
            culprits.append(each)
        if culprits:
            alert = replace(alert, culprits=tuple(culprits), summary=summary)
        named.append(alert)
    if missing:
        lines.ask(missing)
    return tuple(named)


def for_user(snapshot: Snapshot, uid: int) -> Snapshot:
    """What a user may see: the command lines of his own processes; root sees all."""
    if uid == 0:
        return snapshot
    memory, sample = snapshot.memory, snapshot.sample
    intrusions = [replace(each, write=_without(each.write)) for each in memory.intrusions]
    return replace(
        snapshot,
        alerts=tuple(
            replace(
                alert,
                culprits=tuple(
                    each if each.uid == uid else replace(each, cmdline=None)
                    for each in alert.culprits
                ),
            )
            for alert in snapshot.alerts
        ),
        memory=replace(memory, intrusions=tuple(intrusions)),
        sample=replace(sample, foreign=tuple(map(_without, sample.foreign))),
    )


def _without(write: ForeignWrite) -> ForeignWrite:
    return replace(write, cmdline=None)
