# SPDX-License-Identifier: GPL-2.0-or-later
"""What a restart keeps: the mode of a verb, a pin and a yield, until the next boot."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Callable

import pytest

from fake_host import Rig
from writebackd.cli.status_screen import headline
from writebackd.kernel.map_readers import Reading
from writebackd.paths import ORDERS
from writebackd.types.decision import Mode
from writebackd.types.levers import ForeignWrite, VmLimits

THEIRS = 200_000_000
OTHER_BOOT = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig(tmp_path, monkeypatch)
    rig.tick(2)
    return rig


def restarted(rig: Rig, seconds: float = 3.0) -> Rig:
    """As after kill -9: nothing was put back, and nothing saved at the end."""
    rig.close()
    rig.now += seconds
    rig.daemon = rig.start()
    rig.tick(3)
    return rig


def yielding(rig: Rig) -> Rig:
    rig.daemon.handle("pin", {"bytes": 32 << 20}, 0)
    rig.tick(2)
    rig.host.sysctl("dirty_bytes", THEIRS)
    write = ForeignWrite("dirty_bytes", str(THEIRS), 4242, "another-tool")
    rig.probe.next = Reading(writers=(write,))
    rig.tick()
    rig.probe.next = Reading()
    assert rig.status()["yielded"]
    return rig


def test_a_restart_keeps_mode_pin_and_yield(rig: Rig) -> None:
    yielding(rig)
    status = restarted(rig).status()
    assert rig.host.limits == VmLimits(THEIRS, 0, 0, 10)
    assert "another-tool (pid 4242" in status["yielded"] and status["pin_bytes"] == 32 << 20
    assert [each["name"] for each in status["alerts"]] == ["FOREIGN_WRITER"]
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    restarted(rig)
    assert rig.host.limits.dirty_bytes == 32 << 20
    rig.daemon.handle("mode", {"mode": "observe"}, 0)
    restarted(rig)
    assert rig._options.mode is Mode.ENFORCE and rig.status()["mode"] == "observe"
    assert rig.host.limits == VmLimits(THEIRS, 0, 0, 10)


def test_a_yield_is_known_to_a_daemon_killed_before_it_let_go(rig: Rig) -> None:
    rig.daemon.handle("pin", {"bytes": 32 << 20}, 0)
    rig.tick(2)
    rig.host.sysctl("dirty_bytes", THEIRS)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    rig.daemon._act = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rig.tick()
    restarted(rig)
    assert rig.host.limits == VmLimits(THEIRS, 0, 0, 10)
    assert "dirty_bytes=200000000" in rig.status()["yielded"]


def test_a_timed_pin_ends_at_its_time_whatever_was_restarted(rig: Rig) -> None:
    rig.daemon.handle("pin", {"bytes": 32 << 20, "for_s": 60.0}, 1234)
    status = restarted(rig, 10.0).status()
    assert status["pin_bytes"] == 32 << 20 and status["pin"]["uid"] == 1234
    assert 40.0 < status["pin"]["left_s"] < 50.0
    rig.tick(60)
    assert rig.status()["pin_bytes"] is None
    assert restarted(rig).status()["pin_bytes"] is None


@pytest.mark.parametrize("how", ["boot", "damaged"])
def test_what_was_ordered_ends_with_the_boot(
    rig: Rig, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    yielding(rig)
    rig.daemon.handle("mode", {"mode": "observe"}, 0)
    if how == "boot":
        rig.host.boot_id = OTHER_BOOT
    else:
        path = rig.runtime_dir / ORDERS
        path.write_text(path.read_text().replace("observe", "enforce"))
    status = restarted(rig).status()
    assert (status["mode"], status["yielded"], status["pin_bytes"]) == ("enforce", None, None)
    assert ("orders.json: not used" in caplog.text) == (how == "damaged")


def test_orders_that_cannot_be_saved_are_told_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, body: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("writebackd.runtime_state.save_json", full)
    rig.daemon.handle("mode", {"mode": "observe"}, 0)
    rig.tick(3)
    assert caplog.text.count("a restart will not know mode, yield and pin") == 1


def observe(rig: Rig) -> None:
    rig.daemon.handle("mode", {"mode": "observe"}, 0)


def pin(rig: Rig) -> None:
    rig.daemon.handle("pin", {"bytes": 32 << 20}, 0)


@pytest.mark.parametrize(
    ("order", "command"),
    [(observe, "writebackctl enforce"), (yielding, "writebackctl enforce"),
     (pin, "writebackctl release")],
)  # fmt: skip
def test_status_says_which_command_ends_it(
    rig: Rig, order: Callable[[Rig], object], command: str
) -> None:
    order(rig)
    rig.tick(2)
    assert f"`{command}`" in headline(rig.status())
