# SPDX-License-Identifier: GPL-2.0-or-later
"""Merges a policy's files and checks its keys against each other."""

from __future__ import annotations

import copy
import operator
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from . import schema, units
from .keys import DEVICE_KEYS, KEYS, SECTIONS, WHEN, WINDOW_KEYS, Key
from .parse import Assignment, Errors, parse_lines, read_file, unknown_key
from .schema import DeviceSetting, Policy, PolicyError, Window, WindowSetting
from .window import common_minute, format_minute

# Each is compared with every other, and with every device section.
_MOST_WINDOWS = 32


class Merger:
    """Values of all files read so far, later ones on top, each with where it came from."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.errors = Errors()
        self.values: Dict[Tuple[str, str], Any] = {
            (key.section, key.name): key.kind.parse(key.default) for key in KEYS
        }
        self.origins: Dict[Tuple[str, str], str] = dict.fromkeys(self.values, "default")
        self.settings: List[DeviceSetting] = []
        self.sections: Set[str] = set()  # globs that have a [device GLOB] section
        self.windows: Dict[str, Dict[Key, WindowSetting]] = {}  # by name, in the order read
        self.headers: Dict[str, str] = {}  # section -> where it is first
        self.window = ""  # whose time this one is of; see _within()
        self.inside: List["Merger"] = []  # one for each window, once all is read
        # Keys whose text was wrong: their checks against other keys would only confuse.
        self.broken: Set[Tuple[str, str]] = set()

    def add_file(self, path: Path, site: bool = False) -> None:
        """Put a file on top; `site`: it is one of every policy."""
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
                    f"{line.key}: tells policies apart, and this file is one of all: move it into "
                    "NAME.conf.d",
                )
                continue
            self._add(line)

    def _add(self, line: Assignment) -> None:
        kind, _, name = line.section.partition(" ")
        glob = name if kind == "device" else ""
        if glob:
            known = DEVICE_KEYS
        elif kind == "window":
            known = WINDOW_KEYS
        else:
            known = {key.name: key for key in KEYS if key.section == line.section}
        key = known.get(line.key)
        if key is None:
            self.errors.add(line.origin, unknown_key(line, known))
            if kind == "window":
                self.broken.add((line.section, line.key))
            return
        try:
            value = key.parse(line.value)
        except units.UnitError as error:
            comment = re.search("[ \t][#;]", line.value)
            hint = " (a comment needs a line of its own)" if comment else ""
            self.errors.add(line.origin, f"{key.name}: {error}{hint}")
            self.broken.add((line.section, key.name))
            return
        if key.name == "name" and value not in ("", self.name):
            self.errors.add(
                line.origin,
                f"name is '{units.shorten(value)}' but the file makes it "
                f"policy '{self.name}': correct one of them",
            )
        self.origins[line.section, line.key] = line.origin
        if glob:
            self._count_section(glob, line.origin)
            self.settings = [old for old in self.settings if (old.glob, old.key) != (glob, key)]
            self.settings.append(DeviceSetting(glob, key, value, line.origin))
        elif kind == "window":
            self.windows.setdefault(name, {})[key] = WindowSetting(key, value, line.origin)
            if len(self.windows) > _MOST_WINDOWS:
                self.errors.add(line.origin, f"more than {_MOST_WINDOWS} [window NAME] sections")
                self.errors.raise_any()
        else:
            self.values[key.section, key.name] = value

    def _count_section(self, glob: str, origin: str) -> None:
        """Each section is compared with every other, and with every device."""
        self.sections.add(glob)
        if len(self.sections) > units.MOST_GLOBS:
            self.errors.add(
                origin,
                f"more than {units.MOST_GLOBS} [device NAME] sections: one with * names many",
            )
            self.errors.raise_any()

    def finish(self) -> None:
        """Checks of keys against each other; raises PolicyError when anything was wrong."""
        self.inside = [self._within(name) for name in self.windows]
        self._check_bounds()
        self._check_alerts()
        self._check_devices()
        self._check_empty_windows()
        for each in self.inside:
            self._check_window(each)
        self._check_overlaps()
        self.errors.raise_any()

    def _check_bounds(self) -> None:
        self._check_order("floor", "ceiling", "")
        self._check_order("allowed-delay", "drain-time", "")
        for glob in dict.fromkeys(setting.glob for setting in self.settings):
            self._check_order("floor", "ceiling", glob)
            self._check_order("allowed-delay", "drain-time", glob)
            self._check_own_rest(glob)
        self._check_rest()

    def _within(self, name: str) -> "Merger":
        """What it all comes to while a window is open."""
        inside = copy.copy(self)
        inside.window = name
        changed = {(each.key.section, each.key.name): each for each in self.windows[name].values()}
        inside.values = {**self.values, **{where: each.value for where, each in changed.items()}}
        inside.origins = {**self.origins, **{where: each.origin for where, each in changed.items()}}
        own = f"window {name}"
        inside.broken = {
            (WINDOW_KEYS[key].section, key) if section == own and key in WINDOW_KEYS
            else (section, key)
            for section, key in self.broken
        }
        return inside

    def _check_empty_windows(self) -> None:
        """One whose lines are all commented out, or in the section above, would never open."""
        told = {section for section, _ in self.broken}
        for section, origin in self.headers.items():
            kind, _, name = section.partition(" ")
            if kind == "window" and name not in self.windows and section not in told:
                self.errors.add(
                    origin,
                    f"window {name} is empty: write 'when = {WHEN.kind.example}' and what is to "
                    "be other then, or take the header out",
                )

    def _check_window(self, inside: "Merger") -> None:
        name, lines = inside.window, self.windows[inside.window]
        first = next(iter(lines.values())).origin
        wrong = any(section == f"window {name}" for section, _ in self.broken)
        if WHEN not in lines and not wrong:
            self.errors.add(first, f"window {name} has no when: write 'when = {WHEN.kind.example}'")
        elif lines.keys() == {WHEN} and not wrong and lines[WHEN].value is not None:
            self.errors.add(first, f"window {name} changes nothing: add what changes then")
        inside._check_bounds()

    def _check_overlaps(self) -> None:
        """Of two open windows one would have to win, and nobody would see which."""
        known = [(name, lines[WHEN]) for name, lines in self.windows.items() if WHEN in lines]
        for number, (name, setting) in enumerate(known):
            for other, earlier in known[:number]:
                if setting.value is None or earlier.value is None:
                    continue
                minute = common_minute(setting.value, earlier.value)
                if minute is not None:
                    self.errors.add(
                        setting.origin,
                        f"when: window {name} is open on {format_minute(minute)}, as window "
                        f"{other} is ({earlier.origin}): end one before the other begins",
                    )

    def _is_broken(self, glob: str, *names: str) -> bool:
        # What is wrong in another section says nothing of this one.
        apart = ("window ",) if glob else ("device ", "window ")
        return any(
            name in names and not section.startswith(apart) for section, name in self.broken
        )

    def _in_force(self, name: str, glob: str) -> Tuple[Any, str]:
        """Value and origin of a key, for the device that ``glob`` reads as when there is one."""
        key = DEVICE_KEYS[name]
        found = (self.values[key.section, name], self.origins[key.section, name])
        for each in self.settings if glob else ():
            if each.key is key and (each.glob == glob or schema.matches(each.glob, glob)):
                found = (each.value, each.origin)
        return found

    def _check_order(self, small: str, large: str, glob: str) -> None:
        (low, low_origin), (high, high_origin) = (
            self._in_force(small, glob),
            self._in_force(large, glob),
        )
        unset = (self._in_force(small, "")[1], self._in_force(large, "")[1])
        inherited = bool(glob) and (low_origin, high_origin) == unset
        if low <= high or inherited or self._is_broken(glob, small, large):
            return
        # Point at the line somebody wrote last: the other one may be a default.
        own = low_origin != "default" and not (glob and low_origin == unset[0])
        if self.window:
            changed = {each.origin for each in self.windows[self.window].values()}
            if not changed & {low_origin, high_origin}:
                return  # wrong all the time, and told so
            own = low_origin in changed
        name, origin = (small, low_origin) if own else (large, high_origin)
        write = DEVICE_KEYS[small].kind.format
        where = f" for device {glob}" if glob else ""
        self.errors.add(
            origin,
            f"{name}: {small} {write(low)} ({low_origin}) is above {large} "
            f"{write(high)} ({high_origin}){where}: lower {small} or "
            f"raise {large}{self._while}",
        )

    @property
    def _while(self) -> str:
        return f", in window {self.window}" if self.window else ""

    def _check_rest(self) -> None:
        where = ("limits", "rest")
        floor, ceiling = self.values["limits", "floor"], self.values["limits", "ceiling"]
        if self._is_broken("", "rest", "floor", "ceiling") or floor > ceiling:
            return
        inside = min(max(self.values[where], floor), ceiling)
        told = self.window and not {"rest", "floor", "ceiling"} & {
            key.name for key in self.windows[self.window]
        }
        if told:
            pass  # wrong all the time
        elif inside != self.values[where] and self.origins[where] != "default":
            bounds = f"{units.format_size(floor)} to {units.format_size(ceiling)}"
            self.errors.add(
                self.origins[where],
                "rest: "
                f"{units.format_size(self.values[where])} is outside of floor and "
                f"ceiling: use {bounds}{self._while}",
            )
        # A default moves along with bounds that leave it outside.
        self.values[where] = inside

    def _check_own_rest(self, glob: str) -> None:
        """Of what one section of one file says; bounds from elsewhere move it along."""
        own = {each.key.name: each for each in self.settings if each.glob == glob}
        if self.window or "rest" not in own or self._is_broken(glob, "rest", "floor", "ceiling"):
            return
        rest, file = own["rest"].value, own["rest"].origin.rpartition(":")[0]
        for name, outside in (("floor", operator.lt), ("ceiling", operator.gt)):
            # A drop-in need not know what the shipped file says of the same devices.
            here = name in own and own[name].origin.rpartition(":")[0] == file
            if here and outside(rest, own[name].value):
                self.errors.add(
                    own["rest"].origin,
                    f"rest: {units.format_size(rest)} is outside of floor and ceiling for device "
                    f"{glob}, whose {name} is {units.format_size(own[name].value)}"
                    f" ({own[name].origin}): change one of them",
                )

    def _check_alerts(self) -> None:
        low, high = ("alerts", "sync-share"), ("alerts", "resolve-share")
        if self._is_broken("", "sync-share", "resolve-share"):
            return
        if self.values[low] >= self.values[high]:
            origin = self.origins[low] if self.origins[low] != "default" else self.origins[high]
            self.errors.add(
                origin,
                f"sync-share: {units.format_share(self.values[low])} is not below resolve-share "
                f"{units.format_share(self.values[high])}: an alert would come and go",
            )

    def _check_devices(self) -> None:
        include, exclude = self.values["devices", "include"], self.values["devices", "exclude"]
        if self._is_broken("", "include", "exclude"):
            return
        for glob in include:
            literal = not re.search("[*?[]", glob)
            by = next(
                (
                    each
                    for each in exclude
                    if each in (glob, "*") or (literal and schema.matches(each, glob))
                ),
                None,
            )
            if by is not None:
                self.errors.add(
                    self.origins["devices", "exclude"],
                    f"exclude: '{by}' leaves out all of '{glob}', which include asks for "
                    f"({self.origins['devices', 'include']}): remove one of them",
                )

    def policy(self, files: Sequence[Path]) -> Policy:
        """The merged policy; of one with errors in ``finish``, what could be read."""
        fields: Dict[str, Dict[str, Any]] = {section: {} for section in SECTIONS}
        for key in KEYS:
            fields[key.section][key.attribute] = self.values[key.section, key.name]
        return Policy(
            **{**fields["policy"], "name": self.name},
            match=schema.Match(**fields["match"]),
            limits=schema.Limits(**fields["limits"]),
            objective=schema.Objective(**fields["objective"]),
            levers=schema.Levers(**fields["levers"]),
            protect=schema.Protect(**fields["protect"]),
            alerts=schema.Alerts(**fields["alerts"]),
            devices=schema.Devices(**fields["devices"], settings=tuple(self.settings)),
            probe=schema.Probe(**fields["probe"]),
            metrics=schema.Metrics(**fields["metrics"]),
            history=schema.HistorySettings(**fields["history"]),
            origins=dict(self.origins),
            files=tuple(str(path) for path in files),
            windows=tuple(self._windows()),
        )

    def _windows(self) -> Iterator[Window]:
        """Those that ever open."""
        for inside in self.inside:
            lines = self.windows[inside.window]
            opens = lines.get(WHEN)
            if opens is None or opens.value is None:
                continue
            fields: Dict[str, Dict[str, Any]] = {"limits": {}, "objective": {}}
            for key in KEYS:
                if key.section in fields:
                    value = inside.values[key.section, key.name]
                    fields[key.section][key.attribute] = value
            yield Window(
                name=inside.window,
                when=opens.value,
                settings=tuple(each for key, each in lines.items() if key is not WHEN),
                limits=schema.Limits(**fields["limits"]),
                objective=schema.Objective(**fields["objective"]),
                origin=opens.origin,
            )
