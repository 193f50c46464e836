# SPDX-License-Identifier: GPL-2.0-or-later
"""Merges a policy's files and checks its keys against each other."""

from __future__ import annotations

import copy
import operator
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from . import schema, units
from .keys import DEVICE_KEYS, KEYS, SECTIONS, WHEN, WINDOW_KEYS, Setting
from .parse import Assignment, Errors, parse_lines, read_file, unknown_key
from .schema import Policy, PolicyError, Window
from .window import common_minute, format_minute

# Each is compared with every other, and with every device section.
_MOST_WINDOWS = 32


class Merger:
    """Values of all files read so far, later ones on top, each with its origin."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.errors = Errors()
        self.values: Dict[Tuple[str, str], Setting] = {
            (key.section, key.name): Setting(key, key.kind.parse(key.default), "default")
            for key in KEYS
        }
        self.devices: List[Setting] = []
        self.sections: Set[str] = set()  # globs that have a [device GLOB] section
        self.windows: Dict[str, Dict[str, Setting]] = {}  # by name, in the order read
        self.headers: Dict[str, str] = {}  # section -> where it is first
        self.window = ""  # whose time this one is of; see _within()
        self.inside: List["Merger"] = []  # one for each window, once all is read
        self.wrong: Set[str] = set()  # sections with a line that is: checks would only confuse

    def add_file(self, path: Path, site: bool = False) -> None:
        """Add a file on top; `site`: it belongs to every policy."""
        try:
            text = read_file(path)
        except PolicyError as error:
            self.errors.messages.extend(error.messages)
            return
        for line in parse_lines(text, path, self.errors, self.headers):
            if site and (line.section == "match" or line.key in ("name", "summary")):
                # The same rules everywhere, and every policy fits the same hosts.
                self.errors.add(
                    line.origin,
                    f"{line.key}: belongs to one policy, and this file applies to all: move it "
                    "into NAME.conf.d",
                )
                continue
            self._add(line)

    def _add(self, line: Assignment) -> None:
        kind, _, name = line.section.partition(" ")
        if kind == "device":
            known = DEVICE_KEYS
        elif kind == "window":
            known = WINDOW_KEYS
        else:
            known = {key.name: key for key in KEYS if key.section == line.section}
        key = known.get(line.key)
        if key is None:
            self.errors.add(line.origin, unknown_key(line, known))
            self.wrong.add(line.section)
            return
        try:
            value = key.parse(line.value)
        except units.UnitError as error:
            comment = re.search("[ \t][#;]", line.value)
            hint = " (a comment needs a line of its own)" if comment else ""
            self.errors.add(line.origin, f"{key.name}: {error}{hint}")
            self.wrong.add(line.section)
            return
        if key.name == "name" and value not in ("", self.name):
            self.errors.add(
                line.origin,
                f"name is '{units.shorten(value)}' but the file makes it "
                f"policy '{self.name}': correct one of them",
            )
        setting = Setting(key, value, line.origin, glob=name if kind == "device" else "")
        if kind == "device":
            self.sections.add(name)
            self._limit("device", len(self.sections), units.MOST_GLOBS, line.origin)
            self.devices = [each for each in self.devices if (each.glob, each.key) != (name, key)]
            self.devices.append(setting)
        elif kind == "window":
            self.windows.setdefault(name, {})[key.name] = setting
            self._limit("window", len(self.windows), _MOST_WINDOWS, line.origin)
        else:
            self.values[key.section, key.name] = setting

    def _limit(self, kind: str, count: int, most: int, origin: str) -> None:
        """Limit the number: sections are compared pairwise, device sections with all devices."""
        if count > most:
            hint = ": one with * names many" if kind == "device" else ""
            self.errors.add(origin, f"more than {most} [{kind} NAME] sections{hint}")
            self.errors.raise_any()

    def finish(self) -> None:
        """Check keys against each other; raises PolicyError if there were any errors."""
        self.inside = [self._within(name) for name in self.windows]
        self._check_bounds()
        self._check_alerts()
        self._check_devices()
        self._check_empty_windows()
        for merger in self.inside:
            if f"window {merger.window}" not in self.wrong:
                self._check_window(merger)
        self._check_overlaps()
        self.errors.raise_any()

    def _check_bounds(self) -> None:
        for glob in ("", *dict.fromkeys(setting.glob for setting in self.devices)):
            self._check_order("floor", "ceiling", glob)
            self._check_order("allowed-delay", "drain-time", glob)
            if glob:
                self._check_own_rest(glob)
        self._check_rest()

    def _within(self, name: str) -> "Merger":
        """Check the merged values while a window is open."""
        inside = copy.copy(self)
        inside.window = name
        changed = {(line.key.section, line.key.name): line for line in self.windows[name].values()}
        inside.values = {**self.values, **changed}
        return inside

    def _check_empty_windows(self) -> None:
        """A window without lines, or with them in the section above, would never open."""
        for section, origin in self.headers.items():
            kind, _, name = section.partition(" ")
            if kind == "window" and section not in self.wrong and name not in self.windows:
                self.errors.add(
                    origin,
                    f"window {name} is empty: add 'when = {WHEN.kind.example}' and the keys to "
                    "change, or remove the header",
                )

    def _check_window(self, inside: "Merger") -> None:
        name, lines = inside.window, self.windows[inside.window]
        first = next(iter(lines.values())).origin
        if "when" not in lines:
            self.errors.add(first, f"window {name} has no when: write 'when = {WHEN.kind.example}'")
        elif lines.keys() == {"when"} and lines["when"].value is not None:
            self.errors.add(first, f"window {name} changes nothing: add the keys to change")
        inside._check_bounds()

    def _check_overlaps(self) -> None:
        """If two windows were open at once, nobody could see which one applies."""
        known = [
            (name, lines["when"])
            for name, lines in self.windows.items()
            if "when" in lines and lines["when"].value is not None
        ]
        for number, (name, setting) in enumerate(known):
            for other, earlier in known[:number]:
                minute = common_minute(setting.value, earlier.value)
                if minute is not None:
                    self.errors.add(
                        setting.origin,
                        f"when: window {name} is open on {format_minute(minute)}, as window "
                        f"{other} is ({earlier.origin}): end one before the other begins",
                    )

    def _in_force(self, name: str, glob: str) -> Setting:
        """The value of a key, for the device that ``glob`` names if there is one."""
        key = DEVICE_KEYS[name]
        value = self.values[key.section, name]
        for setting in self.devices if glob else ():
            if setting.key is key and schema.matches(setting.glob, glob, names=(glob,)):
                value = setting
        return value

    def _check_order(self, small: str, large: str, glob: str) -> None:
        low, high = self._in_force(small, glob), self._in_force(large, glob)
        general = self._in_force(small, ""), self._in_force(large, "")
        inherited = bool(glob) and (low, high) == general
        if low.value <= high.value or inherited:
            return
        # Point at the line written last: the other one may be a default.
        own = low.origin != "default" and not (glob and low == general[0])
        if self.window:
            changed = {line.origin for line in self.windows[self.window].values()}
            if not changed & {low.origin, high.origin}:
                return  # always wrong, and reported already
            own = low.origin in changed
        write = low.key.kind.format
        where = f" for device {glob}" if glob else ""
        self.errors.add(
            low.origin if own else high.origin,
            f"{small if own else large}: {small} {write(low.value)} ({low.origin}) is above "
            f"{large} {write(high.value)} ({high.origin}){where}: lower {small} or "
            f"raise {large}{self._while}",
        )

    @property
    def _while(self) -> str:
        return f", in window {self.window}" if self.window else ""

    def _check_rest(self) -> None:
        names = ("rest", "floor", "ceiling")
        rest, floor, ceiling = (self.values["limits", name] for name in names)
        if floor.value > ceiling.value:
            return
        inside = min(max(rest.value, floor.value), ceiling.value)
        all_the_time = self.window and not {*names} & self.windows[self.window].keys()
        if inside != rest.value and rest.origin != "default" and not all_the_time:
            write = rest.key.kind.format
            self.errors.add(
                rest.origin,
                f"rest: {write(rest.value)} is outside of floor and ceiling: use "
                f"{write(floor.value)} to {write(ceiling.value)}{self._while}",
            )
        # A default moves along with bounds that leave it outside.
        self.values["limits", "rest"] = replace(rest, value=inside)

    def _check_own_rest(self, glob: str) -> None:
        """Check what one section of one file says; bounds from elsewhere adapt."""
        own = {line.key.name: line for line in self.devices if line.glob == glob}
        rest = own.get("rest")
        if self.window or rest is None:
            return
        write, file = rest.key.kind.format, rest.origin.rpartition(":")[0]
        for name, outside in (("floor", operator.lt), ("ceiling", operator.gt)):
            bound = own.get(name)
            # A drop-in need not know what the shipped file says of the same devices.
            here = bound is not None and bound.origin.rpartition(":")[0] == file
            if bound is not None and here and outside(rest.value, bound.value):
                self.errors.add(
                    rest.origin,
                    f"rest: {write(rest.value)} is outside of floor and ceiling for device "
                    f"{glob}, whose {name} is {write(bound.value)} ({bound.origin}): change one of "
                    "them",
                )

    def _check_alerts(self) -> None:
        low, high = self.values["alerts", "sync-share"], self.values["alerts", "resolve-share"]
        if low.value >= high.value:
            self.errors.add(
                low.origin if low.origin != "default" else high.origin,
                f"sync-share: {units.format_share(low.value)} is not below resolve-share "
                f"{units.format_share(high.value)}: alerts would flap; lower sync-share",
            )

    def _check_devices(self) -> None:
        include, exclude = self.values["devices", "include"], self.values["devices", "exclude"]
        for glob in include.value:
            literal = not re.search("[*?[]", glob)
            for other in exclude.value:
                if other in (glob, "*") or (literal and schema.matches(other, glob, names=(glob,))):
                    self.errors.add(
                        exclude.origin,
                        f"exclude: '{other}' leaves out all of '{glob}', which include asks for "
                        f"({include.origin}): remove one of them",
                    )
                    break

    def policy(self, files: Sequence[Path]) -> Policy:
        """The merged policy; if ``finish`` reported errors, its readable part."""
        origins = {where: setting.origin for where, setting in self.values.items()}
        origins.update({(f"device {line.glob}", line.key.name): line.origin
                        for line in self.devices})  # fmt: skip
        origins.update({(f"window {name}", key): line.origin
                        for name, lines in self.windows.items()
                        for key, line in lines.items()})  # fmt: skip
        sections = {name: self._section(name) for name in SECTIONS if name != "policy"}
        return Policy(
            **{**self._fields("policy"), "name": self.name},
            **sections,
            origins=origins,
            files=tuple(str(path) for path in files),
            windows=tuple(self._windows()),
        )

    def _fields(self, section: str) -> Dict[str, Any]:
        return {
            value.key.attribute: value.value
            for value in self.values.values()
            if value.key.section == section
        }

    def _section(self, name: str) -> Any:
        more = {"settings": tuple(self.devices)} if name == "devices" else {}
        return SECTIONS[name](**self._fields(name), **more)

    def _windows(self) -> Iterator[Window]:
        """The windows that ever open."""
        for inside in self.inside:
            lines = self.windows[inside.window]
            opens = lines.get("when")
            if opens is not None and opens.value is not None:
                yield Window(
                    name=inside.window,
                    when=opens.value,
                    settings=tuple(line for line in lines.values() if line is not opens),
                    limits=inside._section("limits"),
                    objective=inside._section("objective"),
                    origin=opens.origin,
                )
