# SPDX-License-Identifier: GPL-2.0-or-later
"""Every lever but paces, the limits of a BDI among them, by the units as they are installed.

systemd runs in a container on the running kernel (system.py). The first test takes units and
law as they are; for the others the law asks for what the test wants, and the watchdog is shorter
than that of a host, which tests/vm/test_systemd.py waits for in virtual time.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set

import pytest

from tests.installed import CHECKOUT, make_install
from tests.kernel.fault_rig import FILES, PIN, limits, limits_kept, wait_for
from tests.kernel.scratch import Scratch, as_born, scratch_disk
from tests.kernel.system import System, booted, why_not
from tests.vm.inside.rig import MIB, WISHES, WISHING, Wish, state, wishes, wishes_for
from writebackd.kernel.vm import PAIRS, write_pair
from writebackd.types.levers import LeverKind, VmLimits

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
DAEMON, WATCH = "writebackd.service", "writebackd-watch.service"
LEDGER = "run/writebackd/ledger.json"
POLICY = "/etc/writebackd/policies.d/all.conf.d/50-test.conf"
PROGRAM, DROP_IN = "/run/wishing.py", f"/run/systemd/system/{DAEMON}.d/test.conf"
ONCE = DROP_IN.replace("test.conf", "zz-once.conf")
LATE = f"/run/systemd/system/{WATCH}.d/late.conf"
LEASE_S, WATCHDOG_S = 10.0, 15.0
KILLS, SEED, LIFE_S = 6, 20261122, 1.0
# The kernel's own; a cap has to be below what is found.
DEFAULTS = VmLimits(dirty_bytes=0, dirty_ratio=20, dirty_background_bytes=0,
                    dirty_background_ratio=10)
# What a write of bytes may be off when it is read as bytes: two pages, and the fraction of a
# limit that has moved by 1/64 since.
NEAR = 1 / 64
VM = Path("/proc/sys/vm")


@pytest.fixture(scope="module")
def disk() -> Iterator[Scratch]:
    with scratch_disk(None, 64, "/dev/shm") as scratch:
        if not Path(f"/sys/class/bdi/{scratch.devno}/max_ratio_fine").exists():
            pytest.skip("this kernel has no limits in bytes per device")
        try:
            yield scratch
        finally:
            as_born(scratch.device, scratch.devno)


@pytest.fixture(scope="module")
def system(disk: Scratch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with booted(make_install(tmp_path_factory.mktemp("system"))) as system:
        system.write(POLICY, policy(disk))
        yield system


def policy(disk: Scratch) -> str:
    """For that disk alone, whatever else the host has."""
    return f"[devices]\ninclude = {disk.device}\n[device {disk.device}]\nceiling = 16M\n"


def everything(disk: Scratch) -> Dict[str, str]:
    return {**state(disk.device), **{name: str(value) for name, value in vars(limits()).items()}}


def bdi(disk: Scratch, name: str) -> int:
    return int(Path(f"/sys/class/bdi/{disk.devno}/{name}").read_text())


def is_near(value: int, wanted: int) -> bool:
    return abs(value - wanted) <= wanted * NEAR + 8192


def asked_for(disk: Scratch) -> List[Wish]:
    return [
        *wishes_for(disk.device, disk.devno),
        (LeverKind.BDI, disk.devno, "min_bytes", [4 * MIB]),
        (LeverKind.FLUSH, "vm", "dirty_expire_centisecs", [1000]),
    ]


def held(disk: Scratch) -> bool:
    """Whether all that is asked for is in the kernel."""
    queue = Path(f"/sys/block/{disk.device}/queue")
    numbers = {
        VM / "dirty_bytes": PIN, VM / "dirty_writeback_centisecs": 100,
        VM / "dirty_expire_centisecs": 1000, queue / "nr_requests": 8,
        queue / "max_sectors_kb": 64, Path(f"/sys/class/bdi/{disk.devno}/strict_limit"): 1,
    }  # fmt: skip
    return (
        all(int(file.read_text()) == value for file, value in numbers.items())
        and is_near(bdi(disk, "max_bytes"), 8 * MIB) and is_near(bdi(disk, "min_bytes"), 4 * MIB)
    )


@contextlib.contextmanager
def as_found(disk: Scratch) -> Iterator[Dict[str, str]]:
    """What is found inside; whatever happens there, all is as it was before.

    A pytest that is killed outright leaves vm.dirty_* and the flush intervals at the kernel's own
    or at what the daemon had set, and the loop device with its file; the container ends with it.
    By hand: `sysctl vm.dirty_ratio=20 vm.dirty_background_ratio=10
    vm.dirty_writeback_centisecs=500 vm.dirty_expire_centisecs=3000` (the kernel's; a host with
    its own: `sysctl --system` after that), `losetup --detach` of each that `losetup --list` shows
    below /dev/shm/writebackd-test-*, `rm -r` of those directories.
    """
    files = [VM / f"dirty_{name}_centisecs" for name in ("writeback", "expire")]
    with limits_kept() as kept:
        for pair in PAIRS:
            write_pair(FILES, pair, pair.value(kept), pair.value(DEFAULTS))
        before, flush = everything(disk), {file: file.read_text() for file in files}
        try:
            yield before
            assert everything(disk) == before
        finally:
            for file, text in flush.items():
                file.write_text(text)
            as_born(disk.device, disk.devno)


def ended(system: System) -> None:
    """The watcher is not needed any more, and nothing is left to restore."""
    wait_for(lambda: system.show(WATCH, "ActiveState") == "inactive", 10.0, "for the watcher")
    assert system.show(WATCH, "Result") == "success"
    assert not (system.root / LEDGER).exists()


def test_as_installed(system: System, disk: Scratch) -> None:
    """The law caps a device that the policy caps; asked to stop, all is as found at once."""
    def status() -> Any:
        try:
            return json.loads(system.run("writebackctl", "status", "--json"))
        except AssertionError:
            return None  # nothing measured yet

    with as_found(disk) as before:
        began = time.monotonic()
        system.run("systemctl", "start", DAEMON)
        try:
            wait_for(lambda: bdi(disk, "strict_limit") == 1, what="for the cap")
            wait_for(lambda: is_near(bdi(disk, "max_bytes"), 16 * MIB), what="for 16 MiB")
            capped, max_bytes = time.monotonic() - began, bdi(disk, "max_bytes")
            wait_for(lambda: (status() or {}).get("probe", {}).get("backend"), what="for the probe")
            probe, confined = status()["probe"], confinement(system)
            system.run("writebackctl", "pin", str(PIN))
            wait_for(lambda: limits().dirty_bytes == PIN, what="for the limit")
        finally:
            system.run("systemctl", "stop", DAEMON)
            after = everything(disk)
        ended(system)
    assert after == before
    assert probe["backend"] == "libbpf"
    assert {name: int(confined[name], 16) for name in ("CapEff", "CapBnd")} == {
        "CapEff": 1 << 21, "CapBnd": 1 << 21,  # CAP_SYS_ADMIN
    }
    assert confined["NoNewPrivs"] == "1" and confined["Seccomp"] == "2"
    text = system.journal(DAEMON, WATCH)
    assert "lease expired" not in text and "Traceback" not in text
    print(f"\nmax_bytes {max_bytes}, {capped:.1f} s after the start; {probe['request_hook']}")


WATCHING = f"{POLICY}.conf"
STATE = "/var/lib/writebackd"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534")


def refusal(system: System, *argv: str) -> str:
    with pytest.raises(AssertionError) as refused:
        system.run(*argv)
    return str(refused.value)


def test_who_may_read_what_names_processes(system: System) -> None:
    """Its files are for root and adm. Only watches."""
    if not re.search("^adm:", (system.root / "etc/group").read_text(), re.MULTILINE):
        pytest.skip("no group adm: groupadd --system adm")
    system.write(WATCHING, "[policy]\nmode = observe\n[history]\nsamples = 16M\n")
    find = ("find", STATE, "-type", "f", "-printf", "%P %m %u %g\n")

    def files() -> Dict[str, str]:
        lines = system.run(*find).split("\n")
        return {name: rest for name, _, rest in (line.partition(" ") for line in lines)}

    def measured() -> bool:
        try:
            return bool(system.run("writebackctl", "status"))
        except AssertionError:
            return False

    def made() -> bool:
        names = files()
        return "history.db" in names and any(name.endswith(".tape") for name in names)

    system.run("systemctl", "start", DAEMON)
    try:
        wait_for(made, 20.0, "for history and samples")
        found = files()
        others = {name: rest for name, rest in found.items() if rest != "640 root adm"}
        system.run(*NOBODY, "--groups=adm", "writebackctl", "history")
        told = refusal(system, *NOBODY, "--clear-groups", "writebackctl", "history")
        system.run(*NOBODY, "--clear-groups", "writebackctl", "status")
        system.run("mount", "-o", "remount,hidepid=4", "/proc")
        system.run("systemctl", "restart", DAEMON)
        wait_for(measured, 20.0, "for a tick")
        hidden = refusal(system, *NOBODY, "--clear-groups", "writebackctl", "status")
        system.run(*NOBODY, "--clear-groups", "writebackctl", "metrics")
    finally:
        system.run("mount", "-o", "remount,hidepid=0", "/proc")
        system.run("systemctl", "stop", DAEMON)
        (system.root / WATCHING[1:]).unlink()
    assert set(others) <= {"learned.json"}
    assert "history.db is for root and the group adm" in told
    assert "hidepid=ptraceable, only root sees processes" in hidden


TELLING = """import sys, time
sys.path.insert(0, "/usr/lib/writebackd")
from writebackd import journald as journal
from writebackd.types.levers import Action
from writebackd.notify import journal_route

