# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds RAID tools and runs them with a time limit and a bound on their output."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from writebackd.formats import printable
from writebackd.kernel.child_process import output_of
from writebackd.kernel.files import KernelFiles
from writebackd.paths import others_may_change
from writebackd.storage import arcconf, linux_storage, megacli, ssacli, storcli, tw_cli
from writebackd.storage import tool_output as out
from writebackd.storage.report_file import Tool
from writebackd.storage.tool_output import Controller, ToolError
from writebackd.storage.tool_table import Table

# A busy controller with 200 disks answers `show all` within 20 s.
LIMIT_S = 30.0
# Where vendors' packages put them, behind the directories of PATH.
_HOMES = (
    *(f"/opt/MegaRAID/{name}" for name in ("storcli", "perccli", "MegaCli", "storcli2", "perccli2",
                                           "CmdTool2")),
    "/opt/hpe/storcli", "/opt/lsi/storcli", "/opt/lsi/storcli64", "/opt/lsi/perccli",
    "/usr/local/MegaRAID Storage Manager/StorCLI", "/opt/smartstorageadmin/ssacli/bin",
    "/opt/hp/ssacli/bld", "/opt/hp/hpssacli/bld", "/opt/compaq/hpacucli/bld", "/usr/Arcconf",
    "/usr/StorMan", "/usr/RaidMan", "/opt/3ware", "/opt/3ware/CLI",
)  # fmt: skip
# No locale, or decimals have commas; no HOME to leave files in. HPE's tools look at each foreign
# LUN, for minutes where there are hundreds, unless asked to skip them.
_ENVIRONMENT = {
    "LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "INFOMGR_BYPASS_NONSA": "1"
}  # fmt: skip

ToolQuery = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Kind:
    """A tool with all its names, the best first, and how to query it. `ask` raises ToolError."""

    name: str
    programs: Tuple[str, ...]
    ask: Callable[[ToolQuery], Tuple[Controller, ...]]
    cards: str = ""  # that it is for
    tables: Tuple[Table, ...] = ()  # of what is read


def _asked(
    tool: ModuleType, more: Callable[[str], Sequence[Sequence[str]]]
) -> Callable[[ToolQuery], Tuple[Controller, ...]]:
    """The first answer is required; those to `more` are added if the tool knows the command.

    A first command that fails is asked again without the words of RETRIES.
    """

    def ask_all(ask: ToolQuery) -> Tuple[Controller, ...]:
        errors: List[ToolError] = []
        for words in ((), *getattr(tool, "RETRIES", ())):
            try:
                outputs = [ask(_without(tool.COMMANDS[0], words))]
                controllers: Tuple[Controller, ...] = tool.parse(outputs)
            except ToolError as error:
                errors.append(error)
                if isinstance(error, Hung):
                    break  # and so would the next
                continue
            if controllers:
                logs = [word for word in words if word != "all"]
                outputs += _others(ask, [_without(command, logs) for command in more(outputs[0])])
                controllers = tool.parse(outputs)
            return controllers
        raise errors[0]

    return ask_all


def _without(command: Sequence[str], words: Sequence[str]) -> List[str]:
    return [word for word in command if word not in words]


def _others(ask: ToolQuery, commands: Sequence[Sequence[str]]) -> List[str]:
    """A tool's answer to each command, until one hangs; empty if it does not know the command."""
    outputs: List[str] = []
    for command in commands:
        try:
            outputs.append(ask(command))
        except ToolError as error:
            outputs.append("")
            if isinstance(error, Hung):
                break  # and so would the next
    return outputs


def _ask_dmsetup(target: str, files: KernelFiles) -> Callable[[ToolQuery], Tuple[Controller, ...]]:
    def ask_all(ask: ToolQuery) -> Tuple[Controller, ...]:
        disks = {
            name: disk
            for disk in files.listdir("/sys/block")
            for name in [disk.startswith("dm-") and files.try_read(f"/sys/block/{disk}/dm/name")]
            if name
        }
        if not disks:
            return ()
        outputs = [ask((*command, target)) for command in linux_storage.DMSETUP]
        return linux_storage.parse_dmsetup(target, outputs, disks)

    return ask_all


