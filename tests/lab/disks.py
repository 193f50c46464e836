# SPDX-License-Identifier: GPL-2.0-or-later
"""Disks that the model can be: parameters, presets, and changes while one runs.

The model itself is in disk/; model.h there says what each parameter does.
"""

from __future__ import annotations

import configparser
import json
import socket
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

from writebackd.policy import units

from .loads.options import one_of
from .remains import RigError

PRESETS = Path(__file__).with_name("presets.conf")
SMALLEST = 512 << 20  # bytes of a scaled disk: mkfs.xfs refuses less than 300 MB


@dataclass(frozen=True)
class Disk:
    """Parameters of the model; sizes and bytes per second as 512M, 1024-based.

    The defaults are the RAID of the tables in the documentation, in its best health.
    """

    size: str = "16G"
    # The way in, and the write cache
    link: str = "1G"
    latency_us: int = 100
    cache: str = "512M"  # 0: none
    mode: str = "writeback"  # or writethrough: every write waits for the media
    protected: bool = True  # no: the cache is lost with the power, so a flush empties it
    # What is dirty is destaged from one share of the cache on down to another (high 0: always), as
    # fast as the media can, or all of it within some seconds
    destage_high: float = 0.0
    destage_low: float = 0.0
    destage_s: float = 0.0
    read_cache: str = "32M"  # of what was written or read last
    # The media
    rate: str = "250M"  # all spindles together, sequential
    seek_us: int = 100
    scatter_us: int = 0  # media time of a run that follows on no other, however near
    rotational: bool = False  # only a hint for the kernel's queue, the model does not ask
    spindles: int = 1  # that hold data
    chunk: str = "256K"  # bytes in a row on one spindle
    parity: int = 0  # spindles more: whole stripes cost nothing extra, parts are read first
    rebuild: float = 0.0  # share of the media's time that a rebuild takes
    # Flash: the drive's own garbage collection, and compression
    fill: float = 0.0  # share of the drive in use at the start; what is written adds to it
    gc_start: float = 1.0  # share in use from which the write rate falls
    gc_floor: float = 1.0  # factor on the write rate of a full drive
    gc_swing_s: float = 0.0  # it collects for so long, then rests for so long; 0: steadily
    compress: float = 1.0  # factor on the media time of data that is all the same
    # Contracts and neighbours
    iops: int = 0  # requests per second, 0: no cap
    bandwidth: str = "0"  # bytes per second, 0: no cap
    burst_s: float = 0.0  # seconds of both caps that an idle volume saves up
    neighbour: str = "0"  # bytes per second that another host writes to the same array
    neighbour_kind: str = "sequential"  # or random

    def args(self, control: Optional[Path] = None) -> List[str]:
        """KEY=VALUE for the plugin; `control`: where its control socket is to be."""
        values = {key: _PARSERS[key](str(value)) for key, value in asdict(self).items()
                  if key != "rotational"}
        if control is not None:
            values["control"] = str(control)
        return [f"{key}={value}" for key, value in values.items()]

    @property
    def cache_bytes(self) -> int:
        return units.parse_size(self.cache)

    @property
    def rate_bytes(self) -> int:
        return units.parse_size(self.rate)

    @property
    def stripe_bytes(self) -> int:
        """Data of one; 0 without parity, where nobody cares."""
        return units.parse_size(self.chunk) * self.spindles if self.parity else 0

    def scaled(self, factor: float) -> Disk:
        """The same disk for a slower host: bytes shrink, times, chunks and requests do not."""
        changes = {key: scaled_setting(key, str(getattr(self, key)), factor) for key in _SCALED}
        changes["size"] = str(max(int(changes["size"]), SMALLEST))
        return replace(self, **changes)  # type: ignore[arg-type]


def _size(text: str) -> str:
    return str(units.parse_size(text))


def _natural(text: str) -> str:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"'{text}' is not a whole number")
    return text


def _decimal(text: str) -> str:
    float(text)
    return text


def _yes_no(text: str) -> str:
    # True and False are what asdict() of a Disk has.
    plain = {"True": "yes", "False": "no"}.get(text, text)
    if plain not in ("yes", "no"):
        raise ValueError(f"'{text}' is neither yes nor no")
    return plain


