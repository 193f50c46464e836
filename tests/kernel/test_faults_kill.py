# SPDX-License-Identifier: GPL-2.0-or-later
"""Killed at random points: daemon, watcher, both.  The limits are held, or home, or known.

A daemon that is started again within the lease goes on without a jump; one that
is not is followed by the originals once the lease has run out; and where daemon
and watcher are both gone the ledger has the way home.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Iterator

import pytest

from tests.kernel.fault_rig import (
    FILES,
    HOME_S,
    LEASE_S,
    Home,
    Starter,
    home,
    is_alive,
    kill,
    limits,
    limits_kept,
    wait_for,
)
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.paths import LEDGER
from writebackd.types.levers import VmLimits

__all__ = ["home"]  # a fixture
SEED = 20260103
# From before the first import of a module to well into the loop.
LIFE_S = 0.6
KINDS = ("daemon", "daemon", "watcher", "both")


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


# The last of so many kills of the daemon is not followed by another daemon.
@pytest.mark.parametrize("kills, left_alone", [
    (40, 4), pytest.param(200, 10, marks=pytest.mark.full("200 kills instead of 40"))])
def test_at_random_points(home: Home, starter: Starter, kills: int, left_alone: int) -> None:
    dice, seen = random.Random(SEED), Counter[str]()
    pid = 0
    with limits_kept() as found:
        try:
            for number in range(kills):
                if not is_alive(pid):
                    before = home.check_way_home(found)
                    pid = starter.start(home)
                    seen["started on limits as found" if before else "adopted"] += 1
                    if not before:
                        _no_jump(found, dice.uniform(0, LIFE_S))
                time.sleep(dice.uniform(0, LIFE_S))
                assert is_alive(pid), home.log.read_text()[-2000:]
                kind = dice.choice(KINDS)
                seen[f"killed: {kind}"] += 1
                if kind == "watcher":
                    _kill_watcher(home, pid, found)
                    continue
                kill(pid)
                held = not home.check_way_home(found)
                seen["in mid-write or held" if held else "before the first write"] += 1
                watcher = home.watcher
                if kind == "both":
                    if watcher is not None:
                        kill(watcher)
                    if dice.random() < 0.5 or number == kills - 1:
                        _restore_by_hand(home, found)
                elif seen["killed: daemon"] % left_alone == 0:
                    _wait_for_watcher(home, found, watcher)
                    seen["restored by the watcher"] += bool(held and watcher)
        finally:
            kill(pid) if pid else None
            watcher = home.watcher
            if watcher is not None:
                kill(watcher)
            restore_from_ledger(FILES, home.runtime_dir / LEDGER)
        assert limits() == found
    home.check_log()
    print(f"\n{kills} kills, seed {SEED}: {dict(seen)}")
    assert seen["in mid-write or held"] > kills / 10 and seen["restored by the watcher"]


def _no_jump(found: VmLimits, seconds: float) -> None:
    """A restart within the lease: in no moment the originals."""
    until = time.monotonic() + min(seconds, LEASE_S / 2)
    while time.monotonic() < until:
        assert limits().dirty_bytes != found.dirty_bytes, "the limit jumped"
        time.sleep(0.002)


def _kill_watcher(home: Home, pid: int, found: VmLimits) -> None:
    old = home.watcher
    if old is None:
        return  # not there yet
    kill(old)
    # A tick to see it, a second between two starts, and 0.2 s to load.
    wait_for(lambda: home.watcher not in (None, old), 10.0, "for another watcher")
    assert is_alive(pid)
    home.check_way_home(found)


def _wait_for_watcher(home: Home, found: VmLimits, watcher: "int | None") -> None:
    if watcher is None and home.watcher is None:
        _restore_by_hand(home, found)  # killed before it had one
        return
    wait_for(lambda: limits() == found, HOME_S, "for the watcher to restore")
    wait_for(lambda: home.watcher is None, 5.0, "for the watcher to end")
    assert not (home.runtime_dir / LEDGER).exists()


def _restore_by_hand(home: Home, found: VmLimits) -> None:
    """As `writebackctl restore` and ExecStopPost= do."""
    result = restore_from_ledger(FILES, home.runtime_dir / LEDGER)
    assert result.status in ("restored", "nothing"), result
    assert limits() == found
