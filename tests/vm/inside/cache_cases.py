# SPDX-License-Identifier: GPL-2.0-or-later
"""Real bcache, dm-writecache and dm-cache: what is read, and what is written."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, List, Tuple

import pytest

from tests.kernel.fault_rig import (
    HOME_S,
    PIN,
    POLICY,
    Home,
    Running,
    Starter,
    found,
    home,
    is_alive,
    kill,
    limits,
)
from tests.kernel.scratch import run
from tests.vm.inside.cache_rig import (
    BCACHE,
    FAST_MB,
    R,
    bcache,
    dirty_bytes,
    dm_cache,
    followed,
    settings,
    write,
    writecache,
)
from tests.vm.inside.rig import MIB, devno_of, starter, state, wait_for, wish, wishes_for
from writebackd.actuate.ledger import load
from writebackd.control.destage import DESTAGE_DELAY_S, DESTAGE_PERCENT, SECTOR, destage_rate
from writebackd.estimate.cache_size import FULL_SHARE
from writebackd.kernel import lever_files
from writebackd.paths import LEDGER
from writebackd.types.levers import LeverKind, VmLimits
from writebackd.types.storage import CacheMode

__all__ = ["found", "home", "starter"]

# How long a daemon lives before it is killed, and how often.
KILLS, SEED, LIFE_S = 8, 20261126, 0.8

CACHE_KINDS = [
    (bcache, "bcache", FAST_MB * MIB * 7 // 10,
     {"writeback_percent": 10, "writeback_delay": 30, "writeback_rate_minimum": 8}),
    # A part of it is the cache's own metadata.
    (writecache, "dm-writecache", 16_320 * 2 * 4096, {"high_watermark": 60, "low_watermark": 45}),
    (dm_cache, "dm-cache", FAST_MB * MIB, {"migration_threshold": 2048}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "source", "capacity", "thresholds"), CACHE_KINDS, ids=[row[1] for row in CACHE_KINDS]
)
def test_fill_capacity_mode_and_thresholds_are_read(
    make: Callable[[], "contextlib.AbstractContextManager[str]"], source: str, capacity: int,
    thresholds: Dict[str, int],
) -> None:  # fmt: skip
    with make() as device, followed(device) as seen:
        empty = seen()
        assert empty is not None
        print(f"\n{empty}")
        assert (empty.source, empty.mode) == (source, CacheMode.WRITE_BACK)
        assert empty.dirty_bytes == 0
        assert empty.capacity_bytes == pytest.approx(capacity, rel=0.01)
        told = {each.name: each.value for each in empty.thresholds}
        assert {name: told.get(name) for name in thresholds} == thresholds
        # dm-cache keeps what was written to more than once.
        write(device, 32, 3 if source == "dm-cache" else 1)
        time.sleep(2.5)
        some = seen()
        assert some is not None and some.read_s is not None and empty.read_s is not None
        print(f"{some}")
        assert some.read_s > empty.read_s
        assert some.dirty_bytes is not None
        # Which blocks are worth caching is decided by dm-cache; the others cache all.
        least = 16 * MIB if source == "dm-cache" else 0.95 * 32 * MIB
        assert least < some.dirty_bytes < 1.05 * 32 * MIB
        if source != "dm-cache":  # whose policy never fills it
            write(device, 3 * FAST_MB)
            time.sleep(1.5)
            full = seen()
            assert full is not None and full.dirty_bytes is not None and full.capacity_bytes
            print(f"{full}")
            if source == "bcache":
                assert full.dirty_bytes / full.capacity_bytes >= FULL_SHARE


# ---- the lever ---------------------------------------------------------------


def destage(rates: List[int], percent: int = DESTAGE_PERCENT) -> "list[tuple]":  # type: ignore[type-arg]
    """Wishes for it, of which the rate changes all the time."""
    values = (rates, [DESTAGE_DELAY_S], [percent])
    names = (lever_files.RATE, lever_files.DELAY, lever_files.PERCENT)
    return [(LeverKind.CACHE, "bcache0", name, each) for name, each in zip(names, values)]


def test_killed_at_random_points_it_comes_home(
    home: Home, starter: Starter, found: VmLimits
) -> None:
    seen = set()
    chance = random.Random(SEED)
    with bcache():
        born = settings()
        for _ in range(KILLS):
            # One write at a time: while the rate changes, the others wait.
            wish([PIN], destage([20_000] * 10 + [30_000] * 10))
            pid = starter.start(home)
            wait_for(lambda: settings() != born, what="for the first write")
            time.sleep(chance.uniform(0.0, LIFE_S))
            kill(pid)
            left = settings()
            seen.add(tuple(left.values()))
            ledger = load(home.runtime_dir / LEDGER)
            assert ledger is not None
            known = {entry.name: entry for entry in ledger.levers}
            for name, value in left.items():
                if value != born[name]:
                    assert value in known[name].written and known[name].original == born[name]
            wait_for(lambda: settings() == born, HOME_S, "for the watcher", 0.5)
        print(f"\n{KILLS} kills, left behind: {sorted(seen)}; born with {born}")
    assert len(seen) > 1
    home.check_log()


def others(device: str) -> Dict[str, str]:
    """All that is written to a host with such a cache, but for bcache's own levers."""
    table = run("dmsetup", "table")
    own = settings() if BCACHE.exists() else {}
    return {**state("slow"), **state(device), **own, "table": table}


