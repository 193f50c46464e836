# SPDX-License-Identifier: GPL-2.0-or-later
"""doctor's checks on made-up hosts."""

from __future__ import annotations

import fcntl
import importlib.util
import os
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

import samples
from writebackd.actuate.ledger import Ledger, LeverEntry
from writebackd.actuate.watcher import take_watch
from writebackd.cli import doctor_checks
from writebackd.cli.doctor_checks import rivals
from writebackd.kernel.files import KernelFiles
from writebackd.report.status_answer import status_json
from writebackd.types.levers import VmLimits

MOUNTS = (
    "30 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    "31 24 0:12 / /sys/kernel/tracing rw - tracefs tracefs rw\n"
)


def host(root: Path, files: Dict[str, str]) -> KernelFiles:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return KernelFiles(root)


def texts(findings: List[Tuple[str, str]], level: str) -> str:
    return "\n".join(text for each, text in findings if each == level)


@pytest.mark.parametrize(
    "release, level",
    [
        ("6.18.1-amd64", "good"), ("5.10.0-32-amd64", "good"), ("6.1", "good"),
        ("5.4.0-1", "warning"), ("4.19.0", "warning"), ("7.0-rc1", "good"),
    ],
)  # fmt: skip
def test_kernel_version(tmp_path: Path, release: str, level: str) -> None:
    findings = list(doctor_checks.kernel(host(tmp_path, {}), release))
    assert f"Linux {release}" in texts(findings, level)


def test_a_kernel_with_everything(tmp_path: Path) -> None:
    files = host(tmp_path, {
        "/sys/kernel/btf/vmlinux": "", "/proc/self/mountinfo": MOUNTS,
        "/sys/class/bdi/8:0/strict_limit": "0", "/sys/class/bdi/8:0/max_bytes": "0",
    })  # fmt: skip
    findings = list(doctor_checks.kernel(files, "6.18.0"))
    assert {level for level, _ in findings} == {"good"}
    assert "cgroup2 on /sys/fs/cgroup" in texts(findings, "good")
    assert "tracefs on /sys/kernel/tracing" in texts(findings, "good")


def test_a_kernel_with_nothing(tmp_path: Path) -> None:
    findings = list(doctor_checks.kernel(host(tmp_path, {}), "6.1.0"))
    assert "CONFIG_DEBUG_INFO_BTF" in texts(findings, "warning")
    notes = texts(findings, "note")
    assert "tracefs is not mounted" in notes
    assert "cgroup2 is not mounted" in notes
    assert "only the global pair" in notes


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others are told so first")
def test_levers_that_cannot_be_written_block(tmp_path: Path) -> None:
    files = host(tmp_path, {"/proc/sys/vm/dirty_bytes": "0"})
    assert [level for level, _ in doctor_checks.privileges(files)] == ["good"]
    (tmp_path / "proc/sys/vm/dirty_bytes").unlink()
    assert [level for level, _ in doctor_checks.privileges(files)] == ["blocker"]


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_LIBBPF", "libbpf-that-is-not.so.1")
    monkeypatch.setattr(
        doctor_checks, "_MODULES", (("no_such_module", "python3-none", "x is worse"),)
    )
    findings = list(doctor_checks.libraries())
    assert "apt install libbpf1" in texts(findings, "warning")
    assert texts(findings, "note") == "no python3-none: x is worse"


def test_what_is_said_to_be_lost_without_a_library_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    notes = texts(list(doctor_checks.libraries()), "note")
    for name in ("psutil", "rich"):  # test_top.py
        assert f"no python3-{name}: `writebackctl top` does not run" in notes


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the probe is not tried without")
def test_a_probe_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libbpf is from another planet")

    monkeypatch.setattr("importlib.import_module", broken)
    assert list(doctor_checks.probe()) == [
        ("warning", "cannot try the BPF probe: libbpf is from another planet")
    ]


def test_what_a_daemon_left_behind(tmp_path: Path) -> None:
    assert texts(list(doctor_checks.daemon(tmp_path)), "note") == "writebackd is not running"
    (tmp_path / "ledger.json").write_text("{}")
    assert "writebackctl restore" in texts(list(doctor_checks.daemon(tmp_path)), "warning")
    assert take_watch(tmp_path)
    assert "the watcher restores them" in texts(list(doctor_checks.daemon(tmp_path)), "note")
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "has no socket" in texts(list(doctor_checks.daemon(tmp_path)), "warning")
    assert "has no socket" not in texts(list(doctor_checks.daemon(tmp_path)), "warning")


def test_levers_that_a_daemon_left_behind_are_named(tmp_path: Path) -> None:
    entry = LeverEntry("pace", "/system.slice/x.service", "8:0", 0, "max", ("1000000",))
    ledger = Ledger(2, "boot", 1, 0.0, "restore", VmLimits(0, 20, 0, 10), (), (entry,))
    ledger.save(tmp_path / "ledger.json")
    found = texts(list(doctor_checks.daemon(tmp_path)), "warning")
    assert "and other levers (pace /system.slice/x.service 8:0)" in found


