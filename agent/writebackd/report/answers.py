# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers of `writebackctl --json`, for mypy and docs/man/schemas.py; the daemon needs none.

`make docs` makes docs/schema of them: NameAnswer becomes name.json, and a key's comment its
description; `= METRIC` is the help of that metric. Annotated[dict, Kind]: the fields of that
dataclass; Annotated[str, Kind]: its values.
"""

from __future__ import annotations

from typing import Annotated, Any, Dict, List, Literal, Optional, TypedDict

from writebackd.notify.alert_answer import ActiveAlert, AlertRow, Writer
from writebackd.notify.route import RouteState
from writebackd.policy.reload import Open
from writebackd.report.recommendation import Basis
from writebackd.report.snapshot import VerdictCode
from writebackd.types.decision import DeviceState, Mode, Rule
from writebackd.types.levers import HeldLever, VmLimits
from writebackd.types.quantities import Bytes, Count, Figure, Hz, Number, Rate, Seconds, Share, Time
from writebackd.types.storage import ArrayWork, CacheMode, Protection

Json = Dict[str, Any]
Lines = List[str]
ModeWord = Annotated[str, Mode]
Arm = Annotated[str, Literal["agent", "original"]]
Kernel = Annotated[Json, VmLimits]
CacheWord = Optional[Annotated[str, CacheMode]]
Window = Optional[Annotated[Json, Open]]

Verdict = TypedDict("Verdict", {
    "code": Annotated[str, VerdictCode], "device": Optional[str],
    "since_s": Optional[Time],  # since when the code is the same
    "text": str,  # the code and a sentence
})
Order = TypedDict("Order", {
    "uid": Count, "since_s": Optional[Time],
    "left_s": Optional[Seconds],  # until it ends by itself; null: `release` ends it
})
TrialState = TypedDict("TrialState", {
    "device": str, "block": Number, "blocks": Number,
    "arm": Arm,  # whose limits are in force
    "limit_bytes": Optional[Bytes],  # to which the original limits are cut; null: they are not
    "block_left_s": Optional[Seconds],
    "returns_to": ModeWord,  # the mode after it
})
Pair = TypedDict("Pair", {"dirty_bytes": Bytes, "dirty_background_bytes": Bytes})
Reported = TypedDict("Reported", {
    "source": str,
    "disk": Optional[str],  # the kernel's name of a cache that it runs: bcache0, dm-3
    "time_s": Optional[Time],  # of the reading
    "capacity_bytes": Optional[Bytes],  # that writes may use
    "mode": CacheWord, "protection": Optional[Annotated[str, Protection]],
    "unread": Lines,  # words of the tool that are not understood
    "dirty_bytes": Optional[Bytes],
    "thresholds": Dict[str, Count],  # of a cache that the kernel runs, by its names and units
    "learn_s": Optional[Time],  # of the next battery test
    "works": List[Annotated[Json, ArrayWork]],  # of the array, beside the host's IO
})
WriteCache = TypedDict("WriteCache", {
    "kind": Optional[Annotated[str, Literal[
        "controller", "bcache", "dm-writecache", "dm-cache", "md-journal"]]],
    "capacity_bytes": Optional[Bytes], "mode": CacheWord,
    "protected": Optional[bool],  # whether a battery or capacitor would save it now
    "source": Optional[str],  # of kind, mode and protected: storcli, ssacli, bcache ...
    "reported": List[Reported],  # by tools and the kernel on what is behind it
    "fill": Optional[Share],
    "fill_source": Optional[str],  # estimate: by behaviour; else the kernel's cache
})
DeviceFigures = TypedDict("DeviceFigures", {
    "name": str,  # the kernel's name
    "devno": str,  # major:minor of the BDI, or its name where it has none
    "mounts": Lines, "state": Annotated[str, DeviceState], "reason": str,
    "decision_id": Optional[str],
    "limit_bytes": Bytes,  # in force for this device: its own, or the host's
    "target_bytes": Optional[Bytes],  # wanted for this device; null: the original limits
    "objective_s": Optional[Seconds],  # = device_fsync_objective_seconds
    "inflight": Count,  # = device_inflight_requests
    "busy_share": Optional[Share],  # of the last tick with a request in flight
    "write_rate": Optional[Rate],
    "background_rate": Optional[Rate],  # of these by the flusher
    "drain_rate": Optional[Rate],  # = device_drain_bytes_per_second
    "sync_rate": Optional[Hz],  # fsync and its kin; null where the probe cannot see them
    "sync_demand": Optional[bool],  # whether that counts as demand; null where it cannot be seen
    # a commit is a sync and what its caller slept in write() since the one before; of syncs alone
    # where the kernel does not show the sleep
    "commit_p50_s": Optional[Seconds], "commit_p99_s": Optional[Seconds],
    "commit_write_share": Optional[Share],  # = device_commit_write_ratio
    "oldest_commit_s": Optional[Seconds],  # = device_oldest_commit_seconds
    "fsync_p50_s": Optional[Seconds], "fsync_p99_s": Optional[Seconds],
    "fsync_baseline_s": Optional[Seconds],  # = device_fsync_baseline_seconds
    "fsyncs_inflight": Optional[Count],  # = device_fsyncs_inflight
    "oldest_fsync_s": Optional[Seconds],  # = device_oldest_fsync_seconds
    "slow_share": Optional[Share],  # of the fsyncs' time, in slow ones while a flood is on
})
Task = TypedDict("Task", {
    "pid": Count, "comm": str, "cgroup": Optional[str], "device": Optional[str],
    "dirty_rate": Optional[Rate],  # sampled
    "throttled_share": Optional[Share],
})

DeviceCounters = TypedDict("DeviceCounters", {
    "written_bytes": Bytes, "read_bytes": Bytes, "busy_s": Optional[Seconds], "fsyncs": Count,
    "fsync_s": Optional[Seconds],  # latencies of the fsyncs together
    "commit_s": Optional[Seconds],  # latencies of the commits together
    "decisions": Count,
})


class DrainOrder(Order):
    devices: Lines


class Program(Task):
    several: bool  # processes of that name and cgroup together; pid is the heaviest's


class PastAlert(AlertRow):
    began: Time  # when it was first reported
    end: Optional[Time]  # null: the daemon stopped before
    causes: Lines  # one after the other


class StatusDevice(DeviceFigures):
    write_cache: WriteCache  # capacity and fill as `fill_source` says, the rest as `source` says
    time_to_clean_s: Optional[Seconds]  # as memory.time_to_clean_s, of this device
    counters: Optional[DeviceCounters]  # since it was there, or `reset-stats`; null: excluded


class DeviceReason(DeviceFigures):
    sections: Lines  # of the policy, that match it, each with file and line of its first key
    verdict: Optional[str]  # of its commits; null: not known, or no demand
    steps: Lines  # the chain of reasoning
    rule: Annotated[str, Rule]  # the branch of the law; other: a pin, a trial, excluded
    next: str


class Difference(Writer):
    lever: str
    file: str
    expected: Optional[Count]  # null: no limit
    found: Optional[Count]  # null: no limit


Probe = TypedDict("Probe", {
    "backend": str, "request_hook": Optional[str], "fsync_hook": Optional[str],
    "misses": Lines,  # what cannot be seen
    "lost": Lines,  # what was lost so far, each with its count
    "passed_over": Optional[str],  # why no better hooks watch fsync
    "refused": Lines,  # other hooks that the kernel refused, with its error
})
Limits = TypedDict("Limits", {
    "dirty_bytes": Bytes,  # the limit in force in bytes, whatever its form
    "dirty_background_bytes": Bytes,
    "wanted_bytes": Optional[Bytes],  # now, by the law; null: the original limits
    "goal_bytes": Optional[Bytes],  # where the limit is heading
    "files": Kernel,  # the four files of /proc/sys/vm
    "original": Kernel,  # the same, as they were found
    "original_in_bytes": Pair,  # an estimate where a ratio is not in force
})
HostMemory = TypedDict("HostMemory", {
    "total_bytes": Bytes, "dirty_bytes": Bytes, "writeback_bytes": Bytes,
    "time_to_clean_s": Optional[Seconds],  # of page cache and write caches; null: not known
})
Counters = TypedDict("Counters", {
    "reset_s": Optional[Time],  # of the last `reset-stats`; null: none
    "limit_changes": Count, "foreign_writes": Count, "failed_ticks": Count,
})
Lease = TypedDict("Lease", {
    "remaining_s": Optional[Seconds],  # until the originals are restored if the daemon hangs
    "watcher_pid": Optional[int],  # of the process that would restore them; null: there is none
    "lost": Count,  # how often the lease ran out since the start
})
Cost = TypedDict("Cost", {
    "cpu_fraction": Optional[Figure],  # of one core
    "rss_bytes": Bytes,
    "map_bytes": Bytes,  # of the BPF maps
    "bpf_ns_per_io": Optional[Figure],
    "history_dropped": Count,  # events that the history could not take
})
Rival = TypedDict("Rival", {
    "level": Annotated[str, Literal["warning", "note"]],
    "kind": Annotated[str, Literal["tuned", "saptune", "boot", "agent"]], "name": str,
    "setting": Optional[str],  # such as vm.dirty_ratio=40; null: not known
    "where": str,  # file:line, or pid N
    "summary": str,
})
StatusAnswer = TypedDict("StatusAnswer", {
    "verdict": Verdict,  # whether all is well; the worst first
    "version": str, "mode": ModeWord, "policy": str,
    "policy_reason": str,  # why this policy, in words
    "policy_files": Lines,  # that it was read from: its own first, then drop-ins
    "window": Window,  # of the policy, that is open; null: none is
    "time_s": Optional[Time],  # wall clock of the last tick
    "uptime_s": Optional[Seconds],
    "yielded": Optional[str],  # whose value is in force, where another process set a limit
    "yield_left_s": Optional[Seconds],  # until it enforces again; null: `enforce` ends it
    "off": Optional[str],  # the kill-switch file that exists: nothing is written
    "pin_bytes": Optional[Bytes],
    "pin": Optional[Order],  # who pinned; null: not pinned
    "drain": Optional[DrainOrder],  # devices with their limit at the floor, for whom; null: none
    "trial": Optional[TrialState],  # that runs; null: none
    "reason": str,  # why the limit is what it is
    "probe": Probe, "limits": Limits,
    "levers": List[Annotated[Json, HeldLever]],  # other than the limits, that writebackd has set
    "memory": HostMemory,
    "counters": Counters,  # since the start of the daemon, or `reset-stats`
    "devices": List[StatusDevice],
    "dirtiers": List[Program],  # who dirties most, three at most
    "alerts": List[ActiveAlert],
    "rivals": Optional[List[Rival]],  # who else may set the levers; null: not looked for yet
    "processes_unseen": Optional[str],  # what /proc hides, also in the warnings; null: nothing
    "warnings": Lines, "state_dir": str, "lease": Lease, "self": Cost,
})

Filesystem = TypedDict("Filesystem", {"devno": str, "type": str, "mount": str})
Topology = TypedDict("Topology", {
    "name": str, "devno": str,
    "bdi": str,  # name below /sys/class/bdi
    "leaves": Lines,  # disks at the bottom
    "leaf_devnos": Lines, "filesystems": List[Filesystem], "rotational": Optional[bool],
    "queue_write_cache": Optional[str],  # no evidence of a controller's cache
    "reported": List[Reported],  # by tools and the kernel on what is behind it
    "driver": Optional[str], "diskseq": Optional[Count],
    "state": Annotated[str, DeviceState], "managed": bool, "reason": str,
})
DevicesAnswer = TypedDict("DevicesAnswer", {"devices": List[Topology]})
LimitReason = TypedDict("LimitReason", {
    "limit_bytes": Optional[Bytes], "background_bytes": Optional[Bytes],
    "goal_bytes": Optional[Bytes],
    "threshold_bytes": Bytes,  # in force
    "reason": str,
    "pin": Optional[Order],  # who pinned; null: not pinned
    "trial": Optional[TrialState],  # that runs; null: none
    "next": str,  # what happens next
})
WhyAnswer = TypedDict("WhyAnswer", {
    "verdict": Verdict,  # whether all is well; the worst first
    "mode": ModeWord, "policy": str,
    "window": Window,  # of the policy, that is open; null: none is
    "off": Optional[str],  # the kill-switch file that exists: nothing is written
    "limit": LimitReason, "devices": List[DeviceReason],
})
# With exit code 3 there is no daemon: then only past is known.
AlertsAnswer = TypedDict("AlertsAnswer", {
    "time_s": Optional[Time],  # of the last tick
    "active": Optional[List[ActiveAlert]],  # the worst first
    "past": List[PastAlert],  # oldest first
    "routes": Optional[List[Annotated[Json, RouteState]]],
})
CgroupRow = TypedDict("CgroupRow", {
    "cgroup": Optional[str],  # path below the v2 root; null: not known
    "device": Optional[str],  # null: not one of ours
    "dirty_rate": Optional[Rate],
    "throttled_share": Optional[Figure],  # seconds slept per second, of all threads together
    "sync_rate": Optional[Hz],  # of syncs begun
})
TopAnswer = TypedDict("TopAnswer", {
    "time_s": Optional[Time],  # wall clock of the last tick
    "tasks": List[Task],  # processes that dirty, most first, 40 at most
    "cgroups": List[CgroupRow],  # that dirty, sleep for a limit or sync, most first, 40 at most
})
VerifyAnswer = TypedDict("VerifyAnswer", {
    "good": bool,
    "written": Optional[Pair],  # the last pair that was written; null: none
    "found": Kernel,
    "levers": List[Annotated[Json, HeldLever]],  # other than the limits, that writebackd has set
    "yielded": Optional[str], "differences": List[Difference],
})
# The metrics as text; docs/reference/metrics.md has their names.
MetricsAnswer = TypedDict("MetricsAnswer", {
    "content_type": str,  # of the text, as HTTP has it
    "text": str,  # OpenMetrics 1.0, or Prometheus' text format
})

# `observe`, `enforce`
ModeAnswer = TypedDict("ModeAnswer", {
    "mode": ModeWord,
    "good": bool,  # whether all of it was done
    "lines": Lines,  # what was done, and of enforce what exit restores
})
# `pin`, `release`
PinAnswer = TypedDict("PinAnswer", {
    "pin_bytes": Optional[Bytes],  # null: not pinned
    "for_s": Optional[Seconds],  # until it is released; null: `release` ends it
    "lines": Lines,  # what was done
})
ResetStatsAnswer = TypedDict("ResetStatsAnswer", {
    "reset_s": Optional[Time],
    "lines": Lines,  # what was done
})
ForgetAnswer = TypedDict("ForgetAnswer", {
    "device": str,
    "lines": Lines,  # what was done
})
# Of the control socket alone, for the client of a drain.
DrainState = TypedDict("DrainState", {
    "number": int, "devices": Lines,  # none: it has ended
    "lowered": bool,  # whether the limits are at the floor; lines say why not
    "lines": Lines,
})

Conflict = TypedDict("Conflict", {
    "kind": Annotated[str, Literal["tuned", "saptune", "boot", "agent"]], "name": str,
    "setting": Optional[str],  # null: not known
    "where": str,  # file:line, or pid N
    "text": str,
})
LeftOut = TypedDict("LeftOut", {"name": str, "why": str})
Blamed = TypedDict("Blamed", {
    "name": str,  # of the process and its unit
    "alerts": Count,
})
Advised = TypedDict("Advised", {
    "name": str,
    "drain_rate": Optional[Rate],  # what the media take of a flood
    "drain_age_s": Optional[Seconds],  # since it was seen last
    "tau_s": Optional[Seconds],  # at most: below the knee a flood gets limit / tau
    "knee_bytes": Optional[Figure],  # at most: the smallest limit under which floods get drain_rate
    "cache_bytes": Optional[Figure],  # that the write cache was seen to take
    "limit_bytes": Optional[Bytes],  # that suits this device alone
    # of limit_bytes: the knee, what writebackd asked for in waves, the best of a calibration, or
    # the objective, where no limit was tried
    "basis": Optional[Annotated[str, Basis]],
    "objective_s": Seconds,  # p99 of commits that the policy aims at
    "floods": Count,  # that met commits
    "flood_s": Seconds,  # their length together
    "held_s": Seconds,  # of it, under a limit of writebackd
    "fsync_p99_s": Optional[Seconds],  # under dirty_bytes, calculated; behind a full write cache
    "write_rate": Optional[Rate],  # of a flood under dirty_bytes, calculated
    "held_fsync_p99_s": Optional[Seconds],  # measured under floods and writebackd's limit
    "found_fsync_p99_s": Optional[Seconds],  # measured under floods and the limit as found
    "held_commit_p99_s": Optional[Seconds], "found_commit_p99_s": Optional[Seconds],
    "found_floods": Count,  # under the limit as found
    "found_floods_missed": Count,  # of them, in which commit p99 missed the objective
    "blamed": List[Blamed],  # by alerts on floods, most first
})
RecommendAnswer = TypedDict("RecommendAnswer", {
    "made_by": Annotated[str, Literal["writebackctl recommend"]],
    "id": Optional[str],  # the same as long as limit, device and basis are; null: no limit
    "enough": bool,  # whether the evidence is; exit code 1 where it is not
    "missing": Lines,  # what would make it enough
    "dirty_bytes": Optional[Bytes], "dirty_background_bytes": Optional[Bytes],
    "device": Optional[str],  # that decided
    "reason": Lines,
    "price": Lines,  # against writebackd
    "undo": str,  # a command
    "conflicts": List[Conflict],  # who sets these limits otherwise, or may
    "observed_s": Seconds,  # from the first figures to the last
    "left_out": List[LeftOut],  # devices of the history that are not here now, or not managed
    "devices": List[Advised],  # most at stake first
})
