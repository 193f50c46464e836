# SPDX-License-Identifier: GPL-2.0-or-later
"""sysctl.d applied again: the original value, which is a yield of a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from fake_host import FakeHost, Rig
from fake_vm import DEFAULT
from writebackd.cli.status_screen import headline
from writebackd.kernel.conflicting_tools import find_conflicting_tools
from writebackd.kernel.map_readers import Reading
from writebackd.types.levers import ForeignWrite

PIN = 32 << 20


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    host = FakeHost(tmp_path / "root")
    host.tree.text("/etc/sysctl.d/90-site.conf", "vm.dirty_ratio = 20\n")
    rig = Rig(tmp_path, monkeypatch, host)
    rig.daemon._monitor.rivals.tools = find_conflicting_tools(host)
    monkeypatch.setattr(rig.daemon._monitor.rivals, "look", lambda: None)
    rig.tick(2)
    rig.pin(PIN)
    rig.tick(2)
    assert host.limits.dirty_bytes == PIN
    return rig


def applied(rig: Rig, comm: Optional[str], ratio: int = 20) -> str:
    """Both lines of the file; what status says of it then."""
    values = {"dirty_ratio": ratio, "dirty_background_ratio": 10}
    for lever, value in values.items():
        rig.host.sysctl(lever, value)
    rig.probe.next = Reading(writers=tuple(
        ForeignWrite(lever, str(value), 4242, comm) for lever, value in values.items()
    ) if comm else ())
    rig.tick()
    rig.probe.next = Reading()
    said: str = rig.status()["yielded"]
    assert rig.host.limits.dirty_bytes == 0
    return said


@pytest.mark.parametrize("comm", ["systemd-sysctl", "sysctl"])
def test_the_originals_applied_again_are_a_yield_of_a_minute(rig: Rig, comm: str) -> None:
    said = applied(rig, comm)
    assert f"{comm} (pid 4242" in said and "/etc/sysctl.d/90-site.conf:1" in said
    assert "nobody wants another limit; enforcing again after 1m0s" in said
    rig.tick()
    assert "enforce (yielded, enforcing again in 59s)" in headline(rig.status())
    alert = rig.status()["alerts"][0]
    assert (alert["name"], "nothing is protected until then" in alert["summary"]) == (
        "FOREIGN_WRITER", True)
    rig.tick(57)
    assert rig.host.limits == DEFAULT
    rig.tick(4)
    assert rig.host.limits.dirty_bytes == PIN
    status = rig.status()
    assert status["yielded"] is None and status["alerts"] == []
    rig.end()
    assert rig.host.limits == DEFAULT


@pytest.mark.parametrize(("comm", "ratio"), [("tuned", 20), (None, 20), ("systemd-sysctl", 40)])
def test_another_writer_or_value_is_a_yield_for_good(
    rig: Rig, comm: Optional[str], ratio: int
) -> None:
    assert "enforcing again" not in applied(rig, comm, ratio)
    rig.tick(200)
    assert rig.host.limits.dirty_ratio == ratio and rig.status()["yielded"]


def test_three_times_in_an_hour_and_then_no_more(rig: Rig) -> None:
    for _ in range(3):
        assert "enforcing again" in applied(rig, "sysctl")
        rig.tick(70)
        assert rig.host.limits.dirty_bytes == PIN
    assert "nobody wants another limit)" in applied(rig, "sysctl")
    rig.tick(200)
    assert rig.host.limits == DEFAULT
    assert "until `writebackctl enforce`" in rig.status()["alerts"][0]["summary"]
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    rig.now += 3600.0
    rig.tick(3)
    assert "enforcing again" in applied(rig, "sysctl")


def test_who_sets_another_limit_meanwhile_keeps_it(rig: Rig) -> None:
    applied(rig, "sysctl")
    rig.tick(10)
    rig.host.sysctl("dirty_bytes", 99 << 20)
    rig.tick(200)
    assert rig.host.limits.dirty_bytes == 99 << 20 and rig.status()["yielded"]


def test_the_minute_goes_on_over_a_restart(rig: Rig) -> None:
    applied(rig, "sysctl")
    rig.tick(5)
    rig.close()
    rig.daemon = rig.start()
    rig.pin(PIN)
    rig.tick(40)
    assert rig.host.limits == DEFAULT and rig.status()["yielded"]
    rig.tick(30)
    assert rig.host.limits.dirty_bytes == PIN
