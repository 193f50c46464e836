# SPDX-License-Identifier: GPL-2.0-or-later
"""One run: a scenario with one contender on disks made for it, from nothing to a JSON.

Every run has fresh disks, filesystems and files, so that none inherits a full
write cache, an aged filesystem or dirty pages from the one before.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from writebackd.policy import load_policy
from writebackd.policy.load import DEFAULT_NAME, check
from writebackd.policy.schema import matches

from . import cgroups, host
from .agent import Agent
from .contenders import Contender
from .disks import scaled_setting
from .ground import Ground
from .loads import KINDS
from .loads.base import Load, Measured, Place, Spawn
from .remains import RigError, run
from .rig import Rig
from .scenario import Event, LoadSpec, Scenario, Span
from .series import STEP_S as SAMPLE_S
from .series import Series
from .watch import GUEST_STEP_S, STEP_S, Watch

SCHEMA = 1
# Of a disk while files and databases are made on it: nobody looks yet, and waiting for
# 10 GB on a slow disk would take longer than the run.
HASTE = {"rate": "16G", "link": "16G", "seek_us": "0", "scatter_us": "0", "latency_us": "0",
         "iops": "0", "bandwidth": "0", "rebuild": "0", "neighbour": "0",
         "destage_high": "0", "destage_s": "0"}
DRAIN_S = 60  # patience until the write caches are empty before the clock starts


@contextlib.contextmanager
def haste(rigs: Sequence[Rig]) -> Iterator[None]:
    """Disks in haste while files are made on them; then as they were, with empty caches."""
    for rig in rigs:
        for key, value in HASTE.items():
            rig.control.set(key, value)
    yield
    for rig in rigs:
        run("sync", "--file-system", str(rig.mountpoint))
    deadline = time.monotonic() + DRAIN_S
    while any(rig.control.get()["fill"] for rig in rigs):
        if time.monotonic() > deadline:
            raise RigError(f"a write cache of the model is not empty after {DRAIN_S} s")
        time.sleep(0.05)
    for rig in rigs:
        for key in HASTE:
            rig.control.set(key, str(getattr(rig.disk, key)))


@dataclass(frozen=True)
class Conditions:
    """What a run has in common with those it is compared with."""

    way: str  # native, vm or virtual
    scale: float  # factor on all sizes and rates of disks and loads
    prefix: str  # of the rigs' names
    memory: int  # bytes that the host has left for it
    host: str  # kernel and processors

    def rig_name(self, disk: str) -> str:
        return f"{self.prefix}-{disk}"


@dataclass
class Player:
    """A load of the scenario with what was measured of it; a new Load for every span."""

    spec: LoadSpec
    place: Place
    load: Optional[Load] = None  # while it runs
    prepared: Optional[Load] = None
    windows: Dict[str, Optional[Measured]] = field(default_factory=dict)
    extents: Optional[Dict[str, int]] = None
    stall: Optional[float] = None  # longest buffered write since the contender came
    files: List[Path] = field(default_factory=list)

    def prepare(self) -> None:
        self.prepared = self._new()
        self.prepared.prepare()

    def start(self) -> None:
        self.load, self.prepared = self.prepared or self._new(), None
        self.load.start()

    def stop(self, contended: float) -> None:
        """contended: time.monotonic() at which the contender came."""
        if self.load is not None:
            self.files = self.load.files()
            stalls = [self.stall, self.load.stall(contended)]
            self.stall = max((each for each in stalls if each is not None), default=None)
            self.load.stop()
            self.load = None

    def _new(self) -> Load:
        return KINDS[self.spec.kind](self.place, self.spec.options)


class Stage:
    """The disks, the loads and the contender of one run; `play` is its timeline."""

    def __init__(self, scenario: Scenario, contender: Contender, conditions: Conditions,
                 seed: int, stack: contextlib.ExitStack) -> None:
        """Everything that is made is taken down by `stack`."""
        self.scenario = scenario
        self.contender = contender
        self.conditions = conditions
        self.rigs: Dict[str, Rig] = {}
        for spec in scenario.disks:
            name = conditions.rig_name(spec.name)
            rig = (Ground(name, spec.directory) if spec.directory is not None
                   else Rig(name, spec.fs, spec.disk.scaled(conditions.scale)))
            self.rigs[spec.name] = stack.enter_context(rig)
        host.write_limits(host.DEFAULT_LIMITS)
        first = next(iter(self.rigs.values()))
        self.groups = stack.enter_context(cgroups.Groups(first)) if contender.cgroup else None
        self.players = {spec.name: Player(spec, self._place(spec, seed))
                        for spec in scenario.loads}
        self.agent = (Agent([rig.device for rig in self.rigs.values()], first.directory,
                            first.spawn, policy_options(contender, first.directory, {
                               self.rigs[spec.name].device: spec.driver
                               for spec in scenario.disks if spec.driver}))
                      if contender.kind == "agent" else None)
        self.series = Series(self.rigs, self.running)
        self.watch = Watch(self.running, self.clock,
                           STEP_S if conditions.way == "native" else GUEST_STEP_S)
        self.events: List[Dict[str, Any]] = []
        self.written: Dict[str, Dict[str, int]] = {name: {} for name in self.rigs}
        self.stripes: Dict[str, Dict[str, Dict[str, int]]] = {name: {} for name in self.rigs}
        self.windows: Dict[str, Tuple[float, float]] = {}
        self._zero = self._contended = 0.0

    def _place(self, spec: LoadSpec, seed: int) -> Place:
        rig = self.rigs[spec.disk]
        spawn: Spawn = rig.spawn
        if self.groups is not None:
            spawn = self.groups.spawn(rig.spawn, "sync" if spec.role == "sync" else "flood")
        place = Place(rig.mountpoint / spec.name, rig.directory / "loads" / spec.name, spawn,
                      self.conditions.scale, seed)
        place.directory.mkdir()
        place.runtime.mkdir(parents=True)
        return place

    def running(self, roles: Sequence[str]) -> List[Load]:
        return [player.load for player in self.players.values()
                if player.load is not None and player.spec.role in roles]

    def clock(self) -> float:
        return time.monotonic() - self._zero

    def prepare(self) -> None:
        with haste(list(self.rigs.values())):
            for player in self.players.values():
                player.prepare()

    def contend(self) -> None:
        """Make the contender's settings; the agent is only started here."""
        self._contended = time.monotonic()
        flooded = [spec.disk for spec in self.scenario.loads if spec.role in ("flood", "job")]
        disk = self.rigs[(flooded or list(self.rigs))[0]].disk
        host.write_limits(self.contender.limits_on(disk.rate_bytes))
        for rig in self.rigs.values():
            for file, value in self.contender.queue:
                path = Path("/sys/block") / rig.device / "queue" / file
                try:
                    path.write_text(value)
                except OSError as error:
                    raise RigError(f"{path}: {value}: {error.strerror}: this kernel cannot do "
                                   f"{self.contender.name}") from None
        if self.groups is not None:
            for spec in self.scenario.disks:
                self.groups.apply(self.contender.cgroup, self.rigs[spec.name])
        if self.agent is not None:
            self.agent.start()

    def play(self) -> None:
        """The timeline, from its second 0 to the end of the judged window."""
        self.prepare()
        if self.scenario.contend <= 0:
            self.contend()
            if self.agent is not None:
                self.agent.wait()
        self._zero = time.monotonic()
        with self.watch:
            self._play()

    def _play(self) -> None:
        next_sample = 0.0
        for when, action in self._actions():
            while self.clock() < when:
                if self.clock() >= next_sample:
                    next_sample = max(next_sample + SAMPLE_S, self.clock())
                    self.series.sample(self.clock())
                time.sleep(max(0.0, min(when, next_sample) - self.clock()))
            action()

    def _actions(self) -> List[Tuple[float, Callable[[], None]]]:
        """In order of time; at the same time: ends, starts, events, windows."""
        found: List[Tuple[float, int, Callable[[], None]]] = []
        for player in self.players.values():
            for span in player.spec.spans:
                found.append((span.start, 1, player.start))
                if span.end < self.scenario.length:
                    found.append((span.end, 0, self._stop(player)))
        if self.scenario.contend > 0:
            found.append((self.scenario.contend, 2, self.contend))
        found += [(event.time, 2, self._event(event)) for event in self.scenario.events]
        for name, window in self.scenario.windows.items():
            found.append((window.start, 3, self._open(name, window)))
            found.append((window.end, -1, self._close(name)))
        return [(when, action) for when, _, action in sorted(found, key=lambda each: each[:2])]

    def _stop(self, player: Player) -> Callable[[], None]:
        return lambda: player.stop(self._contended)

    def _open(self, name: str, span: Span) -> Callable[[], None]:
        def action() -> None:
            for disk, rig in self.rigs.items():
                self.written[disk][name] = host.device_written(rig.device)
                self.stripes[disk][name] = stripes(rig)
            for player in self.players.values():
                if player.load is not None:
                    player.load.open(span.length)
            self.windows[name] = (self.clock(), self.clock())
        return action

    def _close(self, name: str) -> Callable[[], None]:
        def action() -> None:
            for disk, rig in self.rigs.items():
                self.written[disk][name] = (
                    host.device_written(rig.device) - self.written[disk][name])
                before = self.stripes[disk][name]
                self.stripes[disk][name] = {key: value - before[key]
                                            for key, value in stripes(rig).items()}
            self.windows[name] = (self.windows[name][0], self.clock())
            # Tools that have to be waited for come last, since the others measure until now.
            for player in sorted(self.players.values(), key=lambda each: KINDS[
                    each.spec.kind].WAITS):
                player.windows[name] = player.load.close() if player.load else None
        return action

    def _event(self, event: Event) -> Callable[[], None]:
        def action() -> None:
            self.events.append({"t": round(self.clock(), 3), "text": event.text})
            if event.target == "vm":
                host.write_limits({**host.DEFAULT_LIMITS,
                                   **{key: int(value) for key, value in event.values}})
            elif event.target == "agent":
                for name, _ in event.values:
                    if self.agent is not None:
                        self.agent.signal(signal.Signals[name])
            else:
                for key, value in event.values:
                    self.rigs[event.target].control.set(
                        key, scaled_setting(key, value, self.conditions.scale))
        return action

    def end(self) -> Optional[Dict[str, Any]]:
        """Stop all of it, in an order in which nothing waits for gigabytes.

        What the agent cost, and what it told of.
        """
        cost = None
        if self.agent is not None:
            self.agent.signal(signal.SIGCONT)
            if not self.agent.alive():
                raise RigError(f"writebackd ended; it said: {self.agent.log.read_text().strip()}")
            status = self.agent.status()
            own = status["self"]
            cost = {"alerts": [alert["name"] for alert in status["alerts"]],
                    "cpu_fraction": own["cpu_fraction"], "rss_bytes": own["rss_bytes"],
                    "bpf_ns_per_io": own["bpf_ns_per_io"],
                    # The first entry is what was found.
                    "limit_writes": max(0, len(self.watch.limits) - 1)}
        in_order = sorted(self.players.values(), key=lambda player: player.spec.role == "sync")
        for player in in_order:
            if player.spec.role == "sync":
                self._discard()
            player.stop(self._contended)
            if player.spec.role in ("flood", "job"):
                player.extents = count_extents(player.files)
        if self.agent is not None:
            self.agent.stop()
        return cost

    def _discard(self) -> None:
        """Dirty pages of a flood go with its files instead of being written first."""
        for player in self.players.values():
            for path in player.files:
                with contextlib.suppress(OSError):
                    os.truncate(path, 0)

    def loads(self) -> List[Dict[str, Any]]:
        return [{"name": name, "kind": player.spec.kind, "role": player.spec.role,
                 "disk": player.spec.disk, "extents": player.extents, "stall": player.stall,
                 "windows": {window: asdict(measured) if measured else None
                             for window, measured in player.windows.items()}}
                for name, player in self.players.items()]


