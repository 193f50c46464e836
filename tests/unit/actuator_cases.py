# SPDX-License-Identifier: GPL-2.0-or-later
"""An actuator over fake files, and the ways in which limits are restored."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Callable, Tuple

from fake_vm import DEFAULT, FakeVm
from limit_cases import MIB
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.types.levers import Action, VmLimits

FIRST = (15 * MIB, 7 * MIB)
SECOND = (96 * MIB, 32 * MIB)
ODD = (5_000_001, 6_000_001)  # not whole pages, and the background above the limit


def started(files: FakeVm, path: Path, on_exit: str = "restore") -> Actuator:
    actuator = Actuator(files, path, on_exit)
    actuator.start()
    return actuator


def begun(
    path: Path, original: VmLimits = DEFAULT, on_exit: str = "restore"
) -> Tuple[FakeVm, Actuator]:
    files = FakeVm(original)
    return files, started(files, path, on_exit)


def holding(
    path: Path, original: VmLimits = DEFAULT, on_exit: str = "restore"
) -> Tuple[FakeVm, Actuator]:
    """Already with the limits FIRST."""
    files, actuator = begun(path, original, on_exit)
    actuator.apply(*FIRST)
    return files, actuator


def bytes_form(pair: Tuple[int, int]) -> VmLimits:
    return VmLimits(pair[0], 0, pair[1], 0)


def error_of(actions: Tuple[Action, ...]) -> str:
    assert actions and all(not action.ok for action in actions)
    return actions[0].error or ""


# -- failures ------------------------------------------------------------------

WORDS = {
    errno.EPERM: "uid 0",
    errno.EROFS: "read-only",
    errno.EINVAL: "refuses",
    errno.EIO: "Input/output",
}


# -- the way home --------------------------------------------------------------


def home_by_restore(actuator: Actuator, files: FakeVm, path: Path) -> None:
    assert all(action.ok for action in actuator.restore())


def home_by_ledger(actuator: Actuator, files: FakeVm, path: Path) -> None:
    assert restore_from_ledger(files, path).status != "failed"


def home_by_next_run(actuator: Actuator, files: FakeVm, path: Path) -> None:
    following = Actuator(files, path, "restore")
    following.start()
    home_by_restore(following, files, path)


def home_by_next_run_that_writes(actuator: Actuator, files: FakeVm, path: Path) -> None:
    following = Actuator(files, path, "restore")
    following.start()
    assert all(action.ok for action in following.apply(*ODD))
    home_by_restore(following, files, path)


AFTER_CRASH = [home_by_ledger, home_by_next_run, home_by_next_run_that_writes]
Home = Callable[[Actuator, FakeVm, Path], None]
