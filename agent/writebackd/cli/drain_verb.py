# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb drain: writes out dirty data, first the page cache, then the write caches below.

The daemon lowers the limits while it is asked to once a second, and makes bcache write out.
sync(1), blockdev(8) and dmsetup(8) do the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set

from writebackd import formats
from writebackd.cli.client import NoAnswer, NoDaemon, request
from writebackd.cli.drain_caches import (
    Cache,
    Child,
    are_caches_unread,
    behind_controllers,
    flush,
    is_mounted,
    sync_nodes,
)
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, CommandError
from writebackd.cli.output import Answer, clean, show_json, width
from writebackd.cli.signals import interrupted_later

if TYPE_CHECKING:
    from writebackd.cli.client_answers import DrainAnswer

INTERRUPTED = 130  # as a shell has it for SIGINT
# Well within the daemon's lease, which each question renews.
_ASK_S = 1.0
_CHILDREN_S = 0.05  # between two looks whether sync has ended
_LINE_S = 5.0  # between two lines where stdout is no terminal
# A cache whose fill has not fallen for so long is stuck.
_STUCK_S = 180.0
_BAR = 20
_WORDS = {
    "timeout": "timed out", "stuck": "a write cache stopped draining",
    "failed": "sync failed", "interrupted": "interrupted", "gone": "a device is gone",
    "unflushed": "a write cache was not flushed",
}  # fmt: skip
# The limits are released after these also with --hold; no outcome: an error ended it.
_RELEASED = ("", "timeout", "interrupted")


def drain(options: argparse.Namespace) -> int:
    order = {"order": "start", "devices": options.devices}
    try:
        begun = request(options.runtime_dir, "drain", order)
    except NoDaemon as error:
        text = f"{error}; `sync` writes the page cache out without it"
        raise CommandError(text, error.exit_code) from None
    run = _DrainRun(options, begun)
    try:
        run.begin()
        run.follow()
    except KeyboardInterrupt:
        run.outcome = "interrupted"
    finally:
        run.release()
    return run.tell()


