# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of the installed package on a host with nothing but Debian: from install to purge.

package_life.py README DEB NEWER | boot | shutdown TIMEOUT SHARE SCREEN: every step asserts, and
prints a line when it held.  It is installed, started and asked by the commands of the README.  The
standard library is all that there is; systemd is the first process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

DAEMON, WATCH = "writebackd.service", "writebackd-watch.service"
DRAIN, CACHES = "writebackd-drain.service", "writebackd-caches.service"
DROP_IN = Path("/etc/writebackd/policies.d/all.conf.d/50-site.conf")
# What the README's blocks of commands come after.
INSTALL, FIRST = "On Debian 12 and 13:\n\n", "## First three commands\n\n"
FEDORA = "On Fedora (not tried there; tests use dnf in a root of Debian's files):\n\n"
NAMES = ("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio")
MIB = 1 << 20
PIN = 32 * MIB
# Of a drop-in: more than fsyncs ask for there, less than the kernel's default.
BOUND = 48 * MIB
# What apt, dpkg, systemd and Python keep of any package.
OTHERS = ("/var/log", "/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt", "/var/lib/systemd",
          "/etc/machine-id", "/var/cache/ldconfig", "/var/cache/debconf", "/var/tmp")
DISK, BEGUN = "/run/disk", "/run/begun"
# Longer than a lease. A new daemon lets go of what it adopted after 15 s, unless it is pinned too.
SETTLED_S = 12.0
# Of 2 GB of memory the kernel's own limit lets 300 MB and more be dirty.
FLOOD_S, HELD = 60.0, 100 * MIB
# Less than the kernel's background limit there: nothing is written before the shutdown.
DIRTY = 150 * MIB
# After its time limit a drain asks once more how far it came, and its unit ends.
LATE_S = 5.0
STOP = "Stopping", "Stopped"
# Started before the two, and so stopped after them.
CHECK = f"""[Unit]
Before={DRAIN} {DAEMON}
RequiresMountsFor={{share}}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=true
ExecStop=sh -c 'python3 {{script}} drained {{limit}} >{{screen}} 2>&1; echo $? >{{share}}/exit-code'
"""


def run(*argv: str) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})  # fmt: skip
    assert done.returncode == 0, f"{' '.join(argv)} ended with {done.returncode}: {done.stdout}"
    return done.stdout.strip()


def held(step: str) -> None:
    print(f"{time.monotonic():7.1f} s  {step}", flush=True)


def limits() -> Tuple[int, ...]:
    return tuple(int(Path("/proc/sys/vm", name).read_text()) for name in NAMES)


def show(unit: str, name: str) -> str:
    return run("systemctl", "show", "--value", "--property", name, unit)


def pid_of(unit: str) -> int:
    return int(show(unit, "MainPID"))


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}: {status_or_log()}"
        time.sleep(0.5)


def status_or_log() -> str:
    return run("journalctl", "--no-pager", "-n", "40", "-o", "cat", "-u", DAEMON, "-u", WATCH)


def status() -> Dict[str, Any]:
    """Empty where nobody answers yet."""
    done = subprocess.run(["writebackctl", "status", "--json"], capture_output=True, text=True)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def pinned() -> None:
    """It runs, and has set a limit: an idle host would keep its own."""
    wait_for(status, "an answer")
    run("writebackctl", "pin", str(PIN))
    wait_for(lambda: limits()[0] == PIN, "the pin")


