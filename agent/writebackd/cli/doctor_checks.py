# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of doctor: kernel, rights, libraries, probe, policies, other tools."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.actuate.ledger import LedgerError, load
from writebackd.actuate.lock import is_locked
from writebackd.cli.client import NoDaemon, request, status_of
from writebackd.cli.exit_codes import CommandError
from writebackd.cli.restore import is_watched
from writebackd.cli.status_screen import lever_lines
from writebackd.control.device_decision import kernel_floor_bytes
from writebackd.kernel import libbpf
from writebackd.kernel.bcc_programs import missing
from writebackd.kernel.conflicting_tools import find_conflicting_tools
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.hidepid import hiding, unseen
from writebackd.kernel.mounts import mount_of, read_mounts
from writebackd.kernel.topology import scan
from writebackd.kernel.vm import host_info
from writebackd.paths import LEDGER, LOCK, RAID
from writebackd.policy import PolicyError
from writebackd.policy.load import load_all, misplaced, search_dirs, unsafe
from writebackd.storage import report_file
from writebackd.storage.backing_watch import is_stale, look_at_arrays, slept
from writebackd.storage.raid_tools import installed
from writebackd.storage.report_file import CollectorReport
from writebackd.storage.tool_output import Controller, ToolError, Volume
from writebackd.types.storage import CacheMode, Device, Protection

# level (good, note, warning, blocker) and what was found
Finding = Tuple[str, str]

# The oldest kernel that the CO-RE object is meant for (atomics, task storage).
_OLDEST = (5, 10)
TIMER = "writebackd-raid.timer"
_SHARES = (
    "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "lustre", "beegfs", "afs", "virtiofs", "vboxsf",
    "prl_fs", "orangefs", "coda", *(f"fuse.{name}" for name in (
        "glusterfs", "sshfs", "ceph-fuse", "rclone", "s3fs", "juicefs", "gcsfuse", "mount-s3",
        "mountpoint-s3", "blobfuse", "blobfuse2", "seaweedfs", "mfs", "moosefs", "curlftpfs",
        "goofys", "lizardfs", "vmhgfs-fuse", "mergerfs")),
)  # fmt: skip
_SYSTEMCTL_S = 5.0
_MODULES = (
    ("pyroute2", "python3-pyroute2", "`writebackctl top` shows no block-IO waits"),
    ("psutil", "python3-psutil", "`writebackctl top` does not run"),
    ("rich", "python3-rich", "`writebackctl top` does not run"),
)


def findings(runtime_dir: Path) -> List[Finding]:
    files = KernelFiles()
    return [
        *privileges(files),
        *kernel(files, os.uname().release),
        *libraries(),
        *probe(runtime_dir),
        *runtime_directory(files, runtime_dir),
        *daemon(files, runtime_dir),
        *processes(files, runtime_dir),
        *raid(files),
        *policies(devices=scan(files)),
        *rivals(files),
    ]


def privileges(files: KernelFiles) -> Iterator[Finding]:
    lever = files.path("/proc/sys/vm/dirty_bytes")
    if os.geteuid() != 0:
        yield "warning", "not root: some checks are skipped; the daemon needs uid 0"
    elif not os.access(lever, os.W_OK):
        yield "blocker", f"{lever} is not writable: a container, or ProtectKernelTunables=yes"
    else:
        yield "good", "uid 0, the limits are writable"


