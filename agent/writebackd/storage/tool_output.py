# SPDX-License-Identifier: GPL-2.0-or-later
"""What RAID tools answer: its types, and helpers to parse their text, bounded and strict.

Versions of a tool differ in case, blanks, units after a key and in missing values, so keys are
compared without regard to these, and a missing or strange value is None.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Annotated, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from writebackd.formats import printable
from writebackd.types.quantities import Bytes, Count, Time
from writebackd.types.storage import ArrayWork, CacheMode, Protection, Threshold


class ToolError(ValueError):
    """A tool's output is not as expected; the message says where, or quotes the tool."""


class _Text:
    """What codec.py checks of a text in the report."""

    @staticmethod
    def checked(text: str) -> str:
        if len(text) > 4 * MOST_NAME:
            raise ValueError("no str that is possible")
        return printable(text)


Name = Annotated[str, _Text]


@dataclass(frozen=True)
class Volume:
    """A disk made by a controller, with the kernel's name for it or its number."""

    number: Optional[Count] = None  # SCSI target on the controller's channels for volumes
    disk: Optional[Name] = None  # kernel name
    diskseq: Optional[Count] = None  # of that disk then; None: older than Linux 5.15
    mode: Optional[CacheMode] = None
    works: Tuple[ArrayWork, ...] = ()
    wwn: Optional[Name] = None  # hexadecimal digits of its NAA identifier
    unread: Tuple[Name, ...] = ()  # states whose words are in no row of the tool's table


def all_write_through(volumes: Sequence[Volume]) -> bool:
    """Whether all volumes are known to be write-through; False without volumes."""
    return bool(volumes) and all(volume.mode is CacheMode.WRITE_THROUGH for volume in volumes)


@dataclass(frozen=True)
class Controller:
    """A RAID controller, or a kernel driver in its role."""

    pci: Optional[Name] = None  # as sysfs writes it: 0000:3b:00.0
    model: Optional[Name] = None
    capacity_bytes: Optional[Bytes] = None
    protection: Optional[Protection] = None
    dirty_bytes: Optional[Bytes] = None
    learn_s: Optional[Time] = None
    works: Tuple[ArrayWork, ...] = ()  # on all of its disks, or it is not said on which
    volumes: Tuple[Volume, ...] = ()
    thresholds: Tuple[Threshold, ...] = ()
    slot: Optional[Count] = None  # PCI slot, of one that does not tell its address
    unread: Tuple[Name, ...] = ()  # as in Volume, or why the tool could not read it


# `show all` of eight controllers with 240 disks each is 3 MB of JSON.
MOST_BYTES = 8 << 20
MOST_LINE = 4096  # characters; the rest of a line says nothing more
MOST_CONTROLLERS, MOST_VOLUMES = 64, 1024
MOST_WORKS = 8  # on one volume
MOST_NAME = 120
MOST_CACHE = 1 << 50  # bytes; what is larger was no size
_DIGITS = 18  # of a number: int() takes time that grows with the square of them
_NUMBER = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,6})?)(?![0-9.])\s*([A-Za-z]*)")
_PERCENT = re.compile(r"(?<![0-9.])([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(?:%|percent)")
_PCI = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})[:.]([0-9a-f]{1,2})", re.IGNORECASE
)
_UNITS = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_YEARS = (2000, 2100)
_FORMS = (
    "%m/%d/%Y, %H:%M:%S", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S", "%a %b %d %H:%M:%S %Y",
)  # fmt: skip
# A colon in parentheses is none: "PCI Address (Domain:Bus:Device.Function): 0000:3B:00.0".
_PAIR = re.compile(r"((?:[^:(]|\([^()]*\))*):(.*)", re.DOTALL)
# Colours, and what a progress display leaves behind.
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")
# Escapes of JSON; a backslash that is none is a model's or a serial number's own, also one in
# front of the quote that ends its line.
_ESCAPE = re.compile(r'\\(?:(?!"\s*,?\s*$)["\\/bfnrt]|u[0-9a-fA-F]{4})|\\', re.MULTILINE)

Keys = Dict[str, str]  # of one part of an output, as `Line` has them


class Line(NamedTuple):
    """`key: value` with its indentation; without a colon there is no value."""

    indent: int
    key: str  # as `key_of` has it
    value: Optional[str]
    text: str  # all of it
    ruled: bool = False  # below a rule of dashes: the title of a part, if it has no value


