# SPDX-License-Identifier: GPL-2.0-or-later
"""Parts of a bug report: each function returns the text of one, or raises.

They run in a child process with a time limit (bundle.py), which removes private data from the
results.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable, List, Tuple

from writebackd import __version__
from writebackd.cli import doctor_checks
from writebackd.cli.client import request
from writebackd.cli.exit_codes import CommandError
from writebackd.cli.history import figures_json, state_dir
from writebackd.cli.policy import in_force, rendered
from writebackd.kernel.files import KernelFiles
from writebackd.paths import HISTORY, LEARNED, RAID
from writebackd.report.history_schema import read_figures, read_history
from writebackd.report.learned_store import read_learned
from writebackd.storage.report_file import MOST_FILE

_DAY_S = 86400.0
_MOST_ROWS = 5000  # of a table of the history, of the journal
_MOST_FILE = 256 << 10  # of a policy
_FORMAT = {"format": "openmetrics"}
_UNITS = ("writebackd.service", "writebackd-watch.service", "writebackd-probe.service",
          "writebackd-drain.service", "writebackd-raid.service",
          "writebackd-raid.timer")  # fmt: skip
_SHOWN = (
    "LoadState", "ActiveState", "SubState", "Result", "NRestarts", "ExecMainStatus",
    "ExecMainCode", "ActiveEnterTimestamp", "FragmentPath", "DropInPaths", "MemoryCurrent",
    "CPUUsageNSec", "TasksCurrent", "WatchdogUSec", "UnitFileState",
)  # fmt: skip
_CONFIG = re.compile(
    r"(?:# )?(CONFIG_(?:BPF\w*|DEBUG_INFO_BTF\w*|PAHOLE_VERSION|KPROBES|KPROBE_EVENTS|FTRACE"
    r"|FUNCTION_TRACER|DYNAMIC_FTRACE\w*|PSI\w*|HZ|HZ_\d+|NO_HZ\w*|PREEMPT\w*|NR_CPUS|MEMCG"
    r"|CGROUPS|BLK_CGROUP\w*|CGROUP_WRITEBACK|BLK_WBT\w*|IOSCHED\w*|MQ_IOSCHED\w*|BLK_DEV_ZONED"
    r"|SECURITY_LOCKDOWN\w*|MODULE_SIG\w*|LOCKDEP|PROVE_LOCKING|KASAN))[= ].*"
)
# Not its serial number.
_DISK = ("dev", "size", "removable", "device/vendor", "device/model", "diskseq", "slaves/*/dev",
         "queue/*")  # fmt: skip
# Of what is not on a disk of this host, source and options name others: servers, users.
_LOCAL = ("tmpfs", "devtmpfs", "devpts", "proc", "sysfs", "cgroup", "cgroup2", "overlay", "bpf",
          "tracefs", "debugfs", "securityfs", "configfs", "hugetlbfs", "mqueue", "zfs")  # fmt: skip


@dataclass(frozen=True)
class Host:
    """The host that a collector examines."""

    files: KernelFiles
    runtime_dir: Path
    now_s: float

    @property
    def state_dir(self) -> Path:
        return state_dir(argparse.Namespace(state_dir=None, runtime_dir=self.runtime_dir))


def _asked(verb: str) -> Callable[[Host], str]:
    def ask(host: Host) -> str:
        return json.dumps(request(host.runtime_dir, verb), indent=1)

    return ask


def _events(host: Host) -> str:
    events = read_history(host.state_dir / HISTORY, host.now_s - _DAY_S, None, _MOST_ROWS)
    return "\n".join(json.dumps(asdict(each)) for each in events)


def _figures(host: Host) -> str:
    rows = read_figures(host.state_dir / HISTORY, host.now_s - _DAY_S, None)
    return "\n".join(json.dumps(figures_json(row)) for row in rows[-_MOST_ROWS:])


def _learned(host: Host) -> str:
    known = read_learned(host.state_dir / LEARNED)
    # Without its names, which are serial numbers of disks.
    return json.dumps([asdict(each) for each in known.values()], indent=1)


def _text(path: Path) -> str:
    try:
        return _read(path, _MOST_FILE)
    except OSError as error:
        return f"# {error.strerror}"


def _read(path: Path, most: int, flags: int = 0) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags), "rb") as file:
        return file.read(most).decode("utf-8", "replace").rstrip()


def _versions(host: Host) -> str:
    system = os.uname()
    os_release = host.files.try_read("/etc/os-release") or ""
    lines = [
        f"writebackd {__version__}",
        f"kernel {system.release} {system.version} {system.machine}",
        f"python {platform.python_version()} {sys.executable}",
        f"uid {os.geteuid()}",
        *(line for line in os_release.split("\n") if line.startswith(("PRETTY_NAME", "ID="))),
    ]
    for command in (("systemctl", "--version"), ("bpftool", "version"), ("clang", "--version")):
        if shutil.which(command[0]):
            lines.append(f"{command[0]}: {_run(*command).split(chr(10))[0]}")
    return "\n".join(lines)


def _files(*patterns: str) -> Callable[[Host], str]:
    """Collects the files that match: a line each, or their lines below their name."""

    def collect(host: Host) -> str:
        lines: List[str] = []
        root = host.files.path("/")
        for path in (path for each in patterns for path in sorted(root.glob(each.lstrip("/")))):
            name = f"/{path.relative_to(root)}"
            text = host.files.try_read(name)
            if text is not None:
                lines += ["", f"# {name}", text] if "\n" in text else [f"{name}: {text}"]
        return "\n".join(lines)

    return collect


def _kernel(host: Host) -> str:
    release = os.uname().release
    config = host.files.try_read(f"/boot/config-{release}")
    packed = host.files.path("/proc/config.gz")
    if config is None and packed.exists():
        config = gzip.decompress(packed.read_bytes()).decode("utf-8", "replace")
    lines = [_files(
        "/proc/sys/kernel/unprivileged_bpf_disabled", "/proc/sys/net/core/bpf_jit_enable",
        "/proc/sys/kernel/perf_event_paranoid", "/sys/kernel/security/lockdown",
        "/proc/sys/kernel/tainted", "/sys/devices/system/cpu/possible",
        "/sys/devices/system/cpu/online", "/sys/kernel/mm/transparent_hugepage/enabled",
    )(host)]  # fmt: skip
    if config is None:
        lines.append(f"no /boot/config-{release} and no /proc/config.gz")
    return "\n".join([*lines, *(x for x in (config or "").split("\n") if _CONFIG.match(x))])


def _mounts(host: Host) -> str:
    """Mounts; for remote ones without names of servers and users."""
    lines = []
    for line in host.files.read("/proc/self/mountinfo").split("\n"):
        before, dash, after = line.partition(" - ")
        kind, source = (after.split(" ") + [""])[:2]
        remote = dash and not source.startswith("/dev/") and kind not in _LOCAL
        lines.append(f"{before} - {kind} *** ***" if remote else line)
    return "\n".join(lines)


def _runtime(host: Host) -> str:
    """All files in the daemon's runtime directory, unchanged, also damaged ones."""
    lines: List[str] = []
    for entry in sorted(os.scandir(host.runtime_dir), key=lambda each: each.name):
        status = entry.stat(follow_symlinks=False)
        age_s = host.now_s - status.st_mtime
        lines.append(f"{entry.name}: {status.st_mode:o}, {status.st_size} bytes, {age_s:.0f} s old")
        if entry.is_file(follow_symlinks=False):
            lines.append(_text(Path(entry.path)))
    return "\n".join(lines)


