# SPDX-License-Identifier: GPL-2.0-or-later
"""The levers beside the global pair on the running kernel, on a loop device of its own."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from fake_levers import FakeLevers
from fake_vm import SYSCTL
from limit_cases import MIB
from tests.kernel.fault_rig import (
    DAEMON,
    Crash,
    CrashingFiles,
    runtime_in_memory,
    started,
    wait_for,
)
from tests.kernel.scratch import Scratch, as_born, run, scratch_disk
from tests.kernel.test_daemon import Running
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.kernel import bdi
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import FLUSH_NAMES
from writebackd.kernel.vm import LEVERS, read_state
from writebackd.types.levers import Action, LeverKind, Setting

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/sys/class/bdi", os.W_OK), reason="needs root"
)
PAIR = (64 * MIB, 32 * MIB)
GLOBAL = [SYSCTL + name for name in LEVERS]


@pytest.fixture(autouse=True)
def as_found() -> Iterator[None]:
    names = [*LEVERS, *FLUSH_NAMES]
    before = {name: Path(SYSCTL + name).read_text() for name in names}
    yield
    assert {name: Path(SYSCTL + name).read_text() for name in names} == before


@pytest.fixture(scope="module")
def disk() -> Iterator[Scratch]:
    with scratch_disk("ext4", 256, "/dev/shm") as scratch:
        if not Path(f"/sys/class/bdi/{scratch.devno}/max_ratio_fine").exists():
            pytest.skip("this kernel has no limits in bytes per device")
        yield scratch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


def state(disk: Scratch) -> Dict[str, str]:
    queue = [f"/sys/block/{disk.device}/queue/{n}" for n in ("nr_requests", "max_sectors_kb")]
    home = f"/sys/class/bdi/{disk.devno}/"
    fractions = [home + file for file in bdi.FILES.values()]
    names = [*queue, *fractions, *(SYSCTL + name for name in (*LEVERS, *FLUSH_NAMES))]
    return {name: Path(name).read_text().strip() for name in names}


def cap(disk: Scratch, limit: int, least: int) -> Tuple[Setting, ...]:
    return (
        Setting(LeverKind.BDI, disk.devno, "strict_limit", 1),
        Setting(LeverKind.BDI, disk.devno, "max_bytes", limit),
        Setting(LeverKind.BDI, disk.devno, "min_bytes", least),
    )


def wishes(disk: Scratch) -> Tuple[Setting, ...]:
    return (
        Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 100),
        Setting(LeverKind.FLUSH, "vm", "dirty_expire_centisecs", 1000),
        *cap(disk, 8 * MIB, 8 * MIB),
        Setting(LeverKind.QUEUE, disk.device, "nr_requests", 8),
        Setting(LeverKind.QUEUE, disk.device, "max_sectors_kb", 128),
    )


def settle(actuator: Actuator, *settings: Setting, ticks: int = 100) -> List[Action]:
    """Ticks of 50 ms until nothing is under way."""
    actions: List[Action] = []
    for _ in range(ticks):
        actions += actuator.apply_settings(settings)
        if not actuator.levers.jobs.pending and not actuator.apply_settings(settings):
            return actions
        time.sleep(0.05)
    raise AssertionError("never settles")


def test_what_a_killed_run_left_on_a_device_is_not_taken_for_its_own() -> None:
    with scratch_disk(None, 16, "/dev/shm") as first:
        born = state(first)
    queue, home = f"/sys/block/{first.device}/queue/", f"/sys/class/bdi/{first.devno}/"
    left = {
        queue + "nr_requests": "8", queue + "max_sectors_kb": "128",
        home + "max_ratio_fine": "432", home + "min_ratio_fine": "100", home + "strict_limit": "1",
    }  # fmt: skip
    for name, text in left.items():
        if Path(name).exists():
            Path(name).write_text(text)
    try:
        with scratch_disk(None, 16, "/dev/shm") as again:
            assert again.device == first.device, "somebody else got it"
            assert state(again) == born
    finally:
        as_born(first.device, first.devno)


def test_all_take_effect_and_go_home(disk: Scratch, path: Path) -> None:
    found = state(disk)
    actuator = started(KernelFiles(), path)
    try:
        actuator.apply(*PAIR)
        actions = settle(actuator, *wishes(disk))
        assert [action for action in actions if not action.ok] == []
        now = state(disk)
        assert now[f"/sys/block/{disk.device}/queue/nr_requests"] == "8"
        assert now[f"/sys/block/{disk.device}/queue/max_sectors_kb"] == "128"
        assert now[SYSCTL + "dirty_writeback_centisecs"] == "100"
        home = Path(f"/sys/class/bdi/{disk.devno}")
        assert abs(int((home / "max_bytes").read_text()) - 8 * MIB) < 8192
        assert abs(int((home / "min_bytes").read_text()) - 8 * MIB) < 8192
        assert (home / "strict_limit").read_text().strip() == "1"
        assert actuator.levers.foreign() == ()
    finally:
        assert all(action.ok for action in actuator.finish())
    assert state(disk) == found and load(path) is None


def test_cap_follows_the_global_limit(disk: Scratch, path: Path) -> None:
    """max_bytes is a fraction: unwritten, it would shrink and grow with the limit."""
    found = state(disk)
    actuator = started(KernelFiles(), path)
    file = Path(f"/sys/class/bdi/{disk.devno}/max_bytes")
    try:
        for limit in (64 * MIB, 16 * MIB, 1024 * MIB):
            actuator.apply(limit, limit // 2)
            settle(actuator, *cap(disk, 8 * MIB, 4 * MIB))
            assert abs(int(file.read_text()) - 8 * MIB) <= 8 * MIB / 64 + 8192
            assert actuator.levers.foreign() == ()
    finally:
        actuator.finish()
    assert state(disk) == found


# -- the fake is this kernel -------------------------------------------------------

BDI_WRITES = [
    ("max_ratio_fine", 1_000_001), ("max_ratio_fine", 864), ("min_ratio_fine", 865),
    ("min_ratio_fine", 864), ("max_ratio_fine", 432), ("strict_limit", 2), ("strict_limit", 1),
    ("min_ratio_fine", 100), ("max_ratio_fine", 432), ("strict_limit", 0),
    ("max_ratio_fine", 1_000_000), ("min_ratio_fine", 1_000_000), ("min_ratio_fine", 0),
]
QUEUE_WRITES = [
    ("nr_requests", 2), ("nr_requests", 4), ("nr_requests", 7), ("nr_requests", 100_000),
    ("max_sectors_kb", 1), ("max_sectors_kb", 64), ("max_sectors_kb", 100_000),
    ("max_sectors_kb", 0),
]


def outcome(files: KernelFiles, name: str, value: int) -> str:
    try:
        files.write(name, str(value))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return files.read(name)


def test_the_fake_takes_and_refuses_what_this_kernel_does() -> None:
    with scratch_disk(None, 16, "/dev/shm") as bare:
        fake, real = FakeLevers(), KernelFiles()
        fake.plug(bare.devno, bare.device)
        before = state(bare)
        maximum = int(real.read(f"/sys/block/{bare.device}/queue/max_hw_sectors_kb"))
        assert maximum == 1280, "the fake's"
        try:
            for directory, writes in (
                (f"/sys/class/bdi/{bare.devno}", BDI_WRITES),
                (f"/sys/block/{bare.device}/queue", QUEUE_WRITES),
            ):
                for last, value in writes:
                    name = f"{directory}/{last}"
                    assert outcome(real, name, value) == outcome(fake, name, value), (name, value)
        finally:
            requests = f"/sys/block/{bare.device}/queue/nr_requests"
            real.write(requests, before[requests])
        assert state(bare) == before


def test_fine_fractions_are_exact_where_bytes_are_not(disk: Scratch) -> None:
    home = f"/sys/class/bdi/{disk.devno}"
    files = KernelFiles()
    try:
        for value in (1, 431, 432, 266_667, 999_999):
            files.write(home + "/max_ratio_fine", str(value))
            assert files.read(home + "/max_ratio_fine") == str(value)
        files.write(home + "/max_bytes", str(4 * MIB))
        assert files.read(home + "/max_bytes") != str(4 * MIB)
    finally:
        files.write(home + "/max_ratio_fine", "1000000")


# -- does it do what it says ---------------------------------------------------------


@contextlib.contextmanager
def debugfs(directory: Path) -> Iterator[Path]:
    directory.mkdir()
    run("mount", "-t", "debugfs", "none", str(directory))
    try:
        yield directory
    finally:
        run("umount", str(directory))


def most_dirty(disk: Scratch, stats: Path) -> int:
    """Bytes of the device that were dirty or under writeback at most, in a flood of 128 MiB."""
    assert disk.mountpoint is not None
    target = disk.mountpoint / "flood"
    most, over = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not over.is_set():
            now = 0
            for line in stats.read_text().splitlines():
                if line.startswith(("BdiWriteback:", "BdiReclaimable:")):
                    now += int(line.split()[1]) * 1024
            most = max(most, now)
            time.sleep(0.002)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={target}", "bs=1M", "count=128", "status=none"], check=True
        )
    finally:
        over.set()
        looker.join()
        os.sync()
        target.unlink()
    return most


def test_cap_holds_a_flood_and_nothing_but_it(disk: Scratch, path: Path, tmp_path: Path) -> None:
    actuator = started(KernelFiles(), path)
    with debugfs(tmp_path / "debug") as debug:
        stats = debug / "bdi" / disk.devno / "stats"
        free = most_dirty(disk, stats)
        try:
            assert all(action.ok for action in settle(actuator, *cap(disk, 8 * MIB, 8 * MIB)))
            held = most_dirty(disk, stats)
        finally:
            actuator.finish()
        again = most_dirty(disk, stats)
    print(f"dirty at most: {free >> 20} MiB, with a cap of 8 MiB {held >> 20}, then {again >> 20}")
    # A writer is let past by what it dirties between two looks (up to 4 MiB).
    assert held <= 14 * MIB
    assert min(free, again) > 48 * MIB


def test_self_test_passes_here_and_leaves_no_trace(disk: Scratch) -> None:
    found = state(disk)
    files = KernelFiles()
    threshold = read_state(files).threshold_bytes
    begun = time.perf_counter()
    assert bdi.self_test(files, disk.devno, threshold) is None
    print(f"self-test: {(time.perf_counter() - begun) * 1e6:.0f} us")
    assert state(disk) == found
    assert "threshold" in str(bdi.self_test(files, disk.devno, threshold * 3))
    assert state(disk) == found


# -- the way home ----------------------------------------------------------------------


def test_home_after_a_crash_before_any_write(disk: Scratch, tmp_path: Path) -> None:
    found = state(disk)
    for count in range(100):
        files, path = CrashingFiles(), tmp_path / f"ledger-{count}.json"
        files.crash_before = count
        actuator = started(files, path)
        try:
            actuator.apply(*PAIR)
            settle(actuator, *wishes(disk)[:5])
            actuator.apply(PAIR[0] * 2, PAIR[1])
            settle(actuator, *cap(disk, 4 * MIB, 2 * MIB))
            actuator.finish()
        except Crash:
            assert restore_from_ledger(KernelFiles(), path).status in ("restored", "nothing")
            assert state(disk) == found, f"after {count} writes"
            assert load(path) is None
        else:
            break
    assert count > 15 and state(disk) == found


def test_restore_command_with_the_daemon_dead(disk: Scratch, path: Path) -> None:
    found = state(disk)
    actuator = started(KernelFiles(), path)
    actuator.apply(*PAIR)
    settle(actuator, *wishes(disk))
    result = restore_from_ledger(KernelFiles(), path)
    assert result.status == "restored" and state(disk) == found
    assert any(f"queue {disk.device} nr_requests" in line for line in result.lines)


def test_device_that_is_gone_is_forgotten(path: Path) -> None:
    with scratch_disk("ext4", 64, "/dev/shm") as gone:
        found = state(gone)
        actuator = started(KernelFiles(), path)
        settle(actuator, *wishes(gone))
        following = started(KernelFiles(), path)
        assert len(following.levers.entries) == len(wishes(gone))
        following.finish()
        assert state(gone) == found


def test_foreign_change_is_seen_whatever_the_file(disk: Scratch, path: Path) -> None:
    """Somebody writes max_ratio or max_bytes: it is the same fraction."""
    actuator = started(KernelFiles(), path)
    found = state(disk)
    home = Path(f"/sys/class/bdi/{disk.devno}")
    for file, value, reads in (("max_ratio", "50", "500000"), ("strict_limit", "0", "0")):
        settle(actuator, *cap(disk, 8 * MIB, 4 * MIB))
        (home / file).write_text(value)
        (write,) = actuator.levers.foreign()
        assert write.lever.startswith(f"bdi {disk.devno} ") and write.value.endswith(reads)
        settle(actuator, *cap(disk, 8 * MIB, 4 * MIB))
        assert (home / "min_ratio_fine").read_text().strip() == "0"
        (home / "max_ratio_fine").write_text("1000000")
        actuator.take_over()
    actuator.finish()
    assert state(disk) == found


# As udev and its links of a disk are seen by a daemon: a host of tests may have no udev.
LINK = "disk/by-id/wwn-0x5000c500a1b2c3d4"
WITH_LINK = """mount -t tmpfs none /run
mkdir -p /run/udev/data
echo "S:$1" >"/run/udev/data/b$2"
shift 2
exec "$@"
"""


def test_a_ceiling_by_link_wwn_or_mount_point_is_set_and_shown(
    disk: Scratch, tmp_path: Path
) -> None:
    found, home = state(disk), Path(f"/sys/class/bdi/{disk.devno}")
    config = tmp_path / "config/default.conf.d/50-site.conf"
    config.parent.mkdir(parents=True)

    def name(by: str, ceiling: int) -> None:
        config.write_text(f"[devices]\ninclude = {by}\n[device {by}]\nceiling = {ceiling}M\n")

    def shown(limit: int) -> bool:
        return bool(daemon.device(disk.device).get("limit_bytes") == limit)

    name(f"/dev/{LINK}", 48)
    program = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", WITH_LINK, "sh",
               LINK, disk.devno, *DAEMON]  # fmt: skip
    with runtime_in_memory() as runtime_dir:
        daemon = Running(tmp_path, "--config-dir", str(config.parents[1]), program=program,
                         runtime_dir=runtime_dir)  # fmt: skip
        try:
            for ceiling, by in ((48, f"/dev/{LINK}"), (40, Path(LINK).name),
                                (32, str(disk.mountpoint))):  # fmt: skip
                name(by, ceiling)
                daemon.process.send_signal(signal.SIGHUP)
                wait_for(functools.partial(shown, ceiling * MIB))
                assert daemon.device(disk.device)["reason"].endswith(f"ceiling: {ceiling}M")
                (why,) = daemon.ctl("why", disk.device)[1]["devices"]
                assert why["limit_bytes"] == ceiling * MIB
                assert f"[device {by}]" in why["sections"][0]
                assert (home / "strict_limit").read_text() == "1\n"
                limit = int((home / "max_bytes").read_text())
                assert limit == pytest.approx(ceiling * MIB, rel=0.02)
        finally:
            daemon.end()
    assert state(disk) == found


def test_a_limit_that_somebody_else_gave_a_device_is_shown(disk: Scratch, tmp_path: Path) -> None:
    home = Path(f"/sys/class/bdi/{disk.devno}")
    daemon = Running(tmp_path, "--mode", "observe", "--device", disk.device, "--probe", "procfs")
    try:
        host = daemon.status()["limits"]["dirty_bytes"]
        assert daemon.device(disk.device)["limit_bytes"] == pytest.approx(host, rel=0.02)
        (home / "max_ratio_fine").write_text("10000")
        (home / "strict_limit").write_text("1")
        wait_for(lambda: daemon.device(disk.device)["limit_bytes"] < host // 50, 15.0)
    finally:
        daemon.end()
        as_born(disk.device, disk.devno)


# The daemon with a law that asks for what is in the environment.
WISHING = """
import json, os, sys
from dataclasses import replace
from writebackd import daemon
from writebackd.cli.daemon_main import main
from writebackd.types.levers import LeverKind, Setting

