# SPDX-License-Identifier: GPL-2.0-or-later
"""Parsers of options, beside those of policies; each raises ValueError."""

from __future__ import annotations

from typing import Any, Callable, Dict, Type, Union

from writebackd.policy.units import UnitError, parse_size

from ..remains import RigError
from .base import Load


def whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"'{text}' is not a whole number")
    return int(text)


def positive(text: str) -> int:
    number = whole(text)
    if number == 0:
        raise ValueError("'0' is too small: at least 1")
    return number


def parse_rate(text: str) -> int:
    """Bytes per second from ``200M/s``."""
    if not text.endswith("/s"):
        raise UnitError(f"'{text}' is not a rate: write it like 200M/s")
    return parse_size(text[:-2].rstrip(" \t"))


def positive_size(text: str) -> int:
    size = parse_size(text)
    if size == 0:
        raise ValueError(f"'{text}' is too small")
    return size


def size_or_auto(text: str) -> Union[int, str]:
    return text if text == "auto" else positive_size(text)


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"'{text}' is none of {', '.join(choices)}")
        return text
    return parse


def parsed(kind: Type[Load], **given: str) -> Dict[str, Any]:
    """Options of a load outside of a scenario's file, those not given by default."""
    unknown = sorted(set(given) - set(kind.OPTIONS))
    if unknown:
        raise RigError(f"{kind.KIND} has no option {', '.join(unknown)}")
    return {key: parser(given.get(key, default))
            for key, (parser, default) in kind.OPTIONS.items()}
