# SPDX-License-Identifier: GPL-2.0-or-later
"""Masks host names, addresses, serial numbers and secrets in a bug report.

Secrets become ``***``. What only has to be told apart (disks by their numbers, hosts, people)
becomes a word that is the same everywhere, and in a later bundle of the same host; the key is the
host's machine-id, so that nobody else can try which number it stands for.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections import Counter
from ipaddress import ip_address
from typing import Any, Callable, Iterable, List, Match, Optional, Pattern, Sequence, Set

from writebackd.kernel.argv_redaction import MASK, is_secret, joined, redacted_text
from writebackd.kernel.files import KernelFiles

# A manual is no secret, and tells nobody where the host is.
_URL = re.compile(r"""\b(?!file:)([a-z][a-z0-9+.-]{1,20}://)(?!/)[^\s"'<>\\]+""", re.IGNORECASE)
_MAIL = re.compile(r"[A-Za-z0-9_.+%-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.([A-Za-z]{2,24})\b")
# name@instance.service is a unit.
_UNITS = {"service", "scope", "slice", "socket", "mount", "automount", "swap", "device", "timer",
          "target", "path", "conf"}  # fmt: skip
_UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
# World-wide names as the kernel writes them; of t10 ones the rest of the word.
_WWN = re.compile(r"\b(?:naa\.|eui\.|nvme\.|wwn-0x|0x)[0-9a-f]{16,64}\b", re.IGNORECASE)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_IP4 = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_IP6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?![\w:])")
# Wherever the homes are: /var/home, /export/home, a subvolume.
_PEOPLE = re.compile(r"((?:/@?home|(?<![\w/])(?:/run)?/media)/)([^/\s:,\"']+)")
_ENVIRONMENT = re.compile(
    r"(?m)^(\s*(?:[#;][ \t]*)?"
    r"(?:Environment|PassEnvironment|UnsetEnvironment|SetCredential(?:Encrypted)?"
    r"|LoadCredential(?:Encrypted)?)\s*=)(?=.).*$"
)
_RUN = re.compile(r"[A-Za-z0-9]{6,}")
# Of an answer of ours (cache_bytes, fsync_p99_s), also where the host is called `cache`.
_FIELD = re.compile(r"[a-z]+(?:_(?:[a-z]+|p[0-9]+))+")
_SHORTEST_NAME = 3
# Installers put the host's name into that of its volume group: HOST-vg (Debian), rhel_HOST (Red
# Hat).  Device-mapper doubles each '-' of it (HOST--vg-root), and units write that as \x2d, JSON
# with two backslashes.
_DASH = r"(?:-|\\{1,2}x2d){1,2}"
_BEFORE, _AFTER = r"(?:(?<![^\W_])|(?<=\\x2d))", r"(?![^\W_])"


