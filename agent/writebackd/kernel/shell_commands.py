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
_OPENS, _CLOSES = ("if", "case", "do", "{"), ("fi", "esac", "done", "}")
_STARTS = ("then", "else", "elif", "while", "until", "!", "time", "sudo", "nice", "ionice", "env",
           "timeout", "nohup", "setsid", "chrt", "command", "exec")  # fmt: skip
_OPTION = re.compile(r"-.*|[0-9.]+[smh]?|\w+=.*")
_ASSIGNMENT = re.compile(r"\w+=.*")


class Command(NamedTuple):
    number: int  # of its line
    words: Tuple[str, ...]  # without what only starts another one, such as sudo
    targets: Tuple[str, ...]  # the files that its output goes to, also through tee


def shell_commands(lines: Iterable[Tuple[int, str]]) -> Iterator[Command]:
    """The commands of numbered lines, up to an `exit` that nothing makes conditional.

    Not those in here-documents, in quotes, and in what is named `stop`; both branches of an `if`.
    """
    return _Reader().read(lines)


class _Reader:
    def __init__(self) -> None:
        self._depth = 0  # of blocks
        self._stopping = 0  # depth of the block that is named stop, 0: none
        self._named = ""  # function whose block is about to begin
        self._document = ""  # what ends a here-document
        self._ended = False

    def read(self, lines: Iterable[Tuple[int, str]]) -> Iterator[Command]:
        for number, line in lines:
            if self._document:
                if line.strip() == self._document:
                    self._document = ""
                continue
            try:
                tokens = _tokens(line)
            except ValueError:  # a quote that goes on in the next line
                continue
            for command in self._line(number, tokens):
                yield command
                program = command.words[0].rpartition("/")[2]
                if program in ("sh", "bash", "dash", "su"):
                    for option, text in zip(command.words, command.words[1:]):
                        if re.fullmatch("-[a-z]*c", option):
                            yield from _Reader().read([(number, text)])
            if self._ended:
                return

    def _line(self, number: int, tokens: List[str]) -> Iterator[Command]:
        words: List[str] = []
        targets: List[str] = []
        before, redirected, piped = "", "", Command(number, (), ())
        for token in [*tokens, ";"]:
            if not set(token) <= set(_PUNCTUATION) or not token:
                word = token.translate(_SHOWN)
                if redirected.startswith("<<") and redirected != "<<<":
                    self._document = word.lstrip("-")
                elif redirected.startswith(">"):
                    targets.append(word)
                elif not redirected:
                    words.append(word)
                redirected = ""
            elif token[0] in "<>":
                redirected = token
            else:
                ends = self._block(words, token, before) if words else False
                if words and not self._stopping:
                    command = Command(number, tuple(words), tuple(targets))
                    yield command
                    if piped.words and words[0].rpartition("/")[2] == "tee":
                        files = [word for word in words[1:] if word[0:1] != "-"]
                        yield piped._replace(targets=tuple(files))
                    piped = command if token == "|" else Command(number, (), ())
                if token == ";;" and self._stopping == self._depth:
                    self._stopping = 0
                if ends:
                    self._ended = True
                    return
                words, targets, before = [], [], token

    def _block(self, words: List[str], after: str, before: str) -> bool:
        """Take blocks and what only starts a command off the words; whether the script ends."""
        if words[0] == "function":
            self._named = words[1] if words[1:] else ""
            del words[:2]
        elif after.startswith("(") and len(words) == 1:
            self._named = words.pop()
        elif after == ")" and self._depth and not before.startswith("("):  # a branch of a case
            if not 0 < self._stopping < self._depth:
                self._stopping = self._depth if "stop" in words else 0
            words.clear()
        ends = False
        while words:
            word = words[0]
            if word in _OPENS:
                self._depth += 1
                if self._named == "stop" and not self._stopping:
                    self._stopping = self._depth
                self._named = ""
                if word == "case":
                    words.clear()
            elif word in _CLOSES:
                if self._stopping == self._depth:
                    self._stopping = 0
                self._depth = max(0, self._depth - 1)
            elif word == "for":
                words.clear()
            elif word in _STARTS:
                ends = word == "exec" and len(words) > 1
                while words[1:] and _OPTION.fullmatch(words[1]):
                    del words[1]
            elif not _ASSIGNMENT.fullmatch(word):
                break
            del words[:1]
        ends = ends or words[:1] == ["exit"]
        return ends and not self._depth and before not in ("&&", "||") and after not in ("&", "|")


def _tokens(line: str) -> List[str]:
    """Words without their quotes, and operators. ValueError: a quote is not closed."""
    line = _SUBSTITUTION.sub(lambda found: found[0].translate(_HIDDEN), line[:_LONGEST])
    line = _NOT_OUTPUT.sub(" ", _COMMENT.sub("", line))
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(lexer)