def kernel(files: KernelFiles, release: str) -> Iterator[Finding]:
    version = tuple(int(part) for part in release.split("-", 1)[0].split(".")[:2] if part.isdigit())
    if version < _OLDEST:
        yield "warning", f"Linux {release}: older than 5.10, untested"
    else:
        yield "good", f"Linux {release}"
    if "microsoft" in release:
        yield "warning", (
            "WSL2: systemd takes it for a container, so the unit does not start: run `sudo"
            " writebackd` in a terminal; disks of Windows (/mnt/c) are not seen"
        )
    if files.path("/sys/kernel/btf/vmlinux").exists():
        yield "good", "kernel types (BTF) available"
    elif lacking := missing():
        yield "warning", (
            f"no kernel types (BTF), and no {' and no '.join(lacking)} to compile the probe without"
            " them: only disk statistics, no fsync latency; install these, then `systemctl restart"
            " writebackd`, or use a kernel with CONFIG_DEBUG_INFO_BTF=y"
        )
    else:
        yield "note", "no kernel types (BTF): bcc compiles the probe with the kernel's headers"
    lockdown = re.search(r"\[(.*?)\]", files.try_read("/sys/kernel/security/lockdown") or "")
    if lockdown and lockdown[1] == "confidentiality":
        yield "warning", (
            "lockdown=confidentiality: the kernel refuses kprobes, and reads of its memory by BPF;"
            " only hooks with types (tp_btf, fentry) can work; boot with lockdown=integrity"
        )
    elif lockdown and lockdown[1] == "integrity":
        yield "note", "lockdown=integrity: BPF may read, and nothing that is needed is refused"
    mounts = {mount.fstype: mount.mountpoint for mount in read_mounts(files)}
    yield _mounted(mounts, "tracefs", "tracepoint names cannot be resolved")
    yield _mounted(mounts, "cgroup2", "writers are shown by process, not by unit")
    of_v2 = mounts.get("cgroup2", "/sys/fs/cgroup")
    if of_v2 != "/sys/fs/cgroup" and "io" not in (
        files.try_read(f"{of_v2}/cgroup.controllers") or ""
    ).split():
        yield "note", f"no pacing: io is a controller of cgroup v1, so {of_v2} has no io.max"
    if "zfs" in mounts:
        yield "note", f"{mounts['zfs']} is not held: zfs has dirty data in memory of its own"
    shares = [mount.mountpoint for mount in read_mounts(files) if mount.fstype in _SHARES]
    if shares:
        yield "note", (
            f"network filesystems are not held: {', '.join(shares)}; they count against the host's"
            " limit, and get none of their own (docs/explanation/faq.md shows how to set one)"
        )
    bdis = [f"/sys/class/bdi/{name}" for name in files.listdir("/sys/class/bdi")]
    levers = ("strict_limit", "max_bytes")
    if all(any(files.path(f"{bdi}/{lever}").exists() for bdi in bdis) for lever in levers):
        yield "good", "per-device limits available (bdi strict_limit, max_bytes)"
    else:
        yield "note", "no per-device limits on this kernel: only the global pair"


def _mounted(mounts: Mapping[str, str], kind: str, without: str) -> Finding:
    if kind in mounts:
        return "good", f"{kind} on {mounts[kind]}"
    return "note", f"{kind} is not mounted: {without}"


def libraries() -> Iterator[Finding]:
    try:
        _, whose = libbpf.load()
        yield "good", f"{libbpf.SYSTEM} loads, {whose}"
    except OSError as error:
        yield "warning", f"{error}; without it only disk statistics, no fsync latency"
    for module, package, without in _MODULES:
        if importlib.util.find_spec(module) is None:
            yield "note", f"no {package}: {without}"
        else:
            yield "good", f"{package} found"


def probe(runtime_dir: Path) -> Iterator[Finding]:
    """The hooks of the running daemon, or those that a daemon would get, found by trying."""
    status = status_of(runtime_dir, 2.0)
    if status is not None:
        yield from _hooks(status["probe"])
        return
    if os.geteuid() != 0:
        return
    try:
        # Imported only here: whatever is wrong with the probe is a finding, not the end.
        info = importlib.import_module("writebackd.kernel.probe").tried()
    except Exception as error:
        yield "warning", (
            f"cannot use the BPF probe: {error}; only disk statistics, no fsync latency"
        )
        return
    yield from _hooks(asdict(info))
    yield "good", f"BPF maps: {info.map_bytes / 1024:.0f} KiB"


def rivals(files: KernelFiles) -> Iterator[Finding]:
    tools = find_conflicting_tools(files)
    yield from ((each.level, each.text) for each in tools)
    if not tools:
        yield "good", "no other program sets vm.dirty_* (tuned, other agents, files read at boot)"


def policies(
    config_dir: Optional[Path] = None, devices: Sequence[Device] = ()
) -> Iterator[Finding]:
    """Errors in policy files: a daemon without --policy skips such policies."""
    try:
        loaded = load_all(config_dir)
        wrong = [line for each in loaded for line in each.problems]
        wrong += [line for each in loaded for line in unsafe(each.policy.files)]
        wrong += misplaced(search_dirs(config_dir))
        wrong += [line for each in loaded for line in each.policy.unresolved(devices)]
    except PolicyError as error:
        wrong = list(error.messages)
    yield from (("warning", f"policy: {line}") for line in dict.fromkeys(wrong))


