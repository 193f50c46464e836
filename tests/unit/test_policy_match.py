# SPDX-License-Identifier: GPL-2.0-or-later
"""`policy match`, and the daemon without `--policy`: what it takes, and that it looks again."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple

import pytest

import samples
import schema
from checkout import ROOT
from fake_host import Rig
from fake_sysfs import VIRTIO, FakeSysfs
from writebackd.cli import ctl, doctor_checks
from writebackd.cli import daemon_main as daemon_cli
from writebackd.cli import policy as policy_cli
from writebackd.cli.exit_codes import GOOD, USAGE
from writebackd.cli.status_screen import render_status
from writebackd.kernel import memory_lock
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_facts
from writebackd.policy import Policy, PolicyError, list_policies, load_policy, render
from writebackd.policy.match import choose
from writebackd.policy.reload import Timetable
from writebackd.report.status_answer import status_json
from writebackd.types.decision import Mode

Run = Callable[..., Tuple[int, str, str]]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSysfs:
    """A guest in which etcd runs, in the place of this host."""
    tree = FakeSysfs(tmp_path / "host")
    tree.text("/proc/cpuinfo", "flags : fpu hypervisor")
    tree.text("/proc/meminfo", "MemTotal: 4194304 kB")
    tree.disk("vda", "254:0", VIRTIO, driver="virtio_blk", rotational=True)
    tree.process(7, "etcd", "0::/system.slice/etcd.service")
    for module in (policy_cli, daemon_cli):
        monkeypatch.setattr(module, "KernelFiles", lambda: KernelFiles(tree.root))
    return tree


@pytest.fixture
def run(tmp_path: Path, tree: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> Tuple[int, str, str]:
        empty = tmp_path / "config"
        empty.mkdir(exist_ok=True)
        where = ["--config-dir", str(empty)] if "--config-dir" not in words else []
        code = ctl.main(["--runtime-dir", str(tmp_path / "run"), "policy", *words, *where])
        return (code, *capsys.readouterr())

    return call


TEXT = """\
etcd fits: 170 points, 170 needed
  services        +170 yes      etcd, etcd.service runs

vm-guest fits: 100 points, 60 needed
  drivers          +40 yes      driver of vda: virtio_blk
  virtualisation   +60 yes      guest (CPU flag hypervisor)