def policy_options(contender: Contender, directory: Path,
                   drivers: Mapping[str, str] = MappingProxyType({})) -> List[str]:
    """The agent's arguments that give it the contender's policy; RigError for a wrong one.

    drivers: by device, for those that the policy shall take for disks of another driver.
    """
    config = directory / "config"
    named = ["--policy", contender.as_class] if contender.as_class else []
    name = contender.as_class or DEFAULT_NAME
    wrong = check(name)
    lines = []
    settings = load_policy(name).devices.settings if not wrong else ()
    for device, driver in drivers.items():
        found = [f"{setting.key.name} = {setting.key.kind.format(setting.value)}"
                 for setting in settings if matches(setting.glob, device, driver=driver)]
        lines += [f"[device {device}]", *found] if found else []
    for section, key, value in contender.policy:
        lines += [f"[{section}]", f"{key} = {value}"]
    if lines:
        drop_ins = config / f"{name}.conf.d"
        drop_ins.mkdir(parents=True)
        (drop_ins / f"{contender.name}.conf").write_text("\n".join(lines))
        wrong = wrong or check(name, config)
    if wrong:
        raise RigError(f"contender {contender.name}: {'; '.join(wrong)}")
    return [*named, "--config-dir", str(config)] if lines else named


def stripes(rig: Rig) -> Dict[str, int]:
    """Stripes that the disk has written whole, and in part, and the bytes in all of them."""
    state = rig.control.get()
    return {"whole": state["stripes_whole"], "part": state["stripes_part"],
            "bytes": state["bytes_destaged"]}


