# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer of `trial`, for mypy and docs/man/schemas.py."""

from __future__ import annotations

from typing import Annotated, List, Literal, Optional, TypedDict

from writebackd.trial.trial_run import End
from writebackd.types.decision import Mode
from writebackd.types.quantities import Bytes, Count, Figure, Hz, Number, Rate, Seconds, Share, Time

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
Arm = Annotated[str, Literal["agent", "original"]]
BlockRow = TypedDict("BlockRow", {
    "number": Number, "arm": Arm, "begin_s": Time, "end_s": Time,
    "whole": bool,  # enough of it to be compared
    "counted": Optional[ArmFigures],  # null: nothing of it counts
})
PairLeftOut = TypedDict("PairLeftOut", {"blocks": List[Number], "why": str})
TrialReport = TypedDict("TrialReport", {
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
})


class TrialAnswer(TrialReport):
    file: Optional[str]  # the page that was written
