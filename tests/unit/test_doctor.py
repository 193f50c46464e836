# SPDX-License-Identifier: GPL-2.0-or-later
"""doctor's checks on made-up hosts."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest

import samples
from writebackd.actuate.ledger import Ledger, LeverEntry
from writebackd.actuate.watcher import take_watch
from writebackd.cli import doctor_checks
from writebackd.kernel import bcc_programs, libbpf, probe
from writebackd.kernel.files import KernelFiles
from writebackd.report.status_answer import status_json
from writebackd.types.levers import VmLimits
from writebackd.types.samples import ProbeInfo

MOUNTS = (
    "30 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    "31 24 0:12 / /sys/kernel/tracing rw - tracefs tracefs rw\n"
)


def host(root: Path, files: Dict[str, str]) -> KernelFiles:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(f"../{text[3:]}")
        else:
            path.write_text(text)
    return KernelFiles(root)


def texts(findings: List[Tuple[str, str]], level: str) -> str:
    return "\n".join(text for each, text in findings if each == level)


@pytest.mark.parametrize("release, level", [
    ("6.18.1-amd64", "good"), ("5.10.0-32-amd64", "good"), ("6.1", "good"),
    ("5.4.0-1", "warning"), ("4.19.0", "warning"), ("7.0-rc1", "good"),
])  # fmt: skip
def test_kernel_version(tmp_path: Path, release: str, level: str) -> None:
    findings = list(doctor_checks.kernel(host(tmp_path, {}), release))
    assert f"Linux {release}" in texts(findings, level)
    findings = list(doctor_checks.kernel(host(tmp_path, {}), f"{release}-microsoft-WSL2"))
    assert "WSL2: systemd takes it for a container" in texts(findings, "warning")


def test_a_kernel_with_everything(tmp_path: Path) -> None:
    files = host(tmp_path, {
        "/sys/kernel/btf/vmlinux": "", "/proc/self/mountinfo": MOUNTS,
        "/sys/class/bdi/8:0/strict_limit": "0", "/sys/class/bdi/8:0/max_bytes": "0",
    })  # fmt: skip
    findings = list(doctor_checks.kernel(files, "6.18.0"))
    assert {level for level, _ in findings} == {"good"}
    assert "cgroup2 on /sys/fs/cgroup" in texts(findings, "good")
    assert "tracefs on /sys/kernel/tracing" in texts(findings, "good")


@pytest.mark.parametrize("mount, controllers, said", [
    ("/tank rw - zfs tank rw", "", "/tank is not held"),
    ("/mnt rw - virtiofs x rw", "", "not held: /mnt"),
    ("/mnt rw - fuse.juicefs x rw", "", "not held: /mnt"),
    ("/run/user/1/doc rw - fuse.portal x rw", "", ""),
    ("/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw", "", "no pacing"),
    ("/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw", "cpu io memory", ""),
])  # fmt: skip
def test_what_is_not_held_or_paced(
    tmp_path: Path, mount: str, controllers: str, said: str
) -> None:
    files = host(tmp_path, {
        "/proc/self/mountinfo": f"30 1 0:41 / {mount}\n",
        "/sys/fs/cgroup/unified/cgroup.controllers": controllers,
    })  # fmt: skip
    notes = texts(list(doctor_checks.kernel(files, "6.18.0")), "note")
    assert said in notes and ("held" in notes or "pacing" in notes) is bool(said)


def test_a_kernel_with_nothing(tmp_path: Path) -> None:
    findings = list(doctor_checks.kernel(host(tmp_path, {}), "6.1.0"))
    notes = texts(findings, "note")
    assert "tracefs is not mounted" in notes
    assert "cgroup2 is not mounted" in notes
    assert "only the global pair" in notes


def test_a_runtime_directory_on_a_disk_is_told(tmp_path: Path) -> None:
    directory, link = tmp_path / "writebackd", tmp_path / "link"
    link.symlink_to(directory)
    root = "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    memory = f"25 24 0:23 / {tmp_path} rw - tmpfs tmpfs rw\n"

    def found(mounts: str, path: Path) -> List[Tuple[str, str]]:
        files = host(tmp_path / "host", {"/proc/self/mountinfo": mounts})
        return list(doctor_checks.runtime_directory(files, path))

    ((level, text),) = found(root, link)
    assert level == "warning" and "is on ext4 (/), not in memory" in text
    assert not found(root + memory, link) and not found("", link)
    # The later mount hides the earlier one; a name that only begins alike is another place.
    assert found(root + memory + f"26 24 8:2 / {tmp_path} rw - xfs /dev/sdb rw\n", directory)
    assert found(root + memory, Path(f"{tmp_path}-other"))


@pytest.mark.parametrize("headers", [True, False], ids=["headers", "no headers"])
@pytest.mark.parametrize("bcc", [True, False], ids=["bcc", "no bcc"])
def test_without_types_the_packages_that_bcc_lacks_are_named(
    headers: bool, bcc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = os.uname().release
    needed = {f"no linux-headers-{release}": headers, "no python3-bpfcc": bcc}
    monkeypatch.setattr(bcc_programs, "_MODULES", tmp_path / "modules")
    monkeypatch.setattr(bcc_programs, "_KHEADERS", tmp_path / "none")
    monkeypatch.setattr(bcc_programs, "_FIND_BCC", f"raise SystemExit({not bcc:d})")
    monkeypatch.setattr(bcc_programs, "PYTHON", sys.executable)
    if headers:
        kconfig = tmp_path / "modules" / release / "build/include/linux/kconfig.h"
        kconfig.parent.mkdir(parents=True)
        kconfig.touch()
    findings = list(doctor_checks.kernel(host(tmp_path, {}), "6.1.0"))
    warnings = texts(findings, "warning")
    assert [words in warnings for words in needed] == [not there for there in needed.values()]
    assert ("CONFIG_DEBUG_INFO_BTF" in warnings) is not (headers and bcc)
    assert ("bcc compiles" in texts(findings, "note")) is (headers and bcc)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others are told so first")
def test_levers_that_cannot_be_written_block(tmp_path: Path) -> None:
    files = host(tmp_path, {"/proc/sys/vm/dirty_bytes": "0"})
    assert [level for level, _ in doctor_checks.privileges(files)] == ["good"]
    (tmp_path / "proc/sys/vm/dirty_bytes").unlink()
    assert [level for level, _ in doctor_checks.privileges(files)] == ["blocker"]


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libbpf, "SYSTEM", "libbpf-that-is-not.so.1")
    monkeypatch.setattr(
        doctor_checks, "_MODULES", (("no_such_module", "python3-none", "x is worse"),)
    )
    findings = list(doctor_checks.libraries())
    assert "install libbpf1, libbpf or writebackd-libbpf" in texts(findings, "warning")
    assert texts(findings, "note") == "no python3-none: x is worse"


def test_the_library_of_the_package_is_used_where_the_system_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = texts(list(doctor_checks.libraries()), "good")
    assert "libbpf.so.1 loads, the system's" in found
    monkeypatch.setattr(libbpf, "BUNDLED", Path("libbpf.so.1"))
    monkeypatch.setattr(libbpf, "SYSTEM", "libbpf-that-is-not.so.1")
    found = texts(list(doctor_checks.libraries()), "good")
    assert "loads, bundled with writebackd" in found


def test_what_is_said_to_be_lost_without_a_library_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    notes = texts(list(doctor_checks.libraries()), "note")
    for name in ("psutil", "rich"):  # test_top.py
        assert f"no python3-{name}: `writebackctl top` does not run" in notes


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the probe is not tried without")
def test_a_probe_that_breaks_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libbpf is from another planet")

    monkeypatch.setattr("importlib.import_module", broken)
    ((level, text),) = doctor_checks.probe(tmp_path)
    assert level == "warning" and "BPF probe: libbpf is from another planet" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the probe is not tried without")
def test_hooks_are_those_of_a_daemon_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been started with a --fsync-hook."""
    here, forced = (
        ProbeInfo("libbpf", "tp_btf: block_rq_complete", hook, passed_over=why, refused=("x (no)",))
        for hook, why in (("fentry: ext4_sync_file", None),
                          ("kprobe: ext4_sync_file", "fentry not available for xfs"))
    )  # fmt: skip
    monkeypatch.setattr(probe, "tried", lambda: here)
    tried = list(doctor_checks.probe(tmp_path))
    assert ("good", "fsync: fentry: ext4_sync_file") in tried
    assert ("note", "refused by this kernel: x (no)") in tried

    status = status_json(replace(samples.guard(), probe=forced))
    monkeypatch.setattr("writebackd.cli.client.request", lambda *_, **__: status)
    told = list(doctor_checks.probe(tmp_path))
    assert ("good", "fsync: kprobe: ext4_sync_file; fentry not available for xfs") in told
    assert "fentry:" not in str(told)


