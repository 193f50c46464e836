# SPDX-License-Identifier: GPL-2.0-or-later
"""One daemon per host, and what an earlier one left: the limits it found are never lost."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Callable, List, Tuple

import pytest

import schema
from fake_host import FakeHost, Rig
from fake_vm import DEFAULT, FakeVm
from lever_host import LEVER_FILES, SETTLE, WISHES, lever_rig
from limit_cases import MIB, saved
from served import Served
from writebackd.actuate import lock
from writebackd.actuate.ledger import first_found, load
from writebackd.actuate.ledger_restore import left_in_force
from writebackd.actuate.lock import AlreadyRunning
from writebackd.cli import client, ctl
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NO_DAEMON
from writebackd.kernel.vm import in_words
from writebackd.paths import FIRST, IN_USE, LEDGER, SOCKET, runtime_dir_in_use
from writebackd.policy import PolicyError
from writebackd.types.decision import Mode
from writebackd.types.levers import VmLimits

PIN = 32 * MIB
THEIRS = VmLimits(96 * MIB, 0, 48 * MIB, 0)
Run = Callable[..., Tuple[int, str, str]]


class Host(FakeHost):
    """Starts daemons, each with a runtime directory of its own, called `name`."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(directory / "root")
        self._directory, self._monkeypatch = directory, monkeypatch

    def daemon(self, name: str) -> Rig:
        (self._directory / name).mkdir(exist_ok=True)
        return Rig(self._directory / name, self._monkeypatch, self)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def pinned(rig: Rig) -> Rig:
    rig.tick(2)
    rig.pin(PIN)
    rig.tick(3)
    assert rig.host.limits.dirty_bytes == PIN
    return rig


def set_by_somebody(host: FakeVm) -> None:
    host.sysctl("dirty_bytes", THEIRS.dirty_bytes)
    host.sysctl("dirty_background_bytes", THEIRS.dirty_background_bytes)


# ---- one daemon per host ---------------------------------------------------


def test_another_runtime_directory_is_no_way_to_a_second_daemon(host: Host) -> None:
    first = pinned(host.daemon("one"))
    with pytest.raises(AlreadyRunning) as refused:
        host.daemon("two")
    assert f"pid {os.getpid()}, {first.runtime_dir}" in str(refused.value)
    assert "--runtime-dir" not in str(refused.value)
    first.end()
    host.daemon("three").end()


