# SPDX-License-Identifier: GPL-2.0-or-later
"""From the collector's file to what the agent says: whose disk that is, status, alerts, doctor."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

import raid_cases as cases
import samples
from alert_host import MB, Watched
from fake_sysfs import SATA, VIRTIO, FakeSysfs
from raid_host import BOOT, EXAMPLE, ME, answering, bin_dir, program, soon, told, tree
from test_answers import assert_valid
from writebackd.alerts.alert_types import Alert, AlertName, Cause
from writebackd.alerts.degraded import MISMATCH_S, NOTICE_S
from writebackd.cli.daemon_verbs import render_devices
from writebackd.cli.doctor_checks import raid
from writebackd.cli.status_screen import render_status
from writebackd.kernel.topology import scan
from writebackd.paths import RAID as FILE
from writebackd.report.device_answers import devices_json
from writebackd.report.status_answer import status_json
from writebackd.storage import report_file, storcli
from writebackd.storage.backing_watch import HANGS, LOOK_S, BackingWatch, look_at_arrays
from writebackd.storage.collector import collect, with_kernel
from writebackd.storage.device_matcher import Matcher
from writebackd.storage.report_file import STALE_S, CollectorReport, Tool
from writebackd.storage.tool_output import Controller, Volume
from writebackd.types.codec import Interned, pack, unpack
from writebackd.types.samples import DeviceSample, Sample
from writebackd.types.storage import ArrayWork, Backing, CacheMode, Device, Protection, Threshold

__all__ = ["bin_dir", "tree"]  # fixtures


# ---- whose disk that is ------------------------------------------------------

MEGARAID = "pci0000:3a/0000:3b:00.0/host2/target2:{0}:{1}/2:{0}:{1}:0/block"


def devices(tree: FakeSysfs) -> Tuple[Device, ...]:
    return scan(tree.files)


def seen(
    tree: FakeSysfs, now_s: float = 5000.0, owner: int = ME
) -> Tuple[Tuple[Backing, ...], Optional[str]]:
    return look_at_arrays(tree.files, devices(tree), now_s, owner)


@pytest.fixture
def megaraid(tree: FakeSysfs) -> FakeSysfs:
    """VD 238 and 239 of the made-up controller, and a disk that it hands through."""
    tree.disk("sda", "8:0", MEGARAID.format(3, 110))
    tree.disk("sdb", "8:16", MEGARAID.format(3, 111))
    tree.disk("sdc", "8:32", MEGARAID.format(0, 111))
    tree.disk("vda", "254:0", VIRTIO)
    tree.scsi_host("host2", "megaraid_sas")
    return tree


def by_device(
    tree: FakeSysfs, source: str, found: Tuple[Controller, ...]
) -> Dict[str, List[Backing]]:
    table: Dict[str, List[Backing]] = {}
    for backing in Matcher(tree.files, devices(tree)).backings(source, found, 7.0):
        table.setdefault(backing.device, []).append(backing)
    return table


def test_volumes_are_told_by_controller_and_number(megaraid: FakeSysfs) -> None:
    found = by_device(megaraid, "storcli", EXAMPLE.tools[0].controllers)
    assert sorted(found) == ["sda", "sdb"]
    (sda,), (sdb,) = found["sda"], found["sdb"]
    assert sda == Backing(
        "sda", "storcli", 7.0, 1715 << 20, CacheMode.WRITE_BACK, Protection.OK,
        learn_s=EXAMPLE.tools[0].controllers[0].learn_s,
        works=(ArrayWork("patrol"), ArrayWork("rebuild", 0.37)),
    )  # fmt: skip
    assert sdb.mode is CacheMode.WRITE_THROUGH
    assert sdb.works == (ArrayWork("patrol"), ArrayWork("check", 0.08))


def test_another_controllers_volume_of_that_number_is_not_meant(megaraid: FakeSysfs) -> None:
    elsewhere = replace(EXAMPLE.tools[0].controllers[0], pci="0000:3c:00.0")
    assert by_device(megaraid, "storcli", (elsewhere,)) == {}


@pytest.mark.parametrize("told", ["0000:3b:00.0", "0000:00:00.0", None])
def test_a_controller_is_found_whose_domain_or_address_is_not_told(
    tree: FakeSysfs, told: Optional[str]
) -> None:
    tree.disk("sda", "8:0", MEGARAID.replace("0000:3b", "10000:3b").format(3, 110))
    tree.scsi_host("host2", "megaraid_sas")
    one = replace(EXAMPLE.tools[0].controllers[0], pci=told)
    assert sorted(by_device(tree, "storcli", (one,))) == ["sda"]


def test_without_an_address_the_only_one_of_its_driver_is_meant(megaraid: FakeSysfs) -> None:
    nowhere = Controller(protection=Protection.FAILED)
    found = by_device(megaraid, "megacli", (nowhere,))
    assert sorted(found) == ["sda", "sdb"]  # not sdc, which has no cache, nor vda
    assert found["sda"][0].protection is Protection.FAILED and found["sda"][0].mode is None
    assert by_device(megaraid, "megacli", (nowhere, nowhere)) == {}
    megaraid.disk("sdd", "8:48", MEGARAID.replace("3b", "3c").format(2, 0))
    assert by_device(megaraid, "megacli", (nowhere,)) == {}


def test_a_disks_name_reaches_what_is_stacked_upon_it(tree: FakeSysfs) -> None:
    tree.disk("sdc", "8:32", SATA)
    tree.partition("sdc", "sdc1", "8:33")
    tree.link("/sys/class/block/sdc1", os.readlink(tree.files.path("/sys/dev/block/8:33")))
    tree.disk("bcache0", "252:0", slaves=["sdc1"])
    tree.disk("dm-0", "253:0", slaves=["bcache0"])
    tree.mount("253:0", "xfs", "/dev/dm-0", "/srv")
    named = (Controller(volumes=(Volume(disk="bcache0", mode=CacheMode.WRITE_BACK),)),)
    assert list(by_device(tree, "bcache", named)) == ["dm-0"]
    disk = (Controller(volumes=(Volume(disk="sdc", mode=CacheMode.WRITE_BACK),)),)
    assert list(by_device(tree, "ssacli", disk)) == ["dm-0"]


def test_a_volume_is_found_below_other_disks(megaraid: FakeSysfs) -> None:
    megaraid.disk("dm-0", "253:0", slaves=["sda", "vda"])
    megaraid.mount("253:0", "xfs", "/dev/dm-0", "/srv")
    assert devices(megaraid)[0].driver == "mixed"
    found = by_device(megaraid, "storcli", EXAMPLE.tools[0].controllers)
    assert sorted(found) == ["dm-0", "sdb"]
    assert found["dm-0"][0].mode is CacheMode.WRITE_BACK


def test_an_array_at_work_slows_all_on_its_disks(tree: FakeSysfs) -> None:
    for name, devno in (("sda", "8:0"), ("sdb", "8:16"), ("sdz", "8:240")):
        tree.disk(name, devno, SATA)
    for disk, number in (("sda", 1), ("sda", 2), ("sdb", 1)):
        name = f"{disk}{number}"
        devno = f"8:{number if disk == 'sda' else 16 + number}"
        tree.partition(disk, name, devno)
        place = os.readlink(tree.files.path(f"/sys/dev/block/{devno}"))
        tree.link(f"/sys/class/block/{name}", place)
    tree.disk("md7", "9:7", slaves=["sda1", "sdb1"])
    tree.mount("9:7", "ext4", "/dev/md7", "/")
    tree.mount("8:2", "ext4", "/dev/sda2", "/boot")
    tree.text("/proc/mdstat", cases.MDSTAT)
    found, error = seen(tree)
    assert error is None
    works = (ArrayWork("rebuild", 0.125, 50.0 * MB),)
    assert {each.device: (each.source, each.works) for each in found} == {
        "md7": ("md", works), "sda": ("md", works)
    }  # fmt: skip


# ---- the daemon's look -------------------------------------------------------


def leave(tree: FakeSysfs, found: CollectorReport) -> None:
    path = tree.files.path(FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    report_file.write(found, path)


@pytest.mark.parametrize("age_s, boot_id, known", [
    (60.0, BOOT, True), (STALE_S - 1, BOOT, True), (STALE_S + 1, BOOT, False),
    (-30.0, BOOT, True), (-600.0, BOOT, False), (60.0, "another", False),
])  # fmt: skip
def test_what_is_old_is_not_known(
    age_s: float, boot_id: str, known: bool, megaraid: FakeSysfs
) -> None:
    leave(megaraid, told(*EXAMPLE.tools, age_s=age_s, boot_id=boot_id))
    found, error = seen(megaraid)
    assert (bool(found), error is None) == (known, known)


def test_old_for_a_suspend_alone_is_no_trouble_with_the_timer(
    megaraid: FakeSysfs, monkeypatch: pytest.MonkeyPatch, bin_dir: Path
) -> None:
    # Of a machine that has been up for long enough to have a file of eight hours ago.
    clock_gettime = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: clock_gettime(clock) + 10 * 3600.0)
    now_s, awake_s = (time.clock_gettime(clock) for clock in (
        time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC))  # fmt: skip
    old = told(*EXAMPLE.tools, now_s=now_s, age_s=8 * 3600.0)
    for boot_id, before_s, slept in (
        (BOOT, 300.0, True), (BOOT, STALE_S + 60.0, False), (BOOT, -5.0, False),
        ("another", 300.0, False), (BOOT, None, False),
    ):  # fmt: skip
        then_s = None if before_s is None else awake_s - before_s
        leave(megaraid, replace(old, boot_id=boot_id, awake_s=then_s))
        # Not known in any case: a battery may have run down meanwhile.
        assert seen(megaraid, now_s)[0] == ()
        error = seen(megaraid, now_s)[1]
        assert (error is None) is slept, (boot_id, before_s, error)
        ((level, text),) = [each for each in findings(megaraid) if FILE in each[1]]
        assert (level, "before a suspend" in text) == (("note", True) if slept
                                                       else ("warning", False))  # fmt: skip


def test_a_name_counts_while_it_is_the_same_disks(tree: FakeSysfs, bin_dir: Path) -> None:
    tree.disk("sdc", "8:32", MEGARAID.format(3, 110), diskseq=7)
    tree.disk("vda", "254:0", VIRTIO, diskseq=3)
    program(bin_dir, "ssacli", answering(detail=cases.ssacli()))
    begun_s = [time.clock_gettime(each) for each in (time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC)]
    found = collect(tree.files, 10.0, [str(bin_dir)], bin_dir.parent)
    assert begun_s[0] <= found.boottime_s and begun_s[1] <= (found.awake_s or 0.0)
    leave(tree, replace(found, boottime_s=4990.0))
    known = [each.diskseq for each in found.tools[0].controllers[0].volumes if each.disk == "sdc"]
    assert known == [7]

    def behind() -> "List[str]":
        return [each.device for each in seen(tree)[0]]

    assert behind() == ["sdc"]
    tree.text("/sys/block/sdc/diskseq", "8")  # pulled out, and another one plugged in
    assert behind() == []
    tree.files.path("/sys/block/sdc/diskseq").unlink()
    assert behind() == []
    # Of a kernel without such numbers, or a collector of the release before.
    plain = [replace(each, controllers=tuple(
        replace(one, volumes=tuple(replace(volume, diskseq=None) for volume in one.volumes))
        for one in each.controllers)) for each in found.tools]  # fmt: skip
    leave(tree, replace(found, boottime_s=4990.0, tools=tuple(plain)))
    assert behind() == ["sdc"]


def test_a_file_that_cannot_be_used_is_told(megaraid: FakeSysfs) -> None:
    assert seen(megaraid) == ((), None)
    leave(megaraid, EXAMPLE)
    found, error = seen(megaraid, owner=ME + 1)
    assert found == () and error is not None and FILE in error


def watching(tree: FakeSysfs) -> Callable[[float], Tuple[Backing, ...]]:
    """What a watch sees, so many seconds after it first saw the file."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    leave(tree, told(*EXAMPLE.tools, now_s=now_s))
    watch, found = BackingWatch(tree.files, ME), devices(tree)
    soon(lambda: watch.seen(found, now_s))
    return lambda later_s: watch.seen(found, now_s + later_s)