@contextlib.contextmanager
def watched() -> Iterator[Set[Tuple[int, ...]]]:
    """The limits that stood meanwhile."""
    seen: Set[Tuple[int, ...]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen.add(limits())

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        over.set()
        looker.join()


def stayed(seen: Set[Tuple[int, ...]], limit: int) -> None:
    """That the limit never moved, and that no ratio was in force."""
    assert {each[:2] for each in seen} == {(limit, 0)}, f"{seen}: {status_or_log()}"
    assert all(0 < each[2] < limit and each[3] == 0 for each in seen), seen


@contextlib.contextmanager
def in_background(loop: str) -> Iterator[None]:
    process = subprocess.Popen(["sh", "-c", loop], stderr=subprocess.DEVNULL,
                               start_new_session=True)  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def files() -> Set[str]:
    found: Set[str] = set()
    for top, directories, names in os.walk("/"):
        found.update(os.path.join(top, name) for name in (*directories, *names))
        paths = {os.path.join(top, name): name for name in directories}
        directories[:] = [
            name for path, name in paths.items()
            if name != "__pycache__" and path not in OTHERS and not os.path.ismount(path)
        ]  # fmt: skip
    return found


def commands(readme: str, after: str) -> List[str]:
    """Those of one block, for root: a clean root has no sudo."""
    lines = Path(readme).read_text().partition(after)[2].splitlines()
    block = itertools.takewhile(lambda line: line.startswith("    "), lines)
    return [line.partition("#")[0].strip().replace("sudo ", "") for line in block]


def apt_install(package: str) -> str:
    return run("apt-get", "install", "--yes", "--allow-downgrades", "--no-install-recommends",
               package)  # fmt: skip


def test_install(readme: str, package: str, found: Tuple[int, ...]) -> None:
    install, observe, _ = commands(readme, INSTALL)
    said = run("sh", "-c", f"cd {Path(package).parent} && {install}")
    assert "not enabled and not started" in said, said
    assert said.index("writebackd --mode observe") < said.index("systemctl enable --now writebackd")
    assert show(DAEMON, "ActiveState") == "inactive"
    assert show(DAEMON, "UnitFileState") == "disabled"
    assert limits() == found
    run("writebackctl", "version")
    run("writebackctl", "doctor")
    held("installed: neither enabled nor started, no limit set, doctor finds no blocker")
    run("sh", str(Path(__file__).with_name("service")))
    held("the autopkgtest passes")
    # SIGINT is Ctrl-C.
    run("timeout", "--preserve-status", "--signal=INT", "15", *observe.split())
    assert limits() == found
    held(f"{observe} set no limit")


def slow_disk() -> str:
    """Mounts a disk of 25 MB/s; its name."""
    wait_for(lambda: subprocess.run(["rmmod", "scsi_debug"]).returncode == 0, "udev to be done")
    run("insmod", "/run/modules/scsi_debug.ko", "dev_size_mb=384", "ndelay=20000000", "max_queue=1")
    wait_for(lambda: list(Path("/dev").glob("sd*")), "the disk")
    (disk,) = (each.name for each in Path("/sys/block").glob("sd*"))
    run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", f"/dev/{disk}")
    Path(DISK).mkdir()
    run("mount", f"/dev/{disk}", DISK)
    return disk


def test_flood(readme: str, found: Tuple[int, ...]) -> None:
    """Dirty pages of a writer stay near the limit, while a program commits."""
    disk = slow_disk()
    *_, start = commands(readme, INSTALL)
    run(*start.split())
    wait_for(status, "an answer")
    assert show(DAEMON, "UnitFileState") == "enabled"
    held(f"{start}: it runs")
    loop = f"while :; do dd if=/dev/zero of={DISK}/flood bs=1M count=250 conv=notrunc; done"
    commits, dirty = 0, []
    until = time.monotonic() + FLOOD_S
    with in_background(loop), open(f"{DISK}/commit", "wb", buffering=0) as file:
        while time.monotonic() < until:
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            commits += 1
            dirty.append((time.monotonic(), dirty_bytes()))
            time.sleep(0.2)
        limit = limits()[0]
    late = max(each for when, each in dirty if when > until - FLOOD_S / 3)
    print(f"           {commits} commits; dirty at most {max(each for _, each in dirty) // MIB} MB,"
          f" {late // MIB} MB in the last third; limit {limit // MIB} MB", flush=True)
    assert 0 < limit <= HELD and late <= HELD, dirty
    held("a flood was held")
    ask, why, observe = commands(readme, FIRST)
    assert why.split()[-1] == disk
    for line in (ask, why, *(f"writebackctl {verb}" for verb in ("alerts", "verify", "history"))):
        run(*line.split())
    run(*observe.split())
    wait_for(lambda: limits() == found, "the original limits", 5.0)
    run("writebackctl", "enforce")
    held(f"{ask}, {why}, {observe}: answered, and the limits restored")


def dirty_bytes() -> int:
    lines = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["Dirty:"]) + int(lines["Writeback:"])) << 10