def test_what_a_daemon_left_behind(tmp_path: Path) -> None:
    def found(level: str) -> str:
        return texts(list(doctor_checks.daemon(KernelFiles(), tmp_path)), level)

    assert found("note") == "writebackd is not running"
    entry = LeverEntry("pace", "/system.slice/x.service", "8:0", 0, "max", ("1000000",))
    ledger = Ledger("boot", 1, 0.0, "restore", VmLimits(0, 20, 0, 10), (), (entry,))
    ledger.save(tmp_path / "ledger.json")
    assert "and other levers (pace /system.slice/x.service 8:0)" in found("warning")
    (tmp_path / "ledger.json").write_text("{}")
    assert "writebackctl restore" in found("warning")
    assert take_watch(tmp_path)
    assert "the watcher restores them" in found("note")
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "has no socket" in found("warning")
    assert "has no socket" not in found("warning")


Found = Callable[[Any, str], List[str]]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    """What the check says at a level of a daemon that answers so to `status`."""

    def check(answer: Any, level: str) -> List[str]:
        monkeypatch.setattr(doctor_checks, "request", lambda *_, **more: answer)
        return texts(list(doctor_checks.daemon(KernelFiles(), tmp_path)), level).splitlines()

    return check


def test_levers_of_a_daemon_that_runs_are_named(found: Found) -> None:
    for shown, count in ((samples.levers(), 4), (samples.guard(), 0)):
        said = found(status_json(shown), "good")
        held = [text for text in said if text.startswith("it sets")]
        assert said[0].startswith("writebackd is running") and len(held) == count
        assert not count or "it sets queue sda: nr_requests 8 (before 64)" in held


