# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads tuned's profiles, merged as by tuned, for settings of the dirty limits."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from writebackd.kernel.files import KernelFiles

DIRTY = r"(?P<setting>dirty_(?:background_)?(?:bytes|ratio))"
# By a section's plugin: vm.dirty_* in [sysctl], dirty_* in [vm].
_PLUGINS = {"sysctl": re.compile(rf"vm[./]{DIRTY}"), "vm": re.compile(DIRTY)}
_YES = ("True", "true", "1")
_SCRIPT = "script"
_REAPPLY = re.compile(r"^\s*reapply_sysctl\s*=\s*([^#\s]*)", re.MULTILINE)
# A later one of profile_dirs beats an earlier one; until 2.23 profiles were one level higher.
_DIRS = "/usr/lib/tuned,/usr/lib/tuned/profiles,/etc/tuned,/etc/tuned/profiles"
_PROFILE_DIRS = re.compile(r"^\s*profile_dirs\s*=([^#\n]*)", re.MULTILINE)


def active_profile(files: KernelFiles) -> Optional[str]:
    """Tuned's profile names, separated by blanks; empty if it is off, None if unknown."""
    active, after = (
        files.try_read(f"/etc/tuned/{name}") for name in ("active_profile", "post_loaded_profile")
    )
    return None if active is None else " ".join([*active.split(), *(after or "").split()])