def test_it_is_looked_for_once_a_minute(megaraid: FakeSysfs) -> None:
    seen = watching(megaraid)
    assert [each.device for each in seen(0.0)] == ["sda", "sdb"]
    megaraid.files.path(FILE).unlink()
    assert seen(LOOK_S - 1)
    time.sleep(0.1)
    assert seen(LOOK_S - 1)  # nobody has looked
    soon(lambda: seen(LOOK_S + 1) == ())


def test_nobody_waits_for_a_look_that_hangs(megaraid: FakeSysfs) -> None:
    """/proc/mdstat takes a lock that is held while the bitmap is written."""
    seen = watching(megaraid)
    os.mkfifo(megaraid.files.path("/proc/mdstat"))
    begun, before = time.monotonic(), threading.active_count()
    for minute in range(1, 5):
        assert seen(minute * (LOOK_S + 1))
    assert seen(HANGS * LOOK_S + 60) == ()
    assert time.monotonic() - begun < 1.0
    assert threading.active_count() <= before + 1
    with open(megaraid.files.path("/proc/mdstat"), "w"):
        pass  # lets it go on


# ---- what the agent says -----------------------------------------------------


def backing(**fields: Any) -> Backing:
    return Backing("sda", "storcli", 1000.0, **fields)


def shown(*backings: Backing) -> Any:
    snapshot = samples.guard()
    name = snapshot.sample.devices[0].device.name
    sample = replace(
        snapshot.sample, backings=tuple(replace(each, device=name) for each in backings)
    )
    answer = status_json(replace(snapshot, sample=sample))
    assert_valid(answer, "status")
    return answer


