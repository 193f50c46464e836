# SPDX-License-Identifier: GPL-2.0-or-later
"""Alerts in the daemon: what the pure part cannot know, and ticks that it never sees."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Optional, Tuple

import pytest

from fake_host import FakeHost, Rig
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Severity
from writebackd.alerts.blind import GOOD_TICKS
from writebackd.alerts.detect import detect
from writebackd.daemon import SILENT_TICKS
from writebackd.kernel.argv_redaction import MOST_CHARS, CommandLines
from writebackd.kernel.conflicting_tools import ConflictingTool
from writebackd.kernel.files import KernelFiles
from writebackd.report.attribution import with_command_lines
from writebackd.report.control_server import RequestError
from writebackd.report.history_schema import read_alerts

DD = ("dd if=/dev/zero", b"dd\0if=/dev/zero\0")


def process(root: Path, pid: int, comm: str, cmdline: bytes) -> None:
    home = root / "proc" / str(pid)
    home.mkdir(parents=True)
    (home / "comm").write_text(comm + "\n")
    (home / "cmdline").write_bytes(cmdline)


def line_of(lines: CommandLines, pid: int, comm: str) -> Optional[str]:
    lines.ask([(pid, comm)])
    for _ in range(200):
        line = lines.of(pid, comm)
        if line is not None:
            return line.text
        time.sleep(0.01)
    return None


def test_command_lines_come_from_a_thread_in_one_printable_line(tmp_path: Path) -> None:
    process(tmp_path, 17, "dd", DD[1])
    process(tmp_path, 18, "sh", b"sh\0-c\0/\x1b[2J" + b"x" * 999)
    lines = CommandLines(KernelFiles(tmp_path))
    assert lines.of(17, "dd") is None
    assert line_of(lines, 17, "dd") == DD[0]
    assert (line_of(lines, 18, "sh") or "").startswith("sh -c /?[2Jx")
    assert len(line_of(lines, 18, "sh") or "") == MOST_CHARS + 3


def test_a_pid_that_was_given_away_has_no_command_line(tmp_path: Path) -> None:
    process(tmp_path, 17, "vim", b"vim\0secret\0")
    process(tmp_path, 18, "dd", DD[1])
    lines = CommandLines(KernelFiles(tmp_path))
    lines.ask([(17, "dd"), (18, "dd")])
    assert line_of(lines, 18, "dd") == DD[0]
    assert lines.of(17, "dd") is None


def test_a_process_whose_memory_hangs_holds_up_nobody(tmp_path: Path) -> None:
    hangs = threading.Event()

    class Hanging(KernelFiles):
        def read(self, name: str) -> str:
            hangs.wait(30.0)
            return super().read(name)

    lines = CommandLines(Hanging(tmp_path))
    begun = time.monotonic()
    threads = threading.active_count()
    for pid in range(50):
        lines.ask([(pid, "dd")])
        assert lines.of(pid, "dd") is None
    assert time.monotonic() - begun < 1.0
    assert threading.active_count() <= threads + 1
    hangs.set()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch, FakeHost(tmp_path / "root"))


def names(rig: Rig) -> Tuple[str, ...]:
    return tuple(alert["name"] for alert in rig.status()["alerts"])


def test_ticks_that_cannot_be_read_are_blind_until_one_can(rig: Rig) -> None:
    rig.tick(3)
    assert names(rig) == ()
    rig.host.errors["/proc/vmstat"] = 5
    rig.tick(SILENT_TICKS - 1)
    assert names(rig) == ()
    rig.tick()
    (alert,) = rig.status()["alerts"]
    assert (alert["name"], alert["severity"], alert["cause"]) == ("BLIND", "critical", "no-data")
    assert "cannot read kernel statistics" in alert["summary"]
    del rig.host.errors["/proc/vmstat"]
    rig.tick(GOOD_TICKS - 1)
    assert names(rig) == ("BLIND",)
    rig.tick()
    assert names(rig) == ()
    rig.end()


def happened(rig: Rig) -> List[str]:
    """What the history was told of BLIND."""
    assert rig.daemon._history.close(5.0)
    records = read_alerts(rig.runtime_dir.parent / "state" / "history.db")
    return [each["what"] for each in map(json.loads, records) if each["alert"]["name"] == "BLIND"]


def test_ticks_that_fail_again_and_again_are_told_once(rig: Rig) -> None:
    rig.tick(3)
    for _ in range(5):
        rig.host.errors["/proc/vmstat"] = 5
        rig.tick(SILENT_TICKS)
        del rig.host.errors["/proc/vmstat"]
        rig.tick(SILENT_TICKS)
        assert names(rig) == ("BLIND",)
    rig.tick(GOOD_TICKS)
    rig.end()
    assert happened(rig) == ["begin", "end"]


def test_where_nothing_could_ever_be_read_it_is_told(rig: Rig) -> None:
    rig.host.errors["/proc/vmstat"] = 5
    rig.tick(2 * SILENT_TICKS)
    with pytest.raises(RequestError, match="for 10 ticks.*no measurement yet"):
        rig.daemon.handle("alerts", {}, 0)
    rig.end()
    assert happened(rig) == ["begin"]


def test_while_a_lost_lease_is_not_held_again_nothing_is_seen(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tick(3)
    monkeypatch.setattr(rig.daemon._lease, "renew", lambda: False)
    not_yet = "limits not applied again yet: EIO"
    monkeypatch.setattr(rig.daemon._lease, "take_again", lambda _: not_yet)
    rig.tick(SILENT_TICKS - 1)
    assert names(rig) == ()
    rig.tick()
    (alert,) = rig.status()["alerts"]
    assert (alert["name"], alert["summary"]) == ("BLIND", "limits not applied again yet: EIO")
    monkeypatch.undo()
    rig.end()


def test_the_detector_is_told_whether_limits_are_in_force(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def spy(*given: Any) -> Any:
        told.append(given[-1])
        return detect(*given)

    monkeypatch.setattr("writebackd.tick_report.detect", spy)
    rig.tick(2)
    rig.pin(15 << 20)
    rig.tick()
    rig.host.write_errors["dirty_bytes"] = (errno.EACCES, False)
    rig.pin(14 << 20)
    rig.tick()
    del rig.host.write_errors["dirty_bytes"]
    rig.tick()
    rig.daemon.state.off = tmp_path / "off"
    monkeypatch.setattr(rig.daemon, "_obey_off_switch", lambda: None)
    rig.tick()
    assert told[-4:] == [True, False, True, False]
    rig.end()


def test_discards_are_seen_as_completed(rig: Rig, tmp_path: Path) -> None:
    rig.tick(2)
    path = tmp_path / "root/proc/diskstats"
    first, rest = path.read_text().split("\n", 1)
    fields = first.split()
    fields[14] = "7"
    path.write_text(" ".join(fields) + "\n" + rest)
    rig.tick()
    assert rig.daemon.state.snapshot is not None
    assert rig.daemon.state.snapshot.sample.devices[0].others == 7
    rig.end()


def test_whom_an_alert_blames_gets_his_command_line(rig: Rig, tmp_path: Path) -> None:
    process(tmp_path / "root", 4711, "dd", DD[1])
    alert = Alert(
        AlertName.COLLAPSE, "sda", Severity.WARNING, Cause.FLOOD, 1.0, "", "",
        (Culprit(4711, "dd"), Culprit(None, None)),
    )  # fmt: skip
    for _ in range(200):
        (told,) = with_command_lines((alert,), rig.daemon._report._command_lines)
        if told.culprits[0].cmdline is not None:
            break
        time.sleep(0.01)
    assert told.culprits == (
        Culprit(4711, "dd", DD[0], uid=os.geteuid()), Culprit(None, None)
    )  # fmt: skip
    # Who has exited is told as that, in the summary as well.
    (rig.host.path("/proc/4711") / "comm").write_text("cat\n")
    alert = replace(alert, summary=f"caused by {alert.culprits[0].who}")
    (told,) = with_command_lines((alert,), rig.daemon._report._command_lines)
    assert told.summary == "caused by dd (pid 4711, exited)"
    # And no rival of that number is shown.
    gone, file = (ConflictingTool("note", "agent", "ktune", None, where, "it runs")
                  for where in ("pid 4712", "/etc/sysctl.conf:1"))
    rig.daemon._monitor.rivals.tools = (gone, replace(gone, where="pid 4711"), file)
    assert rig.daemon._monitor.conflicting == (replace(gone, where="pid 4711"), file)
    rig.end()