def test_the_lock_is_that_of_the_host_whose_limits_are_set(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pinned(host.daemon("one"))
    other = pinned(Rig(tmp_path / "other", monkeypatch))
    one.end()
    other.end()
    assert (host.limits, other.host.limits) == (DEFAULT, DEFAULT)


@pytest.mark.parametrize("mode", list(Mode))
def test_what_a_killed_one_left_elsewhere_is_restored_and_no_original(
    host: Host, mode: Mode
) -> None:
    killed = pinned(host.daemon("one"))
    killed.close()
    second = host.daemon("two")
    assert host.limits == DEFAULT and not (killed.runtime_dir / LEDGER).exists()
    assert second.daemon._actuator.originals == DEFAULT
    second.daemon.handle("mode", {"mode": mode.value}, 0)
    second.end()
    assert host.limits == DEFAULT


def test_what_cannot_be_restored_is_no_original_either(host: Host) -> None:
    killed = pinned(host.daemon("one"))
    killed.close()
    host.write_errors["dirty_ratio"] = (30, False)  # EROFS
    for name in ("two", "three"):  # also not at a second try
        with pytest.raises(AlreadyRunning, match="cannot restore"):
            host.daemon(name)
    assert saved(killed.runtime_dir / LEDGER).originals == DEFAULT
    host.write_errors.clear()
    host.daemon("four").end()
    assert host.limits == DEFAULT


@pytest.mark.parametrize("default", [False, True], ids=["--runtime-dir", "/run/writebackd"])
@pytest.mark.parametrize("how", ["gone", "anybody's"])
def test_a_ledger_that_cannot_be_used_refuses_a_start_while_limits_stand(
    host: Host, tmp_path: Path, how: str, default: bool
) -> None:
    """As one in /tmp is hidden from a unit with a /tmp of its own."""
    killed = pinned(host.daemon("one"))
    for name in ("two", "three") if default else ():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run").symlink_to(host.path("/run/writebackd"))
    killed.close()
    if how == "gone":
        killed.runtime_dir.rename(killed.runtime_dir.with_name("hidden"))
    else:
        killed.runtime_dir.chmod(0o777)
    with pytest.raises(AlreadyRunning, match="--first-found for 20 % / 10 %"):
        host.daemon("two")
    assert host.limits.dirty_bytes == PIN
    host.sysctl("dirty_ratio", 20)
    host.sysctl("dirty_background_ratio", 10)
    host.daemon("three").end()


def test_a_start_that_fails_stands_in_nobodys_way(host: Host) -> None:
    rig = host.daemon("one")
    rig.end()
    rig._options = replace(rig._options, devices=("nosuch",))
    with pytest.raises(PolicyError, match="nosuch"):
        rig.start()
    rig._options = replace(rig._options, devices=())
    daemon = rig.start()
    (rig.runtime_dir / SOCKET).mkdir()
    with pytest.raises(OSError, match=SOCKET):
        daemon.run()
    rig.runtime_dir.rename(rig.runtime_dir.with_name("hidden"))
    set_by_somebody(host)
    host.daemon("two").end()


def test_a_start_that_fails_leaves_the_record_of_a_ledger(host: Host) -> None:
    rig = pinned(host.daemon("one"))
    rig.close()
    rig._options = replace(rig._options, devices=("nosuch",))
    with pytest.raises(PolicyError, match="nosuch"):
        rig.start()
    assert runtime_dir_in_use(host.path("/run/writebackd")) == rig.runtime_dir
    host.daemon("two").end()
    assert host.limits == DEFAULT


def test_one_that_ended_in_order_stands_in_nobodys_way(host: Host) -> None:
    rig = pinned(host.daemon("one"))
    rig.end()
    rig.runtime_dir.rename(rig.runtime_dir.with_name("hidden"))
    set_by_somebody(host)
    host.daemon("two").end()
    assert host.limits == THEIRS


@pytest.mark.parametrize("off", [False, True], ids=["", "kill switch"])
def test_a_start_that_observes_restores_what_a_killed_one_left(host: Host, off: bool) -> None:
    rig = pinned(host.daemon("one"))
    rig.close()
    rig._options = replace(rig._options, mode=Mode.ENFORCE if off else Mode.OBSERVE)
    if off:
        (rig.runtime_dir / "off").touch()
    rig.daemon = rig.start()
    rig.pin(2 * PIN)  # it has a limit that it would set
    rig.tick(2)
    assert host.limits == DEFAULT and not (rig.runtime_dir / LEDGER).exists()
    rig.end()


def test_the_directory_in_use_counts_while_it_is_the_daemons(host: Host) -> None:
    default = host.path("/run/writebackd")
    assert runtime_dir_in_use(default) == default
    rig = pinned(host.daemon("one"))
    assert runtime_dir_in_use(default) == rig.runtime_dir
    rig.runtime_dir.chmod(0o777)  # anybody may have put that ledger there
    assert runtime_dir_in_use(default) == default
    rig.runtime_dir.chmod(0o755)
    rig.end()
    assert runtime_dir_in_use(default) == default  # nothing of it is left


def test_a_directory_of_that_name_by_somebody_else_is_not_believed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / LEDGER).touch()
    (tmp_path / IN_USE).write_bytes(os.fsencode(theirs))
    assert runtime_dir_in_use(tmp_path) == theirs
    os.chown(theirs, 65534, 65534)
    assert runtime_dir_in_use(tmp_path) == tmp_path


