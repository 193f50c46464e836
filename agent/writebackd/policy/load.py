# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads policies by name, and renders one as text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from writebackd.types.storage import Device

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
from .keys import KEYS, SECTIONS, WHEN, Key
from .merge import Merger
from .schema import Policy, PolicyError

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
        name, base, site, own = locate(where, config_dir, root)
        return list(_load(name, base if place is None else Path(name_or_path), site, own).problems)
    except PolicyError as error:
        return list(error.messages)


def unresolved(
    name_or_path: str, devices: Sequence[Device], config_dir: Optional[Path] = None
) -> List[str]:
    """Warnings about stable names of devices in a valid policy, or in a drop-in alone."""
    if drop_in_of(name_or_path) is None:
        return load_policy(name_or_path, config_dir).unresolved(devices)
    merger = Merger(DEFAULT_NAME)
    merger.add_file(Path(name_or_path))
    return merger.policy(()).unresolved(devices)


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
        group[:] = [each for each in group if each.name != place.name]
        known = _load(name, base, site, own).problems
        group[:] = in_order([*group, place])
        at = group.index(place)
        group[at] = file
        for line in _load(name, base, site, own).problems:
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
    if beside.is_file() and beside.parent.resolve() not in [each.resolve() for each in dirs]:
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
    return tuple(each for each in every if not is_masked(Path(each.path)))


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
        for each in settings:
            add(each.key, each.value, each.origin)
    for window in policy.windows:
        lines += ["", f"[window {window.name}]"]
        add(WHEN, window.when, window.origin)
        for each in window.settings:
            add(each.key, each.value, each.origin)
    return "\n".join(lines) + "\n"
