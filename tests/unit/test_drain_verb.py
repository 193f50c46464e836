# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl drain`: sync(1) of a test's own, and a daemon that only answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest

import samples
import schema
from fake_sysfs import RAID, FakeSysfs
from served import Served
from writebackd.cli import ctl, drain_caches, signals
from writebackd.cli import drain_verb as drain_module
from writebackd.cli.client import NoAnswer, NoDaemon, request
from writebackd.kernel.files import KernelFiles
from writebackd.report.control_server import RequestError, names_argument
from writebackd.report.device_answers import devices_json, find_devices
from writebackd.report.snapshot import DeviceTotals, Snapshot, Totals
from writebackd.report.status_answer import status_json
from writebackd.types.storage import Backing, CacheMode, Protection

MIB = 1 << 20
NUMBER = 77
# Waits for the file `go` beside it, and leaves what it was called with.
SYNC = """#!/bin/sh
echo "$@" >>{here}/called
while [ ! -e {here}/go ]; do sleep 0.02; done
[ ! -e {here}/fails ] || {{ echo "sync: error syncing '$3': Input/output error" >&2; exit 1; }}
"""


class Daemon(Served):
    """sda is drained, 10 MiB at each look; `fill` is of its write cache, and `said` bytes in it."""

    def __init__(self, here: Path, run: "Run") -> None:
        self.here, self.run = here, run
        self.shown: Snapshot = samples.idle()
        self.orders: List[Dict[str, Any]] = []
        self.looks = 0
        self.released = False
        self.fill: Callable[[], float] = lambda: 0.0
        self.cache_bytes = 0.0
        self.said: "Tuple[Backing, ...]" = ()
        self.lines: List[str] = []  # what keeps the drain from the limits
        self.vanishes = False  # sda does, after the first look
        super().__init__(here, self.handle)

    def handle(self, verb: str, args: Dict[str, Any], uid: int) -> Any:
        if verb == "drain":
            self.orders.append(args)
            if args["order"] == "start":
                for each in args["devices"]:
                    find_devices(self.shown, each)
            over = args["order"] == "end" or self.released
            lines = [] if over else self.lines
            return {
                "number": NUMBER, "devices": [] if over else ["sda"],
                "lowered": not over and not lines, "lines": lines,
            }
        return {"devices": lambda: devices_json(self.shown), "status": self._status}[verb]()

    def _status(self) -> Any:
        self.looks += 1
        sample = replace(self.shown.sample, wall_s=time.time(), backings=self.said)
        estimate = replace(
            self.shown.estimates["sda"], cache_bytes=self.cache_bytes or None,
            fill_bytes=self.fill() * self.cache_bytes,
        )  # fmt: skip
        totals = Totals(devices={"sda": DeviceTotals(written_bytes=self.looks * 10 * MIB)})
        if self.vanishes and self.looks > 1:
            sample = replace(sample, devices=())
        return status_json(
            replace(self.shown, sample=sample, estimates={"sda": estimate}, totals=totals)
        )

    def with_filesystems(self, *filesystems: Tuple[str, str, str]) -> None:
        (seen,) = self.shown.sample.devices
        raw = replace(seen, device=replace(seen.device, filesystems=filesystems))
        self.shown = replace(self.shown, sample=replace(self.shown.sample, devices=(raw,)))

    @property
    def named(self) -> List[str]:
        return [str(each["order"]) for each in self.orders]

    def json(self, *words: str) -> Tuple[int, Dict[str, Any]]:
        """The exit code, and the answer as data."""
        code, out, _ = self.run("--json", *words)
        return code, answer(out)

    def called(self) -> List[str]:
        """With what sync and blockdev were, sorted."""
        return sorted((self.here / "called").read_text().splitlines())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    for name in ("sync", "blockdev"):
        (tmp_path / "bin" / name).write_text(SYNC.format(here=tmp_path))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    for name, seconds in (("_ASK_S", 0.02), ("_LINE_S", 0.02), ("_CHILDREN_S", 0.005)):
        monkeypatch.setattr(drain_module, name, seconds)
    for name in ("_DEV", "_BLOCK"):  # this host may have an sda
        monkeypatch.setattr(drain_caches, name, tmp_path / name)
    monkeypatch.setattr(drain_caches, "_FILES", KernelFiles(tmp_path))
    # The filesystems of the samples are not those of this host.
    monkeypatch.setattr(drain_module, "is_mounted", lambda mount, devno: mount != "/hidden")
    return tmp_path