def test_levers_of_a_daemon_that_runs_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shown, count in ((samples.levers(), 4), (samples.guard(), 0)):
        answer = status_json(shown)
        monkeypatch.setattr(doctor_checks, "request", lambda *_, answer=answer, **more: answer)
        found = [text for level, text in doctor_checks.daemon(tmp_path) if level == "good"]
        held = [text for text in found if text.startswith("it sets")]
        assert found[0].startswith("writebackd is running") and len(held) == count
        assert not count or "it sets queue sda: nr_requests 8 (before 64)" in found


def test_what_the_probe_of_a_daemon_lost_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = status_json(samples.guard())
    monkeypatch.setattr(doctor_checks, "request", lambda *_, **more: answer)
    assert "probe lost 3 syncs whose end was missed" in texts(
        list(doctor_checks.daemon(tmp_path)), "note"
    )
    answer["probe"]["lost"] = []
    assert "no probe event lost" in texts(list(doctor_checks.daemon(tmp_path)), "good")


def test_a_daemon_without_a_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Dict[str, Any] = {
        "mode": "enforce", "policy": "default", "lease": {"watcher_pid": None},
        "probe": {"backend": "libbpf"}, "self": {"rss_bytes": None},  # an older one
    }  # fmt: skip
    monkeypatch.setattr(doctor_checks, "request", lambda *args, **more: answer)
    assert "no watcher: limits will not" in texts(list(doctor_checks.daemon(tmp_path)), "warning")
    answer["lease"] = {"watcher_pid": 7}
    assert texts(list(doctor_checks.daemon(tmp_path)), "warning") == ""


def test_nobody_else(tmp_path: Path) -> None:
    files = host(tmp_path, {
        "/etc/sysctl.d/10-net.conf": "net.core.somaxconn = 1\n# vm.dirty_ratio = 5\n",
        "/etc/sysctl.conf": "; vm.dirty_bytes=1\nvm.dirty_writeback_centisecs = 100\n",
    })  # fmt: skip
    assert [level for level, _ in rivals(files)] == ["good"]


def test_sysctl_lines_are_found_with_their_place(tmp_path: Path) -> None:
    files = host(tmp_path, {
        "/etc/sysctl.d/90-db.conf": "# tuned by hand\n\nvm.dirty_bytes = 15728640\n",
        "/usr/lib/sysctl.d/50-dist.conf": "-vm/dirty_background_ratio=5\n",
        "/etc/sysctl.conf": "  vm.dirty_ratio=40\n",
        "/etc/sysctl.d/README": "vm.dirty_ratio = 1\n",
        # masked: the same name in /etc
        "/usr/lib/sysctl.d/90-db.conf": "vm.dirty_ratio = 2\n",
    })  # fmt: skip
    (tmp_path / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    notes = texts(list(rivals(files)), "note").splitlines()
    assert len(notes) == 3
    assert (
        "vm.dirty_background_ratio=5 is set at boot (/usr/lib/sysctl.d/50-dist.conf:1)" in notes[0]
    )
    assert "vm.dirty_bytes=15728640 is set at boot (/etc/sysctl.d/90-db.conf:3)" in notes[1]
    assert "vm.dirty_ratio=40 is set at boot (/etc/sysctl.d/99-sysctl.conf:1)" in notes[2]


def test_tuned_profiles_are_followed_through_their_includes(tmp_path: Path) -> None:
    files = host(tmp_path, {
        "/etc/tuned/active_profile": "mine\n", "/proc/900/comm": "tuned\n",
        "/etc/tuned/mine/tuned.conf": "[main]\ninclude=throughput-performance mine\n",
        "/usr/lib/tuned/throughput-performance/tuned.conf":
            "[main]\nsummary=x\n[sysctl]\nvm.dirty_ratio = 40\n",
        "/usr/lib/tuned/other/tuned.conf": "[vm]\ndirty_ratio=10\n",
    })  # fmt: skip
    findings = list(rivals(files))
    assert "vm.dirty_ratio=40" in texts(findings, "warning")
    assert "/usr/lib/tuned/throughput-performance/tuned.conf:4" in texts(findings, "warning")
    assert len(findings) == 1


def test_newer_places_and_section(tmp_path: Path) -> None:
    files = host(tmp_path, {
        "/etc/tuned/active_profile": "other gone ../../escape\n", "/proc/9/comm": "tuned\n",
        "/usr/lib/tuned/profiles/other/tuned.conf": "[vm]\ndirty_bytes=40%\n",
    })  # fmt: skip
    assert "vm.dirty_bytes=40%" in texts(list(rivals(files)), "warning")