@pytest.mark.parametrize("make", [bcache, writecache, dm_cache])
def test_killed_above_any_cache_all_comes_home(
    make: Callable[[], "contextlib.AbstractContextManager[str]"], home: Home, starter: Starter,
    found: VmLimits,
) -> None:  # fmt: skip
    chance, seen = random.Random(SEED), set()
    with make() as device:
        born = others(device)
        wanted = [*wishes_for("slow", devno_of("slow")),
                  *[each for each in wishes_for(device, devno_of(device))
                    if each[0] is LeverKind.BDI]]  # fmt: skip
        for _ in range(KILLS // 2):
            wish([PIN], wanted)
            pid = starter.start(home)
            wait_for(lambda: others(device) != born, what="for the first write")
            time.sleep(chance.uniform(0.0, LIFE_S))
            kill(pid)
            seen.add(tuple(name for name, value in others(device).items() if value != born[name]))
            wait_for(lambda: others(device) == born and limits() == found, HOME_S,
                     "for the watcher", 0.5)  # fmt: skip
        print(f"\n{KILLS // 2} kills above {device}, left behind: {sorted(seen)}")
    home.check_log()


def test_what_somebody_else_sets_is_left_alone(
    home: Home, starter: Starter, found: VmLimits
) -> None:
    with bcache():
        born = settings()
        wish([PIN], destage([20_000]))
        pid = starter.start(home)
        wanted = {lever_files.RATE: "20000", lever_files.DELAY: str(DESTAGE_DELAY_S),
                  lever_files.PERCENT: str(DESTAGE_PERCENT)}  # fmt: skip
        wait_for(lambda: settings() == wanted, what="for all three")
        time.sleep(1.0)  # until it knows that its last write is done
        (BCACHE / lever_files.PERCENT).write_text("20")
        time.sleep(3.0)
        assert settings() == {**wanted, lever_files.PERCENT: "20"}
        kill(pid, 15)
        wait_for(lambda: not is_alive(pid), what="for the daemon to end")
        assert settings() == {**born, lever_files.PERCENT: "20"}
    home.check_log()


def test_a_cache_that_is_stopped_is_forgotten(
    home: Home, starter: Starter, found: VmLimits
) -> None:
    with bcache():
        wish([PIN], destage([20_000]))
        pid = starter.start(home)
        wait_for(lambda: settings()[lever_files.PERCENT] == str(DESTAGE_PERCENT),
                 what="for it to be set")  # fmt: skip

    def held() -> int:
        ledger = load(home.runtime_dir / LEDGER)
        return len(ledger.levers) if ledger is not None else 0

    wait_for(lambda: not held(), what="for it to be forgotten")
    assert is_alive(pid)
    with bcache():
        wish([PIN])
        time.sleep(2.0)
        born = settings()
        assert born[lever_files.PERCENT] == "10"
    kill(pid, 15)
    wait_for(lambda: not is_alive(pid), what="for the daemon to end")
    home.check_log()


def test_the_daemon_sets_a_share_of_what_the_disk_takes(
    home: Home, found: VmLimits, tmp_path: Path
) -> None:
    """From the flood that shows R to the way home after a kill."""
    share, mount = 0.5, tmp_path / "mount"
    mount.mkdir()
    home.policy.write_text(f"{POLICY}[levers]\ndestage-share = {share:.0%}\n")
    with bcache(), followed("bcache0"):
        born = settings()
        run("mkfs.ext4", "-q", "-O", "^has_journal", "/dev/bcache0")
        run("mount", "/dev/bcache0", str(mount))
        daemon = Running(home, "--device", "bcache0", "--interval", "0.2")
        script = f"while :; do dd if=/dev/zero of={mount}/flood bs=1M count=200 conv=notrunc; done"
        flood = subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL,
                                 start_new_session=True)  # fmt: skip
        try:
            wait_for(lambda: settings()[lever_files.PERCENT] != born[lever_files.PERCENT], 60.0,
                     "for R", 1.0)  # fmt: skip
            status = home.ask("status")
            assert status is not None
            (device,) = [each for each in status["devices"] if each["name"] == "bcache0"]
            rate = int(settings()[lever_files.RATE]) * SECTOR
            print(f"\nR {device['drain_rate'] / MIB:.1f} MB/s, set {rate / MIB:.1f};"
                  f" {device['write_cache']}")  # fmt: skip
            assert device["write_cache"]["fill_source"] == "bcache"
            # Less where little is dirty.
            assert 0.1 * R < rate <= 1.1 * share * device["drain_rate"]
            assert device["drain_rate"] == pytest.approx(R, rel=0.4)
            kill(daemon.process.pid)
            wait_for(lambda: settings() == born, HOME_S, "for the watcher", 0.5)
        finally:
            os.killpg(flood.pid, 9)
            flood.wait()
            daemon.process.kill()
            daemon.process.wait()
            # dd outlives its shell for a moment.
            wait_for(lambda: not subprocess.run(["umount", mount]).returncode, 60.0, "for dd", 1.0)
    home.check_log()


