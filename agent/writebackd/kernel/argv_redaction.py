# SPDX-License-Identifier: GPL-2.0-or-later
"""A process's command line as one printable line, with obvious secrets masked.

The line is kept longer than /proc/PID/cmdline, and sent by mail. Only labelled secrets can be
recognised: a password without a word for it is shown.
"""

from __future__ import annotations

import re
from typing import List, Pattern, Tuple

from writebackd import formats

MASK = "***"

# "pass" ends a name, and is a word of it: no passenger, compass or --pass-through.
_PASS = (
    r"(?:(?<![a-z])(?:db|user|smtp|mail|ldap|ftp|http|admin|root|key|store)?pass"
    r"|(?-i:(?<=[a-z])Pass))\d*(?![\w.-])"
)
_KEYS = r"(?:api|access|private|routing|integration|account|auth|encryption|signing)[-_]?key"
_WORDS = (
    rf"(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|oauth2-bearer|{_KEYS}|{_PASS}"
    r"|cookie(?![\w.-]))"
)
# From the start of a name only: the time must not grow with the square of its length.
_NAME = rf"(?<![\w.-])[\w.-]*{_WORDS}(?![\w.-]*(?:file|path|dir)\b)[\w.-]*"
# A quote that is never closed: the line was cut off there. One behind a backslash: a text within
# a text, as in JSON.
_VALUE = r"""(?:'[^']*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)|\\+"[^"]*(?:"|$)|[^\s&'"]+)"""
# --password=X, PGPASSWORD=X, password=X: of a word all of it; within a shell's text a value.
_WHOLE = re.compile(rf"({_NAME}=)(?=.)[^&]+", re.IGNORECASE | re.DOTALL)
# --password X
_NEXT = re.compile(rf"(?=-){_NAME}", re.IGNORECASE)
_NEXT_WITHIN = re.compile(rf"((?<!\S)(?=--){_NAME}\s+)(?!-){_VALUE}", re.IGNORECASE)
# NAME=X, NAME = X, NAME: X, "NAME": "X", "NAME": ["X"]
_WRITTEN = re.compile(rf"""({_NAME}\\*["']?\s*[:=]\s*(?:\[\s*)?)(?!\s){_VALUE}""", re.IGNORECASE)
# Headers of HTTP.
_HEADER = re.compile(
    r"""((?:authorization|(?<![\w.-])(?:set-)?cookie)\\*["']?\s*[:=]\s*(?:\[\s*)?\\*["']?)[^"'\\\n]+""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\bbearer\s+)[\w.~+/=-]+", re.IGNORECASE)
# scheme://user:X@host, also where the line was cut off within X; not http://host:8080.
_URL = re.compile(r"(://[^/\s:@\[]*:)(?!\d+(?:[/?#\s]|$))(?:[^/\s]*(?=@)|[^@/\s]+$)")
# -pX of what is made of MySQL's client library.
_MYSQL = re.compile(r"mysql|mariadb|mariabackup|xtrabackup|innobackupex|mydumper|myloader")
_P = re.compile(rf"((?<!\S)-p)(?!-){_VALUE}")
# -p X, -pX; -a X. The first alone: `sshpass -p X ssh -p 22`.
_P_PROGRAMS, _A_PROGRAMS = r"(?:sshpass|mongo\w*)", r"(?:(?:redis|valkey)-(?:cli|benchmark))"
_PROGRAM = re.compile(rf"(?:(?P<p>{_P_PROGRAMS})|{_A_PROGRAMS})")
_P_WITHIN = re.compile(rf"(\b{_P_PROGRAMS}\s(?:[^\n]*?\s)??-p\s*)(?!-){_VALUE}")
_A_WITHIN = re.compile(rf"(\b{_A_PROGRAMS}\s(?:[^\n]*?\s)??-a\s+)(?!-){_VALUE}")
# -u user:X; of curl also -uuser:X and -su user:X. Two numbers are a user and a group.
_USERS = r"(?:-u|-U|--user|--proxy-user)"
_CURL = re.compile(r"\bcurl\b")
_CURLS = r"-[#0-46afgijklnpqsvBGIJLNORSVZ]*[uU]"


def _user_within(flags: str) -> Pattern[str]:
    end = r"""(?!\d+(?:[\s"']|$))"""
    return re.compile(
        rf"""((?<!\S){flags}(?:(?P<q>["'])[^:"'\n]+:{end}|[^\s:"']+:{end}))"""
        r"""(?(q)[^"'\n]+|[^\s&'"]+)"""
    )


_USER, _CURL_USER = re.compile(_USERS), re.compile(rf"{_USERS}|{_CURLS}")
_USER_WITHIN = _user_within(rf"{_USERS}(?:=|\s+)")
_CURL_WITHIN = _user_within(rf"{_CURLS}\s*")
_ALWAYS = (
    _HEADER, _BEARER, _NEXT_WITHIN, _WRITTEN, _URL, _P_WITHIN, _A_WITHIN, _USER_WITHIN,
)  # fmt: skip
_SECRET = re.compile(rf"(?:{_NAME}|authorization)$", re.IGNORECASE)
# Of a shell's text or a unit: what a backslash continues, over comments between.
_CONTINUED = re.compile(r"\\\r?\n(?:[ \t]*[#;][^\n]*\n)*")


def redacted(raw: str) -> str:
    """A command line whose words are separated by NUL, without secrets."""
    said: List[str] = []
    flag = before = ""
    special = _special(raw)
    user = _CURL_USER if _CURL.search(raw) else _USER
    for place, word in enumerate(raw.rstrip("\0").split("\0")):
        secret = _NEXT.fullmatch(before) is not None or (flag and before == flag)
        if secret and not word.startswith("-"):
            said.append(MASK)
        elif user.fullmatch(before) and re.fullmatch(r"[^:\s]+:(?!\d+$).+", word, re.DOTALL):
            said.append(f"{word.partition(':')[0]}:{MASK}")
        elif flag == "-p" and word.startswith("-p") and word[2:3] not in ("", "-"):
            said.append(f"-p{MASK}")
            flag = ""
        else:
            said.append(_masked(word, special))
        if flag and before == flag:
            flag = ""
        flag = _flag(word, place) or flag
        before = word
    return formats.printable(" ".join(said))


def _flag(word: str, place: int) -> str:
    """The option before a password, if the word is a program that has one; not for a mere path."""
    directory, _, name = word.rpartition("/")
    program = _PROGRAM.fullmatch(name)
    if program is None or (place and directory and not directory.endswith("bin")):
        return ""
    return "-p" if program["p"] else "-a"


def _special(text: str) -> Tuple[Pattern[str], ...]:
    """Patterns that apply only if these programs are named."""
    named = ((_MYSQL, _P), (_CURL, _CURL_WITHIN))
    return tuple(pattern for program, pattern in named if program.search(text))


def _masked(word: str, special: Tuple[Pattern[str], ...]) -> str:
    whole = _WHOLE.fullmatch(word)
    return whole.group(1) + MASK if whole else _without(joined(word), special)


def redacted_text(text: str) -> str:
    """Lines of a log or a file, without obvious secrets."""
    return "\n".join(_without(line, _special(line)) for line in text.split("\n"))


def joined(text: str) -> str:
    """The text with continuation lines joined, so that a name and its value are on one line."""
    return _CONTINUED.sub(" ", text)


def is_secret(name: str) -> bool:
    """Whether a value of that name is a secret."""
    return _SECRET.search(name) is not None


def _without(text: str, special: Tuple[Pattern[str], ...]) -> str:
    for pattern in (*_ALWAYS, *special):
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text
