# SPDX-License-Identifier: GPL-2.0-or-later
"""Queue of a disk: /sys/block/X/queue/{nr_requests,max_sectors_kb}.

A write freezes the queue, which waits for every request in flight: it is for a
child (children.py), never for the loop.
"""

from __future__ import annotations

from writebackd.kernel.children import Work, write_in_child
from writebackd.kernel.files import KernelFiles

NAMES = ("nr_requests", "max_sectors_kb")
# BLKDEV_MIN_RQ: the kernel makes 4 of anything below it.
LEAST_REQUESTS = 4


def directory(disk: str) -> str:
    return f"/sys/block/{disk}/queue"


def path(disk: str, name: str) -> str:
    return f"{directory(disk)}/{name}"


def text_for(name: str, value: int) -> str:
    """What to write for `value` requests or KiB."""
    return str(max(LEAST_REQUESTS, value) if name == "nr_requests" else value)


def write(files: KernelFiles, disk: str, name: str, text: str) -> Work:
    """The write, as work for a child."""
    return write_in_child(str(files.path(path(disk, name))), text)
