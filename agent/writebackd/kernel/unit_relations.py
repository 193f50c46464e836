# SPDX-License-Identifier: GPL-2.0-or-later
"""What systemd units are ordered before and after, or depend on: asked of systemd in a child."""

from __future__ import annotations

from typing import Dict, Optional, Set, Tuple

from writebackd.kernel.child_process import Job, Run

# systemd.unit(5): what waits for a unit, and what it waits for.
_PROPERTIES = (
    "After", "Before", "Requires", "RequiredBy", "Requisite", "RequisiteOf", "Wants", "WantedBy",
    "BindsTo", "BoundBy", "PartOf", "ConsistsOf", "Upholds", "UpheldBy", "JoinsNamespaceOf",
)  # fmt: skip
# Seconds: the limit of a child, and after which a unit is asked for again.
_LIMIT_S, AGAIN_S = 5.0, 60.0
MOST_UNITS = 256


class UnitRelations:
    """The last answers; `of` never waits."""

    def __init__(self) -> None:
        self._known: Dict[str, Tuple[float, Optional[Tuple[str, ...]]]] = {}
        self._job: Optional[Job] = None

    def of(self, unit: str, now_s: float) -> Optional[Tuple[str, ...]]:
        """Names of the related units; None before systemd has answered, and if it does not."""
        asked_s, names = self._known.get(unit, (float("-inf"), None))
        if now_s - asked_s >= AGAIN_S and (self._job is None or not self._job.busy):
            # An answer outlives the next question, not a pause in which its unit was not looked at.
            names = names if now_s - asked_s < 2 * AGAIN_S else None
            self._known.pop(unit, None)
            self._known[unit] = now_s, names  # moves to the end
            for oldest in list(self._known)[:-MOST_UNITS]:
                del self._known[oldest]
            self._job = Job(lambda run: self._ask(run, unit, now_s), _LIMIT_S, "units")
        return names

    def _ask(self, run: Run, unit: str, now_s: float) -> None:
        starts = _names(run, unit, ("TriggeredBy",))
        found = _names(run, unit, _PROPERTIES).union(starts)
        for name in starts:  # what waits for its socket waits for it
            found |= _names(run, name, _PROPERTIES)
        self._known[unit] = now_s, tuple(sorted(found - {unit}))


def _names(run: Run, unit: str, properties: Tuple[str, ...]) -> Set[str]:
    """Raises ChildError; OSError if systemd refused."""
    ended = run(("systemctl", "show", "--property", ",".join(properties), "--", unit))
    if ended.code:
        raise OSError(ended.code, ended.errors.strip() or "systemctl failed")
    return {name for line in ended.output.split("\n") for name in line.partition("=")[2].split()}