Run = Callable[..., Tuple[int, str, str]]


def nodes_of_sda(here: Path) -> List[str]:
    """Of it and its only partition; the lines that blockdev and sync are called with."""
    for path in ("_DEV/sda", "_DEV/sda1", "_BLOCK/sda/sda1/partition", "_BLOCK/sda/queue/x"):
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).touch()
    nodes = f"{here}/_DEV/sda {here}/_DEV/sda1"
    return [f"-- {nodes}", f"--flushbufs {nodes}"]


@pytest.fixture
def run(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> Tuple[int, str, str]:
        code = ctl.main(["--runtime-dir", str(here), "drain", *words])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def daemon(here: Path, run: Run) -> Iterator[Daemon]:
    daemon = Daemon(here, run)
    yield daemon
    (here / "go").touch()
    daemon.stop()


@pytest.fixture
def ready(daemon: Daemon) -> Daemon:
    """The sync of this one ends at once."""
    (daemon.here / "go").touch()
    return daemon


def answer(out: str) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads(out)
    assert list(schema.problems(found, schema.load("drain"))) == []
    return found


def test_each_filesystem_of_the_devices_is_synced_and_the_limits_released(ready: Daemon) -> None:
    code, out, err = ready.run("sda", "--json")
    assert (code, err) == (0, "")
    assert [line for line in ready.called() if line] == ["-f -- /", "-f -- /var/lib/postgresql"]
    assert ready.orders[0] == {"order": "start", "devices": ["sda"]}
    assert ready.named[1] == "renew" and ready.named[-1] == "end"
    assert all(each["number"] == NUMBER for each in ready.orders[1:])
    found = answer(out)
    assert found["clean"] and found["page_cache_written"] and not found["held"]
    # What the counter said at the first look was written before.
    written = (ready.looks - 1) * 10 * MIB
    assert found["written_bytes"] == found["devices"][0]["written_bytes"] == written > 0


def test_it_lasts_as_long_as_sync_does_and_shows_a_line_now_and_then(daemon: Daemon) -> None:
    timer = threading.Timer(0.3, (daemon.here / "go").touch)
    timer.start()
    code, out, _ = daemon.run()
    timer.join()
    assert code == 0
    assert out.startswith("drain of sda; Ctrl-C ends it\n") and "\x1b" not in out
    assert "write caches" not in out  # none is known
    assert "dirty (host) 9.0M left, " in out and "M/s, about " in out
    assert "\nclean: " in out and "page cache: 9.0M dirtied since (host)" in out
    assert daemon.named.count("renew") > 3  # or the lease would have ended


def test_what_is_not_clean_in_time_is_bad_news_and_the_limits_are_released(daemon: Daemon) -> None:
    code, out, _ = daemon.run("--timeout", "100ms", "--json")
    found = answer(out)
    assert code == 1 and daemon.named[-1] == "end"
    assert (found["outcome"], found["clean"], found["page_cache_written"]) == (
        "timeout", False, False)


def test_held_limits_are_not_released(ready: Daemon) -> None:
    code, out, _ = ready.run("--hold")
    assert code == 0 and ready.named[-1] == "hold"
    assert "hold" not in ready.named[:-1] and "end" not in ready.named
    assert "limits stay at their floor until `writebackctl release`" in out
    assert ready.json("--hold")[1]["held"]


def test_limits_that_the_daemon_leaves_alone_are_not_called_held(ready: Daemon) -> None:
    ready.lines = ["limits stay pinned to 16M"]
    code, out, _ = ready.run("--hold")
    assert code == 0 and out.endswith("\n  limits stay pinned to 16M\n")
    assert "floor" not in out
    assert not ready.json("--hold")[1]["held"]


def test_a_timeout_releases_limits_that_were_to_be_held(daemon: Daemon) -> None:
    code, out, _ = daemon.run("--hold", "--timeout", "100ms")
    assert code == 1 and "not clean, timed out: " in out and "floor" not in out
    assert daemon.named[-1] == "end" and "hold" not in daemon.named


def test_an_error_after_the_start_releases_the_limits(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(runtime_dir: Path, verb: str, args: Any = None) -> Dict[str, Any]:
        if verb == "devices":
            raise NoAnswer("writebackd does not answer", 3)
        return request(runtime_dir, verb, args)

    monkeypatch.setattr(drain_module, "request", fails)
    assert daemon.run("--hold")[0] == 3
    assert daemon.named[-1] == "end" and "hold" not in daemon.named


def test_nodes_are_synced_with_whatever_filesystem_is_on_them(ready: Daemon) -> None:
    """One of another partition, of another mount namespace, or hidden by another mount."""
    lines = nodes_of_sda(ready.here)
    code, found = ready.json()
    assert code == 0 and found["clean"]
    assert ready.called() == [*lines, "-f -- /", "-f -- /var/lib/postgresql"]
    (ready.here / "called").unlink()
    ready.with_filesystems(("8:1", "ext4", "/hidden"))
    assert ready.run("--json")[0] == 0
    assert ready.called() == lines  # what hides it is another's


BTRFS = ("0:33", "btrfs", "/srv")


@pytest.mark.parametrize("filesystems, synced", [
    ([], [""]), ([("8:1", "ext4", "/srv")], ["", "-f -- /srv"]),  # a partition's alone
    ([("8:0", "ext4", "/srv")], ["-f -- /srv"]), ([BTRFS], ["-f -- /srv"]),
    ([("8:0", "ext4", "/hidden")], [""]), ([(*BTRFS[:2], "/hidden")], [""]),
])  # fmt: skip
def test_all_of_the_host_is_synced_where_a_disk_cannot_be_alone(
    ready: Daemon, filesystems: List[Tuple[str, str, str]], synced: List[str]
) -> None:
    ready.with_filesystems(*filesystems)
    nodes_of_sda(ready.here)
    (ready.here / "_DEV/sda1").unlink()  # one is missing
    code, found = ready.json()
    assert code == 0 and found["clean"] and ready.called() == synced


def test_a_mount_is_known_by_the_filesystem_that_it_leads_to(tmp_path: Path) -> None:
    devnos = {
        line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.split()[4] == "/proc"
    }  # fmt: skip
    assert [drain_caches.is_mounted("/proc", each) for each in devnos].count(True) == 1
    assert not drain_caches.is_mounted("/proc", "8:1")
    assert not drain_caches.is_mounted(str(tmp_path / "none"), "8:1")


# / was mounted last, and the others moved below it. A later /srv hides /srv/old, which hangs;
# the upper of two mounts on /a hides the lower, but not what is on the upper.
MOUNTED = r"""
22 27 0:21 / /proc rw - proc proc rw
27 1 8:1 / / rw - ext4 /dev/sda1 rw
30 27 8:2 / /srv/old rw - ext4 /dev/sda2 rw
31 27 0:40 / /srv rw - nfs4 gone:/ rw
32 31 8:3 / /srv/db\040one rw - ext4 /dev/sda3 rw
40 27 8:4 / /a rw - ext4 /dev/sda4 rw
41 40 8:5 / /a rw - ext4 /dev/sda5 rw
42 41 8:6 / /a/b rw - ext4 /dev/sda6 rw
"""


@pytest.mark.parametrize("mount, devno, mounted", [
    ("/", "8:1", True), ("/proc", "0:21", True), ("/srv", "0:40", True), ("/srv", "8:1", False),
    ("/srv/old", "8:2", False), ("/srv/db one", "8:3", True), ("/srv/d", "8:3", False),
    ("/a", "8:4", False), ("/a", "8:5", True), ("/a/b", "8:6", True), ("/a/b", "8:5", False),
])  # fmt: skip
def test_no_path_is_opened_to_see_what_is_mounted_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, devno: str, mounted: bool
) -> None:
    FakeSysfs(tmp_path).text("/proc/self/mountinfo", MOUNTED.strip())
    monkeypatch.setattr(drain_caches, "_FILES", KernelFiles(tmp_path))
    assert drain_caches.is_mounted(mount, devno) is mounted


def test_a_device_that_vanishes_is_not_clean(ready: Daemon) -> None:
    ready.vanishes = True
    code, found = ready.json()
    assert (code, found["outcome"], found["clean"]) == (1, "gone", False)
    assert found["problems"] == ["sda: gone before the drain ended"]


def test_a_status_that_is_not_answered_yet_is_waited_for(
    ready: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed: List[str] = []

    def later(runtime_dir: Path, verb: str, args: Any = None) -> Dict[str, Any]:
        if verb == "status" and len(missed) < 5:
            missed.append(verb)
            raise NoAnswer("writebackd does not answer", 3)
        return request(runtime_dir, verb, args)

    monkeypatch.setattr(drain_module, "request", later)
    code, found = ready.json()
    assert code == 0 and len(missed) == 5 and found["clean"]


def test_the_write_cache_is_waited_for_after_the_page_cache(ready: Daemon) -> None:
    ready.cache_bytes = 512.0 * MIB
    ready.fill = lambda: max(0.0, 1.0 - ready.looks / 10)
    code, out, _ = ready.run()
    assert code == 0 and ready.looks >= 10
    assert "write caches " in out
    assert "sda: write cache (behind it): 0 of 512M left, estimated" in out


def test_a_cache_that_does_not_become_emptier_ends_it(
    ready: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "_STUCK_S", 0.2)
    said = Backing("sda", "bcache", time.time() + 99, 512 * MIB, CacheMode.WRITE_BACK,
                   dirty_bytes=100 * MIB)
    ready.said = (said,)
    code, found = ready.json("--timeout", "20s")
    assert (code, found["outcome"], found["page_cache_written"]) == (1, "stuck", True)
    assert found["devices"][0]["cache_bytes"] == 100 * MIB


def test_what_was_read_of_a_cache_before_the_page_cache_was_in_it_does_not_count(
    ready: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "_STUCK_S", 0.2)
    ready.said = (
        Backing("sda", "bcache", time.time() - 5, 512 * MIB, CacheMode.WRITE_BACK, dirty_bytes=0),
    )
    code, out, _ = ready.run("--timeout", "20s")
    assert code == 1 and re.search(r"\(bcache\): 0 of 512M left, as of \d\d:\d\d:\d\d\n", out)


def test_a_cache_of_which_nobody_knows_the_fill_is_named(ready: Daemon) -> None:
    ready.said = (Backing("sda", "storcli", 0.0, 512 * MIB, CacheMode.WRITE_BACK),)
    code, out, _ = ready.run()
    assert code == 0 and "sda: write cache (controller): fill not known, not verified" in out
    assert "page cache clean, a write cache was not verified: " in out
    found = ready.json()[1]
    assert not found["devices"][0]["cache_known"] and not found["verified"]


WRITE_BACK, WRITE_THROUGH = CacheMode.WRITE_BACK, CacheMode.WRITE_THROUGH
# The newest that there is, so that it is no reason to wait.
TOLD = Backing("sda", "storcli", time.time() + 999, 512 * MIB)
EMPTY = replace(TOLD, source="bcache", mode=WRITE_BACK, dirty_bytes=0)
ARRAY = Backing("sda", "md", 0.0)


@pytest.mark.parametrize("target, said, known", [
    *(("2:2:", said, known) for said, known in (
        ((), False), ((ARRAY,), False), ((EMPTY,), False), ((TOLD,), False),
        ((replace(TOLD, capacity_bytes=None),), False), ((replace(TOLD, mode=WRITE_BACK),), False),
        ((replace(EMPTY, mode=WRITE_THROUGH, dirty_bytes=None),), False),
        ((replace(TOLD, mode=WRITE_THROUGH),), True), ((replace(TOLD, dirty_bytes=0),), True),
        ((EMPTY, replace(TOLD, mode=WRITE_THROUGH)), True),
        ((replace(TOLD, mode=WRITE_THROUGH), replace(EMPTY, dirty_bytes=None)), False))),
    # Handed through: no controller makes it up, so it needs no tool.
    *(("2:0:", said, known) for said, known in (
        ((), True), ((ARRAY,), True), ((EMPTY,), True), ((TOLD,), False),
        ((replace(TOLD, capacity_bytes=None, protection=Protection.OK),), False))),
])  # fmt: skip
def test_a_controller_is_verified_only_where_its_tool_says_that_it_holds_nothing(
    ready: Daemon, target: str, said: "Tuple[Backing, ...]", known: bool
) -> None:
    tree = FakeSysfs(ready.here)
    tree.disk("sda", "8:0", RAID.replace("2:2:", target))
    tree.scsi_host("host2", "megaraid_sas")
    ready.said = said
    code, found = ready.json()
    assert (code, found["verified"]) == (0, known)
    out = ready.run()[1]
    assert ("\nclean: " in out) == known
    assert ("page cache clean, a write cache was not verified: " in out) == (not known)
    assert ("fill not known, not verified" in out) == (not known)


@pytest.mark.parametrize("module, count, leaf, read, known", [
    ("dm_cache", "2", "sdx", False, False), ("dm_writecache", "2", "sdx", False, False),
    ("bcache", "0", "sdx", False, False), ("bcache", "0", "sda", False, True),
    ("dm_cache", "2", "sdx", True, True), ("dm_cache", "1", "sdx", False, True),
    ("dm_cache", "2", "sda", False, True), ("dm_crypt", "2", "sdx", False, True),
])  # fmt: skip
def test_caches_that_nobody_reads_are_not_verified_where_they_may_be(
    ready: Daemon, monkeypatch: pytest.MonkeyPatch, module: str, count: str, leaf: str, read: bool,
    known: bool,
) -> None:  # fmt: skip
    tree = FakeSysfs(ready.here)
    if module == "bcache":  # built in, so that it has no refcnt
        tree.disk("bcache0", "251:0")
    else:
        tree.text(f"/sys/module/{module}/refcnt", count)
        tree.link(f"/sys/module/{module}/holders/dm_cache_smq", "../../dm_cache_smq")
    monkeypatch.setattr(drain_caches, "is_stale", lambda *_: False)
    if read:
        monkeypatch.setattr(drain_caches, "read", lambda *_: None)
    (seen,) = ready.shown.sample.devices
    upper = replace(seen, device=replace(seen.device, leaves=(leaf,)))
    ready.shown = replace(ready.shown, sample=replace(ready.shown.sample, devices=(upper,)))
    code, found = ready.json()
    assert (code, found["verified"]) == (0, known)


# Says what it was called with, and fails where there is a file `unflushed`.
DMSETUP = """#!/bin/sh
echo "$@" >>{here}/flushed
[ ! -e {here}/unflushed ] || {{ echo "dm: message failed
Command failed." >&2; exit 1; }}
"""


def with_writecache(daemon: Daemon, dmsetup: str = DMSETUP) -> None:
    here = daemon.here
    (here / "bin/dmsetup").write_text(dmsetup.format(here=here))
    (here / "bin/dmsetup").chmod(0o755)
    (here / "_BLOCK/dm-3").mkdir(parents=True)
    (here / "_BLOCK/dm-3/dev").write_text("253:3\n")
    said = Backing("sda", "dm-writecache", time.time() + 99, 512 * MIB, CacheMode.WRITE_BACK,
                   dirty_bytes=100 * MIB, disk="dm-3")
    daemon.said = (said, replace(said, device="sdb"))
    (here / "go").touch()


def test_what_was_read_before_a_flush_ended_does_not_count(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between two looks, and the cache was read shortly before."""
    with_writecache(daemon)
    (said, _), status, child = daemon.said, daemon._status, drain_caches.Child("dm-3", "true")
    begun, looks = False, 0

    def flush(_rows: object, known: "Dict[str, drain_caches.Child]") -> Dict[str, Any]:
        nonlocal begun
        begun = True
        return {} if known else {"dm-3": child}

    def read_now() -> Any:
        nonlocal looks
        looks += begun
        left = 0 if looks > 1 else said.dirty_bytes
        daemon.said = (replace(said, wall_s=time.time(), dirty_bytes=left),)
        return status()

    monkeypatch.setattr(child, "runs", lambda: looks == 0)
    monkeypatch.setattr(drain_module, "flush", flush)
    monkeypatch.setattr(daemon, "_status", read_now)
    code, out, _ = daemon.run("--json")
    (row,) = answer(out)["devices"]
    assert (code, row["cache_bytes"]) == (0, 0)


def test_dm_writecache_is_flushed_once_after_the_page_cache(daemon: Daemon) -> None:
    with_writecache(daemon)  # somebody writes on
    (daemon.here / "go").unlink()
    assert daemon.run("--timeout", "200ms")[0] == 1 and not (daemon.here / "flushed").exists()
    (daemon.here / "go").touch()
    code, found = daemon.json("--timeout", "20s")
    assert (code, found["outcome"], found["verified"]) == (0, "clean", True)
    assert (daemon.here / "flushed").read_text() == "message -j 253 -m 3 0 flush\n"


@pytest.mark.parametrize("read", ["now", "before", "no more"])
def test_a_flush_that_hangs_is_not_waited_for(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    monkeypatch.setattr(drain_module, "_STUCK_S", 1.5)  # dmsetup has to start meanwhile
    with_writecache(daemon, "#!/bin/sh\ntouch {here}/flushed\nexec sleep 30\n")
    if read == "before":
        daemon.said = tuple(replace(each, wall_s=time.time() - 99) for each in daemon.said)

    def asked(runtime_dir: Path, verb: str, args: Any = None) -> Dict[str, Any]:
        if read == "no more" and (daemon.here / "flushed").exists():
            daemon.said = ()  # as for the daemon what was read long ago
        return request(runtime_dir, verb, args)

    monkeypatch.setattr(drain_module, "request", asked)
    code, found = daemon.json("--timeout", "20s")
    assert (code, found["outcome"]) == (1, "stuck")
    assert (daemon.here / "flushed").exists()


def test_a_flush_goes_on_though_one_reading_is_missed(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "_STUCK_S", 1.5)
    with_writecache(daemon, "#!/bin/sh\ncd {here}; touch flushed\n"
                            "while [ ! -e done ]; do sleep 0.02; done\n")  # fmt: skip
    said, looks, begun_s = daemon.said, 0, time.monotonic()

    def asked(runtime_dir: Path, verb: str, args: Any = None) -> Dict[str, Any]:
        nonlocal looks
        if verb == "status" and (daemon.here / "flushed").exists():
            looks += 1
            left = 100 * MIB - (looks << 10)
            daemon.said = () if looks == 1 else tuple(
                replace(each, dirty_bytes=left) for each in said
            )  # fmt: skip
            if time.monotonic() - begun_s > 2 * drain_module._STUCK_S:
                (daemon.here / "done").touch()
        return request(runtime_dir, verb, args)

    monkeypatch.setattr(drain_module, "request", asked)
    code, found = daemon.json("--timeout", "20s")
    assert (code, found["outcome"]) == (0, "clean") and looks > 2


def test_a_cache_that_cannot_be_flushed_is_not_waited_for(daemon: Daemon) -> None:
    with_writecache(daemon)
    (daemon.here / "unflushed").touch()
    code, found = daemon.json("--timeout", "20s")
    assert (code, found["outcome"], found["clean"]) == (1, "unflushed", False)
    assert found["problems"] == ["dm-3: dm: message failed"] and found["page_cache_written"]
    code, out, _ = daemon.run("--timeout", "20s")
    assert code == 1 and "not clean, a write cache was not flushed: " in out
    daemon.said = tuple(replace(each, dirty_bytes=0) for each in daemon.said)
    assert daemon.json()[1]["clean"]  # nothing was in it
    daemon.said = tuple(replace(each, dirty_bytes=None) for each in daemon.said)
    code, found = daemon.json("--timeout", "20s")
    assert (code, found["outcome"]) == (1, "unflushed")  # nobody knows what is in it


def test_a_program_that_is_not_there_is_a_problem() -> None:
    child = drain_caches.Child("dm-3", "no-such-program-at-all")
    assert not child.runs()
    assert child.problem() == "dm-3: no-such-program-at-all: No such file or directory"
    child.leave()


def test_an_error_of_sync_is_told(daemon: Daemon) -> None:
    for name in ("go", "fails"):
        (daemon.here / name).touch()
    code, out, _ = daemon.run()
    assert code == 1 and daemon.named[-1] == "end"
    assert "not clean, sync failed" in out
    assert "sync: error syncing '/': Input/output error" in out


def test_a_release_by_somebody_else_is_told_and_the_rest_goes_on(ready: Daemon) -> None:
    ready.released = True
    code, out, _ = ready.run("--hold")
    assert code == 0 and out.count(
        "limits were released, by another command or because this client paused"
    ) == 1
    assert "limits stay" not in out and "end" not in ready.named


def test_counters_that_are_zeroed_meanwhile_count_on(daemon: Daemon) -> None:
    course = drain_module._DrainRun.__new__(drain_module._DrainRun)
    course._counted, course._written, course._rate = {}, {}, None
    course._begun = {"devices": ["sda"]}
    before: Dict[str, Any] = {}
    for time_s, total in ((1.0, 500), (2.0, 600), (3.0, 40)):
        row = {"name": "sda", "counters": {"written_bytes": total}}
        course._status = {"time_s": time_s, "devices": [row]}
        course._count(before)
        before = course._status
    assert course._written == {"sda": 140}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT is not ignored, as it is where a shell has the tests in its background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("words", [["--json"], ["--json", "--hold"]], ids=["", "hold"])
def test_ctrl_c_releases_and_does_not_wait_for_sync(daemon: Daemon, words: List[str]) -> None:
    client = subprocess.Popen(
        [sys.executable, "-m", "writebackd.cli.ctl", "--runtime-dir", str(daemon.here), "drain",
         *words],
        env={**os.environ, "PYTHONPATH": str(Path(ctl.__file__).parents[2])},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 20
    while "renew" not in daemon.named:
        assert time.monotonic() < deadline and client.poll() is None
        time.sleep(0.01)
    client.send_signal(signal.SIGINT)
    out, _ = client.communicate(timeout=20)
    assert client.returncode == drain_module.INTERRUPTED
    assert answer(out)["outcome"] == "interrupted" and daemon.named[-1] == "end"


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_children_are_started_leaves_none(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes_of_sda(daemon.here)
    begun: List["subprocess.Popen[str]"] = []
    popen = subprocess.Popen

    def interrupted(*args: Any, **more: Any) -> "subprocess.Popen[str]":
        begun.append(popen(*args, **more))
        os.kill(os.getpid(), signal.SIGINT)  # before anybody knows of it
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    code, _, _ = daemon.run()
    assert code == 130 and daemon.named == ["start", "renew", "end"] and len(begun) == 4
    assert [each.wait(timeout=20) for each in begun] == [-signal.SIGTERM] * 4


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.interrupted_later():
            os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pytest.fail("it was interrupted")
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_unknown_device_is_wrong_use_and_nothing_is_synced(daemon: Daemon) -> None:
    code, out, err = daemon.run("sdz")
    assert (code, out) == (2, "") and "known devices: sda" in err
    assert not (daemon.here / "called").exists()


def test_without_a_daemon_it_names_sync(run: Run, here: Path) -> None:
    code, out, err = run()
    assert (code, out) == (3, "") and "start it with" in err
    assert err.endswith("; `sync` writes the page cache out without it\n")
    assert not (here / "called").exists()


def test_a_daemon_that_goes_ends_it(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def once(runtime_dir: Path, verb: str, args: Any = None) -> Dict[str, Any]:
        if args is not None and args["order"] == "renew":
            raise NoDaemon("no daemon: start it with", 3)
        return request(runtime_dir, verb, args)

    monkeypatch.setattr(drain_module, "request", once)
    assert daemon.run()[0] == 3


def test_a_bar_is_as_full_as_much_is_written() -> None:
    course = drain_module._DrainRun.__new__(drain_module._DrainRun)
    course._most, course._rate, course._synced_s = 1.0, 20.0 * MIB, None
    course._begun = {"devices": []}
    for dirty, bar in ((100 * MIB, "-" * 20), (50 * MIB, "#" * 10 + "-" * 10), (0, "#" * 20)):
        course._status = {"memory": {
            "dirty_bytes": dirty, "writeback_bytes": 0, "time_to_clean_s": None}}  # fmt: skip
        assert course._progress(terminal=True).startswith(f"[{bar}] dirty (host)")


def test_the_request_is_checked_before_anything_is_done() -> None:
    with pytest.raises(RequestError, match="expected a list of names"):
        names_argument({"devices": ["sda", 3]}, "devices")
