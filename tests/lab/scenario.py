# SPDX-License-Identifier: GPL-2.0-or-later
"""Scenarios: which disks, which loads, what happens when, and what it has to show.

A scenario is a file scenarios/NAME.conf; tests/lab/README.md has its keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple

from writebackd.policy import units

from . import host
from .disks import Disk, check_setting, preset, read_ini
from .loads import KINDS
from .remains import RigError

DIRECTORY = Path(__file__).parent / "scenarios"
WAYS = ("native", "vm", "virtual")
VM_FILES = tuple(name for pair in host.PAIRS for name in pair)
FILESYSTEMS = ("xfs", "ext4", "btrfs")
ROLES = ("sync", "flood", "job", "bystander")
TAGS = ("quick", "ci", "extra")
# Sections of which nothing is taken from the scenario that another one is like.
REPLACED = ("events", "expect")
SIGNALS = ("SIGSTOP", "SIGCONT", "SIGKILL", "SIGHUP")  # that an agent may get

Values = Mapping[str, str]


@dataclass(frozen=True)
class Span:
    """A part of the run, seconds on its clock."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start

    def covers(self, other: Span) -> bool:
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class DiskSpec:
    name: str
    preset: str
    fs: str
    disk: Disk
    driver: str  # that policies shall take it for; "" for what it is
    directory: Optional[Path] = None  # on a disk of this host, in place of the model


@dataclass(frozen=True)
class LoadSpec:
    """A load; each of its spans is one start and stop."""

    name: str
    kind: str
    role: str
    disk: str
    spans: Tuple[Span, ...]
    options: Mapping[str, object]


@dataclass(frozen=True)
class Event:
    """At `time`: set parameters of a modelled disk, write sysctls, or signal the agent."""

    time: float
    target: str  # name of a disk, "vm" or "agent"
    values: Tuple[Tuple[str, str], ...]

    @property
    def text(self) -> str:
        return f"{self.target}: " + " ".join(
            f"{key}={value}" if value else key for key, value in self.values)


@dataclass(frozen=True)
class Term:
    """METRIC of CONTENDER, or of one of its loads."""

    contender: str
    metric: str
    load: str = ""


@dataclass(frozen=True)
class Expectation:
    """`left / right` (or `left` alone) compared with a number."""

    text: str
    left: Term
    right: Optional[Term]
    operator: str  # ">=" or "<="
    number: float


@dataclass(frozen=True)
class Scenario:
    name: str
    summary: str
    shows: str
    disks: Tuple[DiskSpec, ...]
    loads: Tuple[LoadSpec, ...]
    events: Tuple[Event, ...]
    expectations: Tuple[Expectation, ...]
    contenders: Tuple[str, ...]  # names of contenders.conf and groups of it
    sweep: Tuple[str, ...]  # LIMIT, or LIMIT/BACKGROUND
    idle: Optional[Span]  # measured before the flood; None: there is no idle rate
    judged: Span
    changed: Optional[Span]  # after a change in mid-run, or a second flood
    contend: float  # when the contender's settings are made; 0: before any load runs
    prepare: float  # seconds that disks, files and databases take, for the time left
    ways: FrozenSet[str]
    tags: FrozenSet[str]  # quick, ci

    @property
    def has_sync(self) -> bool:
        return any(load.role == "sync" for load in self.loads)

    @property
    def length(self) -> float:
        return max(window.end for window in self.windows.values())

    @property
    def windows(self) -> Dict[str, Span]:
        """By name, in order of time."""
        named = (("idle", self.idle), ("judged", self.judged), ("changed", self.changed))
        return {name: window for name, window in named if window is not None}

    def short(self) -> Scenario:
        """Without the window that makes it long."""
        end = self.judged.end
        return replace(self, changed=None,
                       events=tuple(event for event in self.events if event.time < end))


