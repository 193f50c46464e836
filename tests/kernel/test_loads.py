# SPDX-License-Identifier: GPL-2.0-or-later
"""Every kind of load runs on a small disk, is measured plausibly, and leaves no process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest

from tests.lab import host
from tests.lab.disks import Disk
from tests.lab.loads import KINDS, worker
from tests.lab.loads.base import Load, Measured, Place
from tests.lab.loads.options import parsed
from tests.lab.rig import Rig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")

MIB = 1 << 20
WINDOW_S = 2


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    before = host.read_limits()
    disk = Disk(size="2G", cache="64M", rate="50M")
    with Rig(f"loads-{os.getpid()}", "xfs", disk) as rig:
        # So that no flood of one test is still being written in the next.
        host.write_limits(host.fixed_limits(16 * MIB))
        yield rig
    assert host.read_limits() == before


def place_on(rig: Rig, name: str) -> Place:
    place = Place(rig.mountpoint / name, rig.directory / "loads" / name, rig.spawn)
    place.directory.mkdir()
    place.runtime.mkdir(parents=True)
    return place


def processes(rig: Rig) -> List[str]:
    """What was started on the rig, beside its disk."""
    found = []
    for pid in host.marked(rig.remains.mark("LOAD")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found.append(command)
    # A server's children overwrite the environment that carries the mark.
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() in ("postgres", "mariadbd", "fuse-overlayfs"):
                where = (path.parent / "cwd").readlink()
                found += [str(where)] if str(rig.directory) in str(where) else []
        except OSError:
            continue
    return found


def synchronous(measured: Measured) -> None:
    assert measured.ops is not None and measured.ops > 20
    assert measured.rate == pytest.approx(measured.ops / measured.elapsed, rel=0.05)
    assert measured.mean and measured.p50 and measured.p95 and measured.p99 and measured.max
    assert 1e-6 < measured.p50 <= measured.p95 <= measured.p99 <= measured.max * 1.02
    assert measured.max < WINDOW_S + 1
    assert 2 <= len(measured.cdf) <= 100 and measured.cdf[-1][1] == pytest.approx(1)
    # sysbench reports a second when it is over, so the last one may be missing.
    assert len(measured.series) >= WINDOW_S - 1 and max(measured.series) > 10


def copying(measured: Measured) -> None:
    assert measured.bytes is not None and measured.byte_rate is not None
    assert measured.byte_rate == pytest.approx(measured.bytes / measured.elapsed)
    assert measured.byte_rate > 20 * MIB


def flooding(measured: Measured) -> None:
    copying(measured)
    # A disk of 50 MB/s, and what cache and memory took of it in the first second.
    assert measured.byte_rate and measured.byte_rate < 200 * MIB


def finished(measured: Measured) -> None:
    assert measured.bytes and measured.byte_rate
    assert measured.byte_rate == pytest.approx(measured.bytes / measured.elapsed)
    assert 0.01 < measured.elapsed < 10


def steady(measured: Measured) -> None:
    """10 MB/s."""
    assert measured.byte_rate == pytest.approx(10 * MIB, rel=0.2)
    assert measured.longest_stall is not None and 0 < measured.longest_stall < 1


def fsynced_and_steady(measured: Measured) -> None:
    steady(measured)
    assert measured.ops and measured.max and measured.ops <= 12


def mapped(measured: Measured) -> None:
    assert measured.byte_rate and measured.byte_rate > 20 * MIB
    assert measured.longest_stall is not None and 0 < measured.longest_stall < WINDOW_S + 1


def reading(measured: Measured) -> None:
    synchronous(measured)
    assert measured.bytes is None


def holding(measured: Measured) -> None:
    assert measured.extra["held_bytes"] >= 64 * MIB


def orders(measured: Measured) -> None:
    synchronous(measured)
    assert measured.ops and measured.extra["failed"] < 0.05 * measured.ops
    per_min = measured.rate and measured.extra["new_orders_per_min"] / 60 / measured.rate
    assert per_min == pytest.approx(0.45, abs=0.15)


def keys_set(measured: Measured) -> None:
    assert measured.ops is not None and measured.ops > 20
    assert measured.rate == pytest.approx(measured.ops / measured.elapsed, rel=0.05)
    assert measured.p50 and measured.p95 and measured.p99 and measured.max
    assert 1e-6 < measured.p50 <= measured.p95 <= measured.p99 <= measured.max * 1.02
    assert measured.cdf[-1][1] == pytest.approx(1)


Check = Callable[[Measured], None]
CASES: Dict[str, Tuple[str, Dict[str, Any], Check]] = {
    "fsync": ("fsync", {"size": "16M"}, synchronous),
    "fdatasync of 3": ("fsync", {"size": "16M", "threads": "3", "method": "fdatasync"},
                       synchronous),
    "append": ("fsync", {"size": "1M", "append": "yes"}, synchronous),
    "dd": ("dd", {"size": "128M"}, flooding),
    "dd, data": ("dd", {"size": "128M", "data": "random", "writers": "2"}, flooding),
    "dd, alternate": ("dd", {"size": "64M", "pattern": "alternate", "file": "allocated"},
                      flooding),
    "rsync": ("rsync", {"size": "128M", "source": "16M", "files": "20"}, flooding),
    # 8 MB that are removed again before the disk gets them: as fast as memory.
    "untar": ("untar", {"files": "500"}, copying),
    "job": ("job", {"size": "64M"}, finished),
    "writer": ("writer", {"size": "64M", "sync-every": "200ms"}, fsynced_and_steady),
    "mmap": ("mmap", {"size": "128M"}, mapped),
    "memory": ("memory", {}, holding),
    "read": ("read", {"size": "64M"}, reading),
    "sysbench-fileio": ("sysbench-fileio", {"size": "16M", "threads": "2"}, synchronous),
    "mysql-oltp": ("mysql-oltp", {"rows": "2000"}, synchronous),
    "pgbench": ("pgbench", {"scale": "1"}, synchronous),
    "pgbench-mix": ("pgbench-mix", {"scale": "1"}, synchronous),
    "tpcc": ("tpcc", {"warehouses": "1"}, orders),
    "redis": ("redis", {"appendfsync": "always"}, keys_set),
    "fuse": ("fuse", {"size": "64M"}, steady),
}


def test_every_kind_has_its_case() -> None:
    assert {kind for kind, _, _ in CASES.values()} == set(KINDS)


def measure(load: Load) -> Measured:
    load.prepare()
    load.start()
    load.open(WINDOW_S)
    time.sleep(WINDOW_S)
    return load.close()


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[] if case in ("fsync", "dd") else [
        pytest.mark.full("the lab's own loads, less the two that the demo has")])
    for case in CASES])
def test_kind(rig: Rig, case: str) -> None:
    kind, options, check = CASES[case]
    if kind == "memory":
        options = {"leave": f"{worker.spare_memory() - 512 * MIB}"}
    load = KINDS[kind](place_on(rig, case.replace(", ", "-").replace(" ", "-")),
                       parsed(KINDS[kind], **options))
    try:
        measured = measure(load)
        counters, recent = load.counters(), load.recent(1)
    finally:
        load.stop()
        load.stop()
    print(f"{case}: {measured.rate or 0:.0f}/s, p99 {(measured.p99 or 0) * 1e3:.2f} ms, "
          f"{(measured.byte_rate or 0) / 1e6:.0f} MB/s, stall "
          f"{(measured.longest_stall or 0) * 1e3:.1f} ms")
    check(measured)
    if measured.bytes is not None:
        assert counters.bytes is not None and counters.bytes >= measured.bytes
    if measured.ops is not None:
        assert counters.ops is not None and counters.ops >= measured.ops
    if kind in ("fsync", "read"):
        assert recent
    assert processes(rig) == []
    for path in load.files():
        os.truncate(path, 0)
