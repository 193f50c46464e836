# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses one policy file strictly: every error has file and line.

configparser is not used: it forgets line numbers, and ``file:line`` is what an admin needs.
"""

from __future__ import annotations

import os
import re
import stat
from difflib import get_close_matches
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from . import units
from .keys import KEYS, SECTIONS
from .schema import PolicyError

MAX_FILE_BYTES = 1 << 20
# A wrong file (a log, an image) has an error in every line; nobody reads more than this.
MAX_ERRORS = 100
# Keys of an earlier release, with the section that they were in.
REMOVED = {
    ("levers", "queue"): "short queues gained nothing beside a dirty limit",
    ("levers", "nr-requests"): "it belonged to `queue`",
    ("levers", "max-sectors"): "it belonged to `queue`",
    ("levers", "flush-interval"): "the flusher never sleeps in a flood",
}
_WINDOW = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Assignment(NamedTuple):
    """One KEY = VALUE line; origin is ``file:line``, section is known, key is not yet."""

    section: str
    key: str
    value: str
    origin: str


class Errors:
    """Collects messages, so that one run of ``policy check`` shows all errors."""

    def __init__(self) -> None:
        self.messages: List[str] = []

    def add(self, origin: str, message: str) -> None:
        self.messages.append(f"{origin}: {message}")
        if len(self.messages) >= MAX_ERRORS:
            self.messages.append(f"{origin}: stopped after {MAX_ERRORS} errors: fix these first")
            self.raise_any()

    def raise_any(self) -> None:
        if self.messages:
            raise PolicyError(*self.messages)


def read_file(path: Path) -> str:
    """The text of a regular UTF-8 file of at most 1 MiB; raises PolicyError."""
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PolicyError(f"{path}: not a regular file: put a policy file there")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PolicyError(
            f"{path}: cannot read it: {error.strerror}: check the path and its permissions"
        ) from None
    except ValueError:
        raise PolicyError(f"{str(path)!r}: not a file name: give a policy file") from None
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError(f"{path}: larger than 1 MiB: this is not a policy file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PolicyError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8: save it as UTF-8"
        ) from None


def _open(path: str, flags: int) -> int:
    """A FIFO in a drop-in directory must not hang the start."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse_lines(
    text: str, path: Path, errors: Errors, headers: Dict[str, str]
) -> Iterator[Assignment]:
    """The assignments in a file; malformed lines are added to ``errors``.

    ``headers`` gets the origin of each section that it has not.
    """
    section: Optional[str] = None
    seen: Dict[Tuple[str, str], int] = {}
    # Only \n ends a line, as in every editor; str.splitlines() knows eight more.
    for number, raw in enumerate(text.lstrip("\ufeff").split("\n"), start=1):
        origin = f"{path}:{number}"
        line = raw.strip(" \t\r")
        if not line or line[0] in "#;":
            continue
        odd = next((char for char in line if not char.isprintable() and char != "\t"), None)
        if odd is not None:
            errors.add(origin, f"character U+{ord(odd):04X} is not allowed here: remove it")
        elif line.startswith("["):
            if not line.endswith("]"):
                errors.add(origin, "the section header does not end in ']': write [SECTION]")
            section = _section(line[1:-1] if line.endswith("]") else line[1:], origin, errors)
            headers.setdefault(section, origin)
        elif "=" not in line:
            errors.add(origin, f"'{units.shorten(line)}' is not KEY = VALUE: add '=' and a value")
        elif section is None:
            errors.add(origin, "a key before the first section: put a [SECTION] line above it")
        elif section:  # below an unknown header, the header's error is enough
            key, value = (part.strip(" \t") for part in line.split("=", 1))
            first = seen.setdefault((section, key), number)
            if first != number:
                errors.add(
                    origin,
                    f"duplicate key '{units.shorten(key)}' (first on line {first}): remove one",
                )
            elif value.endswith("\\"):
                errors.add(origin, "lines cannot be continued: write the value on one line")
            else:
                yield Assignment(section, key, value, origin)


def _section(header: str, origin: str, errors: Errors) -> str:
    """The normalised section of a header; '' if there is no such section."""
    kind, *names = header.split() or [""]
    name = " ".join([kind, *names])
    if name in SECTIONS:
        return name
    problem = ""
    if kind == "device" and len(names) != 1:
        problem = " needs one device: write [device sda]"
    elif kind == "device":
        try:
            return f"device {units.parse_device(names[0])}"
        except units.UnitError as error:
            problem = f": {error}"
    elif kind == "window":
        if len(names) == 1 and _WINDOW.fullmatch(names[0]):
            return name
        problem = " needs one name of letters, digits and -_.: write [window night]"
    if problem:
        errors.add(origin, f"[{units.shorten(name)}]{problem}")
        return ""
    hint = did_you_mean(name, SECTIONS, "[{}]")
    if kind == "windows":
        hint = ": for values at certain times write [window NAME]"
    if kind == "devices":
        hint = ": for values of one device write [device NAME]"
    known = ", ".join(f"[{section}]" for section in SECTIONS)
    errors.add(
        origin,
        f"unknown section [{units.shorten(name)}]{hint} (sections are {known}, [device NAME], "
        "[window NAME])",
    )
    return ""


def did_you_mean(word: str, known: Iterable[str], shape: str = "'{}'") -> str:
    """': did you mean X?' for a near misspelling, else nothing."""
    plain = word[:60].lower().replace("_", "-")
    close = get_close_matches(plain, list(known), n=1)
    return f": did you mean {shape.format(close[0])}?" if close else ""


def unknown_key(line: Assignment, known: Iterable[str]) -> str:
    """The message for a key that its section does not have; ``known`` are those it has."""
    name, kind = units.shorten(line.key), line.section.partition(" ")[0]
    if (line.section, line.key) in REMOVED:
        return f"{name} was removed: {REMOVED[line.section, line.key]}: delete this line"
    owner = next((key.section for key in KEYS if key.name == line.key), None)
    if owner is not None and kind in ("device", "window"):
        return f"{name} cannot be set per {kind}, only {', '.join(known)} can: move it to [{owner}]"
    if owner is not None:
        return f"{name} does not belong in [{line.section}]: move it to [{owner}]"
    hint = did_you_mean(line.key, [key.name for key in KEYS]) or f": use {', '.join(known)}"
    return f"unknown key '{name}' in [{line.section}]{hint}"
