# SPDX-License-Identifier: GPL-2.0-or-later
"""calibrate: its ladder, what is kept of it, where it refuses, and what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional
from unittest.mock import MagicMock

import pytest

import schema
from figure_cases import row
from writebackd.cli import calibrate as verb
from writebackd.cli import calibration_host, ctl
from writebackd.cli.calibration_host import CalibrationHost, Loads, Refused, check_room, device_of
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NOT_PERMITTED, USAGE
from writebackd.kernel.files import KernelFiles
from writebackd.policy import load_policy
from writebackd.report.history_schema import Event
from writebackd.report.learned_store import (
    MOST_RUNS,
    Calibrated,
    add,
    load,
    median,
    read_learned,
    save_learned,
    seed,
    unexpired_runs,
)
from writebackd.report.recommendation import Basis, Host, price, reason, recommend
from writebackd.report.recommendation_files import Surroundings, as_json
from writebackd.trial.calibration import Calibration
from writebackd.trial.ladder import Budget, Order, Own, Phase, Result, Rung, next_limit, score
from writebackd.tuning import KEEP_S
from writebackd.types.device_memory import Fact, Learned
from writebackd.types.histogram import Histogram
from writebackd.types.levers import VmLimits
from writebackd.types.storage import Device

MB, GB = 1 << 20, 1 << 30
NOW = 1.7e9
SDA = Device("sda", "8:0", "8:0", ("sda",), ("8:0",), (("8:1", "ext4", "/srv"),), identity="disk A")
R = 100.0 * MB
IDLE = 1000.0
POLICY = load_policy("default")


def rung(limit_mb: float, f: float, g: float, full: bool = True) -> Rung:
    latency = Histogram(((60, 99), (80, 1)))
    return Rung(int(limit_mb * MB), 10.0, int(10 * f * IDLE), 10 * g * R, 10.0 * full, latency)


# ---- the ladder ---------------------------------------------------------------


def test_the_score_is_that_of_the_lab() -> None:
    assert score(0.5, 1.2) == score(0.5, 0.95) == 0.5
    assert score(0.5, 0.475) == pytest.approx(0.5 / 16)


WITHIN = [rung(2, 0.4, 0.6), rung(3, 0.4, 0.8), rung(4, 0.5, 0.9)]


@pytest.mark.parametrize("rungs, floor_mb, ceiling_mb, then", [
    ([rung(4, 0.5, 0.7)], 1, 1024, 8.0),  # the flood has not all of R: larger
    ([rung(4, 0.5, 0.7), rung(8, 0.3, 0.8)], 1, 1024, 16.0),
    ([rung(4, 0.5, 0.7), rung(8, 0.3, 0.7)], 1, 1024, 2.0),  # which brought it no more
    ([rung(4, 0.5, 1.0)], 1, 1024, 2.0),
    # The disk holds it, so that smaller may be better; the knee is between.
    ([rung(4, 0.5, 1.0), rung(2, 0.9, 0.5)], 1, 1024, 1.0),
    ([rung(4, 0.5, 1.0), rung(2, 0.9, 0.5, False)], 1, 1024, 3.0),
    ([rung(4, 0.5, 1.0), rung(2, 0.9, 0.5, False), rung(3, 0.6, 0.9, False)], 1, 1024, 6.0),
    # Within floor and ceiling, and not for ever.
    ([rung(4, 0.5, 1.0)], 3, 1024, 3.0), ([rung(3, 0.5, 1.0), rung(4, 0.3, 1.0)], 3, 1024, None),
    ([rung(4, 0.5, 0.7)], 1, 6, 6.0), ([rung(4, 0.5, 0.7)], 1, 4, 2.0),
    (WITHIN, 1, 8, 8.0), ([*WITHIN, rung(1, 0.1, 0.2, False)], 1, 4, None),
])  # fmt: skip
def test_it_goes_to_where_a_better_limit_may_be(
    rungs: List[Rung], floor_mb: int, ceiling_mb: int, then: Optional[float]
) -> None:
    found = next_limit(rungs, IDLE, R, floor_mb * MB, ceiling_mb * MB)
    assert found == (None if then is None else then * MB)


def test_at_last_it_looks_just_below_the_knee() -> None:
    # Under 2 MB the flood gets half of R, so 4 MB let in all of it.
    tried = [rung(2, 0.9, 0.5, False), rung(3, 0.8, 0.75, False), rung(4, 0.4, 1.0),
             rung(6, 0.3, 1.0)]  # fmt: skip
    last = next_limit(tried, IDLE, R, MB, GB)
    assert last is not None and 3.8 * MB < last < 4 * MB
    assert next_limit([*tried, rung(last / MB, 0.7, 0.97)], IDLE, R, MB, GB) is None


# ---- what is kept ---------------------------------------------------------------


def run_of(drain: float, age_s: float = 0.0, **more: Any) -> Calibrated:
    return Calibrated(NOW - age_s, drain, **more)


def test_runs_merge_by_median(tmp_path: Path) -> None:
    path = tmp_path / "calibrations.json"
    for drain, cache in ((100.0, None), (300.0, 5.0), (110.0, 7.0)):
        add(path, "disk A", run_of(drain, cache_bytes=cache))
    add(path, "disk B", run_of(7.0))
    runs = load(path)
    found = median(runs["disk A"])
    assert found is not None and (found.drain_rate, found.cache_bytes) == (110.0, 6.0)
    assert len(runs["disk B"]) == 1 and median(()) is None


def test_old_runs_go(tmp_path: Path) -> None:
    path = tmp_path / "calibrations.json"
    add(path, "disk A", run_of(1.0, age_s=KEEP_S + 1.0))
    for drain in range(2, 4 + MOST_RUNS):
        kept = add(path, "disk A", run_of(float(drain)))
    assert [each.drain_rate for each in kept] == [4.0, 5.0, 6.0, 7.0, 8.0]
    add(path, "disk B", run_of(1.0, age_s=KEEP_S + 1.0))
    assert [each.drain_rate for each in add(path, "disk B", run_of(2.0))] == [2.0]
    assert unexpired_runs([run_of(1.0, age_s=KEEP_S + 1.0)], NOW) == ()


def test_it_seeds_what_the_daemon_begins_with_and_leaves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    old = Fact(3.0, NOW - 9.0)
    save_learned(path, {
        "disk A": Learned(drain_rate=old, cache_bytes=old, usual_sync_rate=old),
        "disk B": Learned(drain_rate=old),
    })  # fmt: skip
    seed(path, "disk A", run_of(100.0, baseline_s=1e-3))
    known = read_learned(path)
    assert known["disk A"] == Learned(
        drain_rate=Fact(100.0, NOW), baseline_s=Fact(1e-3, NOW), cache_bytes=old,
        usual_sync_rate=old,
    )  # fmt: skip
    assert known["disk B"] == Learned(drain_rate=old)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "disks": {}}',
                                  '{"version": 1, "disks": {"a": [{"wall_s": -1}]}}'])
def test_a_damaged_file_is_told_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibrations.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        add(path, "disk A", run_of(1.0))
    assert path.read_text() == text


def test_recommend_takes_the_limit_as_it_was_tried() -> None:
    found = recommend(
        [], Host(MB, 4096 * MB), {"sda": POLICY.of(Device("sda", "", ""))},
        {}, now_s=NOW, calibrated={"sda": run_of(R, tau_s=0.02, limit_bytes=1.9 * MB)},
    )  # fmt: skip
    assert found.decider is not None and found.decider.basis is Basis.CALIBRATED
    assert (found.limit_bytes, found.missing) == (int(1.9 * MB), ())
    (said,) = reason(found)
    assert "sda drains 100M/s" in said and "`calibrate` tried, 1.9M was the best" in said
    assert price(found)
    answer = as_json(found, Surroundings("host", "now", VmLimits(0, 20, 0, 10), ()))
    assert list(schema.problems(answer, schema.load("recommend"))) == []


@pytest.mark.parametrize("rows, differs, basis, limit_bytes", [
    ([row(10.0 * n, flooded_s=10.0, ours_s=0.0) for n in range(10)], {}, Basis.CALIBRATED, None),
    ([row(10.0 * n, flooded_s=4.0, ours_s=0.0) for n in range(10)], {}, Basis.OBJECTIVE, None),
    # Held, they go by what was asked for.
    ([row(10.0 * n, flooded_s=4.0, target_bytes=90.0 * MB) for n in range(180)],
     {"tau_s": 0.02}, Basis.WAVES, 96 * MB),
])  # fmt: skip
def test_waves_go_by_the_history(
    rows: List[Any], differs: Dict[str, float], basis: Basis, limit_bytes: Optional[int]
) -> None:
    name = rows[0].device
    (found,) = recommend(
        rows, Host(MB, 4096 * MB), {name: POLICY.of(Device(name, "", ""))}, {},
        calibrated={name: run_of(R, limit_bytes=2.0 * MB, **differs)},
    ).devices  # fmt: skip
    assert found.basis is basis and limit_bytes in (None, found.limit_bytes)


def test_recommend_needs_no_history_where_a_disk_was_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("writebackd.cli.recommend.scan", lambda _: (SDA,))
    ask = ["--runtime-dir", str(tmp_path), "recommend", "--state-dir", str(tmp_path)]
    assert ctl.main(ask) == BAD_NEWS
    now = time.time()
    add(tmp_path / "calibrations.json", "disk A", Calibrated(now, R, limit_bytes=2.0 * MB))
    capsys.readouterr()
    assert ctl.main(ask) == GOOD
    assert "vm.dirty_bytes = 2097152" in capsys.readouterr().out
    (tmp_path / "calibrations.json").write_text("{")
    assert ctl.main(ask) == BAD_NEWS


# ---- where it refuses -----------------------------------------------------------


def test_it_needs_a_block_device_below(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    here = replace(SDA, filesystems=((f"{os.major(number)}:{os.minor(number)}", "ext4", "/"),))
    assert device_of(tmp_path, [SDA, here]) == here
    with pytest.raises(Refused, match="is not on the filesystem of a block device"):
        device_of(Path("/proc"), [SDA, here])


def test_it_leaves_a_tenth_of_the_filesystem_free(tmp_path: Path) -> None:
    check_room(tmp_path, MB)
    with pytest.raises(Refused, match="would leave less than 10 % of the filesystem free"):
        check_room(tmp_path, 1 << 60)


@pytest.fixture
def mocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dict[str, MagicMock]:
    """What a CalibrationHost holds of this host, by class; its files are below tmp_path."""
    names = ("HostLock", "HostMonitor", "LeaseHolder", "WatcherSupervisor", "Actuator")
    mocks = {name: MagicMock() for name in names}
    for name, mock in mocks.items():
        monkeypatch.setattr(calibration_host, name, mock)
    monkeypatch.setattr(calibration_host, "KernelFiles", lambda: KernelFiles(tmp_path))
    monkeypatch.setattr(calibration_host, "TICK_S", 0.0)
    return mocks


def test_limits_that_an_earlier_daemon_kept_are_not_touched(
    tmp_path: Path, mocks: Dict[str, MagicMock]
) -> None:
    (tmp_path / "ledger.json").write_text("{}")
    with pytest.raises(Refused, match=r"in force .*: `sudo writebackctl restore` first"):
        CalibrationHost(tmp_path, SDA, MB, POLICY, tmp_path)
    assert not mocks["Actuator"].called and not mocks["LeaseHolder"].called
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ledger.json"]


def test_it_ends_when_the_kill_switch_is_there(
    tmp_path: Path, mocks: Dict[str, MagicMock]
) -> None:
    off = tmp_path / "run" / "writebackd" / "off"
    off.parent.mkdir(parents=True)
    host = CalibrationHost(tmp_path, SDA, MB, POLICY, tmp_path / "other")
    try:
        host.tick(Order())
        off.touch()
        with pytest.raises(Refused, match=f"{off} exists: remove it first"):
            host.tick(Order())
    finally:
        host.close()


@pytest.mark.parametrize("device, cause, what, start_s, refused", [
    ("sda", "device", "begin", 5.0, True),
    ("sda", "device", "begin", 15.0, False),  # of a run before the last
    ("sda", "device", "end", 5.0, False),
    ("sda", "writeback-flood", "begin", 5.0, False),
    ("sdb", "device", "begin", 5.0, False),
])  # fmt: skip
def test_it_does_not_begin_while_an_alert_stands(
    monkeypatch: pytest.MonkeyPatch, calibrated: Any, device: str, cause: str, what: str,
    start_s: float, refused: bool,
) -> None:
    alert = {
        "name": "STALL", "device": device, "severity": "critical", "cause": cause, "since": 10.0,
        "summary": "", "done": "", "culprits": [], "evidence": {}, "runbook": "",
    }  # fmt: skip
    record = json.dumps({"id": "a", "time": 10.0, "what": what, "alert": alert})
    monkeypatch.setattr(verb, "read_alerts", lambda *_: [record])
    monkeypatch.setattr(verb, "read_history", lambda _: [Event(start_s, "start")])
    assert calibrated(FOUND)[0] == (BAD_NEWS if refused else GOOD)


def test_it_does_not_begin_where_the_alerts_cannot_be_read(
    tmp_path: Path, calibrated: Any
) -> None:
    assert calibrated(FOUND)[0] == GOOD  # no history at all
    (tmp_path / "history.db").write_bytes(b"no database" * 999)
    assert calibrated(FOUND)[0] == BAD_NEWS


@pytest.mark.parametrize("words, code", [
    (["--budget", "8"], USAGE), (["--budget", "eight"], USAGE), (["--time", "10s"], USAGE),
    (["--directory", "/proc"], BAD_NEWS), (["--directory", "/etc/passwd"], USAGE),
    (["--directory", "/no/such/place"], USAGE),
])  # fmt: skip
def test_wrong_words_are_told(
    words: List[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(verb, "in_force", lambda *_: POLICY)
    given = ["--runtime-dir", str(tmp_path), "calibrate", "--directory", str(tmp_path), *words]
    assert ctl.main(given) == code
    told = capsys.readouterr().err
    assert told.startswith("writebackctl: calibrate: ") and "Errno" not in told


def test_it_needs_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert ctl.main(["calibrate", "--directory", str(tmp_path)]) == NOT_PERMITTED
    assert "try again with sudo" in capsys.readouterr().err


# ---- the loads ------------------------------------------------------------------

_LOADED = """
import sys, time
from pathlib import Path
from writebackd.cli.calibration_host import Loads
loads = Loads(Path(sys.argv[1]), 32 << 20)
loads.order(True, 0.0, 0)
while loads.written_bytes < 32 << 20 or not loads.syncs:
    time.sleep(0.01)
