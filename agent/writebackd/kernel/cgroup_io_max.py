# SPDX-License-Identifier: GPL-2.0-or-later
"""io.max of a cgroup (wbps of one disk), set through systemd where it owns the cgroup.

systemd overwrites io.max of its cgroups at its next reload, so for those the value is
set as the unit's runtime property.  That belongs to the unit, not to the cgroup: it
applies again when the unit is restarted, until it is removed.  It also outlives the
disk: the next disk with that number would be limited as well.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from typing import List, Optional, Sequence, Tuple

from writebackd.kernel.child_process import ChildError, Run, Work, write_in_child
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.mounts import read_mounts

NO_LIMIT = "max"
_USUAL = "/sys/fs/cgroup"
_KEY = "wbps"
# tg_prfill_limit(): all four limits, for each disk that has one of them.  Newer kernels print a
# disk by the name of its BDI, which one that was pulled out has no more.
_VALUE = "(?:[0-9]{1,20}|max)"
_LINE = re.compile(
    rf"(?P<devno>[0-9]+:[0-9]+|\(unknown\)) rbps={_VALUE} wbps=(?P<wbps>{_VALUE})"
    rf" riops={_VALUE} wiops={_VALUE}(?: [a-z]+={_VALUE})*"
)
UNITS = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")
_SLICE = ".slice"
# systemd applies a property after it has answered.
_APPLY_S = 2.0
_POLL_S = 0.02


def cgroup2_mount(files: KernelFiles) -> Optional[str]:
    """Where cgroup v2 is mounted, unified or next to v1; None if it is not."""
    mounts = (mount.mountpoint for mount in read_mounts(files) if mount.fstype == "cgroup2")
    return next(mounts, None)


def memberships(files: KernelFiles, pid: str) -> Tuple[Tuple[str, str, str], ...]:
    """Hierarchy, controllers and path of each cgroup of a process; empty if it is gone.

    A cgroup's name may have any byte in it but "/" and newline: users name those that are
    delegated to them, and what str.splitlines() takes for the end of a line is part of a name.
    """
    try:
        lines = files.read_whole(f"/proc/{pid}/cgroup").split("\n")
    except OSError:
        return ()
    parts = (tuple(line.split(":", 2)) for line in lines)
    return tuple((part[0], part[1], part[2]) for part in parts if len(part) == 3)


def path_of_process(files: KernelFiles, pid: str) -> Optional[str]:
    """The path of its cgroup v2; None if it is gone or in none."""
    paths = (membership[2] for membership in memberships(files, pid) if membership[:2] == ("0", ""))
    return next(paths, None)


def directory(files: KernelFiles, cgroup: str) -> str:
    """The directory of a cgroup path. Raises FileNotFoundError without cgroup v2."""
    # Its usual place, because a host with many containers has as many mounts,
    # and this is asked for each pace in every tick.
    if files.inode(f"{_USUAL}/cgroup.controllers") is not None:
        return _USUAL + cgroup
    mount = cgroup2_mount(files)
    if mount is None:
        raise FileNotFoundError(2, "cgroup v2 is not mounted", cgroup)
    return mount.rstrip("/") + cgroup


def owner(files: KernelFiles, cgroup: str) -> Optional[str]:
    """The host's systemd unit that the cgroup belongs to; None if systemd does not own it.

    What lies below a service or scope is delegated; nor is a unit what a container's systemd
    makes elsewhere (/lxc/101/ns/system.slice/x.service), though the host may have that name.
    """
    if not is_booted(files):
        return None
    *above, last = (
        part[1:] if part.startswith("_") else part  # cg_escape() of systemd
        for part in cgroup.strip("/").split("/")
    )
    outer = ""
    for part in above + [last] * last.endswith(_SLICE):
        name = part[: -len(_SLICE)]
        if not part.endswith(_SLICE) or name.rpartition("-")[0] != outer:
            return None  # systemd has a-b.slice in a.slice, and nowhere else
        outer = name
    return last if last.endswith(UNITS) else None


def is_booted(files: KernelFiles) -> bool:
    """Whether systemd runs this host."""
    return files.inode("/run/systemd/system") is not None  # sd_booted(3)


def disk(files: KernelFiles, devno: str) -> Optional[int]:
    """A number that no other disk with this devno has; None if there is none."""
    return files.inode(f"/sys/dev/block/{devno}")


def read(files: KernelFiles, cgroup: str, devno: str) -> str:
    """Bytes per second, or `max`. Raises OSError; FileNotFoundError without cgroup or disk.

    A unit without io.max has no limit: systemd turns the io controller on as it is needed.
    """
    if disk(files, devno) is None:
        # Its line left io.max with it, which does not mean that no limit was set.
        raise FileNotFoundError(2, "there is no such disk", devno)
    home = directory(files, cgroup)
    try:
        text = files.read(f"{home}/io.max")
    except FileNotFoundError:
        if owner(files, cgroup) is None or files.inode(home) is None:
            raise
        return NO_LIMIT
    limits = {}
    for line in filter(None, text.split("\n")):
        match = _LINE.fullmatch(line)
        if match is None:
            # A truncated line would look like a limit set by another process.
            raise OSError(5, f"expected limits, found {text[:80]!r}", f"{home}/io.max")
        limits[match["devno"]] = match["wbps"]
    return limits.get(devno, NO_LIMIT)


def write(
    files: KernelFiles, cgroup: str, devno: str, text: str, ours: Sequence[str] = ()
) -> Work:
    """The write, as work for a child: through systemd, or directly if systemd is not involved.

    Ours may hang as well: since about 6.10 a disk's first rule freezes its queue.
    `ours`: what may have been written before.  The kernel leaves the keys that are not
    named as they are. Raises OSError.
    """
    unit = owner(files, cgroup)
    if unit is not None:
        return _property(files, unit, cgroup, devno, text, ours)
    path = files.path(f"{directory(files, cgroup)}/io.max")
    return write_in_child(str(path), f"{devno} {_KEY}={text}")


def _property(
    files: KernelFiles, unit: str, cgroup: str, devno: str, text: str, ours: Sequence[str]
) -> Work:
    def work(run: Run) -> None:
        shown = _show(run, unit)
        place = dict(shown).get(_PLACE, cgroup)
        # Not when restoring: a value that was set is removed wherever the unit is now.
        if place != cgroup and text in ours[-1:] and files.inode(directory(files, cgroup)):
            # The cgroup is there, and only called like the unit: nothing is asked for.
            raise OSError(errno.ENXIO, f"systemd has {unit} in {place}")
        device = _spelling(files, shown, devno, ours)
        # "infinity" takes the one entry out and leaves those of other disks; an
        # empty value would take them all.
        value = "infinity" if text == NO_LIMIT else text
        limit = f"{_WRITE_MAX}={device} {value}"
        try:
            _systemctl(run, "set-property", "--runtime", "--", unit, limit)
        except ChildError as error:
            if text == NO_LIMIT and "not found" in str(error):
                return  # a transient unit that has ended: its properties are gone with it
            raise
        _await(files, cgroup, devno, text)

    return work


_WRITE_MAX = "IOWriteBandwidthMax"
_LISTS = (_WRITE_MAX, "IOReadBandwidthMax", "IOWriteIOPSMax", "IOReadIOPSMax")
_PLACE = "ControlGroup"  # not shown while it does not run


def _show(run: Run, unit: str) -> List[Tuple[str, str]]:
    """The relevant properties of a unit, as a list with one entry each."""
    shown = _systemctl(run, "show", "--property", ",".join((*_LISTS, _PLACE)), "--", unit)
    words = (line.partition("=") for line in shown.split("\n"))
    return [(name, value) for name, _, value in words if value]


def _systemctl(run: Run, *words: str) -> str:
    """The output of systemctl. Raises ChildError."""
    ended = run(("systemctl", *words))
    if ended.code:
        raise ChildError(ended.errors.strip() or f"systemctl ended with {ended.code}")
    return ended.output


def _spelling(
    files: KernelFiles, shown: Sequence[Tuple[str, str]], devno: str, ours: Sequence[str]
) -> str:
    """The path under which the unit already has this disk, or the one by number.

    For systemd two paths are two entries, and the one applied last resets what the
    other set on the same disk.  The path of a disk that is gone leads nowhere: there
    the value tells.
    """
    by_number = f"/dev/block/{devno}"
    spelling = by_number
    for name, entry in shown:
        path, _, value = entry.rpartition(" ")
        if name not in _LISTS or not path:
            continue
        number = _devno(files, path)
        if path == by_number or number == devno:
            return path
        if number is None and name == _WRITE_MAX and value in ours and disk(files, devno) is None:
            spelling = path
    return spelling


def _devno(files: KernelFiles, path: str) -> Optional[str]:
    try:
        status = os.stat(files.path(path))
    except OSError:
        # PrivateDevices= of our units leaves no disk in /dev; sysfs has them by their names.
        directory, _, name = path.rpartition("/")
        return files.try_read(f"/sys/class/block/{name}/dev") if directory == "/dev" else None
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def _await(files: KernelFiles, cgroup: str, devno: str, text: str) -> None:
    """Wait until io.max shows it; the caller judges the value read in the end."""
    until = time.monotonic() + _APPLY_S
    while time.monotonic() < until:
        try:
            if read(files, cgroup, devno) == text:
                return
        except FileNotFoundError:
            return  # the unit has stopped; the property waits for its next start
        except OSError:
            pass  # as any other reading that is not the value: the next may be
        time.sleep(_POLL_S)
