# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's loads: options, what their tools say, and the arithmetic of a window."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Sequence

import pytest

from tests.lab.loads import KINDS, postgres, redis, stats, sysbench, worker
from tests.lab.loads.base import Place
from tests.lab.loads.flood import Dd
from tests.lab.loads.options import parsed
from tests.lab.loads.own import Told
from tests.lab.loads.sync import Fsync
from tests.lab.loads.writers import Writer
from tests.lab.remains import RigError

MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Place:
    def spawn(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL, **options)
    for name in ("disk", "runtime"):
        (tmp_path / name).mkdir()
    return Place(tmp_path / "disk", tmp_path / "runtime", spawn)


# Options

@pytest.mark.parametrize("kind", list(KINDS))
def test_defaults_of_every_kind_are_read(kind: str) -> None:
    assert set(parsed(KINDS[kind])) == set(KINDS[kind].OPTIONS)
    assert KINDS[kind].KIND == kind


def test_sizes_and_byte_rates_scale_and_counts_do_not(place: Place) -> None:
    small = Place(place.directory, place.runtime, place.spawn, scale=0.1)
    job, = Writer(small, parsed(Writer, size="100M", rate="8M/s", block="8K")).jobs()
    assert job["size"] == 10 * MIB
    assert job["block"] == 8192
    assert job["interval"] == pytest.approx(8192 / (0.8 * MIB), rel=1e-4)
    jobs = Fsync(small, parsed(Fsync, rate="100/s", threads="4")).jobs()
    assert [each["interval"] for each in jobs] == [0.04] * 4
    assert len({each["seed"] for each in jobs}) == 4


# Commands of floods

def test_dd_rounds(place: Place) -> None:
    zero = Dd(place, parsed(Dd, size="200M")).commands(0)
    assert zero == [["dd", "if=/dev/zero", f"of={place.directory}/flood-0", f"bs={MIB}",
                     "count=200", "seek=0", "conv=notrunc", "status=none"]]
    parts = Dd(place, parsed(Dd, size="200M", data="random")).commands(0)
    at = [[word for word in part if word.startswith(("count", "seek"))] for part in parts]
    assert at == [["count=64", "seek=0"], ["count=64", "seek=64"], ["count=64", "seek=128"],
                  ["count=8", "seek=192"]]
    both = Dd(place, parsed(Dd, size="200M", pattern="alternate")).commands(0)
    assert both[0] == zero[0] and "scatter" in both[1] and len(both) == 2
    many = Dd(place, parsed(Dd, size="200M", writers="4"))
    assert [job["commands"][0][4] for job in many.jobs()] == ["count=50"] * 4
    assert len(many.files()) == 4


def test_told_is_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CAPACITY", 4)
    memory = os.memfd_create("test")
    os.ftruncate(memory, worker.LENGTH)
    record, told = worker.Record(memory), Told(memory)
    os.close(memory)
    assert (told.done, told.bytes, told.age(time.monotonic())) == (0, 0, 0)
    assert told.since(0) == ([], [])
    start = time.monotonic()
    for _ in range(6):
        record.begin()
        record.end(100)
    assert (told.done, told.bytes) == (6, 600)
    ends, latencies = told.since(start)
    assert len(ends) == len(latencies) == 4, "the ring keeps the last ones"
    assert ends == sorted(ends, reverse=True)
    record.begin()
    time.sleep(0.01)
    assert told.age(time.monotonic()) >= 0.01
    assert told.since(time.monotonic()) == ([], [])


# A window's figures

def test_window_of_operations() -> None:
    measured = stats.of_operations(10, 12.5, [10.5, 10.9, 11.5, 12.4], [0.1, 0.2, 0.3, 0.4])
    assert (measured.elapsed, measured.ops, measured.rate) == (2.5, 4, 1.6)
    assert (measured.mean, measured.p50, measured.p95, measured.max) == (0.25, 0.2, 0.4, 0.4)
    assert measured.series == [2, 1], "the last half second is no whole one"
    assert measured.cdf == [(0.1, 0.25), (0.2, 0.5), (0.3, 0.75), (0.4, 1.0)]
    assert measured.inflight_age == 0


def test_an_operation_in_flight_counts_by_its_age() -> None:
    measured = stats.of_operations(10, 12, [10.5], [0.1], [1.5, 0, 0.7])
    assert (measured.ops, measured.inflight_age, measured.max) == (1, 1.5, 1.5)
    stuck = stats.of_operations(10, 12, [], [], [2.0])
    assert (stuck.rate, stuck.p50, stuck.p99) == (0, 2.0, 2.0)
    nothing = stats.of_operations(10, 12, [], [])
    assert (nothing.rate, nothing.mean, nothing.p99, nothing.cdf) == (0, None, None, [])


# What tools say

