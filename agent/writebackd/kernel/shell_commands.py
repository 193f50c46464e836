# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands of shell scripts as their text shows them: nothing is expanded or evaluated."""

from __future__ import annotations

import re
import shlex
from itertools import islice, product
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

_LONGEST = 4096  # of a line; a regular expression must not keep a tick waiting
_PUNCTUATION = ";&|()<>"
_COMMENT = re.compile(r"(?:^|\s)#.*")
# Where other descriptors go, as in 10>FILE, and copies of them; the 1 of 1>FILE.
_NOT_OUTPUT = re.compile(
    r"(?<=\s)(?:(?!1>)[0-9]+>>?|&>>?)\s*(?:\"[^\"]*\"|'[^']*'|[^\s;&|()'\"]+)"
    r"|\b[0-9]?>&[0-9-]|(?<=\s)1(?=>)"
)
# One word each, and their punctuation is none of the command's.
_SUBSTITUTION = re.compile(r"\$\(\(.{0,200}?\)\)|\$\([^()]{0,200}\)|`[^`]{0,200}`")
_HIDDEN = {ord(char): 0xE000 + n for n, char in enumerate(_PUNCTUATION + " ")}
_SHOWN = {hidden: char for char, hidden in _HIDDEN.items()}
_OPENS, _CLOSES = ("if", "case", "do", "{"), ("fi", "esac", "done", "}")
# Options of these have values of any form; what they start is a path or one of _STARTED.
_WITH_VALUES = ("busybox", "chronic", "docker", "doas", "eval", "flock", "nsenter", "numactl",
                "podman", "runuser", "setarch", "stdbuf", "systemd-cat", "systemd-run", "taskset",
                "watch", "xargs")  # fmt: skip
_STARTS = ("then", "else", "elif", "while", "until", "!", "time", "sudo", "nice", "ionice", "env",
           "timeout", "nohup", "setsid", "chrt", "command", "exec", *_WITH_VALUES)  # fmt: skip