for number in (30, 31):
    said = journal_route.lever(Action("dirty_bytes", "1", "2", True), "a flood", f"sda#{number}")
    journal.send({"MESSAGE": f"{number} of {sys.argv[1]}", **said["journal"]})
time.sleep(1.0)  # journald asks the kernel whose they are
"""


def test_the_journal_tells_the_same_id_of_two_runs_apart(system: System) -> None:
    """By the command of docs/reference/commands.md, with another unit in the daemon's place."""
    manual = (CHECKOUT / "docs/reference/commands.md").read_text()
    (command,) = re.findall(r"(?ms)^    (journalctl DECISION_ID=.*?) writebackd\)$", manual)
    unit = "/run/systemd/system/telling.service"
    system.write("/run/telling.py", TELLING)
    for run in ("one", "two"):
        system.write(unit, "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
                     f"ExecStart=/usr/bin/python3 -I /run/telling.py {run}\n")  # fmt: skip
        system.run("systemctl", "daemon-reload")
        system.run("systemctl", "restart", "telling")
        system.run("journalctl", "--sync")
        said = system.run("sh", "-c", f"{command} telling) --no-pager --output cat")
        assert said == f"31 of {run}"
    ids = system.run("journalctl", "--no-pager", "--output", "verbose", "DECISION_ID=sda#31")
    assert ids.count("_SYSTEMD_INVOCATION_ID=") == 2
    system.run("systemctl", "stop", "telling")