def daemon(files: KernelFiles, runtime_dir: Path) -> Iterator[Finding]:
    ledger = runtime_dir / LEDGER
    try:
        status = request(runtime_dir, "status", timeout_s=2.0)
        yield "good", f"writebackd is running: {status['mode']}, policy {status['policy']}"
        yield "good", (
            f"memory: {formats.size(status['self']['rss_bytes'])} resident, locked so that the"
            " daemon never waits for a disk (VmLck also counts mapped pages that were never used)"
        )
        for line in lever_lines(status["levers"]):
            yield "good", f"it sets {line}"
        yield from small_caches(status["devices"], kernel_floor_bytes(host_info(files)))
        lost = status["probe"]["lost"]
        yield from (("note", f"probe lost {each}") for each in lost)
        if not lost and status["probe"]["backend"] != "procfs":
            yield "good", "no probe event lost"
        if status["lease"]["watcher_pid"] is None and status["mode"] == "enforce":
            yield "warning", (
                "watcher not running (see log): limits are not restored if the daemon hangs"
            )
        return
    except NoDaemon:
        pass
    except CommandError as error:
        yield "warning", str(error)
        return
    alive = is_locked(runtime_dir)
    if alive is None:
        yield "note", "cannot tell whether a daemon without a socket runs: try again with sudo"
    elif alive:
        yield "warning", (
            f"a daemon holds {runtime_dir / LOCK} but has no socket: restart it with"
            " `systemctl restart writebackd`"
        )
    elif ledger.exists() and is_watched(runtime_dir):
        yield "note", "writebackd has died, its limits are in force: the watcher restores them"
    elif ledger.exists():
        yield "warning", (
            f"{ledger} was left by a daemon that has died: the limits{_and_levers(ledger)} may"
            " still be its own; `sudo writebackctl restore` restores them"
        )
    else:
        yield "note", "writebackd is not running"


def runtime_directory(files: KernelFiles, runtime_dir: Path) -> Iterator[Finding]:
    """Whether lease and ledger are in memory, where no flood can delay their writes."""
    mount = mount_of(files, runtime_dir)
    if mount is not None and mount.fstype not in ("tmpfs", "ramfs"):
        yield "warning", (
            f"{runtime_dir} is on {mount.fstype} ({mount.mountpoint}), not in memory: a flood there"
            " can hold up the lease until it expires, which restores the limits; mount a tmpfs on"
            " /run"
        )


def small_caches(devices: Iterable[Mapping[str, Any]], floor_bytes: int) -> Iterator[Finding]:
    """Write caches that fill before the smallest limit possible with this host's CPUs."""
    for row in devices:
        capacity = row["write_cache"]["capacity_bytes"]
        if capacity is not None and capacity < floor_bytes:
            yield "warning", (
                f"{row['name']}: no limit below {formats.size(floor_bytes)} works with this many"
                f" CPUs, and the write cache holds {formats.size(capacity)}: a flood fills it"
                " under any limit; throttle the flooding unit (`pace = auto` in [levers])"
            )


def _hooks(probe: Mapping[str, Any]) -> Iterator[Finding]:
    """The hooks that measure, and what they do not see."""
    yield "good", f"block requests: {probe['request_hook'] or 'none'}"
    fsync, better = probe["fsync_hook"], probe["passed_over"]
    yield "good" if fsync else "warning", (
        f"fsync: {fsync or 'no hook, its latency is unknown'}{f'; {better}' if better else ''}"
    )
    yield from (("note", f"not visible: {each}") for each in probe["misses"])
    yield from (("note", f"refused by this kernel: {each}") for each in probe["refused"])


def processes(files: KernelFiles, runtime_dir: Path) -> Iterator[Finding]:
    """Processes that the daemon does not see; this command, as root, sees all."""
    level, more = "warning", ""
    status = status_of(runtime_dir, 2.0)
    if status is not None:
        hidden = status["processes_unseen"]
    else:
        hidden = unseen(hiding(files))
        level, more = "note", "; not if systemd mounts a /proc for the unit, as version 252 does"
    if hidden:
        yield level, f"{hidden}{more}"
    else:
        yield "good", "the daemon sees processes of all users"


def _and_levers(ledger: Path) -> str:
    """The levers in a ledger besides the limits, as text; empty if there are none."""
    try:
        loaded = load(ledger)
    except LedgerError:
        return ""  # `restore` tells what is wrong with it
    names = [str(entry.lever) for entry in loaded.levers] if loaded is not None else []
    return f" and other levers ({', '.join(names)})" if names else ""


# ---- RAID tools and the service that runs them --------------------------