# ---- destage -----------------------------------------------------------------


def destaged(seconds: int, each: int, share: float) -> Tuple[List[float], List[float]]:
    """MB/s to the disk and MB dirty, second by second, while `each` MB a second are written.

    With a share the rate is set every other second, as the daemon does.
    """
    stat = Path("/sys/block/slow/stat")

    def sectors() -> int:
        return int(stat.read_text().split()[6])

    rates, dirty = [], []
    before, until = sectors(), time.monotonic()
    for second in range(seconds):
        until += 1.0
        if share and second % 2 == 0:
            rate = destage_rate(share, R, dirty_bytes())
            (BCACHE / lever_files.RATE).write_text(str(rate))
        run("dd", "if=/dev/zero", "of=/dev/bcache0", "bs=64k", f"count={each * 16}",
            f"seek={second % 80 * each * 16}", "oflag=direct", "conv=nocreat")  # fmt: skip
        time.sleep(max(0.0, until - time.monotonic()))
        now = sectors()
        rates.append((now - before) * SECTOR / MIB)
        before = now
        dirty.append(dirty_bytes() / MIB)
    return rates, dirty


def test_destage_by_time_leaves_room_in_the_cache() -> None:
    """The same writes into a cache as it is born, and with the lever at half of R."""
    most, spread = {}, {}
    for name, share in (("as found", 0.0), ("half of R", 0.5)):
        with bcache():
            if share:
                (BCACHE / lever_files.DELAY).write_text(str(DESTAGE_DELAY_S))
                (BCACHE / lever_files.PERCENT).write_text(str(DESTAGE_PERCENT))
            rates, dirty = destaged(70, 4, share)
        tail = rates[30:]
        most[name] = max(dirty[30:])
        spread[name] = statistics.pstdev(tail) / max(0.01, statistics.mean(tail))
        print(f"\n{name}: to the disk mean {statistics.mean(tail):.1f} MB/s, most"
              f" {max(tail):.1f}, coefficient of variation {spread[name]:.2f}; dirty at most"
              f" {most[name]:.0f} MB\n rates {[round(each, 1) for each in rates]}"
              f"\n dirty {[round(each) for each in dirty]}")  # fmt: skip
    assert most["half of R"] < most["as found"] * 0.75
