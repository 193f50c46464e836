# SPDX-License-Identifier: GPL-2.0-or-later
"""The ledger in /run: original and written values of every lever, saved before a write.

It is in the runtime directory, which is in memory: no disk can delay it, and a reboot removes it
together with the limits.  It is written *before* the kernel files, so that the originals are known
after a crash at any point.

A daemon in a mount namespace of its own may have a /run of its own.  So the limits before the first
write since boot, and who runs, are also kept in the kernel: as extended attributes of a directory
in sysfs, which only CAP_SYS_ADMIN can read or set and which end with the boot, and as a lock of a
file that only root can open.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever, is_lever
from writebackd.kernel.vm import LIMIT, PAIRS, Pair, PairValue, page_size, read_limits
from writebackd.paths import FIRST, IN_USE, RUNTIME_DIR
from writebackd.safe_files import checked, load_json, save_json, with_checksum
from writebackd.types.codec import unpack
from writebackd.types.levers import LeverKind, VmLimits
from writebackd.types.quantities import Bytes, Count

_VERSION = 2
ON_EXIT = ("restore", "keep")

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# The format of proc_do_uuid(), "%pU".  Anything else is not a boot id.
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Earlier values that are kept: of half a minute in which a limit is lowered by steps.
_KEPT = 32


class LedgerError(Exception):
    """The ledger exists but cannot be used; the text says what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"{path} {problem}, so the original limits are unknown and nothing was changed. Set "
            "the limits that this host should have (the kernel's default: sysctl -w "
            "vm.dirty_ratio=20 vm.dirty_background_ratio=10), then remove the file."
        )


@dataclass(frozen=True)
class LeverEntry:
    """A lever other than the global limits, as text: the original and our last two values.

    `identity` (lever_files.py) tells the device or cgroup from a later one of the same name.
    """

    kind: str  # of LeverKind
    target: str
    name: str
    identity: Count
    original: str
    written: Tuple[str, ...]

    @classmethod
    def of(cls, lever: Lever, identity: int, original: str, *written: str) -> LeverEntry:
        return cls(lever.kind.value, lever.target, lever.name, identity, original, written)

    @property
    def lever(self) -> Lever:
        return Lever(LeverKind(self.kind), self.target, self.name)