def test_status_shows_what_tools_say_beside_what_behaviour_says() -> None:
    before = status_json(samples.guard())["devices"][0]["write_cache"]
    answer = shown(
        backing(capacity_bytes=5, mode=CacheMode.WRITE_BACK, protection=Protection.OK, learn_s=9.0),
        Backing("", "md", 1001.0, works=(ArrayWork("rebuild", 0.5, 7.0),)),
    )
    found = answer["devices"][0]["write_cache"]
    assert found["capacity_bytes"] == before["capacity_bytes"] and found["fill"] == before["fill"]
    assert (found["kind"], found["mode"], found["protected"], found["source"]) == (
        "controller", "write-back", True, "storcli"
    )  # fmt: skip
    assert [each["source"] for each in found["reported"]] == ["storcli", "md"]
    assert found["reported"][0]["capacity_bytes"] == 5 and found["reported"][0]["learn_s"] == 9.0
    assert found["reported"][1]["works"] == [{"kind": "rebuild", "share": 0.5, "rate": 7.0}]
    assert not [line for line in answer["warnings"] if "battery" in line]


def test_devices_show_what_is_behind_them() -> None:
    snapshot = samples.guard()
    name = snapshot.sample.devices[0].device.name
    said = (
        backing(capacity_bytes=1715 << 20, mode=CacheMode.WRITE_BACK, protection=Protection.OK,
                learn_s=1000.0 + 7200.0, dirty_bytes=5 << 20,
                thresholds=(Threshold("high_watermark", 60),)),
        Backing("", "md", 1001.0, works=(ArrayWork("rebuild", 0.5, 7.0 * MB),)),
        backing(),
    )  # fmt: skip
    sample = replace(snapshot.sample, backings=tuple(replace(each, device=name) for each in said))
    answer = devices_json(replace(snapshot, sample=sample))
    assert_valid(answer, "devices")
    text = " ".join(render_devices(answer, 200).split())
    assert (
        "storcli: cache of 1.7G, write-back, 5.0M dirty, battery ok, next battery test in 2h0m,"
        " high_watermark 60"
        in text
    )
    assert "md: rebuild 50 % done at 7.0M/s behind" in text
    assert "storcli: nothing" in text
    before = devices_json(snapshot)
    for device in before["devices"]:
        assert device["reported"] == []
    assert "behind" not in render_devices(before)