def confinement(system: System) -> Dict[str, str]:
    """Of the daemon's process."""
    file = system.root / f"proc/{system.pid_of(DAEMON)}/status"
    pairs = (line.partition(":") for line in file.read_text().splitlines())
    return {name: text.strip() for name, _, text in pairs}


@pytest.fixture(scope="module")
def wishing(system: System, disk: Scratch) -> None:
    system.write(PROGRAM, (
        "import sys\nsys.path.insert(0, '/usr/lib/writebackd')\n" + WISHING
        + "from writebackd.cli.daemon_main import main\n"
        + "sys.exit(main(['--probe', 'procfs', *sys.argv[1:]]))\n"
    ))  # fmt: skip
    system.write(DROP_IN, (
        f"[Service]\nWatchdogSec={WATCHDOG_S:g}\n"
        f"ExecStart=\nExecStart=/usr/bin/python3 -I {PROGRAM} --interval 0.25\n"
    ))  # fmt: skip


@pytest.fixture
def found(system: System, disk: Scratch, wishing: None) -> Iterator[Dict[str, str]]:
    """The service holds every lever; in the end it is stopped, and all is as it was found."""
    with as_found(disk) as before:
        system.write(str(WISHES), wishes([PIN], asked_for(disk)))
        system.run("systemctl", "daemon-reload")
        system.run("systemctl", "reset-failed")
        system.run("systemctl", "start", DAEMON)
        try:
            wait_for(lambda: held(disk), what="for the levers")
            yield before
        finally:
            system.run("systemctl", "stop", DAEMON)
            after = everything(disk)
        assert after == before
        ended(system)
        assert "Traceback" not in system.journal(DAEMON, WATCH)


