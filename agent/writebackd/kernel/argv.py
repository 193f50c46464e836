# SPDX-License-Identifier: GPL-2.0-or-later
"""A command line as it may be told: one printable line, without what is obviously a secret.

/proc/PID/cmdline is as readable as what is made of it, but not for as long, and not by mail. Only
what says itself that it is a secret can be known: a password without a word for it is told.
"""

from __future__ import annotations

import re
from typing import List

from writebackd import human

MASK = "***"

_WORDS = r"(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|api[-_]?key|access[-_]?key)"
# From the start of a name only: the time must not grow with the square of its length.
_NAME = rf"(?<![\w.-])[\w.-]*{_WORDS}(?![\w.-]*(?:file|path|dir)\b)[\w.-]*"
_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s&'"]+)"""
# --password=X, PGPASSWORD=X, password=X: of a word all of it; within a shell's text a value.
_WHOLE = re.compile(rf"({_NAME}=)(?=.)[^&]+", re.IGNORECASE | re.DOTALL)
_WITHIN = re.compile(rf"({_NAME}=){_VALUE}", re.IGNORECASE)
# --password X
_NEXT = re.compile(rf"(?=-){_NAME}", re.IGNORECASE)
_NEXT_WITHIN = re.compile(rf"((?<!\S)(?=--){_NAME}\s+)(?!-){_VALUE}", re.IGNORECASE)
# scheme://user:X@host, also where the line was cut off within X; not http://host:8080.
_URL = re.compile(r"(://[^/\s:@\[]*:)(?!\d+(?:[/?#\s]|$))(?:[^/\s]*(?=@)|[^@/\s]+$)")
# -pX of what is made of MySQL's client library.
_MYSQL = re.compile(r"mysql|mariadb|mariabackup|xtrabackup|innobackupex|mydumper|myloader")
_P = re.compile(rf"((?<!\S)-p)(?!-){_VALUE}")
# -p X; -u user:X
_P_NEXT = re.compile(r"(?:^|/)(?:sshpass|mongo\w*)$")
_USER = frozenset(("-u", "-U", "--user", "--proxy-user"))
# In files and logs: NAME = X, NAME: X, "NAME": "X"; headers of HTTP; and what is above, where
# blanks part the words.
_WRITTEN = re.compile(rf"""({_NAME}["']?\s*[:=]\s*)(?!\s){_VALUE}""", re.IGNORECASE)
_HEADER = re.compile(r"""(authorization["']?\s*[:=]\s*)[^"'\n]+""", re.IGNORECASE)
_BEARER = re.compile(r"(\bbearer\s+)[\w.~+/=-]+", re.IGNORECASE)
_P_WITHIN = re.compile(r"(\b(?:sshpass|mongo\w*)\s(?:[^\n]*\s)?-p\s+)[^\s&'\"]+")
_USER_WITHIN = re.compile(
    r"((?<!\S)(?:-u|-U|--user|--proxy-user)[ =][^\s:]+:)(?!\d+(?:\s|$))[^\s&'\"]+"
)


def told(raw: str) -> str:
    """A command line whose words are parted by NUL."""
    said: List[str] = []
    words = raw.rstrip("\0").split("\0")
    mysql = _MYSQL.search(raw) is not None
    next_p = any(_P_NEXT.search(word) for word in words[:1])
    before = ""
    for word in words:
        secret = _NEXT.fullmatch(before) is not None or (next_p and before == "-p")
        if secret and not word.startswith("-"):
            said.append(MASK)
        elif before in _USER and re.fullmatch(r"[^:\s]+:(?!\d+$).+", word):
            said.append(f"{word.partition(':')[0]}:{MASK}")
        else:
            said.append(_masked(word, mysql))
        before = word
    return human.printable(" ".join(said))


def _masked(word: str, mysql: bool) -> str:
    whole = _WHOLE.fullmatch(word)
    if whole:
        return whole.group(1) + MASK
    for pattern in (_WITHIN, _NEXT_WITHIN, _URL, *((_P,) if mysql else ())):
        word = pattern.sub(rf"\g<1>{MASK}", word)
    return word


def told_text(text: str) -> str:
    """Lines of a log or of a file, without what is obviously a secret."""
    return "\n".join(_masked_line(line) for line in text.split("\n"))


def _masked_line(line: str) -> str:
    patterns = [_HEADER, _BEARER, _WITHIN, _NEXT_WITHIN, _WRITTEN, _URL, _P_WITHIN, _USER_WITHIN]
    if _MYSQL.search(line):
        patterns.append(_P)
    for pattern in patterns:
        line = pattern.sub(rf"\g<1>{MASK}", line)
    return line
