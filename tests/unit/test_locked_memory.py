# SPDX-License-Identifier: GPL-2.0-or-later
"""Locked memory: what is mapped is not far from what is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import writebackd
from writebackd.kernel import memory_lock

# As many threads as a daemon has, each with an allocation of its own heap.
PROGRAM = """
import threading
from writebackd.kernel import memory_lock as memory

def size():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmSize:"))

memory.lock_used()
before, ready, done = size(), threading.Barrier(11), threading.Event()

def work():
    kept = [bytes(2000) for _ in range(50)]
    ready.wait()
    done.wait()

for _ in range(10):
    threading.Thread(target=work, daemon=True).start()
ready.wait()
print(size() - before)
done.set()
"""


def test_threads_map_little(tmp_path: Path) -> None:
    """By default each maps 64 MB for its heap and 8 MB for its stack, and VmLck counts both."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": os.environ["PATH"],
             "PYTHONPATH": str(Path(writebackd.__file__).resolve().parents[1])},
    )  # fmt: skip
    assert int(found.stdout) < 20 << 10  # KiB


def test_a_kernel_that_cannot_read_code_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_lock, "_POPULATE_READ", 999)  # unknown, as 22 is before 5.14
    assert memory_lock.read_in_code() == "this kernel has no MADV_POPULATE_READ (Linux 5.14)"