# ---- found first -----------------------------------------------------------


@pytest.fixture
def run(host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`writebackctl` without --runtime-dir, as root, on the made-up host."""
    in_use = functools.partial(runtime_dir_in_use, host.path("/run/writebackd"))
    for module in (ctl, client):
        monkeypatch.setattr(module, "runtime_dir_in_use", in_use)
    for name in ("kernel.files", "cli.restore"):
        monkeypatch.setattr(f"writebackd.{name}.KernelFiles", lambda: host)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def call(*words: str) -> Tuple[int, str, str]:
        code = ctl.main(list(words))
        return (code, *capsys.readouterr())

    return call


def enforced(rig: Rig) -> List[str]:
    lines: List[str] = rig.daemon.handle("mode", {"mode": "enforce"}, 0)["lines"]
    return lines


def test_enforce_says_what_exit_restores_and_what_that_was_before(host: Host) -> None:
    rig = pinned(host.daemon("one"))
    assert enforced(rig) == ["exit restores 20 % / 10 %"]
    set_by_somebody(host)
    rig.tick()
    assert rig.status()["yielded"]
    was = "(was 20 % / 10 %: `writebackctl restore --first-found`)"
    assert enforced(rig) == [f"exit restores 96M / 48M {was}"]
    rig.daemon._actuator.set_on_exit("keep")
    assert enforced(rig) == [f"`writebackctl observe` restores 96M / 48M {was}"]
    rig.daemon._actuator.set_on_exit("restore")
    rig.end()
    assert host.limits == THEIRS


def test_what_was_found_first_comes_back_after_all(host: Host, run: Run) -> None:
    """Through a foreign write, `enforce`, the end, and a life with another directory."""
    assert run("restore", "--first-found") == (
        GOOD, f"nothing to restore: there is no {host.path('/run/writebackd') / LEDGER}\n"
        "no writebackd has set limits since boot\n", "")  # fmt: skip
    rig = pinned(host.daemon("one"))
    set_by_somebody(host)
    rig.tick()
    enforced(rig)
    rig.tick()
    rig.end()
    pinned(host.daemon("two")).close()
    code, out, err = run("restore", "--first-found")
    assert (code, err, host.limits) == (GOOD, "", DEFAULT)
    assert "dirty_ratio=20" in out and "limits at boot: 20 % / 10 %" in out
    assert run("restore")[0] == GOOD and host.limits == DEFAULT


def test_found_first_comes_back_beside_a_daemon_which_then_observes(host: Host, run: Run) -> None:
    rig = pinned(host.daemon("one"))
    set_by_somebody(host)
    rig.tick()
    enforced(rig)
    rig.tick()
    with contextlib.ExitStack() as stack:
        stack.callback(Served(rig.runtime_dir, rig.daemon.handle).stop)
        code, out, err = run("restore", "--first-found")
    assert (code, err, host.limits) == (GOOD, "", DEFAULT)
    assert "mode: observe" in out
    rig.tick(3)
    assert host.limits == DEFAULT and not rig.status()["alerts"]
    rig.end()
    assert host.limits == DEFAULT


def test_found_first_that_cannot_be_written_is_bad_news(host: Host, run: Run) -> None:
    rig = pinned(host.daemon("one"))
    set_by_somebody(host)
    rig.end()
    host.write_errors["dirty_ratio"] = (30, False)  # EROFS
    code, out, _ = run("--json", "restore", "--first-found")
    answer = json.loads(out)
    assert (code, answer["status"]) == (BAD_NEWS, "failed")
    assert list(schema.problems(answer, schema.load("restore"))) == []


def test_nothing_is_written_where_found_first_cannot_be_kept(host: Host) -> None:
    rig = host.daemon("one")
    first = host.path("/run/writebackd") / FIRST
    first.mkdir()
    rig.tick(2)
    rig.pin(PIN)
    rig.tick(3)
    assert host.limits == DEFAULT and not host.writes
    errors = {action.error for action in rig.daemon._actions}
    assert errors == {f"nothing written, cannot write {first}: Is a directory"}
    first.rmdir()
    rig.tick()
    assert host.limits.dirty_bytes == PIN
    rig.end()


def test_found_first_is_of_this_boot(host: Host) -> None:
    pinned(host.daemon("one")).end()
    assert first_found(host) == DEFAULT
    host.boot_id = "1" + host.boot_id[1:]
    assert first_found(host) is None
    set_by_somebody(host)
    pinned(host.daemon("two")).end()
    assert first_found(host) == THEIRS
    host.errors["/proc/sys/kernel/random/boot_id"] = 5
    assert first_found(host) == THEIRS, "of which boot is not known for a moment"


def test_words_for_limits() -> None:
    assert in_words(DEFAULT) == "20 % / 10 %"
    assert in_words(VmLimits(64 * MIB, 0, 0, 0)) == "64M / 0 %"


# ---- no daemon, but its limits ---------------------------------------------


@pytest.mark.parametrize("words", [["status"], ["verify"], ["alerts"], ["alerts", "--check"]])
def test_without_a_daemon_its_limits_are_told_with_the_way_back(
    host: Host, run: Run, words: List[str]
) -> None:
    rig = pinned(host.daemon("one"))
    words = words + (["--state-dir", str(rig._options.state_dir)] if words[0] == "alerts" else [])
    background = host.limits.dirty_background_bytes
    rig.close()
    stands = (
        f"limits of writebackd are in force: dirty_bytes={PIN},"
        f" dirty_background_bytes={background} (before: 20 % / 10 %); restore them with"
    )
    code, out, err = run(*words)
    told = out if "--check" in words else err
    assert code == NO_DAEMON and len(told.splitlines()) == 1
    assert f"{stands} `sudo writebackctl restore`, or" in told
    code, out, err = run("--runtime-dir", str(rig.runtime_dir), *words)
    assert code == NO_DAEMON and stands in out + err
    assert run("restore")[0] == GOOD and host.limits == DEFAULT
    code, out, err = run(*words)
    assert code == NO_DAEMON and "in force" not in out + err


def test_limits_of_somebody_else_or_kept_or_of_a_live_daemon_are_told_as_such(
    host: Host, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = pinned(host.daemon("one"))
    ledger = rig.runtime_dir / LEDGER
    assert "in force" not in run("status")[2]  # it lives; where it has no socket, it starts
    rig.close()
    with monkeypatch.context() as patch:
        patch.setattr(lock, "is_locked", lambda runtime_dir: None)  # as for who may not look
        assert "; unless a daemon is starting or stopping, restore them" in run("status")[2]
    assert "unless" not in run("status")[2]
    saved = load(ledger)
    assert saved is not None
    replace(saved, on_exit="keep").save(ledger)
    assert "kept by on-exit = keep" in run("status")[2]
    set_by_somebody(host)
    assert "in force" not in run("status")[2]
    ledger.write_text("damaged")
    assert "its limits may be in force" in run("status")[2]


@pytest.mark.parametrize("systemd", [False, True], ids=["nobody's cgroups", "systemd's"])
def test_levers_that_stand_are_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: bool
) -> None:
    rig, host, wishing = lever_rig(tmp_path, monkeypatch, systemd)
    rig.tick(2)
    wishing.wishes = WISHES
    rig.tick(SETTLE)
    rig.close()
    host.poke(LEVER_FILES[0], "333")  # dirty_writeback_centisecs, by somebody else
    ledger = load(rig.runtime_dir / LEDGER)
    assert ledger is not None
    told = left_in_force(host, rig.runtime_dir / LEDGER)
    assert "centisecs" not in told
    for entry in ledger.levers[1:]:
        assert f"{entry.lever}=" in told