def raid(files: KernelFiles, owner: int = 0, top: Path = Path("/")) -> Iterator[Finding]:
    """Level and text: tools, timer, the last report, and caches that may lose writes.

    `owner` must own the collector's file, `top` is as in `find`.
    """
    tools = installed(files, top)
    vendors = {name: path for name, path in tools.items() if not name.startswith("dm-")}
    for name, path in vendors.items():
        yield "good", f"{name} found ({path})"
    runs = _timer_runs()
    if runs:
        yield "good", f"{TIMER} runs"
    elif vendors and runs is not None:
        yield "note", (
            f"{TIMER} is not running: no battery or rebuild state from {', '.join(vendors)};"
            f" `sudo systemctl enable --now {TIMER}`"
        )
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        report = report_file.read(files.path(RAID), owner)
    except FileNotFoundError:
        if vendors:
            yield "note", f"no {RAID} yet: `sudo systemctl start writebackd-raid`"
        return
    except (OSError, ToolError) as error:
        yield "warning", f"{RAID} is not used: {error}"
        return
    age = formats.duration(max(0.0, now_s - report.boottime_s))
    if not is_stale(report, files, now_s):
        yield "good", f"{RAID} was written {age} ago"
        yield from _said(report)
        unmatched = look_at_arrays(files, scan(files), now_s, owner)[1]
        if unmatched:
            yield "warning", unmatched
    elif slept(report, files):
        yield "note", f"{RAID} is from {age} ago, before a suspend: {TIMER} renews it"
    else:
        yield "warning", f"{RAID} is not used: written {age} ago, or before this boot"


def _said(report: CollectorReport) -> Iterator[Finding]:
    for tool in report.tools:
        if tool.error is not None:
            yield "warning", f"{tool.name} ({tool.path}) failed: {tool.error}"
        for controller in tool.controllers:
            where = controller.model or controller.pci or "a controller"
            yield "good", f"{where}: {_read(controller)} ({tool.name})"
            lacks = _lacks(controller)
            if lacks:
                yield "warning", f"{where}: not read: {', '.join(lacks)} ({tool.name})"
            yield from _caches(tool.name, where, controller)


def _read(controller: Controller) -> str:
    modes = Counter(each.mode.value for each in controller.volumes if each.mode is not None)
    size, battery = controller.capacity_bytes, controller.protection
    return ", ".join([
        "cache size unknown" if size is None else f"cache {formats.size(size)}",
        *(f"{number} volume{'s'[: number - 1]} {mode}" for mode, number in sorted(modes.items())),
        *([] if controller.volumes else ["no volumes"]),
        *([f"battery {battery.value}"] if battery is not None else []),
    ])  # fmt: skip


def _lacks(controller: Controller) -> List[str]:
    """What is unknown about a controller with volumes, including words without a known meaning."""
    volumes = controller.volumes
    words = [
        *controller.unread,
        *(f"{_name(each)}: {word}" for each in volumes for word in each.unread),
        *(f"mode of {_name(each)}" for each in volumes if not each.mode and not each.unread),
    ]
    needed = controller.capacity_bytes != 0 and any(
        each.mode is not CacheMode.WRITE_THROUGH for each in volumes
    )
    known = controller.protection or any("battery" in word for word in controller.unread)
    return [*_few(words), *(["battery"] if needed and not known else [])]


def _few(words: List[str]) -> List[str]:
    return words if len(words) < 6 else [*words[:4], f"{len(words) - 4} more"]


def _caches(source: str, where: str, controller: Controller) -> Iterator[Finding]:
    protection = controller.protection
    if protection is not None and protection is not Protection.OK:
        yield "warning", f"{where}: battery {protection.value} ({source})"
    always = [
        _name(each) for each in controller.volumes if each.mode is CacheMode.ALWAYS_WRITE_BACK
    ]
    if always:
        yield "warning", (
            f"{where}: write-back even without a battery ({', '.join(_few(always))}, {source}): a"
            " power failure loses data and can destroy the filesystem"
        )


def _name(volume: Volume) -> str:
    return volume.disk or f"volume {volume.number}"


def _timer_runs() -> Optional[bool]:
    """Whether the timer runs; None if unknown."""
    if not shutil.which("systemctl"):
        return None
    try:
        done = subprocess.run(
            ["systemctl", "is-active", "--quiet", TIMER],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_SYSTEMCTL_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    # 3: it is not active; other codes (4, 1) mean unknown.
    return {0: True, 3: False}.get(done.returncode)
