# SPDX-License-Identifier: GPL-2.0-or-later
"""Units in policy files and on the command line: parsed and formatted exactly.

Every ``format_*`` gives text that its ``parse_*`` reads back to the same number, so that a
rendered policy equals the policy. Every ``parse_*`` raises UnitError. Arithmetic is decimal, never
binary floating point: ``0.1`` of a second must stay what the admin wrote.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from functools import partial
from ipaddress import ip_address
from typing import Callable, Dict, Optional, Pattern, Tuple
from urllib.parse import urlsplit

# 1024-based, as the kernel's and systemd's sizes are.
_SIZE: Dict[str, int] = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIME: Dict[str, Fraction] = {
    "h": Fraction(3600),
    "min": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
    "us": Fraction(1, 1000000),
}
_SWITCH = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
# The digits are bounded: Python 3.11 refuses to convert very long ones with a bare ValueError.
_NUMBER = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,40})?)[ \t]*([^0-9. \t].*)?")
# At most 255 characters, the length of a unit's name (UNIT_NAME_MAX); disks have 31.
_GLOB = re.compile(r"(?!.{256})(?:[A-Za-z0-9_.:!*?+@-]|\[!?[A-Za-z0-9-]+\])+")
# Letters that systemd allows in the name of a unit, and those of a glob.
_UNIT_GLOB = re.compile(r"(?!.{256})(?:[A-Za-z0-9_.:@\\*?-]|\[!?[A-Za-z0-9-]+\])+")
# A part before the @ that no shell and no sendmail reads as an option; a local user has no @.
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+%-]{0,63}(?:@[A-Za-z0-9][A-Za-z0-9.-]{0,252})?")
# Dirty pages are counted for the whole disk.
_PARTITION = re.compile(
    r"((?:[hsv]d|dasd)[a-z]+|(?:nvme\d+n|mmcblk|md|nbd|loop)\d+(?=p))p?\d+"
    r"|(/dev/disk/.+|(?:wwn|ata|scsi|nvme|virtio|usb)-[^/]+)-part\d+"
)
_GLOB_RANGE = re.compile(r"([A-Za-z0-9])-([A-Za-z0-9])")

# A policy of 1 MiB could hold a quarter of a million patterns, which are compared with each
# other at load and with every device in every tick.
MOST_GLOBS = 1024
# Each URL has a thread of its own, of the 48 tasks that the unit may have.
_MOST_URLS = 4


class UnitError(ValueError):
    """An invalid value; the message says how to write it."""


def _split(text: str, wanted: str, *units: str) -> Tuple[Fraction, str]:
    """Number and unit, which must be one of ``units`` if any are given."""
    match = _NUMBER.fullmatch(text)
    unit = (match.group(2) or "") if match is not None else ""
    if match is None or (units and unit not in units):
        raise UnitError(f"'{shorten(text)}' is not {wanted}")
    return Fraction(match.group(1)), unit


def _plain(number: Decimal) -> str:
    """Decimal text without an exponent and without trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def shorten(text: str) -> str:
    """Text for an error message, cut so that one bad line cannot fill the screen."""
    return text if len(text) <= 60 else text[:57] + "..."


def parse_size(text: str) -> int:
    """Bytes from ``15M``, ``1.5G`` or a plain number of bytes."""
    number, unit = _split(text, "a size: write it like 15M (B, K, M, G, T, 1024-based)")
    if unit not in ("", *_SIZE):
        guess = unit[0].upper()
        hint = text[: -len(unit)].rstrip() + guess if guess in _SIZE else "15M"
        raise UnitError(
            f"unknown size unit '{shorten(unit)}': "
            f"write {hint} (units are B, K, M, G, T, 1024-based)"
        )
    size = number * _SIZE[unit or "B"]
    if size.denominator != 1:
        raise UnitError(
            f"'{shorten(text)}' is {float(size):.15g} bytes, not a whole number: "
            f"write {int(size) + 1}, or use a smaller unit"
        )
    return int(size)


def format_size(size: int) -> str:
    """Bytes as the largest unit that divides them: 15728640 is ``15M``."""
    for unit in ("T", "G", "M", "K"):
        if size and size % _SIZE[unit] == 0:
            return f"{size // _SIZE[unit]}{unit}"
    return f"{size}B"


def parse_count(text: str) -> int:
    """A whole number from ``8``."""
    if not re.fullmatch("[0-9]{1,20}", text):
        raise UnitError(f"'{shorten(text)}' is not a whole number: write it like 8")
    return int(text)