class _DrainRun:
    def __init__(self, options: argparse.Namespace, begun: Answer) -> None:
        self._options, self._begun = options, begun
        self._begun_s = time.monotonic()
        self._syncs: List[Child] = []
        self._flushes: Dict[str, Child] = {}  # by the disk of the cache, once all is synced
        self._flushing = False  # at the look before
        self._synced_s: Optional[float] = None  # wall clock: when the page cache was written
        self._status: Dict[str, Any] = {}
        self._counted: Dict[str, int] = {}  # by device: its counter when it was last seen
        self._written: Dict[str, int] = {}
        self._rate: Optional[float] = None
        self._most = 1.0  # bytes that were left, of this phase
        self._least, self._least_s = float("inf"), 0.0  # in the caches, and since when
        self._line_s = float("-inf")
        self.outcome = ""  # "clean", or why not
        self._lost = ""  # why the limits are no longer at the floor
        self._held = False
        self._unheld: Sequence[str] = ()  # why not, though asked for
        self._gone: Set[str] = set()
        self._with_controller: Set[str] = set()
        self._stacked: Set[str] = set()  # on something else than a disk: a cache, perhaps

    def begin(self) -> None:
        self._say(f"drain of {clean(', '.join(self._begun['devices']))}; Ctrl-C ends it")
        for line in self._begun["lines"]:
            self._say(f"  {line}")
        self._ask()  # what was written before does not count
        names = self._begun["devices"]
        devices = request(self._options.runtime_dir, "devices")["devices"]
        rows = [row for row in devices if row["name"] in names]
        self._gone.update(set(names) - {row["name"] for row in rows})
        self._with_controller = behind_controllers(rows)
        self._stacked = {row["name"] for row in rows if row["leaves"] != [row["name"]]}
        with interrupted_later():
            self._sync(rows)

    def _sync(self, rows: Sequence[Answer]) -> None:
        are_all_reached = True
        for row in rows:
            filesystems = [fs for fs in row["filesystems"] if is_mounted(fs["mount"], fs["devno"])]
            mounts = [fs["mount"] for fs in filesystems]
            self._syncs += [Child(mount, "sync", "-f", "--", mount) for mount in mounts]
            # Also elsewhere: on another partition, in a mount namespace, or below another mount.
            nodes = sync_nodes(row["name"])
            self._syncs += nodes
            # btrfs has no node; the sandbox of writebackd-drain.service has none at all.
            are_all_reached &= bool(nodes) or any(
                fs["type"] == "btrfs" or fs["devno"] == row["devno"] for fs in filesystems
            )
        if not are_all_reached:
            self._syncs.append(Child("all disks", "sync"))  # sync(2) reports no errors

    def follow(self) -> None:
        """Repeat until nothing is left, or nothing more can be done."""
        limit_s = self._options.timeout
        while not self.outcome:
            self._ask()
            if self._synced_s is None and not any(sync.runs() for sync in self._syncs):
                self._synced_s, self._most, self._line_s = time.time(), 1.0, float("-inf")
                self._least_s = time.monotonic()
                if any(sync.problem() for sync in self._syncs):
                    self.outcome = "failed"
                    return
            if self._synced_s is not None and self._caches_are_done():
                return
            if limit_s is not None and time.monotonic() - self._begun_s >= limit_s:
                self.outcome = "timeout"
                return
            self._show_progress()
            self._wait(limit_s)

    def _wait(self, limit_s: Optional[float]) -> None:
        """Wait a second, or until sync has ended or the drain times out."""
        until_s = time.monotonic() + _ASK_S
        if limit_s is not None:
            until_s = min(until_s, self._begun_s + limit_s)
        runs = self._synced_s is None
        while time.monotonic() < until_s:
            time.sleep(min(_CHILDREN_S if runs else _ASK_S, max(0.0, until_s - time.monotonic())))
            if runs and not any(sync.runs() for sync in self._syncs):
                return

    def _ask(self) -> None:
        """Renew the order, and get its progress. Raises CommandError if the daemon is gone."""
        with contextlib.suppress(NoAnswer):  # busy: the lease is for several of these
            renewed = self._order("renew")
            if not renewed["devices"] and not self._lost:
                self._lost = (
                    "limits were released, by another command or because this client paused"
                )
                self._say(self._lost)
            before, self._status = self._status, request(self._options.runtime_dir, "status")
            names = {row["name"] for row in self._status["devices"]}
            self._gone.update(set(self._begun["devices"]) - names)
            self._count(before)

    def _order(self, what: str) -> Dict[str, Any]:
        args = {"order": what, "number": self._begun["number"]}
        return request(self._options.runtime_dir, "drain", args)

    def _count(self, before: Answer) -> None:
        news = 0
        for row in self._rows():
            name, total = row["name"], row["counters"]["written_bytes"]
            last = self._counted.get(name, total)
            written = total - last if total >= last else total  # counters were zeroed
            self._written[name] = self._written.get(name, 0) + written
            self._counted[name] = total
            news += written
        passed_s = self._status["time_s"] - before.get("time_s", self._status["time_s"])
        if passed_s > 0:
            rate = news / passed_s
            self._rate = rate if self._rate is None else (self._rate + rate) / 2

    def _rows(self) -> List[Dict[str, Any]]:
        names = self._begun["devices"]
        return [
            row for row in self._status.get("devices", ())
            if row["name"] in names and row["counters"] is not None
        ]

    # ---- write caches ----------------------------------------------------

    def _caches_are_done(self) -> bool:
        """Whether all are empty, one has stopped draining, or a device is gone."""
        assert self._synced_s is not None
        if self._gone:
            self.outcome = "gone"
            return True
        if not self._status:
            return False  # nothing is known of them yet
        now_s = time.monotonic()
        with interrupted_later():
            begun = flush(self._rows(), self._flushes)
            self._flushes.update(begun)
        caches = self._caches()
        left = sum(each.left or 0.0 for each in caches)
        if 0.0 < left < self._least:  # zero is also what nobody reads
            self._least, self._least_s = left, now_s
        flushing = any(each.runs() for each in self._flushes.values())
        if flushing or begun or self._flushing:
            # No reading from before its end counts, which was between two looks.
            self._synced_s = time.time()
        self._flushing = flushing
        read = not flushing and self._status["time_s"] > self._synced_s and all(
            each.seen_s is None or each.seen_s >= self._synced_s for each in caches
        )
        full = [each for each in caches if not each.is_empty]
        if read and all(each.flush_failed for each in full):
            self.outcome = "unflushed" if full else "clean"
        elif now_s - self._least_s >= _STUCK_S:
            self.outcome = "stuck"
        return bool(self.outcome)

    def _caches(self) -> List[Cache]:
        ended = {disk: each for disk, each in self._flushes.items() if not each.runs()}
        unread = self._stacked if are_caches_unread() else set()
        return [
            Cache(row, ended, row["name"] in self._with_controller, row["name"] in unread)
            for row in self._rows()
        ]

    # ---- what is shown -----------------------------------------------------

    def _show_progress(self) -> None:
        if self._options.json or not self._status:
            return
        if self._synced_s is not None and all(each.left is None for each in self._caches()):
            return  # nothing is known to wait for but a look at what was written
        terminal, now_s = sys.stdout.isatty(), time.monotonic()
        if not terminal and now_s - self._line_s < _LINE_S:
            return
        self._line_s = now_s
        text = self._progress(terminal)
        if terminal:
            sys.stdout.write(f"\r{text[: width() - 1]}\x1b[K")
        else:
            print(text)
        sys.stdout.flush()

    def _progress(self, terminal: bool) -> str:
        """The kernel counts dirty pages of the host, not of a device."""
        memory = self._status["memory"]
        if self._synced_s is None:
            what, left = "dirty (host)", float(memory["dirty_bytes"] + memory["writeback_bytes"])
            rate = self._rate
            left_s = left / rate if rate else memory["time_to_clean_s"]
        else:
            what, rate = "write caches", None
            left = sum(each.left or 0.0 for each in self._caches())
            left_s = max((row["time_to_clean_s"] or 0.0 for row in self._rows()), default=0.0)
        self._most = max(self._most, left)
        done = 1.0 - left / self._most
        text = f"{what} {formats.size(left)} left"
        if rate is not None:
            text += f", {formats.size(rate)}/s"
        if left_s:
            text += f", about {formats.duration(left_s)}"
        if not terminal:
            return f"{time.strftime('%H:%M:%S')} {text}"
        return f"[{('#' * round(done * _BAR)).ljust(_BAR, '-')}] {text}"

    def _say(self, text: str) -> None:
        if not self._options.json:
            start = "\r\x1b[K" if sys.stdout.isatty() else ""
            print(f"{start}{text}")
            sys.stdout.flush()

    # ---- the end -----------------------------------------------------------

    def release(self) -> None:
        """Stop waiting for sync; the limits are decided again, or held."""
        for child in (*self._syncs, *self._flushes.values()):
            child.leave()
        if self._lost:
            return
        if self._options.hold and self.outcome not in _RELEASED:
            self._hold()
            return
        # Without an answer the order ends by itself, soon.
        with contextlib.suppress(CommandError):
            self._order("end")

    def _hold(self) -> None:
        try:
            answer = self._order("hold")
        except CommandError as error:
            self._unheld = [f"limits may not be held: {error}"]
            return
        self._held = answer["lowered"]
        self._unheld = answer["lines"] if answer["devices"] else ["limits were released"]

    def tell(self) -> int:
        caches = self._caches()
        memory = self._status.get("memory", {})
        problems = [sync.problem() for sync in self._syncs if not sync.runs()]
        unflushed = [each.problem() for each in self._flushes.values() if not each.runs()]
        problems += [f"{name}: gone before the drain ended" for name in sorted(self._gone)]
        result: DrainAnswer = {
            "clean": self.outcome == "clean",
            "outcome": self.outcome,
            "seconds": time.monotonic() - self._begun_s,
            "written_bytes": sum(self._written.values()),
            "page_cache_written": self._synced_s is not None and not any(problems),
            "dirty_bytes": memory.get("dirty_bytes"),
            "held": self._held,
            "problems": [each for each in (*problems, *unflushed) if each],
            "verified": all(each.verified for each in caches),
            "devices": [
                {
                    "name": each.name, "written_bytes": self._written.get(each.name, 0),
                    "cache_bytes": each.left, "cache_known": each.left is not None or each.none,
                }
                for each in caches
            ],
        }  # fmt: skip
        if self._options.json:
            show_json(result)
        else:
            self._say("\n".join(self._ending(result, caches)))
        if self.outcome == "interrupted":
            return INTERRUPTED
        return GOOD if result["clean"] else BAD_NEWS

    def _ending(self, result: DrainAnswer, caches: Sequence[Cache]) -> List[str]:
        took = formats.duration(result["seconds"])
        verdict = f"not clean, {_WORDS[self.outcome]}" if not result["clean"] else (
            "clean" if result["verified"] else "page cache clean, a write cache was not verified"
        )
        lines = [f"{verdict}: {formats.size(result['written_bytes'])} written in {took}"]
        lines += [f"  {clean(each)}" for each in result["problems"]]
        if result["dirty_bytes"] is not None:
            since = "dirtied since" if result["page_cache_written"] else "dirty"
            lines.append(f"  page cache: {formats.size(result['dirty_bytes'])} {since} (host)")
        lines += [f"  {each.words()}" for each in caches if not each.none]
        if result["held"]:
            lines.append("  limits stay at their floor until `writebackctl release`")
        lines += [f"  {clean(each)}" for each in self._unheld]
        return lines
