# SPDX-License-Identifier: GPL-2.0-or-later
"""A program of the admin's: one run per happening, which is its standard input as JSON."""

from __future__ import annotations

import json
from functools import partial

from .route import Teller
from .track import Happening
from .unprivileged import run_unprivileged
from .words import happening_json


def hook_route(program: str, host: str, runbook: str, limit_s: float) -> Teller:
    return Teller("exec", program, partial(_send, program, host, runbook, limit_s))


def _send(program: str, host: str, runbook: str, limit_s: float, happening: Happening) -> None:
    text = json.dumps(happening_json(happening, host, runbook)) + "\n"
    run_unprivileged("exec", [program], text.encode("ascii"), limit_s)