def kinds(files: KernelFiles) -> Tuple[Kind, ...]:
    """All known tools. MegaCli comes after the tools that replaced it."""

    def one(name: str, programs: Sequence[str], cards: str, more: int = 4) -> Kind:
        ask = _asked(storcli, lambda _: storcli.COMMANDS[1:more])
        return Kind(name, tuple(programs), ask, cards, storcli.TABLES)

    return (
        one("storcli", ("storcli64", "storcli"), "MegaRAID 92xx to 95xx, HPE MR216i and MR416i"),
        one("perccli", ("perccli64", "perccli"), "Dell PERC 8 to 11"),
        one("storcli2", ("storcli2",), "MegaRAID 96xx", 5),
        one("perccli2", ("perccli2",), "Dell PERC 12", 5),
        Kind("megacli", ("MegaCli64", "megacli", "MegaCli", "CmdTool2_64", "CmdTool2"),
             _asked(megacli, lambda _: megacli.COMMANDS[1:]), "MegaRAID 84xx to 93xx, Intel RS",
             (megacli.KEYS,)),
        Kind("ssacli", ("ssacli", "hpssacli", "hpacucli"), _asked(ssacli, lambda _: ()),
             "HP and HPE Smart Array P, E and SR", (ssacli.KEYS,)),
        Kind("arcconf", ("arcconf",), _asked(arcconf, arcconf.more),
             "Adaptec series 2 to 8, SmartRAID 3100 and 3200, Cisco 24G", (arcconf.KEYS,)),
        Kind("tw_cli", ("tw_cli", "tw_cli64", "tw-cli"), _asked(tw_cli, tw_cli.more),
             "3ware 9500 to 9750", (tw_cli.KEYS,)),
        *mapped(files),
    )  # fmt: skip


def mapped(files: KernelFiles) -> Tuple[Kind, ...]:
    return (
        Kind("dm-writecache", ("dmsetup",), _ask_dmsetup("writecache", files)),
        Kind("dm-cache", ("dmsetup",), _ask_dmsetup("cache", files)),
    )


def search_path() -> Tuple[str, ...]:
    own = [part for part in os.environ.get("PATH", "").split(":") if part.startswith("/")]
    return tuple(dict.fromkeys((*own, *_HOMES)))


def find(kind: Kind, directories: Sequence[str], top: Path = Path("/")) -> Optional[Path]:
    """The program with all links resolved, if only root (or we) may write it.

    It runs as root, so no other user may replace it either: only root may write the directories
    below `top`, which is itself trusted.
    """
    return next((path for path, why in _programs(kind, directories, top) if why is None), None)


def distrusted(kind: Kind, directories: Sequence[str], top: Path = Path("/")) -> Tuple[Tool, ...]:
    """What `find` passes over, with the remedy: an archive's files belong to who packed it."""
    found = [(path, why) for path, why in _programs(kind, directories, top) if why is not None]
    return tuple(Tool(kind.name, str(path), printable(f"not run: {why}")[: 2 * out.MOST_NAME])
                 for path, why in found[:1])  # fmt: skip


def _programs(
    kind: Kind, directories: Sequence[str], top: Path
) -> Iterator[Tuple[Path, Optional[str]]]:
    """A tool's programs with all links resolved, and why one is not safe."""
    for program in kind.programs:
        for directory in directories:
            # RuntimeError: links in a circle, before Python 3.13.
            with contextlib.suppress(OSError, RuntimeError):
                path = (Path(directory) / program).resolve(strict=True)
                if path.is_file() and os.access(path, os.X_OK):
                    yield path, others_may_change(path, top.resolve())


def installed(files: KernelFiles, top: Path = Path("/")) -> Dict[str, Path]:
    """The installed tools by name; `top` as in `find`."""
    directories = search_path()
    places = {kind.name: find(kind, directories, top) for kind in kinds(files)}
    return {name: path for name, path in places.items() if path is not None}


class Hung(ToolError):
    """A tool exceeded its time limit."""


def run(argv: Sequence[str], home: str, limit_s: float = LIMIT_S) -> str:
    """The output of a program. Raises ToolError if it hangs or prints too much; then it is killed.

    The exit code is ignored: storcli fails if one drive of many does not support the request.
    """
    try:
        code, output, errors = output_of(argv, home, _ENVIRONMENT, limit_s, out.MOST_BYTES)
    except TimeoutError as error:
        raise Hung(str(error)) from None
    except OSError as error:
        why = error.strerror
        if isinstance(error, FileNotFoundError) and os.path.exists(argv[0]):
            why = "its interpreter or loader is missing (a 32-bit program?)"
        raise ToolError(f"cannot be run: {why}") from None
    if not output.strip() and code:
        (said, *_) = errors.decode(errors="replace").strip().splitlines() or [""]
        raise ToolError(f"printed nothing, exit code {code}" + (said and f": {said}"))
    return out.text_of(output)


def question(
    kind: Kind, path: Path, home: str, limit_s: float = LIMIT_S
) -> Tuple[Tool, bool]:
    """A tool's answers to all questions, and whether it hung without an answer.

    Never raises, or one tool's strange answer would lose those of all others.
    """
    hung = False
    try:
        controllers = kind.ask(lambda words: run([str(path), *words], home, limit_s))
        most = max((len(one.volumes) for one in controllers), default=0)
        if len(controllers) > out.MOST_CONTROLLERS or most > out.MOST_VOLUMES:
            raise ToolError("more controllers or volumes than any machine has")
        return Tool(kind.name, str(path), None, controllers), hung
    except ToolError as error:
        hung, said = isinstance(error, Hung), str(error)
    except Exception as error:
        said = f"cannot parse its output: {type(error).__name__}: {error}"
    return Tool(kind.name, str(path), printable(said)[:out.MOST_NAME]), hung
