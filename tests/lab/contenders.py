# SPDX-License-Identifier: GPL-2.0-or-later
"""Contenders: what is compared, as settings to make on the host before a run."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.policy import units

from . import host
from .disks import read_ini
from .remains import RigError
from .scenario import Scenario, Section

FILE = Path(__file__).parent / "contenders.conf"
KINDS = ("default", "static", "peer", "agent")
# Groups that a scenario may name instead of single contenders.
GROUPS = {
    "core": ("default", "static-16M", "sweep", "knee", "agent"),
    "tuned": ("tuned-throughput-performance", "tuned-latency-performance", "tuned-postgresql"),
    "block": ("wbt", "mq-deadline", "kyber", "bfq"),
    "cgroup": ("io-max", "io-cost", "io-latency"),
}
_STATIC = re.compile(r"static-(\d+[KMG])(?:/(\d+[KMG]))?")
_AS = re.compile(r"agent-as-([a-z0-9-]+)")


@dataclass(frozen=True)
class Contender:
    name: str
    kind: str
    summary: str
    limits: Tuple[Tuple[str, int], ...]  # files of /proc/sys/vm
    queue: Tuple[Tuple[str, str], ...] = ()  # files of /sys/block/*/queue
    cgroup: str = ""  # lever of the io controller and its argument, or "groups" for none
    policy: Tuple[Tuple[str, str, str], ...] = ()  # section, key, value: a drop-in of an agent
    as_class: str = ""  # policy that an agent runs with in place of default.conf
    knee_s: float = 0.0  # limit of a disk, in seconds of its true rate; 0: `limits`

    @property
    def limit_bytes(self) -> Optional[int]:
        """The fixed dirty limit, None where it is a share of memory or moves."""
        return dict(self.limits).get("dirty_bytes") or None if self.kind != "agent" else None

    def limits_on(self, disk_rate: float) -> host.Limits:
        """What it sets on a disk that drains so many bytes per second."""
        return (host.fixed_limits(int(self.knee_s * disk_rate)) if self.knee_s
                else dict(self.limits))


@functools.lru_cache(maxsize=None)
def _listed() -> Dict[str, Contender]:
    return {name: _parse(name, Section(f"{FILE.name}: [{name}]", values))
            for name, values in read_ini(FILE).items()}


def _parse(name: str, section: Section) -> Contender:
    kind = section.choice("kind", KINDS)
    summary = section.text("summary")
    limits = dict(host.DEFAULT_LIMITS)
    for in_bytes, as_ratio in host.PAIRS:
        size = section.value(in_bytes.replace("_", "-"), units.parse_size, "0")
        ratio = section.value(as_ratio.replace("_", "-"), int, "0")
        assert isinstance(size, int) and isinstance(ratio, int)
        if size or ratio:
            limits[in_bytes], limits[as_ratio] = size, ratio
    queue = []
    for file in host.QUEUE_KNOBS:
        value = section.text(f"queue.{file}", "")
        if value:
            queue.append((file, value))
    cgroup = section.text("cgroup", "")
    policy = section.value("policy", parse_policy, "")
    assert isinstance(policy, tuple)
    if policy and kind != "agent":
        raise RigError(f"{section.where}: policy: only an agent has one")
    knee_s = section.value("knee", units.parse_time, "0s")
    assert isinstance(knee_s, float)
    section.end()
    return Contender(name, kind, summary, tuple(limits.items()), tuple(queue), cgroup, policy,
                     knee_s=knee_s)


def parse_policy(text: str) -> Tuple[Tuple[str, str, str], ...]:
    """`objective.fsync-p99 = 5ms, limits.floor = 2M`: keys of a policy; raises ValueError.

    Whether the agent knows them is for the run to find out.
    """
    lines = []
    for part in filter(str.strip, text.replace("\n", ",").split(",")):
        name, equals, value = (word.strip() for word in part.partition("="))
        section, dot, key = name.partition(".")
        if not (equals and dot and section and key):
            raise ValueError(f"'{part.strip()}' is no line of a policy: write SECTION.KEY = VALUE")
        lines.append((section, key, value))
    return tuple(lines)


def static(size: int, background: Optional[int] = None) -> Contender:
    text = units.format_size(size)
    if background is not None:
        text += f"/{units.format_size(background)}"
    return Contender(f"static-{text}", "static", f"a fixed limit of {text}",
                     tuple(host.fixed_limits(size, background).items()))


def named(name: str) -> Contender:
    """Raises RigError."""
    listed = _listed()
    if name in listed:
        return listed[name]
    as_class = _AS.fullmatch(name)
    if as_class is not None:
        return replace(listed["agent"], name=name, as_class=as_class.group(1),
                       summary=f"writebackd with the policy {as_class.group(1)}")
    match = _STATIC.fullmatch(name)
    if match is None:
        raise RigError(f"no contender {name}: take static-LIMIT or static-LIMIT/BACKGROUND, like "
                       f"static-3M, agent-as-POLICY, "
                       f"like agent-as-etcd, or one of {', '.join(listed)}")
    return static(*(units.parse_size(size) for size in match.groups() if size))


def of(scenario: Scenario, way: str, wanted: Sequence[str] = ()) -> List[Contender]:
    """Those of a scenario in the order they run, without those that the way cannot have.

    wanted: only these, even if the scenario has no such contender. Raises RigError.
    """
    chosen: List[str] = []
    for word in wanted or scenario.contenders:
        for name in GROUPS.get(word, (word,)):
            chosen += ([f"static-{pair}" for pair in scenario.sweep] if name == "sweep"
                       else [name])
    contenders = [named(name) for name in dict.fromkeys(chosen)]
    lacking = [each.name for each in contenders if each.cgroup and way == "native"]
    if wanted and lacking:
        raise RigError(f"{', '.join(lacking)}: the io controller of cgroup v2 is asked for, take "
                       "WAY=vm or WAY=virtual")
    return [each for each in contenders if each.name not in lacking]