def count_extents(files: Sequence[Path]) -> Optional[Dict[str, int]]:
    """Extents and allocated bytes of files together; None when there are none."""
    extents = size = 0
    for path in files:
        if path.exists():
            extents += int(run("filefrag", str(path)).rsplit(":", 1)[1].split()[0])
            size += path.stat().st_blocks * 512
    return {"extents": extents, "bytes": size} if size else None


@contextlib.contextmanager
def unchanged_limits() -> Iterator[None]:
    """RigError when the limits are not afterwards what they were before."""
    before = host.read_limits()
    yield
    after = host.read_limits()
    if after != before:
        host.write_limits(before)
        wrong = ", ".join(f"vm.{name} {before[name]} became {after[name]}"
                          for name in before if before[name] != after[name])
        raise RigError(f"limits were not put back: {wrong}; they are now")


def perform(scenario: Scenario, contender: Contender, repeat: int,
            conditions: Conditions) -> Dict[str, Any]:
    """Do the run and return its JSON; an error of the lab is in there as `error`."""
    started = time.monotonic()
    result: Dict[str, Any] = {
        "schema": SCHEMA, "scenario": scenario.name, "contender": contender.name,
        "repeat": repeat, "way": conditions.way, "kernel": platform.release(),
        "cpus": os.cpu_count(), "scale": conditions.scale,
        "memory_bytes": conditions.memory,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "error": None, "windows": {}, "loads": [], "disks": [], "series": {}, "events": [],
        "limits": [], "agent": None}
    try:
        with unchanged_limits(), contextlib.ExitStack() as stack:
            stage = Stage(scenario, contender, conditions, repeat, stack)
            stage.play()
            result["agent"] = stage.end()
            result.update(
                windows={name: [round(t, 3) for t in span]
                         for name, span in stage.windows.items()},
                loads=stage.loads(), series=stage.series.columns, events=stage.events,
                disks=[{"name": spec.name, "preset": spec.preset, "fs": spec.fs,
                        "device": stage.rigs[spec.name].device,
                        "cache_bytes": stage.rigs[spec.name].control.get()["capacity"],
                        "written": stage.written[spec.name],
                        "stripe_bytes": spec.disk.stripe_bytes,
                        "stripes": stage.stripes[spec.name]} for spec in scenario.disks],
                limits=stage.watch.limits)
    except (RigError, OSError, ValueError, subprocess.SubprocessError) as error:
        # One run of hundreds: the others go on, and this one is done again next time.
        result["error"] = f"{type(error).__name__}: {error}" if not isinstance(
            error, RigError) else str(error)
    result["took_s"] = round(time.monotonic() - started, 2)
    return result