def names() -> List[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.conf"))


def load(name: str) -> Scenario:
    """Raises RigError, with the file and the key that is wrong."""
    sections: Dict[str, Dict[str, str]] = {}
    for each in reversed(lineage(name)):
        sections.get("scenario", {}).pop("tags", None)
        for header, values in read_ini(DIRECTORY / f"{each}.conf").items():
            kept = {} if header in REPLACED else sections.get(header, {})
            sections[header] = {**kept, **values}
    sections.get("scenario", {}).pop("like", None)
    return parse(name, sections)


def lineage(name: str) -> List[str]:
    """The scenario, the one that it is `like`, and so on; RigError for one that is not there."""
    found = [name]
    while True:
        path = DIRECTORY / f"{found[-1]}.conf"
        if not path.is_file():
            raise RigError(f"no scenario {found[-1]}: take one of {', '.join(names())}")
        like = read_ini(path).get("scenario", {}).get("like")
        if like is None or like in found:
            return found
        found.append(like)


class Section:
    """Takes the keys of a section one by one; in the end none may be left."""

    def __init__(self, where: str, values: Values) -> None:
        self.where = where
        self._values = dict(values)

    def text(self, key: str, default: Optional[str] = None) -> str:
        if key in self._values:
            return self._values.pop(key)
        if default is None:
            raise RigError(f"{self.where}: {key} is missing")
        return default

    def value(self, key: str, parser: Callable[[str], object], default: str) -> object:
        text = self.text(key, default)
        try:
            return parser(text)
        except ValueError as error:
            raise RigError(f"{self.where}: {key}: {error}") from None

    def choice(self, key: str, choices: Iterable[str], default: Optional[str] = None) -> str:
        text = self.text(key, default)
        if text not in choices:
            raise RigError(f"{self.where}: {key}: no {text}, take one of {', '.join(choices)}")
        return text

    def end(self) -> None:
        if self._values:
            raise RigError(f"{self.where}: unknown key {', '.join(self._values)}")


def parse_span(text: str, end: float) -> Span:
    """`4s..20s`; without its second time until `end`. Raises ValueError."""
    first, dots, last = text.partition("..")
    span = Span(units.parse_time(first), units.parse_time(last) if last else end)
    if not dots or span.length <= 0:
        raise ValueError(f"'{text}' is not a span: write it like 4s..20s")
    return span


METRICS = ("f", "g", "score", "changed", "worst", "longest", "rate", "byte-rate", "device-rate",
           "p99", "max", "stall", "limit", "dirty", "extents", "stripes", "checkpoint")
OF_A_LOAD = ("rate", "byte-rate", "device-rate", "p99", "max", "stall", "extents", "checkpoint")
_TERM = (r"([\w.*-]+) (?:([\w-]+)\.(?=" + "|".join(OF_A_LOAD) + r"))?(" + "|".join(METRICS) + ")")
_EXPECTATION = re.compile(rf"{_TERM}(?: / {_TERM})? (>=|<=) ([\d.]+)")


def parse_expectation(text: str) -> Expectation:
    """`agent f / static-15M f >= 1` or `default f <= 0.002`. Raises ValueError."""
    match = _EXPECTATION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no expectation: write it like `agent f >= 0.5` or "
                         f"`agent f / static-15M f >= 1`, of {', '.join(METRICS)}; of one "
                         f"load write it like `agent backup.byte-rate`")
    left, right = match.groups()[:3], match.groups()[3:6]
    return Expectation(text, Term(left[0], left[2], left[1] or ""),
                       Term(right[0], right[2], right[1] or "") if right[0] else None,
                       match.group(7), float(match.group(8)))


def parse(name: str, sections: Mapping[str, Values]) -> Scenario:
    where = f"{name}.conf"
    parts: Dict[str, Dict[str, Section]] = {"disk": {}, "load": {}}
    rest: Dict[str, Values] = {}
    for header, values in sections.items():
        kind, _, label = header.partition(" ")
        if kind in parts and label:
            parts[kind][label] = Section(f"{where}: [{header}]", values)
        elif header in ("scenario", "events", "expect"):
            rest[header] = values
        else:
            raise RigError(f"{where}: unknown section [{header}]")
    main = Section(f"{where}: [scenario]", rest.get("scenario", {}))
    judged = main.value("judged", lambda text: parse_span(text, 0), "")
    assert isinstance(judged, Span)
    idle, changed = optional_span(main, "idle"), optional_span(main, "changed")
    end = (changed or judged).end
    disks = tuple(parse_disk(label, section) for label, section in parts["disk"].items())
    if not disks:
        raise RigError(f"{where}: no [disk NAME]")
    disk_names = [disk.name for disk in disks]
    scenario = Scenario(
        name=name,
        summary=main.text("summary"), shows=main.text("shows"),
        disks=disks,
        loads=tuple(parse_load(label, section, disk_names, end)
                    for label, section in parts["load"].items()),
        events=parse_events(f"{where}: [events]", rest.get("events", {}), disk_names),
        expectations=tuple(parse_line(f"{where}: [expect] {key}", value)
                           for key, value in rest.get("expect", {}).items()),
        contenders=tuple(main.text("contenders", "core").split()),
        sweep=sweep(f"{where}: sweep", main.text("sweep", "1M 2M 4M 8M")),
        idle=idle, judged=judged, changed=changed,
        contend=seconds(main, "contend", "0s"), prepare=seconds(main, "prepare", "2s"),
        ways=frozenset(main.text("ways", "native vm virtual").split()),
        tags=frozenset(main.text("tags", "").split()))
    main.end()
    check(where, scenario)
    return scenario


def optional_span(main: Section, key: str) -> Optional[Span]:
    span = main.value(key, lambda text: None if text == "none" else parse_span(text, 0), "none")
    assert span is None or isinstance(span, Span)
    return span