def test_reload() -> None:
    pid = pid_of(DAEMON)
    commits = f"while :; do dd if=/dev/zero of={DISK}/commit bs=4k count=1 conv=notrunc,fsync; done"
    with in_background(commits):
        DROP_IN.parent.mkdir(parents=True, exist_ok=True)
        DROP_IN.write_text(f"[limits]\nfloor = {BOUND}\nrest = {BOUND}\nceiling = {BOUND}\n")
        run("systemctl", "reload", DAEMON)
        wait_for(lambda: limits()[0] == BOUND, "the limit of the new policy")
        with watched() as seen:
            DROP_IN.write_text("[limits]\nceiling = 48 furlongs\n")
            run("systemctl", "reload", DAEMON)
            wait_for(lambda: f"{DROP_IN}:2" in status_or_log(), "the error with file and line")
            time.sleep(SETTLED_S)
        stayed(seen, BOUND)
        DROP_IN.unlink()
        run("systemctl", "reload", DAEMON)
        wait_for(lambda: 0 < limits()[0] < BOUND, "the limit of the shipped policy")
    assert pid_of(DAEMON) == pid and status()
    held("reloaded: a good policy holds, also after a broken one, refused with file and line")


def restarted(old: int) -> None:
    wait_for(lambda: pid_of(DAEMON) not in (0, old)
             and show(DAEMON, "ActiveState") == "active", "a restart", 90.0)  # fmt: skip


def test_killed(found: Tuple[int, ...]) -> None:
    pinned()
    pid = pid_of(DAEMON)
    with watched() as seen:
        os.kill(pid, signal.SIGKILL)
        restarted(pid)
        pinned()
        time.sleep(SETTLED_S)
    stayed(seen, PIN)
    held(f"kill -9: the limit stayed at {PIN // MIB} MB")
    pid = pid_of(DAEMON)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: limits() == found, "the watcher to restore", 20.0)
    restarted(pid)
    pinned()
    held("hung: restored within the lease, killed by the watchdog, started again")


def test_changed_version(package: str, version: str, step: str) -> None:
    pinned()
    pid, watcher = pid_of(DAEMON), pid_of(WATCH)
    with watched() as seen:
        said = apt_install(package)
        assert "not enabled" not in said, said
        restarted(pid)
        wait_for(lambda: status().get("version") == version, "the other version")
        pinned()
        wait_for(lambda: pid_of(WATCH) not in (0, watcher), "the other watcher")
        time.sleep(SETTLED_S)
    assert show(DAEMON, "UnitFileState") == "enabled"
    stayed(seen, PIN)
    held(f"{step} to {version} while enforcing: the limit stayed at {PIN // MIB} MB")


def test_remove(package: str, found: Tuple[int, ...]) -> None:
    run("systemctl", "enable", "--now", DRAIN)
    run("systemctl", "start", CACHES)
    run("apt-get", "remove", "--yes", "writebackd")
    for unit in (DRAIN, CACHES):
        assert show(unit, "ActiveState") == "inactive", unit
    assert not Path(f"/etc/systemd/system/multi-user.target.wants/{DRAIN}").is_symlink()
    assert limits() == found and not Path("/usr/lib/writebackd").exists()
    assert Path("/var/lib/writebackd").exists()
    held("removed: limits restored, state kept")
    apt_install(package)
    run("systemctl", "start", DAEMON)
    pinned()
    # Nobody is left to restore but the package.
    run("systemctl", "mask", "--runtime", WATCH)
    own = Path(f"/run/systemd/system/{DAEMON}.d")
    own.mkdir(parents=True, exist_ok=True)
    (own / "stay-down.conf").write_text("[Service]\nRestart=no\nExecStopPost=\n")
    run("systemctl", "daemon-reload")
    for unit in (WATCH, DAEMON):
        pid = pid_of(unit)
        if pid:
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: show(DAEMON, "ActiveState") == "failed", "the daemon to be down")
    assert limits()[0] > 0
    run("apt-get", "purge", "--yes", "writebackd")
    assert limits() == found
    held("purged after daemon and watcher were killed for good: limits restored")


