# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb calibrate: measures a disk under its own loads, and stores the result."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Sequence

from writebackd import formats
from writebackd.alerts.alert_types import Cause
from writebackd.cli.calibration_host import (
    BLOCK_BYTES,
    DATABASE_BYTES,
    CalibrationHost,
    Refused,
    check_room,
    device_of,
)
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, NOT_PERMITTED, USAGE, CommandError
from writebackd.cli.history import state_dir
from writebackd.cli.output import clean, show_json, width, wrapped
from writebackd.cli.policy import in_force
from writebackd.cli.signals import ended_by_signals
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.topology import scan
from writebackd.paths import CALIBRATIONS, HISTORY, LEARNED
from writebackd.policy.schema import Policy
from writebackd.policy.units import UnitError, parse_size
from writebackd.report.alert_answers import past_json
from writebackd.report.history_schema import HistoryError, read_alerts, read_history
from writebackd.report.learned_store import Calibrated, add, median, seed
from writebackd.trial.calibration import Calibration
from writebackd.trial.ladder import Budget, Order, Phase, Result, Rung
from writebackd.types.storage import Device

if TYPE_CHECKING:
    from writebackd.cli.client_answers import CalibrateAnswer, SyncFigures

_INTERRUPTED = 130
# Less would not fill any cache.
_LEAST_BYTES, _LEAST_S = 256 << 20, 30.0