def test_status_shows_what_was_read_from_a_cache_or_how_a_tools_word_agrees() -> None:
    snapshot = samples.guard()
    name = snapshot.sample.devices[0].device.name

    def screen(*said: Backing, **figures: Any) -> str:
        sample = replace(
            snapshot.sample, backings=tuple(replace(each, device=name) for each in said)
        )
        estimates = {**snapshot.estimates, name: replace(snapshot.estimates[name], **figures)}
        answer = status_json(replace(snapshot, sample=sample, estimates=estimates))
        assert_valid(answer, "status")
        return " ".join(render_status(answer, 200).split())

    read = Backing("", "bcache", 1.0, mode=CacheMode.WRITE_BACK, capacity_bytes=90 << 20,
                   dirty_bytes=45 << 20, disk="bcache0", read_s=9.0,
                   thresholds=(Threshold("writeback_percent", 10),))  # fmt: skip
    text = screen(read, cache_bytes=90.0 * (1 << 20), fill_bytes=45.0 * (1 << 20),
                  fill_source="bcache")  # fmt: skip
    assert "bcache 50 % full of 90M, write-back" in text
    told = backing(capacity_bytes=512 << 20, mode=CacheMode.WRITE_BACK)
    text = screen(told, cache_bytes=256.0 * (1 << 20), fill_source=None)
    assert "write cache 256M measured, 50 % of what storcli reports" in text
    assert "measured" not in screen(told, cache_bytes=None, fill_source=None)
    assert "measured" not in screen(backing(), cache_bytes=256.0, fill_source=None)