"""


def test_match_tells_the_best_and_the_runner_up_with_their_evidence(run: Run) -> None:
    assert run("match") == (GOOD, TEXT, "")
    out = run("match", "--all")[1]
    assert out.startswith(TEXT)
    assert "desktop does not fit: 0 points, 115 needed" in out
    assert "(worth 115: gdm*.service" in out
    assert max(map(len, out.splitlines())) <= 80


def test_check_as_what_is_to_be_there(run: Run, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.write_text("[limits]\nceiling = 32M\n")
    assert run("check", str(new))[0] == GOOD
    place = ("--as", "/etc/writebackd/policies.d/all.conf.d/a.conf")
    code, out, err = run("check", *place, str(new))
    assert (code, out, err.count("(as a part of policy ")) == (USAGE, "", 2)
    answer = json.loads(run("check", "--json", *place, str(new))[1])
    assert answer["good"] is False and len(answer["problems"]) == 2
    assert list(schema.problems(answer, schema.load("policy-check"))) == []
    code, _, err = run("check", *place, str(new), "default")
    assert code == USAGE and "--as" in err


def test_the_roll_out_by_ansible_is_good_and_loosens_no_class(run: Run, tmp_path: Path) -> None:
    text = (ROOT / "packaging/ansible/writebackd/tasks/main.yml").read_text()
    example = re.search(
        r"dest: (\S+all\.conf\.d/\S+)\n.*\n    content: \|\n((?:      .*\n)+)"
        r"    validate: >-\n      /usr/bin/writebackctl policy (.*\n.*)", text
    )  # fmt: skip
    assert example is not None
    dest, content, words = example.groups()
    site = tmp_path / "config" / "all.conf.d" / Path(dest).name
    before = {each.name: load_policy(each.name, root=tmp_path) for each in list_policies()}
    assert len(before) == 13
    for mode in ("enforce", "observe"):
        # As Ansible does it: the template filled in, a temporary file that is checked, then moved.
        new = tmp_path / ".ansible_tmpx7"
        filled = content.replace("{{ writebackd_mode }}", mode)
        new.write_text(re.sub(r"\{[{%].*?[}%]\}", "", textwrap.dedent(filled)))
        code, _, err = run(*shlex.split(words.replace("%s", str(new))))
        assert (code, err) == (GOOD, "")
        site.parent.mkdir(parents=True, exist_ok=True)
        new.rename(site)
        for name, policy in before.items():
            after = load_policy(name, tmp_path / "config", tmp_path)
            assert after.mode == mode
            assert (after.limits, after.objective) == (policy.limits, policy.objective), name
    assert dest in words


def test_match_as_json(run: Run) -> None:
    code, out, _ = run("match", "--json")
    answer = json.loads(out)
    assert code == GOOD and list(schema.problems(answer, schema.load("policy-match"))) == []
    assert (answer["policy"], answer["runner_up"]) == ("etcd", "vm-guest")
    names = [each["name"] for each in answer["candidates"]]
    assert names[:2] == ["etcd", "vm-guest"] and len(names) == 12 and "default" not in names


def test_match_without_any_match(run: Run, tree: FakeSysfs) -> None:
    tree.text("/proc/cpuinfo", "flags : fpu")
    tree.text("/proc/7/comm", "cat")
    tree.text("/proc/7/cgroup", "0::/")
    code, out, _ = run("match")
    assert code == GOOD
    assert out.startswith("default: no policy fits this host; nearest is vm-guest with 40 of")
    assert "vm-guest does not fit: 40 points, 60 needed" in out
    answer = json.loads(run("match", "--json")[1])
    assert (answer["policy"], answer["runner_up"]) == ("default", "vm-guest")
    assert list(schema.problems(answer, schema.load("policy-match"))) == []


def test_match_with_a_wrong_policy_skips_it_unless_it_is_needed(run: Run, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "mine.conf").write_text("[match]\nleast = none\n")
    code, out, err = run("match", "--config-dir", str(wrong))
    assert (code, out) == (GOOD, TEXT.replace("\n\n", "\n  skipped because of errors: mine\n\n"))
    assert f"skipped: {wrong}/mine.conf:2: least: " in err
    (wrong / "default.conf").write_text("[match]\nleast = none\n")
    code, out, err = run("match", "--config-dir", str(wrong))
    assert (code, out) == (USAGE, "")
    assert f"{wrong}/default.conf:2: least: " in err


def test_show_without_a_daemon_shows_what_it_would_take(run: Run) -> None:
    assert json.loads(run("show", "--json")[1])["name"] == "etcd"
    out = run("show", "--effective")[1]
    # Each value with the file and line that it is from.
    lines = out.splitlines()
    at = lines.index("fsync-p99 = 10ms")
    file, _, number = lines[at - 1][2:].rpartition(":")
    assert Path(file).read_text().splitlines()[int(number) - 1] == "fsync-p99 = 10ms"
    assert lines[lines.index("floor = 1M") - 1] == "# default"


def test_show_effective_names_the_drop_in_that_a_value_is_from(run: Run, tmp_path: Path) -> None:
    site = tmp_path / "site" / "etcd.conf.d"
    site.mkdir(parents=True)
    (site / "a.conf").write_text("\n[objective]\nfsync-p99 = 7ms\n")
    out = run("show", "--effective", "etcd", "--config-dir", str(site.parent))[1]
    assert f"# {site}/a.conf:3\nfsync-p99 = 7ms" in out


def test_show_of_a_daemon_with_a_policy_of_its_own_is_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name it would not be found: it is given as a file, or in a directory of its own."""
    for name, text in (("default.conf", "[limits]\nceiling = 2G\nfloor = 2M\n"),
                       ("all.conf.d/a.conf", "[limits]\nfloor = 3M\n"),
                       ("default.conf.d/a.conf", "[limits]\nrest = 8M\n")):  # fmt: skip
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text(text)
    policy = load_policy("default", tmp_path / "own")
    named = {"policy": "default", "policy_reason": "named by --policy"}
    status = {**named, "policy_files": list(policy.files)}
    monkeypatch.setattr(policy_cli, "request", lambda *_, **__: status)
    assert ctl.main(["policy", "show", "--effective"]) == GOOD
    out = capsys.readouterr().out
    assert out == render(policy)
    assert all(f"\n{line}\n" in out for line in ("ceiling = 2G", "floor = 3M", "rest = 8M"))
    # A drop-in that was taken away, and nobody has told the daemon.
    gone = tmp_path / "own" / "default.conf.d" / "a.conf"
    gone.rename(tmp_path / "a.conf")
    assert ctl.main(["policy", "show", "--effective"]) == GOOD
    shown = capsys.readouterr()
    assert f"{gone} is gone since the daemon read it: systemctl reload writebackd" in shown.err
    assert all(f"\n{line}\n" in shown.out for line in ("ceiling = 2G", "floor = 3M"))
    assert "\nrest = 8M\n" not in shown.out and str(gone) not in shown.out
    base = tmp_path / "own" / "default.conf"
    base.rename(tmp_path / "default.conf")
    assert ctl.main(["policy", "show", "--effective"]) == USAGE
    assert f"{base} is gone since the daemon read it" in capsys.readouterr().err
    (tmp_path / "a.conf").rename(gone)
    (tmp_path / "default.conf").rename(base)
    # One that is for every policy still may not tell policies apart.
    (tmp_path / "own" / "all.conf.d" / "a.conf").write_text("[policy]\nsummary = x\n")
    assert ctl.main(["policy", "show", "--effective"]) == USAGE


