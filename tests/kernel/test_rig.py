# SPDX-License-Identifier: GPL-2.0-or-later
"""The modelled disk keeps data, behaves like its model, and leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest

from tests.lab import host
from tests.lab.disks import Disk
from tests.lab.loads.base import Place
from tests.lab.loads.flood import Dd
from tests.lab.loads.options import parsed
from tests.lab.loads.own import make_file
from tests.lab.loads.sync import Fsync
from tests.lab.remains import LAB, MARK, Remains, RigError, check_own
from tests.lab.rig import SIGNALS, Interrupts, Rig, main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")

MIB = 1 << 20
TOP = Path(__file__).resolve().parents[2]
SMALL = Disk(size="2G", cache="64M", rate="50M")

# A harness that changes the limits, floods its rig and says when all of that is so.
HARNESS = """
import sys, time
from tests.lab import host
from tests.lab.loads.base import Place
from tests.lab.loads.flood import Dd
from tests.lab.loads.options import parsed
from tests.lab.loads.sync import Fsync
from tests.lab.disks import Disk
from tests.lab.rig import Rig
with Rig(sys.argv[1], "xfs", Disk(size="2G", cache="64M", rate="50M")) as rig:
    host.write_limits({**host.read_limits(), "dirty_bytes": 64 << 20, "dirty_ratio": 0})
    place = Place(rig.mountpoint, rig.directory, rig.spawn)
    for load in Fsync(place, parsed(Fsync, size="16M")), Dd(place, parsed(Dd)):
        load.prepare()
        load.start()
    time.sleep(1)
    print("flooding", rig.device, flush=True)
    time.sleep(60)
