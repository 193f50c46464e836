# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds policies and their drop-ins by name, loads them, and renders one as text."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from writebackd.paths import others_may_choose
from writebackd.types.storage import Device

from . import units
from .keys import KEYS, SECTIONS, WHEN, Key
from .merge import Merger
from .parse import did_you_mean
from .schema import Policy, PolicyError, is_pattern, is_stable

# all.conf.d: drop-ins of every policy, so that what a site wants holds whichever class is taken.
SITE_NAME = "all"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")
_DEV_NULL = os.makedev(1, 3)
# What systemd/writebackd.service may write (ProtectSystem=strict), and where it can be allowed to;
# for the rest of _SYSTEM nobody does that by chance.
_WRITABLE = ("/run/writebackd", "/var/lib/writebackd")
_ALLOWED = re.compile(r"^\s*(?:ReadWrite|Bind)Paths\s*=(.*)", re.MULTILINE)
_SYSTEM = re.compile(
    r"/(?:s?bin|boot|dev|efi|etc|home|lib\w*|proc|root|run|sys|tmp|usr|var)/"
)
# PrivateTmp=, of the unit and of the one that runs `exec`; and what nobody may open.
_PRIVATE, _HOMES = re.compile("/(?:var/)?tmp/"), re.compile("/(?:home|root|run/user)/")


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
        _no_policy(directory / name)
        for directory in dirs
        for name in _list_dir(directory)
        if name == f"{SITE_NAME}.conf"
    ]


def _no_policy(path: Path) -> str:
    return (
        f"{path}: no policy can be called '{SITE_NAME}': move it into {path}.d/, from where every"
        " policy reads it"
    )


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
    site, own = (_drop_ins([directory / f"{name}.conf.d" for directory in dirs])
                 for name in (SITE_NAME, wanted))  # fmt: skip
    return wanted, known[wanted], site, own


DEFAULT_NAME = "default"


@dataclass(frozen=True)
class Loaded:
    """A policy with its errors; if it has any, only the readable part of it."""

    policy: Policy
    problems: Tuple[str, ...]

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def path(self) -> str:
        return self.policy.files[0]

    @property
    def summary(self) -> str:
        return "" if self.problems else self.policy.summary

    def valid(self) -> Policy:
        """Raises PolicyError with all errors of all its files."""
        if self.problems:
            raise PolicyError(*self.problems)
        return self.policy


def load_policy(
    name_or_path: Optional[str] = None,
    config_dir: Optional[Path] = None,
    root: Path = Path("/"),
) -> Policy:
    """The merged policy of a name (``default`` when None) or of a file.

    A file is meant when the text contains '/' or ends in '.conf'. Raises PolicyError with all
    errors of all its files. Sizes are bytes, times seconds, shares 0..1.
    """
    return _load(*locate(name_or_path or DEFAULT_NAME, config_dir, root)).valid()


def load_files(name: str, files: Sequence[Path]) -> Policy:
    """The merged policy of files in the form of `Policy.files`. Raises PolicyError."""
    base, *others = files
    site = [path for path in others if path.parent.name == f"{SITE_NAME}.conf.d"]
    return _load(name, base, site, [path for path in others if path not in site]).valid()


def _load(name: str, base: Path, site: Sequence[Path], own: Sequence[Path]) -> Loaded:
    merger = Merger(name)
    files = (base, *site, *own)
    problems: Tuple[str, ...] = ()
    try:
        for path in files:
            merger.add_file(path, site=path in site)
        merger.finish()
    except PolicyError as error:
        problems = error.messages
    return Loaded(merger.policy(files), problems)


def check(
    name_or_path: str,
    config_dir: Optional[Path] = None,
    root: Path = Path("/"),
    place: Optional[str] = None,
) -> List[str]:
    """All errors of a policy as ``file:line: message``; empty if it is valid.

    A drop-in (a file in a NAME.conf.d) is checked with every policy that it is merged into, since a
    value that is good by itself may be outside of what one of them says. `place` is where a file is
    to go, where it is not there yet.
    """
    where = place or name_or_path
    try:
        of = drop_in_of(where)
        if of is not None:
            return _check_drop_in(of, Path(name_or_path), Path(where), config_dir, root)
        at = Path(os.path.abspath(where)) if _is_path(where) else Path(where)
        if at.parent.suffix == ".d" and at.parents[1] in search_dirs(config_dir, root):
            return [f"{where}: never read: move it into {at.parent.with_suffix('.conf.d')}/"]
        if at.name == f"{SITE_NAME}.conf" and at.parent in search_dirs(config_dir, root):
            return [_no_policy(at)]
        name, base, site, own = locate(where, config_dir, root)
        file = base if place is None else Path(name_or_path)
        return _problems(_load(name, file, site, own), root)
    except PolicyError as error:
        return list(error.messages)


def unresolved(
    name_or_path: str, devices: Sequence[Device], config_dir: Optional[Path] = None
) -> List[str]:
    """Warnings about stable names of devices in a valid policy, or in a drop-in alone."""
    if drop_in_of(name_or_path) is None:
        policy = load_policy(name_or_path, config_dir)
    else:
        merger = Merger(DEFAULT_NAME)
        merger.add_file(Path(name_or_path))
        policy = merger.policy(())
    lost = policy.without_device(devices, lambda name: is_stable(name) or not is_pattern(name))
    return [*lost, *_out_of_reach(policy, Path("/"), certain=False)]


