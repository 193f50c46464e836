# SPDX-License-Identifier: GPL-2.0-or-later
"""Dirty limits of one BDI: /sys/class/bdi/X, since Linux 6.2.

The kernel keeps both as a fraction of the global threshold, in millionths
(BDI_RATIO_SCALE): max_bytes is converted when it is written, and changes with
every change of the global limit; it reads back a page or two off (on 6.18:
4194304 reads 4192647 under 4.6 GiB).  The *_fine files are that fraction itself
and read back what was written, so they restore the original exactly.
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, Optional, Sequence

from writebackd.kernel.files import KernelFiles

WHOLE = 1_000_000
FILES: Dict[str, str] = {
    "max_bytes": "max_ratio_fine",
    "min_bytes": "min_ratio_fine",
    "strict_limit": "strict_limit",
}
# A fraction that is off by less is not written again: in ratio form the global
# threshold follows the memory of the moment, and would ask for a write a tick.
TOLERANCE = 1 / 64

# For the self-test: a share of 1 % and a cap of almost all throttle no writer.
TEST_MIN = 10_000
TEST_MAX = 999_999
MISSING = "this kernel has no limits in bytes per device; Linux 6.8 and later have"
_UNTOUCHED = {"max_ratio_fine": str(WHOLE), "min_ratio_fine": "0", "strict_limit": "0"}


def directory(bdi: str) -> str:
    return f"/sys/class/bdi/{bdi}"


def path(bdi: str, name: str) -> str:
    """The file for the lever `name`. Raises KeyError for an unknown name."""
    return f"{directory(bdi)}/{FILES[name]}"


def fraction(value_bytes: int, threshold_bytes: int) -> int:
    """`value_bytes` in millionths of the global threshold, rounded up.

    A value above the threshold is the whole of it: such a cap has no effect.
    """
    return min(WHOLE, -(-value_bytes * WHOLE // max(1, threshold_bytes)))


def text_for(name: str, value: int, threshold_bytes: int) -> str:
    """The text to write for `value` bytes (0 or 1 for strict_limit)."""
    return str(value if name == "strict_limit" else fraction(value, threshold_bytes))


def holds(name: str, text: str, value: int, threshold_bytes: int) -> bool:
    """Whether `text` in the file means `value` under the current global threshold."""
    wanted = int(text_for(name, value, threshold_bytes))
    slack = 0.0 if name == "strict_limit" else max(1.0, TOLERANCE * wanted)
    return text.isdigit() and abs(int(text) - wanted) <= slack


def value_of(name: str, text: str, threshold_bytes: int) -> int:
    """The value of `text` in the file: bytes, or strict_limit 0 or 1. Raises ValueError."""
    return int(text) if name == "strict_limit" else int(text) * threshold_bytes // WHOLE


def describe(name: str, text: str) -> str:
    """The file's content for display: the file's name tells a fraction from bytes."""
    return text if name == "strict_limit" else f"{FILES[name]}={text}"


def strict_limit(files: KernelFiles, bdi: str, threshold_bytes: int) -> Optional[int]:
    """The limit that holds the device whatever the others do, bytes; None: only the global one."""
    if files.try_read(path(bdi, "strict_limit")) != "1":
        return None
    text = files.try_read(path(bdi, "max_bytes")) or ""
    return value_of("max_bytes", text, threshold_bytes) if text.isdigit() else None


def order(current: Mapping[str, str], wanted: Mapping[str, str]) -> Sequence[str]:
    """The names of `wanted` in an order in which the kernel accepts every step.

    It refuses a minimum above the maximum.  The strict limit is cleared first and
    set last: alone it would limit a quiet device to 1 % of the threshold.
    """
    limits = ["max_bytes", "min_bytes"]
    if "max_bytes" in wanted and int(wanted["max_bytes"]) < int(current.get("min_bytes", "0")):
        limits.reverse()
    strict = ["strict_limit"]
    names = limits + strict if wanted.get("strict_limit") == "1" else strict + limits
    return [name for name in names if name in wanted]


def self_test(files: KernelFiles, bdi: str, threshold_bytes: int) -> Optional[str]:
    """Why the levers of `bdi` cannot be used on this kernel; None if they can.

    Writes a minimum and a maximum that throttle no writer, checks how the kernel
    interprets them, and restores the originals, within a millisecond.  Kernels from 6.2
    to 6.7 take the minimum in another unit.  The strict limit is not tested: without
    matching limits it could throttle a writer.
    """
    try:
        current = {file: files.read(f"{directory(bdi)}/{file}") for file in _UNTOUCHED}
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if current != _UNTOUCHED:
        # FUSE is born with 1 % and strict; an admin's wish is not ours to weigh.
        own = ", ".join(f"{name}={text}" for name, text in current.items())
        return f"it has limits of its own: {own}"
    try:
        problem = _try_out(files, bdi, threshold_bytes)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
    finally:
        unrestored = _put_back(files, bdi)
    return problem or unrestored


def _try_out(files: KernelFiles, bdi: str, threshold_bytes: int) -> Optional[str]:
    for name, value in (("max_bytes", TEST_MAX), ("min_bytes", TEST_MIN)):
        file = path(bdi, name)
        files.write(file, str(value))
        if files.read(file) != str(value):
            return f"{FILES[name]} reads back as {files.read(file)} instead of {value}"
        expected = threshold_bytes * value // WHOLE
        # The threshold moves a little between two looks where it is a ratio.
        if abs(files.read_int(f"{directory(bdi)}/{name}") - expected) > 0.05 * expected + 8192:
            return f"{FILES[name]}={value} is not {value} millionths of the global threshold"
    return _threshold_problem(files, bdi)


def _threshold_problem(files: KernelFiles, bdi: str) -> Optional[str]:
    """The minimum must raise the threshold that throttles writers, but not too much."""
    text = files.try_read(f"/sys/kernel/debug/bdi/{bdi}/stats") or ""
    kilobytes = dict(re.findall(r"^(\w+): *(\d+) kB", text, re.MULTILINE))
    if not {"BdiDirtyThresh", "DirtyThresh"} <= kilobytes.keys():
        return None
    own, whole = int(kilobytes["BdiDirtyThresh"]), int(kilobytes["DirtyThresh"])
    least = whole * TEST_MIN // WHOLE
    if not least - 8 <= own <= whole:
        return f"with a minimum of 1 % its threshold is {own} of {whole} kB"
    return None


def _put_back(files: KernelFiles, bdi: str) -> Optional[str]:
    problem = None
    for name in ("min_bytes", "max_bytes"):
        try:
            files.write(path(bdi, name), _UNTOUCHED[FILES[name]])
        except OSError as error:
            problem = f"cannot restore {FILES[name]}: {error.strerror}"
    return problem