print(*loads.pids, flush=True)
time.sleep(60)
"""


def until(done: Any) -> None:
    deadline = time.monotonic() + 30.0
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_the_loads_write_what_they_may_and_end_with_whoever_began_them(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", _LOADED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with started:
        assert started.stdout is not None
        pids = started.stdout.readline().split()
        assert len(pids) == 2 and all(map(is_alive, pids))
        assert list(tmp_path.iterdir()) == [], "a file has a name"
        started.send_signal(signal.SIGKILL)
    until(lambda: not any(map(is_alive, pids)))


@pytest.fixture
def loads(tmp_path: Path) -> Iterator[Loads]:
    loads = Loads(tmp_path, 8 << 20)
    yield loads
    loads.close()
    assert not any(is_alive(str(pid)) for pid in loads.pids)


def make_ready(loads: Loads) -> None:
    loads.order(False, None, 0)
    until(lambda: loads.ready)


def test_a_load_stays_within_its_budget_and_rests_when_told(loads: Loads) -> None:
    make_ready(loads)
    assert (loads.written_bytes, loads.syncs) == (0, 0)
    loads.order(True, None, 0)
    until(lambda: loads.written_bytes == 8 << 20)
    loads.order(True, 0.001, 0)
    until(lambda: loads.syncs > 3)
    assert loads.written_bytes == 8 << 20 and loads.problem == ""


def used(loads: Loads) -> List[int]:
    return [os.fstat(file.fileno()).st_size for file in loads._files]


def test_the_loads_write_nothing_before_they_are_told(loads: Loads) -> None:
    time.sleep(0.2)
    assert not loads.ready and used(loads) == [0, 0]
    make_ready(loads)
    assert used(loads)[1] > 0


def test_the_loads_rest_when_nobody_orders_any_more(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where the command is stopped, or hangs: then the watcher restores the limits.
    def is_still() -> bool:
        before = loads.written_bytes, loads.syncs
        time.sleep(0.3)
        return before == (loads.written_bytes, loads.syncs)

    make_ready(loads)
    loads.order(False, 0.0, 0)
    until(lambda: loads.syncs)
    monkeypatch.setattr("writebackd.cli.calibration_host.ORDER_S", 0.0)
    loads.order(True, 0.0, 0)
    until(is_still)
    assert loads.written_bytes < 8 << 20


def test_a_sync_counts_as_dirty_for_its_block_alone(loads: Loads) -> None:
    # Of a folio of 2 MB all would count, and a limit of 2 MB leave a flood nothing.
    def accounted() -> int:
        account = Path(f"/proc/{loads.pids[1]}/io").read_text()
        return int(account.split("\nwrite_bytes: ")[1].split()[0])

    make_ready(loads)
    begun, before = loads.syncs, accounted()
    loads.order(False, 0.0, 0)
    until(lambda: loads.syncs >= begun + 20)
    dirtied = accounted() - before
    assert dirtied <= 2 * 4096 * (loads.syncs - begun + 1)


@pytest.mark.parametrize("which", [0, 1])
def test_a_load_that_is_killed_is_told(loads: Loads, which: int) -> None:
    assert loads.problem == ""
    os.kill(loads.pids[which], signal.SIGKILL)
    until(lambda: loads.problem)
    assert loads.problem == f"load (pid {loads.pids[which]}) was killed"


# ---- what it prints -------------------------------------------------------------


class FakeHost:
    """Ends the calibration at once, with a result."""

    own = Own()

    def __init__(self, *_: Any) -> None:
        self.done: List[str] = []

    def make_ready(self) -> None:
        pass

    def tick(self, order: Order) -> Any:
        return None

    def restore(self) -> None:
        self.done.append("restore")

    def close(self) -> None:
        self.done.append("close")


FOUND = Result(
    device="sda", seconds=80.0, written_bytes=7 << 30, idle=rung(0, 1.0, 0.0),
    ladder_idle_rate=IDLE, drain_rate=R, drain_rate_most=None, cache_bytes=512.0 * MB,
    cache_most_bytes=None, tau_s=0.02, rungs=(rung(1, 0.8, 0.6), rung(2, 0.7, 0.97)),
    limit_bytes=2 * MB,
)  # fmt: skip


@pytest.fixture
def calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    def run(
        result: Result, *words: str, device: Device = SDA, problem: str = "", host: Any = FakeHost
    ) -> Any:
        def step(self: Calibration, *_: Any) -> Order:
            if problem == "interrupted":
                raise KeyboardInterrupt
            self.phase, self.problem = Phase.DONE, problem or None
            return Order()

        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(verb, "in_force", lambda *_: POLICY)
        monkeypatch.setattr(verb, "device_of", lambda *_: device)
        monkeypatch.setattr(verb, "check_room", lambda *_: None)
        monkeypatch.setattr(verb, "CalibrationHost", host)
        monkeypatch.setattr(Calibration, "step", step)
        monkeypatch.setattr(Calibration, "result", lambda _: result)
        code = ctl.main(["--runtime-dir", str(tmp_path), "calibrate", "--directory", "/srv",
                         "--state-dir", str(tmp_path), *words])  # fmt: skip
        return code, capsys.readouterr().out

    return run


def test_it_says_first_what_it_will_write_and_then_what_it_found(
    calibrated: Any, tmp_path: Path
) -> None:
    code, text = calibrated(FOUND)
    assert code == GOOD
    first, *rest = text.splitlines()
    assert first.startswith("calibrate of sda: writes up to 8.1G to unlinked files in /srv")
    whole = " ".join(" ".join(rest).split())
    assert "drains 100M/s, behind a write cache that took 512M" in whole
    assert "limit vm.dirty_bytes = 2097152, vm.dirty_background_bytes = 1048576 (2.0M)" in whole
    assert "price fsyncs at 70 % of their idle rate, the flood at 97 % of the drain rate" in whole
    assert "kept 1 run: 100M/s, cache 512M, limit 2.0M" in whole
    assert load(tmp_path / "calibrations.json")["disk A"][0].limit_bytes == 2 * MB
    assert read_learned(tmp_path / "learned.json")["disk A"].drain_rate is not None


def test_data_follow_the_schema(calibrated: Any) -> None:
    code, text = calibrated(FOUND, "--json")
    answer: Dict[str, Any] = json.loads(text)
    assert code == GOOD and answer["kept"]["runs"] == 1
    assert list(schema.problems(answer, schema.load("calibrate"))) == []


NOTHING = replace(
    FOUND, drain_rate=None, drain_rate_most=3 * R, cache_bytes=None, tau_s=None, rungs=(),
    limit_bytes=None, problems=("after 8.0G in 9.5s the write cache was not full",),
)  # fmt: skip


@pytest.mark.parametrize("result, device, problem, code", [
    (NOTHING, SDA, "", BAD_NEWS),
    (replace(FOUND, problems=("dd writes",)), SDA, "dd writes", BAD_NEWS),
    (replace(FOUND, problems=("interrupted",)), SDA, "interrupted", 130),
    (FOUND, replace(SDA, identity=None), "", BAD_NEWS),
])  # fmt: skip
def test_nothing_is_kept_of_what_is_not_whole_or_not_told_apart(
    calibrated: Any, tmp_path: Path, result: Result, device: Device, problem: str, code: int
) -> None:
    told, text = calibrated(result, "--json", device=device, problem=problem)
    answer = json.loads(text)
    assert told == code and answer["kept"] is None and answer["problems"]
    assert list(schema.problems(answer, schema.load("calibrate"))) == []
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("failure", [None, OSError("no space"), KeyError("x")])
def test_the_result_is_kept_before_a_daemon_may_start_and_with_the_limits_restored(
    calibrated: Any, monkeypatch: pytest.MonkeyPatch, failure: Optional[Exception]
) -> None:
    hosts: List[FakeHost] = []

    class Seen(FakeHost):
        def __init__(self, *_: Any) -> None:
            super().__init__()
            hosts.append(self)

    def keep(*_: Any) -> None:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        hosts[0].done.append("keep")
        if failure is not None:
            raise failure

    monkeypatch.setattr(verb, "seed", keep)
    before = signal.getsignal(signal.SIGINT)
    if isinstance(failure, KeyError):
        with pytest.raises(KeyError):
            calibrated(FOUND, host=Seen)
    else:
        code, text = calibrated(FOUND, host=Seen)
        assert code == (GOOD if failure is None else BAD_NEWS)
        assert ("the daemon starts from them" in " ".join(text.split())) is (failure is None)
    assert hosts[0].done == ["restore", "keep", "close"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("damaged, runs", [("learned.json", 1), ("calibrations.json", None)])
def test_a_damaged_file_is_named_and_what_is_kept_is_told(
    calibrated: Any, tmp_path: Path, damaged: str, runs: Optional[int]
) -> None:
    (tmp_path / damaged).write_text("{")
    code, text = calibrated(FOUND, "--json")
    answer = json.loads(text)
    assert code == BAD_NEWS and (answer["kept"] or {}).get("runs") == runs
    (problem,) = answer["problems"]
    assert problem.startswith(f"the result is not kept in {tmp_path / damaged}: ")
    assert f"mv {tmp_path / damaged} {tmp_path / damaged}.old" in problem


def test_syncs_and_their_time_are_read_at_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mocks: Dict[str, MagicMock]
) -> None:
    loads = MagicMock(syncs=100, sync_s=1.0, written_bytes=0, pids=(), problem="")
    monkeypatch.setattr(calibration_host, "Loads", lambda *_: loads)

    def slow(*_: Any) -> MagicMock:
        loads.syncs, loads.sync_s = 150, 1.5
        return MagicMock()

    mocks["HostMonitor"].return_value.read = slow
    host = CalibrationHost(tmp_path, SDA, MB, POLICY, tmp_path)
    host.tick(Order())
    host.close()
    assert (host.own.syncs, host.own.sync_s, host.own.unsure) == (100, 1.0, 50)


def test_a_budget_is_what_its_words_say(calibrated: Any) -> None:
    seen: List[Optional[Budget]] = []

    class Host(FakeHost):
        def __init__(self, directory: Path, device: Device, budget_bytes: int, *_: Any) -> None:
            super().__init__()
            seen.append(Budget(budget_bytes, 0.0))

    assert calibrated(FOUND, "--budget", "2G", "--time", "1min", host=Host)[0] == 0
    assert seen == [Budget(2 << 30, 0.0)]
