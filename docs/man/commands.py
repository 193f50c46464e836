# SPDX-License-Identifier: GPL-2.0-or-later
"""The command lines as plain values: what the man pages and the completions are made of."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Iterator, Optional, Tuple

from writebackd.cli.ctl import _parser
from writebackd.cli.daemon_main import parser as daemon_parser
from writebackd.storage.collector import parser as collector_parser


@dataclass(frozen=True)
class Option:
    flags: Tuple[str, ...]
    value: Optional[str]  # its placeholder; None: it takes none
    choices: Tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Argument:
    name: str
    choices: Tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Command:
    words: Tuple[str, ...]  # without the program: (), ("why",), ("policy", "show")
    usage: str
    summary: str
    options: Tuple[Option, ...]
    arguments: Tuple[Argument, ...]
    below: Tuple["Command", ...] = ()

    @property
    def name(self) -> str:
        return " ".join(self.words)

    def all(self) -> Iterator["Command"]:
        """This one and those below it that do something."""
        if not self.below or not self.words:
            yield self
        for each in self.below:
            yield from each.all()


def writebackctl() -> Command:
    return _command(_parser(), (), "")


def writebackd() -> Command:
    return _command(daemon_parser(), (), "")


def writebackd_raid() -> Command:
    return _command(collector_parser(), (), "")


def _command(parser: argparse.ArgumentParser, words: Tuple[str, ...], summary: str) -> Command:
    options, arguments, below = [], [], []
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction):
            texts = {each.dest: each.help or "" for each in action._choices_actions}
            # What has no text is hidden: a unit runs it, nobody types it.
            below += [
                _command(sub, (*words, name), texts[name])
                for name, sub in action.choices.items() if name in texts
            ]
        elif action.option_strings:
            value = None
            if action.nargs != 0:
                value = str(action.metavar or "|".join(choices) or action.dest.upper())
            options.append(
                Option(tuple(action.option_strings), value, choices, _help(parser, action))
            )
        else:
            name = str(action.metavar or action.dest.upper())
            arguments.append(Argument(name, choices, _help(parser, action)))
    usage = " ".join(parser.format_usage().split()[1:])
    return Command(words, usage, summary, tuple(options), tuple(arguments), tuple(below))


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    if not action.help:
        return ""
    return action.help % {**vars(action), "prog": parser.prog}