def seconds(main: Section, key: str, default: str) -> float:
    value = main.value(key, units.parse_time, default)
    assert isinstance(value, float)
    return value


def sweep(where: str, text: str) -> Tuple[str, ...]:
    try:
        for size in text.replace("/", " ").split():
            units.parse_size(size)
    except ValueError as error:
        raise RigError(f"{where}: {error}") from None
    return tuple(text.split())


def parse_disk(name: str, section: Section) -> DiskSpec:
    # Named only to be refused: the lab brings its own disks, always.
    given = section.text("device", "")
    if given:
        raise RigError(f"{section.where}: device = {given}: the lab works on disks that it makes "
                       "itself and never on another; name a preset instead")
    model = section.text("preset")
    fs = section.choice("fs", FILESYSTEMS, "xfs")
    driver = section.text("driver", "")
    section.end()
    try:
        return DiskSpec(name, model, fs, preset(model), driver)
    except RigError as error:
        raise RigError(f"{section.where}: preset: {error}") from None


def parse_load(name: str, section: Section, disks: List[str], end: float) -> LoadSpec:
    kind = section.choice("kind", KINDS)
    role = section.choice("role", ROLES)
    disk = section.choice("disk", disks, disks[0])
    spans = section.value("runs", lambda text: tuple(
        parse_span(part, end) for part in text.split()), "0s..")
    assert isinstance(spans, tuple)
    options = {key: section.value(key, parser, default)
               for key, (parser, default) in KINDS[kind].OPTIONS.items()}
    section.end()
    return LoadSpec(name, kind, role, disk, spans, options)


def parse_events(where: str, values: Values, disks: List[str]) -> Tuple[Event, ...]:
    """`12s = db mode=writethrough`; further events at the same time after a comma."""
    events = []
    for time, text in values.items():
        for one in filter(str.strip, text.split(",")):
            target, *pairs = one.split()
            if target not in [*disks, "vm", "agent"]:
                raise RigError(f"{where}: {time}: no {target}: take vm, agent or a disk "
                               f"({', '.join(disks)})")
            try:
                when = units.parse_time(time)
            except ValueError as error:
                raise RigError(f"{where}: {error}") from None
            settings = tuple((key, value) for key, _, value in
                             (pair.partition("=") for pair in pairs))
            try:
                check_event(target, settings)
            except RigError as error:
                raise RigError(f"{where}: {time}: {error}") from None
            events.append(Event(when, target, settings))
    return tuple(sorted(events, key=lambda event: event.time))


def check_event(target: str, settings: Iterable[Tuple[str, str]]) -> None:
    """RigError for what would stop a run in its middle."""
    for key, value in settings:
        if target == "agent" and key not in SIGNALS:
            raise RigError(f"no signal {key}: take one of {', '.join(SIGNALS)}")
        if target == "vm" and (key not in VM_FILES or not value.isdigit()):
            raise RigError(f"{key}={value}: take a number for one of {', '.join(VM_FILES)}")
        if target not in ("agent", "vm"):
            check_setting(key, value)


def parse_line(where: str, text: str) -> Expectation:
    try:
        return parse_expectation(text)
    except ValueError as error:
        raise RigError(f"{where}: {error}") from None


def check(where: str, scenario: Scenario) -> None:
    """What keys say together."""
    for way in scenario.ways - set(WAYS):
        raise RigError(f"{where}: ways: no {way}, take some of {', '.join(WAYS)}")
    for tag in scenario.tags - set(TAGS):
        raise RigError(f"{where}: tags: no {tag}, take some of {', '.join(TAGS)}")
    times = [event.time for event in scenario.events] + [
        span.start for load in scenario.loads for span in load.spans]
    if max(times, default=0) >= scenario.length:
        raise RigError(f"{where}: something begins at {max(times):g} s, when the run is over")
    if scenario.has_sync and scenario.idle is None:
        raise RigError(f"{where}: idle is missing: a load of role sync is judged by its idle rate")
    windows = list(scenario.windows.values())
    if any(after.start < before.end for before, after in zip(windows, windows[1:])):
        raise RigError(f"{where}: the windows {', '.join(scenario.windows)} have to follow each "
                       "other")
    for load in scenario.loads:
        if load.role == "sync" and not all(
                any(span.covers(window) for span in load.spans) for window in windows):
            raise RigError(f"{where}: [load {load.name}] has to run in all windows, "
                           f"{' and '.join(scenario.windows)}")
    loads = {load.name for load in scenario.loads}
    for each in scenario.expectations:
        for term in filter(None, (each.left, each.right)):
            if term.load and term.load not in loads:
                raise RigError(f"{where}: [expect] {each.text}: no load {term.load}")