def _problems(loaded: Loaded, root: Path) -> List[str]:
    """Its errors, with those that no daemon sees that is started by hand."""
    return [*loaded.problems, *_out_of_reach(loaded.policy, root, certain=True)]


def _out_of_reach(policy: Policy, root: Path, certain: bool) -> Iterator[str]:
    """What the shipped unit cannot write or start; `certain`, or perhaps."""
    file = os.path.normpath(policy.metrics.textfile or _WRITABLE[0])
    if file.startswith("/var/run/"):
        file = file[len("/var") :]
    private = _PRIVATE.match(file)
    allowed = _WRITABLE if private else (*_WRITABLE, *_allowed(root))
    inside = any(f"{file}/".startswith(f"{directory}/") for directory in allowed)
    if not inside and (_SYSTEM.match(file) is not None) is certain:
        place = os.path.dirname(file)
        why = "has a /tmp of its own" if private else "may not write there (ProtectSystem=strict)"
        yield (
            f"{policy.origins['metrics', 'textfile']}: textfile: {file}: writebackd.service {why}:"
            f" use {_WRITABLE[0]}/host.prom and link it into {place}"
            + ("" if private else f", or add ReadWritePaths={place} to the unit")
        )
    programs = {"exec": policy.alerts.exec}
    if policy.alerts.mail:
        programs["sendmail"] = policy.alerts.sendmail
    for key, program in programs.items():
        closed = _PRIVATE.match(program) or _HOMES.match(program)
        if certain and closed:
            why = "runs as nobody, who has no access there: move it to /usr/local/bin"
        elif program and not certain and not os.path.exists(program):
            why = "no such file here"
        else:
            continue
        yield f"{policy.origins['alerts', key]}: {key}: {program}: {why}"


def _allowed(root: Path) -> Iterator[str]:
    """Directories that drop-ins let the unit write."""
    for top in ("etc", "run"):
        for path in (root / top / "systemd/system").glob("writebackd.service*/*.conf"):
            with contextlib.suppress(OSError, ValueError):
                for words in _ALLOWED.findall(path.read_text()):
                    for word in words.split():
                        source, _, inside = word.strip("\"'").lstrip("-+").partition(":")
                        yield inside.partition(":")[0] or source


def _check_drop_in(
    of: str, file: Path, place: Path, config_dir: Optional[Path], root: Path
) -> List[str]:
    """Errors in a file, and those it causes in policies that are valid without it."""
    if not place.name.endswith(".conf"):
        return [f"{place}: never read, since its name does not end in .conf"]
    spoilt: Dict[str, List[str]] = {}
    names = _merged_into(of, place, config_dir, root)
    for wanted in names:
        name, base, site, own = locate(wanted, config_dir, root)
        group = site if of == SITE_NAME else own
        group[:] = [path for path in group if path.name != place.name]
        known = _problems(_load(name, base, site, own), root)
        group[:] = in_order([*group, place])
        at = group.index(place)
        group[at] = file
        for line in _problems(_load(name, base, site, own), root):
            if line not in known:
                spoilt.setdefault(line, []).append(name)
    return [
        line if len(spoils) == len(names) else f"{line} (as a part of policy {', '.join(spoils)})"
        for line, spoils in spoilt.items()
    ]


def _merged_into(of: str, place: Path, config_dir: Optional[Path], root: Path) -> List[str]:
    """The policies, by name or path, that include a drop-in of `of`."""
    dirs = search_dirs(config_dir, root)
    if of == SITE_NAME:
        known = base_files(dirs)
        return [name for name in sorted(known) if is_name(name) and not is_masked(known[name])]
    beside = Path(os.path.abspath(place)).parent.with_suffix("")
    if beside.is_file() and beside.parent.resolve() not in [at.resolve() for at in dirs]:
        return [str(beside)]  # a policy that is used by its path
    return [of]


def list_policies(
    config_dir: Optional[Path] = None, root: Path = Path("/")
) -> Tuple[Loaded, ...]:
    """All policies by name, including broken and masked ones."""
    policies: List[Loaded] = []
    for name, path in sorted(base_files(search_dirs(config_dir, root)).items()):
        try:
            policies.append(_load(*locate(name, config_dir, root)))
        except PolicyError as error:  # masked, no name for a policy, or no list of drop-ins
            policies.append(Loaded(Merger(name).policy((path,)), error.messages))
    return tuple(policies)


def load_all(config_dir: Optional[Path] = None, root: Path = Path("/")) -> Tuple[Loaded, ...]:
    """All policies that are not masked, by name, including those with errors."""
    every = list_policies(config_dir, root)
    return tuple(policy for policy in every if not is_masked(Path(policy.path)))


def render(policy: Policy) -> str:
    """The policy in force as a policy file, each value below a comment with its origin."""
    lines = [f"# Policy {policy.name} as it is in force, merged from:"]
    lines += [f"#   {path}" for path in policy.files]

    def add(key: Key, value: Any, origin: str) -> None:
        lines.extend([f"# {origin}", f"{key.name} = {key.kind.format(value)}".rstrip()])

    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        for key in (key for key in KEYS if key.section == section):
            add(key, policy.value(key), policy.origins[section, key.name])
    for glob, settings in groupby(policy.devices.settings, lambda setting: setting.glob):
        lines += ["", f"[device {glob}]"]
        for line in settings:
            add(line.key, line.value, line.origin)
    for window in policy.windows:
        lines += ["", f"[window {window.name}]"]
        add(WHEN, window.when, window.origin)
        for line in window.settings:
            add(line.key, line.value, line.origin)
    return "\n".join(lines) + "\n"
