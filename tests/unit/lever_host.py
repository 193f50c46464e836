# SPDX-License-Identifier: GPL-2.0-or-later
"""A host without a kernel that has every lever, and a daemon whose law asks for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import pytest

from fake_host import FakeHost, Rig
from fake_levers import BDI, CGROUPS, FakeLevers
from fake_vm import SYSCTL
from lever_cases import CAP, FLUSH, NR, SECTORS, UNIT, pace
from writebackd import daemon as daemon_module
from writebackd.actuate import lever_plan
from writebackd.control.decide import decide
from writebackd.kernel import cgroup_io_max
from writebackd.types.levers import Setting

PIN = 64 << 20
RATE = 20_000_000
WISHES = (FLUSH, *CAP, NR, SECTORS, pace(RATE))
# One write of a disk at a time: so many ticks until all of them are as wished, or home.
SETTLE = 5
IO_MAX = f"{CGROUPS}{UNIT}/io.max"
BDI_DIR, QUEUE_DIR = "/sys/class/bdi/8:0", "/sys/block/sda/queue"
LEVER_FILES = (
    f"{SYSCTL}dirty_writeback_centisecs", f"{BDI_DIR}/strict_limit", f"{BDI_DIR}/max_ratio_fine",
    f"{BDI_DIR}/min_ratio_fine", f"{QUEUE_DIR}/nr_requests", f"{QUEUE_DIR}/max_sectors_kb", IO_MAX,
)  # fmt: skip
_THEIRS = ("/sys/class/bdi/", CGROUPS, "/sys/dev/block/", "/run/systemd/")


class LeverHost(FakeHost, FakeLevers):
    """The tree of FakeHost, with the levers of FakeLevers in it."""

    def read(self, name: str) -> str:
        if name in self.raw or not _is_lever(name):
            return FakeHost.read(self, name)
        return FakeLevers.read(self, name)

    def write(self, name: str, value: str) -> None:
        name = name[len(self._prefix) :] if name.startswith(self._prefix) else name  # a child's
        if _is_lever(name):
            FakeLevers.write(self, name, value)
        else:
            FakeHost.write(self, name, value)

    def inode(self, name: str) -> Optional[int]:
        if name.startswith(_THEIRS) or name == QUEUE_DIR:
            return FakeLevers.inode(self, name)
        return super(FakeLevers, self).inode(name)

    def everything(self) -> Tuple[object, ...]:
        """What has to be as it was found; with systemd its properties as well."""
        properties: Dict[str, Any] = {
            unit: [(path, {k: v for k, v in pairs.items() if v != "max"}) for path, pairs in lines]
            for unit, lines in (self.units or {}).items()
        }
        known = {unit: [each for each in lines if each[1]] for unit, lines in properties.items()}
        return self.state(), str(known)

    def held(self) -> bool:
        """Whether every lever is as wished."""
        rate = self.cgroups[UNIT].get("8:0", {}).get("wbps")
        queue = self.queues["sda"]
        return (
            self.limits.dirty_bytes == PIN
            and self.flush["dirty_writeback_centisecs"] == 100
            and self.bdis["8:0"]["strict_limit"] == 1
            and self.bdis["8:0"] != BDI
            and (queue["nr_requests"], queue["max_sectors_kb"]) == (8, 128)
            and rate == str(RATE)
        )


def _is_lever(name: str) -> bool:
    return name in LEVER_FILES or name.startswith(("/sys/class/bdi/8:0/", CGROUPS))


class Wishing:
    """In the place of the law's word on the levers."""

    def __init__(self) -> None:
        self.wishes: Tuple[Setting, ...] = ()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wished(*given: Any) -> Any:
            decision, memory = decide(*given)
            return replace(decision, settings=self.wishes), memory

        monkeypatch.setattr(daemon_module, "decide", wished)


def lever_rig(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, systemd: bool
) -> "Tuple[Rig, LeverHost, Wishing]":
    """The daemon, whose law asks for nothing yet."""
    host, wishing = LeverHost(tmp / "root"), Wishing()
    host.inodes[f"{CGROUPS}/cgroup.controllers"] = 1
    if systemd:
        host.boot_systemd()
        host.set_property("dump.service", "IOReadBandwidthMax", "/dev/block/8:0", "900")
    else:
        host.poke(IO_MAX, "8:0 rbps=900")
    monkeypatch.setattr(lever_plan, "Job", host.job)
    monkeypatch.setattr(cgroup_io_max, "_APPLY_S", 0.0)
    wishing.install(monkeypatch)
    rig = Rig(tmp, monkeypatch, host)
    return rig, host, wishing
