# SPDX-License-Identifier: GPL-2.0-or-later
"""What systemd units are ordered before and after, or depend on: asked of systemd in a child."""

from __future__ import annotations

import shlex
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

from writebackd.kernel.child_process import Job, Run

# systemd.unit(5): what waits for a unit, and what it waits for.
_RELATIONS = (
    "After", "Before", "Requires", "RequiredBy", "Requisite", "RequisiteOf", "Wants", "WantedBy",
    "BindsTo", "BoundBy", "PartOf", "ConsistsOf", "Upholds", "UpheldBy", "JoinsNamespaceOf",
)  # fmt: skip
_SOCKETS, _CGROUP = "TriggeredBy", "ControlGroup"
# Seconds: the limit of a child, and after which a unit is asked for again.
_LIMIT_S, AGAIN_S = 5.0, 60.0
MOST_UNITS = 256
T = TypeVar("T")


class _Said(NamedTuple):
    """The last answer of systemd."""

    at_s: float
    names: Tuple[str, ...]


class UnitRelations:
    """The last answers; neither `of` nor `ask` waits."""

    def __init__(self) -> None:
        self._said: Dict[str, _Said] = {}
        self._asked_s: Dict[str, float] = {}
        self._due: List[str] = []
        self._job: Optional[Job] = None

    def of(self, unit: str, now_s: float) -> Optional[Tuple[str, ...]]:
        """Names of the related units; None if systemd has not said for two minutes, or never."""
        if now_s - self._asked_s.get(unit, float("-inf")) >= AGAIN_S:
            self._due.append(unit)
        said = self._said.get(unit)
        return None if said is None or now_s - said.at_s >= 2 * AGAIN_S else said.names

    def ask(self, now_s: float) -> None:
        """Ask for all units that are due, in one child."""
        units, self._due = tuple(dict.fromkeys(self._due))[:MOST_UNITS], []
        if units and (self._job is None or not self._job.busy):
            self._asked_s = _newest({**self._asked_s, **dict.fromkeys(units, now_s)})
            self._job = Job(lambda run: self._answer(run, units, now_s), _LIMIT_S, "units")

    def _answer(self, run: Run, units: Sequence[str], now_s: float) -> None:
        shown = _show(run, units, (*_RELATIONS, _SOCKETS, _CGROUP))
        sockets = sorted(set().union(*(shown[unit][_SOCKETS] for unit in units)))
        of_socket = _show(run, sockets, _RELATIONS) if sockets else {}
        said = {}
        for unit in units:
            if not shown[unit].pop(_CGROUP):
                continue  # not a unit of systemd's, whatever its cgroup is called
            names = set().union(*shown[unit].values())
            for socket in shown[unit][_SOCKETS]:  # what waits for its socket waits for it
                names.update(*of_socket[socket].values())
            said[unit] = _Said(now_s, tuple(sorted(names - {unit})))
        self._said = _newest({**self._said, **said})


def _newest(of: Dict[str, T]) -> Dict[str, T]:
    return dict(list(of.items())[-MOST_UNITS:])


def _show(
    run: Run, units: Sequence[str], properties: Sequence[str]
) -> Mapping[str, Dict[str, Set[str]]]:
    """Words of each property of each unit; raises ChildError, OSError if systemd refused."""
    ended = run(("systemctl", "show", "--property", ",".join(properties), "--", *units))
    blocks = ended.output.rstrip("\n").split("\n\n")
    if ended.code or len(blocks) != len(units):
        raise OSError(ended.code, ended.errors.strip() or "systemctl failed")
    shown = {}
    for unit, block in zip(units, blocks):
        of: Dict[str, Set[str]] = {name: set() for name in properties}
        for line in block.split("\n"):
            name, _, value = line.partition("=")
            of[name] = set(shlex.split(value))  # a name with a backslash is quoted
        shown[unit] = of
    return shown