_SIZES = ("size", "link", "cache", "read_cache", "rate", "chunk", "bandwidth", "neighbour")
_SCALED = tuple(key for key in _SIZES if key != "chunk")
_PARSERS: Dict[str, Callable[[str], str]] = {
    **{field.name: {"int": _natural, "float": _decimal, "bool": _yes_no}.get(str(field.type), _size)
       for field in fields(Disk)},
    "mode": one_of("writeback", "writethrough"),
    "neighbour_kind": one_of("sequential", "random"),
}
# What only a running disk can be told: to hang, and to fail.
_COMMANDS: Dict[str, Callable[[str], str]] = {
    "stall": _decimal,  # seconds, from now
    "fail_writes": _natural,  # so many requests end with an error
    "fail_reads": _natural,
    "fail_share": _decimal,  # of the requests that come meanwhile; 1 unless told
}
# The model is laid out by these.
_FIXED = ("size", "rotational", "spindles", "chunk", "parity")


def check_setting(key: str, value: str) -> None:
    """RigError unless a running disk can be told `key=value`, as far as its form goes."""
    parsers = {**_PARSERS, **_COMMANDS}
    if key not in parsers:
        raise RigError(f"a disk has no {key}: take one of "
                       f"{', '.join(each for each in parsers if each not in _FIXED)}")
    if key in _FIXED:
        raise RigError(f"{key} cannot be changed while a disk runs")
    try:
        parsers[key](value)
    except ValueError as error:
        raise RigError(f"{key}: {error}") from None


def scaled_setting(key: str, value: str, factor: float) -> str:
    """The value that makes the same change on a disk that was scaled."""
    if key not in _SCALED:
        return value
    return str(int(units.parse_size(value) * factor))


def read_ini(path: Path) -> Dict[str, Dict[str, str]]:
    """Sections and their keys as text; RigError with file and line."""
    reader = configparser.ConfigParser(interpolation=None, delimiters=("=",),
                                       comment_prefixes=("#",), strict=True, default_section="")
    reader.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        reader.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise RigError(f"{path.name}: {error}") from None
    return {section: dict(reader[section]) for section in reader.sections()}


def presets(path: Path = PRESETS) -> Dict[str, Disk]:
    """All presets of the file; RigError with file, section and key."""
    found = {}
    for name, values in read_ini(path).items():
        for key, value in values.items():
            where = f"{path.name}: [{name}]"
            if key not in _PARSERS:
                raise RigError(f"{where}: a disk has no {key}: take one of {', '.join(_PARSERS)}")
            try:
                _PARSERS[key](value)
            except ValueError as error:
                raise RigError(f"{where}: {key}: {error}") from None
        found[name] = _disk(values)
    return found


def _disk(values: Mapping[str, str]) -> Disk:
    made: Dict[str, Any] = {}
    for key, value in values.items():
        parser = _PARSERS[key]
        if parser is _natural:
            made[key] = int(value)
        elif parser is _decimal:
            made[key] = float(value)
        elif parser is _yes_no:
            made[key] = _yes_no(value) == "yes"
        else:
            made[key] = value
    return Disk(**made)


def preset(name: str) -> Disk:
    found = presets()
    if name not in found:
        raise RigError(f"no disk {name}: take one of {', '.join(sorted(found))}")
    return found[name]


class Control:
    """Talks to a running disk; every error is RigError and says what the disk said."""

    TIMEOUT_S = 5.0

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket: Optional[socket.socket] = None

    def set(self, key: str, value: str) -> None:
        """Change a parameter, or one of the commands: stall, fail_writes, fail_reads."""
        check_setting(key, value)
        self._ask(f"set {key} {({**_PARSERS, **_COMMANDS})[key](value)}")

    def get(self) -> Dict[str, Any]:
        """The disk as it is now; model.h names the fields."""
        answer: Dict[str, Any] = json.loads(self._ask("get"))
        return answer

    def fill(self) -> int:
        """Bytes in the write cache that are not on the media."""
        return int(self.get()["fill"])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, line: str) -> str:
        try:
            answer = self._exchange(line)
        except OSError as error:
            self.close()
            raise RigError(f"{self.path}: the disk does not answer: {error}") from None
        status, _, rest = answer.partition(" ")
        if status != "ok":
            raise RigError(f"the disk refused '{line}': {rest}")
        return rest

    def _exchange(self, line: str) -> str:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(self.TIMEOUT_S)
            self._socket.connect(str(self.path))
        self._socket.sendall(line.encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._socket.recv(65536)
            if not part:
                raise ConnectionError("it closed the connection")
            answer += part
        return answer.decode().rstrip("\n")
