# SPDX-License-Identifier: GPL-2.0-or-later
"""python -m tests.sim [shape | drawn | flood | battery | alerts | classes | search | SCENARIO...].

Without a name all scenarios; `shape` compares the model with measured tables; `drawn work` runs
hosts drawn by even seeds, `drawn judge` by odd ones (60 hosts, 10 s of CPU; another number may
follow, `-v` shows each host), `drawn constants` what half and double of each constant of the law
do on those for work (2 minutes); `flood work` and `flood judge` what is known of such hosts after
one flood (60 hosts, 10 s); `battery work` and `battery judge` how soon a failed battery is
answered (40 hosts with one, 20 s); `alerts` tells what the detector makes of collapses and of hosts
that are well (40 s; `--seeds` takes the 20 from that one on), `alerts month` of an ordinary month,
second by second (90 s; `--seed` takes another one);
`classes` takes each shipped policy to a host of its class (2 s; names of policies may follow);
`search` looks for random hosts in which the agent is slower than a fixed 15 MB, and shrinks them
(4 searches of 1000 hosts from `--seed` on, 2 minutes; other numbers may follow);
`-v SCENARIO` prints what the agent decided, tick by tick; `--policy` takes another policy than
default.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Dict, List, Optional

from tests.sim import alerts, battery, bench, classes, drawn, month, one_flood, shape
from tests.sim.plant import MB, Loop
from tests.sim.scenarios import BY_NAME, SCENARIOS, Scenario
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SCENARIO")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--policy", default="default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=0, metavar="FIRST", help="of alerts")
    parser.add_argument("--tick", type=float, default=bench.TICK_S, help="seconds")
    options = parser.parse_args()
    if options.names == ["shape"]:
        print(shape.table())
        return 0
    if options.names[:1] == ["classes"]:
        other = [name for name in options.names[1:] if name not in classes.BY_POLICY]
        if other:
            parser.error(f"no class {' '.join(other)}; there are {' '.join(classes.BY_POLICY)}")
        print(classes.table(options.names[1:], options.seed))
        return 0
    if options.names[:1] == ["search"]:
        if len(options.names) > 3 or not all(number.isdigit() for number in options.names[1:]):
            parser.error("after `search`: how many searches, and of how many hosts each")
        from tests.sim import known_good  # of all of them it alone needs hypothesis

        searches, hosts = [*map(int, options.names[1:]), *(4, 1000)[len(options.names) - 1:]]
        print(known_good.table(options.seed, searches, hosts))
        return 0
    if options.names[:1] == ["alerts"]:
        if options.names[1:] == ["month"]:
            raised = month.alerts_of_a_month(load_policy(options.policy), options.seed)
            for day, alert in raised:
                print(f"day {day:.3f}: {alert.name.value} {alert.summary}")
            print(f"{len(raised)} alerts in {month.DAYS} days")
        else:
            print(alerts.matrix(options.seeds))
        return 0
    if options.names[:1] in (["drawn"], ["flood"], ["battery"]):
        what, half, *rest = [*options.names, ""][:max(2, len(options.names))]
        halves = (*drawn.HALVES, "constants") if what == "drawn" else drawn.HALVES
        if half not in halves or len(rest) > 1 or not all(map(str.isdigit, rest)):
            parser.error(f"after `{what}`: {' or '.join(halves)}, and how many hosts")
        hosts = int("".join(rest) or 0)
        print(of_drawn(what, half, hosts, load_policy(options.policy), options.verbose))
        return 0
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"no scenario {' '.join(unknown)}; there are {' '.join(BY_NAME)}")
    chosen = [BY_NAME[name] for name in options.names] or list(SCENARIOS)
    policy = load_policy(options.policy)
    if options.verbose:
        for scenario in chosen:
            trace(scenario, policy, options.seed, options.tick)
    began = time.process_time()
    scores(chosen, policy, options.seed, options.tick)
    print(f"\n{time.process_time() - began:.1f} s of CPU")
    return 0


def of_drawn(what: str, half: str, hosts: int, policy: Policy, verbose: bool) -> str:
    """A table of so many drawn hosts; 0: of as many as usual."""
    if what == "battery":
        return battery.table(half, hosts or 40, verbose)
    some = drawn.seeds("work" if half == "constants" else half, hosts or 60)
    if what == "flood":
        return one_flood.table(some, policy, verbose)
    if half == "constants":
        return drawn.constants(some, policy)
    return drawn.table(some, policy, bench.AGENT, verbose, drawn.BACKGROUNDS)


def scores(chosen: List[Scenario], policy: Policy, seed: int, tick_s: float) -> None:
    """The tables: scores, then how steady the agent was."""
    names = ["default", *(f"{m}M" for m in bench.STATIC_MB), "agent"]
    print("score = f x min(1, g/0.95)^4\n")
    print(f"{'scenario':22}" + "".join(f"{name:>8}" for name in names)
          + f"{'of best':>9}{'f':>7}{'g':>6}")
    every: Dict[str, List[float]] = {name: [] for name in names}
    regrets: List[float] = []
    steady = []
    for scenario in chosen:
        runs = bench.compare(scenario, policy, seed, tick_s)
        agent = runs["agent"]
        line = f"{scenario.name:22}"
        for name in names:
            value = runs[name].score
            line += f"{_number(value):>8}"
            if value is not None:
                every[name].append(value)
        share = bench.of_best(runs)
        if share is not None:
            regrets.append(share)
            line += f"{share:9.2f}"
        print(line + f"{_number(agent.f):>7}{_number(agent.g):>6}")
        since = max([event.time_s for event in scenario.events]
                    + [flood.start_s for flood in scenario.floods]
                    + [load.start_s for load in scenario.syncs], default=0.0)
        steady.append((scenario, agent, bench.steadiness(agent.limits, since)))
    if len(chosen) > 1:
        print(f"{'geometric mean':22}" + "".join(
            f"{_number(_geometric(every[name])):>8}" for name in names)
            + f"{_geometric(regrets):9.2f}")
        print(f"\nworst of best static {min(regrets):.2f}, "
              f"below 0.95 in {sum(r < 0.95 for r in regrets)} of {len(regrets)}")
    print(f"\n{'agent':22}{'settled':>9}{'after s':>8}{'chg/min':>8}{'swing':>7}{'echo':>6}"
          f"{'blocked s':>10}  last state")
    for scenario, agent, found in steady:
        print(f"{scenario.name:22}{found.settled_bytes / MB:8.1f}M{found.arrived_s:8.0f}"
              f"{found.changes_per_minute:8.1f}{found.swing:7.2f}{found.echo:6.2f}"
              f"{agent.longest_blocked_s:10.1f}  {agent.reasons[-1][:90]}")


def trace(scenario: Scenario, policy: Policy, seed: int, tick_s: float) -> None:
    print(f"== {scenario.name}")
    loop = Loop(policy, scenario.plant(seed))
    while loop.plant.now_s < scenario.end - 1e-6:
        sample, _, decision = loop.tick(tick_s)
        syncs = sum(device.sync.count for device in sample.devices if device.sync)
        written = sum(device.write_bytes for device in sample.devices) / sample.dt_s
        dirty = sample.vm.dirty_bytes + sample.vm.writeback_bytes
        print(f"{loop.plant.now_s:6.1f} {loop.plant.limit / MB:8.2f}M {syncs:6d}/s "
              f"{written / MB:6.0f}M/s dirty {dirty / MB:7.1f}M "
              + "; ".join(f"{d.state.value}: {d.reason}" for d in decision.devices))


def _number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2g}" if value < 0.01 else f"{value:.2f}"


def _geometric(values: List[float]) -> float:
    return math.exp(statistics.fmean(math.log(max(v, 1e-6)) for v in values)) if values else 0.0


if __name__ == "__main__":
    raise SystemExit(main())