"""


def traces(name: str) -> List[str]:
    """What is left of a rig on this host."""
    remains = Remains(name)
    left = [f"mount {at}" for _, at in host.mounts() if name in at]
    left += host.loops_on(remains.disk_file)
    left += [str(path) for path in LAB.glob(f"{name}*")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(remains.directory) in command:
            left.append(command)
    return left


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Signals as in a terminal: what a script starts in the background ignores SIGINT."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def limits() -> Iterator[Dict[str, int]]:
    before = host.read_limits()
    yield before
    host.write_limits(before)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{os.getpid()}"
    yield name
    main(["clean", name])


@pytest.mark.parametrize("fs", ["xfs", "ext4"])
def test_data_survives(fs: str, name: str) -> None:
    pattern = random.Random(1).randbytes(MIB)
    with Rig(name, fs, SMALL) as rig:
        path = rig.mountpoint / "data"
        with open(path, "wb") as file:
            for part in range(100):  # more than the cache holds
                file.write(bytes([part]) + pattern[1:] if part % 2 else bytes(MIB))
        subprocess.run(["umount", str(rig.mountpoint)], check=True)
        subprocess.run(["mount", f"/dev/{rig.device}", str(rig.mountpoint)], check=True)
        with open(path, "rb") as file:
            for part in range(100):
                assert file.read(MIB) == (bytes([part]) + pattern[1:] if part % 2 else bytes(MIB))
        assert Path(f"/sys/block/{rig.device}/queue/write_cache").read_text() == "write through\n"
    assert traces(name) == []


def direct_write(path: str, offset: int, count: int) -> float:
    """Seconds that it takes to write past the page cache, in pieces of 1 MiB."""
    block = mmap.mmap(-1, MIB)  # direct IO wants an aligned buffer
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    try:
        started = time.monotonic()
        for done in range(0, count, MIB):
            os.pwrite(fd, block, offset + done)
        return time.monotonic() - started
    finally:
        os.close(fd)


def test_full_cache_makes_writers_wait(name: str) -> None:
    with Rig(name, "xfs", SMALL) as rig:
        path = rig.mountpoint / "data"
        make_file(path, 256 * MIB)
        time.sleep(1.5)  # the write cache drains in 64 MB / 50 MB/s = 1.3 s
        absorbed = 48 * MIB / direct_write(str(path), 0, 48 * MIB)
        direct_write(str(path), 48 * MIB, 48 * MIB)
        drained = 100 * MIB / direct_write(str(path), 96 * MIB, 100 * MIB)
    print(f"absorbed {absorbed / MIB:.0f} MB/s, drained {drained / MIB:.0f} MB/s")
    assert absorbed > 2 * 50 * MIB
    assert drained == pytest.approx(50 * MIB, rel=0.1)


def test_write_through_has_no_cache(name: str) -> None:
    with Rig(name, "xfs", Disk(size="2G", rate="50M", mode="writethrough")) as rig:
        path = rig.mountpoint / "data"
        make_file(path, 16 * MIB)
        rate = 16 * MIB / direct_write(str(path), 0, 16 * MIB)
    assert rate < 1.1 * 50 * MIB


def test_sync_load_is_measured_while_it_runs(name: str) -> None:
    with Rig(name, "xfs", SMALL) as rig:
        place = Place(rig.mountpoint, rig.directory, rig.spawn)
        sync = Fsync(place, parsed(Fsync, size="16M"))
        sync.prepare()
        sync.start()
        deadline = time.monotonic() + 10
        while not sync.counters().ops and time.monotonic() < deadline:
            time.sleep(0.05)
        sync.open(2)
        before = sync.measured().ops
        time.sleep(2)
        measured = sync.close()
        sync.stop()
        flood = Dd(place, parsed(Dd, size="64M"))
        flood.prepare()
        flood.start()
        time.sleep(0.5)
        written = flood.counters().bytes
        flood.stop()
    assert before is not None and measured.ops is not None
    assert before < 100
    assert measured.ops > 100
    assert measured.rate == pytest.approx(measured.ops / measured.elapsed)
    assert measured.p50 and measured.p99 and measured.max
    assert measured.p50 <= measured.p99 <= measured.max
    assert sum(measured.series) <= measured.ops
    assert written is None or written >= MIB


def start_harness(name: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HARNESS, name], stdout=subprocess.PIPE,
                               text=True, env=dict(os.environ, PYTHONPATH=str(TOP)))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("flooding loop")
    return process


ENDS: Dict[str, Callable[[subprocess.Popen[str]], None]] = {
    "SIGINT": lambda process: process.send_signal(signal.SIGINT),
    "SIGTERM": lambda process: process.terminate(),
    "SIGHUP": lambda process: process.send_signal(signal.SIGHUP),
    "SIGKILL, then clean": lambda process: process.kill(),
}


@pytest.mark.parametrize("end", list(ENDS))
def test_nothing_is_left(end: str, name: str, limits: Dict[str, int]) -> None:
    process = start_harness(name)
    assert host.read_limits() != limits
    assert main(["clean", name]) == 0, "clean must leave a rig alone that is in use"
    assert process.poll() is None
    ENDS[end](process)
    process.wait(30)
    if "clean" in end:
        remains = Remains(name)
        assert traces(name)
        deadline = time.monotonic() + 10
        while any("dd if=" in trace for trace in traces(name)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any("dd if=" in trace for trace in traces(name)), "the flood went on"
        # The disk did not go with the run: it can still be written.
        make_file(remains.mountpoint / "after", MIB)
        with pytest.raises(RigError, match="clean"):
            Rig(name).__enter__()
        assert main(["clean", name]) == 0
    assert traces(name) == []
    assert host.read_limits() == limits


@pytest.mark.parametrize("form", [
    {"dirty_bytes": 200 * MIB, "dirty_ratio": 0},
    {"dirty_bytes": 0, "dirty_ratio": 21},
    # background >= foreground is legal, and has to come back as it was
    {"dirty_bytes": 10 * MIB, "dirty_ratio": 0,
     "dirty_background_bytes": 20 * MIB, "dirty_background_ratio": 0},
])
def test_limits_come_back_in_their_form(form: Dict[str, int], limits: Dict[str, int]) -> None:
    wanted = {**limits, **form}
    host.write_limits(wanted)
    assert host.read_limits() == wanted
    host.write_limits({**limits, "dirty_bytes": 0, "dirty_ratio": 33, "dirty_background_bytes": 0,
                       "dirty_background_ratio": 11})
    host.write_limits(wanted)
    assert host.read_limits() == wanted


def test_other_disks_are_refused() -> None:
    root = next(source for source, at in host.mounts() if at == "/")
    for device in (root, "/dev/sda", "/dev/loop-control"):
        with pytest.raises(RigError, match="not a disk of the lab"):
            check_own(device)


def test_nbd_devices_of_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = subprocess.Popen(["sleep", "60"], env={f"{MARK}_DISK": "a.1"})
    other = subprocess.Popen(["sleep", "60"])
    try:
        # The kernel fills in the environment a moment after exec has let Popen return.
        deadline = time.monotonic() + 5.0
        while not host.environ(ours.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        monkeypatch.setattr(host, "nbd_client", lambda device: other.pid)
        with pytest.raises(RigError, match=f"process {other.pid}"):
            check_own("/dev/nbd0")
        monkeypatch.setattr(host, "nbd_client", lambda device: ours.pid)
        check_own("/dev/nbd0")
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


def test_nested_rigs(name: str, limits: Dict[str, int]) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    changed = {**limits, "dirty_bytes": 64 * MIB, "dirty_ratio": 0}
    with Rig(f"{name}-outer", "xfs", SMALL):
        host.write_limits(changed)
        with Rig(f"{name}-inner", "ext4", SMALL) as inner:
            # `clean` may take a killed run's rigs in any order.
            assert inner.remains.state["limits"] == limits
        assert host.read_limits() == changed, "the outer rig still runs under them"
        assert traces(f"{name}-inner") == []
        assert [signal.getsignal(number) for number in SIGNALS] != handlers
    assert host.read_limits() == limits
    assert traces(name) == []
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


def test_nested_rigs_interrupted(name: str, limits: Dict[str, int]) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(SystemExit):
        with Rig(f"{name}-outer", "xfs", SMALL), Rig(f"{name}-inner", "xfs", SMALL):
            host.write_limits({**limits, "dirty_bytes": 64 * MIB, "dirty_ratio": 0})
            signal.raise_signal(signal.SIGTERM)
    assert host.read_limits() == limits
    assert traces(name) == []
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


def test_a_signal_during_take_down_waits_for_its_end() -> None:
    interrupts = Interrupts()
    interrupts.begin()
    interrupts.hold()
    signal.raise_signal(signal.SIGINT)  # cuts nothing short
    with pytest.raises(KeyboardInterrupt):
        interrupts.end()


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    interrupts = Interrupts()
    interrupts.begin()
    signal.raise_signal(signal.SIGHUP)
    interrupts.hold()
    signal.raise_signal(signal.SIGHUP)
    interrupts.end()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_second_signal_does_not_cut_the_unwinding_short() -> None:
    interrupts = Interrupts()
    interrupts.begin()
    interrupts.begin()
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGINT)
    interrupts.hold()
    interrupts.end()
    signal.raise_signal(signal.SIGINT)  # between the two rigs
    interrupts.hold()
    interrupts.end()
