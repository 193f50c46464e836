# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads policies by name, and renders one as text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from .find import (
    SITE_NAME,
    base_files,
    drop_in_of,
    in_order,
    is_masked,
    is_name,
    locate,
    search_dirs,
)
from .keys import KEYS, SECTIONS, WHEN
from .merge import Merger
from .schema import Policy, PolicyError

DEFAULT_NAME = "default"


@dataclass(frozen=True)
class Loaded:
    """A policy with all that is wrong with it; with errors, only what could be read of it."""

    policy: Policy
    errors: Tuple[str, ...]


def load_policy(
    name_or_path: Optional[str] = None,
    config_dir: Optional[Path] = None,
    root: Path = Path("/"),
) -> Policy:
    """The merged policy of a name (``default`` when None) or of a file.

    A file is meant when the text contains '/' or ends in '.conf'. Raises PolicyError with all
    errors of all its files. Sizes are bytes, times seconds, shares 0..1.
    """
    loaded = _load(*locate(name_or_path or DEFAULT_NAME, config_dir, root))
    if loaded.errors:
        raise PolicyError(loaded.errors)
    return loaded.policy


def load_files(name: str, files: Sequence[Path]) -> Policy:
    """The merged policy of files as `Policy.files` has them. Raises PolicyError."""
    base, *others = files
    site = [path for path in others if path.parent.name == f"{SITE_NAME}.conf.d"]
    loaded = _load(name, base, site, [path for path in others if path not in site])
    if loaded.errors:
        raise PolicyError(loaded.errors)
    return loaded.policy


def _load(name: str, base: Path, site: Sequence[Path], own: Sequence[Path]) -> Loaded:
    merger = Merger(name)
    files = (base, *site, *own)
    errors: Tuple[str, ...] = ()
    try:
        for path in files:
            merger.add_file(path, site=path in site)
        merger.finish()
    except PolicyError as error:
        errors = error.messages
    return Loaded(merger.policy(files), errors)


def check(
    name_or_path: str,
    config_dir: Optional[Path] = None,
    root: Path = Path("/"),
    place: Optional[str] = None,
) -> List[str]:
    """All errors of a policy as ``file:line: message``; empty when it is good.

    A drop-in (a file in a NAME.conf.d) is checked with every policy that it is merged into, since a
    value that is good by itself may be outside of what one of them says. `place` is where a file is
    to go, where it is not there yet.
    """
    where = place or name_or_path
    try:
        of = drop_in_of(where)
        if of is not None:
            return _check_drop_in(of, Path(name_or_path), Path(where), config_dir, root)
        name, base, site, own = locate(where, config_dir, root)
        return list(_load(name, base if place is None else Path(name_or_path), site, own).errors)
    except PolicyError as error:
        return list(error.messages)


def _check_drop_in(
    of: str, file: Path, place: Path, config_dir: Optional[Path], root: Path
) -> List[str]:
    """What is wrong with a file, and with policies that are good without it."""
    if not place.name.endswith(".conf"):
        return [f"{place}: never read, since its name does not end in .conf"]
    spoilt: Dict[str, List[str]] = {}
    names = _merged_into(of, place, config_dir, root)
    for wanted in names:
        name, base, site, own = locate(wanted, config_dir, root)
        group = site if of == SITE_NAME else own
        group[:] = [each for each in group if each.name != place.name]
        known = _load(name, base, site, own).errors
        group[:] = in_order([*group, place])
        at = group.index(place)
        group[at] = file
        for line in _load(name, base, site, own).errors:
            if line not in known:
                spoilt.setdefault(line, []).append(name)
    return [
        line if len(spoils) == len(names) else f"{line} (as a part of policy {', '.join(spoils)})"
        for line, spoils in spoilt.items()
    ]


def _merged_into(of: str, place: Path, config_dir: Optional[Path], root: Path) -> List[str]:
    """The policies, by name or path, that a drop-in of `of` is merged into."""
    dirs = search_dirs(config_dir, root)
    if of == SITE_NAME:
        known = base_files(dirs)
        return [name for name in sorted(known) if is_name(name) and not is_masked(known[name])]
    beside = Path(os.path.abspath(place)).parent.with_suffix("")
    if beside.is_file() and beside.parent.resolve() not in [each.resolve() for each in dirs]:
        return [str(beside)]  # a policy that is used by its path
    return [of]


@dataclass(frozen=True)
class PolicyEntry:
    """A row of ``policy list``; ``problems`` are its errors, or that it is masked."""

    name: str
    path: str
    summary: str
    problems: Tuple[str, ...]


def list_policies(
    config_dir: Optional[Path] = None, root: Path = Path("/")
) -> Tuple[PolicyEntry, ...]:
    """Every policy that can be named, by name, broken and masked ones included."""
    entries = []
    for name, path in sorted(base_files(search_dirs(config_dir, root)).items()):
        try:
            summary = load_policy(name, config_dir, root).summary
            entries.append(PolicyEntry(name, str(path), summary, ()))
        except PolicyError as error:
            entries.append(PolicyEntry(name, str(path), "", error.messages))
    return tuple(entries)


def load_all(config_dir: Optional[Path] = None, root: Path = Path("/")) -> Tuple[Loaded, ...]:
    """Every policy that is not masked, by name, those with errors as well."""
    found: List[Loaded] = []
    for name, path in sorted(base_files(search_dirs(config_dir, root)).items()):
        if is_masked(path):
            continue
        try:
            found.append(_load(*locate(name, config_dir, root)))
        except PolicyError as error:  # no name for a policy, or no list of drop-ins
            found.append(Loaded(Merger(name).policy((path,)), error.messages))
    return tuple(found)


def render(policy: Policy) -> str:
    """The policy in force as a policy file, each value under a comment that says its origin."""
    lines = [f"# Policy {policy.name} as it is in force, merged from:"]
    lines += [f"#   {path}" for path in policy.files]
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        for key in (key for key in KEYS if key.section == section):
            value = key.kind.format(policy.value(key))
            lines += [f"# {policy.origins[section, key.name]}", f"{key.name} = {value}".rstrip()]
    glob = ""
    for setting in policy.devices.settings:
        if setting.glob != glob:
            glob = setting.glob
            lines += ["", f"[device {glob}]"]
        value = setting.key.kind.format(setting.value)
        lines += [f"# {setting.origin}", f"{setting.key.name} = {value}"]
    for window in policy.windows:
        lines += ["", f"[window {window.name}]"]
        lines += [f"# {window.origin}", f"when = {WHEN.kind.format(window.when)}"]
        for each in window.settings:
            value = each.key.kind.format(each.value)
            lines += [f"# {each.origin}", f"{each.key.name} = {value}"]
    return "\n".join(lines) + "\n"