_STARTED = ("sysctl", "echo", "printf", "tee", "dd", "sh", "bash", "dash", "su")
_DECLARES = ("export", "readonly", "local", "declare", "typeset")
_OPTION = re.compile(r"-.*|[0-9.]+[smh]?|\w+=.*")
_ASSIGNMENT = re.compile(r"(\w+)=(.*)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_BRACES = re.compile(r"(.*?)(?<!\$)\{([^{}]*,[^{}]*)\}(.*)")
_MOST_VALUES = 64  # of a variable, and commands that one stands for
_MOST_COMMANDS = 10_000  # of a script


class Command(NamedTuple):
    number: int  # of its line
    words: Tuple[str, ...]  # without what only starts another one, such as sudo
    targets: Tuple[str, ...]  # the files that its output goes to, also through tee


def shell_commands(lines: Iterable[Tuple[int, str]]) -> Iterator[Command]:
    """The commands of numbered lines, up to an `exit` that nothing makes conditional.

    Not those in here-documents, in quotes, and in what is named `stop`; both branches of an `if`.
    """
    return islice(_Reader().read(lines), _MOST_COMMANDS)


class _Reader:
    def __init__(self) -> None:
        self._depth = 0  # of blocks
        self._stopping = 0  # depth of the block that is named stop, 0: none
        self._named = ""  # function whose block is about to begin
        self._document = ""  # what ends a here-document
        self._fed = False  # whether that is read by sysctl
        self._ended = False
        # Of variables that the script gives a literal value, once, or by words of a loop.
        self._values: Dict[str, List[str]] = {}

    def read(self, lines: Iterable[Tuple[int, str]]) -> Iterator[Command]:
        for number, line in lines:
            if self._document:
                if line.strip() == self._document:
                    self._document = ""
                elif self._fed:
                    yield Command(number, ("sysctl", line.strip()), ())
                continue
            try:
                tokens = _tokens(line)
            except ValueError:  # a quote that goes on in the next line
                continue
            line_commands = (
                each for command in self._line(number, tokens) for each in self._expanded(command)
            )
            for command in line_commands:
                yield command
                if " " in command.words[0] and command.words[0] != line:  # of eval, flock -c
                    yield from _Reader().read([(number, command.words[0])])
                program = command.words[0].rpartition("/")[2]
                if program in ("sh", "bash", "dash", "su"):
                    for option, text in zip(command.words, command.words[1:]):
                        if re.fullmatch("-[a-z]*c", option):
                            yield from _Reader().read([(number, text)])
            if self._ended:
                return

    def _expanded(self, command: Command) -> Iterator[Command]:
        """With the values of its variables, as far as known; of a loop once for each."""
        text = " ".join((*command.words, *command.targets))
        used = dict.fromkeys(match[1] or match[2] for match in _VARIABLE.finditer(text))
        names = [name for name in used if self._values.get(name)][:_MOST_VALUES]
        for values in islice(product(*map(self._values.__getitem__, names)), _MOST_VALUES):
            known = dict(zip(names, values))
            words, targets = (
                tuple(_filled_in(word, known) for word in part)
                for part in (command.words, command.targets)
            )
            yield Command(command.number, words, targets)

    def _keep(self, name: str, values: Sequence[str], again: bool = False) -> None:
        """Remember what a variable is; with another value elsewhere it is not known."""
        words = self._expanded(Command(0, tuple(values), ()))
        values = list(next(words).words)[:_MOST_VALUES]
        literal = not any(re.search("[$`]", each) or len(each) > _LONGEST for each in values)
        if not literal or (not again and self._values.get(name, values) != values):
            values = []
        self._values[name] = values

    def _line(self, number: int, tokens: List[str]) -> Iterator[Command]:
        words: List[str] = []
        targets: List[str] = []
        before, redirected, given, piped = "", "", "", Command(number, (), ())
        for token in [*tokens, ";"]:
            if not set(token) <= set(_PUNCTUATION) or not token:
                word = token.translate(_SHOWN)
                if redirected.startswith("<<") and redirected != "<<<":
                    self._document = word.lstrip("-")
                elif redirected.startswith(">"):
                    targets.append(word)
                elif redirected == "<<<":
                    given = word
                elif not redirected:
                    words.extend(_braced(word))
                redirected = ""
            elif token[0] in "<>":
                redirected = token
            else:
                ends = self._block(words, token, before) if words else False
                if targets and not words:
                    words = ["}"]  # the output of a block
                if words and not self._stopping:
                    command = Command(number, tuple(words), tuple(targets))
                    yield command
                    source = ("echo", given) if given else piped.words
                    program = words[0].rpartition("/")[2]
                    if source and program == "tee":
                        files = [word for word in words[1:] if word[0:1] != "-"]
                        yield Command(number, source, tuple(files))
                    elif source and program == "sysctl":
                        yield Command(number, ("sysctl", *source[1:]), ())
                    self._fed = bool(self._document) and program == "sysctl"
                    given = ""
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
                if words[2:3] == ["in"]:
                    self._keep(words[1], words[3:], again=True)
                words.clear()
            elif word in _STARTS:
                ends = word == "exec" and len(words) > 1
                while words[1:] and _OPTION.fullmatch(words[1]):
                    del words[1]
                if word == "flock":
                    del words[1:2]
                while word in _WITH_VALUES and words[2:]:
                    if words[1][:1] == "/" or words[1] in _STARTED:
                        break
                    del words[1]
            elif word not in _DECLARES:
                assigned = _ASSIGNMENT.fullmatch(word)
                if assigned is None:
                    break
                self._keep(assigned[1], [assigned[2]])
            del words[:1]
        ends = ends or words[:1] == ["exit"]
        return ends and not self._depth and before not in ("&&", "||") and after not in ("&", "|")


def _filled_in(word: str, known: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), word)


def _braced(word: str) -> List[str]:
    """The words that vm.dirty_{background_,}ratio stands for."""
    match = _BRACES.fullmatch(word) if "dirty_" in word and word.count("{") == 1 else None
    return [f"{match[1]}{part}{match[3]}" for part in match[2].split(",")] if match else [word]


def _tokens(line: str) -> List[str]:
    """Words without their quotes, and operators. ValueError: a quote is not closed."""
    line = _SUBSTITUTION.sub(lambda found: found[0].translate(_HIDDEN), line[:_LONGEST])
    line = _NOT_OUTPUT.sub(" ", _COMMENT.sub("", line))
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(lexer)