def test_doctor_names_what_is_wrong_with_policies(tmp_path: Path) -> None:
    assert list(doctor_checks.policies(tmp_path)) == []
    (tmp_path / "mine.conf").write_text("[limits]\nflor = 1M\n")
    (tmp_path / "masked.conf").symlink_to("/dev/null")
    (tmp_path / "all.conf").write_text("")
    (tmp_path / "all.conf.d").mkdir()
    (tmp_path / "all.conf.d" / "a.conf").write_text("x\n")
    findings = list(doctor_checks.policies(tmp_path))
    assert {level for level, _ in findings} == {"warning"}
    # Once, though every policy reads it.
    assert sorted(text.split(": ")[1] for _, text in findings) == [
        f"{tmp_path}/all.conf", f"{tmp_path}/all.conf.d/a.conf:1", f"{tmp_path}/mine.conf:2",
    ]  # fmt: skip
    ((_, text),) = doctor_checks.policies(tmp_path / "nowhere")
    assert "no such directory" in text


# ---- the daemon --------------------------------------------------------------------------

Start = Callable[..., Callable[[], Policy]]  # with words of its command line


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    yield rig
    rig.end()


def reload(rig: Rig, load: Callable[[], Policy], ticks: int = 1) -> None:
    """As on SIGHUP, with what `load` reads now."""
    rig.daemon.policies.load = load
    rig.daemon.reload()
    rig.daemon.policies.join(10)
    rig.tick(ticks)


class Stopped:
    """In the place of Daemon: takes the policy as it would, and ends."""

    loads: List[Callable[[], Policy]]
    reloads: List[float]
    options: Any = None  # of the last one

    def __init__(self, options: Any, load: Callable[[], Policy], on_tick: Any) -> None:
        self.loads.append(load)
        Stopped.options = options
        self.policies = self
        self._on_tick = on_tick
        self._uptime_s = 0.0

    def rematch(self) -> None:
        self.reloads.append(self._uptime_s)

    def run(self, ready: Any) -> None:
        calm = samples.idle()
        for self._uptime_s in (1.0, 61.0, 62.0):
            self._on_tick(replace(calm, sample=replace(calm.sample, time_s=self._uptime_s)))


@pytest.fixture
def start(tmp_path: Path, tree: FakeSysfs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`writebackd` up to its loop; the answer is what it loads policies with."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(daemon_cli, "Daemon", Stopped)
    for name in ("lock_used", "read_in_code"):
        monkeypatch.setattr(memory_lock, name, lambda: None)
    Stopped.loads, Stopped.reloads = [], []
    root = logging.getLogger()
    before = list(root.handlers), root.level
    (tmp_path / "config").mkdir(exist_ok=True)

    def call(*words: str) -> Callable[[], Policy]:
        argv = ["--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state"),
                "--config-dir", str(tmp_path / "config"), *words]  # fmt: skip
        assert daemon_cli.main(argv) == GOOD
        return Stopped.loads[-1]

    yield call
    root.handlers[:], root.level = before


