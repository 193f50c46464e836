# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk of one's own: a loop device on a sparse file, with a filesystem."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional


def run(*argv: str) -> str:
    """Standard output of a command; AssertionError with its stderr when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Scratch:
    device: str  # loop3
    devno: str  # 7:3
    mountpoint: Optional[Path]
    backing: Path


@contextlib.contextmanager
def scratch_disk(
    fstype: Optional[str], size_mb: int = 512, directory: Optional[str] = None
) -> Iterator[Scratch]:
    """A loop device with `fstype` mounted (None: bare); taken down whatever happens.

    Its file lies in `directory`: on tmpfs it is fast but takes no direct IO.
    """
    home = Path(tempfile.mkdtemp(prefix="writebackd-test-", dir=directory))
    backing, mountpoint = home / "disk", home / "mnt"
    device = ""
    mounted = False
    try:
        with open(backing, "wb") as file:
            file.truncate(size_mb << 20)
        device = run("losetup", "--find", "--show", str(backing))
        name = device.rpartition("/")[2]
        devno = Path(f"/sys/block/{name}/dev").read_text().strip()
        if fstype is not None:
            quiet = {"ext4": ["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
                     "xfs": ["-q", "-f"], "btrfs": ["-q", "-f"]}[fstype]
            run(f"mkfs.{fstype}", *quiet, device)
            mountpoint.mkdir()
            run("mount", device, str(mountpoint))
            mounted = True
        yield Scratch(name, devno, mountpoint if fstype else None, backing)
    finally:
        if mounted:
            run("umount", str(mountpoint))
        if device:
            run("losetup", "--detach", device)
        for path in (backing, mountpoint):
            with contextlib.suppress(FileNotFoundError):
                path.rmdir() if path.is_dir() else path.unlink()
        home.rmdir()

