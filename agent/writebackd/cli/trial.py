# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb trial: starts one in the daemon, shows its progress, writes its page."""

from __future__ import annotations

import argparse
import random
import socket
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from writebackd import formats
from writebackd.cli.client import NoAnswer, request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.cli.output import show_json, width, write_page
from writebackd.cli.signals import ended_by_signals
from writebackd.command_line import complain, drop_unwritten
from writebackd.report.device_figures import Figures
from writebackd.trial.analysis import P50, P99, SYNC_RATE, WRITE_RATE, Difference, analyse, block_of
from writebackd.trial.plan import LEASE_S, Plan, order, settle_s
from writebackd.trial.trial_page import (
    TrialSummary,
    block_line,
    difference_lines,
    remarks,
    render,
    verdict,
)
from writebackd.trial.trial_run import End, TrialTick
from writebackd.types.codec import unpack

if TYPE_CHECKING:
    from writebackd.cli.client_answers import ArmFigures, Ratio, TrialAnswer

# Well within the daemon's lease, which each question renews.
_ASK_S = 1.0
# So long without an answer, and what is known is all that there will be.
_SILENT_S = 6 * LEASE_S
_SEEDS = 1_000_000


def trial(options: argparse.Namespace) -> int:
    block_s, duration_s = options.block, options.duration
    seed = options.seed if options.seed is not None else random.randrange(_SEEDS)
    try:
        arms = order(duration_s, block_s, seed)
    except ValueError as error:
        raise CommandError(f"trial: {error}", USAGE) from None
    plan: Dict[str, Any] = {
        "arms": arms,
        "block_s": block_s,
        "settle_s": settle_s(block_s),
        "ceiling_s": options.ceiling,
        "stop_s": options.stop_at,
    }
    begun = request(
        options.runtime_dir, "trial", {"order": "start", "device": options.device, **plan}
    )
    run = _TrialRun(options, begun, Plan(device=str(begun["device"]), **plan), seed)
    with ended_by_signals() as no_more:
        try:
            run.begin()
            run.follow()
            no_more()
        except KeyboardInterrupt:
            no_more()
            run.end()
        return run.tell()


class _TrialRun:
    """What the daemon has reported about the trial so far."""

    def __init__(
        self, options: argparse.Namespace, begun: Dict[str, Any], plan: Plan, seed: int
    ) -> None:
        self._options, self._begun, self._plan, self._seed = options, begun, plan, seed
        self._ticks: List[TrialTick] = []
        self._shown = 0  # of them: those of blocks that were shown
        self._ended: Optional[str] = None
        self._why = ""
        self._unseen: Optional[OSError] = None  # why nobody sees any more what is shown

    def begin(self) -> None:
        plan, begun = self._plan, self._begun
        cut = f", cut to {formats.size(begun['limit_bytes'])}" if begun["cut"] else ""
        self._show(
            f"trial of {plan.device}: {len(plan.arms)} blocks of {formats.duration(plan.block_s)},"
            f" {formats.duration(plan.duration_s)}, seed {self._seed}; Ctrl-C ends it"
        )
        self._show(
            f"alternates the agent's limits and the limits as found,"
            f" {formats.size(begun['found_bytes'])}{cut};"
            f" stops if a commit takes {formats.duration(begun['stop_s'])}"
        )

    def follow(self) -> None:
        """Repeat until the daemon reports the end, or does not answer any more."""
        heard_s = time.monotonic()
        while True:
            try:
                self._ask("go")
                heard_s = time.monotonic()
            except NoAnswer:
                # A hung disk below: the daemon ends the trial by itself, once it has its turn.
                silent_s = time.monotonic() - heard_s
                if silent_s > _SILENT_S:
                    self._ended = End.DISTURBED.value
                    self._why = (
                        f"writebackd has not answered for {formats.duration(silent_s)}; it ends the"
                        " trial when it resumes: check `writebackctl status`"
                    )
            except CommandError as error:
                # Stopped or restarted: the limits are its own affair, what was seen is ours.
                self._ended, self._why = End.DISTURBED.value, str(error)
            if self._ended is None and self._unseen is not None and self._options.output is None:
                self.end()  # nobody is to know what comes of it
            if self._ended is not None:
                return
            time.sleep(_ASK_S)

    def end(self) -> None:
        """End at the user's request; returns with what was measured since the last request."""
        try:
            self._ask("end")
        except CommandError as error:
            self._ended, self._why = End.DISTURBED.value, str(error)

    def _ask(self, what: str) -> None:
        left = 1
        while left:
            answer = request(
                self._options.runtime_dir, "trial",
                {"order": what, "id": self._begun["id"], "since": len(self._ticks)},
                timeout_s=LEASE_S / 2,
            )  # fmt: skip
            self._ticks += [unpack(TrialTick, each) for each in answer["ticks"]]
            left = answer["left"]
        self._ended, self._why = answer["ended"], answer["why"]
        self._show_blocks()

    def _show_blocks(self) -> None:
        """Show finished blocks, once each: a trial of a day has 86 400 ticks."""
        while self._shown < len(self._ticks):
            ticks = self._ticks[self._shown :]
            number = ticks[0].block
            length = next((at for at, each in enumerate(ticks) if each.block != number), None)
            if length is None and self._ended is None:
                return
            block = block_of(self._plan, number, ticks[:length])
            self._show(block_line(block, len(self._plan.arms)))
            self._shown += len(ticks) if length is None else length

    def tell(self) -> int:
        """Write the page and print the result; returns the exit code."""
        self._show_blocks()  # the last one, where the daemon did not tell the end
        begun = self._begun
        report = TrialSummary(
            host=socket.gethostname(), version=begun["version"], policy=begun["policy"],
            mode=begun["mode"], seed=self._seed, plan=self._plan,
            found_bytes=begun["found_bytes"], limit_bytes=begun["limit_bytes"], cut=begun["cut"],
            stop_s=begun["stop_s"], ended=self._ended or End.DISTURBED.value, why=self._why,
            result=analyse(self._plan, self._ticks),
        )  # fmt: skip
        output: Optional[Path] = self._options.output
        if output is not None:
            write_page(output, render(report, self._ticks, time.time()))
        if self._options.json and str(output) != "-":
            show_json(report_json(report, None if output is None else str(output)))
        else:
            columns = width()
            self._show("")
            for line in (verdict(report), *remarks(report)):
                self._show("\n".join(textwrap.wrap(formats.printable(line), columns)))
            self._show("")
            self._show("\n".join(difference_lines(report.result.differences)))
            if output is not None:
                self._show(f"\n{output}: the same with plots")
        if self._unseen is not None:
            if output is None:
                raise self._unseen
            why = f"cannot write the output: {self._unseen.strerror}"
            complain(f"writebackctl: {why}; {output} has all of it")
            drop_unwritten("stdout")
        good = report.ended in [each.value for each in (End.DONE, End.ENOUGH, End.ASKED)]
        return GOOD if good and not report.result.of(P99).worse else BAD_NEWS

    def _show(self, text: str) -> None:
        # Where the page goes to stdout it is alone there.
        if self._options.json or str(self._options.output) == "-" or self._unseen is not None:
            return
        try:
            print(text)
            sys.stdout.flush()
        except OSError as error:
            # The terminal is gone, or who reads: the page is to have all the same.
            self._unseen = error


