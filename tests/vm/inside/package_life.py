# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of the installed package on a host with nothing but Debian: from install to purge.

package_life.py DEB NEWER | boot: every step asserts, and prints a line when it held.  The
standard library is all that there is; systemd is the first process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Set, Tuple

DAEMON, WATCH = "writebackd.service", "writebackd-watch.service"
DRAIN, CACHES = "writebackd-drain.service", "writebackd-caches.service"
DROP_IN = Path("/etc/writebackd/policies.d/all.conf.d/50-site.conf")
NAMES = ("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio")
MIB = 1 << 20
PIN = 32 * MIB
# What apt, dpkg, systemd and Python keep of any package.
OTHERS = ("/var/log", "/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt", "/var/lib/systemd",
          "/etc/machine-id", "/var/cache/ldconfig", "/var/cache/debconf", "/var/tmp")
DISK = "/run/disk"
# Longer than a lease; later a daemon that sees no flood may let go of what it adopted.
SETTLED_S = 12.0
# Of 2 GB of memory the kernel's own limit lets 300 MB and more be dirty.
FLOOD_S, HELD = 60.0, 100 * MIB


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


def apt_install(package: str) -> str:
    return run("apt-get", "install", "--yes", "--allow-downgrades", "--no-install-recommends",
               package)  # fmt: skip


def test_install(package: str, found: Tuple[int, ...]) -> None:
    said = apt_install(package)
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
    # As README has it; SIGINT is Ctrl-C.
    run("timeout", "--preserve-status", "--signal=INT", "15", "writebackd", "--mode", "observe")
    assert limits() == found
    held("writebackd --mode observe set no limit")


def test_flood() -> None:
    """A disk of 25 MB/s: dirty pages of a writer stay near the limit, while a program commits."""
    wait_for(lambda: subprocess.run(["rmmod", "scsi_debug"]).returncode == 0, "udev to be done")
    run("insmod", "/run/modules/scsi_debug.ko", "dev_size_mb=384", "ndelay=20000000", "max_queue=1")
    wait_for(lambda: list(Path("/dev").glob("sd*")), "the disk")
    (disk,) = (each.name for each in Path("/sys/block").glob("sd*"))
    run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", f"/dev/{disk}")
    Path(DISK).mkdir()
    run("mount", f"/dev/{disk}", DISK)
    run("systemctl", "enable", "--now", DAEMON)
    wait_for(status, "an answer")
    held("enabled and started")
    loop = f"while :; do dd if=/dev/zero of={DISK}/flood bs=1M count=250 conv=notrunc; done"
    flood = subprocess.Popen(["sh", "-c", loop], stderr=subprocess.DEVNULL, start_new_session=True)
    commits, dirty = 0, []
    until = time.monotonic() + FLOOD_S
    try:
        with open(f"{DISK}/commit", "wb", buffering=0) as file:
            while time.monotonic() < until:
                file.write(b"x" * 4096)
                os.fsync(file.fileno())
                commits += 1
                dirty.append((time.monotonic(), dirty_bytes()))
                time.sleep(0.2)
        limit = limits()[0]
    finally:
        os.killpg(flood.pid, signal.SIGKILL)
        flood.wait()
    late = max(each for when, each in dirty if when > until - FLOOD_S / 3)
    print(f"           {commits} commits; dirty at most {max(each for _, each in dirty) // MIB} MB,"
          f" {late // MIB} MB in the last third; limit {limit // MIB} MB", flush=True)
    assert 0 < limit <= HELD and late <= HELD, dirty
    for words in (["status"], ["why", disk], ["alerts"], ["verify"], ["history"]):
        run("writebackctl", *words)
    held("a flood was held")


def dirty_bytes() -> int:
    lines = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["Dirty:"]) + int(lines["Writeback:"])) << 10


def test_reload() -> None:
    pid = pid_of(DAEMON)
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text("[limits]\nceiling = 48M\n")
    run("systemctl", "reload", DAEMON)
    wait_for(lambda: " loaded" in status_or_log(), "the policy to be read")
    DROP_IN.write_text("[limits]\nceiling = 48 furlongs\n")
    run("systemctl", "reload", DAEMON)
    wait_for(lambda: f"{DROP_IN}:2" in status_or_log(), "the error with file and line")
    assert pid_of(DAEMON) == pid and status()
    DROP_IN.unlink()
    run("systemctl", "reload", DAEMON)
    held("reloaded: a good policy is taken, a broken one is refused with file and line")


def restarted(old: int) -> None:
    wait_for(lambda: pid_of(DAEMON) not in (0, old)
             and show(DAEMON, "ActiveState") == "active", "a restart", 90.0)  # fmt: skip


def in_bytes(seen: Set[Tuple[int, ...]]) -> str:
    """That no ratio was in force; the values as text."""
    assert all(each[0] > 0 and each[1] == 0 for each in seen), seen
    return f"{min(each[0] for each in seen) >> 20}..{max(each[0] for each in seen) >> 20} MB"


def test_killed(found: Tuple[int, ...]) -> None:
    pinned()
    pid = pid_of(DAEMON)
    with watched() as seen:
        os.kill(pid, signal.SIGKILL)
        restarted(pid)
        time.sleep(SETTLED_S)
    held(f"kill -9: limits stayed in bytes ({in_bytes(seen)})")
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
        wait_for(lambda: pid_of(WATCH) not in (0, watcher), "the other watcher")
        time.sleep(SETTLED_S)
    assert show(DAEMON, "UnitFileState") == "enabled"
    held(f"{step} to {version} while enforcing: limits stayed in bytes ({in_bytes(seen)})")


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
    assert not Path("/run/writebackd").exists() and not Path("/run/writebackd-raid").exists()
    held("no file of the package is left")


def life(package: str, newer: str) -> None:
    found, before = limits(), files()
    test_install(package, found)
    test_flood()
    test_reload()
    test_killed(found)
    version = status()["version"]
    test_changed_version(newer, f"{version}.1", "upgraded")
    test_changed_version(package, version, "downgraded")
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


if __name__ == "__main__":
    if sys.argv[1:] == ["boot"]:
        boot()
    else:
        life(*sys.argv[1:])
