# SPDX-License-Identifier: GPL-2.0-or-later
"""The levers beside the global pair without a kernel, and a systemd that owns a cgroup.

BDI and queue handlers follow mm/page-writeback.c and block/blk-sysfs.c of 6.18;
tests/kernel/test_levers.py makes the same writes on the running kernel.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, TypeVar

from fake_vm import DEFAULT, PAGE, SYSCTL, Crash, FakeVm
from writebackd.kernel.child_process import ChildError, Ended, Work
from writebackd.types.levers import VmLimits

MAX_HW_KB = 1280
BCACHE = {"writeback_percent": 10, "writeback_delay": 30, "writeback_rate_minimum": 8}
BDI = {"min_ratio_fine": 0, "max_ratio_fine": 1_000_000, "strict_limit": 0}
T = TypeVar("T")
CGROUPS = "/sys/fs/cgroup"
KEYS = ("rbps", "wbps", "riops", "wiops")
PROPERTIES = dict(
    zip(KEYS, ("IOReadBandwidthMax", "IOWriteBandwidthMax", "IOReadIOPSMax", "IOWriteIOPSMax"))
)


class FakeLevers(FakeVm):
    """Adds to the pair: flush intervals, BDIs, queues, cgroups; each write is counted.

    `write_errors` has the path as key, `ledger` is where an actuator has its ledger.  `stalled`
    disks hold every child that writes their queue (or a paced cgroup) until `release`.
    """

    def __init__(self, limits: VmLimits = DEFAULT) -> None:
        super().__init__(limits)
        self._next_inode = 1000
        self.flush = {"dirty_writeback_centisecs": 500, "dirty_expire_centisecs": 3000}
        self.bdis: Dict[str, Dict[str, int]] = {}
        self.queues: Dict[str, Dict[str, int]] = {}
        self.bcaches = {"bcache0": dict(BCACHE)}
        self.cgroups: Dict[str, Dict[str, Dict[str, str]]] = {}
        self.inodes: Dict[str, int] = {}
        self.units: Optional[Dict[str, List[Tuple[str, Dict[str, str]]]]] = None
        self.commands: List[Sequence[str]] = []
        self.jobs: List[FakeJob] = []
        self.stalled = False
        self.ledger = Path("/nowhere/ledger.json")
        self.min_scale = 1  # 10000: the kernels from 6.2 to 6.7
        self.texts["/proc/self/mountinfo"] = (
            f"31 25 0:26 / {CGROUPS} rw - cgroup2 cgroup2 rw"
        )
        self._new("/sys/block/bcache0/bcache")
        self.plug("8:0", "sda")
        self.mkdir("/system.slice/dump.service")

    # ---- the world around ----------------------------------------------

    def plug(self, devno: str, disk: str) -> None:
        self.bdis[devno] = dict(BDI)
        self.queues[disk] = {"nr_requests": 64, "max_sectors_kb": MAX_HW_KB}
        self._new(
            f"/sys/class/bdi/{devno}", f"/sys/block/{disk}/queue", f"/sys/dev/block/{devno}"
        )

    def unplug(self, devno: str, disk: str) -> None:
        del self.bdis[devno], self.queues[disk]
        del self.inodes[f"/sys/class/bdi/{devno}"], self.inodes[f"/sys/block/{disk}/queue"]
        del self.inodes[f"/sys/dev/block/{devno}"]
        for lines in self.cgroups.values():
            lines.pop(devno, None)  # with the disk's part of the cgroup, blkg_destroy()

    def mkdir(self, cgroup: str) -> None:
        self.cgroups[cgroup] = {}
        self._new(CGROUPS + cgroup)
        self._apply(cgroup)

    def rmdir(self, cgroup: str) -> None:
        del self.cgroups[cgroup], self.inodes[CGROUPS + cgroup]

    def boot_systemd(self) -> None:
        self.units = {cgroup.rpartition("/")[2]: [] for cgroup in self.cgroups}
        self._new("/run/systemd/system")

    def release(self) -> None:
        """The disk moves again: what was held comes to its end."""
        self.stalled = False
        for job in self.jobs:
            job.go()

    def state(self) -> object:
        """All that has to be as it was found."""
        io_max = {
            (cgroup, devno, key): value
            for cgroup, lines in self.cgroups.items()
            for devno, pairs in lines.items()
            for key, value in pairs.items()
            if value != "max"
        }
        disks = (str(self.bdis), str(self.queues), str(self.bcaches))
        return self.limits, dict(self.flush), disks, io_max

    # ---- KernelFiles ---------------------------------------------------

    def inode(self, name: str) -> Optional[int]:
        return self.inodes.get(name)

    def read(self, name: str) -> str:
        if name in self.errors:
            raise OSError(self.errors[name], os.strerror(self.errors[name]), name)
        head, _, last = name.rpartition("/")
        if name.startswith(SYSCTL) and last in self.flush:
            return str(self.flush[last])
        if head.startswith("/sys/class/bdi/"):
            return self._read_bdi(self._one(self.bdis, head.rpartition("/")[2], name), last, name)
        if head.endswith("/bcache"):
            return str(self._one(self.bcaches, head.split("/")[3], name)[last])
        if head.startswith("/sys/block/"):
            return str(self._one(self.queues, head.split("/")[3], name)[last])
        if name.startswith(CGROUPS):
            lines = self._one(self.cgroups, head[len(CGROUPS) :], name)
            return "\n".join(
                " ".join([devno, *(f"{k}={pairs.get(k, 'max')}" for k in KEYS)])
                for devno, pairs in lines.items()
            )
        return super().read(name)

    def write(self, name: str, value: str) -> None:
        if name.startswith(SYSCTL) and name[len(SYSCTL) :] not in self.flush:
            super().write(name, value)
        else:
            self.faulty_write(name, name, value, lambda: self.poke(name, value))

    def poke(self, name: str, value: str) -> None:
        """A write by somebody else: no fault and no crash of ours touches it."""
        head, _, last = name.rpartition("/")
        if name.startswith(SYSCTL):
            self.flush[last] = int(value)
        elif head.startswith("/sys/class/bdi/"):
            self._write_bdi(self._one(self.bdis, head.rpartition("/")[2], name), last, int(value))
        elif head.endswith("/bcache"):
            most = 40 if last == "writeback_percent" else 1 << 32
            least = 1 if last == "writeback_rate_minimum" else 0
            bcache = self._one(self.bcaches, head.split("/")[3], name)
            bcache[last] = min(most, max(least, int(value)))
        elif head.startswith("/sys/block/"):
            self._write_queue(self._one(self.queues, head.split("/")[3], name), last, int(value))
        else:
            lines = self._one(self.cgroups, head[len(CGROUPS) :], name)
            devno, *pairs = value.split()
            lines.setdefault(devno, {}).update(dict(pair.split("=") for pair in pairs))

    # ---- handlers ------------------------------------------------------

    def _new(self, *names: str) -> None:
        for name in names:
            self._next_inode += 1
            self.inodes[name] = self._next_inode

    def _one(self, table: Dict[str, T], key: str, name: str) -> T:
        if key not in table:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return table[key]

    def _read_bdi(self, bdi: Dict[str, int], last: str, name: str) -> str:
        if last in bdi:
            return str(bdi[last])
        if last not in ("min_bytes", "max_bytes"):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        ratio = bdi[last.replace("bytes", "ratio_fine")]
        return str(self.thresholds()[0] * PAGE * ratio // 1_000_000)

    def _write_bdi(self, bdi: Dict[str, int], last: str, value: int) -> None:
        _refuse(last == "strict_limit" and value not in (0, 1))
        if last == "min_ratio_fine":
            value *= self.min_scale
            _refuse(value > bdi["max_ratio_fine"])
            others = sum(b["min_ratio_fine"] for b in self.bdis.values() if b is not bdi)
            _refuse(value > bdi["min_ratio_fine"] and others + value >= 1_000_000)
        if last == "max_ratio_fine":
            _refuse(value > 1_000_000 or value < bdi["min_ratio_fine"])
        bdi[last] = value

    def _write_queue(self, queue: Dict[str, int], last: str, value: int) -> None:
        if last == "nr_requests":
            _refuse(value > 256)
            value = max(4, value)
        else:
            _refuse(0 < value < 4)
            value = min(value or MAX_HW_KB, MAX_HW_KB)
        queue[last] = value

    # ---- children ------------------------------------------------------

    def run(self, argv: Sequence[str]) -> Ended:
        """What a child would do: one write, or systemctl."""
        if argv[0] != "systemctl":
            self.write(argv[-2], argv[-1])
            return Ended(0, "", "")
        self.commands.append(argv)
        assert self.units is not None
        # A user may call a unit -H; systemctl would take it for an option.
        verb, unit = argv[1], argv[argv.index("--") + 1]
        if unit not in self.units and verb == "show":
            return Ended(0, "", "")
        if unit not in self.units:
            return Ended(1, "", f"Failed: Unit {unit} not found.")
        if verb == "show":
            return Ended(0, self._show(unit), "")
        name = f"systemctl {unit}"
        if self.crash_before is not None:
            if self.crash_before == 0:
                raise Crash
            self.crash_before -= 1
        if name in self.write_errors:
            return Ended(1, "", "Failed to set unit properties: Connection timed out")
        prop, _, rest = argv[-1].partition("=")
        path, _, value = rest.rpartition(" ")
        self.set_property(unit, prop, path, value)
        return Ended(0, "", "")

    def set_property(self, unit: str, prop: str, path: str, value: str) -> None:
        assert self.units is not None
        key = next(key for key in KEYS if PROPERTIES[key] == prop)
        entries = self.units[unit]
        known = next((pairs for have, pairs in entries if have == path), None)
        if known is None:
            known = {}
            entries.insert(0, (path, known))  # LIST_PREPEND
        known[key] = "max" if value == "infinity" else value
        for cgroup in self.cgroups:
            self._apply(cgroup)

    def _apply(self, cgroup: str) -> None:
        """Entry by entry, each with all four keys: the last one of a disk wins."""
        for path, pairs in (self.units or {}).get(cgroup.rpartition("/")[2], []):
            devno = self.devno(path)
            if f"/sys/dev/block/{devno}" in self.inodes:  # else systemd goes on to the next
                self.cgroups[cgroup][devno] = {k: pairs.get(k, "max") for k in KEYS}

    def devno(self, path: str) -> str:
        if path.startswith("/dev/block/"):
            return path.rpartition("/")[2]
        try:
            number = os.stat(path).st_dev
        except FileNotFoundError:
            return ""  # a name that went with its disk
        return f"{os.major(number)}:{os.minor(number)}"

    def _show(self, unit: str) -> str:
        assert self.units is not None
        return "\n".join(
            f"{PROPERTIES[key]}={path} {value}"
            for path, pairs in self.units[unit]
            for key, value in pairs.items()
            if value != "max"
        )

    def job(self, work: Work, limit_s: float) -> "FakeJob":
        """In the place of children.Job."""
        job = FakeJob(self, work)
        self.jobs.append(job)
        return job


class FakeJob:
    """Done at once, or as soon as the disk is released."""

    def __init__(self, files: FakeLevers, work: Work) -> None:
        self._files, self._work = files, work
        self.busy, self.overdue = True, False
        self._failure: Optional[Exception] = None
        if not files.stalled:
            self.go()

    @property
    def decided(self) -> bool:
        return not self.busy or self.overdue

    def go(self) -> None:
        if self.busy:
            try:
                self._work(self._files.run)
            except (OSError, ChildError) as error:
                self._failure = error
            self.busy = False

    def failure(self) -> Optional[Exception]:
        return ChildError("not done within 5 s") if self.busy else self._failure

    def wait(self, timeout_s: float) -> None:
        pass


def _refuse(condition: bool) -> None:
    if condition:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