def text_of(data: bytes) -> str:
    """A tool's output. Raises ToolError if it is too large, or not text."""
    if len(data) > MOST_BYTES:
        raise ToolError(f"more than {MOST_BYTES >> 20} MB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        # Serial numbers of strange drives: a few bytes are no reason to know nothing.
        if data.count(b"\0"):
            raise ToolError(f"no text, at byte {error.start}") from None
        return data.decode("utf-8", "replace")


def key_of(text: str) -> str:
    """A key in lower case with single blanks, without the text in parentheses, mostly units."""
    return " ".join(re.sub(r"\([^()]*\)", " ", text.lower()).split())


def lines_of(text: str) -> Iterator[Line]:
    """All lines except empty ones and rules of dashes."""
    ruled = False
    for raw in _CONTROLS.sub("", text).replace("\r", "\n").split("\n"):
        stripped = raw[:MOST_LINE].strip()
        if not stripped.strip("-="):
            ruled = ruled or bool(stripped)
            continue
        pair = _PAIR.fullmatch(stripped)
        key, value = (pair.group(1), pair.group(2).strip()) if pair else (stripped, None)
        yield Line(len(raw) - len(raw.lstrip()), key_of(key), value, stripped, ruled)
        ruled = False


def complaint(text: str, otherwise: str) -> ToolError:
    """An error that quotes the tool's message; `otherwise` if there is none."""
    lines = list(lines_of(text))
    said = next((line.text for line in lines if line.key.startswith("error")), None)
    fails = (line.text for line in lines if re.search("fail|not present", line.text.lower()))
    said = said or next(fails, otherwise)
    return ToolError(printable(said)[:MOST_NAME])


def padded(outputs: Sequence[str], commands: Sequence[Sequence[str]]) -> List[str]:
    """One output for each command; empty for those that were not run."""
    return [*outputs, *[""] * len(commands)][: len(commands)]


def whole(text: Optional[str]) -> Optional[int]:
    """The number at the start of the text, or None."""
    match = re.match(rf"\s*([0-9]{{1,{_DIGITS}}})(?![0-9])", text or "")
    return int(match.group(1)) if match else None


def size_bytes(text: Optional[str], unit: str = "") -> Optional[int]:
    """`1.8 GB`, `512MB`; a bare number is in `unit` (`G`). None if it is not a size."""
    match = _NUMBER.match(text or "")
    if match is None:
        return None
    shift = _UNITS.get((match.group(2) or unit)[:1].lower())
    return possible(int(float(match.group(1)) * (1 << shift))) if shift is not None else None


def possible(count: int) -> Optional[int]:
    """The size of a cache in bytes; None if it is larger than any cache."""
    return count if count <= MOST_CACHE else None


def share(text: Optional[str]) -> Optional[float]:
    """The first percentage in a text as a share of one; None without one up to 100."""
    match = _PERCENT.search(text or "")
    value = float(match.group(1)) if match else None
    return value / 100 if value is not None and value <= 100 else None


def pci_address(text: Optional[str]) -> Optional[str]:
    """`00:1a:00:00` or `0000:3B:00.0` as sysfs writes it: `0000:1a:00.0`."""
    match = _PCI.fullmatch((text or "").strip())
    if match is None:
        return None
    domain, bus, slot, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}" if function < 8 else None


def disk_name(text: Optional[str]) -> Optional[str]:
    """The kernel's name for `/dev/sda`, whatever follows; None if it is not a disk.

    A "/" in it (/dev/cciss/c0d0) is a "!" in sysfs.
    """
    match = re.match(
        r"\s*/dev/((?:(?:cciss|ida|rd)/)?[A-Za-z0-9_!-]{1,31})(?![A-Za-z0-9_!/-])", text or ""
    )
    return match.group(1).replace("/", "!") if match else None


def moment(text: Optional[str]) -> Optional[float]:
    """A local time, as tools write it, in seconds since 1970; None for other text."""
    words = " ".join((text or "")[:64].split())
    for form in _FORMS:
        try:
            parsed = time.strptime(words, form)
        except ValueError:
            continue
        # A clock that was never set, or a learn cycle that never comes.
        if _YEARS[0] <= parsed.tm_year < _YEARS[1]:
            return time.mktime(parsed)
    return None


def name(text: Any) -> Optional[str]:
    """A name of something, made printable."""
    return printable(text.strip()[:MOST_NAME]) or None if isinstance(text, str) else None


def read_json(text: str) -> Any:
    """A JSON document as tools print it. Raises ToolError.

    With text around it, control characters, and backslashes that escape nothing. A key with two
    different values is unknown.
    """
    decoder = json.JSONDecoder(
        parse_int=lambda digits: int(digits) if len(digits) <= _DIGITS else None,
        parse_constant=lambda word: None, object_pairs_hook=_object, strict=False,
    )
    try:
        text = _CONTROLS.sub("", text)
        begin = re.search(r"^\s*[{[]", text, re.MULTILINE)
        text = text[begin.start() if begin else 0 :].lstrip()
        try:
            return decoder.raw_decode(text)[0]
        except ValueError:
            text = _ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else r"\\", text)
            return decoder.raw_decode(text)[0]
    except RecursionError:
        raise ToolError("nested too deep") from None
    except ValueError as error:  # its text quotes nothing of the document
        raise ToolError(f"no JSON: {printable(str(error))[:MOST_NAME]}") from None


def _object(pairs: Sequence[Tuple[str, Any]]) -> Dict[str, Any]:
    values: Dict[str, Any] = {}
    for key, value in pairs:
        values[key] = value if key not in values or values[key] == value else None
    return values


def under(value: Any, *keys: str) -> Dict[str, Any]:
    """The object at these keys; empty if anything on the way is of another type."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def rows(value: Any, most: int = MOST_VOLUMES) -> List[Dict[str, Any]]:
    """The objects in a list, at most `most` of them; one that is in no list is the only one."""
    listed = value[:most] if isinstance(value, list) else [value]
    return [row for row in listed if isinstance(row, dict)]


def word(row: Dict[str, Any], key: str) -> str:
    """A text without surrounding blanks, or a number as text; empty for other types."""
    value = row.get(key)
    known = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return str(value).strip() if known else ""
