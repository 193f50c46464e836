# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guest's run says of its kernel, beside the outcomes of tests."""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping

Record = Callable[[str, object], None]  # pytest's record_testsuite_property
# In front of a job's name, and of what a flood was like.
IO_INSTRUCTIONS, FLOOD = "io_instructions: ", "flood: "


def record_probe(record: Record, probe: Mapping[str, Any]) -> None:
    """The kernel, and its probe as `status` has it."""
    record("release", os.uname().release)
    record("machine", os.uname().machine)
    for name in ("backend", "request_hook", "fsync_hook"):
        if probe[name] is not None:
            record(name, probe[name])
    for miss in probe["misses"]:
        record("miss", miss)
