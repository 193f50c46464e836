# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl`: its parser, and the dispatch to one module per verb."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import sys
from pathlib import Path
from typing import Any, List, Optional

from writebackd import __version__
from writebackd.cli.arguments import number, positive, span
from writebackd.cli.examples import EXAMPLES, examples
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.command_line import Parser, complain, drop_unwritten, open_closed_streams, seconds
from writebackd.paths import RUNTIME_DIR, runtime_dir_in_use

# The verbs whose first example --help shows.
_FRONT = (
    "status", "top", "why", "alerts", "history", "report", "observe", "trial", "pin", "restore",
    "policy match", "doctor",
)  # fmt: skip
_EXIT_CODES = """\
exit codes: 0 success; 1 check failed (verify, doctor, drain, restore, trial, replay, recommend,
calibrate); 2 wrong use or wrong configuration; 3 no daemon to talk to; 4 not permitted;
`alerts --check` answers as Nagios plugins do, `run` as its command does"""


def main(argv: Optional[List[str]] = None) -> int:
    """Run one verb; returns the exit code, as in cli/exit_codes.py."""
    open_closed_streams()
    # Names of mounts and processes are bytes: never die of one that has no text.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        words = sys.argv[1:] if argv is None else argv
        # A command's own options are after `--`.
        check = "--check" in (words[: words.index("--")] if "--" in words else words)
        options = (_check_options if check else _options)(words)
        # `module:function`, imported only now: most of the start-up time is imports.
        module, _, function = options.run.partition(":")
        verb = getattr(importlib.import_module(f"writebackd.cli.{module}"), function)
        code: int = verb(options)
        sys.stdout.flush()
        return code
    except CommandError as error:
        complain(f"writebackctl: {error}")
        drop_unwritten("stdout")
        return error.exit_code
    except BrokenPipeError:
        # The reader of stdout (head, less) has seen enough; keep the exit quiet as well.
        drop_unwritten("stdout")
        return GOOD
    except OSError as error:
        # A full disk behind the standard output, mostly.
        where = error.filename or "cannot write the output"
        complain(f"writebackctl: {where}: {error.strerror or error}")
        drop_unwritten("stdout")
        return BAD_NEWS
    except KeyboardInterrupt:
        return 130
    finally:
        drop_unwritten()