class Watched:
    """What was seen meanwhile: by file its values, and whether all was as found."""

    def __init__(self, disk: Scratch, found: Dict[str, str]) -> None:
        self.values: Dict[str, Set[str]] = {}
        self.home = False
        self._disk, self._found = disk, found

    def look(self) -> None:
        now = everything(self._disk)
        self.home |= now == self._found
        for name, text in now.items():
            self.values.setdefault(name, set()).add(text)


@contextlib.contextmanager
def watched(disk: Scratch, found: Dict[str, str]) -> Iterator[Watched]:
    seen, over = Watched(disk, found), threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            seen.look()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        over.set()
        looker.join()
    seen.look()


def restarted(system: System, unit: str, old: int) -> None:
    wait_for(
        lambda: system.pid_of(unit) not in (0, old)
        and system.show(unit, "ActiveState") == "active",
        what=f"for {unit} to be back",
    )


def test_stopped_while_it_stands_still(
    system: System, disk: Scratch, found: Dict[str, str]
) -> None:
    """SIGSTOP, then `systemctl stop`, which wakes it: it restores, and need not be killed."""
    system.signal("STOP", system.pid_of(DAEMON))
    system.run("systemctl", "stop", DAEMON)
    assert everything(disk) == found
    assert system.show(DAEMON, "Result") == "success"


def test_killed(system: System, disk: Scratch, found: Dict[str, str]) -> None:
    """Back within the lease: the levers are adopted, none of them moves."""
    daemon, watcher = system.pid_of(DAEMON), system.pid_of(WATCH)
    held_before = everything(disk)
    with watched(disk, found) as seen:
        system.signal("KILL", daemon)
        restarted(system, DAEMON, daemon)
        time.sleep(2.0)
    assert seen.values == {name: {text} for name, text in held_before.items()}
    assert system.pid_of(WATCH) == watcher
    said = system.journal(DAEMON)
    assert f"adopted bdi {disk.devno} strict_limit=1" in said
    assert f"adopted queue {disk.device} nr_requests=8" in said


@pytest.fixture
def late_watcher(system: System, found: Dict[str, str]) -> Iterator[None]:
    """It is back after ExecStopPost: else that may find it, and leave the levers to the restart."""
    system.write(LATE, "[Service]\nRestartSec=5\n")
    system.run("systemctl", "daemon-reload")
    yield
    (system.root / LATE[1:]).unlink()


def test_both_killed(
    system: System, disk: Scratch, found: Dict[str, str], late_watcher: None
) -> None:
    """No watcher lives when ExecStopPost is asked: all home at once, then taken up anew."""
    daemon, watcher = system.pid_of(DAEMON), system.pid_of(WATCH)
    with watched(disk, found) as seen:
        system.signal("KILL", daemon, watcher)
        wait_for(lambda: seen.home, LEASE_S, "for ExecStopPost")
        restarted(system, DAEMON, daemon)
        restarted(system, WATCH, watcher)
        wait_for(lambda: held(disk), what="for the levers")


