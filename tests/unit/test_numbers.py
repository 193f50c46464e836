# SPDX-License-Identifier: GPL-2.0-or-later
"""Every number on a screen is what its words say: computed here once more, from raw values.

A known sequence of ticks goes through estimate, detector, history and reports; what they show is
compared with sums and sorted lists of what was put in. A percentile and a mean of the probe's
histogram are exact to the width of a bucket, 12.5 %; all else is exact, but for rounded digits.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Dict, List, Sequence, Tuple

import pytest

import samples
from alert_host import MB, Watched, done_about
from test_metrics import value
from trial_case import made, plan
from writebackd import formats
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.alerts.lifecycle import CAUSE_HOLDS_S
from writebackd.cli.alerts import render as render_alerts
from writebackd.cli.daemon_verbs import render_why
from writebackd.cli.history import figures_json, render_figures
from writebackd.cli.status_screen import render_status
from writebackd.cli.top_state import Top
from writebackd.cli.top_view import View
from writebackd.control.decide import decide
from writebackd.estimate.estimator import estimate
from writebackd.policy import load_policy
from writebackd.report.alert_answers import alerts_json
from writebackd.report.device_figures import Collector, Figures, fold
from writebackd.report.report_page import render
from writebackd.report.snapshot import COMMIT_BOUNDS_S, Snapshot, Totals
from writebackd.report.status_answer import status_json, top_json, why_json
from writebackd.report.timeline import Span
from writebackd.trial.analysis import P99, WRITE_RATE, analyse
from writebackd.trial.plan import ORIGINAL
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Basis, DeviceState, Mode
from writebackd.types.histogram import BUCKET_EDGES_S, Histogram
from writebackd.types.samples import ProbeInfo, SyncSample, TaskSample

WIDTH = 0.126  # of a bucket
WALL_S = 1.7e9
FOUND = 4 << 30


def histogram(waits_s: Sequence[float]) -> Histogram:
    """As the probe counts."""
    counts: Dict[int, int] = {}
    for wait_s in waits_s:
        index = bisect_right(BUCKET_EDGES_S, wait_s) - 1
        counts[index] = counts.get(index, 0) + 1
    return Histogram(tuple(sorted(counts.items())))


def ranked(waits_s: Sequence[float], share: float) -> float:
    """The nearest-rank percentile."""
    return sorted(waits_s)[max(0, math.ceil(share * len(waits_s)) - 1)]


def near(value_: float) -> object:
    return pytest.approx(value_, rel=WIDTH)


def shown(size: float) -> object:
    """A number that was read from a screen, which rounds it to two digits and more."""
    return pytest.approx(size, rel=0.06)


def size_of(text: str) -> float:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return float(text.rstrip("KMG")) * units.get(text[-1], 1)


# ---- a day of ticks, and what each screen says of it -------------------------


@dataclass(frozen=True)
class Raw:
    """What happened in one tick."""

    dt_s: float
    waits_s: Tuple[float, ...]
    oldest_s: float
    written: int
    read: int
    busy: float
    limit: int
    tasks: Tuple[TaskSample, ...]


def raw(count: int) -> List[Raw]:
    chance = random.Random(11)
    return [
        Raw(
            dt_s=chance.choice((0.5, 1.0, 1.25)),
            waits_s=tuple(
                math.exp(chance.gauss(math.log(0.004), 1.0)) for _ in range(chance.randrange(5, 80))
            ),
            oldest_s=chance.choice((0.0, 0.003, 0.25)),
            written=chance.randrange(100 << 20, 300 << 20),
            read=chance.randrange(1 << 20),
            busy=chance.random(),
            limit=chance.choice((32 << 20, 64 << 20)),
            tasks=tuple(
                TaskSample(100 * n + each, "dd", 7, "sda", chance.randrange(1 << 20, 64 << 20), 0.1)
                for each in range(3)
            ),
        )
        for n in range(count)
    ]


def played(ticks: Sequence[Raw]) -> List[Snapshot]:
    """The pure core, tick by tick, as the daemon runs it."""
    policy, memory, totals = load_policy("default"), Memory(mode=Mode.ENFORCE), Totals()
    time_s, found = 1000.0, []
    base = samples.guard()
    for each in ticks:
        time_s += each.dt_s
        seen = replace(
            base.sample.devices[0], write_bytes=each.written, read_bytes=each.read,
            busy_share=each.busy,
            sync=SyncSample(
                len(each.waits_s), 0, histogram(each.waits_s), int(each.oldest_s > 0), each.oldest_s
            ),
        )  # fmt: skip
        sample = replace(
            base.sample, time_s=time_s, wall_s=WALL_S + time_s, dt_s=each.dt_s, devices=(seen,),
            vm=samples.vm(each.limit, each.limit // 2, 5 << 20), tasks=each.tasks,
        )  # fmt: skip
        estimates, memory = estimate(policy, memory, sample)
        decision, memory = decide(policy, memory, sample, estimates)
        totals = totals.seen(sample, estimates, decision, 0.0)
        found.append(replace(
            base, sample=sample, estimates=estimates, decision=decision, memory=memory,
            totals=totals, originals=replace(base.originals, dirty_bytes=FOUND, dirty_ratio=0),
            probe=ProbeInfo("libbpf"),
        ))  # fmt: skip
    return found


TICKS = raw(60)
PLAYED = played(TICKS)


def of_tick(number: int) -> Tuple[Raw, Snapshot]:
    return TICKS[number], PLAYED[number]


def test_status_top_and_why_show_the_rates_and_percentiles_of_the_tick() -> None:
    for number in (0, 7, 31, 59):
        each, snapshot = of_tick(number)
        (row,) = status_json(snapshot)["devices"]
        assert row["write_rate"] == each.written / each.dt_s
        assert row["sync_rate"] == len(each.waits_s) / each.dt_s
        assert row["fsync_p50_s"] == near(ranked(each.waits_s, 0.5))
        assert row["fsync_p99_s"] == near(ranked(each.waits_s, 0.99))
        assert row["oldest_fsync_s"] == each.oldest_s
        (line,) = [
            line for line in render_status(status_json(snapshot), 100).splitlines()
            if line.startswith("sda ")
        ]  # fmt: skip
        _, writes, fsyncs, p50, p99 = line.split()[-6:-1]
        assert size_of(writes) == shown(each.written / each.dt_s)
        assert float(fsyncs) == pytest.approx(len(each.waits_s) / each.dt_s, abs=0.5)
        assert float(p50) == pytest.approx(1e3 * ranked(each.waits_s, 0.5), rel=WIDTH + 0.06)
        assert float(p99) == pytest.approx(1e3 * ranked(each.waits_s, 0.99), rel=WIDTH + 0.06)
        text = " ".join(render_why(why_json(snapshot), verbose=True).split())
        assert f"writes {formats.size(each.written / each.dt_s)}/s" in text
        assert f"{formats.count(len(each.waits_s) / each.dt_s)} commits/s" in text
        # p99 is no longest, and a wait that goes on is no percentile.
        said = re.search(r"(p99|oldest pending fsync) (\S+) ms (within|>) ", text)
        pending = each.oldest_s > ranked(each.waits_s, 0.99)
        longest_s = each.oldest_s if pending else ranked(each.waits_s, 0.99)
        assert said is not None and ("oldest" in said.group(1)) is pending
        assert float(said.group(2)) == pytest.approx(1e3 * longest_s, rel=WIDTH + 0.06)
        top = Top()
        top.take(status_json(snapshot), top_json(snapshot))
        (head,) = [
            line for line in View(False, False).lines(top, 100, 40) if line.startswith("dirty ")
        ]
        assert float(head.split("] ")[1].split(" %")[0]) == shown(100 * (5 << 20) / each.limit)
        assert re.search(rf"{formats.count(len(each.waits_s) / each.dt_s)}\s", line)


def test_a_loop_of_short_copies_is_one_writer_in_status_and_its_rate_is_theirs_together() -> None:
    each, snapshot = of_tick(5)
    (only,) = status_json(snapshot)["dirtiers"]
    together = sum(task.dirtied_bytes for task in each.tasks) / each.dt_s
    assert (only["several"], only["dirty_rate"]) == (True, together)
    # They slept for 0.3 s together, none of them for that share of the tick.
    assert only["throttled_share"] is None
    said = f"dd (several processes) {formats.size(together)}/s on sda"
    text = " ".join(render_status(status_json(snapshot), 200).split())
    assert said in text and f"{said}, waits" not in text
    alone = replace(snapshot, sample=replace(snapshot.sample, tasks=each.tasks[:1]))
    assert status_json(alone)["dirtiers"][0]["throttled_share"] == pytest.approx(0.1 / each.dt_s)
    # `top` is a table of processes, each with its own.
    assert {row["pid"]: row["dirty_rate"] for row in top_json(snapshot)["tasks"]} == {
        task.pid: task.dirtied_bytes / each.dt_s for task in each.tasks
    }
    other = replace(snapshot, sample=replace(snapshot.sample, tasks=(
        *each.tasks[:1], replace(each.tasks[1], cgroup_id=8),
    )))  # fmt: skip
    assert [row["several"] for row in status_json(other)["dirtiers"]] == [False, False]


def test_metrics_count_all_that_was_since_the_start() -> None:
    each, snapshot = of_tick(59)
    waits_s = [wait_s for tick in TICKS for wait_s in tick.waits_s]
    device = {"device": "sda"}
    for name, wanted in (
        ("device_written_bytes_total", sum(tick.written for tick in TICKS)),
        ("device_read_bytes_total", sum(tick.read for tick in TICKS)),
        ("device_busy_seconds_total", sum(tick.busy * tick.dt_s for tick in TICKS)),
        ("device_commit_duration_seconds_count", len(waits_s)),
        ("device_oldest_fsync_seconds", each.oldest_s),
        ("device_decisions_total", len({s.decision.devices[0].decision_id for s in PLAYED})),
    ):
        assert value(snapshot, name, **device) == pytest.approx(wanted), name
    assert value(snapshot, "device_commit_duration_seconds_sum", **device) == near(sum(waits_s))
    for bound in COMMIT_BOUNDS_S:
        counted = value(
            snapshot, "device_commit_duration_seconds_bucket", **device, le=repr(bound)
        )
        # Of a bucket that the bound lies in nothing is counted as faster.
        sure = sum(wait_s * (1 + WIDTH) < bound for wait_s in waits_s)
        assert counted is not None and sure <= counted <= sum(w <= bound for w in waits_s)
    assert value(snapshot, "device_fsync_p99_seconds", **device) == near(
        ranked(each.waits_s, 0.99)
    )
    assert value(snapshot, "dirty_limit_bytes") == each.limit
    assert value(snapshot, "dirty_limit_original_bytes") == FOUND


def collected() -> Tuple[List[Figures], List[List[Raw]]]:
    """The rows of the history, and the ticks that each is of."""
    collector = Collector()
    rows: List[Figures] = []
    parts: List[List[Raw]] = []
    part: List[Raw] = []
    for each, snapshot in zip(TICKS, PLAYED):
        part.append(each)
        done = collector.add(snapshot)
        if done:
            rows += done
            parts.append(part)
            part = []
    return rows, parts


def mean(pairs: Sequence[Tuple[float, float]]) -> float:
    """Weighed by the second of each."""
    return sum(value_ * weight for value_, weight in pairs) / sum(weight for _, weight in pairs)


def test_a_row_of_history_is_the_ticks_that_it_spans() -> None:
    rows, parts = collected()
    assert len(rows) == len(parts) >= 5
    for row, part in zip(rows, parts):
        answer = figures_json(row)
        span_s = sum(each.dt_s for each in part)
        waits_s = [wait_s for each in part for wait_s in each.waits_s]
        assert answer["span_s"] == pytest.approx(span_s) and 9.3 <= span_s <= 10.7
        assert answer["limit_bytes"] == pytest.approx(mean([(e.limit, e.dt_s) for e in part]))
        assert answer["found_bytes"] == FOUND
        assert answer["write_rate"] == pytest.approx(sum(e.written for e in part) / span_s)
        assert answer["sync_rate"] == pytest.approx(len(waits_s) / span_s)
        assert answer["fsync_p50_s"] == near(ranked(waits_s, 0.5))
        assert answer["fsync_p99_s"] == near(ranked(waits_s, 0.99))
        assert answer["fsync_oldest_s"] == max(each.oldest_s for each in part)
        cells = render_figures([answer]).splitlines()[1].split()
        assert size_of(cells[5]) == shown(sum(e.written for e in part) / span_s)
        assert float(cells[-3]) == pytest.approx(len(waits_s) / span_s, abs=0.5)
        assert float(cells[-1]) == pytest.approx(1e3 * ranked(waits_s, 0.99), rel=WIDTH + 0.06)
    # Five minutes of the coarse table are the same, once more.
    whole = fold(rows)
    everything = [wait_s for part in parts for each in part for wait_s in each.waits_s]
    assert whole.fsyncs == len(everything)
    assert whole.latency.quantile(0.99) == near(ranked(everything, 0.99))
    assert whole.write_rate == pytest.approx(
        sum(e.written for part in parts for e in part)
        / sum(e.dt_s for part in parts for e in part)
    )


def test_the_report_of_a_time_adds_up_its_rows() -> None:
    rows, parts = collected()
    # All of it a flood, the first rows under writebackd's limit, the rest under that as found.
    assert all(row.flooded_s == row.span_s for row in rows)
    held, loose = 3, len(rows) - 3
    rows = [
        replace(row, ours_s=row.span_s * (number < held), objective_s=0.02)
        for number, row in enumerate(rows)
    ]
    span = Span("host", "0", rows[0].wall_s, rows[-1].end_s, rows[-1].end_s)
    page = render(span, rows, []).replace("&nbsp;", " ").replace("\u202f", "")
    for name, mine in (
        ("flood, writebackd's limit", range(held)),
        ("flood, limit as found", range(held, held + loose)),
    ):  # fmt: skip
        (line,) = re.findall(rf'<tr><th scope="row">{name.replace(chr(39), ".*?")}</th>(.*?)</tr>',
                             page)  # fmt: skip
        cells = re.findall(r'<td class="n">([^<]*)</td>', line)
        waits_s = [w for n in mine for each in parts[n] for w in each.waits_s]
        span_s = sum(rows[n].span_s for n in mine)
        lasted, limit, written, fsyncs, rate, p50, p99, half, longest = cells
        assert lasted == formats.duration(span_s) and int(fsyncs) == len(waits_s)
        assert size_of(written[:-2]) == shown(
            sum(e.written for n in mine for e in parts[n]) / span_s
        )
        assert min(rows[n].limit_bytes for n in mine) * 0.94 <= size_of(limit) <= 1.06 * max(
            rows[n].limit_bytes for n in mine
        )
        assert float(rate) == pytest.approx(len(waits_s) / span_s, abs=0.5)
        for cell, share in ((p50, 0.5), (p99, 0.99)):
            assert float(cell.split()[0]) == pytest.approx(
                1e3 * ranked(waits_s, share), rel=WIDTH + 0.06
            )
        # The longest seen: of all that returned, and those that were still waiting.
        most_s = max(*waits_s, *(e.oldest_s for n in mine for e in parts[n]))
        assert float(longest.split()[0]) == pytest.approx(1e3 * most_s, rel=WIDTH + 0.06)
        # Half of all the time waited is in fsyncs of this length and longer.
        by_length, passed, weighed_s = sorted(waits_s), 0.0, 0.0
        for wait_s in by_length:
            passed += wait_s
            if passed >= sum(waits_s) / 2:
                weighed_s = wait_s
                break
        assert float(half.split()[0]) == pytest.approx(1e3 * weighed_s, rel=WIDTH + 0.1)
    waits_s = [w for n in range(held) for each in parts[n] for w in each.waits_s]
    met = re.search(r"At least ([\d.]+) % met the objective of 20 ms", page)
    assert met is not None
    sure, all_ = (
        100 * sum(w * wider < 0.02 for w in waits_s) / len(waits_s) for wider in (1 + WIDTH, 1.0)
    )
    assert sure - 0.1 <= float(met.group(1)) <= all_
    seconds = sum(row.span_s for row in rows)
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page))
    assert facts["flooded, longest device"] == formats.duration(seconds)
    assert facts["busy under writebackd's limit, longest device"] == formats.duration(
        sum(row.span_s for row in rows[:held])
    )


def test_flooded_is_what_the_page_says_it_is() -> None:
    """It said "while background writes keep the device or the limit busy": neither is asked for."""
    chance = random.Random(23)
    ticks = [
        replace(
            each, busy=0.02, written=chance.choice((300 << 10, 8 << 20)),
            limit=chance.choice((32 << 20, 64 << 20)),
            tasks=chance.choice(((), each.tasks)),  # each sleeps for 0.1 s
        )
        for each in TICKS
    ]  # fmt: skip
    flooded_s = 0.0
    for each in ticks:
        # The background limit is half of the limit, and 5M is dirty.
        waits = 5 << 20 >= each.limit / 2 / 4 or bool(each.tasks)
        flooded_s += each.dt_s * (each.written / each.dt_s >= 1 << 20 and waits)
    collector = Collector(sum(each.dt_s for each in ticks))
    (row,) = [row for snapshot in played(ticks) for row in collector.add(snapshot)]
    assert 0.2 * row.span_s < flooded_s < 0.8 * row.span_s
    assert row.flooded_s == pytest.approx(flooded_s)
    page = render(Span("host", "0", row.wall_s, row.end_s, row.end_s), [row], [])
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page))
    assert facts["flooded, longest device"] == formats.duration(flooded_s)
    assert (
        "A time counts as flooded while the kernel writes 1.0M/s or more back to the device, and a"
        " quarter of the background limit or more is dirty, or writers sleep for the limit."
    ) in " ".join(page.split())


# ---- trial -------------------------------------------------------------------


def test_a_trials_figures_are_of_the_ticks_that_count() -> None:
    chance = random.Random(17)
    asked = plan(8)
    waits_s: Dict[int, List[float]] = {}
    written: Dict[int, float] = {}
    ticks = []
    for tick in made(asked):
        slow = 40.0 if asked.arms[tick.block] == ORIGINAL else 4.0
        these = [slow * 1e-3 * math.exp(chance.gauss(0.0, 0.7)) for _ in range(50)]
        rate = chance.uniform(1e8, 2e8)
        if tick.counts:
            waits_s.setdefault(tick.block, []).extend(these)
            written[tick.block] = written.get(tick.block, 0.0) + rate
        ticks.append(replace(
            tick, figures=replace(tick.figures, latency=histogram(these), write_rate=rate)
        ))  # fmt: skip
    result = analyse(asked, ticks)
    for block in result.blocks:
        mine = waits_s[block.number - 1]
        counted_s = asked.block_s - asked.settle_s
        assert block.p99_s == near(ranked(mine, 0.99)) and block.p50_s == near(ranked(mine, 0.5))
        assert block.sync_rate == pytest.approx(len(mine) / counted_s)
        assert block.write_rate == pytest.approx(written[block.number - 1] / counted_s)
    # Of each pair without / with for a latency, with / without for a rate; then Student's t.
    logs = []
    for first in range(0, 16, 2):
        ours, theirs = sorted((first, first + 1), key=lambda n: asked.arms[n])
        assert asked.arms[ours] == "a"
        logs.append(math.log(written[ours] / written[theirs]))
    rate_ = result.of(WRITE_RATE)
    half = 2.365 * statistics.stdev(logs) / math.sqrt(8)
    middle = statistics.mean(logs)
    assert rate_.ratio == pytest.approx(math.exp(middle))
    assert rate_.low == pytest.approx(math.exp(middle - half))
    assert rate_.high == pytest.approx(math.exp(middle + half))
    assert result.of(P99).ratio == pytest.approx(10.0, rel=0.2)


# ---- alerts ----------------------------------------------------------------


@dataclass(frozen=True)
class Second:
    syncs: int
    latency_s: float
    oldest_s: float
    flood: int
    spread: float = 1.0  # a tenth takes so many times as long

    @property
    def waits_s(self) -> List[float]:
        slow = self.syncs // 10
        return [self.latency_s] * (self.syncs - slow) + [self.latency_s * self.spread] * slow


def collapsing(seconds: Sequence[Second]) -> List[Tuple[int, Alert]]:
    """The alerts of a host that was well for a minute, each with the seconds that were by then."""
    host = Watched().usual()
    found = []
    for number, each in enumerate(seconds, 1):
        host.second(
            syncs=each.syncs, latency_s=each.latency_s, oldest_s=each.oldest_s, waiting=1,
            flood=each.flood, spread=each.spread,
        )  # fmt: skip
        found += [(number, alert) for alert in host.alerts if alert.name is AlertName.COLLAPSE]
    return found


def test_each_number_of_a_collapse_is_of_the_window_that_it_names() -> None:
    """It said "33 ms each" where the mean was 3, as one sync had waited for 67."""
    chance = random.Random(3)
    seconds = [
        Second(chance.randrange(40, 90), 0.4e-3, 0.067, 0 if n % 9 else 64 * MB,
               chance.choice((50.0, 80.0)))
        for n in range(40)
    ]  # fmt: skip
    found = collapsing(seconds)
    assert len(found) > 25
    began_s = 1.7e9 + Watched().usual().time_s
    for number, alert in found:
        assert alert.evidence is not None
        facts = dict(alert.evidence.facts)
        begin, end = (
            round(each - began_s) for each in (alert.evidence.begin_s, alert.evidence.end_s)
        )
        # It keeps its window while another cause shows up for a moment.
        assert number - CAUSE_HOLDS_S < end <= number
        lasted, window = end - begin, seconds[begin:end]
        syncs = sum(each.syncs for each in window)
        waits_s = [wait_s for each in window for wait_s in each.waits_s]
        mean_s = sum(waits_s) / syncs
        assert facts["sync_rate"] == pytest.approx(syncs / lasted)
        assert facts["commit_mean_s"] == near(mean_s)
        assert facts["commit_p99_s"] == near(ranked(waits_s, 0.99))
        assert facts["oldest_commit_s"] == 0.067
        written = sum(each.syncs * 4096 + each.flood for each in window)
        assert facts["write_rate"] == pytest.approx(written / lasted)
        assert facts["flooded_share"] == pytest.approx(
            sum(each.flood > MB for each in window) / lasted
        )
        said = re.match(
            r"sda: (\S+) fsync/s \(usually (\d+)\), .*; mean (\S+) ms \(usual (\S+) ms\),"
            r" slowest (\S+) ms$",
            alert.summary,
        )
        assert said is not None, alert.summary
        rate, usual, mean_ms, usual_ms, slowest_ms = map(float, said.groups())
        assert rate == pytest.approx(syncs / lasted, abs=0.5)
        assert usual == pytest.approx(1000, rel=0.05)
        assert mean_ms == pytest.approx(1e3 * mean_s, rel=WIDTH + 0.06)
        assert usual_ms == pytest.approx(0.4, rel=WIDTH + 0.06) and slowest_ms == 67
    # And `alerts` names the same window.
    number, alert = found[-1]
    row = [{**each} for each in alerts_json(replace(samples.idle(), alerts=(alert,)))]
    assert alert.evidence is not None
    lasted_s = alert.evidence.end_s - alert.evidence.begin_s
    assert f"(over {formats.duration(lasted_s)}: sync_rate " in " ".join(
        render_alerts({"active": row, "past": [], "routes": []}).split()
    )


def test_where_no_sync_returns_none_has_a_mean() -> None:
    (_, alert), *_ = collapsing([Second(0, 1e-3, float(n), 64 * MB) for n in range(1, 20)])
    assert alert.evidence is not None and "commit_mean_s" not in dict(alert.evidence.facts)
    said = re.match(r"sda: 0 fsync/s \(usually \d+\), .*; slowest (\d+)s$", alert.summary)
    assert said is not None
    assert float(said.group(1)) == dict(alert.evidence.facts)["oldest_commit_s"]


def test_exhausted_holds_the_percentile_against_the_objective_and_not_the_mean() -> None:
    host = Watched().usual()
    # A tenth takes ten times as long: the mean is 1.9 ms, p99 10 ms.
    host.until(70, syncs=700, latency_s=1e-3, spread=10.0, state=DeviceState.EXHAUSTED)
    (alert,) = [each for each in host.alerts if each.name is AlertName.EXHAUSTED]
    said = re.match(
        r"sda: commits p99 (\S+) ms \(objective (\S+) ms\), and the limit is at its floor; ",
        alert.summary,
    )
    assert said is not None, alert.summary
    assert float(said.group(1)) == pytest.approx(10.0, rel=WIDTH + 0.06)
    objective_s = load_policy("default").objective.fsync_p99_s
    assert said.group(2) == formats.milliseconds(objective_s)
    assert alert.severity is Severity.WARNING


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_exhausted_names_the_floor_while_it_is_in_force(share: float) -> None:
    slow = {"syncs": 700, "latency_s": 1e-3, "spread": 10.0, "state": DeviceState.EXHAUSTED}
    for floor, said in ((4 * MB, "and the limit is at its floor, 4.0M; "),
                        (3 * MB, "and the limit is at its floor; ")):
        host = Watched(limit_share=share).usual()
        host.until(70, **slow, basis=Basis(0.005, int(floor * share)))
        (alert,) = [each for each in host.alerts if each.name is AlertName.EXHAUSTED]
        assert said in alert.summary


def test_of_an_unknown_cause_nothing_is_ruled_out() -> None:
    """It said "not caused by dirty pages"."""
    done = {
        cause: done_about(cause, samples.guard().decision, Memory())
        for cause in (Cause.UNKNOWN, Cause.DEVICE)
    }
    assert done[Cause.UNKNOWN] == "cause unknown: check the kernel log"
    assert done[Cause.DEVICE].startswith("not caused by dirty pages: check ")


def test_a_loop_of_short_copies_is_one_culprit() -> None:
    """Three processes a second, never two at once, were three parallel writers."""
    host = Watched(core=Memory(mode=Mode.OBSERVE)).usual()
    each, seconds = 60 * MB, 14
    for number in range(seconds):
        host.second(
            syncs=2, latency_s=1.0, waiting=1, flood=3 * each, dirty=3 << 30,
            tasks=tuple(
                TaskSample(5000 + 3 * number + n, "dd", 7, "sda", each, 0.3, "/user.slice/x")
                for n in range(3)
            ),
        )  # fmt: skip
    (culprit,) = host.alerts[0].culprits
    assert culprit.several and culprit.dirty_rate == pytest.approx(3 * each)
    assert culprit.pid is not None and culprit.pid >= 5000 + 3 * (seconds - 1)
    assert "dd (several processes" in host.alerts[0].summary
    # Two programs are two, whatever else they share; one process is one.
    host = Watched(core=Memory(mode=Mode.OBSERVE)).usual()
    two = (TaskSample(1, "dd", 7, "sda", each), TaskSample(2, "cp", 7, "sda", each),
           TaskSample(3, "dd", 8, "sda", each))  # fmt: skip
    for _ in range(14):
        host.second(syncs=2, latency_s=1.0, waiting=1, flood=3 * each, dirty=3 << 30, tasks=two)
    found = host.alerts[0].culprits
    assert {(each_.pid, each_.several) for each_ in found} == {(1, False), (2, False), (3, False)}
