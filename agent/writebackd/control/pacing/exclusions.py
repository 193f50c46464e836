# SPDX-License-Identifier: GPL-2.0-or-later
"""Which cgroups are never paced, and why.

Pacing changes a unit that somebody else owns.  Cgroups that wait for their own writes, that others
wait for, or that another manager controls are left alone.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Iterable, Mapping, Optional, Sequence, Tuple

from writebackd.policy.keys import Protect
from writebackd.types.samples import SERVICES, CgroupControl, CgroupSample

# Seconds.  A cgroup that synced within this time is not paced: it may sync only now and then (a
# backup at the end of each file, a checkpoint every five minutes), and waits for its own data then.
SYNCED_LATELY_S = 300.0
# Units never paced: everybody waits for the journal and udev, an admin must be able to log in, and
# the limits of a container belong to its manager.
NEVER: Tuple[str, ...] = (
    "systemd-*.service", "init.scope", "rsyslog.service", "syslog*.service", "auditd.service",
    "dbus*.service", "ssh*.service", "ssh*.socket", "writebackd.service",
    "docker-*.scope", "libpod-*.scope", "crio-*.scope", "cri-containerd-*.scope",
)  # fmt: skip
_CONTAINER = "it belongs to a container, whose manager sets its limits"
# By path.  A container chooses the names below its own cgroup, so every part is looked at.
_PATHS: Tuple[Tuple[str, str], ...] = (
    (r"/$", "it is in the root cgroup, which has no limits"),
    (r".*/kubepods", "Kubernetes owns it"),
    # Login sessions and cron jobs are scopes outside of it, and may be paced like any unit.
    (r".*/user@[^/]*\.service(/|$)", "a user's own systemd manages it"),
    (r"/user\.slice(/[^/]+\.slice)*$", "it contains all processes of a user"),
    # Those that are not systemd scopes: their managers' names, or an id of 64 hex digits.
    (r".*/(docker(/|$)|libpod|lxc([/.@]|$)|[^/]*[0-9a-f]{64})", _CONTAINER),
    # Of systemd-machined; virtual machines that libvirt starts there are not containers.
    (r"/machine\.slice(/(?!machine-qemu)|$)", _CONTAINER),
    # Units below a unit belong to another systemd, and may have the same names as the host's.
    (r"(/[^/]+\.slice)*/[^/]*(?<!\.slice)/(.*/)?[^/]+\.(slice|service|scope)(/|$)", _CONTAINER),
)
# What `pace = auto` may reach at all: other slices are arrangements of the admin.
_SESSION = re.compile(r"/user\.slice/user-[0-9]+\.slice/session-[^/]+\.scope(/|$)")


def unit_of(path: str) -> str:
    """The host's unit of a cgroup: the first service or scope in its path, else the last name.

    For a unit below user@1000.service that is user@1000.service.
    """
    parts = path.strip("/").split("/")
    name = next((part for part in parts if part.endswith((".service", ".scope"))), parts[-1])
    # systemd puts an underscore before names like io.service, which are those of control files.
    return name[1:] if name.startswith("_") else name


def slices_of(path: str) -> Tuple[str, ...]:
    """The host's slices that contain the cgroup, itself included; not slices below a unit."""
    outer = re.split(r"/[^/]*\.(?:service|scope)(?:/|$)", path)[0]
    return tuple(part for part in outer.split("/") if part.endswith(".slice"))


def objection(
    cgroup: CgroupSample,
    ours: Iterable[str],
    syncers: Mapping[int, Tuple[Optional[str], float]],
    protect: Protect,
    now_s: float,
    auto: bool = False,
) -> Optional[str]:
    """Why this cgroup must not be paced; None if it may be.

    `ours`: the disks (devno) on which it is paced already.  `auto`: nobody asked for pacing.
    """
    path, control = cgroup.path, cgroup.control
    if path is None or control is None:
        return "its cgroup is unknown"
    if cgroup.own:
        return "it is this daemon"
    for pattern, why in _PATHS:
        if re.match(pattern, path, re.DOTALL):
            return why
    unit = unit_of(path)
    if any(fnmatchcase(unit, glob) for glob in NEVER):
        return "units of this name are never paced"
    if control.outside:
        return "systemd does not manage it, so another program does"
    named = protect.covers(unit, slices_of(path))
    if named is not None:
        return f"'{named}' in [protect] units names it"
    if control.delegated:
        return "its unit manages it (Delegate=)"
    if control.io_max is None:
        return "its io controller is off, and systemd cannot turn it on"
    for devno, limits in control.io_max:
        words = dict(word.partition("=")[::2] for word in limits.split())
        free = {**words, "wbps": "max"} if devno in ours else words
        # (unknown) is a disk that was removed while open: the rule has no effect.
        if devno != "(unknown)" and any(value != "max" for value in free.values()):
            return f"it has IO limits of its own ({devno} {limits})"
    lately = {
        cgroup_id: syncer for cgroup_id, (syncer, last_s) in syncers.items()
        if now_s - last_s <= SYNCED_LATELY_S
    }
    for cgroup_id, syncer in lately.items():
        if cgroup_id == cgroup.cgroup_id or f"{syncer}/".startswith(f"{path}/"):
            return "it syncs itself, and would wait for its own writes"
    if not auto or _SESSION.match(path):
        return None
    return _unasked(path, control, bool(ours), list(lately.values()))


def _unasked(
    path: str, control: CgroupControl, paced: bool, syncing: Sequence[Optional[str]]
) -> Optional[str]:
    """Why `pace = auto` leaves a unit alone: one that syncs may wait for it."""
    if not path.startswith(SERVICES):
        return "`pace = auto` paces login sessions and units in system.slice"
    if None in syncing:
        return "a unit that synced lately is unknown"
    if control.related is None:
        # One that is paced was allowed to be; a daemon that has just started has not asked yet.
        return None if paced else "systemd has not said what it is ordered before and after"
    names = {unit_of(each) for each in syncing if each}
    # Others are ordered after postgresql.service, not after postgresql@15-main.service.
    names |= {re.sub("@.*[.]", ".", name) for name in names}
    waiting = sorted(names.intersection(control.related))
    return f"{waiting[0]}, which syncs, is ordered before or after it" if waiting else None
