# SPDX-License-Identifier: GPL-2.0-or-later
"""Disks that the model can be: parameters and presets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import List


@dataclass(frozen=True)
class Disk:
    """Parameters of the model; sizes and rates per second as 512M, 1024-based."""

    size: str = "16G"
    cache: str = "512M"
    rate: str = "250M"
    link: str = "1G"
    seek_us: int = 100
    latency_us: int = 100
    mode: str = "writeback"

    def args(self) -> List[str]:
        return [f"{key}={value}" for key, value in asdict(self).items()]