def parse_time(text: str) -> float:
    """Seconds from ``20ms``, ``5s``, ``2min``; a unit is required."""
    number, unit = _split(text, "a time: write it like 20ms, 5s, 2min or 1h")
    if not unit:
        raise UnitError(f"'{shorten(text)}' has no unit: write {text}ms or {text}s")
    if unit not in _TIME:
        hint = "; minutes are 'min'" if unit == "m" else ""
        raise UnitError(f"unknown time unit '{shorten(unit)}': use us, ms, s, min or h{hint}")
    return float(number * _TIME[unit])


def format_time(seconds: float) -> str:
    """Seconds as short, exact text: 0.0075 is ``7.5ms``, 0.5 ``500ms``, 3600 ``1h``."""
    if seconds == 0:
        return "0s"
    # repr() is the shortest decimal that reads back to the same double.
    exact = Decimal(repr(seconds))
    whole = [(unit, size) for unit, size in (("h", 3600), ("min", 60)) if exact % size == 0]
    candidates = [f"{int(exact) // size}{unit}" for unit, size in whole]
    candidates += [
        _plain(exact.scaleb(shift)) + unit for unit, shift in (("s", 0), ("ms", 3), ("us", 6))
    ]
    return min(candidates, key=lambda text: (text.startswith("0."), len(text)))


def _number_with(
    unit: str, wanted: str, exponent: int = 0, *others: str
) -> Tuple[Callable[[str], float], Callable[[float], str]]:
    """Parser and formatter of a number with this unit, 10**exponent of which are one."""

    def parse(text: str) -> float:
        return float(_split(text, wanted, unit, *others)[0] / 10**exponent)

    def write(number: float) -> str:
        return _plain(Decimal(repr(number)).scaleb(exponent)) + unit

    return parse, write


parse_share, format_share = _number_with("%", "a share: write it like 20%", 2)
parse_multiple, format_multiple = _number_with("x", "a multiple: write it like 10x")
parse_frequency, format_frequency = _number_with(
    "/s", "operations per second: write it like 5/s", 0, ""
)


def parse_switch(text: str) -> bool:
    """True for on, yes, true; False for off, no, false."""
    if text not in _SWITCH:
        raise UnitError(f"'{shorten(text)}' is neither on nor off: use {', '.join(_SWITCH)}")
    return _SWITCH[text]


def format_switch(value: bool) -> str:
    return "on" if value else "off"


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser for one of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise UnitError(f"'{shorten(text)}' is not known here: use {' or '.join(choices)}")
        return text

    return parse


def matching(pattern: Pattern[str], what: str) -> Callable[[str], str]:
    """A parser for text in this form; its errors say that other text is not ``what``."""

    def parse(text: str) -> str:
        if not pattern.fullmatch(text):
            raise UnitError(f"'{shorten(text)}' is not {what}")
        return text

    return parse


def parse_list(
    text: str,
    parse_word: Callable[[str], str],
    what: str = "patterns (one with * names many)",
    most: int = MOST_GLOBS,
) -> Tuple[str, ...]:
    """Words separated by blanks; a duplicate is an error."""
    words = text.split()
    if len(words) > most:
        raise UnitError(f"{len(words)} {what}, {most} at most")
    values = tuple(map(parse_word, words))
    for word in values:
        if values.count(word) > 1:
            raise UnitError(f"'{shorten(word)}' is listed twice: remove one")
    return values


_device = matching(_GLOB, "a device: write it like sda, dm-0 or sd*")
_unit = matching(_UNIT_GLOB, "a unit: write it like ssh.service or backup-*.service")
_address = matching(_ADDRESS, "a mail address: write it like root or ops@example.org")


def parse_device(text: str) -> str:
    """A glob over names of block devices, kernel names without ``/dev/``.

    Links and mount points stay as written: which device they mean is found in each scan.
    """
    glob = text[len("/dev/") :] if text.startswith("/dev/") else text
    if "/" in glob:
        glob = text.rstrip("/") or "/"
        if not glob.startswith("/"):
            raise UnitError(f"'{shorten(text)}': write the whole path, like /srv/db")
    else:
        _device(glob)
    partition = _PARTITION.fullmatch(glob)
    if partition:
        disk = partition[1] or partition[2]
        raise UnitError(f"'{shorten(text)}' is a partition: write its disk, {disk}")
    if glob.startswith("/dev/disk/by-part"):
        raise UnitError(f"'{shorten(text)}' is a partition: write its disk or mount point")
    if re.fullmatch(r"nvme\d+", glob):
        raise UnitError(f"'{shorten(text)}' is a controller: write its disk, {glob}n1")
    if re.match(r"(?!driver:)[A-Za-z_]+:", glob):
        raise UnitError(f"'{shorten(text)}': of such names only driver:NAME is known here")
    for low, high in _GLOB_RANGE.findall(glob) if "[" in glob else ():
        if low > high:
            raise UnitError(f"'{shorten(text)}': the range {low}-{high} is empty: swap its ends")
    return glob