def test_status_without_tools_says_that_nothing_is_known() -> None:
    found: Any = status_json(samples.guard())["devices"][0]["write_cache"]
    assert [found[key] for key in ("kind", "mode", "protected", "source", "reported")] == [
        None, None, None, None, []
    ]  # fmt: skip


@pytest.mark.parametrize("mode, words", [
    (CacheMode.WRITE_THROUGH, "battery failed (storcli); its cache is write-through"),
    (CacheMode.ALWAYS_WRITE_BACK, "a power failure loses them"), (None, "battery failed"),
])  # fmt: skip
def test_a_battery_that_fails_is_a_warning(mode: Optional[CacheMode], words: str) -> None:
    answer = shown(backing(mode=mode, protection=Protection.FAILED))
    assert [line for line in answer["warnings"] if words in line]
    assert answer["devices"][0]["write_cache"]["protected"] is False


def trouble(*backings: Backing, lost: bool = False) -> Alert:
    """What is told of a disk that gets slow: now and then, or, with its cache `lost`, always."""
    host = Watched().usual()
    for n in range(10):
        if lost:
            host.second(syncs=120, latency_s=8e-3, seeks=True, waiting=3, backings=backings)
        else:
            host.second(syncs=60 + 40 * (n % 2), spread=500.0, waiting=1, backings=backings)
    (alert,) = host.alerts
    return alert


def test_a_rebuild_is_told_and_no_neighbour() -> None:
    assert trouble().cause is Cause.NEIGHBOUR
    alert = trouble(backing(works=(ArrayWork("rebuild", 0.32, 50.0 * MB),)))
    assert alert.cause is Cause.DEVICE
    assert alert.summary.endswith("array rebuilds, 32 % done at 50M/s (storcli)")
    assert alert.done == "wait until the array is done, or lower its rebuild rate"