@pytest.fixture
def once(system: System, found: Dict[str, str]) -> Iterator[None]:
    """Nobody starts it again."""
    system.write(ONCE, "[Service]\nRestart=no\n")
    system.run("systemctl", "daemon-reload")
    yield
    (system.root / ONCE[1:]).unlink()


def test_killed_for_good(
    system: System, disk: Scratch, found: Dict[str, str], once: None
) -> None:
    """The watcher is told to end, and takes all home first."""
    began = time.monotonic()
    system.signal("KILL", system.pid_of(DAEMON))
    wait_for(lambda: everything(disk) == found, LEASE_S, "for the watcher to restore")
    print(f"\nhome {time.monotonic() - began:.1f} s after the kill")
    assert system.show(DAEMON, "Result") == "signal"
    ended(system)


def test_killed_at_random_points(
    system: System, disk: Scratch, found: Dict[str, str], once: None
) -> None:
    """Of a start, and of a life that writes all the time: home by whoever is left, at once."""
    system.run("systemctl", "stop", DAEMON)
    system.write(str(WISHES), wishes([PIN, PIN + 16 * MIB], [
        (kind, target, name, [*values, *(2 * value for value in values if value > 1)])
        for kind, target, name, values in asked_for(disk)
    ]))  # fmt: skip
    dice, seen = random.Random(SEED), Counter[str]()
    for number in range(KILLS):
        system.run("systemctl", "reset-failed")
        system.run("systemctl", "start", "--no-block", DAEMON)
        wait_for(lambda: system.pid_of(DAEMON), what="for its process")
        if number % 2:
            wait_for(lambda: everything(disk) != found, what="for the first write")
        time.sleep(dice.uniform(0, LIFE_S))
        kind = dice.choice(("daemon", "both"))
        pids = [system.pid_of(unit) for unit in (DAEMON, WATCH)[: 1 + (kind == "both")]]
        seen["held" if everything(disk) != found else "nothing written yet"] += 1
        seen[f"killed: {kind}"] += 1
        system.signal("KILL", *pids)
        wait_for(lambda: system.show(DAEMON, "ActiveState") == "failed", what="for its end")
        wait_for(lambda: everything(disk) == found, LEASE_S / 2, "for the way home")
        ended(system)
    print(f"\n{KILLS} kills, seed {SEED}: {dict(seen)}")
    assert seen["held"] > KILLS / 3


@pytest.mark.full("waits for the lease of a host and then for the watchdog")
def test_stopped_by_a_signal(system: System, disk: Scratch, found: Dict[str, str]) -> None:
    """SIGSTOP: home by the watcher, which has no capability; the watchdog kills it; up anew."""
    daemon, watcher = system.pid_of(DAEMON), system.pid_of(WATCH)
    restarts = int(system.show(DAEMON, "NRestarts"))
    began = time.monotonic()
    system.signal("STOP", daemon)
    wait_for(lambda: everything(disk) == found, LEASE_S + 4.0, "for the watcher to restore")
    home = time.monotonic() - began
    assert system.pid_of(DAEMON) == daemon, "not by the watcher, but by ExecStopPost"
    assert (system.root / LEDGER).exists(), "it may wake up within a write"
    with watched(disk, found) as seen:
        wait_for(lambda: system.show(DAEMON, "MainPID") != str(daemon), WATCHDOG_S + 5.0,
                 "for the watchdog")
        killed = time.monotonic() - began
    assert seen.values == {name: {text} for name, text in found.items()}
    restarted(system, DAEMON, daemon)
    assert int(system.show(DAEMON, "NRestarts")) == restarts + 1
    assert system.pid_of(WATCH) == watcher
    wait_for(lambda: held(disk), what="for the levers")
    print(f"\nhome {home:.1f} s after SIGSTOP, killed after {killed:.1f} s")
