# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the daemon for 72 000 ticks of a tenth of a second: `python -m tests.soak`.

    python -m tests.soak [--seconds 7200] [--out DIR] [--show]

Scenarios alternate beside it (SCENARIOS): a flood, syncs, both, disks that come and go, questions
on the socket, mode changes, rest.  Once a minute its memory, descriptors, history and
ticks are written to DIR/soak.jsonl, so that an interrupted run goes on where it was: it
is the same number of ticks in more than one life of the daemon, and growth is judged
within each.  Needs root; the host's limits are put back.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

from tests.kernel.fault_rig import Home, Running, is_alive, limits_kept
from tests.kernel.scratch import Scratch, scratch_disk
from tests.vm.inside.flood import FLOOD, SYNCS, background

ROOT = Path(__file__).resolve().parents[2]
TICK_S = 0.1
# Memory settles while caches fill and every scenario has been seen once.
SETTLED_S = 600.0
EACH_S = 20.0
SAMPLE_S = 60.0
# What is promised.
MOST_GROWN_KB, MOST_HISTORY_BYTES = 2048, 64 << 20


def flood(home: Home, disk: Scratch, until: float) -> None:
    with background("sh", "-c", FLOOD, str(disk.mountpoint)):
        rest(home, disk, until)


def syncs(home: Home, disk: Scratch, until: float) -> None:
    with background(sys.executable, "-c", SYNCS, f"{disk.mountpoint}/db"):
        rest(home, disk, until)


def both(home: Home, disk: Scratch, until: float) -> None:
    with background("sh", "-c", FLOOD, str(disk.mountpoint)):
        syncs(home, disk, until)


def hotplug(home: Home, disk: Scratch, until: float) -> None:
    """A disk comes and goes, with a filesystem."""
    while time.monotonic() < until:
        with scratch_disk("ext4", 64, "/dev/shm"):
            time.sleep(0.5)
        time.sleep(0.5)


def questions(home: Home, disk: Scratch, until: float) -> None:
    while time.monotonic() < until:
        for verb in ("status", "devices", "why", "verify", "no-such-verb"):
            home.ask(verb)
        time.sleep(0.02)


def steering(home: Home, disk: Scratch, until: float) -> None:
    """Modes, pins and a policy that is read again, twice a second."""
    while time.monotonic() < until:
        for order in ({"mode": "observe"}, {"mode": "enforce"}):
            home.ask("mode", **order)
            home.ask("pin", bytes=24 << 20)
            time.sleep(0.5)
            home.ask("release")


def rest(home: Home, disk: Scratch, until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


SCENARIOS: Sequence[Callable[[Home, Scratch, float], None]] = (
    flood, syncs, both, rest, hotplug, questions, steering, rest,
)  # fmt: skip


class Soak:
    """The record so far, and the daemon that goes on with it."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.record = out / "soak.jsonl"
        self.samples: List[Dict[str, Any]] = []
        if self.record.exists():
            self.samples = [json.loads(line) for line in self.record.read_text().splitlines()]
        self.life = self.samples[-1]["life"] + 1 if self.samples else 0
        self.done_s = sum(self._lives().values())

    def _lives(self) -> Dict[int, float]:
        return {sample["life"]: sample["up_s"] for sample in self.samples}

    def sample(self, home: Home, pid: int, begun: float) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        found = {
            "life": self.life,
            "up_s": round(time.monotonic() - begun, 1),
            "rss_kb": int(status.partition("VmRSS:")[2].split()[0]),
            "threads": int(status.partition("Threads:")[2].split()[0]),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "history_bytes": _size(home.state_dir / "history.db"),
            "cpu_fraction": ((home.ask("status") or {}).get("self") or {}).get("cpu_fraction"),
            "leases_lost": ((home.ask("status") or {}).get("lease") or {}).get("lost"),
        }
        self.samples.append(found)
        with open(self.record, "a") as record:
            record.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)

    def problems(self) -> Iterator[str]:
        """What was promised and is not so."""
        for life in self._lives():
            mine = [s for s in self.samples if s["life"] == life]
            settled = [s for s in mine if s["up_s"] >= SETTLED_S] or mine[-1:]
            grown = settled[-1]["rss_kb"] - settled[0]["rss_kb"]
            if grown > MOST_GROWN_KB:
                yield f"life {life}: {grown} kB more than after {SETTLED_S:.0f} s"
            if settled[-1]["descriptors"] > settled[0]["descriptors"] + 1:
                yield f"life {life}: descriptors {settled[0]['descriptors']} -> " \
                      f"{settled[-1]['descriptors']}"
            if mine[-1]["history_bytes"] > MOST_HISTORY_BYTES:
                yield f"life {life}: {mine[-1]['history_bytes']} bytes of history"
            if any(s["leases_lost"] for s in mine):
                yield f"life {life}: the lease was lost"

    def summary(self) -> str:
        ticks = int(sum(self._lives().values()) / TICK_S)
        if not self.samples:
            return "no samples yet"
        first, last = self.samples[0], self.samples[-1]
        return (
            f"{ticks} ticks in {len(self._lives())} lives: RSS {first['rss_kb']} -> "
            f"{last['rss_kb']} kB, descriptors {first['descriptors']} -> {last['descriptors']}, "
            f"history {last['history_bytes'] >> 10} KiB"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def soak(out: Path, seconds: float) -> Soak:
    """Go on until `seconds` are done in all."""
    progress = Soak(out)
    home = Home(out / f"life-{progress.life}")
    number = 0
    with limits_kept(), scratch_disk("ext4", 512, str(out)) as disk:
        daemon = Running(home, "--interval", str(TICK_S), "--probe", "auto",
                         "--device", disk.device)
        pid = daemon.process.pid
        try:
            daemon.answering()
            begun = time.monotonic()
            end = begun + seconds - progress.done_s
            next_sample = begun
            while time.monotonic() < end:
                if time.monotonic() >= next_sample:
                    progress.sample(home, pid, begun)
                    next_sample += min(SAMPLE_S, max(EACH_S, seconds / 10))
                scenario = SCENARIOS[number % len(SCENARIOS)]
                number += 1
                scenario(home, disk, min(end, time.monotonic() + EACH_S))
                assert is_alive(pid), home.log.read_text()[-2000:]
            progress.sample(home, pid, begun)
        finally:
            code = daemon.end()
        home.check_log()
        assert code == 0, f"it ended with {code}"
    return progress


def main(argv: Sequence[str]) -> int:
    """1 when something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak", metavar="DIR")
    parser.add_argument("--show", action="store_true", help="the record so far; run nothing")
    options = parser.parse_args(argv)
    out = options.out.absolute()
    progress = Soak(out) if options.show else soak(out, options.seconds)
    found = list(progress.problems())
    print("\n".join([progress.summary(), *found]))
    return 1 if found else 0


if __name__ == "__main__":
    # As a kill by `timeout` would: the finally clauses put all back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    sys.exit(main(sys.argv[1:]))
