# SPDX-License-Identifier: GPL-2.0-or-later
"""Breaks the promises of docs/reference/promises.md, one at a time: a test of its row has to fail.

    build/venv/bin/python tests/mutants.py [--list] [NAME...]     # as root, not in the gate

Each mutant is named like a test of its row, and is made in a copy of the checkout.  It ends with 1
if one survives or cannot be made; `--list` shows the rows for which there is none.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/unit")]
COPIED = ("agent", "tests", "docs", "policies", "systemd", "packaging", "debian", "bpf")
LIMIT_S = 300.0


class Mutant(NamedTuple):
    """`old` is once in the file below agent/writebackd."""

    file: str
    old: str
    new: str


ACTUATOR, LEASE, WATCHER = "actuate/actuator.py", "actuate/lease.py", "actuate/watcher.py"
MUTANTS: Dict[str, List[Mutant]] = {
    "test_a_lease_is_held_until_it_is_called_in": [
        Mutant(LEASE, "return watch is not None and watch.revoked >= self._epoch", "return False"),
    ],
    "test_a_lease_is_called_in_on_record_before_anything_else": [
        Mutant(WATCHER, "        self._revoked = line.epoch\n", ""),
    ],
    "test_nothing_is_written_in_the_last_part_of_a_lease": [
        Mutant(LEASE, "GUARD_SHARE = 0.1\n", "GUARD_SHARE = 0.06\n"),
    ],
    "test_a_write_that_went_out_behind_the_watcher_is_put_back_in_the_same_tick": [
        Mutant("daemon.py", "            self._executor.restore()\n\n    def _enter_window",
               "            pass\n\n    def _enter_window"),
    ],
    "test_a_daemon_killed_at_any_write": [
        Mutant(ACTUATOR, "            self._save(wanted)\n        except", "        except"),
    ],
    "test_what_was_in_force_before_the_lease_was_lost_is_forgotten": [
        Mutant("daemon.py", "released(self.state.memory)\n        self._adopt()",
               "self.state.memory\n        self._adopt()"),
    ],
    "test_woken_late_it_lets_the_daemon_speak_first_but_not_for_ever": [
        Mutant(WATCHER, "_GRACE_S = 1.5\n", "_GRACE_S = 0.0\n"),
        Mutant(WATCHER, "if late and line.until_s != self._graced_s:", "if late:"),
    ],
    "test_a_restart_keeps_mode_pin_and_yield": [
        Mutant("runtime_state.py", "        if now == self.saved:", "        if True:"),
        Mutant("actuate/executor.py", "        actuator.yield_()\n", "        pass\n"),
    ],
    "test_what_was_ordered_ends_with_the_boot": [
        Mutant("runtime_state.py", "not is_other_boot(files, body[\"boot_id\"])", "True"),
    ],
    "test_a_limit_of_ours_that_comes_back_is_no_original": [
        Mutant(ACTUATOR, "        self._take_back(limits)\n        for pair", "        for pair"),
        Mutant(ACTUATOR, "        self._take_back(limits, typed)\n", ""),
        Mutant(ACTUATOR, "return self._take_back(limits)", "return ()"),
        Mutant("actuate/ledger_restore.py",
               "            save_lent(ledger, path, files, _theirs(outcome.foreign))\n",
               "            pass\n"),
    ],
    "test_rounded_to_pages_it_is_known": [
        Mutant("actuate/ledger.py", "-(-each[half] // page) * page", "each[half]"),
        Mutant("actuate/ledger.py", ", each[half] // page * page,", ","),
    ],
    "test_what_an_admin_types_stays_also_where_it_was_a_value_of_ours": [
        Mutant("actuate/ledger.py", "        ledger = ledger.without(pair, value)\n",
               "        pass\n"),
    ],
    "test_the_same_value_typed_in_a_session_stays": [
        Mutant("types/levers.py", "return self.comm in _TYPED and", "return False and"),
    ],
    "test_the_originals_applied_again_are_a_yield_of_a_minute": [
        Mutant("control/decide.py", "retry = Retry(sample.time_s + REAPPLIED_S)", "pass"),
        Mutant("actuate/executor.py", "                self._actuator.take_over()\n",
               "                pass\n"),
        Mutant("tuning.py", "REAPPLIED_S = 60.0", "REAPPLIED_S = 30.0"),
    ],
    "test_three_times_in_an_hour_and_then_no_more": [
        Mutant("tuning.py", "REAPPLIED_MOST = 3", "REAPPLIED_MOST = 4"),
    ],
    "test_another_writer_or_value_is_a_yield_for_good": [
        Mutant("types/levers.py", "return self.original and self.comm in", "return self.comm in"),
        Mutant("types/levers.py", "return self.original and self.comm in (\"systemd-sysctl\","
               " \"sysctl\")", "return self.original"),
    ],
    "test_with_a_damaged_ledger_the_limits_found_first_come_back": [
        Mutant("actuate/first_found.py", "        if first is None:\n", "        if True:\n"),
    ],
    "test_in_a_read_only_run_it_restores_and_complains_then": [
        Mutant("actuate/lock.py", "if error.errno != errno.EROFS:", "if True:"),
        Mutant("actuate/ledger_restore.py", ", *([stays] if stays else ())", ""),
    ],
    "test_a_daemon_in_another_mount_namespace_is_refused": [
        Mutant("actuate/host_lock.py", "            self._lock_kernel()\n", ""),
    ],
    "test_what_one_in_another_namespace_left_is_no_original": [
        Mutant("actuate/host_lock.py", "    if not record.exists() or not", "    if not"),
        Mutant("actuate/first_found.py",
               "            os.setxattr(files.path(_SYSFS), _PREFIX + name, value)\n",
               "            pass\n"),
    ],
    "test_a_start_that_observes_restores_what_a_killed_one_left": [
        Mutant(ACTUATOR,
               "            if self._ours:\n                return self.restore_limits()\n",
               ""),
    ],
    "test_another_runtime_directory_is_no_way_to_a_second_daemon": [
        Mutant("actuate/host_lock.py",
               "self._fds.append(take_lock(runtime_dir, self._dir / HOST_LOCK))", "pass"),
    ],
    "test_what_was_found_first_comes_back_after_all": [
        Mutant("actuate/first_found.py", "    if first_found(files) is None:\n", "    if True:\n"),
    ],
    "test_a_damaged_file_counts_as_lost": [
        Mutant(LEASE, "if line is None or line.epoch != self._epoch:",
               "if line is not None and line.epoch != self._epoch:"),
    ],
    "test_what_could_not_be_put_back_is_tried_again": [
        Mutant(WATCHER, "elif now_s >= self._again_s:", "elif False:"),
    ],
    "test_a_queue_that_hangs_has_one_child_however_often_it_is_tried": [
        Mutant("actuate/child_jobs.py", "CHILD_LIMIT_S = 5.0", "CHILD_LIMIT_S = 500.0"),
    ],
    "test_samples_are_timed_by_the_boot_clock": [
        Mutant("daemon.py", "time.clock_gettime(time.CLOCK_BOOTTIME)", "time.time()"),
    ],
    "test_a_file_on_the_disk_is_seen_within_seconds": [
        Mutant("actuate/kill_switch.py", "_LOOK_S = 1.0\n", "_LOOK_S = 3600.0\n"),
    ],
    "test_a_path_that_is_very_deep_is_not_told": [
        Mutant("kernel/cgroup_index.py", "MOST_LEVELS = 32\n", "MOST_LEVELS = 400\n"),
    ],
    "test_over_tcp_one_user_takes_a_half_at_most": [
        Mutant("report/control_server.py", "MAX_CLIENTS_PER_UID = 32\n",
               "MAX_CLIENTS_PER_UID = 40\n"),
    ],
    "test_what_root_starts_in_a_container_tells_nothing_of_the_host": [
        Mutant("kernel/host_facts.py", "if any(_INNER.match(part) for part in path) or",
               "if"),
    ],
    "test_told_to_end_it_calls_in_the_long_lease_of_a_daemon_that_hangs": [
        Mutant(WATCHER, "                    self._run_out(line, \"watcher is stopping\")\n",
               "                    pass\n"),
    ],
    "test_no_verb_tells_others_a_command_line": [
        Mutant("report/attribution.py", "    return replace(write, cmdline=None)\n",
               "    return write\n"),
    ],
}


def path_of(test: str) -> str:
    for path in sorted((ROOT / "tests").glob("*/test_*.py")):
        if re.search(rf"(?m)^def {test}\b", path.read_text()):
            return f"{path.relative_to(ROOT)}::{test}"
    raise SystemExit(f"no test is named {test}")


def survives(copy: Path, test: str, mutant: Mutant) -> bool:
    """Whether the test passes with the mutant."""
    path = copy / "agent/writebackd" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{test}: in {mutant.file} {text.count(mutant.old)} times: {mutant.old!r}")
    path.write_text(text.replace(mutant.old, mutant.new))
    environ = {**os.environ, "PYTHONPATH": str(copy / "agent"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", path_of(test)]
    try:
        return not subprocess.run(
            command, cwd=copy, env=environ, capture_output=True, timeout=LIMIT_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(text)


def without() -> List[str]:
    """The rows of the page of which no test has a mutant."""
    from test_promises import NAME, PAGE, rows

    return [row for row in rows(PAGE.read_text()) if not MUTANTS.keys() & set(NAME.findall(row))]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("tests", nargs="*", metavar="NAME")
    options = parser.parse_args(argv)
    if options.list:
        print(*without(), sep="\n")
        return 0
    alive = 0
    with tempfile.TemporaryDirectory(prefix="writebackd-mutants-") as name:
        copy = Path(name)
        for each in COPIED:
            shutil.copytree(ROOT / each, copy / each, symlinks=True)
        for file in ("setup.cfg", "README.md", "CHANGELOG.md", "Makefile"):
            shutil.copy(ROOT / file, copy)
        for test in options.tests or MUTANTS:
            for number, mutant in enumerate(MUTANTS[test], 1):
                bad = survives(copy, test, mutant)
                alive += bad
                print(f"{'SURVIVED' if bad else 'killed'} {test} {number}", flush=True)
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