def test_an_array_of_another_device_is_not_to_blame() -> None:
    alert = trouble(replace(backing(works=(ArrayWork("rebuild"),)), device="sdb"))
    assert alert.cause is Cause.NEIGHBOUR
    assert alert.summary == trouble().summary and alert.done == trouble().done


def test_a_lost_cache_is_told_with_the_battery() -> None:
    failed = backing(protection=Protection.FAILED, mode=CacheMode.WRITE_THROUGH)
    alert = trouble(failed, lost=True)
    assert (alert.cause, alert.name) == (Cause.WRITE_THROUGH, AlertName.CACHE_DEGRADED)
    assert alert.summary.endswith(": battery failed (storcli), cache write-through (storcli)")
    alert = trouble(backing(protection=Protection.LEARNING), lost=True)
    assert alert.summary.endswith(": battery learning (storcli)")
    # One that is well has nothing to say, nor is a rebuild why.
    well = backing(protection=Protection.OK, works=(ArrayWork("rebuild", 0.5),))
    assert trouble(well, lost=True) == trouble(lost=True)


def test_a_tool_that_says_otherwise_is_quoted() -> None:
    alert = trouble(backing(mode=CacheMode.WRITE_BACK), lost=True)
    assert alert.name is AlertName.CACHE_DEGRADED
    assert alert.summary.endswith("the write cache is off: but storcli says write-back")


def test_a_battery_test_is_told_a_day_before_and_until_it_begins() -> None:
    host = Watched().usual()
    at_s = 1.7e9 + host.time_s + NOTICE_S + 10
    two = [replace(backing(learn_s=at_s), device=name) for name in ("sda", "gone")]
    host.seconds(5, backings=tuple(two))
    assert not host.names()
    host.seconds(10, backings=tuple(two))
    (alert,) = host.alerts
    assert (alert.name, alert.cause, alert.device) == (
        AlertName.BATTERY_TEST, Cause.BATTERY, "sda"
    )
    assert alert.since_s == at_s - NOTICE_S
    assert "battery in 23h59m (storcli)" in alert.summary
    passed = (backing(learn_s=1.7e9 + host.time_s - 1),)
    assert host.ends_in(backings=passed) > 0  # for `hold`


def test_no_device_behind_a_battery_that_tests_itself_is_lost() -> None:
    """Of two controllers with the same time, and of two disks behind one."""
    host = Watched().usual()
    at_s = 1.7e9 + host.time_s + NOTICE_S
    said = [replace(backing(learn_s=at_s), device=name) for name in ("sdb", "sda", "gone", "sdb")]
    other = DeviceSample(replace(host.device, name="sdb"), None, 0, 0, 0, 0, 0.0)
    host.seconds(5, backings=tuple(said), more=(other,))
    (alert,) = host.alerts
    assert alert.device == "sda"
    assert alert.summary.startswith("sda, sdb: self-test of their write cache's battery in ")
    assert alert.summary.endswith(": small writes may then take milliseconds for hours")


@pytest.mark.parametrize("kernel", ["bcache", "dm-cache", "dm-writecache", "md"])
@pytest.mark.parametrize("above_tool", [False, True])
def test_what_the_kernel_says_of_its_own_caches_is_no_mismatch(
    kernel: str, above_tool: bool
) -> None:
    host = Watched()
    host.device = replace(host.device, rotational=True)
    off = backing(mode=CacheMode.WRITE_THROUGH)
    said = (replace(off, source=kernel), *([off] if above_tool else []))
    host.seconds(round(MISMATCH_S) + 1, latency_s=0.2e-3, backings=said)
    assert [each.summary[:20] for each in host.alerts] == ["sda: storcli says wr"] * above_tool


