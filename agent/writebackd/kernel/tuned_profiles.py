# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the profiles of tuned, as it merges them: what they set of the dirty limits."""

from __future__ import annotations

import re
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from writebackd.kernel.files import KernelFiles

DIRTY = r"(?P<setting>dirty_(?:background_)?(?:bytes|ratio))"
_SECTION = re.compile(r"\s*\[(.+?)\]")
_OPTION = re.compile(r"\s*([^#;\s=\[][^=]*?)\s*=\s*(.*?)\s*$")
# By a section's plugin: vm.dirty_* in [sysctl], dirty_* in [vm].
_TUNED = {"sysctl": re.compile(rf"vm[./]{DIRTY}"), "vm": re.compile(DIRTY)}
# A later one of tuned-main.conf's profile_dirs beats an earlier one; newer tuned keeps
# profiles one level deeper.
_TUNED_DIRS = (
    "/etc/tuned/profiles",
    "/etc/tuned",
    "/usr/lib/tuned/profiles",
    "/usr/lib/tuned",
)


def active_profile(files: KernelFiles) -> str:
    """Of tuned, names parted by blanks; empty without any."""
    return " ".join((files.try_read("/etc/tuned/active_profile") or "").split())


class TunedLine(NamedTuple):
    """One that sets a dirty limit in a profile."""

    section: str
    plugin: str  # of the section: sysctl or vm
    option: str  # as it is written
    setting: str
    place: str
    value: str


def read_profiles(
    files: KernelFiles, profiles: Sequence[str]
) -> Tuple[List[str], List[TunedLine]]:
    """Paths and lines of profiles and what they include; of two that set the same the last wins."""
    lines: List[TunedLine] = []
    seen: List[str] = []
    for name in profiles:
        _add_profile(files, name, seen, lines)
    return seen, lines


def tuned_file(
    files: KernelFiles, name: str, without: Sequence[str] = ()
) -> Optional[Tuple[str, str]]:
    """Path and text of a profile, but for files that tuned has read already."""
    for directory in _TUNED_DIRS if "/" not in name else ():  # names are no paths
        path = f"{directory}/{name}/tuned.conf"
        text = None if path in without else files.try_read(path)
        if text is not None:
            return path, text
    return None


def included(text: str) -> List[str]:
    """The names that a profile includes."""
    names = [
        name for _, section, key, value in _options(text) if (section, key) == ("main", "include")
        for name in re.split(r"[\s,;]+", value)
    ]  # fmt: skip
    return list(filter(None, names))


def _add_profile(
    files: KernelFiles, name: str, seen: List[str], lines: List[TunedLine]
) -> None:
    """What a profile includes, then its own on top."""
    # A leading "-": no error where there is none.
    found = tuned_file(files, name.lstrip("-"), seen)
    if found is None:
        return
    path, text = found
    seen.append(path)
    for each in included(text):
        _add_profile(files, each, seen, lines)
    options = list(_options(text))
    dropped = {
        (section, option) for _, section, key, value in options if key == "drop"
        for option in re.split(r"\s*[,;]\s*", value)
    }  # fmt: skip
    lines[:] = [each for each in lines if (each.section, each.option) not in dropped]
    # The plugin of a section is its name, unless it has a `type=`.
    plugins = {section: value for _, section, key, value in options if key == "type"}
    for number, section, key, value in options:
        plugin = plugins.get(section, section)
        pattern = _TUNED.get(plugin)
        match = pattern.fullmatch(key) if pattern else None
        if match:
            place, setting = f"{path}:{number}", f"vm.{match['setting']}"
            lines.append(TunedLine(section, plugin, key, setting, place, value))


def _options(text: str) -> Iterator[Tuple[int, str, str, str]]:
    """Line, section, name and value of each option of a profile."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header, option = _SECTION.match(line), _OPTION.match(line)
        if header:
            section = header.group(1)
        elif option:
            yield number, section, option.group(1), option.group(2)
