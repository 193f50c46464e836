# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo on a disk of this host: what it says before it writes, and when it refuses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence

from writebackd import formats
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.topology import scan
from writebackd.types.storage import Device

from . import host
from .agent import Agent
from .ground import OWN
from .loads.flood import beyond_default_limit
from .remains import RigError
from .rig import Rig

BUDGET = 300 << 30  # a volume that takes 5 GB/s took 197
# Zeros may cost a volume nothing: thin, compressed and deduplicated ones do not store them.
DATA = "random"
# No model tells how much the write cache holds, nor when it is empty: 4 GB at 400 MB/s.
DRAIN_S = 10.0
LOOK_S = 5.0
FEW = 1  # syncs in that time that are nobody's commits; journald makes one in minutes


def warning(directory: Path, fs: str, device: str, files: int, floods_s: float, expected_s: float,
            budget: int) -> str:
    """What the run will do to the disk, before it does anything."""
    return (
        f"Disk {device} ({fs}). Files of its own in {directory / OWN}, {formats.size(files)} at"
        f" most, removed at the end.\n"
        f"Floods it for {floods_s:.0f} s, as fast as it takes the data: at 200 MB/s it writes"
        f" {floods_s * 0.2:.0f} GB, at 2 GB/s {floods_s * 2:.0f} GB.\n"
        f"Ends before {formats.size(budget)} are written (--budget). Takes"
        f" {formats.duration(expected_s)}.\n"
        "Sets vm.dirty_* of the whole host meanwhile and puts them back, after Ctrl-C as well;\n"
        "after a kill -9 `make bench-clean` does."
    )


def files_bytes(sync_file: int, flood_file: int) -> int:
    """The most that lies in the directory at a time."""
    return sync_file + max(flood_file, beyond_default_limit())


def refuse_others(rig: Rig, options: Sequence[str]) -> None:
    """RigError where an alert stands, or somebody commits, whom a flood would hold up for seconds.

    By an agent that only observes, which sees whatever way a program syncs.
    """
    names = on_the_disks_of(rig.device, scan(KernelFiles()))
    with Agent(names, rig.directory, rig.spawn, [*options, "--mode", "observe"]) as agent:
        before = agent.status()
        time.sleep(LOOK_S)
        after = agent.status()
    seen = others_syncs(before, after)
    if seen is None:
        raise RigError("this kernel does not show fsync (`writebackctl doctor` says why): neither"
                       f" can be told who syncs on {rig.device}, nor would the agent see it")
    if seen > FEW:
        raise RigError(f"somebody syncs on {rig.device}: {seen} fsyncs in {LOOK_S:.0f} s. Stop it,"
                       " or name a directory on another disk")
    if after["alerts"]:
        first = after["alerts"][0]
        raise RigError(f"alert {first['name']}: {first['summary']}")


def on_the_disks_of(device: str, devices: Sequence[Device]) -> List[str]:
    """What is mounted on its disks: a flood on one volume holds up all of them."""
    disks = {device}
    for each in devices:
        if device in (each.name, *each.leaves):
            disks.update(each.leaves)
    return [each.name for each in devices
            if each.filesystems and not disks.isdisjoint((each.name, *each.leaves))] or [device]


def others_syncs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Optional[int]:
    """Syncs between two answers to `status`, on all devices in them; None: not visible."""
    if after["probe"]["fsync_hook"] is None:
        return None
    first, last = (
        sum(device["counters"]["fsyncs"] for device in status["devices"]
            if device["counters"] is not None and device["state"] != "excluded")
        for status in (before, after)
    )
    return int(last - first)


def check_budget(device: str, before: int, budget: int) -> None:
    """RigError when the device took more bytes than it may."""
    written = host.device_written(device) - before
    if written > budget:
        raise RigError(f"{device} took {formats.size(written)} before the end, more than --budget"
                       f" {formats.size(budget)}: give it a larger one")
