# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon as its users run it: started, asked, steered, killed, restored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import pytest

from tests.kernel.fault_rig import (
    AGENT,
    DAEMON,
    PIN,
    VM,
    limits,
    limits_kept,
    runtime_in_memory,
    wait_for,
)
from tests.kernel.scratch import scratch_disk
from writebackd.cli.client import request
from writebackd.cli.exit_codes import CommandError
from writebackd.report.learned_store import read_learned, save_learned
from writebackd.types.device_memory import Fact
from writebackd.types.levers import VmLimits


def set_pair(form: str, value: int, background: bool) -> None:
    name = f"dirty_{'background_' if background else ''}{form}"
    (VM / name).write_text(str(value))


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Whatever a test does to the host's limits ends with it."""
    with limits_kept():
        yield


def run_daemon(*argv: str) -> "subprocess.CompletedProcess[str]":
    """One that does not start, to its end."""
    return subprocess.run([*DAEMON, *argv], env={**os.environ, "PYTHONPATH": str(AGENT)},
                          capture_output=True, text=True)


class Running:
    """A daemon process and its directories."""

    def __init__(
        self, tmp: Path, *options: str, runtime_dir: Optional[Path] = None,
        program: Sequence[str] = DAEMON, within_s: float = 20.0,
    ) -> None:  # fmt: skip
        self.runtime_dir = runtime_dir or tmp / "run"
        self.log = tmp / "log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*program, "--runtime-dir", str(self.runtime_dir), "--state-dir",
                 str(tmp / "state"), "--interval", "0.1", "--policy", "default", *options],
                env={**os.environ, "PYTHONPATH": str(AGENT)}, stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(lambda: self._answers() or self.process.poll() is not None, within_s)
        assert self.process.poll() is None, self.log.read_text()

    def _answers(self) -> bool:
        try:
            return bool(self.status())
        except CommandError:
            return False

    def ctl(self, *args: str) -> Tuple[int, Any, str]:
        """Exit code, the JSON answer (or None), standard error."""
        done = subprocess.run(
            [sys.executable, "-m", "writebackd.cli.ctl", "--runtime-dir", str(self.runtime_dir),
             "--json", *args],
            env={**os.environ, "PYTHONPATH": str(AGENT)}, capture_output=True, text=True,
        )  # fmt: skip
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = None
        return done.returncode, answer, done.stderr

    def status(self) -> Dict[str, Any]:
        """Without a start of Python for each look."""
        return request(self.runtime_dir, "status")

    def device(self, name: str) -> Dict[str, Any]:
        """Its row; {} where it has none."""
        return next((row for row in self.status()["devices"] if row["name"] == name), {})

    def pin(self, size: int = PIN) -> None:
        request(self.runtime_dir, "pin", {"bytes": size})
        wait_for(lambda: limits().dirty_bytes == size)

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=20)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: List[Running] = []

    def starter(*options: str, **more: Any) -> Running:
        running.append(Running(tmp_path, *options, runtime_dir=runtime_dir, **more))
        return running[-1]

    with runtime_in_memory() as runtime_dir:
        yield starter
        for daemon in running:
            # In order: of one that is killed the watcher takes the limits home 10 s later, in the
            # middle of another test.
            try:
                daemon.end()
            except subprocess.TimeoutExpired:
                daemon.end(signal.SIGKILL)
                raise


# ---- restore ---------------------------------------------------------------

ORIGINALS = {
    "ratios": (("ratio", 20), ("ratio", 10)),
    "other ratios": (("ratio", 33), ("ratio", 7)),
    "bytes": (("bytes", 200 << 20), ("bytes", 50 << 20)),
    "odd bytes": (("bytes", 123456789), ("bytes", 1234567)),
    "background above, ratios": (("ratio", 10), ("ratio", 20)),
    "background above, bytes": (("bytes", 64 << 20), ("bytes", 128 << 20)),
    "limit in bytes": (("bytes", 512 << 20), ("ratio", 10)),
    "background in bytes": (("ratio", 20), ("bytes", 64 << 20)),
}

# A daemon whose decision fails in the fifth tick after the pin.
CRASHING = """
import sys
import writebackd.daemon as d
real, left = d.decide, [5]
def failing(policy, memory, sample, estimates):
    if memory.pin_bytes:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("as if there were a bug")
    return real(policy, memory, sample, estimates)
d.decide = failing
from writebackd.cli.daemon_main import main
sys.exit(main(sys.argv[1:]))
"""


# test_vm_limits.py has every way home from every original; here each has one of the ends.
ENDS = ("SIGTERM", "SIGINT", "SIGKILL", "crash")


@pytest.mark.parametrize("original, end", [
    (original, ENDS[at % len(ENDS)]) for at, original in enumerate(ORIGINALS)])
