# SPDX-License-Identifier: GPL-2.0-or-later
"""The figures that the history keeps: added up, downsampled, bounded, read back."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest

import samples
from history_cases import TIMEOUT_S, written
from route_cases import wait_for
from writebackd.cli import ctl
from writebackd.cli import history as history_cli
from writebackd.cli.daemon_verbs import render_why
from writebackd.cli.status_screen import render_status
from writebackd.report.device_figures import COARSE_S, MAX_DEVICES, Collector, Figures, fold
from writebackd.report.history_events import events_of
from writebackd.report.history_schema import Event, read_figures
from writebackd.report.history_store import FINE_S, KEPT_S, MAX_ROWS_WAITING, History
from writebackd.report.snapshot import Snapshot, in_mode, original_bytes
from writebackd.report.status_answer import status_json, why_json
from writebackd.types.core_memory import Cap, Memory
from writebackd.types.decision import Mode
from writebackd.types.histogram import Histogram
from writebackd.types.samples import DeviceSample, SyncSample

BEGIN_S = 1_700_000_100.0  # a multiple of 300
MIB = 1 << 20


def row(at_s: float, device: str = "sda", span_s: float = 10.0, **more: Any) -> Figures:
    counts = Histogram(((80, 90), (120, 10)))
    plain = Figures(BEGIN_S + at_s, span_s, device, 4.0 * MIB, 4.7e9, 2.5e8, latency=counts)
    return replace(plain, **more)


def table(path: Path, name: str) -> "list[tuple[float, float, str]]":
    with sqlite3.connect(str(path)) as database:
        return database.execute(f"SELECT wall_s, span_s, device FROM {name} ORDER BY id").fetchall()


# ---- adding up ticks ---------------------------------------------------


def busy(dt_s: float = 1.0, **sample: object) -> Snapshot:
    snapshot = samples.guard()
    seen = snapshot.sample.devices[0]
    sync = SyncSample(fsyncs=100, latency=Histogram(((80, 99), (120, 1))))
    seen = replace(seen, write_bytes=250 * MIB, sync=sync)
    changed = replace(snapshot.sample, dt_s=dt_s, devices=(seen,), **sample)  # type: ignore[arg-type]
    return replace(snapshot, sample=changed)


def test_a_limit_of_its_own_is_the_one_that_holds_for_a_device() -> None:
    host = busy()
    as_found = replace(host.decision, limit_bytes=None)
    caps = {"sda": Cap(48 * MIB, in_force=True, standing=True)}
    capped = replace(host, decision=as_found, memory=replace(host.memory, caps=caps))
    (figures,) = [row for _ in range(10) for row in Collector(1.0).add(capped)][-1:]
    assert (figures.limit_bytes, figures.ours_s) == (48 * MIB, 1.0)
    assert capped.limit_of("sda") == 48 * MIB != host.limit_of("sda")
    assert capped.limit_of("sdb") == host.limit_of("sdb") == host.sample.vm.threshold_bytes
    observing = in_mode(capped, replace(capped.memory, mode=Mode.OBSERVE))
    assert observing.limit_of("sda") == host.sample.vm.threshold_bytes
    (seen,) = host.sample.devices
    strict = replace(host.sample, devices=(replace(seen, strict_bytes=MIB),))
    theirs = replace(observing, sample=strict)  # set by somebody else
    (figures,) = Collector(1.0).add(theirs)
    found = original_bytes(theirs)[0] * MIB / host.sample.vm.threshold_bytes
    assert figures.limit_bytes == MIB and figures.found_bytes == pytest.approx(found)
    assert "limit 1.0M, for this device alone" in render_status(status_json(theirs))
    assert "limit    1.0M, for this device alone" in render_why(why_json(theirs))
    (row,) = status_json(capped)["devices"]
    assert row["limit_bytes"] == 48 * MIB
    (event,) = [each for each in events_of(None, capped, ()) if each.device == "sda"]
    assert event.limit_bytes == 48 * MIB
    without = replace(host.sample.vm, threshold_bytes=0)  # as under dirty_ratio = 0
    (figures,) = Collector(1.0).add(replace(host, sample=replace(host.sample, vm=without)))
    assert figures.found_bytes == 0.0
    observed = samples.in_mode(host, Mode.OBSERVE)
    (event,) = [each for each in events_of(None, observed, ()) if each.device == "sda"]
    assert event.limit_bytes == host.sample.vm.threshold_bytes


@pytest.mark.parametrize("change", [
    {"memory": Memory(mode=Mode.OBSERVE)}, {"off": "/run/writebackd/off"},
    {"memory": Memory(yielded="tuned")},
    {"decision": replace(samples.guard().decision, limit_bytes=None)},
], ids=["observe", "off", "yielded", "as found"])  # fmt: skip
def test_a_limit_that_is_not_ours_is_not_called_ours(change: Dict[str, Any]) -> None:
    (figures,) = Collector(1.0).add(replace(busy(), **change))
    assert figures.ours_s == 0.0


def test_a_device_that_does_nothing_has_no_row_and_of_many_there_is_a_bound() -> None:
    snapshot = busy()
    (seen,) = snapshot.sample.devices
    quiet = DeviceSample(replace(seen.device, name="quiet"), sync=SyncSample())
    many = [
        replace(seen, device=replace(seen.device, name=f"sd{n}")) for n in range(MAX_DEVICES + 9)
    ]
    estimate = snapshot.estimates[seen.device.name]
    snapshot = replace(
        snapshot,
        sample=replace(snapshot.sample, devices=(quiet, *many)),
        estimates={"quiet": estimate, **{each.device.name: estimate for each in many}},
    )
    rows = Collector(1.0).add(snapshot)
    assert [each.device for each in rows] == [f"sd{n}" for n in range(MAX_DEVICES)]


def test_an_fsync_that_waits_makes_a_row_although_nothing_ends() -> None:
    snapshot = busy()
    (seen,) = snapshot.sample.devices
    stuck = replace(seen, write_bytes=0, sync=SyncSample(inflight=1, oldest_s=30.0))
    estimate = replace(snapshot.estimates[seen.device.name], oldest_fsync_s=30.0)
    snapshot = replace(
        snapshot,
        sample=replace(snapshot.sample, devices=(stuck,)),
        estimates={seen.device.name: estimate},
    )
    (figures,) = Collector(1.0).add(snapshot)
    assert figures.oldest_s == 30.0 and figures.fsyncs == 0


def test_folding_weighs_by_time_and_keeps_every_latency() -> None:
    one = row(0, span_s=10.0, write_rate=100.0, flooded_s=10.0, oldest_s=3.0)
    two = row(10, span_s=30.0, write_rate=500.0, ours_s=30.0, oldest_s=1.0, target_bytes=7.0)
    both = fold((one, two))
    assert (both.wall_s, both.span_s) == (one.wall_s, 40.0)
    assert both.write_rate == pytest.approx(400.0)
    assert (both.flooded_s, both.ours_s, both.oldest_s) == (10.0, 30.0, 3.0)
    assert both.target_bytes == 7.0  # of the end
    assert both.latency == Histogram(((80, 180), (120, 20)))


# ---- the file ----------------------------------------------------------


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    rows = [row(0, fill_share=0.25, drain_rate=2e8), row(0, "sd\udcff"), row(10, target_bytes=5.0)]
    path = written(tmp_path / "history.db", rows)
    assert read_figures(path) == [rows[0], replace(rows[1], device="sd\\udcff"), rows[2]]
    for since_s, wanted in ((9.9, [rows[0], rows[2]]), (10.0, [rows[2]]), (20.0, [])):
        assert read_figures(path, device="sda", since_s=BEGIN_S + since_s) == wanted
    assert read_figures(path, device="sda", until_s=BEGIN_S + 5) == [rows[0]]


def test_five_minutes_are_a_coarse_row_with_all_its_latencies(tmp_path: Path) -> None:
    rows = [*(row(10.0 * n) for n in range(60)), row(595, "sdb")]
    path = written(tmp_path / "history.db", rows)
    assert table(path, "coarse") == [
        (BEGIN_S, 300.0, "sda"), (BEGIN_S + 300, 300.0, "sda"), (BEGIN_S + 595, 10.0, "sdb"),
    ]
    with sqlite3.connect(str(path)) as database:
        database.execute("DELETE FROM fine")
    whole = read_figures(path)
    assert [each.fsyncs for each in whole] == [3000, 3000, 100]


def test_the_old_goes_first_the_fine_then_the_coarse(tmp_path: Path) -> None:
    late = KEPT_S + COARSE_S + 20.0
    rows = [row(0), row(10), row(late - FINE_S - 20), row(late - FINE_S + 20), row(late)]
    path = written(tmp_path / "history.db", rows)
    fine = [at for at, _, _ in table(path, "fine")]
    assert fine == [BEGIN_S + late - FINE_S + 20, BEGIN_S + late]
    # The coarse row of the fine ones that are gone, then these; none of both.
    assert [each.wall_s for each in read_figures(path)] == [
        BEGIN_S + late - FINE_S - 20, BEGIN_S + late - FINE_S + 20, BEGIN_S + late,
    ]


def test_the_file_has_a_bound(tmp_path: Path) -> None:
    path, bound = tmp_path / "history.db", 1 << 20
    wide = Histogram(tuple((index, 1000 + index) for index in range(0, 192, 2)))
    history = History(path, max_bytes=bound)
    for number in range(0, 4000, 100):
        history.record_figures(
            tuple(row((number + n) * 10.0, latency=wide) for n in range(100))
        )
        wait_for(lambda: history._rows_in == history._rows_out)
    assert history.close(TIMEOUT_S) and history.dropped == 0
    # What one batch brings may lie above it until the next.
    assert path.stat().st_size < 1.5 * bound
    assert read_figures(path)[-1].wall_s == BEGIN_S + 39_990


def test_commits_add_up_with_where_they_waited() -> None:
    collector, snapshot = Collector(10.0), busy()
    (seen,) = snapshot.sample.devices
    assert seen.sync is not None
    sync = replace(seen.sync, commits=Histogram(((80, 50), (120, 50))), throttled_s=2.5)
    sda = replace(snapshot.estimates["sda"], oldest_commit_s=3.0, oldest_fsync_s=1.0)
    snapshot = replace(
        snapshot, estimates={"sda": sda},
        sample=replace(snapshot.sample, devices=(replace(seen, sync=sync),)),
    )  # fmt: skip
    (figures,) = [row for _ in range(10) for row in collector.add(snapshot)]
    assert figures.latency == Histogram(((80, 990), (120, 10)))
    assert figures.commits == figures.commit_latency == Histogram(((80, 500), (120, 500)))
    assert (figures.oldest_s, figures.pending_s, figures.throttled_s) == (1.0, 3.0, 25.0)
    assert figures.write_share == pytest.approx(0.340, abs=0.001)
    # Beside a row in which the sleep was not visible, its fsyncs count as commits.
    both = fold([figures, replace(row(0), oldest_s=5.0)])
    assert both.commit_latency == Histogram(((80, 590), (120, 510)))
    assert (both.pending_s, both.throttled_s) == (5.0, 25.0)
    shown = history_cli.figures_json(figures)
    assert shown["commit_p99_s"] == pytest.approx(0.151, abs=0.001)
    assert shown["fsync_p99_s"] == pytest.approx(0.0047, abs=0.0001)
    assert (shown["commit_oldest_s"], shown["fsync_oldest_s"]) == (3.0, 1.0)


def test_another_programs_database_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(str(path)) as other:
        other.execute("CREATE TABLE accounts (x)")
    other.close()
    history = History(path)
    history.record_figures((row(0),))
    wait_for(lambda: list(tmp_path.glob("history.db.damaged-*")) and not history.error)
    assert history.close(TIMEOUT_S) and read_figures(path) == [row(0)]
    (aside,) = tmp_path.glob("history.db.damaged-*")
    with sqlite3.connect(str(aside)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("accounts",)]


@pytest.mark.parametrize("column, value", [
    ("latency", "12:x"), ("latency", "500:1"), ("latency", b"\xff"), ("span_s", 0.0),
    ("wall_s", 1e300), ("write_rate", "much"), ("limit_bytes", None), ("drain_rate", -1.0),
])  # fmt: skip
def test_a_damaged_row_is_left_out(tmp_path: Path, column: str, value: object) -> None:
    path = written(tmp_path / "history.db", [row(0), row(10)])
    with sqlite3.connect(str(path)) as database:
        database.execute(f"UPDATE fine SET {column} = ? WHERE id = 1", (value,))
    assert read_figures(path) == [row(10)]


def test_rows_that_wait_have_a_bound(tmp_path: Path) -> None:
    path = written(tmp_path / "history.db", [row(0)])
    blocker = sqlite3.connect(str(path), isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    history = History(path)
    for number in range(100):
        history.record_figures(tuple(row(number * 10.0, f"sd{n}") for n in range(100)))
    assert 100 * 100 - MAX_ROWS_WAITING - 500 <= history.dropped < 100 * 100
    blocker.execute("COMMIT")
    blocker.close()
    assert history.close(TIMEOUT_S)
    assert len(read_figures(path)) == 1 + 100 * 100 - history.dropped


# ---- the verb ----------------------------------------------------------

Run = Callable[..., Tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    rows = [*(row(10.0 * n) for n in range(60)), row(600, "sdb")]
    told = Event(BEGIN_S, "mode", text='observe, "quoted"\nand more')
    written(tmp_path / "history.db", [*rows, told])

    def call(*arguments: str) -> Tuple[int, str]:
        code = ctl.main(["history", "--state-dir", str(tmp_path), *arguments])
        return code, capsys.readouterr().out

    return call


def test_figures_on_the_screen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out = run("--figures")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 52
    assert max(map(len, lines)) <= 80 and " sdb " in lines[-2] and "238M" in lines[-2]
    assert lines[-1].startswith("(the last 50 of 61 rows; ")


def test_csv_has_all_of_it_for_other_programs(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(run("--figures", "--csv")[1])))
    assert len(rows) == 61 and rows[0]["write_rate"] == "250000000.0" and not rows[0]["drain_rate"]
    (event,) = csv.DictReader(io.StringIO(run("--csv")[1]))
    assert event["text"] == 'observe, "quoted"\nand more' and event["device"] == ""


def test_until_is_an_end(run: Run) -> None:
    assert "no events" in run("--until", "2001-01-01")[1]
    code, _ = run("--since", "1h", "--until", "2h")
    assert code == 2


def test_csv_of_nothing_still_has_its_header(run: Run) -> None:
    for words in (("--csv",), ("--csv", "--figures")):
        whole = run(*words)[1].splitlines()[0]
        assert run(*words, "--until", "2001-01-01")[1].splitlines() == [whole]


@pytest.mark.parametrize("more", [(), ("--figures",), ("--csv",), ("--json",)])
def test_a_device_that_is_not_in_it_is_said_with_those_that_are(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, more: Tuple[str, ...]
) -> None:
    assert ctl.main(["history", "--state-dir", str(tmp_path), "--device", "sdz", *more]) == 2
    captured = capsys.readouterr()
    assert "no device is called 'sdz'" in captured.err and "devices: sda, sdb" in captured.err
    assert captured.out == ""
    page = tmp_path / "page.html"
    words = ["report", "--state-dir", str(tmp_path), "--device", "sdz", "-o", str(page)]
    assert ctl.main(words) == 2 and not page.exists()


def test_a_mount_point_is_what_the_daemon_calls_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: List[object] = []

    def answer(runtime_dir: Path, verb: str, args: object, timeout_s: float) -> object:
        asked.append((verb, args))
        return {"devices": [{"name": "sdb"}]}

    monkeypatch.setattr(history_cli, "request", answer)
    rows = json.loads(run("--figures", "--json", "--device", "/srv")[1])["figures"]
    assert {each["device"] for each in rows} == {"sdb"}
    assert asked == [("why", {"device": "/srv"})]
