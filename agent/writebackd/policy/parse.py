# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses one policy file: strict, every error with file and line.

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
_WINDOW = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Assignment(NamedTuple):
    """One KEY = VALUE line; origin is ``file:line``, section is known, key is not yet."""

    section: str
    key: str
    value: str
    origin: str


class Errors:
    """Collects messages, so that one run of ``policy check`` shows everything to mend."""

    def __init__(self) -> None:
        self.messages: List[str] = []

    def add(self, origin: str, message: str) -> None:
        self.messages.append(f"{origin}: {message}")
        if len(self.messages) >= MAX_ERRORS:
            self.messages.append(f"{origin}: stopped here after {MAX_ERRORS} errors: mend these")
            self.raise_any()

    def raise_any(self) -> None:
        if self.messages:
            raise PolicyError(tuple(self.messages))


def read_file(path: Path) -> str:
    """The text of a regular UTF-8 file of at most 1 MiB; raises PolicyError."""
    try:
        # O_NONBLOCK: a FIFO in a drop-in directory must not hang the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PolicyError((f"{path}: not a regular file: put a policy file there",))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        message = f"{path}: cannot read it: {error.strerror}: check the path and its permissions"
        raise PolicyError((message,)) from None
    except ValueError:
        raise PolicyError((f"{str(path)!r}: not a file name: give a policy file",)) from None
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError((f"{path}: larger than 1 MiB: this is not a policy file",))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8: save it as UTF-8"
        raise PolicyError((message,)) from None


def parse_lines(
    text: str, path: Path, errors: Errors, headers: Dict[str, str]
) -> Iterator[Assignment]:
    """The assignments of a file; malformed lines go to ``errors``.

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
    """The section of a header, blanks and /dev/ taken out; '' when there is no such section."""
    words = header.split()
    name = " ".join(words)
    if name in SECTIONS:
        return name
    if words[:1] == ["device"]:
        if len(words) != 2:
            errors.add(origin, f"[{units.shorten(name)}] needs one device: write [device sda]")
            return ""
        try:
            return f"device {units.parse_device(words[1])}"
        except units.UnitError as error:
            errors.add(origin, f"[{units.shorten(name)}]: {error}")
            return ""
    if words[:1] == ["window"]:
        if len(words) != 2 or not _WINDOW.fullmatch(words[1]):
            errors.add(
                origin,
                f"[{units.shorten(name)}] needs one name of letters, digits and -_.: write "
                "[window night]",
            )
            return ""
        return name
    hint = did_you_mean(name, SECTIONS, "[{}]")
    if words[:1] == ["windows"]:
        hint = ": for values at certain times write [window NAME]"
    if words[:1] == ["devices"]:
        hint = ": for values of one device write [device NAME]"
    known = ", ".join(f"[{each}]" for each in SECTIONS)
    errors.add(
        origin,
        f"unknown section [{units.shorten(name)}]{hint} (sections are {known}, [device NAME], "
        "[window NAME])",
    )
    return ""


def did_you_mean(word: str, known: Iterable[str], shape: str = "'{}'") -> str:
    """': did you mean X?' for a close misspelling, else nothing."""
    plain = word[:60].lower().replace("_", "-")
    close = get_close_matches(plain, list(known), n=1)
    return f": did you mean {shape.format(close[0])}?" if close else ""


def unknown_key(line: Assignment, known: Iterable[str]) -> str:
    """What to do about a key that its section does not have; ``known`` are those it has."""
    name = units.shorten(line.key)
    owner = next((key.section for key in KEYS if key.name == line.key), None)
    if owner is not None and line.section.startswith("device "):
        return f"{name} cannot be set per device, only {', '.join(known)} can: move it to [{owner}]"
    if owner is not None and line.section.startswith("window "):
        return f"{name} cannot be set per window, only {', '.join(known)} can: move it to [{owner}]"
    if owner is not None:
        return f"{name} does not belong in [{line.section}]: move it to [{owner}]"
    hint = did_you_mean(line.key, [key.name for key in KEYS]) or f": use {', '.join(known)}"
    return f"unknown key '{name}' in [{line.section}]{hint}"