def test_all_four_files_read_as_before(
    start: Callable[..., Running], original: str, end: str
) -> None:
    for background, (form, value) in enumerate(ORIGINALS[original]):
        set_pair(form, value, bool(background))
    before = limits()
    program = [sys.executable, "-c", CRASHING] if end == "crash" else DAEMON
    daemon = start("--probe", "procfs", program=program)
    assert daemon.status()["limits"]["original"] == vars(before)
    daemon.pin()
    during = limits()
    assert (during.dirty_bytes, during.dirty_background_bytes) == (PIN, PIN // 2)
    if end == "crash":
        assert daemon.process.wait(timeout=20) == 1
        assert "Traceback" not in daemon.log.read_text()
        assert "as if there were a bug" in daemon.log.read_text()
    else:
        daemon.end(getattr(signal, end))
    if end == "SIGKILL":
        assert limits() == during
        assert daemon.ctl("restore")[0] == 0
    assert limits() == before
    assert not (daemon.runtime_dir / "ledger.json").exists()


# ---- modes and steering ----------------------------------------------------


def test_observe_writes_nothing_and_enforce_does(start: Callable[..., Running]) -> None:
    before = limits()
    daemon = start("--probe", "procfs", "--mode", "observe")
    assert daemon.ctl("pin", str(PIN))[0] == 0
    wait_for(lambda: daemon.status()["devices"][0]["state"] in ("pinned", "excluded"))
    assert limits() == before
    assert daemon.ctl("enforce")[0] == 0
    wait_for(lambda: limits().dirty_bytes == PIN)
    assert daemon.ctl("verify")[0] == 0
    assert daemon.ctl("observe")[0] == 0
    assert limits() == before


def test_release_restores_and_restore_beside_a_running_daemon_means_observe(
    start: Callable[..., Running]
) -> None:
    before = limits()
    daemon = start("--probe", "procfs")
    daemon.pin()
    assert daemon.ctl("release")[0] == 0
    wait_for(lambda: limits() == before)
    daemon.pin()
    assert daemon.ctl("restore")[0] == 0
    assert limits() == before
    assert daemon.status()["mode"] == "observe"


def test_a_foreign_write_is_named_and_left_alone(start: Callable[..., Running]) -> None:
    daemon = start()
    by_name = daemon.status()["probe"]["backend"] == "libbpf"
    daemon.pin()
    shell = subprocess.Popen(["/bin/sh", "-c", f"echo {99 << 20} > {VM}/dirty_bytes"])
    shell.wait()
    wait_for(lambda: daemon.status()["yielded"])
    yielded = daemon.status()["yielded"]
    assert f"dirty_bytes={99 << 20}" in yielded
    (alert,) = daemon.status()["alerts"]
    assert alert["name"] == "FOREIGN_WRITER" and abs(alert["since"] - time.time()) < 30
    assert yielded in alert["summary"].replace(", exited", "") and alert["severity"] == "warning"
    (writer,) = alert["writers"]
    if by_name and "the name of a foreign writer" not in daemon.status()["probe"]["misses"]:
        assert (writer["pid"], writer["comm"]) == (shell.pid, "sh")
        assert writer["cgroup"] == own_cgroup()
        assert writer["cmdline"] == "/bin/sh -c ***"
        assert f"sh (pid {shell.pid}, cgroup {own_cgroup()}" in yielded
    assert daemon.log.read_text().count(": yielding") == 1
    time.sleep(0.5)  # five ticks in which nothing may be written
    assert limits().dirty_bytes == 99 << 20
    assert limits().dirty_background_ratio == 10  # ours went home
    assert daemon.ctl("verify")[0] == 1
    daemon.end()
    assert limits().dirty_bytes == 99 << 20


def test_enforce_takes_over_again_and_goes_back_to_the_foreign_value(
    start: Callable[..., Running]
) -> None:
    daemon = start("--probe", "procfs")
    daemon.pin()
    (VM / "dirty_bytes").write_text(str(99 << 20))
    wait_for(lambda: daemon.status()["yielded"])
    assert "an unknown process" in daemon.status()["alerts"][0]["summary"]
    assert daemon.ctl("enforce")[0] == 0
    assert daemon.status()["alerts"] == []
    wait_for(lambda: limits().dirty_bytes == PIN)
    daemon.end()
    assert limits().dirty_bytes == 99 << 20


def own_cgroup() -> Optional[str]:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), None)


def test_the_same_value_by_somebody_else_is_no_reason_to_yield(
    start: Callable[..., Running]
) -> None:
    before = limits()
    daemon = start("--probe", "procfs")
    daemon.pin()
    set_pair("bytes", PIN, background=False)
    time.sleep(0.5)
    status = daemon.status()
    assert status["yielded"] is None and status["alerts"] == []
    daemon.end()
    assert limits() == before


