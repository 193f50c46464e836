# SPDX-License-Identifier: GPL-2.0-or-later
"""What recommend makes of a history, and what of it is enough; its screen and its files."""

from __future__ import annotations

import ast
import configparser
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import pytest

import schema
from figure_cases import BEGIN_S, EVIL, SLOW, days, row, rows
from history_cases import written
from writebackd.actuate.ledger import Ledger, boot_id
from writebackd.cli import ctl
from writebackd.cli import recommend as verb
from writebackd.kernel.conflicting_tools import ConflictingTool
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.tuned_profiles import TunedLine
from writebackd.paths import FIRST
from writebackd.policy import check, load_policy
from writebackd.report.alert_answers import blamed, sentence
from writebackd.report.device_figures import Figures
from writebackd.report.history_schema import Event
from writebackd.report.learned_store import save_learned
from writebackd.report.recommendation import (
    Basis,
    Host,
    Recommendation,
    price,
    reason,
    recommend,
    stepped,
)
from writebackd.report.recommendation_files import (
    FILES,
    MADE_BY,
    Surroundings,
    as_json,
    contradicting,
    device_lines,
    undo,
    undone_to,
)
from writebackd.report.timeline import drain_spans, pin_spans
from writebackd.safe_files import save_json
from writebackd.types.device_memory import Fact, Learned
from writebackd.types.levers import VmLimits
from writebackd.types.storage import Device

POLICY = load_policy("default")
MB = 1 << 20
DAY = 86_400.0
HOST = Host(1 * MB, 4096 * MB)
RATIOS = VmLimits(0, 20, 0, 10)
AROUND = Surroundings("host", "2026-11-26 10:00", RATIOS, ())
SDA = Device("sda", "8:0", "8:0")
LOOP = Device("loop0", "7:0", "7:0", driver="loop")
TUNED = ConflictingTool("warning", "tuned", "mine", "vm.dirty_ratio=40", "/etc/x:3", "tuned sets")


def advise(found: Sequence[Figures], host: Host = HOST, **more: Any) -> Recommendation:
    own = {each.device: POLICY.of(Device(each.device, "", "")) for each in found}
    return recommend(found, host, own, more.pop("learned", {}), **more)


