# SPDX-License-Identifier: GPL-2.0-or-later
"""Access to kernel files; every path lies under a root that tests replace."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import List, Optional, Tuple

# A seq_file gives about a page a read, whatever is asked for; attributes fit in one.
_CHUNK = 1 << 16
# 100 000 mounts are 20 MB of mountinfo; what is far larger is no kernel file.
MOST_BYTES = 64 << 20


class KernelFiles:
    """Reads and writes /proc and /sys files, given by absolute paths, below `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        # Plain string concatenation: pathlib costs 5 us a join, a read of
        # /proc/sys/vm/dirty_bytes 4 us.
        self._prefix = str(root).rstrip("/")

    def path(self, name: str) -> Path:
        """`name` (absolute, as on the live system) as a path below the root."""
        return Path(self._prefix + name)

    def read_whole(self, name: str) -> str:
        """The file's text, which may end with somebody's name. Raises OSError, EFBIG above 64 MiB.

        Undecodable bytes become surrogates: device and mount names are bytes.
        """
        return self.read_owned(name)[0]

    def read_owned(self, name: str) -> Tuple[str, int]:
        """As `read_whole`, with the uid of the file's owner."""
        chunks: List[bytes] = []
        left = MOST_BYTES
        fd = os.open(self._prefix + name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # A short read is not the end of a seq_file: only b"" is.
            while chunk := os.read(fd, _CHUNK):
                chunks.append(chunk)
                left -= len(chunk)
                if left < 0:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
            uid = os.fstat(fd).st_uid
        finally:
            os.close(fd)
        return b"".join(chunks).decode("utf-8", "surrogateescape"), uid

    def read(self, name: str) -> str:
        """The file's text without surrounding white space. Raises as `read_whole`."""
        return self.read_whole(name).strip()

    def read_int(self, name: str) -> int:
        """The file as a decimal integer. Raises OSError, or ValueError naming the file."""
        text = self.read(name)
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name}: expected an integer, found {text[:40]!r}") from None

    def try_read(self, name: str) -> Optional[str]:
        """As `read`, but None if the file is missing or cannot be read."""
        try:
            return self.read(name)
        except OSError:
            return None

    def write(self, name: str, value: str) -> None:
        """Write `value` in one write(2). Raises OSError with the kernel's errno.

        One call, because a sysctl or sysfs handler parses every write on its
        own: a split value would be two values.
        """
        data = value.encode("utf-8", "surrogateescape")
        # No O_CREAT: a missing lever must fail.  /proc and /sys ignore O_TRUNC.
        fd = os.open(self._prefix + name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            written = os.write(fd, data)
        finally:
            os.close(fd)
        if written != len(data):
            raise OSError(errno.EIO, f"short write, {written} of {len(data)} bytes", name)

    def listdir(self, name: str) -> List[str]:
        """Names in a directory, sorted; empty if it does not exist."""
        try:
            return sorted(os.listdir(self._prefix + name))
        except (OSError, ValueError):  # a NUL in the name
            return []

    def readlink(self, name: str) -> Optional[str]:
        """Target of a symbolic link; None if there is none."""
        try:
            return os.readlink(self._prefix + name)
        except OSError:
            return None

    def inode(self, name: str) -> Optional[int]:
        """Inode number of `name`, links followed; None if it does not exist.

        kernfs (sysfs, cgroups) gives none twice, so it tells a device or cgroup
        from a later one of the same name.
        """
        try:
            return os.stat(self._prefix + name).st_ino
        except OSError:
            return None
