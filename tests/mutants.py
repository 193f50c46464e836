# SPDX-License-Identifier: GPL-2.0-or-later
"""Breaks the promises of docs/reference/promises.md, one at a time: a test of its row has to fail.

    build/venv/bin/python tests/mutants.py [NAME...]     # as root, not in the gate

Each mutant is named like a test of its row, and is made in a copy of the checkout.  It ends with 1
if one survives or cannot be made, and shows the rows for which there is none.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit")]
from tests.installed import PARTS  # noqa: E402

COPIED = (*PARTS, "tests", "packaging", "debian")
LIMIT_S = 300.0


class Mutant(NamedTuple):
    """`old` is once in the file below agent/writebackd."""

    file: str
    old: str
    new: str


ACTUATOR, LEASE, WATCHER = "actuate/actuator.py", "actuate/lease.py", "actuate/watcher.py"
CGROUPS, READERS = "kernel/cgroup_index.py", "kernel/map_readers.py"
DAEMON, DECIDE, LEDGER = "daemon.py", "control/decide.py", "actuate/ledger.py"
SERVER, UNITS = "report/control_server.py", "../../systemd/writebackd"
UNSAVED = Mutant(ACTUATOR, "            self._save(wanted)\n        except", "        except")
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
        Mutant(DAEMON, "            self._executor.restore()\n\n    def _enter_window",
               "            pass\n\n    def _enter_window"),
    ],
    "test_a_daemon_killed_at_any_write": [UNSAVED],
    "test_what_was_in_force_before_the_lease_was_lost_is_forgotten": [
        Mutant(DAEMON, "released(self.state.memory)\n        self._adopt()",
               "self.state.memory\n        self._adopt()"),
    ],
    "test_woken_late_it_lets_the_daemon_speak_first_but_not_for_ever": [
        Mutant(WATCHER, "_GRACE_S = 1.5\n", "_GRACE_S = 0.0\n"),
        Mutant(WATCHER, "if late and line.until_s != self._graced_s:", "if late:"),
    ],
    "test_a_restart_keeps_mode_pin_and_yield": [
        Mutant("runtime_state.py", "        if now == self.saved:", "        if True:"),
    ],
    "test_a_yield_is_known_to_a_daemon_killed_before_it_let_go": [
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
        Mutant(LEDGER, "-(-limits[half] // page) * page", "limits[half]"),
        Mutant(LEDGER, ", limits[half] // page * page,", ","),
    ],
    "test_what_an_admin_types_stays_also_where_it_was_a_value_of_ours": [
        Mutant(LEDGER, "        ledger = ledger.without(pair, value)\n", "        pass\n"),
    ],
    "test_the_same_value_typed_in_a_session_stays": [
        Mutant("types/levers.py", "return self.comm in _TYPED and", "return False and"),
    ],
    "test_the_originals_applied_again_are_a_yield_of_a_minute": [
        Mutant(DECIDE, "retry = Retry(sample.time_s + REAPPLIED_S)", "pass"),
        Mutant("actuate/executor.py", "                self._actuator.take_over()\n",
               "                pass\n"),
        Mutant(DECIDE, "REAPPLIED_S = 60.0", "REAPPLIED_S = 30.0"),
    ],
    "test_three_times_in_an_hour_and_then_no_more": [
        Mutant(DECIDE, "REAPPLIED_MOST = 3", "REAPPLIED_MOST = 4"),
    ],
    "test_another_writer_or_value_is_a_yield_for_good": [
        Mutant("control/decide.py", "all(each.original and each.comm in", "all(each.comm in"),
        Mutant("control/decide.py", "each.original and each.comm in (\"systemd-sysctl\","
               " \"sysctl\")", "each.original"),
    ],
    "test_with_a_damaged_ledger_the_limits_found_first_come_back": [
        Mutant("actuate/ledger.py", "        if first is None:\n", "        if True:\n"),
    ],
    "test_in_a_read_only_run_it_restores_and_complains_then": [
        Mutant("actuate/ledger_restore.py", ", *([stays] if stays else ())", ""),
    ],
    "test_the_watcher_starts_and_restores_in_a_read_only_run": [
        Mutant("actuate/lock.py", "if error.errno != errno.EROFS:", "if True:"),
    ],
    "test_a_daemon_in_another_mount_namespace_is_refused": [
        Mutant("actuate/host_lock.py", "            self._lock_kernel()\n", ""),
    ],
    "test_what_one_in_another_namespace_left_is_no_original": [
        Mutant("actuate/host_lock.py", "    if not record.exists() or not", "    if not"),
        Mutant("actuate/ledger.py",
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
        Mutant("actuate/ledger.py", "    if first_found(files) is None:\n", "    if True:\n"),
    ],
    "test_a_damaged_file_counts_as_lost": [
        Mutant(LEASE, "if line is None or line.epoch != self._epoch:",
               "if line is not None and line.epoch != self._epoch:"),
    ],
    "test_what_could_not_be_put_back_is_tried_again": [
        Mutant(WATCHER, "elif now_s >= self._again_s:", "elif False:"),
    ],
    "test_a_queue_that_hangs_has_one_child_however_often_it_is_tried": [
        Mutant("actuate/lever_plan.py", "CHILD_LIMIT_S = 5.0", "CHILD_LIMIT_S = 500.0"),
    ],
    "test_samples_are_timed_by_the_boot_clock": [
        Mutant(DAEMON, "time.clock_gettime(time.CLOCK_BOOTTIME)", "time.time()"),
    ],
    "test_a_file_on_the_disk_is_seen_within_seconds": [
        Mutant("actuate/kill_switch.py", "_LOOK_S = 1.0\n", "_LOOK_S = 3600.0\n"),
    ],
    "test_a_path_that_is_very_deep_is_not_told": [
        Mutant(CGROUPS, "MOST_LEVELS = 32\n", "MOST_LEVELS = 400\n"),
    ],
    "test_over_tcp_one_user_takes_a_half_at_most": [
        Mutant(SERVER, "MAX_CLIENTS_PER_UID = 32\n", "MAX_CLIENTS_PER_UID = 40\n"),
    ],
    "test_what_root_starts_in_a_container_tells_nothing_of_the_host": [
        Mutant("kernel/host_facts.py", "if any(_INNER.match(part) for part in path) or", "if"),
    ],
    "test_told_to_end_it_calls_in_the_long_lease_of_a_daemon_that_hangs": [
        Mutant(WATCHER, "                    self._run_out(line, \"watcher is stopping\")\n",
               "                    pass\n"),
    ],
    "test_no_verb_tells_others_a_command_line": [
        Mutant("report/attribution.py", "    return replace(write, cmdline=None)\n",
               "    return write\n"),
    ],
    "test_a_daemon_stopped_before_a_write_does_not_leave_it_behind": [
        Mutant(ACTUATOR, "                self._ours.update((done, (wanted[done], 0)) for done in"
               " todo[:index])\n", ""),
    ],
    "test_one_that_is_killed_before_it_can_put_that_right": [
        Mutant(WATCHER,
               "            if not is_locked(self._dir):\n                self._restore()\n",
               "            if not is_locked(self._dir):\n                pass\n"),
    ],
    "test_on_the_way_home_nothing_is_imported_any_more": [
        Mutant(WATCHER, "        had = self._has_ledger()\n        result",
               "        import difflib\n        had = bool(difflib) and self._has_ledger()\n"
               "        result"),
    ],
    "test_without_a_daemon_its_limits_are_told_with_the_way_back": [
        Mutant("cli/client.py", "    if not limits:\n        return f\": start it",
               "    if True:\n        return f\": start it"),
    ],
    "test_enforce_says_what_exit_restores_and_what_that_was_before": [
        Mutant("commands.py", "f\"{text} (was {in_words(first)}:"
               " `writebackctl restore --first-found`)\"", "text"),
    ],
    "test_a_start_that_fails_stands_in_nobodys_way": [
        Mutant(DAEMON, "            self._host_lock.close()\n            raise",
               "            raise"),
    ],
    "test_a_damaged_ledger_is_refused_by_whoever_reads_it_and_touches_nothing": [
        Mutant(LEDGER, "        raise LedgerError(path, f\"is damaged ({error})\")"
               " from error", "        return None"),
    ],
    "test_an_error_of_the_program_brings_all_home": [
        Mutant(DAEMON, "done = all(action.ok for action in self._executor.finish())",
               "done = True"),
    ],
    "test_a_systemd_that_does_not_read_holds_nobody_up_and_hears_of_it_later": [
        Mutant("cli/sd_notify.py", "list(dict.fromkeys(untold + states))", "states"),
    ],
    "test_nobody_who_floods_systemd_keeps_a_beat_from_it": [
        Mutant("cli/sd_notify.py", "            sock.settimeout(limit_s)\n",
               "            sock.setblocking(False)\n"),
    ],
    "test_status_says_that_a_reload_hangs": [
        Mutant("policy/reload.py", "\"cannot reload the policy: reading it hangs\" if hangs else"
               " None", "None"),
    ],
    "test_a_scan_that_hangs_holds_nobody_up_and_is_told": [
        Mutant("kernel/topology.py", "        if self._scanning and self._clock() - self._began >"
               " _HANGS_S:", "        if False:"),
    ],
    "test_a_queue_that_cannot_be_read_holds_nobody_up": [
        Mutant("kernel/child_process.py", "        _hanging[home] = job\n", ""),
    ],
    "test_a_trace_is_told_without_a_look_at_the_sources": [
        Mutant("cli/daemon_main.py", "        self.setFormatter(_Frames())", "        pass"),
    ],
    "test_dead_routes_delay_neither_the_loop_nor_the_others": [
        Mutant("notify/route.py", "        if events:\n            self._wake.set()\n",
               "        for event in events:\n            self._send(event)\n"),
    ],
    "test_status_says_what_is_not_seen": [
        Mutant("report/status_answer.py", "        lines.append(snapshot.unseen)\n",
               "        pass\n"),
    ],
    "test_doctor_says_what_the_daemon_does_not_see": [
        Mutant("cli/doctor_checks.py", "hidden = status[\"processes_unseen\"]", "hidden = None"),
    ],
    "test_the_daemon_takes_no_file_that_others_may_change": [
        Mutant("paths.py", "        if wide and not safe:", "        if False:"),
    ],
    "test_a_program_that_others_may_change_is_not_started": [
        Mutant("notify/exec_hook.py", "    if why:\n        raise RouteError(f\"not started: {why}",
               "    if False:\n        raise RouteError(f\"not started: {why}"),
    ],
    "test_a_directory_that_others_may_change_is_not_used": [
        Mutant("paths.py",
               "        if status.st_uid not in (0, os.geteuid()):", "        if False:"),
    ],
    "test_a_program_runs_as_nobody": [
        Mutant("notify/exec_hook.py", "--reuid={_NOBODY}", "--reuid=0"),
    ],
    "test_of_very_many_that_sync_the_last_are_remembered": [
        Mutant("control/pacing/pace.py", "list(syncers)[:-MOST_SYNCERS]", "list(syncers)[:0]"),
    ],
    "test_of_very_many_that_slept_or_flooded_the_last_are_remembered": [
        Mutant(CGROUPS, "busiest[:MOST_PATHS]", "busiest"),
        Mutant(CGROUPS, "latest[:MOST_PATHS]", "latest"),
    ],
    "test_filesystems_that_were_synced_once_leave_room_for_a_disk": [
        Mutant("kernel/bpf_layout.py", "- table.max_entries // 2\n", "- table.max_entries\n"),
    ],
    "test_a_known_disk_never_leaves_the_table_of_syncs": [
        Mutant(READERS, "enumerate(self._last) if not known(_name(key))}",
               "enumerate(self._last)}"),
    ],
    "test_while_syncs_are_lost_a_disk_that_shows_none_is_blind": [
        Mutant("kernel/sampler.py", " and not reading.syncs_lost", ""),
    ],
    "test_of_too_many_active_threads_the_smallest_are_taken_out": [
        Mutant("kernel/bpf_layout.py", "heapq.nsmallest(", "heapq.nlargest("),
    ],
    "test_of_too_many_cgroups_those_with_the_most_syncs_stay": [
        Mutant(READERS, "ranks[key] = (grown, last_ns)", "ranks[key] = (0, last_ns)"),
    ],
    "test_a_path_that_is_long_is_not_told": [
        Mutant(CGROUPS, "MOST_PATH_BYTES = 512\n", "MOST_PATH_BYTES = 5120\n"),
    ],
    "test_answers_that_nobody_takes_have_a_bound_over_all_clients": [
        Mutant(SERVER, "MAX_ANSWER_BYTES = 32 << 20", "MAX_ANSWER_BYTES = 320 << 20"),
    ],
    "test_bursts_teach_nothing_of_the_disk": [
        Mutant("estimate/drain.py", "    if not writes.flooded or sample.sync is None:",
               "    if sample.sync is None:"),
    ],
    "test_without_syncs_the_limits_are_as_found_within_seconds": [
        Mutant("tuning.py", "RELEASE_S = 5.0", "RELEASE_S = 50.0"),
    ],
    "test_a_load_that_comes_back_after_a_gap_is_let_go_in_the_first_alone": [
        Mutant("estimate/sync_demand.py", "max(RELEASE_S, 2 * gap_s)", "RELEASE_S"),
    ],
    "test_what_is_called_demand_is_there_now_or_has_a_time": [
        Mutant("estimate/sync_demand.py", "max(RELEASE_S, 2 * gap_s)", "3 * RELEASE_S"),
    ],
    "test_minima_of_any_number_of_caps_are_half_of_the_lowest_limit_at_most": [
        Mutant("control/device_limits.py", "(MINIMA_SHARE * len(caps))", "MINIMA_SHARE"),
    ],
    "test_any_files_are_a_policy_or_errors_with_their_place": [
        Mutant("policy/parse.py", "            raise PolicyError(*self.messages)",
               "            raise PolicyError(\"bad\")"),
    ],
    "test_no_content_of_a_kernel_file_ends_the_daemon": [
        Mutant(DAEMON, "        except (OSError, ValueError, BpfError) as error:\n"
               "            self._hold",
               "        except OSError as error:\n            self._hold"),
    ],
    "test_no_content_of_a_map_ends_the_daemon": [
        Mutant(READERS, "max(0, head[at] - last[at])", "head[at] - last[at]"),
    ],
    "test_a_history_cut_short_is_read_or_refused": [
        Mutant("report/history_schema.py",
               "    except (sqlite3.Error, UnicodeDecodeError) as error:",
               "    except UnicodeDecodeError as error:"),
    ],
    "test_a_history_with_flipped_bits_is_read_or_refused": [
        Mutant("report/history_schema.py",
               "    except (sqlite3.Error, UnicodeDecodeError) as error:",
               "    except sqlite3.OperationalError as error:"),
    ],
    "test_cut_off_at_every_byte": [
        Mutant("storage/tool_output.py", "    except ValueError as error:  # its text",
               "    except TypeError as error:  # its text"),
    ],
    # What only a kernel, systemd or a disk that hangs shows.
    "test_a_killed_daemon_leaves_nothing_behind": [
        Mutant(WATCHER, "            if left <= 0:\n", "            if left <= -60:\n"),
    ],
    "test_a_restart_within_the_lease_does_not_let_the_limit_jump": [
        Mutant(WATCHER, "left = max(line.remaining_s(now_s), self._grace_until_s - now_s)",
               "left, rest = line.remaining_s(now_s) if is_locked(self._dir) else 0.0, 0.01"),
    ],
    "test_stopped": [Mutant(WATCHER, "self._do_restore(not alive,", "self._do_restore(True,")],
    "test_stopped_and_then_killed": [
        Mutant(WATCHER, "if not is_locked(self._dir):\n                self._restore()\n",
               "if self._state == 'restored':\n                pass\n"),
    ],
    "test_map_that_cannot_be_read": [Mutant(DAEMON, "SILENT_TICKS = 5\n", "SILENT_TICKS = 9999\n")],
    "test_hung_sampler": [
        Mutant(DAEMON, "self._stand_still(self._lease.take_again(self._begin_anew), sample)",
               "self._stand_still('lost', sample)"),
    ],
    "test_a_watcher_that_does_not_watch_is_replaced": [
        Mutant(DAEMON, "        self._watch.tend()\n", ""),
    ],
    "test_both_are_locked_in_memory": [
        Mutant("kernel/memory_lock.py", "if libc.mlockall(flags)", "if flags < 0"),
    ],
    "test_after_a_clean_stop_the_watcher_ends": [
        Mutant(WATCHER, "            if not self._stay:\n                return None\n        elif",
               "        elif"),
    ],
    "test_at_random_points": [UNSAVED],
    "test_full_run": [UNSAVED],
    "test_full_disk_for_state": [
        Mutant("report/background_writer.py", "log.warning(text", "log.debug(text"),
    ],
    "test_unplugged_under_a_flood": [
        Mutant("kernel/disk_identity.py", "f\"file {backing} at", "f\"file at"),
    ],
    "test_it_goes_on_while_its_own_disk_hangs": [
        Mutant("policy/reload.py", "            thread.start()\n", "            thread.run()\n"),
    ],
    "test_starting_a_program_from_a_disk_that_hangs_holds_up_nobody": [
        Mutant("kernel/child_process.py", "_USE_VFORK = False", "_USE_VFORK = True"),
    ],
    "test_a_probe_opened_again_holds_nobody_up_and_knows_the_sync_that_is_stuck": [
        Mutant("host_monitor.py", "renewed.go_on_from(probe)", "pass"),
    ],
    "test_a_sync_of_a_process_that_proc_hides_stays": [
        Mutant(READERS, "        os.kill(tid, 0)\n    except ProcessLookupError:\n",
               "        os.stat(f'/proc/{tid}')\n    except FileNotFoundError:\n"),
    ],
    "test_who_may_read_what_names_processes": [
        Mutant("safe_files.py", "MODE = 0o640", "MODE = 0o644"),
    ],
    "test_it_costs_neither_ticks_nor_memory": [
        Mutant(SERVER, "            sock.setblocking(False)\n", ""),
        Mutant(SERVER, " and not self._make_room(client.uid, everybody)", ""),
        Mutant(SERVER, "if verb in WRITE_VERBS and uid != 0:", "if False:"),
    ],
    "test_thousands_of_tmpfs_do_not_hide_a_disk": [
        Mutant("../../bpf/sync.bpf.h", "(cfg.without_disk || READ(sb, s_bdev) ||",
               "(1 || READ(sb, s_bdev) ||"),
    ],
    "test_300_disks_coming_and_going": [
        Mutant("host_monitor.py", "gc.collect()", f"self.old = [*getattr(self, 'old', ()), {kept}]")
        for kept in ("open('/proc/mounts')", "b'x' * (1 << 20)")
    ],
    "test_as_installed": [
        Mutant(f"{UNITS}.service", "ReadWritePaths=/proc/sys/vm /sys/", "ReadWritePaths=/sys/"),
    ],
    "test_stopped_while_it_stands_still": [
        Mutant("event_loop.py", "self.stop = signal.Signals(number).name", "pass"),
    ],
    "test_killed": [Mutant(f"{UNITS}.service", "Restart=on-failure\n", "Restart=no\n")],
    "test_both_killed": [
        Mutant(f"{UNITS}.service", "ExecStopPost=/usr/bin/writebackctl", "ExecStopPost=true"),
    ],
    "test_killed_for_good": [Mutant(f"{UNITS}-watch.service", "StopWhenUnneeded=yes\n", "")],
    "test_killed_at_random_points": [UNSAVED],
    "test_stopped_by_a_signal": [
        Mutant(WATCHER, "            if left <= 0:\n", "            if left <= -60:\n"),
    ],
    "test_a_shutdown_drains_by_the_unit_as_it_is_installed": [
        Mutant(f"{UNITS}-drain.service", "exec /usr/bin/writebackctl drain", "exec true"),
    ],
}


def path_of(test: str) -> str:
    for path in sorted((ROOT / "tests").glob("*/test_*.py")):
        if re.search(rf"(?m)^def {test}\b", path.read_text()):
            return f"{path.relative_to(ROOT)}::{test}"
    raise SystemExit(f"no test is named {test}")


def passes(copy: Path, test: str) -> bool:
    environ = {**os.environ, "PYTHONPATH": str(copy / "agent"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", path_of(test)]
    build = [sys.executable, "bpf/build_backend.py"]  # compiles if the sources are others
    subprocess.run(build, cwd=copy, stdout=subprocess.DEVNULL, check=True)
    for argv in ([*command, "-m", "not full"], command):
        try:
            done = subprocess.run(argv, cwd=copy, env=environ, capture_output=True,
                                  timeout=LIMIT_S, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        if done.returncode != pytest.ExitCode.NO_TESTS_COLLECTED:
            break
    return not done.returncode


def survives(copy: Path, test: str, mutant: Mutant) -> bool:
    """Whether the test passes with the mutant."""
    path = copy / "agent/writebackd" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{test}: in {mutant.file} {text.count(mutant.old)} times: {mutant.old!r}")
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        return passes(copy, test)
    finally:
        path.write_text(text)


def without() -> List[str]:
    """Rows of the page of which no test has a mutant."""
    from test_promises import NAME, PAGE, rows

    return [row for row in rows(PAGE.read_text()) if not MUTANTS.keys() & set(NAME.findall(row))]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", metavar="NAME")
    tests = parser.parse_args(argv).tests or MUTANTS
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="writebackd-mutants-") as name:
        copy = Path(name)
        for each in COPIED:
            is_file = (ROOT / each).is_file()
            (shutil.copy if is_file else shutil.copytree)(ROOT / each, copy / each)
        for test in tests:
            sound = passes(copy, test)
            for number, mutant in enumerate(MUTANTS[test], 1):
                what = "SURVIVED" if sound and survives(copy, test, mutant) else "killed"
                what = what if sound else "FAILS WITHOUT"
                told[what] += 1
                print(f"{what} {test} {number}", flush=True)
    for row in without():
        print(f"shown in a guest only, no mutant: {row}")
    print(*(f"{count} {what}" for what, count in sorted(told.items())), sep=", ")
    return 1 if told["SURVIVED"] or told["FAILS WITHOUT"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