@pytest.mark.parametrize("modes, rotational, latency_s, told", [
    (["write-through"], True, 0.2e-3, True),
    (["write-through"], True, 6e-3, False),  # as the tool says
    (["write-through"], False, 0.2e-3, False),  # flash is as fast without a cache
    (["write-through", "write-back"], True, 0.2e-3, False),  # bcache above a controller
    ([None], True, 0.2e-3, False),
])  # fmt: skip
def test_writes_too_fast_for_write_through_are_told_when_they_last(
    modes: "List[Optional[str]]", rotational: bool, latency_s: float, told: bool
) -> None:
    host = Watched()
    host.device = replace(host.device, rotational=rotational)
    said = tuple(backing(mode=CacheMode(each) if each else None) for each in modes)
    seconds = round(MISMATCH_S)
    host.usual(seconds - 1, latency_s=latency_s, backings=said)
    # A tick of a quiet host says nothing.
    host.second(syncs=2, latency_s=latency_s, backings=said)
    assert not host.names()
    host.second(latency_s=latency_s, backings=said)
    assert [each.name for each in host.alerts] == [AlertName.CACHE_MISMATCH] * told
    if told:
        (alert,) = host.alerts
        assert "storcli says write-through, but a small write takes 0.2" in alert.summary
        assert host.ends_in(backings=(backing(mode=CacheMode.WRITE_BACK),)) > 0


TOLD = 1000 * MB  # by the tool


@pytest.mark.parametrize("sizes, fires", [
    ([4100], 1), ([3900], 0), ([240], 1), ([260], 0),
    ([2100, 2200], 2), ([2100, 2100], 0), ([1900, 1800], 0), ([2100, 1500, 2200], 0),
    ([450, 440], 2),
])  # fmt: skip
def test_a_size_far_from_the_tools_word_is_told_by_the_first_flood_or_the_second(
    sizes: List[int], fires: int
) -> None:
    host = Watched().usual()
    said = (backing(capacity_bytes=TOLD, mode=CacheMode.WRITE_BACK),)
    for number, size in enumerate(sizes, 1):
        for _ in range(3):  # of one flood: the same value
            host.second(cache_bytes=size * float(MB), drain_rate=100.0 * MB, backings=said)
        assert host.names() == [AlertName.CACHE_MISMATCH] * (0 < fires <= number)
    if fires:
        assert host.ends_in(
            cache_bytes=float(TOLD), drain_rate=100.0 * MB, backings=said
        ) > 0  # fmt: skip


def test_a_size_that_may_be_noise_another_devices_or_the_kernels_is_not_told() -> None:
    host = Watched().usual()
    off: Dict[str, Any] = {"cache_bytes": 5000.0 * MB, "drain_rate": 100.0 * MB}
    said = backing(capacity_bytes=TOLD, mode=CacheMode.WRITE_BACK)
    less = {**off, "cache_bytes": 100.0 * MB}
    for number, (backings, figures) in enumerate((
        ((said,), {**off, "drain_rate": 1400.0 * MB}),  # less than three seconds of it
        ((replace(said, mode=CacheMode.WRITE_THROUGH),), off),
        ((replace(said, capacity_bytes=None),), off),
        ((said, replace(said, source="bcache")), off),
        ((said, replace(said, device="sdb")), less),  # both are behind one controller
        ((said,), {**off, "cache_bytes": None}),
    )):
        size = figures["cache_bytes"]  # another one in each, as of another flood
        figures = {**figures, "cache_bytes": size and size + number * MB}
        host.second(backings=backings, **figures)
        assert not host.names()
    host.second(backings=(said, replace(said, device="sdb")), **off)
    assert host.names() == [AlertName.CACHE_MISMATCH]
    assert "storcli reports a write cache of 1.0G, but floods fill 4.9G: " in (
        host.alerts[0].summary
    )
    host.ends_in(**off)  # nobody asks the tool any more


def test_samples_with_it_are_recorded_and_read_back() -> None:
    sample = samples.guard().sample
    with_it = replace(sample, backings=(
        backing(mode=CacheMode.WRITE_BACK, protection=Protection.OK,
                works=(ArrayWork("check", 0.1),)),))  # fmt: skip
    writer, reader = Interned(), Interned()
    for each in (with_it, with_it, sample):
        packed = json.loads(json.dumps(pack(each, writer)))
        reader.give(json.loads(json.dumps(writer.take())))
        assert unpack(Sample, packed, reader) == each
    # Told once, as it is the same from tick to tick.
    assert len([each for each in writer.values if isinstance(each, Backing)]) == 1


