# SPDX-License-Identifier: GPL-2.0-or-later
"""The disk model has the effects that its parameters promise.

Spoken to directly, without kernel and filesystem, at rates that cost the host little.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from tests.lab.disks import Control, Disk, preset, presets
from tests.lab.remains import run
from tests.lab.rig import PLUGIN, TOP

nbd: Any = pytest.importorskip("nbd", reason="apt-get install python3-libnbd")

MIB = 1 << 20
BLOCK = 4096
# Seeks cost nothing here, so that a drain rate is a matter of bytes alone.
PLAIN = Disk(size="1G", cache="64M", rate="40M", seek_us=0)
NOISE = random.Random(1).randbytes(MIB)


class Model:
    """A running disk without a kernel above it."""

    def __init__(self, directory: Path, *argv: str) -> None:
        self.process = subprocess.Popen(
            ["nbdkit", "--foreground", "--unix", str(directory / "nbd"), str(PLUGIN), *argv])
        deadline = time.monotonic() + 5
        while not (directory / "control").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        self.nbd = nbd.NBD()
        self.nbd.connect_unix(str(directory / "nbd"))
        self.control = Control(directory / "control")
        self.set, self.get = self.control.set, self.control.get

    def close(self) -> None:
        with contextlib.suppress(nbd.Error):
            self.nbd.shutdown()
        self.control.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()

    def write(self, offset: int, data: bytes) -> float:
        """Seconds that it took."""
        started = time.monotonic()
        self.nbd.pwrite(data, offset)
        return time.monotonic() - started

    def read(self, offset: int, count: int) -> float:
        started = time.monotonic()
        self.nbd.pread(count, offset)
        return time.monotonic() - started

    def write_all(self, offsets: List[int], data: bytes, depth: int = 8) -> float:
        """Seconds for the same data at each offset, several requests at once."""
        buffer = nbd.Buffer.from_bytearray(bytearray(data))
        left = list(reversed(offsets))
        started = time.monotonic()
        while left or self.nbd.aio_in_flight():
            while left and self.nbd.aio_in_flight() < depth:
                self.nbd.aio_pwrite(buffer, left.pop(), completion=lambda error: 1)
            self.nbd.poll(-1)
        return time.monotonic() - started

    def drained(self) -> None:
        deadline = time.monotonic() + 10
        while self.control.fill() > 0:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def drain_rate(self, offsets: List[int], data: bytes) -> float:
        """Bytes per second at which writes that fit the cache get to the media."""
        started = time.monotonic()
        self.write_all(offsets, data)
        self.drained()
        return len(offsets) * len(data) / (time.monotonic() - started)

    def sequential(self, offset: int = 0, count: int = 16 * MIB, data: bytes = bytes(MIB)) -> float:
        return self.drain_rate(list(range(offset, offset + count, len(data))), data)


@contextlib.contextmanager
def model(disk: Disk) -> Iterator[Model]:
    run("make", "--silent", "-C", str(TOP / "tests/lab/disk"), f"BUILD={PLUGIN.parent}")
    with tempfile.TemporaryDirectory(prefix="writebackd-disk-") as name:
        directory = Path(name)
        made = Model(directory, *disk.args(directory / "control"))
        try:
            yield made
        finally:
            made.close()


def plain(**changes: Any) -> Disk:
    return Disk(**{**PLAIN.__dict__, **changes})


def scattered(count: int, within: int = 1 << 30) -> List[int]:
    """Offsets of so many blocks, no two next to each other."""
    return [2 * BLOCK * at for at in random.Random(2).sample(range(within // BLOCK // 2), count)]


def near(value: float, wanted: float, share: float = 0.25) -> bool:
    print(f"{value:.4g}, wanted {wanted:.4g}")
    return abs(value - wanted) <= share * wanted


# The write cache


def test_cache_takes_writes_at_once_and_drains_at_the_rate() -> None:
    with model(PLAIN) as disk:
        assert disk.write_all(list(range(0, 32 * MIB, MIB)), bytes(MIB)) < 0.3
        assert near(disk.sequential(64 * MIB, 24 * MIB), 40 * MIB, 1.0)  # the first 32 are ahead
        assert near(disk.sequential(128 * MIB), 40 * MIB)


def test_full_cache_admits_at_the_drain_rate() -> None:
    with model(plain(cache="4M")) as disk:
        took = disk.write_all(list(range(0, 24 * MIB, MIB // 4)), bytes(MIB // 4))
        assert disk.get()["fill"] <= 4 * MIB
        assert near(20 * MIB / took, 40 * MIB)


def test_fill_is_what_came_in_less_what_was_drained() -> None:
    with model(plain(rate="10M")) as disk:
        started = time.monotonic()
        disk.write_all(list(range(0, 16 * MIB, MIB)), bytes(MIB))
        disk.write(15 * MIB, bytes(BLOCK))  # dirty already: takes no room
        for _ in range(5):
            time.sleep(0.1)
            state = disk.get()
            assert state["bytes_in"] == 16 * MIB + BLOCK
            assert state["bytes_dirtied"] in (16 * MIB, 16 * MIB + BLOCK)
            assert state["fill"] == state["bytes_dirtied"] - state["bytes_destaged"]
            # Its own clock: what 10 MB/s leave of 16 MB
            assert abs(16 * MIB - 10 * MIB * (time.monotonic() - started) - state["fill"]) < 2 * MIB


def test_write_through_in_mid_run_and_back() -> None:
    with model(plain(seek_us=5000)) as disk:
        at = scattered(40)
        cached = sum(disk.write(offset, NOISE[:BLOCK]) for offset in at[:10])
        disk.set("mode", "writethrough")
        assert disk.get()["through"]
        through = sum(disk.write(offset, NOISE[:BLOCK]) for offset in at[10:20])
        disk.drained()  # what was dirty goes on being destaged
        disk.set("mode", "writeback")
        again = sum(disk.write(offset, NOISE[:BLOCK]) for offset in at[20:30])
        print(f"{cached:.4f} {through:.4f} {again:.4f}")
        assert through > 0.05 > 2 * cached
        assert through > 3 * again


def test_no_cache() -> None:
    with model(plain(cache="0", seek_us=5000)) as disk:
        assert sum(disk.write(offset, bytes(BLOCK)) for offset in scattered(10)) > 0.03
        assert disk.get()["bytes_dirtied"] == 0
        # One after the other there is nothing to seek, and the rate is that of the media.
        took = disk.write_all(list(range(0, 8 * MIB, MIB // 4)), bytes(MIB // 4))
        assert near(8 * MIB / took, 40 * MIB)


def test_threshold_destages_in_bursts() -> None:
    with model(plain(cache="32M", destage_high=0.5, destage_low=0.25)) as disk:
        disk.write_all(list(range(0, 15 * MIB, MIB)), bytes(MIB))
        time.sleep(0.2)  # at 40 MB/s half of it would be gone
        assert disk.get()["fill"] == 15 * MIB
        disk.write_all([15 * MIB], bytes(MIB))
        deadline = time.monotonic() + 10
        while disk.get()["fill"] > 8 * MIB:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(0.2)
        assert disk.get()["fill"] > 7 * MIB
        disk.set("destage_high", "0")
        disk.drained()


def test_flush_waits_only_where_the_cache_is_not_protected() -> None:
    took = {}
    for protected in (True, False):
        with model(plain(rate="20M", protected=protected)) as disk:
            disk.write_all(list(range(0, 8 * MIB, MIB)), bytes(MIB))
            started = time.monotonic()
            disk.nbd.flush()
            took[protected] = time.monotonic() - started
            assert (disk.control.fill() == 0) is not protected
            assert disk.get()["flushes"] == 1
            started = time.monotonic()
            disk.nbd.flush()  # of nothing, or of what is protected
            assert time.monotonic() - started < 0.1
    assert took[True] < 0.1 and near(took[False], 0.4, 0.4)


# Reads


def test_reads_hit_what_is_dirty_and_what_was_used_last() -> None:
    with model(plain(seek_us=10000, rate="4M", read_cache="2M")) as disk:
        miss = disk.read(512 * MIB, BLOCK)
        hit = disk.read(512 * MIB, BLOCK)
        disk.write(0, NOISE[:BLOCK])
        dirty = disk.read(0, BLOCK)
        disk.drained()
        destaged = disk.read(0, BLOCK)
        disk.nbd.pread(3 * MIB, 256 * MIB)
        gone = disk.read(512 * MIB, BLOCK)
        print(f"miss {miss:.4f} hit {hit:.4f} dirty {dirty:.4f} destaged {destaged:.4f}")
        assert min(miss, gone) > 0.01
        assert max(hit, dirty, destaged) < 0.008
        assert disk.get()["read_hits"] == 3


# The media


def test_random_work_is_spread_over_spindles() -> None:
    random_rate, sequential_rate = {}, {}
    for spindles in (1, 4):
        with model(plain(seek_us=2000, spindles=spindles, chunk="64K")) as disk:
            random_rate[spindles] = disk.drain_rate(scattered(300), NOISE[:BLOCK])
            sequential_rate[spindles] = disk.sequential()
    print(random_rate, sequential_rate)
    assert near(random_rate[1], 300 * BLOCK / (300 * 0.0021))
    assert 2.5 < random_rate[4] / random_rate[1] < 5
    assert near(sequential_rate[1], 40 * MIB) and near(sequential_rate[4], 40 * MIB)


def test_rebuild_takes_its_share() -> None:
    with model(PLAIN) as disk:
        healthy = disk.sequential()
        disk.set("rebuild", "0.5")
        rebuilding = disk.sequential(64 * MIB)
        disk.set("rebuild", "0")
        assert near(rebuilding / healthy, 0.5, 0.2)
        assert near(disk.sequential(128 * MIB), healthy, 0.2)


def test_parity_prefers_whole_stripes() -> None:
    disk_ = plain(rate="80M", spindles=4, chunk="64K", parity=2, seek_us=1000)
    stripe = 4 * 64 << 10
    with model(disk_) as disk:
        # From behind: each stripe waits for its turn as a whole, as a backlog makes it do.
        whole = disk.drain_rate([at * stripe for at in range(63, -1, -1)], bytes(stripe))
        partly = disk.drain_rate([64 * MIB + at * stripe for at in range(63, -1, -1)],
                                 bytes(64 << 10))
        disk.set("mode", "writethrough")
        at_once = 8 * stripe / disk.write(128 * MIB, bytes(8 * stripe))
        in_parts = 8 * BLOCK / sum(disk.write(192 * MIB + at * stripe, bytes(BLOCK))
                                   for at in range(8))
    print(f"{whole / MIB:.1f} {partly / MIB:.1f} {at_once / MIB:.1f} {in_parts / MIB:.1f}")
    assert near(whole, 80 * MIB, 0.35)
    assert partly < 0.5 * whole
    assert in_parts < 0.1 * at_once


def test_parity_stripes_are_complete() -> None:
    """What is destaged by the stripe is neither lost nor counted twice."""
    with model(plain(spindles=3, chunk="16K", parity=1, size="64M")) as disk:
        at = scattered(1000, 64 * MIB)
        disk.write_all(at, NOISE[:BLOCK])
        disk.drained()
        state = disk.get()
        assert state["bytes_dirtied"] == state["bytes_destaged"]
        assert state["used_share"] == pytest.approx(1000 * BLOCK / (64 * MIB))
        assert all(disk.nbd.pread(BLOCK, offset) == NOISE[:BLOCK] for offset in at)


# Flash


def test_garbage_collection_costs_a_full_drive_its_rate() -> None:
    with model(plain(gc_start=0.5, gc_floor=0.25)) as disk:
        fresh = disk.sequential()
        disk.set("fill", "1")
        full = disk.sequential(64 * MIB)
        disk.set("fill", "0.75")
        half_way = disk.get()["drain_rate"]
        assert near(full / fresh, 0.25)
        assert near(half_way, 40 * MIB * (1 - 0.75 / 2), 0.1)


def test_writing_fills_the_drive_and_trimming_empties_it() -> None:
    with model(plain(size="64M", rate="1G", fill=0.25)) as disk:
        disk.sequential(count=32 * MIB, data=NOISE)
        disk.sequential(count=32 * MIB, data=NOISE)  # the same place
        assert disk.get()["used_share"] == pytest.approx(0.75)
        disk.nbd.trim(16 * MIB, 8 * MIB)
        assert disk.get()["used_share"] == pytest.approx(0.5)
        assert disk.nbd.pread(MIB, 8 * MIB) == bytes(MIB)
        assert disk.nbd.pread(MIB, 7 * MIB) == NOISE
        disk.set("rate", "1M")
        disk.write(8 * MIB + 512, NOISE[:512])  # what is round it stays empty
        assert disk.nbd.pread(BLOCK, 8 * MIB) == bytes(512) + NOISE[:512] + bytes(BLOCK - 1024)
        disk.write(8 * MIB, NOISE)
        disk.nbd.trim(MIB, 8 * MIB)  # drops what is dirty
        disk.drained()
        state = disk.get()
        assert state["bytes_discarded"] > 0
        assert state["bytes_dirtied"] == state["bytes_destaged"] + state["bytes_discarded"]


def test_compressible_data_is_cheaper() -> None:
    line = b"2024-11-21 14:48:03 INSERT INTO orders VALUES (4711, 'pending', 17.50);\n"
    with model(plain(compress=0.25)) as disk:
        noise = disk.sequential(0, data=NOISE)
        words = disk.sequential(64 * MIB, data=(line * 20000)[:MIB])
        zeros = disk.sequential(128 * MIB)
    print(f"{noise / MIB:.1f} {words / MIB:.1f} {zeros / MIB:.1f}")
    assert near(noise, 40 * MIB)
    assert near(zeros / noise, 4, 0.3)
    assert 1.3 * noise < words < 0.8 * zeros


# Commands, caps, neighbours


def test_stall() -> None:
    with model(PLAIN) as disk:
        disk.write(0, bytes(MIB))
        disk.set("stall", "0.6")
        time.sleep(0.1)  # what was on its way arrives
        fill = disk.control.fill()
        time.sleep(0.2)
        assert disk.control.fill() == fill > 0  # nothing is destaged either
        assert 0.2 < disk.write(MIB, bytes(BLOCK)) < 0.6
        assert disk.write(2 * MIB, bytes(BLOCK)) < 0.1
        disk.drained()


def test_errors_on_command() -> None:
    with model(PLAIN) as disk:
        def outcomes(operation: Any, count: int) -> str:
            text = ""
            for _ in range(count):
                try:
                    operation()
                    text += "."
                except nbd.Error as error:
                    assert error.errno == "EIO"
                    text += "E"
            return text

        def write() -> None:
            disk.nbd.pwrite(bytes(BLOCK), 0)

        disk.set("fail_writes", "2")
        assert outcomes(lambda: disk.nbd.pread(BLOCK, 0), 2) == ".."
        assert outcomes(write, 4) == "EE.."
        disk.set("fail_share", "0.5")
        disk.set("fail_writes", "2")
        assert outcomes(write, 6) == ".E.E.."
        disk.set("fail_share", "1")
        disk.set("fail_reads", "1")
        assert outcomes(lambda: disk.nbd.pread(BLOCK, 0), 2) == "E."
        assert disk.get()["failed"] == 5
        assert disk.get()["writes"] == 6


def test_caps_and_their_credit() -> None:
    with model(plain(iops=200)) as disk:
        assert near(100 / disk.write_all(scattered(100), bytes(BLOCK)), 200)
        disk.set("iops", "0")
        disk.set("bandwidth", "10M")
        assert near(5 * MIB / disk.write_all(list(range(0, 5 * MIB, MIB)), bytes(MIB)), 10 * MIB)
    with model(plain(bandwidth="10M", burst_s=1.0)) as disk:
        # 10 MB are saved up; the rest has to keep to the cap.
        assert disk.write_all(list(range(0, 9 * MIB, MIB)), bytes(MIB)) < 0.3
        assert disk.write_all(list(range(0, 6 * MIB, MIB)), bytes(MIB)) > 0.3


@pytest.mark.parametrize("kind", ["sequential", "random"])
def test_neighbour_takes_room_and_rate(kind: str) -> None:
    with model(plain(cache="8M", neighbour_kind=kind)) as disk:
        alone = disk.sequential(0, 4 * MIB)
        assert disk.get()["neighbour_fill"] == 0
        disk.set("neighbour", "30M")
        before = disk.get()
        started = time.monotonic()
        took = disk.write_all(list(range(64 * MIB, 88 * MIB, MIB // 4)), bytes(MIB // 4))
        state = disk.get()
        theirs = (state["bytes_dirtied"] - before["bytes_dirtied"] - 24 * MIB) / (
            time.monotonic() - started)
        print(f"alone {alone / MIB:.1f}, beside it {24 / took:.1f}, it {theirs / MIB:.1f}")
        assert state["neighbour_fill"] > 0
        assert 24 * MIB / took < 0.9 * alone
        assert theirs > 5 * MIB
        disk.set("neighbour", "0")
        disk.drained()
        assert near(disk.sequential(128 * MIB, 4 * MIB), alone)


@pytest.mark.parametrize("name", sorted(presets()))
@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_every_preset_is_a_disk(name: str, factor: float) -> None:
    wanted = preset(name).scaled(factor)
    with model(wanted) as disk:
        state = disk.get()
        assert state["settings"]["rate"] == wanted.rate_bytes
        assert state["settings"]["cache"] == state["capacity"] == wanted.cache_bytes
        disk.write(0, NOISE[:BLOCK])
        assert disk.nbd.pread(BLOCK, 0) == NOISE[:BLOCK]
