# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds policy files and drop-ins in their directories, and masked ones."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from writebackd.paths import others_may_choose

from . import units
from .parse import did_you_mean
from .schema import PolicyError

# all.conf.d: drop-ins of every policy, so that what a site wants holds whichever class is taken.
SITE_NAME = "all"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")
_DEV_NULL = os.makedev(1, 3)


def packaged_dir() -> Path:
    """The policies shipped with the program: in the package, or in the checkout."""
    here = Path(__file__).resolve()
    inside = here.parents[1] / "policies"
    return inside if inside.is_dir() else here.parents[3] / "policies"


def search_dirs(config_dir: Optional[Path], root: Path = Path("/")) -> Tuple[Path, ...]:
    """Policy directories, weakest first; ``config_dir`` replaces the system's three."""
    if config_dir is not None:
        if not config_dir.is_dir():
            raise PolicyError(f"{config_dir}: no such directory: correct --config-dir")
        return (packaged_dir(), config_dir)
    system = ("usr/lib", "run", "etc")
    return (packaged_dir(), *(root / top / "writebackd" / "policies.d" for top in system))


def unsafe(files: Iterable[str]) -> List[str]:
    """Files of a policy that users other than root may change, each with the remedy.

    A policy says what root writes and starts. What is shipped is as safe as the program.
    """
    problems = []
    for file in files:
        if packaged_dir() in Path(file).parents:
            continue
        try:
            why = others_may_choose(file, "/etc/writebackd")
        except OSError as error:
            why = f"cannot look at it: {error.strerror}"
        if why:
            problems.append(f"{file}: not taken: {why}")
    return problems


def _list_dir(path: Path) -> List[str]:
    try:
        return [name for name in os.listdir(path) if not name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PolicyError(
            f"{path}: cannot list it: {error.strerror}: make it a readable directory"
        ) from None


def is_name(text: str) -> bool:
    """Whether a policy may have this name."""
    return _NAME.fullmatch(text) is not None


def is_masked(path: Path) -> bool:
    """Whether the file is (a symlink to) /dev/null, systemd's way to disable a file."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _DEV_NULL


def _is_path(text: str) -> bool:
    """Whether a text is the path of a policy, not its name."""
    return "/" in text or text.endswith(".conf")


def drop_in_of(path: str) -> Optional[str]:
    """The NAME in the drop-in's directory NAME.conf.d; None for any other file."""
    if not _is_path(path):
        return None
    try:
        directory = Path(os.path.abspath(path)).parent.name
    except OSError:  # the directory that we are in was removed
        return None
    return directory[: -len(".conf.d")] if directory.endswith(".conf.d") else None


def in_order(drop_ins: Iterable[Path]) -> List[Path]:
    """The order of application: by file name, whatever the directory."""
    return sorted(drop_ins, key=lambda path: os.fsencode(path.name))


def _strongest(dirs: Sequence[Path]) -> Dict[str, Path]:
    """The .conf files of directories (weakest first) by name, each from the strongest directory."""
    return {name: directory / name for directory in dirs for name in _list_dir(directory)
            if name.endswith(".conf")}  # fmt: skip


def _drop_ins(dirs: Sequence[Path]) -> List[Path]:
    """Files of drop-in directories (weakest first) in their order of application.

    As systemd does it: sorted by base name over all directories, the strongest directory's
    file stands for all of that name, and a link to /dev/null leaves the name out.
    """
    return in_order(path for path in _strongest(dirs).values() if not is_masked(path))


def base_files(dirs: Sequence[Path]) -> Dict[str, Path]:
    """Policy name -> the strongest base file of that name."""
    files = _strongest(dirs)
    files.pop(f"{SITE_NAME}.conf", None)
    return {name[: -len(".conf")]: path for name, path in files.items()}


def misplaced(dirs: Sequence[Path]) -> List[str]:
    """The remedy for an all.conf, which no policy reads."""
    return [
        f"{directory / name}: no policy can be called '{SITE_NAME}': move it into "
        f"{directory / name}.d/, from where every policy reads it"
        for directory in dirs
        for name in _list_dir(directory)
        if name == f"{SITE_NAME}.conf"
    ]


def unused_drop_ins(
    taken: str, config_dir: Optional[Path] = None, root: Path = Path("/")
) -> Tuple[Path, ...]:
    """Directories with drop-ins for policies other than `taken`, which have no effect."""
    return tuple(
        directory / name
        for directory in search_dirs(config_dir, root)[1:]
        for name in sorted(_list_dir(directory))
        if name.endswith(".conf.d")
        and name not in (f"{taken}.conf.d", f"{SITE_NAME}.conf.d")
        and _has_drop_ins(directory / name)
    )


def _has_drop_ins(directory: Path) -> bool:
    try:
        return bool(_drop_ins([directory]))
    except PolicyError:  # no directory, say: an error of its policy, which is not the one taken
        return False


def locate(
    wanted: str, config_dir: Optional[Path], root: Path
) -> Tuple[str, Path, List[Path], List[Path]]:
    """Name, base file, the site's drop-ins and its own, for a policy given by name or by path."""
    if "\0" in wanted:  # no file has it in its name, and os.listdir() raises ValueError
        raise PolicyError(f"'{units.shorten(wanted)}': a path has no NUL byte in it")
    if _is_path(wanted):
        path = Path(wanted)
        name = path.name[: -len(".conf")] if wanted.endswith(".conf") else path.name
        return name, path, [], _drop_ins([Path(f"{path}.d")])
    if not is_name(wanted):
        raise PolicyError(
            f"'{units.shorten(wanted)}': not a policy name: use letters, digits and -_.@, or a path"
        )
    dirs = search_dirs(config_dir, root)
    known = base_files(dirs)
    if wanted == SITE_NAME:
        raise PolicyError(
            f"'{SITE_NAME}' is no policy: {SITE_NAME}.conf.d has drop-ins of every policy"
        )
    if wanted not in known:
        listing = ", ".join(sorted(known)) or "none"
        searched = ", ".join(map(str, dirs))
        raise PolicyError(
            f"no policy '{wanted}'{did_you_mean(wanted, known)}: known are {listing} "
            f"(searched {searched})"
        )
    if is_masked(known[wanted]):
        raise PolicyError(
            f"{known[wanted]}: policy '{wanted}' is masked: remove the link, or choose another"
        )
    site, own = (_drop_ins([each / f"{name}.conf.d" for each in dirs])
                 for name in (SITE_NAME, wanted))  # fmt: skip
    return wanted, known[wanted], site, own
