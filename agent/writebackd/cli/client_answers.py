# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers that writebackctl makes itself, for mypy and docs/man/schemas.py."""

from __future__ import annotations

from typing import Annotated, Any, Dict, List, Literal, Optional, TypedDict, Union

from writebackd.policy.match import Finding
from writebackd.report.answers import Arm, LeftOut, Lines, Window
from writebackd.report.history_schema import Event
from writebackd.trial.trial_run import End
from writebackd.types.decision import Mode
from writebackd.types.quantities import Bytes, Count, Figure, Hz, Number, Rate, Seconds, Share, Time

Json = Dict[str, Any]

# Null without a daemon.
VersionAnswer = TypedDict("VersionAnswer", {
    "writebackctl": str, "writebackd": Optional[str],
    "probe": Optional[str],  # backend in use
    "kernel": str,
})
RestoreAnswer = TypedDict("RestoreAnswer", {
    # observe: a daemon runs, and was told to observe; failed: some of it is not restored
    "status": Annotated[str, Literal["observe", "restored", "nothing", "foreign", "failed"]],
    "lines": Lines,  # what was done
})
Level = TypedDict("Level", {
    "level": Annotated[str, Literal["good", "note", "warning", "blocker"]], "text": str,
})
DoctorAnswer = TypedDict("DoctorAnswer", {
    "good": bool,  # no blocker
    "findings": List[Level],
})
Member = TypedDict("Member", {
    "name": str, "bytes": Bytes,
    "cut": bool,  # there was more of it
})
# `doctor --bundle`
DoctorBundleAnswer = TypedDict("DoctorBundleAnswer", {
    "file": str,
    "bytes": Bytes,  # of the archive
    "members": List[Member], "missing": List[LeftOut],
    "left_out": Count,  # how often something private was left out
})
# What was written.
ReportAnswer = TypedDict("ReportAnswer", {
    "file": str, "bytes": Bytes,
    "rows": Count,  # of figures
})
Listed = TypedDict("Listed", {"name": str, "path": str, "summary": str, "problems": Lines})
PolicyListAnswer = TypedDict("PolicyListAnswer", {"policies": List[Listed]})
PolicyCheckAnswer = TypedDict("PolicyCheckAnswer", {
    "good": bool, "problems": Lines, "warnings": Lines,
})
Setting = TypedDict("Setting", {
    "value": str,
    "from": str,  # file:line, or default
})
PolicyShowAnswer = TypedDict("PolicyShowAnswer", {
    "name": str,
    "files": Lines,  # in the order they were read
    "sections": Dict[str, Dict[str, Setting]],
    "window": Window,  # of the policy, that is open; null: none is
})
Candidate = TypedDict("Candidate", {
    "name": str, "summary": str, "fits": bool,
    "points": Count,  # of the rules that hold
    "least": Number,  # points from which it fits
    "rules": List[Annotated[Json, Finding]],
})
PolicyMatchAnswer = TypedDict("PolicyMatchAnswer", {
    "policy": str,  # what a daemon without --policy takes on this host
    "reason": str,  # why, in words
    "runner_up": Optional[str],  # of the others the one with the most points; null: none has any
    "candidates": List[Candidate],  # all policies that have rules, the best first
})
Drained = TypedDict("Drained", {
    "name": str, "written_bytes": Bytes,
    "cache_bytes": Optional[Figure],  # in its write cache in the end
    "cache_known": bool,  # false: there is one, and nobody says how full it is
})
DrainAnswer = TypedDict("DrainAnswer", {
    "clean": bool,  # the page cache was written, and every write cache of known fill is empty
    # why it ended; stuck: a write cache did not drain for three minutes; gone: a device vanished;
    # unflushed: dm-writecache holds something and could not be flushed
    "outcome": Annotated[str, Literal[
        "clean", "timeout", "stuck", "failed", "interrupted", "gone", "unflushed"]],
    "seconds": Seconds,
    "written_bytes": Bytes,  # to these devices meanwhile
    "page_cache_written": bool,  # what was dirty at the beginning
    "dirty_bytes": Optional[Bytes],  # of the host, in the end
    # the limits stay at their floor until `release`; false as well where a pin, observe mode or a
    # kill-switch file keeps the drain from them
    "held": bool,
    "verified": bool,  # the fill of each known write cache was read, not estimated
    "problems": Lines,  # of sync, blockdev and dmsetup, and which devices are gone
    "devices": List[Drained],
})
FigureRow = TypedDict("FigureRow", {
    "wall_s": Time,  # of its beginning
    "span_s": Seconds,  # 10 s, later 300 s; shorter at a start or stop
    "device": str,
    "limit_bytes": Figure,  # in force, mean
    "found_bytes": Figure,  # the limit as found
    "target_bytes": Optional[Figure],  # the device's own
    "write_rate": Rate, "drain_rate": Optional[Rate],
    "cache_fill": Optional[Share],  # of the write cache, the most
    "sync_rate": Hz, "commit_p50_s": Optional[Seconds], "commit_p99_s": Optional[Seconds],
    "commit_write_share": Optional[Share],  # of the commits' time, slept in write()
    "commit_oldest_s": Seconds, "fsync_p50_s": Optional[Seconds], "fsync_p99_s": Optional[Seconds],
    "fsync_oldest_s": Seconds,  # the longest that one was seen to wait
    "fsync_baseline_s": Optional[Seconds],
    "objective_s": Optional[Seconds],  # p99 wanted; null while nobody syncs
    "flooded_s": Seconds,  # of the span
    "held_s": Seconds,  # of the span: with a limit of the agent's in force
})
Events = TypedDict("Events", {
    "events": List[Annotated[Json, Event]],  # oldest first
    "left_out": Count,  # how many there are before these, which --limit left out
})
FigureRows = TypedDict("FigureRows", {
    "figures": List[FigureRow],  # with --figures; oldest first
    "left_out": Count,  # how many there are before these, which --limit left out
})
HistoryAnswer = Union[Events, FigureRows]
ThenNow = TypedDict("ThenNow", {"then": Optional[Figure], "now": Optional[Figure]})
StateTime = TypedDict("StateTime", {"state": str, "then_s": Seconds, "now_s": Seconds})
StateTimes = TypedDict("StateTimes", {"name": str, "states": List[StateTime]})
Deviation = TypedDict("Deviation", {"wall_s": Time, "then": str, "now": str})
ReplayAnswer = TypedDict("ReplayAnswer", {
    "policy": Optional[str],  # null: the one of then
    "begin_s": Optional[Time], "end_s": Optional[Time], "ticks": Number,
    "decisions": Count,  # new ids, now
    "different": Count,  # ticks with another decision
    "limit_bytes": ThenNow,  # median of the time with a limit of the agent's
    "devices": List[StateTimes],
    "differences": List[Deviation],  # the first of them
})