@dataclass(frozen=True)
class Ledger:
    """`written` has the last two `(limit_bytes, background_bytes)`, the newest last.

    Two, because the ledger is saved first: after a crash the kernel files may have either, or one
    half of each.  Empty if the global limits have no value of ours.
    """

    boot_id: str
    pid: Count
    created_wall_s: float
    on_exit: str
    originals: VmLimits
    written: Tuple[Tuple[Bytes, Bytes], ...]
    levers: Tuple[LeverEntry, ...] = ()
    earlier: Tuple[Tuple[Bytes, Bytes], ...] = ()  # set before these, the newest last

    def ours(self, pair: Pair) -> Tuple[PairValue, ...]:
        """The values of `pair` that this daemon may have written."""
        return tuple((entry[0 if pair is LIMIT else 1], 0) for entry in self.written)

    def is_of_an_earlier_boot(self, files: KernelFiles) -> bool:
        """Whether both boot ids are known and differ: then the reboot has reset all levers.

        A ledger mistaken for an earlier boot's, because a file could not be read for a moment,
        would be set aside and the originals lost.  Using it is safe: it only changes our values.
        """
        return is_other_boot(files, self.boot_id)

    def came_back(self, pair: Pair, value: PairValue) -> bool:
        """Whether another process may have read `value` while it was ours; also as whole pages.

        An original that is by chance as large as a limit of ours is what should be in force.
        """
        if value == pair.value(self.originals):
            return False
        size, half, page = value[0], 0 if pair is LIMIT else 1, page_size()
        return size > 0 and any(
            size in (limits[half], limits[half] // page * page, -(-limits[half] // page) * page)
            for limits in (*self.earlier, *self.written)
        )

    def without(self, pair: Pair, value: PairValue) -> Ledger:
        """The same without the values for which `came_back` is true."""

        def left(entry: Tuple[int, int]) -> Tuple[int, int]:
            if not replace(self, earlier=(), written=(entry,)).came_back(pair, value):
                return entry
            return (0, entry[1]) if pair is LIMIT else (entry[0], 0)

        return replace(
            self, earlier=tuple(map(left, self.earlier)), written=tuple(map(left, self.written))
        )

    def save(self, path: Path) -> None:
        """Raises OSError.

        No fsync: it must outlive the process, not the machine, and the loop must not wait for a
        disk.
        """
        save_json(path, {"version": _VERSION, **asdict(self)})


def load(path: Path) -> Optional[Ledger]:
    """The ledger at `path`; None if there is none. Raises LedgerError."""
    try:
        body = load_json(path)
        return None if body is None else _parse(body)
    except OSError as error:
        raise LedgerError(path, f"cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, RecursionError) as error:
        raise LedgerError(path, f"is damaged ({error})") from error


def check_limits(limits: VmLimits) -> VmLimits:
    """The limits, unless they are impossible. Raises ValueError."""
    if any(bytes_ and ratio for bytes_, ratio in (pair.value(limits) for pair in PAIRS)):
        raise ValueError("both forms of a pair are set")
    return limits


def set_aside(path: Path) -> Path:
    """Rename a ledger that is of no use, so that it can still be read.

    Returns the new name. Raises OSError.
    """
    os.replace(path, old(path))
    return old(path)


def old(path: Path) -> Path:
    return path.with_name(path.name + ".old")


def load_lent(path: Path, files: KernelFiles) -> Optional[Ledger]:
    """What `save_lent` saved in this boot; None if nothing."""
    with contextlib.suppress(LedgerError):
        lent = load(old(path))
        if lent is not None and not lent.is_of_an_earlier_boot(files):
            return lent
    return None


def save_lent(
    ledger: Ledger, path: Path, files: KernelFiles, theirs: Mapping[Pair, PairValue]
) -> None:
    """Save `ledger` as `PATH.old` once another process has set `theirs`. Raises OSError.

    That process may have saved what it found, and may set it again much later.  What it sets now is
    its own, even if one of our values happens to be the same.
    """
    for pair, value in theirs.items():
        ledger = ledger.without(pair, value)
    before = load_lent(path, files)
    known = (*before.earlier, *before.written) if before is not None else ()
    replace(ledger, earlier=distinct((*known, *ledger.earlier))).save(old(path))


def distinct(values: Iterable[Tuple[int, int]]) -> Tuple[Tuple[int, int], ...]:
    """The newest of them, each once."""
    return tuple(dict.fromkeys(values))[-_KEPT:]


def boot_id(files: KernelFiles) -> str:
    """The id of this boot; empty if the kernel does not report it."""
    text = files.try_read(_BOOT_ID) or ""
    return text if _UUID.fullmatch(text) else ""


def is_other_boot(files: KernelFiles, boot: str) -> bool:
    now = boot_id(files)
    return bool(now and boot) and now != boot


def _parse(body: Dict[str, Any]) -> Ledger:
    version = body["version"]
    if version != _VERSION:
        raise ValueError(f"version {version}, this release knows {_VERSION}")
    ledger = unpack(Ledger, body)
    check_limits(ledger.originals)
    if ledger.on_exit not in ON_EXIT or not (0 if ledger.levers else 1) <= len(ledger.written) <= 2:
        raise ValueError("on_exit or written is impossible")
    for entry in ledger.levers:
        if not is_lever(entry.lever) or len(entry.written) not in (1, 2):
            raise ValueError(f"an impossible lever: {entry.lever}")
    return ledger


_SYSFS = "/sys/devices"
_PREFIX = "trusted.writebackd."
KERNEL_LOCK = "/proc/sys/vm/drop_caches"  # it is never written


def first_found(files: KernelFiles) -> Optional[VmLimits]:
    """The limits before the first write of any writebackd since boot; None if none wrote."""
    path = files.path(str(RUNTIME_DIR / FIRST))
    attribute = get_attribute(files, FIRST)
    sources: Tuple[Callable[[], Optional[Dict[str, Any]]], ...] = (
        lambda: load_json(path), lambda: checked(json.loads(attribute or b"null")),
    )  # fmt: skip
    for read in sources:
        with contextlib.suppress(OSError, ValueError, KeyError):
            body = read()
            if body is not None and not is_other_boot(files, body["boot_id"]):
                return check_limits(unpack(VmLimits, body["limits"]))
    return None


def keep_first(files: KernelFiles, limits: VmLimits) -> None:
    """Save the limits, unless they are of an earlier run. Raises OSError."""
    if first_found(files) is None:
        body = {"boot_id": boot_id(files), "limits": asdict(limits)}
        save_json(files.path(str(RUNTIME_DIR / FIRST)), body)
        set_attribute(files, FIRST, json.dumps(with_checksum(body)).encode())


def load_or_first(files: KernelFiles, path: Path) -> Tuple[Optional[Ledger], Tuple[str, ...]]:
    """The ledger, or if that is damaged one that restores `first_found`; lines for display.

    Raises LedgerError if neither can be used.
    """
    try:
        return load(path), ()
    except LedgerError as error:
        first = first_found(files)
        if first is None:
            raise
        try:
            limits = read_limits(files)
        except (OSError, ValueError):
            raise error from None
        written = ((limits.dirty_bytes, limits.dirty_background_bytes),)
        ledger = Ledger(boot_id(files), os.getpid(), time.time(), "restore", first, written)
        line = (
            f"{path} {error.problem}: the limits from before the first write since boot are used,"
            " other settings are not known"
        )
        return ledger, (line,)


def last_in_use(files: KernelFiles) -> Optional[Path]:
    """The runtime directory of a daemon that did not exit cleanly."""
    try:
        return Path(os.fsdecode(files.path(str(RUNTIME_DIR / IN_USE)).read_bytes()))
    except FileNotFoundError:
        value = get_attribute(files, IN_USE)
        return Path(os.fsdecode(value)) if value else None


def get_attribute(files: KernelFiles, name: str) -> Optional[bytes]:
    with contextlib.suppress(OSError):
        return os.getxattr(files.path(_SYSFS), _PREFIX + name)
    return None


def set_attribute(files: KernelFiles, name: str, value: Optional[bytes]) -> None:
    """None: remove it.  Without the right to, the file in /run is all there is."""
    with contextlib.suppress(OSError):
        if value is not None:
            os.setxattr(files.path(_SYSFS), _PREFIX + name, value)
        else:
            os.removexattr(files.path(_SYSFS), _PREFIX + name)