def report_json(report: TrialSummary, file: Optional[str] = None) -> TrialAnswer:
    plan, result = report.plan, report.result
    return {
        "host": report.host, "policy": report.policy, "mode": report.mode, "seed": report.seed,
        "stop_s": report.stop_s, "found_bytes": report.found_bytes, "cut": report.cut,
        "limit_bytes": report.limit_bytes, "ended": report.ended, "why": report.why,
        "device": plan.device,
        "blocks_planned": len(plan.arms),
        "block_s": plan.block_s,
        "settle_s": plan.settle_s,
        "ceiling_s": plan.ceiling_s,
        "verdict": verdict(report),
        "remarks": remarks(report),
        "pairs": result.pairs,
        "left_out": [
            {"blocks": [one, other], "why": why} for one, other, why in result.left_out
        ],
        "differences": {
            "commit_p99": _ratio_json(result.of(P99)),
            "commit_p50": _ratio_json(result.of(P50)),
            "sync_rate": _ratio_json(result.of(SYNC_RATE)),
            "write_rate": _ratio_json(result.of(WRITE_RATE)),
        },
        "agent": _arm_json(result.agent),
        "original": _arm_json(result.original),
        "blocks": [
            {
                "number": block.number, "arm": block.arm, "begin_s": block.begin_s,
                "end_s": block.end_s, "whole": block.whole, "counted": _arm_json(block.figures),
            }
            for block in result.blocks
        ],
        "file": file,
    }  # fmt: skip


def _ratio_json(each: Difference) -> Ratio:
    return {
        "ratio": each.ratio, "low": each.low, "high": each.high, "ratios": list(each.ratios)
    }


def _arm_json(figures: Optional[Figures]) -> Optional[ArmFigures]:
    if figures is None:
        return None
    return {
        "span_s": figures.span_s,
        "fsyncs": figures.fsyncs,
        "commit_p50_s": figures.commit_latency.quantile(0.5),
        "commit_p99_s": figures.commit_latency.quantile(0.99),
        "commit_longest_s": figures.longest_s,
        "commit_write_share": figures.write_share,
        "fsync_p50_s": figures.latency.quantile(0.5),
        "fsync_p99_s": figures.latency.quantile(0.99),
        "fsync_longest_s": max(figures.oldest_s, figures.latency.quantile(1.0) or 0.0),
        "sync_rate": figures.fsyncs / figures.span_s,
        "write_rate": figures.write_rate,
        "limit_bytes": figures.limit_bytes,
        "flooded_share": figures.flooded_s / figures.span_s,
    }