law = daemon.decide
wishes = [Setting(LeverKind(kind), *rest) for kind, *rest in json.loads(os.environ["WISHES"])]

def decide(*args):
    decision, memory = law(*args)
    return replace(decision, settings=tuple(wishes)), memory

daemon.decide = decide
sys.exit(main())
"""


def test_daemon_sets_them_and_brings_them_home_however_it_ends(
    disk: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = state(disk)
    wanted = [(w.kind.value, w.target, w.name, w.value) for w in wishes(disk)]
    monkeypatch.setenv("WISHES", json.dumps(wanted))
    program = [sys.executable, "-c", WISHING]
    requests = f"/sys/block/{disk.device}/queue/nr_requests"
    strict = f"/sys/class/bdi/{disk.devno}/strict_limit"

    def all_set() -> bool:
        now = state(disk)
        return all(now[name] != found[name] for name in found if name not in GLOBAL)

    daemons: List[Running] = []

    def running() -> Running:
        options = ("--device", disk.device, "--probe", "procfs")
        daemons.append(Running(tmp_path, *options, program=program))
        wait_for(all_set)
        return daemons[-1]

    try:
        daemon = running()
        daemon.process.kill()
        daemon.process.wait()
        assert all_set()
        code, answer, _ = daemon.ctl("restore")
        assert (code, answer["status"]) == (0, "restored") and state(disk) == found

        daemon = running()
        daemon.process.kill()
        daemon.process.wait()
        daemon = running()
        assert f"adopted queue {disk.device} nr_requests=8" in daemon.log.read_text()
        Path(requests).write_text("32")
        wait_for(lambda: "nr_requests=32: lever released" in daemon.log.read_text())
        assert Path(strict).read_text().strip() == "1"
        assert daemon.ctl("observe")[0] == 0
        wait_for(lambda: state(disk) == {**found, requests: "32"})
        assert daemon.ctl("enforce")[0] == 0
        wait_for(all_set)
        daemon.process.terminate()
        daemon.process.wait()
        assert state(disk) == {**found, requests: "32"}
        Path(requests).write_text(found[requests])
    finally:
        for daemon in daemons:
            if daemon.process.poll() is None:
                daemon.process.terminate()
                daemon.process.wait()


# -- a disk that hangs -------------------------------------------------------------------


def test_queue_of_a_hanging_disk_holds_nobody_up(disk: Scratch, path: Path) -> None:
    """Its backing file's filesystem is frozen: a request in flight never ends."""
    assert disk.mountpoint is not None
    with scratch_disk(None, 16, str(disk.mountpoint)) as inner:
        found = state(inner)
        actuator = started(KernelFiles(), path)
        setting = Setting(LeverKind.QUEUE, inner.device, "nr_requests", 8)
        run("fsfreeze", "--freeze", str(disk.mountpoint))
        try:
            writer = subprocess.Popen(
                ["dd", "if=/dev/zero", f"of=/dev/{inner.device}", "bs=4k", "count=1",
                 "oflag=direct", "status=none"]
            )
            while "0 " in (Path(f"/sys/block/{inner.device}/inflight").read_text().strip()[-2:]):
                time.sleep(0.01)
            time.sleep(0.1)
            slowest = 0.0
            actions: Tuple[Action, ...] = ()
            until = time.monotonic() + 6.0
            while time.monotonic() < until:
                begun = time.perf_counter()
                actions += actuator.apply_settings((setting,))
                actuator.levers.foreign()
                slowest = max(slowest, time.perf_counter() - begun)
                time.sleep(0.05)
            begun = time.perf_counter()
            actuator.restore()
            slowest = max(slowest, time.perf_counter() - begun)
        finally:
            run("fsfreeze", "--unfreeze", str(disk.mountpoint))
        writer.wait()
        print(f"slowest call with a hanging disk: {slowest * 1e3:.1f} ms")
        assert [action.error for action in actions] == ["not done within 5 s"]
        assert slowest < 0.1
        settle(actuator)
        assert state(inner) == found and load(path) is None
