# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk, units and cgroups in the guest, and a daemon that asks for what a file says."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

import pytest

from tests.kernel.fault_rig import Starter
from tests.kernel.scratch import run
from writebackd.types.levers import LeverKind

MODULES = Path("/run/modules")
CGROUPS = Path("/sys/fs/cgroup")
WISHES = Path("/run/wishes.json")
MIB = 1 << 20

# In front of the daemon: its law asks for what is in a file, and is pinned to a limit that
# may change in every tick, so that it always writes.
WISHING = """
import json
from dataclasses import replace
from pathlib import Path
import writebackd.daemon as d
from writebackd.types.levers import LeverKind, Setting
real, count = d.decide, [0]
def decide(policy, memory, sample, estimates):
    count[0] += 1
    wishes = json.loads(Path("/run/wishes.json").read_text())
    pins = wishes["pins"]
    memory = replace(memory, pin_bytes=pins[count[0] % len(pins)])
    decision, memory = real(policy, memory, sample, estimates)
    settings = tuple(
        Setting(LeverKind(kind), target, name, values[count[0] % len(values)])
        for kind, target, name, values in wishes["settings"]
    )
    return replace(decision, settings=settings), memory
d.decide = decide
"""


def wait_for(
    condition: Callable[[], Any], seconds: float = 20.0, what: str = "", pause_s: float = 0.25
) -> None:
    """In virtual time sleep costs nothing, and to look is what takes long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain {what}"
        time.sleep(pause_s)


Wish = Tuple[LeverKind, str, str, Sequence[int]]


def wishes(pins: Sequence[int], settings: Iterable[Wish] = ()) -> str:
    """What the file says then."""
    rows = [(kind.value, target, name, list(values)) for kind, target, name, values in settings]
    return json.dumps({"pins": list(pins), "settings": rows})


def wish(pins: Sequence[int], settings: Iterable[Wish] = ()) -> None:
    """What the daemon sets from its next tick on: of each list one after the other."""
    new = WISHES.with_suffix(".new")
    new.write_text(wishes(pins, settings))
    new.rename(WISHES)


def wishes_for(device: str, devno: str) -> List[Wish]:
    """A flush interval, and every lever of one disk but a pace."""
    found: List[Wish] = [
        (LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", [100]),
        (LeverKind.QUEUE, device, "nr_requests", [8]),
        (LeverKind.QUEUE, device, "max_sectors_kb", [64]),
    ]
    if Path(f"/sys/block/{device}/bdi/strict_limit").exists():  # since Linux 6.2
        found.append((LeverKind.BDI, devno, "strict_limit", [1]))
        found.append((LeverKind.BDI, devno, "max_bytes", [8 * MIB]))
    return found


def devno_of(device: str) -> str:
    return Path(f"/sys/block/{device}/dev").read_text().strip()


def state(device: str) -> Dict[str, str]:
    """All that the levers but paces may change, as text."""
    names = [
        *(f"/proc/sys/vm/{name}" for name in ("dirty_writeback_centisecs",
                                              "dirty_expire_centisecs")),
        *(f"/sys/block/{device}/queue/{name}" for name in ("nr_requests", "max_sectors_kb")),
        *(f"/sys/block/{device}/bdi/{name}" for name in ("min_ratio", "max_ratio", "min_ratio_fine",
                                                         "max_ratio_fine", "strict_limit")),
    ]  # fmt: skip
    return {name: Path(name).read_text().strip() for name in names if Path(name).exists()}


def insert(module: str, *options: str) -> None:
    run("insmod", str(MODULES / f"{module}.ko"), *options)


def remove(module: str, seconds: float = 10.0) -> None:
    """Unload it as soon as nobody has its devices open: udev looks at them, too."""
    if not Path(f"/sys/module/{module}").exists():
        return
    until = time.monotonic() + seconds
    while True:
        try:
            run("rmmod", module)
            return
        except AssertionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def null_disk() -> Iterator[str]:
    """A disk in memory with a request queue: its name."""
    remove("null_blk")
    insert("null_blk", "memory_backed=1", "gb=1", "nr_devices=1")
    try:
        yield "nullb0"
    finally:
        remove("null_blk")


def io_max(cgroup: str, devno: str) -> Dict[str, str]:
    """What stands in io.max; without the file, or the line, nothing is limited."""
    try:
        text = (CGROUPS / cgroup[1:] / "io.max").read_text()
    except FileNotFoundError:
        return {}
    found = [line.split()[1:] for line in text.splitlines() if line.split()[0] == devno]
    return dict(pair.split("=") for pairs in found for pair in pairs)


def bandwidths(unit: str) -> List[str]:
    """The limits of a unit as systemd has them."""
    properties = "IOWriteBandwidthMax,IOReadBandwidthMax"
    text = run("systemctl", "show", "--property", properties, unit)
    # "8:0 infinity" is what is left of a limit that was taken back.
    return sorted(
        line for line in text.splitlines()
        if line.partition("=")[2] and not line.endswith("infinity")
    )  # fmt: skip


@contextlib.contextmanager
def sleeper(unit: str, *properties: str) -> Iterator[str]:
    """A service that does nothing: the path of its cgroup."""
    options = [word for each in ("IOAccounting=yes", *properties) for word in ("-p", each)]
    run("systemd-run", "--unit", unit, *options, "sleep", "infinity")
    cgroup = f"/system.slice/{unit}"
    wait_for(lambda: (CGROUPS / cgroup[1:] / "io.max").exists(), what="for the io controller")
    try:
        yield cgroup
    finally:
        run("systemctl", "stop", unit)


@contextlib.contextmanager
def session(unit: str) -> Iterator[str]:
    """A scope as pam_systemd has logind make it for a login: no io controller, nothing limited."""
    sleep = subprocess.Popen(["systemd-run", "--scope", "--unit", unit, "--slice", "user-0.slice",
                              "sleep", "infinity"])
    cgroup = f"/user.slice/user-0.slice/{unit}"
    wait_for(lambda: (CGROUPS / cgroup[1:]).exists(), what="for the session")
    try:
        yield cgroup
    finally:
        run("systemctl", "stop", unit)
        sleep.wait(10)


@contextlib.contextmanager
def group(name: str) -> Iterator[str]:
    """A cgroup that is nobody's unit."""
    (CGROUPS / "cgroup.subtree_control").write_text("+io")
    (CGROUPS / name).mkdir()
    try:
        yield f"/{name}"
    finally:
        os.rmdir(CGROUPS / name)


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    starter = Starter(WISHING)
    yield starter
    starter.close()
