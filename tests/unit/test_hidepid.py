# SPDX-License-Identifier: GPL-2.0-or-later
"""/proc with hidepid=, and access to kernel files."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

import samples
from writebackd.cli import doctor_checks
from writebackd.cli.client import NoDaemon
from writebackd.cli.exit_codes import BAD_NEWS
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.hidepid import HidePid, hiding, unseen
from writebackd.policy.load import load_all
from writebackd.policy.match import judge
from writebackd.policy.rules import HostFacts
from writebackd.report.status_answer import status_json


def host(root: Path, *options: str, powers: int = 1 << 21) -> KernelFiles:
    """With these mounts on /proc, one over the other; CAP_SYS_ADMIN alone."""
    mounts = ["22 1 8:1 / / rw - ext4 /dev/sda1 rw"]
    mounts += [f"{n} 22 0:{n} / /proc rw,nosuid shared:5 - proc proc {option}"
               for n, option in enumerate(options, 23)]  # fmt: skip
    mounts += ["90 22 0:90 / /srv/x\v/proc rw - proc proc rw,hidepid=invisible"]
    for name, text in (("mountinfo", "\n".join(mounts)), ("status", f"CapEff:\t{powers:016x}")):
        path = root / "proc/self" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return KernelFiles(root)


@pytest.mark.parametrize(("options", "found"), [
    (["rw"], None),
    (["rw,hidepid=off"], None),
    (["rw,hidepid=invisible"], "hidepid=invisible"),
    (["rw,gid=27,hidepid=noaccess"], "hidepid=noaccess,gid=27"),
    (["rw,gid=27,hidepid=2"], "hidepid=2,gid=27"),  # before Linux 5.8
    (["rw,gid=27"], None),
    (["rw,hidepid=ptraceable", "rw"], None),
    (["rw", "rw,hidepid=ptraceable"], "hidepid=ptraceable"),
    ([], None),
])  # fmt: skip
def test_the_last_mount_on_proc_tells(
    tmp_path: Path, options: "list[str]", found: Optional[str]
) -> None:
    assert hiding(host(tmp_path, *options)) == found


def test_who_is_in_the_group_or_may_trace_sees_all(tmp_path: Path) -> None:
    assert unseen(None) is None
    assert unseen("hidepid=invisible") is None  # the group is root's
    assert unseen("hidepid=invisible,gid=27", (0, 27)) is None
    assert "SupplementaryGroups=27" in (unseen("hidepid=noaccess,gid=27") or "")
    assert "CapabilityBoundingSet=CAP_SYS_PTRACE" in (unseen("hidepid=4,gid=0") or "")
    files = host(tmp_path, "rw,hidepid=ptraceable")
    assert HidePid(files).unseen() is not None
    host(tmp_path, "rw,hidepid=ptraceable", powers=1 << 19)
    assert HidePid(files).unseen() is None


def test_a_remount_is_seen_within_a_minute(tmp_path: Path) -> None:
    now_s = 0.0
    hidepid = HidePid(host(tmp_path, "rw"), lambda: now_s)
    assert hidepid.option() is None
    host(tmp_path, "rw,hidepid=ptraceable")
    now_s = 59.0
    assert hidepid.option() is None
    now_s = 60.0
    assert hidepid.option() == "hidepid=ptraceable"


def test_what_users_see_is_what_the_host_shows(tmp_path: Path) -> None:
    """systemd 252 gives the unit a /proc of its own, which hides nothing."""
    hosts = host(tmp_path, "rw,hidepid=ptraceable").read("/proc/self/mountinfo")
    files = host(tmp_path, "rw")
    (tmp_path / "proc/1").mkdir()
    (tmp_path / "proc/1/mountinfo").write_text(hosts + "\n")
    hidepid = HidePid(files)
    assert (hidepid.option(), hidepid.unseen()) == ("hidepid=ptraceable", None)


HIDDEN = unseen("hidepid=ptraceable")


def test_status_says_what_is_not_seen() -> None:
    assert status_json(samples.guard())["processes_unseen"] is None
    told = status_json(replace(samples.guard(), unseen=HIDDEN))
    assert told["processes_unseen"] == HIDDEN
    assert HIDDEN in told["warnings"]


@pytest.mark.parametrize("runs", [False, True])
def test_doctor_says_what_the_daemon_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """Of one that runs, what it says itself: a drop-in may have given it the right."""
    said: Optional[str] = None

    def request(*_: object, **__: object) -> "dict[str, Optional[str]]":
        if not runs:
            raise NoDaemon("none", BAD_NEWS)
        return {"processes_unseen": said}

    monkeypatch.setattr("writebackd.cli.client.request", request)
    files = host(tmp_path, "rw,hidepid=ptraceable", powers=(1 << 40) - 1)
    ((level, text),) = doctor_checks.processes(files, tmp_path)
    assert HIDDEN is not None
    assert (level, text.startswith(HIDDEN)) == (("good", False) if runs else ("note", True))
    said = HIDDEN
    if runs:
        assert list(doctor_checks.processes(files, tmp_path)) == [("warning", HIDDEN)]
    runs = False
    ((level, text),) = doctor_checks.processes(host(tmp_path, "rw"), tmp_path)
    assert level == "good"


def test_services_that_may_be_hidden_are_not_known() -> None:
    policies = {each.policy.name: each.policy for each in load_all(root=Path("/nonexistent"))}
    facts = HostFacts(units=("a.service",), processes=("init",), unseen="hidepid=ptraceable")
    (finding,) = judge(policies["etcd"], facts).findings
    assert finding.holds is None
    assert finding.evidence == "none that can be seen runs (/proc is mounted hidepid=ptraceable)"


@pytest.fixture
def files(tmp_path: Path) -> KernelFiles:
    (tmp_path / "sys").mkdir()
    return KernelFiles(tmp_path)


@pytest.mark.parametrize("root", [Path("/"), Path("/fake"), Path("/fake/")])
def test_names_are_absolute_and_stay_below_the_root(root: Path) -> None:
    assert KernelFiles(root).path("/proc/vmstat") == root / "proc/vmstat"


@pytest.mark.parametrize("raw, text", [
    (b"  4096\n", "4096"),
    (b"disk-\xff\n", os.fsdecode(b"disk-\xff")),  # bytes that are no UTF-8 survive
    (b"x" * 300_000, "x" * 300_000),  # more than one read
])  # fmt: skip
def test_text_comes_without_white_space(files: KernelFiles, raw: bytes, text: str) -> None:
    files.path("/sys/x").write_bytes(raw)
    assert files.read("/sys/x") == text


def test_a_pipe_is_read_to_its_end_over_short_reads(files: KernelFiles) -> None:
    """seq_files give a page at a time; so does a pipe with two writes."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"one ")
        os.write(writer, b"two\n")
        os.close(writer)
        files.path("/sys/x").symlink_to(f"/proc/self/fd/{reader}")
        assert files.read("/sys/x") == "one two"
    finally:
        os.close(reader)