def test_what_the_probe_of_a_daemon_lost_is_told(found: Found) -> None:
    answer = status_json(samples.guard())
    assert "probe lost 3 syncs whose end was missed" in found(answer, "note")
    answer["probe"]["lost"] = []
    assert "no probe event lost" in found(answer, "good")


def test_a_floor_above_what_a_cache_takes_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 024 CPUs dirty 64 MiB before the kernel looks at a limit."""
    answer = status_json(samples.guard())
    row = answer["devices"][0]
    monkeypatch.setattr(doctor_checks, "request", lambda *_, **more: answer)
    files = host(tmp_path, {
        "/proc/meminfo": "MemTotal: 1048576 kB\n", "/sys/devices/system/cpu/online": "0-1023\n",
    })  # fmt: skip
    for capacity, warned in ((64 << 20, False), (32 << 20, True), (None, False)):
        row["write_cache"]["capacity_bytes"] = capacity
        warnings = texts(list(doctor_checks.daemon(files, tmp_path)), "warning")
        assert ("no limit below 64M works" in warnings) is warned
        assert ("write cache holds 32M" in warnings) is warned


def test_a_daemon_without_a_watcher(found: Found) -> None:
    answer: Dict[str, Any] = {
        "mode": "enforce", "policy": "default", "lease": {"watcher_pid": None},
        "probe": {"backend": "libbpf", "lost": []}, "self": {"rss_bytes": None},
        "levers": [], "devices": [],
    }  # fmt: skip
    assert "watcher not running (see log): limits are not restored" in found(answer, "warning")[0]
    answer["lease"] = {"watcher_pid": 7}
    assert found(answer, "warning") == []


@pytest.mark.parametrize("there, level, wanted", [
    ({"/etc/sysctl.d/10-net.conf": "net.core.somaxconn = 1\n# vm.dirty_ratio = 5\n",
      "/etc/sysctl.conf": "; vm.dirty_bytes=1\nvm.dirty_writeback_centisecs = 100\n"},
     "good", ["no other program sets vm.dirty_*"]),
    ({"/etc/sysctl.d/90-db.conf": "# tuned by hand\n\nvm.dirty_bytes = 15728640\n",
      "/usr/lib/sysctl.d/50-dist.conf": "-vm/dirty_background_ratio=5\n",
      "/etc/sysctl.conf": "  vm.dirty_ratio=40\n", "/etc/sysctl.d/99-sysctl.conf": "-> sysctl.conf",
      "/etc/sysctl.d/README": "vm.dirty_ratio = 1\n",
      # masked: the same name in /etc
      "/usr/lib/sysctl.d/90-db.conf": "vm.dirty_ratio = 2\n"},
     "note",
     ["vm.dirty_background_ratio=5 is set at boot (/usr/lib/sysctl.d/50-dist.conf:1)",
      "vm.dirty_ratio=40 is set at boot (/etc/sysctl.d/99-sysctl.conf:1)"]),
    # Profiles of tuned, through their includes; then in newer places.
    ({"/etc/tuned/active_profile": "mine\n", "/proc/900/comm": "tuned\n",
      "/etc/tuned/mine/tuned.conf": "[main]\ninclude=throughput-performance, mine\n",
      "/usr/lib/tuned/throughput-performance/tuned.conf":
          "[main]\nsummary=x\n[sysctl]\nvm.dirty_ratio = 40\n",
      "/usr/lib/tuned/other/tuned.conf": "[vm]\ndirty_ratio=10\n"},
     "warning",
     ["vm.dirty_ratio=40 (/usr/lib/tuned/throughput-performance/tuned.conf:4)"]),
    ({"/etc/tuned/active_profile": "other gone ../../escape\n", "/proc/9/comm": "tuned\n",
      "/usr/lib/tuned/profiles/other/tuned.conf": "[vm]\ndirty_bytes=40%\n"},
     "warning",
     ["includes gone, which cannot be resolved", "includes ../../escape, which cannot be resolved",
      "sets vm.dirty_ratio=40 (/usr/lib/tuned/profiles/other/tuned.conf:2)"]),
])  # fmt: skip
def test_who_else_sets_the_limits(
    tmp_path: Path, there: Dict[str, str], level: str, wanted: List[str]
) -> None:
    found = list(doctor_checks.rivals(host(tmp_path, there)))
    assert [each for each, _ in found] == [level] * len(wanted)
    for (_, text), words in zip(found, wanted):
        assert words in text, text