def _unit_glob(text: str) -> str:
    if text.endswith("@.service"):
        glob = text.replace("@.", "@*.")
        raise UnitError(f"'{shorten(text)}' is a template, which never runs itself: write {glob}")
    return _unit(text)


def parse_url(text: str) -> str:
    """An http or https URL without a password in it."""
    how = "write it like http://127.0.0.1:9093"
    if not text.isascii() or not text.isprintable() or re.search(r"[ \"<>\\^`{|}]", text):
        raise UnitError(f"'{shorten(text)}' is not a URL: {how}")
    try:
        parts = urlsplit(text)
        port = parts.port  # raises ValueError
    except ValueError:
        raise UnitError(f"'{shorten(text)}' is not a URL: {how}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UnitError(f"'{shorten(text)}' is not a URL of http or https: {how}")
    if port == 0 or "//" in parts.path:
        raise UnitError(f"'{shorten(text)}' is not a URL that can be reached: {how}")
    if "@" in parts.netloc:
        raise UnitError("the URL contains a password, and anybody may read a policy: leave it out")
    if re.search("/api(/|$)", parts.path):
        raise UnitError(f"'{shorten(text)}': leave out /api and what follows; it is appended")
    if parts.query or parts.fragment:
        raise UnitError(f"'{shorten(text)}': leave out what follows ? or #")
    return text


# Lists of them; a cgroup is named as systemd names it, ``postgresql.service``, without a path.
parse_devices = partial(parse_list, parse_word=parse_device)
parse_units = partial(parse_list, parse_word=_unit_glob)
parse_addresses = partial(parse_list, parse_word=_address, what="addresses")
parse_urls = partial(parse_list, parse_word=parse_url, what="URLs", most=_MOST_URLS)


def parse_path(text: str) -> str:
    """The absolute path of a program, without arguments; empty: none."""
    if re.search(r"\s", text):
        raise UnitError(f"'{shorten(text)}' has arguments: name a script that adds them")
    if text and (not text.startswith("/") or not text.isprintable()):
        raise UnitError(f"'{shorten(text)}' is not an absolute path: write it like /usr/bin/page")
    if text.endswith("/"):
        raise UnitError(f"'{shorten(text)}' is a directory: name a program in it")
    return text


def parse_runbook(text: str) -> str:
    """The address of a page, to which a section is appended; empty: none."""
    if text and not re.fullmatch(r"(?:[a-z]+:/)?/\S+", text):
        raise UnitError(f"'{shorten(text)}' is not a URL: write it like https://wiki/writebackd")
    return text


def parse_textfile(text: str) -> Optional[str]:
    """An absolute path that ends in .prom; None when empty."""
    if text and (not text.startswith("/") or not text.endswith(".prom") or "\0" in text):
        raise UnitError(
            f"'{shorten(text)}' is no file that node_exporter reads: use an absolute path that "
            "ends in .prom"
        )
    return text or None


def parse_address(text: str) -> Optional[Tuple[str, int]]:
    """A loopback address and a port from ``127.0.0.1:9900`` or ``[::1]:9900``; None when empty."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
    try:
        address = ip_address(bare)
    except ValueError:
        address = None
    if address is None or (address.version == 6) != (bare != host):
        raise UnitError(
            f"'{shorten(text)}' is not an address and a port: write 127.0.0.1:9900 or [::1]:9900"
        )
    if not address.is_loopback:
        raise UnitError(
            f"{shorten(host)} is not a loopback address, and whoever connects may read metrics: "
            "use 127.0.0.1 behind a proxy that asks for a password"
        )
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise UnitError(f"'{shorten(port)}' is not a port: use 1 to 65535")
    return str(address), int(port)


def format_address(address: Optional[Tuple[str, int]]) -> str:
    """As parse_address() reads it."""
    if address is None:
        return ""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