def _journal(host: Host) -> str:
    units = [word for unit in _UNITS for word in ("-u", unit)]
    return _run("journalctl", *units, "--since=-1d", f"-n{_MOST_ROWS}", "--no-pager", "--quiet",
                "--no-hostname", "-o", "short-iso")  # fmt: skip


def _unit(host: Host) -> str:
    """systemd's view of the units, with the site's changes."""
    lines: List[str] = []
    for unit in _UNITS:
        try:
            said = _run("systemctl", "show", unit, *(f"--property={name}" for name in _SHOWN))
        except CommandError as error:  # no systemd runs; what is on the disk may tell as much
            said = str(error)
        lines += [f"# {unit}", said]
        for top in ("etc", "run"):
            directory = host.files.path(f"/{top}/systemd/system")
            for path in (directory / unit, *sorted((directory / f"{unit}.d").glob("*.conf"))):
                if path.is_file():
                    lines += [f"# ---- {path}", _text(path)]
    return "\n".join(lines)


def _run(*command: str) -> str:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False
        )
    except FileNotFoundError:
        raise CommandError(f"no {command[0]} on this host", 1) from None
    if ended.returncode:
        said = ended.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        raise CommandError(f"{command[0]}: {said or f'exit code {ended.returncode}'}", 1)
    return ended.stdout.decode("utf-8", "replace").rstrip()


COLLECTORS: Tuple[Tuple[str, Callable[[Host], str]], ...] = (
    ("doctor.txt", lambda host: "\n".join(
        f"{level}: {text}" for level, text in doctor_checks.findings(host.runtime_dir))),
    ("versions.txt", _versions),
    ("status.json", _asked("status")),
    ("devices.json", _asked("devices")),
    ("why.json", _asked("why")),
    ("top.json", _asked("top")),
    ("alerts.json", _asked("alerts")),
    ("verify.json", _asked("verify")),
    ("metrics.txt", lambda host: str(request(host.runtime_dir, "metrics", _FORMAT)["text"])),
    ("history.jsonl", _events),
    ("figures.jsonl", _figures),
    ("learned.json", _learned),
    ("policy.conf", lambda host: rendered(in_force(host.runtime_dir, None))),
    # All that the site wrote, including drop-ins, valid or not.
    ("policy-files.txt", _files(*(
        f"/{top}/writebackd/policies.d/**/*.conf" for top in ("usr/lib", "run", "etc")))),
    ("run.txt", _runtime),
    # Unchanged, also if the daemon does not accept it.
    ("raid.json", lambda host: _read(host.files.path(RAID), MOST_FILE, os.O_NOFOLLOW)),
    ("kernel.txt", _kernel),
    ("vm.txt", _files(
        *(f"/proc/sys/vm/{name}" for name in ("dirty*", "laptop_mode*", "vfs_cache_pressure*")),
        "/proc/vmstat", "/proc/meminfo", "/proc/pressure/*")),
    ("block.txt", _files(*(f"/sys/block/*/{name}" for name in _DISK), "/proc/diskstats")),
    ("bdi.txt", _files("/sys/class/bdi/*/*")),
    ("mountinfo.txt", _mounts),
    ("journal.txt", _journal),
    ("unit.txt", _unit),
)