def run(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise CommandError("calibrate needs root: try again with sudo", NOT_PERMITTED)
    directory: Path = options.directory
    if not directory.is_dir():
        raise CommandError(f"calibrate: {directory} is not a directory", USAGE)
    try:
        # The flood writes whole pieces.
        budget = Budget(parse_size(options.budget) // BLOCK_BYTES * BLOCK_BYTES, options.time)
    except UnitError as error:
        raise CommandError(f"calibrate: --budget: {error}", USAGE) from None
    if budget.write_bytes < _LEAST_BYTES or budget.time_s < _LEAST_S:
        least = f"--budget {formats.size(_LEAST_BYTES)} and --time {_LEAST_S:g}s"
        raise CommandError(f"calibrate: at least {least}", USAGE)
    policy = in_force(options.runtime_dir, options.config_dir)
    try:
        device = device_of(directory, scan(KernelFiles()))
        check_room(directory, budget.write_bytes)
        _refuse_standing(state_dir(options) / HISTORY, device.name)
        return _CalibrationRun(options, device, budget, policy).run()
    except Refused as error:
        raise CommandError(f"calibrate: {error}", BAD_NEWS) from None


def _refuse_standing(history: Path, device: str) -> None:
    """Raises Refused if an alert was active when the daemon ended that no flood explains."""
    try:
        starts = [each.wall_s for each in read_history(history) if each.kind == "start"]
        past = past_json(read_alerts(history))
    except HistoryError as error:
        if not history.exists():
            return
        raise Refused(f"cannot tell whether an alert was active: {error}") from None
    for alert in past:
        stood = alert["end"] is None and alert["began"] >= max(starts, default=0.0)
        if stood and alert["device"] == device and alert["cause"] != Cause.FLOOD.value:
            raise Refused(
                f"alert {alert['name']} was active when writebackd stopped: see `writebackctl"
                " alerts`, and start writebackd to check it"
            )


class _CalibrationRun:
    def __init__(
        self, options: argparse.Namespace, device: Device, budget: Budget, policy: Policy
    ) -> None:
        self._options, self._device, self._policy = options, device, policy
        self._calibration = Calibration(policy, device.name, budget)
        self._shown = 0  # of the ladder's limits
        self._runs = 0  # that are kept
        self._kept: Optional[Calibrated] = None  # their median
        self._is_seeded = False  # what the daemon learned

    def run(self) -> int:
        options, budget = self._options, self._calibration.budget
        with ended_by_signals(signal.SIGINT) as no_more:
            host = CalibrationHost(
                options.directory, self._device, budget.write_bytes, self._policy,
                options.runtime_dir,
            )  # fmt: skip
            try:
                self._say(
                    f"calibrate of {clean(self._device.name)}: writes up to"
                    f" {formats.size(budget.write_bytes + DATABASE_BYTES)} to unlinked files"
                    f" in {clean(str(options.directory))}, for at most"
                    f" {formats.duration(budget.time_s)}; Ctrl-C ends it"
                )
                try:
                    self._follow(host)
                except KeyboardInterrupt:
                    self._calibration.problem = "interrupted"
                no_more()
                host.restore()
                # Under the lock: a daemon that starts would read the old file, and write it again.
                result = self._calibration.result()
                problems = [*result.problems, *self._keep(result)]
            finally:
                no_more()
                host.close()
        if self._options.json:
            show_json(self._as_json(result, problems))
        else:
            self._say("\n".join(self._lines(result, problems)))
        if self._calibration.problem == "interrupted":
            return _INTERRUPTED
        return BAD_NEWS if problems else GOOD

    def _follow(self, host: CalibrationHost) -> None:
        calibration, order = self._calibration, Order()
        host.make_ready()
        while calibration.phase is not Phase.DONE:
            before = calibration.phase
            order = calibration.step(host.tick(order), host.own)
            if calibration.phase is not before:
                self._tell_phase(before)
            for rung in calibration.rungs[self._shown :]:
                self._say(self._rung_line(rung))
                self._shown += 1

    # ---- what is kept --------------------------------------------------------

    def _keep(self, result: Result) -> List[str]:
        """Store for the daemon's next start and `recommend`; returns the error, if any."""
        if self._calibration.problem or not result.drain_rate:
            return []
        if self._device.identity is None:
            return ["this disk has no unique identity, so the result is not kept"]
        path = state_dir(self._options) / CALIBRATIONS
        run = Calibrated(
            time.time(), result.drain_rate, result.cache_bytes,
            result.idle.latency.quantile(0.5), result.tau_s,
            None if result.limit_bytes is None else float(result.limit_bytes),
        )  # fmt: skip
        try:
            runs = add(path, self._device.identity, run)
            self._runs, self._kept = len(runs), median(runs) or run
            path = path.with_name(LEARNED)
            seed(path, self._device.identity, self._kept)
            self._is_seeded = True
        except (OSError, ValueError) as error:
            damaged = isinstance(error, ValueError)
            remedy = f"; move it away (mv {path} {path}.old) and calibrate again" if damaged else ""
            return [f"the result is not kept in {path}: {error}{remedy}"]
        return []

    # ---- what is shown -------------------------------------------------------

    def _say(self, text: str) -> None:
        if not self._options.json:
            print(text)

    def _tell_phase(self, done: Phase) -> None:
        calibration = self._calibration
        if done is Phase.IDLE:
            idle = calibration.idle
            self._say(
                f"idle      {formats.count(idle.sync_rate)} fsyncs/s,"
                f" p50 {formats.milliseconds(idle.latency.quantile(0.5))} ms,"
                f" p99 {formats.milliseconds(idle.latency.quantile(0.99))} ms;"
                " starting a flood until the cache is full"
            )
        elif done is Phase.FILL and calibration.phase is Phase.LADDER:
            self._say(f"full      {_cache(calibration.result())}; trying fixed limits")

    def _rung_line(self, rung: Rung) -> str:
        result = self._calibration.result()
        return (
            f"{formats.size(rung.limit_bytes).rjust(7)}   {formats.count(rung.sync_rate)} fsyncs/s,"
            f" p99 {formats.milliseconds(rung.latency.quantile(0.99))} ms, flood"
            f" {formats.size(rung.flood_rate)}/s, score {result.score(rung) or 0.0:.2f}"
        )

    def _lines(self, result: Result, problems: Sequence[str]) -> List[str]:
        lines = []
        if result.drain_rate:
            lines.append(f"drains    {_cache(result)}")
        limit = next((e for e in result.rungs if e.limit_bytes == result.limit_bytes), None)
        if limit is not None and result.drain_rate:
            background = int(limit.limit_bytes * self._policy.limits.background)
            lines.append(
                f"limit     vm.dirty_bytes = {limit.limit_bytes}, vm.dirty_background_bytes ="
                f" {background} ({formats.size(limit.limit_bytes)})"
            )
            lines.append(
                f"price     fsyncs at {formats.percent(limit.sync_rate / result.ladder_idle_rate)}"
                f" of their idle rate, the flood at"
                f" {formats.percent(min(1.0, limit.flood_rate / result.drain_rate))} of the drain"
                " rate"
            )
        if self._kept is not None:
            kept = [f"{formats.size(self._kept.drain_rate)}/s"]
            if self._kept.cache_bytes:
                kept.append(f"cache {formats.size(self._kept.cache_bytes)}")
            if self._kept.limit_bytes:
                kept.append(f"limit {formats.size(self._kept.limit_bytes)}")
            runs = f"{self._runs} runs, medians" if self._runs > 1 else "1 run"
            daemon = "the daemon starts from them, and " if self._is_seeded else ""
            lines.append(
                f"kept      {runs}: {', '.join(kept)}; {daemon}`recommend` uses them"
            )
        lines.append(
            f"wrote     {formats.size(result.written_bytes)} in {formats.duration(result.seconds)}"
        )
        lines += [f"problem   {clean(each)}" for each in problems]
        columns = width()
        return [part for line in lines for part in wrapped(line[10:], columns, " " * 10, line[:10])]

    def _as_json(self, result: Result, problems: Sequence[str]) -> CalibrateAnswer:
        kept = self._kept
        return {
            "device": result.device, "directory": str(self._options.directory),
            "seconds": result.seconds, "written_bytes": result.written_bytes,
            "drain_rate": result.drain_rate, "drain_rate_most": result.drain_rate_most,
            "cache_bytes": result.cache_bytes, "cache_most_bytes": result.cache_most_bytes,
            "tau_s": result.tau_s, "limit_bytes": result.limit_bytes,
            "ladder_idle_rate": result.ladder_idle_rate,
            "idle": _figures(result.idle),
            "ladder": [
                {
                    "limit_bytes": each.limit_bytes, **_figures(each),
                    "write_rate": each.flood_rate, "score": result.score(each),
                }
                for each in result.rungs
            ],
            "kept": {
                "runs": self._runs, "drain_rate": kept.drain_rate,
                "cache_bytes": kept.cache_bytes, "limit_bytes": kept.limit_bytes,
            } if kept else None,
            "problems": list(problems),
        }  # fmt: skip


def _figures(rung: Rung) -> SyncFigures:
    return {
        "fsync_rate": rung.sync_rate,
        "fsync_p50_s": rung.latency.quantile(0.5),
        "fsync_p99_s": rung.latency.quantile(0.99),
    }


def _cache(result: Result) -> str:
    rate = f"{formats.size(result.drain_rate)}/s"
    if result.cache_bytes is not None:
        return f"{rate}, behind a write cache that took {formats.size(result.cache_bytes)}"
    return f"{rate}; no write cache above {formats.size(result.cache_most_bytes)} found"
