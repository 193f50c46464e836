# SPDX-License-Identifier: GPL-2.0-or-later
"""Which cgroups are never paced, and why.

Pacing changes a unit that somebody else owns.  Cgroups that wait for their own writes, that others
wait for, or that another manager controls are left alone.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Iterable, Mapping, Optional, Tuple

from writebackd.policy.keys import Protect
from writebackd.types.samples import CgroupSample

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
KUBEPODS = "kubepods"
# Containers that are not systemd scopes: their managers' names, or an id of 64 hex digits.  Matched
# against every part of the path, since a container chooses the names below its own cgroup.
_CONTAINER = re.compile(r"docker$|libpod|lxc(?:$|[.@])|.*[0-9a-f]{64}")
# Containers of systemd-machined; virtual machines that libvirt starts there are not containers.
_MACHINES, _VIRTUAL = "machine.slice", "machine-qemu"
# The systemd instance of a user, who controls everything below it (Delegate=).  Login sessions and
# cron jobs are scopes outside of it, and may be paced like any unit.
USERS = "user@*.service"


def unit_of(path: str) -> str:
    """The host's unit of a cgroup: the first service or scope in its path, else the last name.

    For a unit below user@1000.service that is user@1000.service.
    """
    parts = path.strip("/").split("/")
    for part in parts:
        if part.endswith((".service", ".scope")):
            return part
    return parts[-1]


def slices_of(path: str) -> Tuple[str, ...]:
    """The host's slices that contain the cgroup, itself included; not slices below a unit."""
    slices = []
    for part in path.strip("/").split("/"):
        if part.endswith((".service", ".scope")):
            break
        if part.endswith(".slice"):
            slices.append(part)
    return tuple(slices)


def is_container(path: str) -> bool:
    """Whether a cgroup belongs to a container: by its name, or by units below a non-slice.

    Such units belong to another systemd, and may have the same names as the host's.
    """
    parts = path.strip("/").split("/")
    if any(_CONTAINER.match(part) for part in parts):
        return True
    if parts[0] == _MACHINES and not "".join(parts[1:2]).startswith(_VIRTUAL):
        return True
    depth = next((i for i, part in enumerate(parts) if not part.endswith(".slice")), len(parts))
    return any(part.endswith((".slice", ".service", ".scope")) for part in parts[depth + 1 :])


def objection(
    cgroup: CgroupSample,
    ours: Iterable[str],
    syncers: Mapping[int, Tuple[Optional[str], float]],
    protect: Protect,
    now_s: float,
) -> Optional[str]:
    """Why this cgroup must not be paced; None if it may be.

    `ours`: the disks (devno) on which it is paced already.
    """
    path, control = cgroup.path, cgroup.control
    if path is None or control is None:
        return "its cgroup is unknown"
    if path == "/":
        return "it is in the root cgroup, which has no limits"
    if cgroup.own:
        return "it is this daemon"
    parts, unit = path.strip("/").split("/"), unit_of(path)
    if any(part.startswith(KUBEPODS) for part in parts):
        return "Kubernetes owns it"
    if any(fnmatchcase(part, USERS) for part in parts):
        return "a user's own systemd manages it"
    if unit.endswith(".slice") and parts[0] == "user.slice":
        return "it contains all processes of a user"
    for glob in NEVER:
        if fnmatchcase(unit, glob):
            return "units of this name are never paced"
    if is_container(path):
        return "it belongs to a container, whose manager sets its limits"
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
        if devno == "(unknown)":
            continue  # a disk that was removed while open: the rule has no effect
        words = dict(word.partition("=")[::2] for word in limits.split())
        free = {**words, "wbps": "max"} if devno in ours else words
        if any(value != "max" for value in free.values()):
            return f"it has IO limits of its own ({devno} {limits})"
    for cgroup_id, (syncer, last_s) in syncers.items():
        below = syncer is not None and f"{syncer}/".startswith(f"{path}/")
        if (cgroup_id == cgroup.cgroup_id or below) and now_s - last_s <= SYNCED_LATELY_S:
            return "it syncs itself, and would wait for its own writes"
    return None