def test_an_integer_error_names_the_file(files: KernelFiles) -> None:
    files.path("/sys/x").write_text("4096\n")
    assert files.read_int("/sys/x") == 4096
    files.path("/sys/x").write_text("many")
    with pytest.raises(ValueError, match="/sys/x: expected an integer, found 'many'"):
        files.read_int("/sys/x")


def test_missing_things(files: KernelFiles) -> None:
    assert files.try_read("/sys/none") is None
    assert files.listdir("/sys/none") == []
    assert files.readlink("/sys/none") is None
    with pytest.raises(FileNotFoundError):
        files.read("/sys/none")


def test_write_replaces_the_value(files: KernelFiles) -> None:
    files.path("/sys/x").write_text("1073741824\n")
    files.write("/sys/x", "15728640")
    assert files.read("/sys/x") == "15728640"


def test_write_never_creates_a_lever(files: KernelFiles) -> None:
    with pytest.raises(FileNotFoundError):
        files.write("/sys/max_bytes", "1")
    assert files.listdir("/sys") == []


def test_write_passes_the_errno_on(files: KernelFiles) -> None:
    files.path("/sys/full").symlink_to("/dev/full")
    with pytest.raises(OSError) as failure:
        files.write("/sys/full", "1")
    assert failure.value.errno == errno.ENOSPC