# ---- doctor ------------------------------------------------------------------


def findings(tree: FakeSysfs) -> List[Tuple[str, str]]:
    return list(raid(tree.files, ME, tree.root.parent))


def test_doctor_without_tools_and_without_a_file_says_nothing(
    tree: FakeSysfs, bin_dir: Path
) -> None:
    assert findings(tree) == []


def test_doctor_tells_tools_and_who_asks_them(tree: FakeSysfs, bin_dir: Path) -> None:
    program(bin_dir, "ssacli", "")
    assert findings(tree) == [
        ("good", f"ssacli found ({bin_dir / 'ssacli'})"),
        ("note", f"no {FILE} yet: `sudo systemctl start writebackd-raid`"),
    ]
    program(bin_dir, "systemctl", "sys.exit(3)")
    assert any("no battery or rebuild state from ssacli" in text for _, text in findings(tree))
    program(bin_dir, "systemctl", "sys.exit(0)")
    assert ("good", "writebackd-raid.timer runs") in findings(tree)
    program(bin_dir, "systemctl", "sys.exit(1)")  # no systemd here
    assert not any("timer" in text for _, text in findings(tree))


def test_doctor_warns_of_what_the_file_says(tree: FakeSysfs, bin_dir: Path) -> None:
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    bare = storcli.parse([cases.storcli_all("RAWBD", battery="Failed")])
    leave(tree, told(Tool("storcli", "/x", None, bare), EXAMPLE.tools[1], now_s=now_s))
    found = findings(tree)
    assert found[0][0] == "good" and "was written 1m0s ago" in found[0][1]
    assert [level for level, _ in found[1:]] == ["good"] + ["warning"] * 3
    assert found[1][1] == (
        "Modelled RAID 9: cache 1.7G, 1 volume always-write-back, 1 volume write-through,"
        " battery failed (storcli)"
    )
    said = " ".join(text for _, text in found)
    assert "Modelled RAID 9: battery failed (storcli)" in said
    assert "even without a battery (volume 238, storcli)" in said
    assert "ssacli (/usr/sbin/ssacli) failed: not done within 30 s" in said
    leave(tree, told(now_s=now_s, age_s=STALE_S + 60))
    ((level, text),) = findings(tree)
    assert level == "warning" and "is not used" in text
    tree.files.path(FILE).write_text("{")
    ((level, text),) = findings(tree)
    assert level == "warning" and "no JSON" in text


@pytest.mark.parametrize("policy, cache_mb, warned", [
    ("RWBD", 0, False), ("RWTD", 1715, False), ("RWBD", 1715, True),
])  # fmt: skip
def test_a_controller_that_needs_no_battery_is_no_warning(
    policy: str, cache_mb: int, warned: bool, megaraid: FakeSysfs, bin_dir: Path
) -> None:
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    said = storcli.parse([cases.storcli_all(policy, battery=None, cache_mb=cache_mb)])
    leave(megaraid, told(Tool("storcli", "/x", None, said), now_s=now_s))
    assert any(level == "warning" for level, _ in findings(megaraid)) is warned
    (backing,) = by_device(megaraid, "storcli", said)["sda"]
    answer = shown(backing)
    assert any("battery" in line for line in answer["warnings"]) is warned
    assert answer["devices"][0]["write_cache"]["protected"] is (False if warned else None)


def test_the_kernels_own_come_last(tree: FakeSysfs) -> None:
    tree.disk("bcache0", "252:0")
    tree.says("bcache0", bcache__state="clean", bcache__cache_mode="[writeback] none")
    found = with_kernel(told(), tree.files)
    assert [each.name for each in found.tools] == ["bcache"]
