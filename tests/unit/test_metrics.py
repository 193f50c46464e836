# SPDX-License-Identifier: GPL-2.0-or-later
"""The text of the metrics: what scrapers read, and what is counted for them."""

from __future__ import annotations

import errno
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics

import samples
import schema
from fake_host import Rig
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.commands import metrics_answer, set_mode
from writebackd.kernel.map_readers import Reading
from writebackd.policy.reload import Open
from writebackd.report.metrics import CONTENT_TYPES, PROMETHEUS, render
from writebackd.report.snapshot import COMMIT_BOUNDS_S, Snapshot, Totals
from writebackd.types.decision import Decision, DeviceState, Mode
from writebackd.types.histogram import BUCKET_EDGES_S, HIST_BUCKETS, Histogram
from writebackd.types.levers import Action
from writebackd.types.samples import ClassSample, IoClass, SyncSample

Maker = Callable[[], Snapshot]
ALL: Dict[str, Maker] = {
    **samples.ALL,
    "window": lambda: replace(samples.guard(), window=Open("night", 1_717_220_000.0, "06:00")),
}
every_sample = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\[\\"n])*)"(?:,|$)')
Series = Dict[Tuple[str, Tuple[Tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    """Samples by name and labels; fails on what a parser would refuse."""
    found: Series = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        assert match, line
        labels = tuple(LABEL.findall(match[2] or ""))
        assert ",".join(f'{k}="{v}"' for k, v in labels) == (match[2] or ""), line
        assert (match[1], labels) not in found, line
        found[match[1], labels] = float(match[3])
    return found


def value(snapshot: Snapshot, name: str, /, **labels: str) -> Optional[float]:
    return parse(render(snapshot)).get((f"writebackd_{name}", tuple(labels.items())))


@every_sample
def test_promtool_finds_nothing_to_say(make: Maker) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: apt-get install prometheus")
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=render(make(), PROMETHEUS), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "")


@every_sample
def test_the_parsers_of_prometheus_client_read_either_form(make: Maker) -> None:
    readers: Tuple[Tuple[str, Callable[[str], Iterable[Any]]], ...] = (
        (render(make()), openmetrics.text_string_to_metric_families),
        (render(make(), PROMETHEUS), text_parser.text_string_to_metric_families),
    )
    for text, families in readers:
        read = {
            (sample.name, tuple(sample.labels.items())): sample.value
            for family in families(text) for sample in family.samples
        }  # fmt: skip
        plain = {
            (name, tuple((label, _plain(shown)) for label, shown in labels)): value
            for (name, labels), value in parse(text).items()
        }
        assert read == plain


def _plain(shown: str) -> str:
    return shown.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")


@every_sample
def test_both_forms_have_the_same_samples(make: Maker) -> None:
    new, old = render(make()), render(make(), PROMETHEUS)
    assert parse(new) == parse(old)
    assert new.endswith("\n# EOF\n")
    assert "# EOF" not in old and "# UNIT" not in old


def test_figures_are_those_of_the_tick() -> None:
    shown = samples.throttled(samples.guard())
    sda = {"device": "sda"}
    for name, labels, wanted in (
        ("dirty_limit_bytes", {}, 1_966_080),
        ("dirty_limit_original_bytes", {}, shown.sample.host.memory_bytes * 20 // 100),
        ("enforcing", {}, 1),
        ("build_info", {"version": "0.1.0"}, 1),
        ("policy_info", {"policy": "db-hwraid"}, 1),
        ("mode", {"mode": "enforce"}, 1),
        ("mode", {"mode": "observe"}, 0),
        ("start_time_seconds", {}, 1_717_189_205.0),
        ("devices", {"state": "guard"}, 1),
        ("device_state", {**sda, "state": "guard"}, 1),
        ("device_state", {**sda, "state": "squeeze"}, 0),
        ("device_target_bytes", sda, 1_966_080),
        ("device_drain_bytes_per_second", sda, 250 << 20),
        ("device_fsync_p99_seconds", sda, 0.0019),
        ("device_commit_p50_seconds", sda, 0.0031),
        ("device_commit_p99_seconds", sda, 0.14),
        ("device_commit_write_ratio", sda, 0.8),
        ("device_oldest_commit_seconds", sda, 0.2),
        ("device_fsync_baseline_seconds", sda, 0.00035),
        ("device_sync_demand", sda, 1),
        ("resident_memory_bytes", {}, int(18.7 * samples.MIB)),
        ("last_tick_timestamp_seconds", {}, 1_717_200_725.0),
    ):
        assert value(shown, name, **labels) == wanted, name


def test_the_window_that_is_open_and_only_that() -> None:
    night = ALL["window"]()
    assert value(night, "window", window="night") == 1
    assert value(night, "window_end_timestamp_seconds") == 1_717_220_000.0
    day = [name for name, _ in parse(render(samples.guard())) if "window" in name]
    assert day == [] and "# TYPE writebackd_window gauge" in render(samples.guard())
    assert len(parse(render(night))) == len(parse(render(samples.guard()))) + 2


def test_what_is_not_known_has_no_sample() -> None:
    shown = samples.blind()
    assert value(shown, "device_fsync_p99_seconds", device="sda") is None
    assert value(shown, "device_sync_demand", device="sda") is None
    assert value(shown, "device_commit_duration_seconds_count", device="sda") is None
    infinite = replace(samples.guard(), lease_s=math.inf, self_cpu_fraction=math.nan)
    held = replace(samples.guard(), lease_s=9.0)
    assert value(held, "lease_expiry_timestamp_seconds") == 1_717_200_734.0
    assert value(infinite, "lease_expiry_timestamp_seconds") is None
    assert not {"inf", "nan"} & {str(each) for each in parse(render(infinite)).values()}


def test_it_tells_when_nothing_is_enforced() -> None:
    for shown in (samples.observe(), samples.yielded(), replace(samples.guard(), off="/etc/off")):
        assert value(shown, "enforcing") == 0
    assert value(samples.yielded(), "yielded") == 1
    assert value(replace(samples.guard(), off="/etc/off"), "held_off") == 1


def test_a_name_cannot_break_out_of_its_label() -> None:
    line = 'a"} 1\nwritebackd_build_info{version="x'
    for text in (line, "back\\slash", "\udcff\n", '"', "}{,=#"):
        shown = samples.hostile("dd", mount=text)
        names = [name for name, _ in parse(render(shown))]
        assert names == [name for name, _ in parse(render(samples.guard()))]
        (labels,) = [dict(labels) for name, labels in parse(render(shown))
                     if name == "writebackd_device_info"]  # fmt: skip
        assert _plain(labels["mountpoint"]) == text.encode("utf-8", "replace").decode()
        render(shown, PROMETHEUS).encode("utf-8")


def alert(severity: Severity, device: Optional[str] = "sda", cause: Cause = Cause.FLOOD) -> Alert:
    return Alert(AlertName.COLLAPSE, device, severity, cause, 0.0, "slow", "tightened")


def alerts_of(text: str) -> List[Dict[str, str]]:
    return [dict(labels) for name, labels in parse(text) if name == "writebackd_alert"]


def test_alerts_are_told_once_with_the_worst_severity() -> None:
    given = (alert(Severity.WARNING), alert(Severity.CRITICAL), alert(Severity.WARNING),
             alert(Severity.WARNING, None, Cause.UNKNOWN))  # fmt: skip
    sda = {"name": "COLLAPSE", "device": "sda", "severity": "critical", "cause": "writeback-flood"}
    host = {"name": "COLLAPSE", "device": "", "severity": "warning", "cause": "unknown"}
    assert alerts_of(render(replace(samples.guard(), alerts=given))) == [host, sda]
    assert alerts_of(render(samples.guard())) == []


def test_alerts_of_status_are_among_them() -> None:
    (found,) = alerts_of(render(samples.yielded()))
    assert (found["name"], found["severity"]) == ("FOREIGN_WRITER", "warning")


def test_a_device_left_alone_has_no_series_of_its_own() -> None:
    shown = samples.several()
    devices = tuple(
        replace(each, excluded="loop") if each.device.name.startswith("loop") else each
        for each in shown.sample.devices
    )
    shown = replace(shown, sample=replace(shown.sample, devices=devices))
    names = {dict(labels).get("device") for _, labels in parse(render(shown))} - {None}
    assert names == {"sda", "sdb", "dm-0"}
    assert value(shown, "devices", state="excluded") == 3


def test_the_answer_fits_its_schema() -> None:
    for form in CONTENT_TYPES:
        answer = metrics_answer(samples.guard(), form)
        assert not list(schema.problems(dict(answer), schema.load("metrics")))


# ---- what is counted ----------------------------------------------------


def count(totals: Totals, latency: Histogram, name: str = "sda", diskseq: int = 9) -> Totals:
    shown = samples.guard()
    seen = shown.sample.devices[0]
    seen = replace(
        seen, device=replace(seen.device, diskseq=diskseq), write_bytes=100, read_bytes=10,
        busy_share=0.5, sync=SyncSample(fsyncs=latency.total, latency=latency),
    )  # fmt: skip
    estimate = replace(shown.estimates["sda"], fsync_total_s=latency.total_s())
    sample = replace(shown.sample, devices=(seen,))
    return totals.seen(sample, {"sda": estimate}, shown.decision, 1.5)


def test_every_bucket_of_the_probe_is_counted_and_never_as_faster_than_it_was() -> None:
    for bucket in range(HIST_BUCKETS):
        counts = count(Totals(), Histogram(((bucket, 3),))).devices["sda"].commits
        (found,) = (n for n, each in enumerate(counts) if each)
        assert counts[found] == 3
        top = BUCKET_EDGES_S[bucket + 1] if bucket + 1 < HIST_BUCKETS else math.inf
        below = [n for n, bound in enumerate(COMMIT_BOUNDS_S) if bound >= top]
        assert found == min(below, default=len(COMMIT_BOUNDS_S))


def test_counts_grow_from_tick_to_tick() -> None:
    latency = Histogram(((80, 2), (120, 1)))
    once = count(Totals(), latency)
    twice = count(once, latency)
    device = twice.devices["sda"]
    assert sum(device.commits) == 6
    assert device.fsync_s == pytest.approx(2 * latency.total_s())
    assert (device.written_bytes, device.read_bytes, device.busy_s) == (200, 20, 1.0)
    assert (once.devices["sda"].decisions, device.decisions) == (1, 1)  # the same id
    assert count(twice, latency, diskseq=10).devices["sda"].written_bytes == 100  # another disk


def test_a_histogram_is_cumulative_and_ends_with_its_count() -> None:
    shown = samples.guard()
    totals = count(Totals(), Histogram(((80, 2), (120, 1), (191, 4))))
    seen = replace(shown.sample.devices[0], sync=SyncSample())
    shown = replace(shown, totals=totals, sample=replace(shown.sample, devices=(seen,)))
    name = "writebackd_device_commit_duration_seconds"
    buckets = [(dict(labels)["le"], number) for (what, labels), number in
               parse(render(shown)).items() if what == name + "_bucket"]  # fmt: skip
    assert [le for le, _ in buckets] == [*map(str, COMMIT_BOUNDS_S), "+Inf"]
    numbers = [number for _, number in buckets]
    assert numbers == sorted(numbers) and numbers[-1] == 7 and numbers[-2] == 3
    assert value(shown, "device_commit_duration_seconds_count", device="sda") == 7


def test_writes_are_counted_by_kind_and_result() -> None:
    totals = Totals().acted(
        (
            Action("dirty_bytes", "4096000", "2048000", True),
            Action("dirty_bytes", "4096000", "4096000", True),
            Action("dirty_background_bytes", "1", "2", True),
            Action("bdi 8:0 max_bytes", "1", "2", False, "refused"),
        )
    )
    assert totals.limit_changes == 1
    assert totals.writes == {("limits", True): 3, ("bdi", False): 1}
    shown = replace(samples.guard(), totals=totals)
    assert value(shown, "lever_writes_total", lever="limits", result="ok") == 3
    assert value(shown, "lever_writes_total", lever="bdi", result="error") == 1
    assert value(shown, "limit_changes_total") == 1


def test_a_device_that_goes_is_forgotten() -> None:
    totals = count(Totals(), Histogram())
    empty = replace(samples.guard().sample, devices=())
    assert totals.seen(empty, {}, Decision(None, None, None, ""), 0.0).devices == {}


def test_processor_time_never_goes_back() -> None:
    totals = count(Totals(), Histogram())
    shown = samples.idle()
    assert totals.seen(shown.sample, shown.estimates, shown.decision, 0.5).cpu_s == 1.5
    # Nor where the others are zeroed: the kernel counts it.
    assert totals.zeroed(1.0).cpu_s == 1.5


FLOOD = Reading(
    classes={"8:0": {IoClass.BACKGROUND_WRITE: ClassSample(9, 9 << 20, Histogram(((90, 9),)))}},
    syncs={"8:0": SyncSample(fsyncs=20, latency=Histogram(((80, 15), (110, 5))))},
)


def test_the_daemon_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.probe.next = FLOOD
    for _ in range(4):
        rig.host.flow(64 << 20)
        rig.tick()
    shown = rig.daemon.state.snapshot
    assert shown is not None
    assert value(shown, "device_commit_duration_seconds_count", device="sda") == 60
    assert value(shown, "device_written_bytes_total", device="sda") == 3 * (64 << 20)
    assert value(shown, "lever_writes_total", lever="limits", result="ok")
    assert value(shown, "tick_duration_seconds_count") == 3  # without the one that it is of
    rig.host.errors["/proc/vmstat"] = errno.EIO
    rig.tick(2)
    shown = rig.daemon.state.snapshot
    assert shown is not None
    assert value(shown, "failed_ticks_total") == 2
    text = rig.daemon.handle("metrics", {"format": PROMETHEUS}, 1000)["text"]
    assert "writebackd_failed_ticks_total 2" in text
    rig.tick()
    assert rig.daemon.handle("metrics", {"format": PROMETHEUS}, 1000)["text"] != text
    rig.end()


def test_what_observe_would_write_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    started_s = rig.wall
    rig.daemon.apply(set_mode(Mode.OBSERVE))
    rig.probe.next = FLOOD
    for _ in range(4):
        rig.host.flow(64 << 20)
        rig.tick()
    assert rig.daemon.state.totals.writes == {}
    shown = rig.daemon.state.snapshot
    assert shown is not None
    assert value(shown, "start_time_seconds") == started_s < shown.sample.wall_s
    assert value(shown, "mode", mode="observe") == 1
    rig.end()


def test_states_are_all_there() -> None:
    found = {dict(labels)["state"] for name, labels in parse(render(samples.guard()))
             if name == "writebackd_device_state"}  # fmt: skip
    assert found == {state.value for state in DeviceState} - {"excluded"}


def test_alerts_that_come_up_are_counted() -> None:
    totals = Totals()
    for name in ("COLLAPSE", "STALL", "COLLAPSE"):
        totals = totals.alerted(name)
    shown = replace(samples.guard(), totals=totals)
    assert value(shown, "alerts_raised_total", name="COLLAPSE") == 2
    assert value(shown, "alerts_raised_total", name="STALL") == 1
    assert value(shown, "alerts_raised_total", name="BLIND") == 0
