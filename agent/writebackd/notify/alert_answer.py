# SPDX-License-Identifier: GPL-2.0-or-later
"""The type of an alert in answers, hooks and the history: for mypy and docs/man/schemas.py."""

from __future__ import annotations

from typing import Annotated, Any, Dict, List, Optional, TypedDict

from writebackd.alerts.alert_types import AlertName, Cause, Culprit, Severity
from writebackd.types.quantities import Count, Time

Evidence = TypedDict("Evidence", {
    "begin": Time, "end": Time,
    "facts": Dict[str, Optional[float]],  # by name; its end is the unit
})
AlertRow = TypedDict("AlertRow", {
    "name": Annotated[str, AlertName],
    "device": Optional[str],  # null: the host
    "severity": Annotated[str, Severity],  # of a past alert the worst that it was
    "cause": Annotated[str, Cause],  # part of an alert's identity, with name and device
    "since": Time,  # when it began, before it was sure
    "summary": str,
    "done": str,  # what the agent did, or what to do
    "culprits": List[Annotated[Dict[str, Any], Culprit]],  # the heaviest first
    "evidence": Optional[Evidence],  # the window that the cause rests on
    "runbook": str,  # address
})
Writer = TypedDict("Writer", {
    "pid": Optional[Count], "comm": Optional[str], "cgroup": Optional[str],
    "cmdline": Optional[str],  # its first 128 bytes
})


class SetLever(Writer):
    lever: str
    value: str


class ActiveAlert(AlertRow, total=False):
    writers: List[SetLever]  # of FOREIGN_WRITER: who set what; null: not known, or gone by now
