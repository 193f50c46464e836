# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands of shell scripts as their text shows them: nothing is expanded or evaluated."""

from __future__ import annotations

import re
import shlex
from typing import Iterable, Iterator, List, NamedTuple, Tuple

_LONGEST = 4096  # of a line; a regular expression must not keep a tick waiting
_PUNCTUATION = ";&|()<>"
_COMMENT = re.compile(r"(?:^|\s)#.*")
# Where standard error goes, and copies of descriptors.
_NOT_OUTPUT = re.compile(r"(?<=\s)(?:2>>?|&>>?)\s*[^\s;&|()]+|\b[0-9]?>&[0-9-]")
# One word each, and their punctuation is none of the command's.
_SUBSTITUTION = re.compile(r"\$\(\(.{0,200}?\)\)|\$\([^()]{0,200}\)|`[^`]{0,200}`")
_HIDDEN = {ord(char): 0xE000 + n for n, char in enumerate(_PUNCTUATION + " ")}
_SHOWN = {hidden: char for char, hidden in _HIDDEN.items()}
# What only starts another command, its options, and variables that are set for it.
_STARTS = re.compile(
    "if|then|else|elif|while|until|do|{|!|time|sudo|nice|ionice|env|timeout|nohup|setsid|chrt"
    r"|command|exec|-.*|[0-9.]+[smh]?|\w+=.*"
)
_EXIT = re.compile(r"exit\b")  # not indented: nothing makes it conditional
_DOCUMENT = re.compile(r"<<-?\s*[\"']?(\w+)")


class Command(NamedTuple):
    number: int  # of its line
    words: Tuple[str, ...]  # without what only starts another one, such as sudo
    targets: Tuple[str, ...]  # the files that its output goes to, also through tee


def shell_commands(lines: Iterable[Tuple[int, str]]) -> Iterator[Command]:
    """The commands of numbered lines, up to an `exit`, without here-documents and quoted text."""
    document = ""  # what ends a here-document
    for number, line in lines:
        if document:
            document = "" if line.strip() == document else document
            continue
        if _EXIT.match(line):
            return
        for command in _commands(number, line):
            yield command
            if command.words[0].rpartition("/")[2] in ("sh", "bash", "dash", "su"):
                for option, text in zip(command.words, command.words[1:]):
                    if re.fullmatch("-[a-z]*c", option):
                        yield from shell_commands([(number, text)])
        begins = _DOCUMENT.search(line)
        document = begins[1] if begins else ""


def _commands(number: int, line: str) -> Iterator[Command]:
    words: List[str] = []
    targets: List[str] = []
    redirected, piped = "", Command(number, (), ())
    for token in [*_tokens(line), ";"]:
        if not token or not set(token) <= set(_PUNCTUATION):
            word = token.translate(_SHOWN)
            if redirected.startswith(">"):
                targets.append(word)
            elif not redirected and (words or not _STARTS.fullmatch(word)):
                words.append(word)
            redirected = ""
        elif token[0] in "<>":
            redirected = token
        elif words:
            command = Command(number, tuple(words), tuple(targets))
            yield command
            if piped.words and words[0].rpartition("/")[2] == "tee":
                yield piped._replace(targets=tuple(x for x in words[1:] if x[:1] != "-"))
            piped = command if token == "|" else Command(number, (), ())
            words, targets = [], []


def _tokens(line: str) -> List[str]:
    """Words without their quotes, and operators; none if a quote goes on in the next line."""
    line = _SUBSTITUTION.sub(lambda found: found[0].translate(_HIDDEN), line[:_LONGEST])
    line = _NOT_OUTPUT.sub(" ", _COMMENT.sub("", line))
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:
        return []