class Mask:
    """Takes secrets and names out of texts, and counts what of each kind."""

    def __init__(self, key: bytes, hosts: Sequence[str] = (), numbers: Iterable[str] = ()) -> None:
        """`hosts` are names of this host, none: it may be told, with its addresses; `numbers` what
        tells disks apart, masked within other names as well (links by-id).
        """
        self.counts: Counter[str] = Counter()
        self._key = key
        self._hosts = bool(hosts)
        names = {part for each in hosts for part in (each, each.split(".")[0])}
        known = sorted(
            (each for each in names if len(each) >= _SHORTEST_NAME and each != "localhost"),
            key=len, reverse=True,
        )  # fmt: skip
        each_host = "|".join(_DASH.join(map(re.escape, each.split("-"))) for each in known)
        self._host = re.compile(
            rf"{_BEFORE}(?:{each_host}){_AFTER}" if known else r"(?!)", re.IGNORECASE
        )
        self._numbers = _runs(numbers)
        self._harmless: Set[str] = set()

    def word(self, kind: str, text: str) -> str:
        """The word that stands for `text`."""
        digest = hmac.new(self._key, text.lower().encode("utf-8", "surrogateescape"), "sha256")
        return f"{kind}-{digest.hexdigest()[:8]}"

    def __call__(self, text: str) -> str:
        masked = self._each(_ENVIRONMENT, "environment", rf"\g<1>{MASK}", joined(text))
        masked = self._each(_URL, "URL", rf"\g<1>{MASK}", masked)
        before = masked
        masked = redacted_text(masked)
        self.counts["secret"] += max(0, masked.count(MASK) - before.count(MASK))
        masked = self._named(_MAIL, "mail", masked, lambda found: found[1].lower() not in _UNITS)
        masked = self._named(_UUID, "uuid", masked)
        masked = self._named(_WWN, "number", masked)
        masked = self._named(_RUN, "number", masked, lambda found: found[0] in self._numbers)
        masked = _PEOPLE.sub(lambda found: found[1] + self._count("user", found[2]), masked)
        if self._hosts:
            masked = self._named(_MAC, "mac", masked)
            masked = self._named(_IP4, "ip", masked, _is_address)
            masked = self._named(_IP6, "ip", masked, _is_address)
            masked = self._each(self._host, "host name", "host", masked)
        return masked

    def document(self, text: str, indent: Optional[int] = None) -> str:
        """JSON with each of its strings masked by itself, so that it stays JSON; whatever is none
        (damaged, cut off) is masked as a text.
        """
        try:
            return json.dumps(self._value(json.loads(text), False), indent=indent)
        except (ValueError, RecursionError):
            return self(text)

    def _value(self, value: Any, secret: bool) -> Any:
        if isinstance(value, dict):
            return {name if _FIELD.fullmatch(name) else self._string(name):
                    self._value(each, secret or is_secret(name))
                    for name, each in value.items()}  # fmt: skip
        if isinstance(value, list):
            return [self._value(each, secret) for each in value]
        if value is None or isinstance(value, bool):
            return value
        if secret and value != "":
            self.counts["secret"] += 1
            return MASK
        if isinstance(value, int):
            masked = self._string(str(value))
            return value if masked == str(value) else masked
        return self._string(value) if isinstance(value, str) else value

    def _string(self, text: str) -> str:
        # Names and most values come again in each of thousands of rows.
        if text in self._harmless:
            return text
        masked = self(text)
        if masked == text:
            self._harmless.add(text)
        return masked

    def _count(self, kind: str, text: str) -> str:
        self.counts[kind] += 1
        return self.word(kind, text)

    def _each(self, pattern: Pattern[str], kind: str, put: str, text: str) -> str:
        text, count = pattern.subn(put, text)
        self.counts[kind] += count
        return text

    def _named(
        self, pattern: Pattern[str], kind: str, text: str,
        wanted: Callable[[Match[str]], bool] = lambda found: True,
    ) -> str:
        return pattern.sub(
            lambda found: self._count(kind, found[0]) if wanted(found) else found[0], text
        )


def _is_address(found: Match[str]) -> bool:
    """Whether it is one, and not one that every host has."""
    try:
        address = ip_address(found[0])
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def mask_of(files: KernelFiles, keep_host: bool) -> Mask:
    """The mask of this host; without a machine-id its words are others in each bundle."""
    key = (files.try_read("/etc/machine-id") or "").encode() or os.urandom(16)
    hosts: List[str] = [] if keep_host else list(filter(None, (
        os.uname().nodename, files.try_read("/etc/hostname"), files.try_read("/etc/machine-id"),
    )))  # fmt: skip
    return Mask(key, hosts, _numbers(files))


# Below /sys/block/NAME; the kernel has them all, no disk is asked (see kernel/disk_identity.py).
_ATTRIBUTES = (
    "wwid", "uuid", "nguid", "eui", "device/wwid", "device/serial", "device/vpd_pg80",
    "device/vpd_pg83", "device/unique_id", "dm/uuid", "md/uuid",
)  # fmt: skip
_UDEV_KEYS = re.compile(
    r"(?m)^E:(?:ID_[A-Z_]*(?:SERIAL|WWN|UUID)[A-Z_]*|MD_UUID|DM_UUID)=(.*)$"
)


def _runs(texts: Iterable[str]) -> Set[str]:
    """The parts with a digit in them: a word alone tells nothing apart."""
    return {run for each in texts for run in _RUN.findall(each) if any(c.isdigit() for c in run)}


def _numbers(files: KernelFiles) -> Set[str]:
    """Parts of the numbers of all disks, less those of their models, which a bug may be about."""
    found: List[str] = []
    models: List[str] = []
    for name in files.listdir("/sys/block"):
        models.append(files.try_read(f"/sys/block/{name}/device/model") or "")
        for attribute in _ATTRIBUTES:
            found.append(files.try_read(f"/sys/block/{name}/{attribute}") or "")
    for name in files.listdir("/run/udev/data"):
        if name.startswith("b"):
            found += _UDEV_KEYS.findall(files.try_read(f"/run/udev/data/{name}") or "")
    return _runs(found) - _runs(models)