def held(count: int = 60, **more: object) -> List[Figures]:
    """Three floods of 200 s beside fsyncs over more than a day, under a limit of 4 MB."""
    plain: Dict[str, object] = {"target_bytes": 5.0 * MB, **more}
    return [
        row(day * DAY + 10.0 * number, **plain)
        for day in range(3) for number in range(count // 3)
    ]  # fmt: skip


def loose(**more: object) -> List[Figures]:
    """The same while it only observes."""
    plain = {"ours_s": 0.0, "limit_bytes": 4.7e9, "drain_rate": None, "latency": SLOW}
    return [replace(each, **more) for each in held(60, **plain)]  # type: ignore[arg-type]


# ---- the limit ---------------------------------------------------------------


def test_the_limit_is_the_knee_that_held_floods_show() -> None:
    found = advise(held())
    (device,) = found.devices
    # 4 MB at 240e6 B/s is a tau of 17.5 ms, and R is 250e6.
    assert device.tau_s == pytest.approx(4 * MB / 2.4e8)
    assert device.knee_bytes == pytest.approx(2.5e8 * 4 * MB / 2.4e8)
    assert (found.limit_bytes, found.background_bytes) == (4 * MB, 2 * MB)
    assert device.basis is Basis.KNEE and not found.missing
    assert "4.2M" in " ".join(reason(found))


def test_the_knee_is_where_the_limit_was_tightest_for_its_rate() -> None:
    wide = held(limit_bytes=64.0 * MB)
    found = advise(sorted([*wide, *held(12)], key=lambda each: each.wall_s))
    assert found.limit_bytes == 4 * MB


def test_after_observe_mode_it_is_what_drains_in_the_objective() -> None:
    found = advise(loose())
    (device,) = found.devices
    assert device.basis is Basis.OBJECTIVE and device.tau_s is None
    assert device.drain_rate == 2.4e8
    # 240e6 B/s for 20 ms / 0.75 are 6.1 MB.
    assert found.limit_bytes == 6 * MB and not found.missing
    assert "No limit was tried" in " ".join(reason(found))
    slow = advise(loose(baseline_s=6e-3))  # 60 ms are good enough there
    assert slow.limit_bytes == 16 * MB


def test_in_waves_it_is_what_the_device_asked_for() -> None:
    waves = held(180, flooded_s=4.0, target_bytes=90.0 * MB)
    waves[7] = replace(waves[7], flooded_s=10.0)  # one row without a pause is no knee
    found = advise(waves)
    assert found.limit_bytes == 96 * MB
    assert found.devices[0].basis is Basis.WAVES and found.devices[0].tau_s is None


def test_a_device_without_figures_of_its_own_drains_what_was_learned() -> None:
    calm = held(flooded_s=0.0, drain_rate=None)
    learned = Learned(drain_rate=Fact(1e8, BEGIN_S), cache_bytes=Fact(5e8, BEGIN_S))
    found = advise(calm, learned={"sda": learned}, now_s=BEGIN_S + 3 * DAY)
    (device,) = found.devices
    assert (device.drain_rate, device.drain_age_s) == (1e8, 3 * DAY)
    assert device.cache_bytes == 5e8
    assert found.limit_bytes is None and not found.settings  # no flood met an fsync


def test_where_no_cache_was_ever_full_the_drain_rate_is_what_floods_got() -> None:
    found = advise(held(drain_rate=None, write_rate=2e9, limit_bytes=32.0 * MB))
    (device,) = found.devices
    assert (device.drain_rate, device.basis) == (2e9, Basis.KNEE)
    assert found.limit_bytes == 32 * MB and not found.missing


def test_of_several_devices_the_largest_limit_starves_no_writer() -> None:
    fast = held(device="sdb", limit_bytes=32.0 * MB, write_rate=1.6e9, drain_rate=1.6e9)
    brief = held(3, device="sdc", limit_bytes=512.0 * MB)  # 30 s of floods: no say
    both = sorted([*held(), *fast, *brief], key=lambda each: each.wall_s)
    found = advise(both)
    assert found.decider is not None and found.decider.name == "sdb"
    assert found.limit_bytes == 32 * MB
    assert "sda alone would need 4.0M" in " ".join(reason(found))
    assert "sdc" not in " ".join(reason(found))


def test_floor_and_ceiling_hold_and_are_named() -> None:
    assert advise(held(), Host(8 * MB, 4096 * MB)).limit_bytes == 8 * MB
    cut = advise(held(), Host(1 * MB, 2 * MB))
    assert (cut.limit_bytes, cut.bounded) == (2 * MB, "ceiling")
    assert "ceiling" in " ".join(reason(cut))


def test_trials_and_pins_say_nothing() -> None:
    span = (BEGIN_S, BEGIN_S + 10 * DAY)
    assert advise(held(), orders=[span]).limit_bytes is None
    assert advise(held(), trials=[span]).limit_bytes is None
    events = [
        Event(10.0, "pin", text="pinned to 5 bytes by uid 0"), Event(20.0, "action"),
        Event(30.0, "pin", text="released by uid 0"), Event(50.0, "pin", text="pinned to 5 bytes"),
        Event(60.0, "mode", text="observe"), Event(70.0, "trial", text="begins"),
    ]  # fmt: skip
    assert pin_spans(events) == [(10.0, 30.0), (50.0, 60.0)]


def test_a_drain_lasts_until_it_ends_or_is_released() -> None:
    events = [
        Event(10.0, "drain", text="drain of sda by uid 0"), Event(15.0, "decision"),
        Event(20.0, "drain", text="drain ended by uid 0"),
        Event(30.0, "drain", text="drain of sda by uid 0"),
        Event(35.0, "drain", text="drain of sda, sdb by uid 0"),
        Event(40.0, "pin", text="released by uid 0"), Event(50.0, "drain", text="drain of sda"),
        Event(60.0, "mode", text="observe"), Event(70.0, "trial", text="begins"),
    ]  # fmt: skip
    assert drain_spans(events) == [(10.0, 20.0), (30.0, 35.0), (35.0, 40.0), (50.0, 60.0)]


def test_the_verb_leaves_out_pins_and_drains(tmp_path: Path, run: Run) -> None:
    for kind, text in (("pin", "pinned to 5 bytes by uid 0"), ("drain", "drain of sda by uid 0")):
        path = written(tmp_path / "history.db", [Event(BEGIN_S - 1, kind, text=text),
                                                 *days(BEGIN_S)])  # fmt: skip
        code, out, _ = run()
        assert code == 1 and "a flood with commits on one device: none" in out
        path.unlink()


def test_the_id_survives_noise_and_no_other_limit() -> None:
    first = advise(held())
    noisy = [replace(each, write_rate=each.write_rate * (1 + 0.05 * (-1) ** number))
             for number, each in enumerate(held())]  # fmt: skip
    assert first.id is not None and advise(noisy).id == first.id
    assert advise(held(limit_bytes=8.0 * MB)).id != first.id
    assert advise(loose()).id != first.id


@pytest.mark.parametrize(
    "wanted, step", [(1 * MB, 1), (1.3 * MB, 1.5), (1.9 * MB, 2), (5.2 * MB, 6), (100 * MB, 96)]
)
def test_limits_come_in_steps(wanted: float, step: float) -> None:
    assert stepped(wanted) == step * MB


# ---- enough ------------------------------------------------------------------


@pytest.mark.parametrize("found, says", [
    ([], "a flood with commits"),
    (held(flooded_s=0.0), "a flood with commits"),
    (rows(60), "1d0h of history"),
    (held(24), "5m0s of floods"),
    ([row(0.0), *(row(2 * DAY + 10.0 * n) for n in range(60))], "3 floods"),
])  # fmt: skip
def test_what_would_make_it_enough_is_said(found: List[Figures], says: str) -> None:
    assert says in "; ".join(advise(found).missing)


def test_floods_that_show_no_limit_are_not_enough() -> None:
    """In waves tau is not seen, and rows may be without what the device asked for."""
    found = advise(held(180, flooded_s=4.0, target_bytes=None))
    assert found.observed_s >= DAY and found.devices[0].held_s >= 300.0
    assert not found.settings and found.decider is None
    (said,) = found.missing
    assert said.startswith("a limit for sda: ")


def test_a_disk_that_hangs_has_no_drain_rate() -> None:
    """fsyncs wait, nothing is written, and no limit is held: no rate, rather than one of 0."""
    hung = loose(write_rate=0.0, target_bytes=4.0 * MB)
    found = advise(hung)
    assert found.devices[0].drain_rate is None and not found.settings and not price(found)
    assert "the drain rate of sda" in "; ".join(found.missing)
    assert "instead of" in " ".join(device_lines(found.devices[0], AROUND))
    # Beside rows that wrote it counts for nothing, where most are hung as well.
    both = sorted([*hung, *loose(wall_s=BEGIN_S + DAY / 2)[:2]], key=lambda each: each.wall_s)
    assert advise(both).devices[0].drain_rate == 2.4e8


def test_one_long_flood_is_enough() -> None:
    assert not advise([row(0.0), *(row(2 * DAY + 10.0 * n) for n in range(361))]).missing


# ---- price -------------------------------------------------------------------


def test_the_price_is_of_this_host() -> None:
    alone = held(flooded_s=10.0, device="sdb", latency=type(row(0.0).latency)())
    found = advise(sorted([*held(), *alone], key=lambda each: each.wall_s))
    said = " ".join(price(found))
    # 0.75 x 4 MB / 250e6 B/s; 4 MB / 17.5 ms; measured: the upper bucket of FAST, and 240e6 B/s.
    assert "sda: fsync p99 about 13 ms" in said and "writers 229M/s of 238M/s" in said
    assert "writebackd had 2.4 ms and 229M/s" in said
    assert "10m0s of floods had no commits" in said and "sdb" not in said
    assert not price(advise([]))


def test_floods_of_a_pin_are_not_floods_that_met_no_fsync() -> None:
    pinned = held(device="sdb")
    span = (pinned[20].wall_s, pinned[40].wall_s)  # 200 s of the 600
    said = " ".join(price(advise(pinned, orders=[span])))
    assert "fsync p99" in said and "had no commits" not in said


# ---- files -------------------------------------------------------------------


def test_a_sysctl_file_has_the_two_lines_and_the_way_back() -> None:
    text = FILES["sysctl"](advise(held()), replace(AROUND, conflicts=(TUNED,)))
    plain = [line for line in text.splitlines() if not line.startswith("#")]
    assert plain == ["vm.dirty_bytes = 4194304", "vm.dirty_background_bytes = 2097152"]
    assert "\n# undo: sysctl -w vm.dirty_ratio=20 vm.dirty_background_ratio=10\n" in text
    assert "# conflict: tuned sets" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_undo_puts_back_the_form_that_was_found() -> None:
    assert undo(VmLimits(8 * MB, 0, 0, 5)) == (
        "sysctl -w vm.dirty_bytes=8388608 vm.dirty_background_ratio=5"
    )


@pytest.mark.parametrize("form", FILES)
def test_no_name_of_a_device_makes_a_line_of_its_own(form: str) -> None:
    text = FILES[form](advise(held(device=f"{EVIL}\nvm.dirty_ratio = 90\n")), AROUND)
    assert not [line for line in text.splitlines() if line.startswith("vm.dirty_ratio")]
    assert text.replace("\n", "").isprintable()


def test_a_tuned_profile_takes_out_what_it_inherits() -> None:
    lines = [
        TunedLine("sysctl", "sysctl", "vm.dirty_ratio", "vm.dirty_ratio", "/x:3", "40"),
        TunedLine("other", "sysctl", "vm/dirty_ratio", "vm.dirty_ratio", "/x:5", "30"),
        TunedLine("vm", "vm", "dirty_bytes", "vm.dirty_bytes", "/x:9", "100"),
    ]
    around = replace(AROUND, tuned_base=("base", "mine"), inherited=lines)
    parsed = configparser.ConfigParser()
    parsed.read_string(FILES["tuned"](advise(held()), around))
    assert parsed["main"]["include"] == "base,mine"
    assert dict(parsed["sysctl"]) == {
        "drop": "vm.dirty_ratio", "vm.dirty_bytes": "4194304",
        "vm.dirty_background_bytes": "2097152",
    }  # fmt: skip
    assert dict(parsed["other"]) == {"type": "sysctl", "drop": "vm/dirty_ratio"}
    assert dict(parsed["vm"]) == {"drop": "dirty_bytes"}
    other = replace(TUNED, kind="boot", text="sysctl.d sets")
    text = FILES["tuned"](advise(held()), replace(around, conflicts=(TUNED, other)))
    assert "sysctl.d sets" in text and "tuned sets" not in text
    alone = FILES["tuned"](advise(held()), AROUND)
    assert "include" not in alone and "drop" not in alone


WAVES = held(180, flooded_s=4.0, target_bytes=900.0 * MB)  # a step of 1 GB: 4.3 s of R


@pytest.mark.parametrize("found, rest, delay_s", [(held(), 4, 0.017), (WAVES, 1024, 0.5)])
def test_the_drop_in_is_a_part_of_every_policy(
    tmp_path: Path, found: List[Figures], rest: int, delay_s: float
) -> None:
    path = tmp_path / "all.conf.d" / "50-recommend.conf"
    path.parent.mkdir()
    path.write_text(FILES["policy"](advise(found), AROUND))
    assert check(str(path), None) == []
    own = load_policy("default", tmp_path).of(Device("sda", "8:0", "8:0"))
    assert (own.rest_bytes, own.allowed_delay_s) == (rest * MB, delay_s)


@pytest.mark.parametrize("found", [held(), loose(), [], held(flooded_s=0.0)])
def test_data_follow_the_schema(found: List[Figures]) -> None:
    around = replace(AROUND, conflicts=(TUNED,), blamed={"sda": [("dd", 2)]})
    answer = json.loads(json.dumps(as_json(advise(found), around)))
    assert list(schema.problems(answer, schema.load("recommend"))) == []


def test_only_what_says_otherwise_contradicts() -> None:
    same = ConflictingTool("note", "boot", "sysctl.d", "vm.dirty_bytes=4194304", "a:1", "same")
    other = replace(same, setting="vm.dirty_bytes=15728640", text="other")
    queue = replace(same, name="udev", setting="bdi/max_ratio=8", text="bdi")
    agent = ConflictingTool("warning", "agent", "ktune", None, "pid 1", "ktune runs")
    harmless = replace(agent, level="note", name="bpftune")
    found = contradicting(advise(held()), (same, other, queue, agent, harmless, TUNED))
    assert [each.text for each in found] == ["other", "ktune runs", "tuned sets"]


# ---- who did it --------------------------------------------------------------


def past(began: float, *culprits: object, device: str = "sda", **more: object) -> Dict[str, Any]:
    return {"began": began, "device": device, "causes": ["writeback-flood"],
            "culprits": list(culprits), **more}  # fmt: skip


def test_culprits_are_counted_once_an_alert() -> None:
    dd = {"comm": "dd", "unit": "backup.service", "container": None}
    alerts = [
        past(5.0, dd, dd), past(6.0, dd, {"comm": None, "unit": "x.scope"}), past(7.0, dd),
        past(99.0, dd), past(6.0, dd, device="sdb"), past(6.0, dd, causes=["device"]),
        past(6.0, "damaged", {"comm": None}),
    ]  # fmt: skip
    found = blamed(alerts, "sda", 0.0, 10.0)
    assert found == [("dd (backup.service)", 3), ("x.scope", 1)]
    assert sentence(found) == (
        "Alerts blamed on floods named dd (backup.service) in 3, x.scope in 1."
    )
    assert sentence([]) == ""


# ---- the verb ----------------------------------------------------------------

Run = Callable[..., Tuple[int, str, str]]


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/etc of a host with the kernel of this one."""
    root = tmp_path / "root"
    root.mkdir()
    for name in ("proc", "sys"):
        (root / name).symlink_to(f"/{name}")
    monkeypatch.setattr(verb, "KernelFiles", lambda: KernelFiles(root))
    return root / "etc"


@pytest.fixture
def run(
    tmp_path: Path, etc: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """recommend on a history in `tmp_path` of a host with sda: (exit code, stdout, stderr)."""
    monkeypatch.setattr(verb, "scan", lambda _: (SDA, LOOP))

    def call(*words: str) -> Tuple[int, str, str]:
        code = ctl.main([
            "--runtime-dir", str(tmp_path), "recommend", "--state-dir", str(tmp_path),
            "--since", "2020-01-01", *words,
        ])  # fmt: skip
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return written(tmp_path / "history.db", days(BEGIN_S))


def test_the_screen_says_the_limit_why_and_the_way_back(history: Path, run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.startswith("vm.dirty_bytes = 4194304, vm.dirty_background_bytes = 2097152 (4.0M")
    for word in ("wb-", "undo     sysctl -w vm.dirty_", "price", "evidence 2d0h", "sda"):
        assert word in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_only_managed_devices_of_this_host_decide(tmp_path: Path, run: Run) -> None:
    large = {"sdz": 512.0 * MB, "loop0": 256.0 * MB, "sdx": 128.0 * MB}
    others = [
        replace(each, device=name, limit_bytes=limit)
        for name, limit in large.items() for each in days(BEGIN_S)
    ]  # fmt: skip
    written(tmp_path / "history.db", [*days(BEGIN_S), *others])
    drop_in = tmp_path / "etc" / "all.conf.d" / "x.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[devices]\nexclude = loop*\n")
    for words, why in (((), "loop device:"), (("--config-dir", str(tmp_path / "etc")), "'loop*'")):
        code, out, _ = run(*words)
        assert code == 0 and out.startswith("vm.dirty_bytes = 4194304,")
        assert "Left out: " in out and why in out and "sdz (not on this host now)" in out
        assert "sdz: " not in out and "sdz alone" not in out
    answer = json.loads(run("--json")[1])
    assert list(schema.problems(answer, schema.load("recommend"))) == []
    assert [each["name"] for each in answer["left_out"]] == ["loop0", "sdx", "sdz"]
    # Who names one has it: of a disk that is gone, or a copy of another host's history.
    code, out, _ = run("--device", "sdz")
    assert code == 0 and out.startswith("vm.dirty_bytes = 536870912,") and "Left out" not in out


def test_a_history_of_other_disks_says_why_it_is_not_enough(tmp_path: Path, run: Run) -> None:
    written(tmp_path / "history.db", (replace(each, device="sdz") for each in days(BEGIN_S)))
    code, _, err = run("--format", "sysctl", "-o", str(tmp_path / "file"))
    assert code == 1 and "none so far. Left out: sdz (not on this host now)" in err


def test_what_was_learned_of_other_disks_is_of_no_use_here(history: Path, run: Run) -> None:
    known = {"none of this host": Learned(cache_bytes=Fact(5e8, BEGIN_S))}
    save_learned(history.parent / "learned.json", known)
    assert run()[0] == 0
    (history.parent / "learned.json").write_bytes(b"{")
    code, out, _ = run()
    assert code == 0 and "wb-" in out


def test_thin_evidence_is_exit_code_1_and_makes_no_file(tmp_path: Path, run: Run) -> None:
    written(tmp_path / "history.db", rows(60))
    code, out, _ = run()
    assert code == 1 and "\nmissing  1d0h of history" in out
    for form in ("text", "json", *FILES):
        code, out, err = run("--format", form, "-o", str(tmp_path / "file"))
        assert (code, out) == (1, "") and "evidence; still needed: 1d0h of history" in err
        assert not (tmp_path / "file").exists()
    assert run("--format", "sysctl")[:2] == (1, "")
    code, out, err = run("--json")
    assert code == 1 and json.loads(out)["enough"] is False


@pytest.mark.parametrize("form", ["text", "json", *FILES])
def test_it_replaces_its_own_files_only(history: Path, run: Run, form: str) -> None:
    file = history.parent / "file"
    for _ in range(2):
        assert run("--format", form, "-o", str(file)) == (0, "", "")
    assert "wb-" in file.read_text()
    file.write_text("vm.swappiness = 10\n")
    code, _, err = run("--format", form, "-o", str(file))
    assert code == 1 and "remove it, or" in err and file.read_text() == "vm.swappiness = 10\n"


@pytest.mark.parametrize(
    "device, name, says",
    [("sda", "all.conf.d/50-recommend", "does not end in .conf"),
     ("sd a", "file", "all.conf.d/50-recommend.conf:"),
     ("sd a", "default.conf.d/x.conf", "default.conf.d/x.conf:")],
)  # fmt: skip
def test_a_drop_in_that_no_daemon_starts_with_is_not_written(
    tmp_path: Path, run: Run, device: str, name: str, says: str
) -> None:
    written(tmp_path / "history.db", (replace(each, device=device) for each in days(BEGIN_S)))
    file = tmp_path / "etc" / name
    file.parent.mkdir(parents=True)
    ask = ("--config-dir", str(tmp_path / "etc"), "--format", "policy", "-o", str(file))
    code, _, err = run(*ask, "--device", device)
    assert code == 1 and "no policy file: " in err and says in err and "/proc" not in err
    assert not file.exists()


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_our_tuned_profile_never_includes_itself(history: Path, run: Run, etc: Path) -> None:
    put(etc / "tuned" / "mine" / "tuned.conf", "[main]\ninclude=base\n[vm]\ndirty_ratio=10\n")
    put(etc / "tuned" / "active_profile", "mine\n")
    own, elsewhere = etc / "tuned" / "wb" / "tuned.conf", history.parent / "tuned.conf"
    own.parent.mkdir()
    for _ in range(3):
        assert run("--format", "tuned", "-o", str(own)) == (0, "", "")
        assert "\ninclude=mine\n" in own.read_text() and "drop=dirty_ratio" in own.read_text()
        put(etc / "tuned" / "active_profile", "wb\n")
    assert run("--format", "tuned", "-o", str(elsewhere))[0] == 0
    assert "\ninclude=mine\n" in elsewhere.read_text()


@pytest.mark.parametrize("active", ["mine", "other", "other mine"])
def test_a_profile_that_the_active_one_includes_is_not_replaced(
    history: Path, run: Run, etc: Path, active: str
) -> None:
    own, elsewhere = (etc / "tuned" / name / "tuned.conf" for name in ("wb", "wb2"))
    own.parent.mkdir(parents=True)
    elsewhere.parent.mkdir()
    put(etc / "tuned" / "base" / "tuned.conf", "[main]\n")
    put(etc / "tuned" / "active_profile", "base\n")
    assert run("--format", "tuned", "-o", str(own)) == (0, "", "")
    put(etc / "tuned" / "mine" / "tuned.conf", "[main]\ninclude=-wb\n")
    put(etc / "tuned" / "other" / "tuned.conf", "[main]\ninclude=mine\n")
    put(etc / "tuned" / "active_profile", f"{active}\n")
    before = own.read_text()
    code, _, err = run("--format", "tuned", "-o", str(own))
    assert code == 1 and f"profile {active.split()[0]} includes {own}, which" in err
    assert own.read_text() == before
    assert run("--format", "tuned", "-o", str(elsewhere)) == (0, "", "")
    # Ours, which is replaced, is read first: nothing below is lost.
    put(etc / "tuned" / "active_profile", "wb\n")
    assert run("--format", "tuned", "-o", str(own)) == (0, "", "")


@pytest.mark.parametrize("link", [False, True])
def test_a_file_does_not_contradict_the_one_that_it_replaces(
    history: Path, run: Run, etc: Path, link: bool
) -> None:
    file = put(etc / "sysctl.d" / "90-writebackd.conf", f"# {MADE_BY}\nvm.dirty_bytes=8388608\n")
    put(etc / "sysctl.d" / "95-other.conf", "vm.dirty_background_bytes=1048576\n")
    output = file
    if link:
        (history.parent / "link").symlink_to(etc / "sysctl.d")
        output = history.parent / "link" / file.name
    assert "conflict: vm.dirty_bytes=8388608 is" in run("--format", "sysctl")[1]
    assert run("--format", "sysctl", "-o", str(output))[0] == 0
    said = " ".join(file.read_text().replace("\n# ", " ").split())
    assert "vm.dirty_bytes=8388608" not in said and "90-writebackd" not in said
    assert "conflict: vm.dirty_background_bytes=1048576 is set at boot" in said


def left_ledger(place: Path, originals: VmLimits, boot: str) -> None:
    Ledger(boot, 1, 0.0, "keep", originals, ((5 * MB, 2 * MB),)).save(place / "ledger.json")


def test_the_ledger_knows_what_was_before(history: Path, run: Run) -> None:
    left_ledger(history.parent, VmLimits(77 * MB, 0, 0, 7), boot_id(KernelFiles()))
    before = "sysctl -w vm.dirty_bytes=80740352 vm.dirty_background_ratio=7"
    code, out, _ = run("--json")
    assert code == 0 and json.loads(out)["undo"] == before
    left_ledger(history.parent, VmLimits(77 * MB, 0, 0, 7), "00000000-0000-4000-8000-000000000000")
    code, out, _ = run("--json")
    assert code == 0 and json.loads(out)["undo"] != before
    (history.parent / "ledger.json").write_text("{")
    code, out, err = run("--json")
    assert (code, out) == (1, "") and "is damaged" in err


@pytest.mark.parametrize("form", ["text", "json", "sysctl", "tuned"])
def test_the_way_back_is_carried_over(
    history: Path, run: Run, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """On the second run the limits of the first are in force."""
    file = history.parent / "file"
    for limits in (VmLimits(0, 33, 1073741824, 0), VmLimits(4 * MB, 0, 2 * MB, 0)):
        monkeypatch.setattr(verb, "read_limits", lambda _, limits=limits: limits)
        assert run("--format", form, "-o", str(file))[0] == 0
        left_ledger(history.parent, VmLimits(4 * MB, 0, 2 * MB, 0), boot_id(KernelFiles()))
    assert "vm.dirty_ratio=33 vm.dirty_background_bytes=1073741824" in file.read_text()


@pytest.mark.parametrize(
    "form, name", [("sysctl", "sysctl.d/90-writebackd.conf"), ("tuned", "tuned/wb/tuned.conf")]
)
def test_the_way_back_is_that_of_the_recommendation_in_force(
    history: Path, run: Run, etc: Path, monkeypatch: pytest.MonkeyPatch, form: str, name: str
) -> None:
    put(etc / "tuned" / "active_profile", "wb\n")
    file = put(etc / name, f"# {MADE_BY}\n")
    monkeypatch.setattr(verb, "read_limits", lambda _: VmLimits(0, 33, 0, 7))
    assert run("--format", form, "-o", str(file))[0] == 0
    monkeypatch.setattr(verb, "read_limits", lambda _: VmLimits(4 * MB, 0, 2 * MB, 0))
    before = "sysctl -w vm.dirty_ratio=33 vm.dirty_background_ratio=7"
    assert json.loads(run("--json")[1])["undo"] == before
    assert f"\nundo     {before}\n" in run()[1]
    assert f"# undo: {before}\n" in run("--format", "sysctl")[1]
    # Somebody else's file says nothing.
    file.write_text(file.read_text().replace("writebackctl", "other"))
    assert json.loads(run("--json")[1])["undo"] != before


def test_limits_that_were_set_by_hand_are_no_way_back(
    history: Path, run: Run, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"boot_id": boot_id(KernelFiles()), "limits": asdict(VmLimits(0, 33, 0, 7))}
    save_json(put(etc.parent / "run" / "writebackd" / FIRST, ""), first)
    for limit, undone in ((4 * MB, "vm.dirty_ratio=33"), (6 * MB, "vm.dirty_bytes=6291456")):
        monkeypatch.setattr(
            verb, "read_limits", lambda _, limit=limit: VmLimits(limit, 0, 2 * MB, 0)
        )
        assert undone in json.loads(run("--json")[1])["undo"]


def test_a_long_way_back_is_read_though_the_screen_breaks_it() -> None:
    limits = VmLimits(1234567890123, 0, 1234567890122, 0)
    wrapped = undo(limits).replace(" vm.dirty_background", "\n         vm.dirty_background")
    assert undone_to(f"made by  {MADE_BY}\nundo     {wrapped}\n") == limits
    assert undone_to(f"# {MADE_BY}\n# conflict: {undo(limits)}\n") is None
    assert undone_to(f"# undo: {undo(limits)}\n") is None  # somebody else's


# Prints what is opened for writing, renamed, started or below /dev, and how SQLite opens.
_AUDITED = """
import os, sys
from writebackd.cli import ctl
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
def audit(event, args):
    if event == "open" and not isinstance(args[0], int):  # what is open already, or in memory
        path = os.fsdecode(args[0])
        if args[2] & WRITES or path.startswith("/dev/") and path[:9] != "/dev/shm/":
            seen.append(("open", path))
    elif event.split(".")[0] in ("os", "subprocess", "shutil") and event not in READS:
        seen.append((event, os.fsdecode(args[1] if event == "os.rename" else args[0])))
    elif event == "sqlite3.connect":
        seen.append((event, os.fsdecode(args[0]).partition("?")[2]))
seen, runs, READS = [], [], ("os.listdir", "os.scandir", "os.putenv")
sys.addaudithook(audit)
for form in sys.argv[1].split(","):
    for words in ([], ["-o", sys.argv[2]]):
        seen.clear()
        code = ctl.main([*sys.argv[3:], "--format", form, *words])
        runs.append((code, list(seen)))
        if words:
            os.unlink(sys.argv[2])
print(runs, file=sys.stderr)
"""


def test_it_reads_only_and_needs_no_daemon(history: Path, tmp_path: Path) -> None:
    save_learned(history.parent / "learned.json", {})
    before = {each.name: (each.read_bytes(), each.stat().st_mtime_ns)
              for each in history.parent.iterdir()}  # fmt: skip
    output = tmp_path / "output" / "file.conf"
    output.parent.mkdir()
    forms = ("text", "json", *FILES)
    done = subprocess.run(
        [sys.executable, "-B", "-c", _AUDITED, ",".join(forms), str(output),
         "--runtime-dir", str(tmp_path / "no daemon"), "recommend",
         "--state-dir", str(history.parent), "--since", "2020-01-01", "--device", "sda"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = ast.literal_eval(done.stderr)
    assert len(runs) == 2 * len(forms)
    for number, (code, seen) in enumerate(runs):
        places = {Path(path).parent for event, path in seen if event != "sqlite3.connect"}
        assert (code, places) == (0, {output.parent} if number % 2 else set()), seen
        assert {how for event, how in seen if event == "sqlite3.connect"} == {"mode=ro"}
    after = {each.name: (each.read_bytes(), each.stat().st_mtime_ns)
             for each in history.parent.iterdir() if each.is_file()}  # fmt: skip
    assert after == before


def test_without_a_history_the_error_says_where_it_looked(tmp_path: Path, run: Run) -> None:
    code, out, err = run()
    assert (code, out) == (1, "") and str(tmp_path) in err