def test_sysctl_system_and_tuned_set_all_at_once(start: Callable[..., Running]) -> None:
    """Both pairs, as ratios, and the flusher: one yield, everything stays as they set it."""
    daemon = start()
    daemon.pin()
    done = subprocess.run(
        ["sysctl", "-q", "-w", "vm.dirty_ratio=40", "vm.dirty_background_ratio=7"], check=False
    )
    assert done.returncode == 0
    wait_for(lambda: daemon.status()["alerts"])
    (alert,) = daemon.status()["alerts"]
    levers = {writer["lever"]: writer["comm"] for writer in alert["writers"]}
    # Two writes, between which a tick may have looked.
    assert levers.keys() <= {"dirty_ratio", "dirty_background_ratio"}
    if daemon.status()["probe"]["backend"] == "libbpf":
        assert set(levers.values()) == {"sysctl"}
    theirs = VmLimits(0, 40, 0, 7)
    assert limits() == theirs
    wait_for(lambda: daemon.status()["rivals"] is not None)
    daemon.end()
    assert limits() == theirs


@pytest.mark.parametrize("same", [True, False], ids=["", "another runtime directory"])
def test_a_second_daemon_is_refused_with_the_pid_of_the_first(
    start: Callable[..., Running], tmp_path: Path, same: bool
) -> None:
    daemon = start("--probe", "procfs")
    runtime_dir = daemon.runtime_dir if same else tmp_path / "second"
    second = run_daemon("--runtime-dir", str(runtime_dir), "--state-dir", str(tmp_path / "other"))
    assert second.returncode == 1
    assert str(daemon.process.pid) in second.stderr and "--runtime-dir" not in second.stderr


def test_the_limits_of_a_killed_daemon_are_told_and_no_originals_of_another(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    before = limits()
    killed = start("--probe", "procfs")
    killed.pin()
    watcher = killed.status()["lease"]["watcher_pid"]
    killed.end(signal.SIGKILL)
    os.kill(watcher, signal.SIGKILL)
    for verb in ("status", "verify", "alerts"):
        code, _, error = killed.ctl(verb)
        assert code == 3 and f"in force: dirty_bytes={PIN}" in error and "restore`" in error
    (tmp_path / "second").mkdir()
    second = Running(tmp_path / "second", "--probe", "procfs")
    assert second.status()["limits"]["original"] == vars(before)
    assert second.end() == 0
    assert limits() == before


def test_sighup_reads_the_policy_again_and_keeps_the_old_one_on_error(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    policy = tmp_path / "mine.conf"
    policy.write_text("[policy]\nname = mine\nmode = observe\n")
    daemon = start("--probe", "procfs", "--policy", str(policy))
    assert daemon.status()["mode"] == "observe"
    policy.write_text("[policy]\nname = mine\nmode = wrong\n")
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "mine.conf:3" in daemon.log.read_text())
    assert daemon.status()["mode"] == "observe"
    policy.write_text("[policy]\nname = mine\nmode = enforce\n")
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: daemon.status()["mode"] == "enforce")


# ---- devices ---------------------------------------------------------------


def test_a_device_with_syncs_is_guarded_and_its_row_goes_with_it(
    start: Callable[..., Running]
) -> None:
    before = limits()
    with scratch_disk("ext4") as disk:
        daemon = start("--device", disk.device)
        assert disk.mountpoint is not None
        fd = os.open(disk.mountpoint / "db", os.O_RDWR | os.O_CREAT)
        try:
            for i in range(60):
                os.pwrite(fd, b"x" * 4096, i * 4096)
                os.fsync(fd)
        finally:
            os.close(fd)
        wait_for(lambda: daemon.device(disk.device).get("state") == "guard")
        wait_for(lambda: limits().dirty_bytes > 0)
        assert daemon.ctl("why", disk.device)[0] == 0
    wait_for(lambda: not daemon.device(disk.device))
    wait_for(lambda: limits() == before)  # nobody has demand any more
    assert daemon.process.poll() is None
    assert daemon.end() == 0


