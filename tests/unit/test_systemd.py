# SPDX-License-Identifier: GPL-2.0-or-later
"""The unit as systemd sees it: valid, confined, and of one mind with the program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

from checkout import ROOT, run
from writebackd.actuate import ledger_restore, watcher
from writebackd.cli.ctl import span
from writebackd.cli.exit_codes import NOT_PERMITTED, USAGE
from writebackd.commands import DRAIN_LEASE_S
from writebackd.kernel import bcc_programs
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.probe import BTF
from writebackd.paths import CACHE_DIR, RUNTIME_DIR, STATE_DIR
from writebackd.paths import CACHES as FILLS
from writebackd.paths import RAID as REPORT
from writebackd.policy.keys import KEYS
from writebackd.storage.backing_watch import CACHES_S
from writebackd.storage.raid_tools import LIMIT_S, kinds
from writebackd.storage.report_file import STALE_S

UNIT = ROOT / "systemd" / "writebackd.service"
WATCH = ROOT / "systemd" / "writebackd-watch.service"
RAID = ROOT / "systemd" / "writebackd-raid.service"
PROBE = ROOT / "systemd" / "writebackd-probe.service"
DRAIN = ROOT / "systemd" / "writebackd-drain.service"
TIMER = ROOT / "systemd" / "writebackd-raid.timer"
CACHES = ROOT / "systemd" / "writebackd-caches.service"
# Exposure of 10; others on Debian 12: oomd 2.0, chrony 3.7, irqbalance 8.9, tuned 9.6.
MOST_EXPOSED = {UNIT: 2.2, WATCH: 1.3, RAID: 2.7, PROBE: 1.5, DRAIN: 1.7, CACHES: 1.7}
# As the units' comments have it: the agent with its maps.
RESIDENT_MB = {UNIT: 45 + 16, WATCH: 21}
both = pytest.mark.parametrize("unit", [UNIT, WATCH], ids=lambda unit: unit.stem)
SERVICES = [UNIT, WATCH, RAID, PROBE, DRAIN, CACHES]
services = pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
ANALYZE = "systemd-analyze"


def settings(unit: Path = UNIT) -> Dict[str, List[str]]:
    """Key -> values in order of the file, over all sections."""
    found: Dict[str, List[str]] = {}
    for key, value in re.findall(r"^([A-Z]\w+)=(.*)$", unit.read_text(), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


@pytest.fixture
def runnable(tmp_path: Path) -> Path:
    """A directory with the units, and commands that exist here: verify looks for them."""
    if not shutil.which(ANALYZE):
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    for unit in (*SERVICES, TIMER):
        text = re.sub(r"/usr/bin/writeback[\w-]+", "/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(text)
    # And it looks for the man pages that they name.
    made = run([sys.executable, str(ROOT / "docs/man/generate.py"), str(tmp_path)], tmp_path)
    assert made.returncode == 0, made.stdout
    return tmp_path


def test_verify_finds_nothing(runnable: Path) -> None:
    verify = [ANALYZE, "verify", *(str(runnable / unit.name) for unit in (*SERVICES, TIMER))]
    result = run(verify, runnable, MANPATH=str(runnable / "man"))
    # An unknown key is told and ignored, with exit code 0.
    about_us = [line for line in result.stdout.splitlines() if "writebackd" in line]
    assert (result.returncode, about_us) == (0, [])


def test_exposure(runnable: Path) -> None:
    units = [str(runnable / unit.name) for unit in MOST_EXPOSED]
    result = run([ANALYZE, "security", "--no-pager", "--offline=true", *units], runnable)
    exposed = dict(re.findall(r"exposure level for (\S+): (\d+\.\d)", result.stdout))
    assert exposed.keys() == {unit.name for unit in MOST_EXPOSED}, result.stdout
    for unit, most in MOST_EXPOSED.items():
        assert float(exposed[unit.name]) <= most, unit.name


@both
def test_directories_are_the_programs_own(unit: Path) -> None:
    found = settings(unit)
    assert found["RuntimeDirectory"] == [str(RUNTIME_DIR.relative_to("/run"))]
    # The ledger is in the runtime directory: without this, systemd deletes it at a
    # restart, and the next start would take our limits for the originals.
    assert found["RuntimeDirectoryPreserve"] == ["yes"]
    if unit is UNIT:
        assert found["StateDirectory"] == [str(STATE_DIR.relative_to("/var/lib"))]
        # Without CAP_CHOWN root gives files to its own groups only. A group that a unit names and
        # nobody has made keeps it from starting.
        assert found["SupplementaryGroups"] == ["adm"]
        assert "\ng adm -\n" in (ROOT / "systemd" / "writebackd.sysusers").read_text()


@both
def test_limits_can_be_written_and_nothing_else(unit: Path) -> None:
    found = settings(unit)
    assert found["ProtectKernelTunables"] == ["yes"]
    assert found["ReadWritePaths"] == ["/proc/sys/vm /sys/devices"]


def test_the_watcher_comes_with_the_daemon_and_outlives_it() -> None:
    unit, watch = settings(), settings(WATCH)
    assert WATCH.name in unit["Wants"] and WATCH.name in unit["After"]
    # While a restart is due the daemon's unit is "activating", and this one needed.
    assert watch["StopWhenUnneeded"] == ["yes"]
    # What stops or restarts it together with the daemon would take away who restores.
    assert not {"PartOf", "BindsTo", "Requires", "Requisite"} & set(watch)
    stop_s = float(watch["TimeoutStopSec"][0])
    assert stop_s > watcher._LEAVE_S + watcher._HAND_S + ledger_restore.WAIT_S
    assert f"--runtime-dir {RUNTIME_DIR}" in watch["ExecStart"][0]  # not that of one run by hand
    assert watch["Restart"] == ["always"] and watch["StartLimitIntervalSec"] == ["0"]


def test_the_probe_is_compiled_before_the_daemon_starts_and_only_without_btf() -> None:
    unit, service = settings(), settings(PROBE)
    assert PROBE.name in unit["Wants"] and PROBE.name in unit["After"]
    assert service["ConditionPathExists"] == [f"!{BTF}"]
    assert service["Type"] == ["oneshot"] and service["ExecStart"][0].startswith("-")
    assert bcc_programs.LIMIT_S < float(service["TimeoutStartSec"][0])
    assert service["CacheDirectory"] == [str(CACHE_DIR.relative_to("/var/cache"))]


def test_a_shutdown_drains_before_the_daemon_stops_for_a_bounded_time_and_says_so() -> None:
    drain = settings(DRAIN)
    # What starts after another unit is stopped before it.
    assert {UNIT.name, CACHES.name, "local-fs.target"} <= set(drain["After"][0].split())
    assert "ExecStart" not in drain and drain["RemainAfterExit"] == ["yes"]
    # Its own end comes first, or systemd kills it before it has told anything.
    (limit,) = drain["Environment"]
    limit_s = span(limit.partition("TIMEOUT=")[2])
    assert limit_s + DRAIN_LEASE_S <= float(drain["TimeoutStopSec"][0])
    assert drain["StandardOutput"] == ["journal+console"]
    # A sync that hangs is not waited for again.
    assert drain["KillMode"] == ["process"]
    # Stopping or restarting the daemon alone is no shutdown.
    assert not {"PartOf", "BindsTo", "Requires"} & set(drain)
    assert "Also" not in drain and DRAIN.name not in UNIT.read_text()


@pytest.mark.parametrize("state, drained", [
    ("stopping", "drain --timeout 90s\n"), ("running", ""), ("degraded", ""), ("", ""),
])  # fmt: skip
def test_a_stop_of_the_drain_unit_drains_at_a_shutdown_alone(
    state: str, drained: str, tmp_path: Path
) -> None:
    program = tmp_path / "writebackctl"
    for stub, text in ((program, 'echo "$@"'), (tmp_path / "systemctl", f"echo {state}; exit 1")):
        stub.write_text(f"#!/bin/sh\n{text}\n")
        stub.chmod(0o755)
    text = DRAIN.read_text().replace("\\\n", "").replace("/usr/bin/writebackctl", str(program))
    # As systemd reads it: $$ is a dollar sign.
    (command,) = re.findall(r"^ExecStop=(.*)$", text.replace("$$", "$"), re.MULTILINE)
    path = f"{tmp_path}:{os.environ['PATH']}"
    result = run(shlex.split(command), tmp_path, PATH=path, TIMEOUT="90s")
    assert (result.returncode, result.stdout) == (0, drained)


def test_a_restart_is_well_within_the_lease() -> None:
    (lease,) = (key for key in KEYS if (key.section, key.name) == ("limits", "lease"))
    assert 2 * float(settings()["RestartSec"][0]) < lease.parse(lease.default)


def megabytes(text: str) -> int:
    assert text.endswith("M")
    return int(text[:-1])


@services
def test_it_takes_a_bounded_share_of_the_host(unit: Path) -> None:
    found = settings(unit)
    assert 0 < int(found["CPUQuota"][0].rstrip("%")) <= 100
    assert {"MemoryMax", "TasksMax"} < set(found)
    if unit in (RAID, PROBE, DRAIN, CACHES):
        return  # may be the first to go
    # More than is resident, so that reclaim leaves all of it; less than the maximum.
    assert RESIDENT_MB[unit] <= megabytes(found["MemoryMin"][0]) < megabytes(found["MemoryMax"][0])
    assert found["ManagedOOMPreference"] == ["avoid"]
    assert int(found["OOMScoreAdjust"][0]) <= -900


def test_mounts_stay_visible() -> None:
    """ProtectHome=yes or tmpfs hides a filesystem on /home from mountinfo, and so from us."""
    assert settings()["ProtectHome"] == ["read-only"]


def test_killed_means_restored_and_hopeless_means_stopped() -> None:
    unit = settings()
    assert unit["ExecStopPost"] == ["/usr/bin/writebackctl restore --honour-keep --lease"]
    assert unit["Restart"] == ["on-failure"]  # as cli/restore.py takes for granted
    assert {int(code) for code in unit["RestartPreventExitStatus"][0].split()} == {
        USAGE,
        NOT_PERMITTED,
    }


def test_nothing_runs_in_a_container_where_limits_are_the_host_s() -> None:
    for unit in (UNIT, WATCH, PROBE, DRAIN, CACHES):
        assert settings(unit)["ConditionVirtualization"] == ["!container"], unit.name
    for unit in (UNIT, WATCH):
        assert settings(unit)["ConditionPathIsReadWrite"] == ["/proc/sys/vm"], unit.name


def test_it_starts_after_what_sets_the_limits_at_boot() -> None:
    services = {"systemd-sysctl", "tuned", "saptune", "sapconf"}
    after = {unit for line in settings()["After"] for unit in line.split()}
    assert {f"{name}.service" for name in services} <= after


def test_kill_exists_where_the_unit_calls_it() -> None:
    command = settings()["ExecReload"][0].split()
    assert Path(command[0]).exists()
    listed = subprocess.run([command[0], "-l"], capture_output=True, text=True, check=True)
    assert command[1].lstrip("-") in listed.stdout


def test_who_asks_raid_tools_comes_with_the_daemon_and_leaves_its_file() -> None:
    unit, service, timer = settings(), settings(RAID), settings(TIMER)
    assert unit["Also"] == [TIMER.name] and timer["WantedBy"] == [UNIT.name]
    assert timer["StopWhenUnneeded"] == ["yes"]
    # The file goes with the directory, unless that is kept between two runs.
    assert service["RuntimeDirectory"] == [str(Path(REPORT).parent.relative_to("/run"))]
    assert service["RuntimeDirectoryPreserve"] == ["yes"]
    assert service["Type"] == ["oneshot"] and service["IOSchedulingClass"] == ["idle"]
    # Tools open device nodes; the daemon does not see any.
    assert "PrivateDevices" not in service and unit["PrivateDevices"] == ["yes"]
    # A daemon that reads a file of before the last run calls it stale; three runs is what that is.
    minutes = int(timer["OnUnitInactiveSec"][0][:-3])
    assert 3 * minutes * 60 <= STALE_S < 4 * minutes * 60


def test_who_follows_the_caches_comes_and_goes_with_the_daemon() -> None:
    service = settings(CACHES)
    assert settings(RAID)["Wants"] == [CACHES.name] and service["PartOf"] == [UNIT.name]
    assert service["ExecStart"] == [f"/usr/bin/writebackd-raid --caches {CACHES_S:g}"]
    assert service["RuntimeDirectory"] == [str(Path(FILLS).parent.relative_to("/run"))]
    # dmsetup needs the one node, and nothing else.
    assert service["DevicePolicy"] == ["closed"]
    assert service["DeviceAllow"] == ["/dev/mapper/control rw"]


def test_a_run_of_the_collector_has_time_for_tools_that_all_hang() -> None:
    minutes = int(settings(RAID)["TimeoutStartSec"][0][:-3])
    # The question that hangs is the last one of its tool.
    assert 2 * LIMIT_S * len(kinds(KernelFiles())) <= minutes * 60
