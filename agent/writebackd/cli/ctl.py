# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl`: its parser, and the dispatch to one module per verb."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from writebackd import __version__
from writebackd.cli.examples import EXAMPLES, examples
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.command_line import Parser, complain, drop_unwritten, open_streams, seconds
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


def number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid integer: {text!r}") from None


def positive(text: str) -> int:
    value = number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be above 0: {text!r}")
    return value


def span(text: str) -> float:
    """A time above 0 in the form used in policies, in seconds; minutes may be `m`."""
    # Imported here: the start-up time is imports, and few verbs take a span.
    from writebackd.policy.units import UnitError, parse_time

    minutes = re.fullmatch(r"([\d.]+)m", text)
    try:
        value = parse_time(f"{minutes.group(1)}min" if minutes else text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0: {text!r}")
    return value


Option = Tuple[str, Dict[str, Any]]  # names apart by spaces, and arguments of add_argument()


def _option(names: str, text: str, metavar: Optional[str] = None, **how: Any) -> Option:
    """An argument of a verb, or without dashes of its place; `text` is its help."""
    return names, {"help": text, **({"metavar": metavar} if metavar else {}), **how}


def _flag(name: str, text: str, **how: Any) -> Option:
    return _option(name, text, action="store_true", **how)


_DEVICE_NAMES = "name, MAJ:MIN, /dev path or mount point"
# SUPPRESS: given before the verb, they must survive the verb's own parser.
_COMMON = (
    _option(
        "--runtime-dir", "directory of the daemon's socket and ledger (default: that of the last"
        f" daemon started, or {RUNTIME_DIR})", "DIR", type=Path, default=argparse.SUPPRESS,
    ),
    _flag("--json", "print only data", default=argparse.SUPPRESS),
    _option("--color", "auto: on a terminal, unless NO_COLOR says otherwise",
            choices=("auto", "always", "never"), default=argparse.SUPPRESS),
)
_CONFIG = (_option("--config-dir", "policies (default: the system's)", "DIR", type=Path),)
_STATE = (_option(
    "--state-dir",
    "history and learned values (default: the running daemon's, else /var/lib/writebackd)", "DIR",
),)
_PAST = (
    *_STATE,
    _option("--since", "30m, 1h, 2d ago, or '2024-05-01 03:00'", "TIME"),
    _option("--until", "likewise (default: now)", "TIME"),
)
_OF_DEVICE = (_option("--device", "only this device and the whole host", "NAME"),)

# Name, `module:function` of cli/, help, and arguments.
_VERBS: Tuple[Tuple[str, str, str, Tuple[Option, ...]], ...] = (
    ("status", "daemon_verbs:status", "show limits, devices and reasons on one screen", (
        _option("--watch", "repeat every SECONDS (default 1) until Ctrl-C; one line each if stdout"
                " is not a terminal", "SECONDS", type=seconds(0.2, 3600), nargs="?", const=1.0),
    )),
    ("devices", "daemon_verbs:devices", "show every device, its disks, managed or not", ()),
    ("why", "daemon_verbs:why", "explain the last decision", (
        _option("device", f"{_DEVICE_NAMES}; default: all", nargs="?"),
        _flag("-v --verbose", "add the steps from measurement to decision"),
    )),
    ("alerts", "alerts:alerts", "show alerts, current and past", (
        *_STATE,
        _flag("--check", "answer as a Nagios plugin: 0 good, 1 warning, 2 critical, 3 unknown"),
        _option("--device", "only the host and this device: sda, /dev/sda, 8:0, or a mount point",
                "NAME"),
        _option("--limit", "last N past alerts (default 10)", "N", type=positive, default=10),
    )),
    ("top", "top:top", "show devices, writers and waiters, live", (
        _option("--interval", "time between frames (default 1, at least 0.2)", "SECONDS",
                type=seconds(0.2, 3600), default=1.0),
        _option("--frames", "print N frames as text, then end", "N", type=positive),
    )),
    ("history", "history:history", "show past events", (
        *_PAST, *_OF_DEVICE,
        _flag("--figures", "limits, rates and latencies per device instead of events"),
        _option("--limit", "the last N lines (default 50; with --csv all)", "N", type=positive),
        _flag("--csv", "print a table for other programs"),
    )),
    ("report", "history:report", "write a page with plots of past events", (
        *_PAST, *_OF_DEVICE,
        _option("-o --output", "where to write the page (default %(default)s; - is stdout)",
                "FILE", type=Path, default=Path("writebackd-report.html")),
    )),
    ("recommend", "recommend:run", "recommend one fixed limit, from the last 7 days, or --since", (
        *_PAST, *_OF_DEVICE, *_CONFIG,
        _option("--format",
                "sysctl: a file for sysctl.d; tuned: a profile; policy: a drop-in for writebackd",
                choices=("text", "sysctl", "tuned", "policy", "json"), default="text"),
        _option("-o --output",
                "where to write it (default: stdout); replaces only files that recommend wrote",
                "FILE", type=Path),
    )),
    ("calibrate", "calibrate:run", "measure an unused disk with test loads; no daemon may run", (
        *_STATE, *_CONFIG,
        _option("--directory", "a directory on the disk; test files are written there", "DIR",
                type=Path, required=True),
        _option("--budget", "write at most (default %(default)s)", "BYTES", default="8G"),
        _option("--time", "run at most (default %(default)s)", "SPAN", type=span, default="90s"),
    )),
    ("trial", "trial:trial", "measure the effect by experiment; sets limits also in observe mode", (
        _option("--duration", "total length (default 8m)", "SPAN", type=span, default="8m"),
        _option("--block", "length of a block (default 30s)", "SPAN", type=span, default="30s"),
        _option("--seed", "repeat the order of a trial", "N", type=number),
        _option("--device", "default: the device with sync demand", "NAME"),
        _option("--ceiling",
                "cap the original limits to what the disk drains in this time (default 1s)",
                "SPAN", type=span, default="1s"),
        _option("--stop-at", "stop when a commit takes this long (default: twice the ceiling, or 20"
                " times its unloaded median if that is longer)", "SPAN", type=span),
        _option("-o --output", "write a page with plots (- is stdout)", "FILE", type=Path),
    )),
    ("replay", "replay:run", "repeat recorded decisions", (
        *_PAST, *_CONFIG,
        _option("--policy", "decide by this policy (default: as recorded)", "NAME|FILE"),
        _option("--tape", "directory of recorded samples", "DIR", type=Path),
    )),
    ("observe", "daemon_verbs:mode", "restore the original limits and only watch", ()),
    ("enforce", "daemon_verbs:mode", "set limits again, also after a yield", ()),
    ("pin", "daemon_verbs:pin", "set a fixed limit, for a time or until `release`", (
        _option("size",
                "like 15M or 1.5M, a whole number of bytes (1024-based); background is half",
                "BYTES"),
        _option("--for", "release it after SPAN, like 10m", "SPAN", dest="span", type=span),
    )),
    ("release", "daemon_verbs:release", "end a pin or a held drain", ()),
    ("drain", "drain_verb:drain", "write out page cache and write caches, with progress", (
        _option("devices", f"{_DEVICE_NAMES}; default: all managed ones", "DEVICE", nargs="*"),
        _flag("--hold", "then keep the limits at their floor until `release`"),
        _option("--timeout", "give up after SPAN, like 90s", "SPAN", type=span),
    )),
    ("reset-stats", "daemon_verbs:reset_stats", "zero the counters; the history stays", ()),
    ("forget", "daemon_verbs:forget", "drop learned values of a device", (
        _option("device", _DEVICE_NAMES),
    )),
    ("run", "run_verb:run", "run a command in its own scope, to watch and pace it", (
        _option("--name", "name for the scope (default: the command's)", "NAME"),
        _option("--slice", "slice for the scope (with systemd)", "SLICE"),
        _option("command", "the command with its arguments; its exit code is passed on",
                "-- COMMAND", nargs=argparse.REMAINDER),
    )),
    ("verify", "daemon_verbs:verify", "check the kernel against the values last written", ()),
    ("metrics", "daemon_verbs:metrics", "print the metrics of the last tick", (
        _option("--format", "prometheus: the older text format, for textfiles and promtool",
                choices=("openmetrics", "prometheus"), default="openmetrics"),
    )),
    ("restore", "restore:restore", "restore everything, with or without a daemon", (
        _flag("--honour-keep",
              "leave the limits if the policy says on-exit = keep (for ExecStopPost=)"),
        _flag("--lease",
              "leave it to the watcher if systemd restarts the daemon (for ExecStopPost=)"),
        _flag("--first-found", "restore the limits from before writebackd's first write since boot,"
              " even if another process has set limits since"),
    )),
    ("version", "daemon_verbs:version", "show versions of program, daemon, kernel and probe", ()),
    # For writebackd-watch.service alone: without help no list of verbs shows it.
    ("lease-watcher", "lease_watcher:lease_watcher", "", ()),
    ("doctor", "bundle:doctor", "check whether this host can run it; no daemon needed", (
        _option("--bundle", "write an archive for a bug report, without secrets, to FILE (default:"
                " writebackd-bundle-TIME.tar.gz here)", "FILE", nargs="?", const=""),
    )),
    ("policy", "", "list, show, check or match policy files", ()),
    ("policy list", "policy:list_", "names of all policies", _CONFIG),
    ("policy show", "policy:show_", "a policy's files, or the merged values", (
        *_CONFIG,
        _option("name", "name or file; default: the running one", "NAME|FILE", nargs="?"),
        _flag("--effective", "merged values, each with its file and line"),
    )),
    ("policy check", "policy:check_", "errors in policy files, with file and line", (
        *_CONFIG,
        _option("files", "names or files of policies", "NAME|FILE", nargs="+"),
        _option("--as", "intended place of a file that is not installed yet: a drop-in (in a"
                " NAME.conf.d) is checked with every policy that it is merged into", "FILE",
                dest="place"),
    )),
    ("policy match", "policy:match_", "which policy fits this host, with points and evidence", (
        *_CONFIG, _flag("--all", "show all policies, not just two"),
    )),
)  # fmt: skip


@open_streams()
def main(argv: Optional[List[str]] = None) -> int:
    """Run one verb; returns the exit code, as in cli/exit_codes.py."""
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
    except Exception as error:
        # CommandError, or an error of a policy, the history or a recording.
        exit_code = getattr(error, "exit_code", None)
        if exit_code is None:
            raise
        complain(f"writebackctl: {error}")
        drop_unwritten("stdout")
        return int(exit_code)


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
    parser = Parser(
        prog="writebackctl",
        description="Query and control writebackd, which keeps dirty pages from starving fsync.",
        epilog=f"{examples(EXAMPLES[verb][0] for verb in _FRONT)}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add(parser, _COMMON)
    parser.add_argument("--version", action="version", version=f"writebackctl {__version__}")
    verbs: Any = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb")
    parents = {"": verbs}
    for name, run, text, options in _VERBS:
        of, _, word = name.rpartition(" ")
        shown: Dict[str, Any] = {"help": text, "description": f"{text}."} if text else {}
        sub = parents[of].add_parser(
            word, epilog=examples(EXAMPLES.get(name, ())),
            formatter_class=argparse.RawDescriptionHelpFormatter, **shown,
        )  # fmt: skip
        sub.set_defaults(run=run)
        _add(sub, (*_COMMON, *options))
        if name == "run":
            sub.usage = "writebackctl run [-h] [--name NAME] [--slice SLICE] -- COMMAND"
        elif name == "policy":
            parents[name] = sub.add_subparsers(
                title="what to do", metavar="list|show|check|match", required=True
            )
    return parser


def _add(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    for names, how in options:
        parser.add_argument(*names.split(), **how)


if __name__ == "__main__":
    sys.exit(main())
