# SPDX-License-Identifier: GPL-2.0-or-later
"""Paces where there is an io controller: of a unit of systemd, and of a cgroup that is nobody's.

After each fault io.max is exactly as it was found, or as the ledger of a killed
daemon knows it.  Both cgroups have limits before, of which nothing may change.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional

import pytest

from tests.kernel.fault_rig import (
    FILES,
    HOME_S,
    LEASE_S,
    PIN,
    Home,
    Starter,
    is_alive,
    kill,
    limits,
    limits_kept,
)
from tests.vm.inside.rig import (
    MIB,
    WISHING,
    bandwidths,
    devno_of,
    group,
    io_max,
    null_disk,
    session,
    sleeper,
    wait_for,
    wish,
)
from writebackd.actuate.ledger import LeverEntry, load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.paths import LEDGER
from writebackd.types.levers import LeverKind, VmLimits

KILLS, SEED, LIFE_S = 30, 20261122, 0.8
UNIT = "flood.service"
RATES = [5 * MIB, 6 * MIB]
# In front of the daemon as well: what its child's writes of io.max come to.
FAILING = """
from writebackd.kernel import cgroup_io_max as cgroups
flag, in_child = Path("/run/failing"), cgroups.write_in_child
def failing(path, value):
    def refused(run):
        raise OSError(int(flag.read_text()), "as the test wants it")
    return refused if flag.exists() else in_child(path, value)
