# SPDX-License-Identifier: GPL-2.0-or-later
"""What a block device did, by the kernel's account."""

from __future__ import annotations

from pathlib import Path

SECTOR = 512  # unit of /sys/block/*/stat, whatever the device's own
SECTORS_WRITTEN = 6  # its column there


def device_written(device: str) -> int:
    """Bytes written to a block device (loop3) since it was made."""
    columns = Path(f"/sys/block/{device}/stat").read_text().split()
    return int(columns[SECTORS_WRITTEN]) * SECTOR