FILEIO = """\
sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

[ 1s ] reads: 0.00 MiB/s writes: 32.34 MiB/s fsyncs: 8277.99/s latency (ms,95%): 0.527
[ 2s ] reads: 0.00 MiB/s writes: 6.29 MiB/s fsyncs: 1610.61/s latency (ms,95%): 2.522
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.063 |**********                               100
       0.069 |*                                        9
      24.827 |                                         1

File operations:
    reads/s:                      0.00
    writes/s:                     5657.87
    fsyncs/s:                     5657.87

General statistics:
    total time:                          3.0047s
    total number of events:              17002

Latency (ms):
         min:                                    0.06
         avg:                                    0.35
         max:                                   24.83
         95th percentile:                        0.75
         sum:                                 5992.07
"""


def test_sysbench_fileio() -> None:
    measured = sysbench.of_output(FILEIO)
    assert (measured.ops, measured.elapsed) == (17002, 3.0047)
    assert measured.rate == pytest.approx(5658.5, abs=0.1)
    assert [measured.mean, measured.p95, measured.max] == pytest.approx([35e-5, 75e-5, 24.83e-3])
    assert [measured.p50, measured.p99] == pytest.approx([63e-6, 69e-6])
    assert measured.series == [8277.99, 1610.61]
    assert measured.cdf[-1] == pytest.approx((24.827e-3, 1.0))
    assert measured.extra == {"reads_per_s": 0, "writes_per_s": 5657.87, "fsyncs_per_s": 5657.87}


PGBENCH_LOG = """\
0 1 2459 0 1795273614 24182
1 1 24928 0 1795273614 46678
0 2 failed 0 1795273614 54670
0 3 30477 2 1795273615 54670
"""
PGBENCH = """\
pgbench (15.18 (Debian 15.18-0+deb12u1))
progress: 1.0 s, 180.0 tps, lat 21.607 ms stddev 19.546, 0 failed
progress: 2.0 s, 2023.0 tps, lat 1.999 ms stddev 1.908, 0 failed
number of transactions actually processed: 3
latency average = 2.662 ms
initial connection time = 9.919 ms
tps = 1.500000 (without initial connection time)
"""


def test_checkpoints_are_those_that_end_in_the_window() -> None:
    log = ["1000.000 LOG:  checkpoint starting: shutdown immediate\n",
           "1000.020 LOG:  checkpoint complete: wrote 1710 buffers (20.9%); 0 WAL file(s) added, "
           "0 removed, 1 recycled; write=0.018 s, sync=0.001 s, total=0.019 s; sync files=0\n",
           "1028.000 LOG:  checkpoint starting: time\n",
           "1040.500 LOG:  checkpoint complete: wrote 9 buffers (1%); 0 WAL file(s) added, "
           "0 removed, 0 recycled; write=9.1 s, sync=3.2 s, total=12.500 s; sync files=20\n"]
    before = len("".join(log[:2]))
    assert postgres.checkpoints("".join(log), before, 1050.0) == [12.5]
    assert postgres.checkpoints("".join(log[:2]), before, 1050.0) == []
    # One that the flood keeps from ending counts with its age.
    assert postgres.checkpoints("".join(log[:3]), before, 1050.0) == [22.0]


def test_pgbench() -> None:
    measured = postgres.of_log(PGBENCH_LOG.splitlines(), PGBENCH)
    assert measured.ops == 3
    assert measured.elapsed == pytest.approx(2.0)
    assert [measured.p50, measured.max] == pytest.approx([24928e-6, 30477e-6])
    assert measured.series == [2, 1]
    assert measured.extra == {"tps": 1.5, "failed": 1.0}
    assert postgres.per_second(PGBENCH) == [180.0, 2023.0]
    with pytest.raises(RigError, match="not as expected"):
        postgres.of_log([], "connection to server failed")



REDIS = """====== SET ======
  3 requests completed in 0.50 seconds
Latency by percentile distribution:
0.000% <= 0.500 milliseconds (cumulative count 1)
100.000% <= 2.000 milliseconds (cumulative count 3)

Cumulative distribution of latencies:
100.000% <= 2.007 milliseconds (cumulative count 3)
====== SET ======
  1 requests completed in 2.10 seconds
Latency by percentile distribution:
100.000% <= 2100.000 milliseconds (cumulative count 1)

Cumulative distribution of latencies:
"aof-write-pending-fsync",1795817304,1900,2000
aof_delayed_fsync:7
"""


def test_reports_of_redis_are_put_together() -> None:
    found = redis.of_reports(REDIS, rate=20.0)
    assert (found.ops, found.elapsed, found.p50, found.max) == pytest.approx((4, 3.0, 0.002, 2.1))
    assert found.rate == pytest.approx(4 / 3)
    assert found.extra == {"aof_write_pending_fsync_max_s": 2.0, "aof_delayed_fsync": 7}
    assert redis.of_reports(REDIS, rate=0.0).elapsed == pytest.approx(2.6)
    with pytest.raises(RigError, match="not as expected: Could not connect"):
        redis.of_reports("Could not connect", 0.0)