class SyncFigures(TypedDict):
    fsync_rate: Hz  # of our own
    fsync_p50_s: Optional[Seconds]
    fsync_p99_s: Optional[Seconds]


class RungRow(SyncFigures):
    limit_bytes: Bytes
    write_rate: Rate  # of the flood, at the disk
    score: Optional[Figure]  # f x min(1, g / 0.95)^4, f of ladder_idle_rate, g of R


Kept = TypedDict("Kept", {
    "runs": Number, "drain_rate": Optional[Rate], "cache_bytes": Optional[Figure],
    "limit_bytes": Optional[Figure],
})
CalibrateAnswer = TypedDict("CalibrateAnswer", {
    "device": str, "directory": str, "seconds": Seconds,
    "written_bytes": Bytes,  # by the flood
    "idle": SyncFigures,  # fsyncs alone
    "drain_rate": Optional[Rate],  # R, what the media take of a flood
    "drain_rate_most": Optional[Rate],  # where R is not known: it is no more than that
    "cache_bytes": Optional[Figure],  # that the write cache took until it was full
    "cache_most_bytes": Optional[Figure],  # where none was seen: it has no more than that
    "tau_s": Optional[Seconds],  # under a small limit the flood gets limit / tau
    "limit_bytes": Optional[Bytes],  # the best of the ladder; null: it did not come to an end
    "ladder_idle_rate": Hz,  # what the fsyncs of the ladder would be alone
    "ladder": List[RungRow],
    "kept": Optional[Kept],  # medians of the runs that are kept; null: none is
    "problems": Lines,  # why something is not known, or not kept
})
Ratio = TypedDict("Ratio", {
    "ratio": Optional[Figure],  # geometric mean of the pairs; above 1 the agent is better
    "low": Optional[Figure],  # of its 95 % interval; null: too few pairs, or too scattered
    "high": Optional[Figure],
    "ratios": List[Figure],  # of each pair
})
Differences = TypedDict("Differences", {
    "commit_p99": Ratio,  # without the agent / with it
    "commit_p50": Ratio,  # without the agent / with it
    "sync_rate": Ratio,  # with the agent / without it
    "write_rate": Ratio,  # with the agent / without it
})
ArmFigures = TypedDict("ArmFigures", {
    "span_s": Seconds, "fsyncs": Count, "commit_p50_s": Optional[Seconds],
    "commit_p99_s": Optional[Seconds], "commit_longest_s": Seconds,
    "commit_write_share": Optional[Share],  # of the commits' time, slept in write()
    "fsync_p50_s": Optional[Seconds], "fsync_p99_s": Optional[Seconds],
    "fsync_longest_s": Seconds,  # including one that has not returned
    "sync_rate": Hz,
    "write_rate": Rate,  # of all that wrote to the device
    "limit_bytes": Figure,  # in force, mean
    "flooded_share": Share,  # of span_s
})
BlockRow = TypedDict("BlockRow", {
    "number": Number, "arm": Arm, "begin_s": Time, "end_s": Time,
    "whole": bool,  # enough of it to be compared
    "counted": Optional[ArmFigures],  # null: nothing of it counts
})
PairLeftOut = TypedDict("PairLeftOut", {"blocks": List[Number], "why": str})
TrialAnswer = TypedDict("TrialAnswer", {
    "host": str, "device": str, "policy": str,
    "mode": Annotated[str, Mode],  # before and after it
    "seed": int,  # the same order of blocks again
    "blocks_planned": Number, "block_s": Seconds,
    "settle_s": Seconds,  # of each block, not counted
    "ceiling_s": Seconds,  # to which the original limits were cut, as time to drain
    "stop_s": Seconds,  # a commit that takes longer ends the trial
    "found_bytes": Bytes,
    "limit_bytes": Bytes,  # of the original arm
    "cut": Optional[str],  # what cut the limit as found; null: nothing
    "ended": Annotated[str, End], "why": str, "verdict": str,
    "remarks": List[str],  # what has to be known to read the figures right
    "pairs": Count,  # of which both blocks are whole, and of one load
    "left_out": List[PairLeftOut],  # pairs of whole blocks whose load differed, and how
    "differences": Differences,
    "agent": Optional[ArmFigures],  # what counts of all blocks with its limits; null: nothing
    "original": Optional[ArmFigures],  # of all blocks with the original limits
    "blocks": List[BlockRow],
    "file": Optional[str],  # the page that was written
})
