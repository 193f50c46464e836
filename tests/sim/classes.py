# SPDX-License-Identifier: GPL-2.0-or-later
"""Each shipped policy on a simulated host of its class, beside the kernel's default limits.

    PYTHONPATH=agent python -m tests.sim classes [POLICY...]

prints the table of docs/policy.md. The policies are read from their files, as the daemon reads
them when one is named. What the lab measures of the same classes: tests/lab/classes.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from tests.sim import bench
from tests.sim.bench import Run
from tests.sim.plant import MB, Disk, Event, Flood, SyncLoad
from tests.sim.scenarios import FAST_RAID, NVME, RAID, SSD, SSD_VOLATILE, STICK, Scenario
from writebackd.policy import load_policy

# Of an array of eight disks that clients' files are spread over, and of a volume that a cloud caps
# once the credit of some seconds is gone (tests/lab/presets.conf).
PARITY = Disk(seeks=True)
VOLUME = Disk(drain=500.0 * MB, cache=256.0 * MB, baseline_s=0.85e-3)
USB_STICK = Disk(**{**vars(STICK), "driver": "usb-storage"})
FLOOD = (Flood(start_s=6.0),)


@dataclass(frozen=True)
class Host:
    """A class of hosts: its policy, what its hosts do, and what the policy has to be worth there.

    `better`: its score has to be this multiple of that with default limits, which is one where
    nobody syncs.  `kept`: the share of the throughput with default limits.
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
    _host("default", 100, 0.95, RAID),
    # A battery that fails in mid-run: the objective of 5 ms holds no longer.
    _host("db-hwraid", 100, 0.95, RAID, syncs=(SyncLoad(threads=4),)),
    _host("db-ssd", 10, 0.9, SSD_VOLATILE, syncs=(SyncLoad(threads=4),)),
    _host("db-nvme", 1, 0.99, NVME, syncs=(SyncLoad(threads=4),)),
    # Image pulls come in waves.
    _host("etcd", 10, 0.9, SSD, syncs=(SyncLoad(think_s=0.02),),
          floods=(Flood(start_s=6.0, on_s=10.0, off_s=5.0),)),
    _host("kubernetes-node", 10, 0.9, SSD,
          syncs=(SyncLoad(think_s=0.02), SyncLoad(think_s=0.1), SyncLoad(threads=2)),
          floods=(Flood(start_s=6.0, writers=4), Flood(start_s=20.0, on_s=5.0, off_s=5.0))),
    _host("file-server", 10, 0.95, PARITY, syncs=(SyncLoad(think_s=0.05),),
          floods=(Flood(start_s=6.0, writers=8),)),
    # The catalog's commits are fewer than what this policy takes for somebody who waits.
    _host("backup-target", 1, 0.99, RAID, syncs=()),
    _host("desktop", 1, 0.95, SSD, USB_STICK, syncs=(SyncLoad(think_s=0.2),),
          floods=(Flood(device=1, start_s=6.0), Flood(start_s=30.0, end_s=40.0))),
    _host("vm-guest", 10, 0.9, VOLUME, events=(Event(10.0, {"drain": 125.0 * MB}),)),
    _host("hypervisor", 10, 0.95, RAID, syncs=(SyncLoad(), SyncLoad(threads=4, think_s=0.005)),
          floods=(Flood(start_s=6.0, writers=2), Flood(start_s=16.0, on_s=10.0, off_s=10.0))),
    _host("analytics", 1, 0.99, FAST_RAID, syncs=(), floods=(Flood(start_s=6.0, writers=16),)),
    _host("ceph-osd", 1, 1.0, RAID),
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
    scenario = host.scenario
    idle = bench.run(scenario, seed=seed, flooded=False)
    default = bench.run(scenario, seed=seed)
    agent = bench.run(scenario, policy=load_policy(host.policy), seed=seed)
    return Result(host, bench.judge(default, idle, default), bench.judge(agent, idle, default))


def table(names: Sequence[str] = (), seed: int = 1) -> str:
    lines = [f"{'policy':18}{'f default':>10}{'f agent':>9}{'g':>7}{'score':>8}{'times':>8}"
             f"{'wanted':>8}"]
    for host in ([BY_POLICY[name] for name in names] or HOSTS):
        found = run(host, seed)
        lines.append(f"{host.policy:18}{_number(found.default.f):>10}{_number(found.agent.f):>9}"
                     f"{found.kept:7.3f}{_number(found.agent.score):>8}{found.better:8.3g}"
                     f"{host.better:8g}")
    return "\n".join(lines)


def _number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2g}"


def desktop(seed: int = 1) -> List[float]:
    return run(BY_POLICY["desktop"], seed).agent.most_dirty