def test_what_was_learned_outlives_a_restart(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    with scratch_disk("ext4") as disk:
        first = start("--device", disk.device)
        if first.status()["probe"]["backend"] != "libbpf":
            pytest.skip("the probe cannot see fsync on this kernel")
        assert disk.mountpoint is not None
        fd = os.open(disk.mountpoint / "db", os.O_RDWR | os.O_CREAT)

        def sync_until_learned() -> bool:
            for i in range(60):
                os.pwrite(fd, b"x" * 4096, i * 4096)
                os.fsync(fd)
            return bool(first.device(disk.device).get("fsync_baseline_s"))

        try:
            wait_for(sync_until_learned)
        finally:
            os.close(fd)
        assert first.end() == 0
        # No flood here: what the disk drains is said by the file instead.
        path = tmp_path / "state" / "learned.json"
        known = read_learned(path)
        ((identity, learned),) = known.items()
        assert learned.baseline_s is not None and learned.drain_rate is None
        rate = Fact(2.5e8, learned.baseline_s.wall_s - 3 * 3600)
        save_learned(path, {identity: replace(learned, drain_rate=rate)})
        second = start("--device", disk.device)
        wait_for(lambda: second.device(disk.device).get("drain_rate") == 2.5e8)
        assert second.device(disk.device)["fsync_baseline_s"] == learned.baseline_s.value
        steps = second.ctl("why", disk.device)[1]["devices"][0]["steps"]
        assert steps[0] == "drain rate 238M/s, learned before the restart, 3h0m ago"
        second.end()
        assert read_learned(path)[identity].drain_rate == rate


def test_a_damaged_file_of_what_was_learned_is_set_aside(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    path = tmp_path / "state" / "learned.json"
    path.parent.mkdir()
    path.write_bytes(b"\0" * 4096)  # as a host that crashed may leave it
    daemon = start("--probe", "procfs")
    assert "starts anew" in daemon.log.read_text()
    assert path.with_name("learned.json.damaged").exists()
    assert daemon.end() == 0


@pytest.mark.full("20 s of ticks; the gate has tests.bench.tick_cost")
def test_what_it_costs_is_in_the_status(start: Callable[..., Running]) -> None:
    daemon = start("--interval", "1")
    # Not by asking again and again: answering costs the daemon more than its ticks.
    time.sleep(20)
    cost = daemon.status()["self"]
    print(f"\n{100 * cost['cpu_fraction']:.2f} % of a core at a tick of 1 s, "
          f"RSS {cost['rss_bytes'] / (1 << 20):.1f} MB, maps {cost['map_bytes'] >> 10} KiB")
    assert 0 < cost["cpu_fraction"] <= 0.005
    assert 0 < cost["rss_bytes"] <= 45 << 20
    assert 0 < cost["map_bytes"] <= 16 << 20


def test_a_pin_that_the_kernel_would_refuse_is_refused(start: Callable[..., Running]) -> None:
    daemon = start("--probe", "procfs")
    code, _, error = daemon.ctl("pin", "1")
    assert code == 2 and "8192" in error


# ---- what keeps it from starting -------------------------------------------


def test_not_root_is_one_line_and_exit_4(tmp_path: Path) -> None:
    # From a copy: the checkout may lie where nobody cannot go.
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv.pop());"
         "import os; import writebackd.cli.daemon_main as d; import pwd;"
         "os.setuid(pwd.getpwnam('nobody').pw_uid); sys.exit(d.main(sys.argv[1:]))", str(AGENT)],
        capture_output=True, text=True,
    )
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1 and "root" in done.stderr


def test_a_bad_policy_touches_nothing(tmp_path: Path) -> None:
    policy = tmp_path / "bad.conf"
    policy.write_text("[limits]\nflor = 1M\n")
    before = limits()
    done = run_daemon("--policy", str(policy), "--runtime-dir", str(tmp_path / "run"),
                      "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 2
    assert f"{policy}:2" in done.stderr and "floor" in done.stderr
    assert not (tmp_path / "run").exists() and not (tmp_path / "state").exists()
    assert limits() == before


def test_without_bpf_it_runs_on_proc_and_says_what_it_cannot_see(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    hidden = (
        "import sys; import writebackd.kernel.probe as p; from pathlib import Path;"
        "p.object_path = lambda: Path('/nonexistent/writeback.bpf.o');"
        "from writebackd.cli.daemon_main import main; sys.exit(main(sys.argv[1:]))"
    )
    daemon = start(program=[sys.executable, "-c", hidden])
    probe = daemon.status()["probe"]
    assert probe["backend"] == "procfs" and probe["fsync_hook"] is None
    assert any("fsync" in miss for miss in probe["misses"])
    assert daemon.end() == 0


def test_where_the_kernel_refuses_bpf_it_runs_on_proc(start: Callable[..., Running]) -> None:
    # Root without a single capability: bpf(2) answers EPERM, /proc/sys/vm takes uid 0.
    program = ["setpriv", "--bounding-set=-all", "--inh-caps=-all",
               sys.executable, "-m", "writebackd.cli.daemon_main"]
    daemon = start(program=program)
    probe = daemon.status()["probe"]
    assert probe["backend"] == "procfs"
    assert any("BPF" in miss for miss in probe["misses"])
    daemon.pin()
    assert daemon.end() == 0
    assert limits().dirty_bytes == 0