def test_nothing_left(before: Set[str]) -> None:
    left = sorted(files() - before)
    assert left == [], left
    ours = run("find", "/", "-xdev", "-name", "*writebackd*", "-not", "-path", "/proc/*",
               "-not", "-path", "/root/*")  # fmt: skip
    assert ours == "", ours
    pruned = [word for path in OTHERS for word in ("-path", path, "-prune", "-o")]
    newer = run("find", "/", "-xdev", *pruned, "-newer", BEGUN, "-type", "f", "-print").splitlines()
    assert [path for path in newer if b"writebackd" in Path(path).read_bytes()] == []
    assert not Path("/run/writebackd").exists() and not Path("/run/writebackd-raid").exists()
    held(f"no file of the package is left, and no word of it in {len(newer)} that are newer")


def life(readme: str, package: str, newer: str) -> None:
    Path(BEGUN).touch()
    found, before = limits(), files()
    test_install(readme, package, found)
    test_flood(readme, found)
    test_reload()
    test_killed(found)
    version = status()["version"]
    test_changed_version(newer, f"{version}.1", "upgraded")
    test_changed_version(package, version, "downgraded")
    # More starts within ten minutes than the unit is granted after crashes.
    test_changed_version(newer, f"{version}.1", "upgraded again")
    run("umount", DISK)
    test_remove(package, found)
    test_nothing_left(before)


def boot() -> None:
    """The package is enabled in the image: it starts by itself."""
    run("systemctl", "start", "--no-block", "multi-user.target")
    wait_for(lambda: show(DAEMON, "ActiveState") == "active", "the service")
    pinned()
    original = status()["limits"]["original"]
    assert (original["dirty_ratio"], original["dirty_background_ratio"]) == (20, 10), original
    run("systemctl", "stop", DAEMON)
    assert limits() == (0, 20, 0, 10), limits()
    held("started at boot; the kernel's limits are the originals, and restored at the stop")


def shutdown(timeout: str, share: str, screen: str) -> None:
    """Powers off while pages are dirty; CHECK begins when daemon and drain unit are stopped."""
    disk = slow_disk()
    # The root, an overlay here, would be a disk without a filesystem.
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(f"[devices]\ninclude = {disk}\n")
    text = CHECK.format(share=share, screen=screen, script=Path(__file__).resolve(), limit=timeout)
    Path("/run/systemd/system/check.service").write_text(text)
    own = Path(f"/run/systemd/system/{DRAIN}.d")
    own.mkdir()
    (own / "limit.conf").write_text(f"[Service]\nEnvironment=TIMEOUT={timeout}\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "start", "check.service")
    run("systemctl", "enable", "--now", DAEMON, DRAIN)
    wait_for(lambda: disk in [each["name"] for each in status().get("devices", ())], disk)
    with open(f"{DISK}/dirty", "wb") as file:
        for _ in range(DIRTY // MIB):
            file.write(bytes(MIB))
    assert dirty_bytes() > 0.9 * DIRTY, dirty_bytes()
    held(f"{dirty_bytes() // MIB} MB are dirty: powering off")
    run("systemctl", "--no-block", "poweroff")
    signal.pause()  # until systemd ends this as well


def drained(timeout: str) -> None:
    left = dirty_bytes()
    log = run("journalctl", "--no-pager", "-o", "short-monotonic", "-u", DRAIN, "-u", DAEMON)
    print(log)
    times = [re.findall(rf"(?m)^\[ *([\d.]+)\].*{word} {DRAIN}", log) for word in STOP]
    took_s = float(times[1][-1]) - float(times[0][-1])
    (verdict,) = re.findall(r"(?m)\]: (.*clean.*): \S+ written in ", log)
    in_time = timeout == "90s"
    assert verdict == ("clean" if in_time else "not clean, timed out")
    assert (left < DIRTY / 10) is in_time, left
    assert took_s <= float(timeout.rstrip("s")) + LATE_S
    assert log.index(" written in ") < log.index("stopping: "), "the daemon ended first"
    assert limits() == (0, 20, 0, 10), limits()
    held(f"a drain of {timeout} at most: {verdict} after {took_s:.1f} s, {left // MIB} MB dirty;"
         " then the daemon stopped, limits restored")


if __name__ == "__main__":
    steps: Dict[str, Callable[..., None]] = {
        "boot": boot, "shutdown": shutdown, "drained": drained,
    }  # fmt: skip
    if sys.argv[1] in steps:
        steps[sys.argv[1]](*sys.argv[2:])
    else:
        life(*sys.argv[1:])