def test_the_daemon_takes_the_best_match_and_the_journal_says_so(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    load = start()
    policy = load()
    assert policy.name == "etcd"
    assert policy.chosen.startswith("best match, 170 points: etcd, etcd.service runs +170")
    assert f"policy etcd: {policy.chosen}" in capfd.readouterr().err
    assert Stopped.reloads == [61.0]


def test_the_examples_of_its_man_page_and_help_start_it(start: Start) -> None:
    page = re.findall(r"sudo (writebackd [^\"]+)", (ROOT / "docs/man/pages.py").read_text())
    told = daemon_cli.parser().format_help().partition("examples:\n")[2].splitlines()
    found = [shlex.split(line.strip().split("   ")[0])[1:] for line in (*page, *told) if line]
    assert ["--mode", "observe"] in found and len(found) >= 5
    for words in found:
        policy = start(*words)()
        named = words[words.index("--policy") + 1] if "--policy" in words else "etcd"
        devices = (words[words.index("--device") + 1],) if "--device" in words else ()
        mode = Mode.OBSERVE if "observe" in words else None
        taken = Stopped.options
        assert (policy.name, taken.devices, taken.mode) == (named, devices, mode)


def test_drop_ins_of_a_policy_that_was_not_taken_are_warned_of(
    start: Start, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("default", "etcd", "all"):
        directory = tmp_path / "config" / f"{name}.conf.d"
        directory.mkdir(parents=True)
        (directory / "50-site.conf").write_text("[policy]\nmode = observe\n")
    assert start()().mode == "observe"
    (line,) = [each for each in capfd.readouterr().err.splitlines() if "not used by" in each]
    assert f"by policy etcd: {tmp_path}/config/default.conf.d; " in line
    start("--policy", "etcd")
    assert "not used by" not in capfd.readouterr().err


def test_a_reload_looks_at_the_host_again(start: Start, tree: FakeSysfs) -> None:
    tree.text("/proc/cpuinfo", "flags : fpu")
    tree.process(7, "cat")
    load = start()
    assert load().name == "default"
    tree.text("/proc/cpuinfo", "flags : fpu hypervisor")
    assert load().name == "vm-guest"
    tree.process(7, "etcd", "0::/system.slice/etcd.service")
    assert load().name == "etcd"


def test_a_policy_that_is_named_is_taken_whatever_fits(start: Start) -> None:
    policy = start("--policy", "default")()
    assert (policy.name, policy.chosen) == ("default", "named by --policy")
    assert Stopped.reloads == []


@pytest.mark.parametrize("start_s", [20.0, 90_000.0])
def test_it_looks_again_three_times_after_its_start_and_then_hourly(start_s: float) -> None:
    looks: List[float] = []
    since_s = 0.0
    rematch = daemon_cli._Rematch(lambda: looks.append(since_s))
    calm = samples.idle()
    while since_s < 8000:
        rematch(replace(calm, sample=replace(calm.sample, time_s=start_s + since_s)))
        since_s += 1.5
    assert looks == [60.0, 180.0, 600.0, 4200.0, 7800.0]


def test_a_long_stop_is_one_look() -> None:
    looks: List[None] = []
    rematch = daemon_cli._Rematch(lambda: looks.append(None))
    calm = samples.idle()
    for uptime_s in (30.0, 9000.0, 9001.0):
        rematch(replace(calm, sample=replace(calm.sample, time_s=uptime_s)))
    assert len(looks) == 1


def test_a_class_stays_over_a_restart_while_its_services_are_down(
    start: Start, tree: FakeSysfs, tmp_path: Path, run: Run
) -> None:
    assert start()().name == "etcd"
    tree.process(7, "cat", "0::/")
    policy = start()()  # another process
    assert policy.name == "etcd"
    assert policy.chosen.startswith("kept from before: best match, 170 points: etcd")
    assert run("match")[1].startswith("etcd fits")
    # What says more wins, and is the one that stays then.
    (tmp_path / "config" / "mine.conf").write_text("[match]\nservices = 200: mine.service\n")
    tree.process(8, "mine", "0::/system.slice/mine.service")
    assert start()().name == "mine"
    tree.process(8, "cat", "0::/")
    assert start()().name == "mine"
    (tmp_path / "run" / "class").unlink()  # as a boot does
    assert start()().name == "vm-guest"


@pytest.mark.parametrize("text", [b"", b"no-such\n", b"\xff\x00\n" * 1000, None])
def test_a_class_that_cannot_be_read_is_none(
    start: Start, tmp_path: Path, text: Optional[bytes]
) -> None:
    taken = tmp_path / "run" / "class"
    taken.parent.mkdir()
    if text is None:
        taken.mkdir()
    else:
        taken.write_bytes(text)
    assert start()().name == "etcd"


def test_a_class_is_not_kept_on_a_host_that_lacks_more(start: Start, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "class").write_text("db-hwraid\n")
    assert start()().name == "etcd"


def test_the_daemon_starts_beside_a_wrong_policy_and_tells_it_once(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config" / "mine.conf").write_text("[limits]\nflor = 1M\n")
    (tmp_path / "config" / "desktop.conf.d").write_text("no directory")
    load = start()
    assert load().chosen.startswith("skipped because of errors: desktop, mine; best match")
    assert len([each for each in caplog.messages if "policy skipped: " in each]) == 2
    (tmp_path / "config" / "etcd.conf.d").mkdir()
    (tmp_path / "config" / "etcd.conf.d" / "a.conf").write_text("x")
    with pytest.raises(PolicyError):
        load()


def test_a_look_that_finds_the_same_changes_nothing_and_is_not_told(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    policy = rig.daemon.policy
    rig.daemon.policies.load = lambda: replace(policy, chosen="again")
    policies = rig.daemon.policies
    for look, told in ((policies.rematch, 0), (policies.reload, 1), (policies.rematch, 1)):
        look()
        policies.join(10)
        rig.daemon.state.memory = replace(rig.daemon.state.memory, goal_bytes=12345)
        rig.daemon._take_loaded_policy()
        assert rig.daemon.policy.chosen == "again"
        assert (rig.daemon.state.memory.goal_bytes == 12345) is (look == policies.rematch)
        assert len([each for each in caplog.messages if " loaded" in each]) == told


def test_status_says_that_a_reload_hangs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, goes_on = rig.daemon.policy, threading.Event()

    def load() -> Policy:
        goes_on.wait(10)
        return policy

    def told() -> bool:
        rig.tick(2)
        return "cannot reload the policy: reading it hangs" in rig.status()["warnings"]

    rig.daemon.policies.load = load
    rig.daemon.reload()
    assert not told()
    later = time.monotonic() + 60.0
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: later)
        assert told()
    goes_on.set()
    rig.daemon.policies.join(10)
    assert not told()


def test_a_running_daemon_changes_over_and_status_says_why(
    rig: Rig, tree: FakeSysfs, tmp_path: Path
) -> None:
    rig.daemon._options = replace(rig.daemon._options, mode=None)
    files = KernelFiles(tree.root)
    tree.process(7, "ceph-osd", "0::/system.slice/ceph-osd@3.service")
    rig.tick(2)
    rig.pin(64 << 20)
    rig.tick(3)
    assert rig.host.limits.dirty_bytes == 64 << 20
    reload(rig, lambda: choose(read_facts(files), root=tmp_path).policy, ticks=2)
    status = rig.status()
    assert (status["policy"], status["mode"]) == ("ceph-osd", Mode.OBSERVE.value)
    assert status["policy_reason"].startswith("best match, 118 points: ceph-osd@3.service runs")
    assert rig.host.limits.dirty_bytes == 0  # it watches only: back to what was found


@pytest.mark.parametrize("text, what", [
    ("[probe]\ntalkers = off\n", "[probe]"),
    ("[metrics]\ntextfile-interval = 30s\n", "[metrics]"),
    ("[limits]\nlease = 20s\n", "[limits] lease"),
    ("[history]\nsamples = 1G\n", "[history] samples"),
    ("[limits]\nceiling = 2G\n", ""),
])  # fmt: skip
def test_a_reload_tells_what_it_cannot_change(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, what: str
) -> None:
    rig.tick(2)
    (tmp_path / "p.conf").write_text(text)
    caplog.set_level(logging.INFO)
    reload(rig, lambda: load_policy(str(tmp_path / "p.conf")))
    told = [each for each in caplog.messages if "next start" in each]
    assert told == ([f"a change of {what} takes effect at the next start"] if what else [])


def test_a_daemon_leaves_alone_what_is_excluded_by_driver(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "p.conf"
    path.write_text("[devices]\nexclude = driver:usb-storage\n")
    rig.daemon.policies.timetable = Timetable(load_policy(str(path)))
    assert rig.daemon._excluded(samples.RAID) is None
    assert "excluded by 'driver:usb-storage'" in str(rig.daemon._excluded(samples.STICK))


def test_status_shows_why_on_one_line_and_only_where_it_is_known() -> None:
    plain = samples.idle()
    assert "best match" not in render_status(status_json(plain))
    policy = replace(samples.POLICY, chosen="best match, 150 points: " + "x" * 300)
    chosen = replace(plain, policy=policy)
    status = status_json(chosen)
    assert list(schema.problems(status, schema.load("status"))) == []
    lines = render_status(status, 80).splitlines()
    (line,) = [line for line in lines if line.startswith("policy ")]
    assert len(line) == 80 and line.endswith(".. (policy match)")


def test_a_policy_says_nothing_of_how_it_was_chosen_when_compared() -> None:
    plain = load_policy("default", root=Path("/nonexistent"))
    assert replace(plain, chosen="because") == plain


def started(rig: Rig, *devices: str) -> Rig:
    """Anew, with these given as --device."""
    rig.end()
    rig._options = replace(rig._options, devices=devices)
    rig.daemon = rig.start()
    return rig


def unmatched(rig: Rig) -> List[str]:
    return [each for each in rig.status()["warnings"] if "--device" in each]


def test_a_disk_that_is_not_there_is_wrong_use_and_a_pattern_may_match_later(rig: Rig) -> None:
    """It ran, and managed nothing."""
    rig.host.tree.disk("sdb", "8:16", VIRTIO)  # not mounted yet
    check = rig.daemon._monitor.check_named
    for there in ("sda", "/dev/sda", "8:0", "sdb", "8:16", "sdc*", "sd[cd]", "driver:virtio_blk"):
        check((there, "sda"))
    for absent in ("nosuch", "/dev/sdc", "sda1", "8:1", "/srv"):
        words = rf"^--device {absent}: .*filesystems: sda\. "
        with pytest.raises(PolicyError, match=words) as told:
            check(("sda", absent))
        assert len(told.value.messages) == 1
    assert "mapper" not in str(told.value)
    with pytest.raises(PolicyError, match="--device nosuch"):
        started(rig, "nosuch")
    rig._options = replace(rig._options, devices=())
    rig.daemon = rig.start()


def test_a_link_below_dev_names_the_disk_that_it_leads_to(rig: Rig) -> None:
    """It advised 'mapper/vg-root*', which matches nothing."""
    rig.host.tree.link("/dev/mapper/vg-root", "../sda")
    started(rig, "/dev/mapper/vg-root").tick(2)
    devices = rig.status()["devices"]
    assert [(each["name"], each["state"]) for each in devices] == [("sda", "idle")]
    assert unmatched(rig) == []


def test_a_device_that_nothing_matches_is_a_warning_until_something_does(rig: Rig) -> None:
    """It ran, managed nothing and did not say so."""
    started(rig, "sda", "/dev/sdb*").tick(2)
    assert unmatched(rig) == ["no device with a filesystem matches --device /dev/sdb*"]
    rig.host.tree.disk("sdb", "8:16", VIRTIO)
    rig.host.tree.mount("8:16", "ext4", "/dev/sdb", "/db")
    rig.daemon._monitor.topology.scan()
    rig.tick()
    assert unmatched(rig) == []