cgroups.write_in_child = failing
"""


class Paced(NamedTuple):
    """The cgroups, and what was found there."""

    devno: str
    cgroups: List[str]
    io_max: List[Dict[str, str]]
    properties: List[str]

    def wishes(self, rates: List[int]) -> None:
        wish([PIN, PIN + 16 * MIB],
             [(LeverKind.PACE, cgroup, self.devno, rates) for cgroup in self.cgroups])

    def now(self) -> List[Dict[str, str]]:
        return [io_max(cgroup, self.devno) for cgroup in self.cgroups]

    def rates(self) -> List[str]:
        return [each.get("wbps", "max") for each in self.now()]

    def held(self) -> bool:
        return all(rate in map(str, RATES) for rate in self.rates())

    def is_home(self) -> bool:
        return self.now() == self.io_max and bandwidths(UNIT) == self.properties

    def check_way_home(self, home: Home) -> bool:
        """Whether io.max is as found; where not, the ledger has to know it."""
        known = _entries(home)
        for cgroup, rate, found in zip(self.cgroups, self.rates(), self.io_max):
            original = found.get("wbps", "max")
            entries = [each[cgroup] for each in (known, _entries(home)) if cgroup in each]
            assert rate == original or entries, f"{cgroup}: {rate}, and nothing says that it was"
            for entry in entries:
                assert entry.original == original
            written = {text for entry in entries for text in entry.written}
            assert rate in {original, *written}
        return self.now() == self.io_max


def _entries(home: Home) -> Dict[str, LeverEntry]:
    ledger = load(home.runtime_dir / LEDGER)
    return {entry.target: entry for entry in ledger.levers} if ledger is not None else {}


@pytest.fixture(scope="module")
def paced() -> Iterator[Paced]:
    with null_disk() as disk, group("nobodys") as plain:
        devno = devno_of(disk)
        limit = (f"IOReadBandwidthMax=/dev/{disk} 800M", f"IOWriteBandwidthMax=/dev/{disk} 900M")
        Path(f"/sys/fs/cgroup{plain}/io.max").write_text(f"{devno} rbps=700000000")
        with sleeper(UNIT, *limit) as cgroup:
            wait_for(lambda: "wbps" in io_max(cgroup, devno), what="for its own limits")
            cgroups = [cgroup, plain]
            before = [io_max(each, devno) for each in cgroups]
            yield Paced(devno, cgroups, before, bandwidths(UNIT))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()
    home.check_log()


@pytest.fixture
def found(paced: Paced) -> Iterator[VmLimits]:
    paced.wishes(RATES)
    with limits_kept() as found:
        yield found
    wait_for(paced.is_home, 1.0, f"for {paced.io_max}, {paced.properties}: {paced.now()}")


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    starter = Starter(WISHING + FAILING)
    yield starter
    starter.close()


def start(starter: Starter, home: Home) -> int:
    """With a tick that leaves systemd the time to follow."""
    return starter.start(home, "--interval", "0.2")


def end(pid: int, number: int = signal.SIGTERM) -> None:
    kill(pid, number)
    wait_for(lambda: not is_alive(pid), what="for the daemon to end")


def by_hand(home: Home, found: VmLimits, paced: Paced) -> None:
    result = restore_from_ledger(FILES, home.runtime_dir / LEDGER)
    assert result.status in ("restored", "nothing"), result
    assert limits() == found and paced.is_home(), (result, paced.now(), bandwidths(UNIT))


def test_killed_at_random_points(
    home: Home, starter: Starter, found: VmLimits, paced: Paced
) -> None:
    dice, seen, pid = random.Random(SEED), Counter[str](), 0
    for number in range(KILLS):
        if not is_alive(pid):
            held = not paced.check_way_home(home)
            pid = start(starter, home)
            seen["adopted" if held else "started on io.max as found"] += 1
        time.sleep(dice.uniform(0, LIFE_S))
        assert is_alive(pid), home.log.read_text()[-2000:]
        kind = dice.choice(("daemon", "daemon", "watcher", "both"))
        seen[f"killed: {kind}"] += 1
        watcher: Optional[int] = home.watcher
        if kind == "watcher":
            if watcher is not None:
                kill(watcher)
            paced.check_way_home(home)
            continue
        kill(pid)
        if kind == "both" and watcher is not None:
            kill(watcher)
        held = not paced.check_way_home(home)
        seen["in mid-write or held" if held else "before the first write"] += 1
        last = number == KILLS - 1
        if kind == "both" or home.watcher is None:
            if last or dice.random() < 0.5:
                by_hand(home, found, paced)
        elif last or dice.randrange(4) == 0:
            wait_for(lambda: limits() == found and paced.is_home(), HOME_S + 6.0, "for the watcher")
            seen["restored by the watcher"] += held
    if is_alive(pid):
        end(pid)
    by_hand(home, found, paced)
    print(f"\n{KILLS} kills, seed {SEED}: {dict(seen)}")
    assert seen["in mid-write or held"] > KILLS / 3


def test_restarted_within_the_lease(
    home: Home, starter: Starter, found: VmLimits, paced: Paced
) -> None:
    """The paces are adopted: nothing moves while the next one asks for the same."""
    home.policy.write_text("[limits]\nlease = 10s\n")
    paced.wishes([RATES[0]])
    pid = start(starter, home)
    wait_for(lambda: paced.rates() == [str(RATES[0])] * 2, what="for the paces")
    kill(pid)
    again = start(starter, home)
    for _ in range(40):
        assert paced.rates() == [str(RATES[0])] * 2
        time.sleep(0.05)
    for cgroup in paced.cgroups:
        assert f"adopted pace {cgroup} {paced.devno}" in home.check_log()
    end(again)


def test_stopped_past_the_lease(
    home: Home, starter: Starter, found: VmLimits, paced: Paced
) -> None:
    pid = start(starter, home)
    wait_for(paced.held, what="for the paces")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: limits() == found and paced.is_home(), HOME_S + 6.0, "for the watcher")
    time.sleep(2 * LEASE_S)
    assert paced.is_home()
    os.kill(pid, signal.SIGCONT)
    wait_for(paced.held, what="for the daemon to go on")
    end(pid)


def test_two_daemons(home: Home, starter: Starter, found: VmLimits, paced: Paced) -> None:
    pid = start(starter, home)
    wait_for(paced.held, what="for the paces")
    second = start(starter, home)
    wait_for(lambda: not is_alive(second), what="for the second to be refused")
    assert f"already running (pid {pid}" in home.check_log() and paced.held()
    end(pid)


def test_session(home: Home, starter: Starter, found: VmLimits, paced: Paced) -> None:
    """systemd turns the io controller on for it with the pace, and nothing is left of either."""
    with session("session-7.scope") as cgroup:
        assert not Path(f"/sys/fs/cgroup{cgroup}/io.max").exists()
        wish([PIN, PIN + 16 * MIB], [(LeverKind.PACE, cgroup, paced.devno, RATES)])
        pid = start(starter, home)
        wait_for(lambda: io_max(cgroup, paced.devno).get("wbps", "max") in map(str, RATES),
                 what="for its pace")
        end(pid)
        assert io_max(cgroup, paced.devno) == {} and bandwidths("session-7.scope") == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EPERM])
def test_refused(
    home: Home, starter: Starter, found: VmLimits, paced: Paced, number: int
) -> None:
    """The cgroup's write is, the unit's is not: one is paced, one told of once."""
    flag = Path("/run/failing")
    flag.write_text(str(int(number)))
    try:
        pid = start(starter, home)
        unit, plain = paced.cgroups
        wait_for(lambda: io_max(unit, paced.devno)["wbps"] in map(str, RATES), what="for the unit")
        time.sleep(1.0)
        assert io_max(plain, paced.devno) == paced.io_max[1]
        text = home.check_log()
        assert sum(f"pace {plain}" in line for line in text.splitlines()) == 1, text
    finally:
        flag.unlink()
    end(pid)
