# SPDX-License-Identifier: GPL-2.0-or-later
"""hold.py BYTES: takes memory, says `full`, and keeps it until it is killed."""

import mmap
import signal
import sys


def hold(size: int) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # should memory run out after all, this goes first
    memory = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        memory[page] = 1
    print("full", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    hold(int(sys.argv[1]))
