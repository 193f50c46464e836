# SPDX-License-Identifier: GPL-2.0-or-later
"""Each shipped policy on a simulated host of its class, beside the kernel's default limits.

    PYTHONPATH=agent python -m tests.sim classes [POLICY...]

prints the table of docs/research/2026-11-policies.md. The policies are read from their files, as
the daemon reads them when one is named. What the lab measures of the same classes:
tests/lab/classes.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Optional, Sequence, Tuple

from tests.sim import bench
from tests.sim.bench import Run
from tests.sim.plant import MB, Disk, Event, Flood, SyncLoad
from tests.sim.scenarios import FAST_RAID, NVME, RAID, SLOW_RAID, SSD, SSD_VOLATILE, STICK, Scenario
from writebackd.policy import load_policy
from writebackd.types.decision import Mode

# cloud-volume-with-caps of tests/lab/presets.conf: an fsync takes two of its requests of 0.5 ms, or
# hardly less.
VOLUME = Disk(drain=500.0 * MB, cache=256.0 * MB, baseline_s=0.85e-3)
USB_STICK = replace(STICK, driver="usb-storage")
FLOOD = (Flood(start_s=6.0),)


@dataclass(frozen=True)
class Host:
    """A class of hosts: its policy, what its hosts do, and what the policy has to be worth there.

    `better`: its score has to be this multiple of that with default limits; the score is the
    throughput where nobody syncs.  `kept`: of the throughput with default limits.  Both lie
    somewhat below what three seeds gave, so that a policy that loses its grip is seen.
    """

    policy: str
    scenario: Scenario
    better: float
    kept: float


def _host(policy: str, better: float, kept: float, *disks: Disk,
          floods: Tuple[Flood, ...] = FLOOD, syncs: Tuple[SyncLoad, ...] = (SyncLoad(),),
          events: Tuple[Event, ...] = (), judged: float = 14.0, end: float = 60.0) -> Host:
    return Host(policy, Scenario(policy, disks, floods, syncs, events, judged=judged, end=end,
                                 per_device=True), better, kept)


HOSTS: Tuple[Host, ...] = (
    _host("default", 1000, 0.95, SLOW_RAID),
    _host("db-hwraid", 1000, 0.95, RAID),
    # With a cache that each flush empties no limit does much, and 8 MB no more than that.
    _host("db-ssd", 100, 0.9, SSD_VOLATILE, syncs=(SyncLoad(threads=4),)),
    _host("db-nvme", 0.98, 0.98, NVME, syncs=(SyncLoad(threads=4),)),
    _host("etcd", 30, 0.9, SSD, syncs=(SyncLoad(think_s=0.02),)),
    _host("kubernetes-node", 40, 0.9, SSD,
          syncs=(SyncLoad(think_s=0.02), SyncLoad(think_s=0.1), SyncLoad(threads=2)),
          floods=(Flood(start_s=6.0, writers=4), Flood(start_s=20.0, on_s=5.0, off_s=5.0))),
    _host("file-server", 20, 0.95, RAID, syncs=(SyncLoad(think_s=0.05),),
          floods=(Flood(start_s=6.0, writers=8),)),
    _host("backup-target", 0.99, 0.99, RAID, syncs=()),
    _host("desktop", 0.98, 0.95, SSD, USB_STICK, syncs=(SyncLoad(think_s=0.2),),
          floods=(Flood(device=1, start_s=6.0), Flood(start_s=30.0, end_s=40.0))),
    # The credit of a cloud's volume lasts for some seconds.
    _host("vm-guest", 1000, 0.95, VOLUME, events=(Event(10.0, {"drain": 125.0 * MB}),)),
    _host("hypervisor", 500, 0.9, RAID, syncs=(SyncLoad(), SyncLoad(threads=4, think_s=0.005)),
          floods=(Flood(start_s=6.0, writers=2), Flood(start_s=16.0, on_s=10.0, off_s=10.0))),
    _host("analytics", 0.99, 0.99, FAST_RAID, syncs=(),
          floods=(Flood(start_s=6.0, writers=16),)),
    _host("ceph-osd", 1, 1, RAID),
)
BY_POLICY: Dict[str, Host] = {host.policy: host for host in HOSTS}


@dataclass(frozen=True)
class Result:
    """Both contenders on a host; f is None where nobody syncs."""

    host: Host
    default: Run
    agent: Run

    @property
    def better(self) -> float:
        """Score, in multiples of that with default limits."""
        assert self.agent.score is not None and self.default.score is not None
        return self.agent.score / self.default.score

    @property
    def kept(self) -> float:
        assert self.agent.g is not None
        return self.agent.g


def run(host: Host, seed: int = 1) -> Result:
    scenario, policy = host.scenario, load_policy(host.policy)
    idle = bench.run(scenario, seed=seed, flooded=False)
    # Default limits with somebody who looks, or the disk's luck from second to second would be
    # another one: some per cent, and here one counts.
    default = bench.run(scenario, policy=replace(policy, mode=Mode.OBSERVE.value), seed=seed)
    agent = bench.run(scenario, policy=policy, seed=seed)
    return Result(host, bench.judge(default, idle, default), bench.judge(agent, idle, default))


def table(names: Sequence[str] = (), seed: int = 1) -> str:
    lines = [f"{'policy':18}{'f default':>10}{'f agent':>9}{'g':>7}{'score':>8}{'times':>9}"
             f"{'wanted':>8}"]
    for host in ([BY_POLICY[name] for name in names] or HOSTS):
        found = run(host, seed)
        lines.append(f"{host.policy:18}{_number(found.default.f):>10}{_number(found.agent.f):>9}"
                     f"{found.kept:7.3f}{_number(found.agent.score):>8}{found.better:9.3g}"
                     f"{host.better:8g}")
    return "\n".join(lines)


def _number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2g}"
