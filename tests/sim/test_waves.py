# SPDX-License-Identifier: GPL-2.0-or-later
"""Floods that come and go: memory takes no more of one than the pause before the next drains."""

from __future__ import annotations

import pytest

from tests.sim.plant import Disk, Flood, Loop, Plant, SyncLoad
from writebackd.policy import load_policy

POLICY = load_policy("default")


@pytest.mark.parametrize("quiet_s", [6.0, 40.0, 60.0])
@pytest.mark.parametrize("on_s,off_s", [(10.0, 10.0), (10.0, 5.0), (5.0, 5.0), (1.0, 20.0)])
def test_what_is_dirty_drains_within_a_pause(quiet_s: float, on_s: float, off_s: float) -> None:
    """However long nobody wrote before the first of them: that was no pause between two."""
    disk = Disk()
    plant = Plant((disk,), (Flood(start_s=quiet_s, on_s=on_s, off_s=off_s),),
                  (SyncLoad(threads=4),))
    loop, most = Loop(POLICY, plant), 0.0
    while plant.now_s < quiet_s + 200.0:
        loop.tick()
        most = max(most, plant.disks[0].dirty)
    assert most <= off_s * disk.drain
