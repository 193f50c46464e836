# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe's part of doctor: opens it and reports hooks and gaps."""

from __future__ import annotations

from typing import List, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.probe import BpfProbe, object_image


def probe_report() -> List[Tuple[str, str]]:
    """`(level, text)` lines, level being "ok", "note" or "warn".

    Opens the probe as the daemon would and closes it again; needs root.
    """
    try:
        probe = BpfProbe(object_image(), KernelFiles())
    except (OSError, BpfError) as error:
        return [("warn", f"BPF probe: {error}; the daemon uses /proc, which shows no fsync")]
    try:
        info = probe.info()
        report = [
            ("ok", f"block requests: {info.request_hook}"),
            ("ok", f"fsync: {info.fsync_hook}")
            if info.fsync_hook
            else ("warn", "fsync: no hook works here"),
            ("ok", f"BPF maps: {info.map_bytes / 1024:.0f} KiB"),
        ]
        report += [("note", f"not visible: {miss}") for miss in info.misses]
        report += [
            ("note", f"refused by this kernel: {hook} ({error})")
            for hook, error in probe.choice.refused.items()
        ]
        return report
    finally:
        probe.close()
