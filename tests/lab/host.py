# SPDX-License-Identifier: GPL-2.0-or-later
"""What the lab sees and changes of its host: limits, knobs, processes, loops, mounts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Set, Tuple

VM = Path("/proc/sys/vm")
PAIRS = (("dirty_bytes", "dirty_ratio"),
         ("dirty_background_bytes", "dirty_background_ratio"))
INTERVALS = ("dirty_writeback_centisecs", "dirty_expire_centisecs")

# What outlives the detach of a loop or nbd device, since the gendisk and its BDI stay.
# The scheduler first: a change of it resets some of the others.
QUEUE_KNOBS = ("scheduler", "nr_requests", "wbt_lat_usec", "max_sectors_kb", "read_ahead_kb",
               "rotational", "write_cache", "nomerges", "rq_affinity")
BDI_KNOBS = ("strict_limit", "min_ratio", "max_ratio")

Limits = Dict[str, int]
DEFAULT_LIMITS: Limits = {"dirty_bytes": 0, "dirty_ratio": 20,
                          "dirty_background_bytes": 0, "dirty_background_ratio": 10}


def fixed_limits(size: int, background: Optional[int] = None) -> Limits:
    """In bytes; half of it in the background unless told, as in the published tuning."""
    return {"dirty_bytes": size, "dirty_ratio": 0, "dirty_background_ratio": 0,
            "dirty_background_bytes": size // 2 if background is None else background}


def read_limits() -> Limits:
    """All values behind the dirty limits, both forms of each pair."""
    names = [name for pair in PAIRS for name in pair] + list(INTERVALS)
    return {name: int((VM / name).read_text()) for name in names}


def write_limits(wanted: Limits) -> None:
    """Make the limits read like `wanted`; what is not in there stays.

    A pair is one setting in two forms: writing one zeroes the other, and 0 may
    not be written to the bytes form.  So the form in force is written.
    """
    now = read_limits()
    wanted = {**now, **wanted}
    for in_bytes, as_ratio in PAIRS:
        form = in_bytes if wanted[in_bytes] else as_ratio
        if (now[in_bytes], now[as_ratio]) != (wanted[in_bytes], wanted[as_ratio]):
            (VM / form).write_text(str(wanted[form]))
    for name in INTERVALS:
        if now[name] != wanted[name]:
            (VM / name).write_text(str(wanted[name]))


def device_written(device: str) -> int:
    """Bytes written to a block device (loop3) since it was made."""
    return _sectors(device, 6)


def device_read(device: str) -> int:
    """The same of reads."""
    return _sectors(device, 2)


def _sectors(device: str, column: int) -> int:
    columns = Path(f"/sys/block/{device}/stat").read_text().split()
    return int(columns[column]) * 512  # sectors, whatever the device's own are


def busy_processors() -> float:
    """Seconds that all processors together have worked; waiting for a disk is no work."""
    times = os.sysconf("SC_CLK_TCK")
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / times


def dirty_limit(device: str) -> int:
    """In force for a block device (loop3), in bytes: the host's, or its own where that is less."""
    whole, bdi = vmstat("nr_dirty_threshold"), Path(f"/sys/block/{device}/bdi")
    try:
        strict = (bdi / "strict_limit").read_text().strip() == "1"
        return min(whole, int((bdi / "max_bytes").read_text())) if strict else whole
    except OSError:  # before Linux 6.2
        return whole


def vmstat(name: str) -> int:
    """A counter of /proc/vmstat, in bytes for those that count pages."""
    match = re.search(rf"^{name} (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    if match is None:
        raise KeyError(f"/proc/vmstat has no {name}")
    return int(match.group(1)) * os.sysconf("SC_PAGE_SIZE")


def knobs(device: str) -> Dict[str, str]:
    """{path: value} of the settings of a block device (loop3) that the running kernel has."""
    block = Path("/sys/block") / device
    found = {}
    for path in [*(block / "queue" / name for name in QUEUE_KNOBS),
                 *(block / "bdi" / name for name in BDI_KNOBS)]:
        with contextlib.suppress(OSError):  # wbt_lat_usec is there and yet has no value
            found[str(path)] = read_knob(path)
    return found


def read_knob(path: Path) -> str:
    """Its value; of a list with a choice in brackets, the choice."""
    text = path.read_text().strip()
    chosen = re.search(r"\[(.+?)\]", text)
    return chosen.group(1) if chosen else text


def write_knobs(saved: Dict[str, str]) -> None:
    """Put knobs back, {path: value}; those that are gone or as they were are left alone."""
    for name, value in saved.items():
        path = Path(name)
        with contextlib.suppress(OSError):
            if read_knob(path) != value:
                path.write_text(value)


def environ(pid: int) -> List[bytes]:
    """What a process was started with; nothing of one that has gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def marked(mark: str) -> List[int]:
    """Processes with an entry that begins with `mark` in their environment, and their children.

    The children, because PostgreSQL's write their titles over their environment.  They come
    before their parents.
    """
    wanted = mark.encode()
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found = {pid for pid in pids if any(entry.startswith(wanted) for entry in environ(pid))}
    parents = {pid: parent_of(pid) for pid in pids}
    grown = 0
    while grown != len(found):
        grown = len(found)
        found |= {pid for pid in pids if parents[pid] in found}

    def generation(pid: int) -> int:
        return 1 + generation(parents[pid]) if parents[pid] in found else 0

    return sorted(found - {os.getpid()}, key=generation, reverse=True)


def parent_of(pid: int) -> int:
    """Its parent's number; 0 of a process that has gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def stop(mark: str, how: signal.Signals, wait_s: float) -> List[int]:
    """Signal all marked processes until none is left or the time is up; returns the rest.

    Again and again, because a loop in a shell starts the next child meanwhile.  A child that
    carries no mark is found by its parent alone, so none may lose it: all are stopped first,
    then children are signalled before their parents.  Whoever is killed in between leaves
    some that are stopped, and can be found.
    """
    deadline = time.monotonic() + wait_s
    signalled: Set[int] = set()
    while True:
        left = marked(mark)
        # Twice would cut short the clean end of a program that obeyed the first.
        due = [pid for pid in left if pid not in signalled or how == signal.SIGKILL]
        _signal(reversed(due), signal.SIGSTOP)
        if not set(marked(mark)) - set(left):  # or one started another before it stopped
            _signal(due, how)
            _signal(due, signal.SIGCONT)
            signalled.update(due)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _signal(pids: Iterable[int], how: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def mounts() -> List[Tuple[str, str]]:
    """(source, mountpoint) of every mount, in the order they were made."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, tail = line.partition(" - ")
        found.append((unescape(tail.split()[1]), unescape(fields.split()[4])))
    return found


def unescape(field: str) -> str:
    """Undo the octal escapes of mountinfo, \\040 for a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def loops_on(backing: Path) -> List[str]:
    """Names of the loop devices backed by this file."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == str(backing):
                found.append(path.parts[3])
    return found


def nbds_of(mark: str) -> List[str]:
    """Names of the nbd devices whose client is a process with this mark."""
    clients = marked(mark)
    return [path.parts[3] for path in Path("/sys/block").glob("nbd*/pid")
            if nbd_client(path.parts[3]) in clients]


def nbd_client(device: str) -> int:
    """The process that an nbd device (nbd0) lives by, 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/sys/block/{device}/pid").read_text())
    return 0


def backing_of(device: str) -> str:
    """The file behind a loop device (loop3), "" for anything else."""
    try:
        return Path(f"/sys/block/{device}/loop/backing_file").read_text().strip()
    except OSError:
        return ""
