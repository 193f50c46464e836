# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the programs that the policy names without root's rights."""

from __future__ import annotations

import os
import re
from math import ceil
from pathlib import Path
from typing import List, Sequence

from writebackd.paths import others_may_choose

from .route import Refused, RouteError
from .run_program import run_program

_NOBODY = 65534
# CAP_SETGID and CAP_SETUID; of nobody's process CAP_DAC_OVERRIDE for its oom_score_adj, and
# CAP_KILL should it hang.
_CAPABILITIES = 1 << 6 | 1 << 7 | 1 << 1 | 1 << 5
# systemd-run --wait asks over the bus.
_SYSTEMD, _BUS = Path("/run/systemd/system"), Path("/run/dbus/system_bus_socket")


def run_unprivileged(
    name: str, argv: Sequence[str], text: bytes, limit_s: float, set_uid: bool = False
) -> None:
    """As `run_program`, by the command that `unprivileged` makes of it."""
    try:
        run_program(unprivileged(name, argv, limit_s, set_uid), text, limit_s)
    except Refused as error:
        unit = _unit(name)
        if re.search(rf"Unit {re.escape(unit)} .*already (loaded|exists)", str(error)):
            # Not by the program, which will take it once that is over.
            raise RouteError(f"not started: its last run has not ended yet ({unit})") from None
        raise


def _unit(name: str) -> str:
    return f"writebackd-{name}.service"


def unprivileged(
    name: str, argv: Sequence[str], limit_s: float, set_uid: bool = False
) -> List[str]:
    """The command that runs `argv` as somebody who may nothing; only root may change the program.

    `name` is the route's. `set_uid`: a set-uid or set-gid program that it starts gains what it is
    made to gain, as an MTA's that takes mail from every user. Raises RouteError.
    """
    try:
        why = others_may_choose(argv[0])
    except OSError as error:
        raise RouteError(f"cannot start: {error.strerror}") from None
    if why:
        raise RouteError(f"not started: {why}")
    if os.geteuid() != 0:
        return list(argv)
    if not os.stat(argv[0]).st_mode & 0o001:
        raise RouteError(f"cannot start, it runs as nobody: chmod a+rx {argv[0]}")
    if _may_change_user():
        gains = [] if set_uid else ["--no-new-privs"]
        user = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--inh-caps=-all"]
        return ["setpriv", *user, *gains, *argv]
    cannot = "not started: this process cannot give up root for it, and"
    if not _SYSTEMD.is_dir():
        raise RouteError(
            f"{cannot} no systemd runs to start it; see docs/reference/alert-routes.md"
        )
    if not _BUS.exists():
        raise RouteError(
            f"{cannot} systemd is not on the system bus to start it: install dbus; see"
            " docs/reference/alert-routes.md"
        )
    # DynamicUser= comes with NoNewPrivileges=, a read-only system and a /tmp of its own. Of a unit
    # that lives systemd starts no second one; without TimeoutStopSec= one that ignores SIGTERM
    # would live for 90 s more.
    properties = (
        "User=nobody" if set_uid else "DynamicUser=yes", f"RuntimeMaxSec={ceil(limit_s)}",
        "TimeoutStopSec=1", "TasksMax=64", "MemoryMax=256M", "OOMScoreAdjust=500",
    )  # fmt: skip
    return [
        "systemd-run", "--quiet", "--collect", "--pipe", "--wait", f"--unit={_unit(name)}",
        "--setenv=LC_ALL=C.UTF-8", *(f"--property={each}" for each in properties), *argv,
    ]  # fmt: skip


def _may_change_user() -> bool:
    """Not within the unit, whose CapabilityBoundingSet= is narrow."""
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.M)
    return effective is not None and int(effective[1], 16) & _CAPABILITIES == _CAPABILITIES
