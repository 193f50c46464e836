# SPDX-License-Identifier: GPL-2.0-or-later
"""What the probe costs a block IO, in a guest whose clock counts instructions: each is 1 ns."""

from __future__ import annotations

import os

from tests.bench.probe_cost import net_and_empty, open_with_empty
from tests.kernel.scratch import scratch_disk
from tests.vm.inside.recorded import IO_INSTRUCTIONS, Record
from writebackd.kernel import libbpf

# The probe times 32 requests of a class in a jiffy, and then one in four.
JOBS = {
    "full rate": ("--io_size=64M",),
    "each timed": ("--io_size=8M", "--rate_iops=2000,2000"),
}
# Half as many again as on 6.1, which takes most: 301.
MOST = 450


def test_instructions_per_io(record_testsuite_property: Record) -> None:
    record_testsuite_property("release", os.uname().release)
    stats = libbpf.enable_run_stats()
    with scratch_disk("ext4", 256, "/dev/shm") as disk, open_with_empty(False) as obj:
        for name, options in JOBS.items():
            net, empty = net_and_empty(disk, obj, *options)
            print(f"\n{name}: {net:.1f} instructions per IO, besides {empty:.1f} of an empty one")
            record_testsuite_property(IO_INSTRUCTIONS + name, round(net))
            assert 0 < net <= MOST
    os.close(stats)