def text_of(files: KernelFiles, path: str, most_bytes: int = 1 << 20) -> Optional[str]:
    """The beginning of a file, unchanged, so that line numbers are right; None: not readable."""
    try:
        # A pipe would wait for a writer; its size, and that of a device, is 0.
        fd = os.open(files.path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            data = file.read(min(os.fstat(fd).st_size, most_bytes))
            return data.decode("utf-8", "surrogateescape")
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


class TunedLine(NamedTuple):
    """A line that sets a dirty limit in a profile."""

    section: str
    plugin: str  # of the section: sysctl or vm
    option: str  # as it is written
    setting: str
    place: str
    value: str


class Profiles(NamedTuple):
    """Profiles and those they include, merged."""

    paths: List[str]
    lines: List[TunedLine]  # in the order in which tuned applies them
    unknown: List[str]  # names that cannot be resolved here, or files that cannot be parsed
    scripts: List[str]  # that tuned runs
    writes: List[Tuple[str, str, str]]  # of plugin sysfs: path, place, value
    # Where in `lines` it applies the system's sysctls again, which a [sysctl] shall not override.
    reapplies: List[int]


_Option = Tuple[str, str]  # place, value
_Sections = Dict[str, Dict[str, _Option]]


def read_profiles(files: KernelFiles, profiles: Sequence[str]) -> Profiles:
    """The profiles as tuned merges them, later ones over earlier ones."""
    merged, units = Profiles([], [], [], [], [], []), {}  # type: Profiles, _Sections
    for name in profiles:
        _add_profile(files, name, merged, units)
    own = units.get("variables", {})
    more = text_of(files, own.get("include", ("", ""))[1]) or ""
    with contextlib.suppress(configparser.Error):
        own = {**_sections("", f"[more]\n{more}")["more"], **own}
    variables = {name: value for name, (_, value) in own.items()}
    again = _REAPPLY.findall(files.try_read("/etc/tuned/tuned-main.conf") or "") or ["1"]

    def expand(value: str) -> str:
        for _ in variables:  # one may be made of another
            value = re.sub(r"\$\{(\w+)\}", lambda m: variables.get(m[1], m[0]), value[:4096])
        return value.strip('"')

    for section, options in units.items():
        # The plugin of a section is its name, unless it has a `type=`.
        plugin = options.get("type", ("", section))[1]
        pattern = _PLUGINS.get(plugin)
        if options.get("enabled", ("", "1"))[1] not in _YES:
            continue
        if plugin == "script":
            for place, value in (options[each] for each in options if each.split()[0] == _SCRIPT):
                at = os.path.dirname(place)
                merged.scripts.append(os.path.join(at, value.replace("${i:PROFILE_DIR}", at)))
        elif plugin == "sysfs":
            merged.writes.extend(
                (path, place, expand(value)) for path, (place, value) in options.items()
                if path.startswith("/sys/")
            )
        if pattern is None:
            continue
        # The vm plugin sets bytes before ratios, whatever the order of the lines.
        for option in sorted(options, key=lambda name: plugin == "vm" and name.endswith("ratio")):
            match, (place, value) = pattern.fullmatch(option), options[option]
            if match is None:
                continue
            value, setting = expand(value), match["setting"]
            if plugin == "vm" and value.endswith("%"):
                setting, value = setting.replace("bytes", "ratio"), value.rstrip("%")
            merged.lines.append(TunedLine(section, plugin, option, f"vm.{setting}", place, value))
        if plugin == "sysctl" and again[-1].upper() in ("1", "Y", "YES", "T", "TRUE"):
            merged.reapplies.append(len(merged.lines))
    return merged


def tuned_file(
    files: KernelFiles, name: str, without: Sequence[str] = ()
) -> Optional[Tuple[str, str]]:
    """Path and text of a profile, skipping files that tuned has read already."""
    own = _PROFILE_DIRS.findall(files.try_read("/etc/tuned/tuned-main.conf") or "")
    for directory in reversed(re.split(r"\s*[,;]\s*", own[-1].strip() if own else _DIRS)):
        path = f"{directory}/{os.path.basename(name)}/tuned.conf"
        text = None if path in without else text_of(files, path)
        if text is not None:
            return path, text
    return None


def included(text: str) -> List[str]:
    try:
        _, value = _sections("", text).get("main", {}).get("include", ("", ""))
    except configparser.Error:
        return []
    return list(filter(None, re.split(r"\s*[,;]\s*", value)))


def _add_profile(files: KernelFiles, name: str, profiles: Profiles, units: _Sections) -> None:
    own = tuned_file(files, name.lstrip("-"), profiles.paths)
    if own is None:
        # A leading "-": no error where there is none. One that was read already is skipped, too.
        if not name.startswith("-") and tuned_file(files, name) is None:
            profiles.unknown.append(name)
        return
    path, text = own
    profiles.paths.append(path)
    try:
        sections = _sections(path, text)
    except configparser.Error:
        profiles.unknown.append(path)  # tuned refuses it
        return
    for other in included(text):
        _add_profile(files, other, profiles, units)
    for section, options in sections.items():
        before = units.get(section)
        if before is None or options.get("replace", ("", ""))[1] in _YES:
            units[section] = options
            continue
        # These are not inherited.
        gone = ["type", "enabled", *re.split(r"\s*[,;]\s*", options.get("drop", ("", ""))[1])]
        for option in gone:
            before.pop(option, None)
        if _SCRIPT in before and _SCRIPT in options:  # both are run
            before[f"{_SCRIPT} {len(before)}"] = before.pop(_SCRIPT)
        before.update(options)


def _sections(path: str, text: str) -> _Sections:
    """Options by section, parsed as tuned does. Raises configparser.Error."""
    parser = configparser.ConfigParser(
        delimiters=("=",), inline_comment_prefixes=("#",), strict=False, interpolation=None
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string("\n".join(_numbered(text)))
    return {
        section: {
            option: (f"{path}:{number}", value.strip())
            for option, text in parser.items(section)
            for number, _, value in [text.partition("\0")]
        }
        for section in parser.sections()
    }


def _numbered(text: str) -> Iterator[str]:
    """The lines, with each value preceded by its line number."""
    for number, line in enumerate(text.split("\n"), 1):
        yield re.sub(r"^(\s*[^\s#;\[=][^=]*=)", rf"\g<1>{number}\0 ", line)