def _check_options(words: List[str]) -> argparse.Namespace:
    """As `_options`, but reports errors where Nagios looks, and not as 2: that is critical."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return _options(words)
    except SystemExit as error:
        if error.code == GOOD:  # --help
            raise
        from writebackd.cli.alerts import unknown

        raise SystemExit(unknown(said.getvalue().strip())) from None


def _options(words: List[str]) -> argparse.Namespace:
    given = argparse.Namespace(json=False, runtime_dir=None, color="auto")
    options = _parser().parse_args(words, given)
    if options.verb is None:
        raise CommandError("no verb: `writebackctl --help` lists them", USAGE)
    options.runtime_dir = options.runtime_dir or runtime_dir_in_use()
    return options


def _parser() -> argparse.ArgumentParser:
    common = Parser(add_help=False)
    # SUPPRESS: given before the verb, they must survive the verb's own parser.
    common.add_argument(
        "--runtime-dir", type=Path, metavar="DIR", default=argparse.SUPPRESS,
        help=f"directory of the daemon's socket and ledger (default: that of the last daemon"
        f" started, or {RUNTIME_DIR})",
    )  # fmt: skip
    common.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print only data"
    )
    common.add_argument(
        "--color", choices=("auto", "always", "never"), default=argparse.SUPPRESS,
        help="auto: on a terminal, unless NO_COLOR says otherwise",
    )  # fmt: skip
    config = Parser(add_help=False)
    config.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="policies (default: the system's)"
    )
    state = Parser(add_help=False)
    state.add_argument(
        "--state-dir", metavar="DIR",
        help="history and learned values (default: the running daemon's, else /var/lib/writebackd)",
    )  # fmt: skip
    past = Parser(add_help=False, parents=[state])
    past.add_argument("--since", metavar="TIME", help="30m, 1h, 2d ago, or '2024-05-01 03:00'")
    past.add_argument("--until", metavar="TIME", help="likewise (default: now)")
    of_device = Parser(add_help=False)
    of_device.add_argument("--device", metavar="NAME", help="only this device and the whole host")

    parser = Parser(
        prog="writebackctl",
        parents=[common],
        description="Query and control writebackd, which keeps dirty pages from starving fsync.",
        epilog=f"{examples(EXAMPLES[verb][0] for verb in _FRONT)}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"writebackctl {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb")

    def verb(
        name: str, run: str, text: str, *parents: Parser, of: Any = verbs
    ) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = of.add_parser(
            name.split()[-1], parents=[common, *parents], help=text, description=f"{text}.",
            epilog=examples(EXAMPLES.get(name, ())),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(run=run)
        return sub

    status = verb("status", "daemon_verbs:status", "show limits, devices and reasons on one screen")
    status.add_argument(
        "--watch", type=seconds(0.2, 3600), nargs="?", const=1.0, metavar="SECONDS",
        help="repeat every SECONDS (default 1) until Ctrl-C; one line each if stdout is not a"
        " terminal",
    )  # fmt: skip
    verb("devices", "daemon_verbs:devices", "show every device, its disks, managed or not")
    why = verb("why", "daemon_verbs:why", "explain the last decision")
    why.add_argument(
        "device", nargs="?", help="name, MAJ:MIN, /dev path or mount point; default: all"
    )
    why.add_argument(
        "-v", "--verbose", action="store_true", help="add the steps from measurement to decision"
    )
    _add_alerts(verb("alerts", "alerts:alerts", "show alerts, current and past", state))
    _add_top(verb("top", "top:top", "show devices, writers and waiters, live"))
    _add_history(verb("history", "history:history", "show past events", past, of_device))
    report = verb(
        "report", "report:report", "write a page with plots of past events", past, of_device
    )
    report.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("writebackd-report.html"),
        help="where to write the page (default %(default)s; - is stdout)",
    )  # fmt: skip
    _add_recommend(verb(
        "recommend", "recommend:run", "recommend one fixed limit, from the last 7 days, or --since",
        past, of_device, config,
    ))  # fmt: skip
    _add_calibrate(verb(
        "calibrate", "calibrate:run", "measure an unused disk with test loads; no daemon may run",
        state, config,
    ))  # fmt: skip
    _add_trial(verb("trial", "trial:trial", "measure the effect on this host by experiment"))
    replay = verb("replay", "replay:run", "repeat recorded decisions", past, config)
    replay.add_argument(
        "--policy", metavar="NAME|FILE", help="decide by this policy (default: as recorded)"
    )
    replay.add_argument("--tape", type=Path, metavar="DIR", help="directory of recorded samples")
    verb("observe", "daemon_verbs:mode", "restore the original limits and only watch")
    verb("enforce", "daemon_verbs:mode", "set limits again, also after a yield")
    pin = verb("pin", "daemon_verbs:pin", "set a fixed limit, for a time or until `release`")
    pin.add_argument(
        "size", metavar="BYTES",
        help="like 15M or 1.5M, a whole number of bytes (1024-based); background is half",
    )  # fmt: skip
    pin.add_argument(
        "--for", dest="span", type=span, metavar="SPAN", help="release it after SPAN, like 10m"
    )
    verb("release", "daemon_verbs:release", "end a pin or a held drain")
    drain = verb(
        "drain", "drain_verb:drain", "write out page cache and write caches, with progress"
    )
    drain.add_argument(
        "devices", nargs="*", metavar="DEVICE",
        help="name, MAJ:MIN, /dev path or mount point; default: all managed ones",
    )  # fmt: skip
    drain.add_argument(
        "--hold", action="store_true", help="then keep the limits at their floor until `release`"
    )
    drain.add_argument(
        "--timeout", type=span, metavar="SPAN", help="give up after SPAN, like 90s"
    )
    verb("reset-stats", "daemon_verbs:reset_stats", "zero the counters; the history stays")
    forget = verb("forget", "daemon_verbs:forget", "drop learned values of a device")
    forget.add_argument("device", help="name, MAJ:MIN, /dev path or mount point")
    run = verb("run", "run_verb:run", "run a command in its own scope, to watch and pace it")
    run.usage = "writebackctl run [-h] [--name NAME] [--slice SLICE] -- COMMAND"
    run.add_argument("--name", metavar="NAME", help="name for the scope (default: the command's)")
    run.add_argument("--slice", metavar="SLICE", help="slice for the scope (with systemd)")
    run.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND",
        help="the command with its arguments; its exit code is passed on",
    )  # fmt: skip
    verb("verify", "daemon_verbs:verify", "check the kernel against the values last written")
    metrics = verb("metrics", "daemon_verbs:metrics", "print the metrics of the last tick")
    metrics.add_argument(
        "--format", choices=("openmetrics", "prometheus"), default="openmetrics",
        help="prometheus: the older text format, for textfiles and promtool",
    )  # fmt: skip
    _add_restore(verb("restore", "restore:restore", "restore everything, with or without a daemon"))
    verb("version", "daemon_verbs:version", "show versions of program, daemon, kernel and probe")
    # For writebackd-watch.service alone: without help= no list of verbs shows it.
    verbs.add_parser("lease-watcher", parents=[common]).set_defaults(
        run="lease_watcher:lease_watcher"
    )
    doctor = verb(
        "doctor", "doctor:doctor", "check whether this host can run it; no daemon needed"
    )
    doctor.add_argument(
        "--bundle", nargs="?", const="", metavar="FILE",
        help="write an archive for a bug report, without secrets, to FILE (default:"
        " writebackd-bundle-TIME.tar.gz here)",
    )  # fmt: skip
    policy = verb("policy", "", "list, show, check or match policy files").add_subparsers(
        title="what to do", metavar="list|show|check|match", required=True
    )

    def policy_verb(name: str, text: str) -> argparse.ArgumentParser:
        return verb(f"policy {name}", f"policy:{name}_", text, config, of=policy)

    policy_verb("list", "names of all policies")
    show = policy_verb("show", "a policy's files, or the merged values")
    show.add_argument(
        "name", nargs="?", metavar="NAME|FILE", help="name or file; default: the running one"
    )
    show.add_argument(
        "--effective", action="store_true", help="merged values, each with its file and line"
    )
    check = policy_verb("check", "errors in policy files, with file and line")
    check.add_argument("files", nargs="+", metavar="NAME|FILE", help="names or files of policies")
    check.add_argument(
        "--as", dest="place", metavar="FILE",
        help="intended place of a file that is not installed yet: a drop-in (in a NAME.conf.d)"
        " is checked with every policy that it is merged into",
    )  # fmt: skip
    match = policy_verb("match", "which policy fits this host, with points and evidence")
    match.add_argument("--all", action="store_true", help="show all policies, not just two")
    return parser


def _add_alerts(alerts: argparse.ArgumentParser) -> None:
    alerts.add_argument(
        "--check", action="store_true",
        help="answer as a Nagios plugin: 0 good, 1 warning, 2 critical, 3 unknown",
    )  # fmt: skip
    alerts.add_argument(
        "--device", metavar="NAME",
        help="only the host and this device: sda, /dev/sda, 8:0, or a mount point",
    )  # fmt: skip
    alerts.add_argument(
        "--limit", type=positive, default=10, metavar="N", help="last N past alerts (default 10)"
    )


def _add_top(top: argparse.ArgumentParser) -> None:
    top.add_argument(
        "--interval", type=seconds(0.2, 3600), default=1.0, metavar="SECONDS",
        help="time between frames (default 1, at least 0.2)",
    )  # fmt: skip
    top.add_argument(
        "--frames", type=positive, metavar="N", help="print N frames as text, then end"
    )


def _add_history(history: argparse.ArgumentParser) -> None:
    history.add_argument(
        "--figures", action="store_true",
        help="limits, rates and latencies per device instead of events",
    )  # fmt: skip
    history.add_argument(
        "--limit", type=positive, metavar="N", help="the last N lines (default 50; with --csv all)"
    )
    history.add_argument("--csv", action="store_true", help="print a table for other programs")


def _add_recommend(recommend: argparse.ArgumentParser) -> None:
    recommend.add_argument(
        "--format", choices=("text", "sysctl", "tuned", "policy", "json"), default="text",
        help="sysctl: a file for sysctl.d; tuned: a profile; policy: a drop-in for writebackd",
    )  # fmt: skip
    recommend.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="where to write it (default: stdout); replaces only files that recommend wrote",
    )  # fmt: skip


def _add_calibrate(calibrate: argparse.ArgumentParser) -> None:
    calibrate.add_argument(
        "--directory", type=Path, metavar="DIR", required=True,
        help="a directory on the disk; test files are written there",
    )  # fmt: skip
    calibrate.add_argument(
        "--budget", metavar="BYTES", default="8G", help="write at most (default %(default)s)"
    )
    calibrate.add_argument(
        "--time", type=span, metavar="SPAN", default="90s", help="run at most (default %(default)s)"
    )


def _add_trial(trial: argparse.ArgumentParser) -> None:
    trial.add_argument(
        "--duration", type=span, metavar="SPAN", default="8m",
        help="total length (default 8m)",
    )  # fmt: skip
    trial.add_argument(
        "--block", type=span, metavar="SPAN", default="30s", help="length of a block (default 30s)"
    )
    trial.add_argument("--seed", type=number, metavar="N", help="repeat the order of a trial")
    trial.add_argument("--device", metavar="NAME", help="default: the device with sync demand")
    trial.add_argument(
        "--ceiling", type=span, metavar="SPAN", default="1s",
        help="cap the original limits to what the disk drains in this time (default 1s)",
    )  # fmt: skip
    trial.add_argument(
        "--stop-at", type=span, metavar="SPAN",
        help="stop when a commit takes this long (default: twice the ceiling, or 20 times its"
        " unloaded median if that is longer)",
    )  # fmt: skip
    trial.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write a page with plots (- is stdout)"
    )


def _add_restore(restore: argparse.ArgumentParser) -> None:
    restore.add_argument(
        "--honour-keep", action="store_true",
        help="leave the limits if the policy says on-exit = keep (for ExecStopPost=)",
    )  # fmt: skip
    restore.add_argument(
        "--lease", action="store_true",
        help="leave it to the watcher if systemd restarts the daemon (for ExecStopPost=)",
    )  # fmt: skip
    restore.add_argument(
        "--first-found", action="store_true",
        help="restore the limits from before writebackd's first write since boot, even if another"
        " process has set limits since",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
