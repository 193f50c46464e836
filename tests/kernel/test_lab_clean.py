# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever ends a run of the lab, `clean` or the run itself leaves the host as it was."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest

from tests.lab import host
from tests.lab.disks import Disk
from tests.lab.loads.own import make_file
from tests.lab.remains import LAB, Remains, RigError
from tests.lab.rig import Rig, main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")

TOP = Path(__file__).resolve().parents[2]
SMALL = Disk(size="1G", cache="64M", rate="100M")
CHANGED = ("scheduler", "nr_requests")  # that a detach does not put back

# Changes what a run may change, and says where it is: nothing is there yet, all is up, the
# end begins.
HARNESS = """
import signal, subprocess, sys, time
from pathlib import Path
from tests.lab import host
from tests.lab.disks import Disk
from tests.lab.rig import Rig
# As in a terminal: what a script starts in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
print("start", flush=True)
with Rig(sys.argv[1], "xfs", Disk(size="1G", cache="64M", rate="100M")) as rig:
    host.write_limits({"dirty_bytes": 64 << 20, "dirty_ratio": 0})
    queue = Path(f"/sys/block/{rig.device}/queue")
    (queue / "nr_requests").write_text("48" if host.read_knob(queue / "nr_requests") != "48"
                                       else "56")
    beside = rig.directory / "beside"
    beside.touch()
    tmp = rig.directory / "tmp"
    tmp.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "lab", str(tmp)], check=True)
    rig.spawn(["nbdfuse", str(beside), "--command", "nbdkit", "-s", "null", "1M"])
    rig.spawn(["sh", "-c", f"while dd if=/dev/zero of={rig.mountpoint}/flood bs=1M count=64 "
                           "conv=notrunc 2>/dev/null; do :; done"])
    forever = ["tail", "-f", "/dev/null", str(rig.directory)]  # so that it can be told from others
    # As a database does: another user, and children that nothing marks.
    other = ["setpriv", "--reuid=65534", "--clear-groups"]
    rig.spawn([*other, "sh", "-c", 'env -i "$@"; :', "sh", *forever])
    time.sleep(0.5)
    print("up", flush=True)
    time.sleep(float(sys.argv[2]))
    print("end", flush=True)
"""
STEPS = ("start", "up", "end")
POINTS = 21
LONGEST_S = {"start": 1.5, "up": 0.5, "end": 1.0}  # a little more than the step takes


def left(name: str) -> List[str]:
    """What there is of a rig on this host, found in other ways than by the code under test."""
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if name in line]
    found += [str(path) for path in LAB.glob(f"{name}*")]
    for path in [*Path("/sys/block").glob("loop*/loop/backing_file"),
                 *Path("/proc").glob("[0-9]*/cmdline")]:
        with contextlib.suppress(OSError):
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # The file of a loop device has no other path when its FUSE mount is gone.
            if name in text or text == "/disk\n":
                found.append(f"{path}: {text}")
    return found


def host_state() -> Dict[str, str]:
    """The limits, and the knobs that the harness changes, of all loop devices."""
    state = {name: str(value) for name, value in host.read_limits().items()}
    for block in Path("/sys/block").glob("loop*"):
        state.update((path, value) for path, value in host.knobs(block.name).items()
                     if path.endswith(CHANGED))
    return state


def check_host(before: Dict[str, str]) -> None:
    after = host_state()
    assert {key: after[key] for key in before} == before  # a loop device may be new


@pytest.fixture
def name() -> Iterator[str]:
    name = f"clean-{os.getpid()}"
    yield name
    main(["clean", name])


@pytest.fixture
def before() -> Iterator[Dict[str, str]]:
    state = host_state()
    yield state
    host.write_limits({key: int(value) for key, value in state.items() if "/" not in key})


def start(name: str, hold_s: float = 60) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HARNESS, name, str(hold_s)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            env=dict(os.environ, PYTHONPATH=str(TOP)), start_new_session=True)


def run_until(name: str, step: str, delay_s: float) -> subprocess.Popen[str]:
    """A harness some time after it came to a step."""
    process = start(name, hold_s=60 if step == "up" else 0)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == step:
            break
    time.sleep(delay_s)
    return process


def where(name: str) -> str:
    """What a killed harness had come to."""
    remains = Remains(name)
    if not remains.state_file.exists():
        return "no state file"
    if not remains.devices():
        return "no device"
    return "mounted" if any(name in at for _, at in host.mounts()
                            if at == str(remains.mountpoint)) else "not mounted"


def points() -> List[Tuple[str, float]]:
    dice = random.Random(3)
    at_once = [(step, 0.0) for step in STEPS]
    return at_once + [(STEPS[n % 3], dice.uniform(0, LONGEST_S[STEPS[n % 3]]))
                      for n in range(POINTS - len(STEPS))]


@pytest.mark.full("kills the lab's rig at 21 points")
def test_killed_at_any_point(name: str, before: Dict[str, str]) -> None:
    seen = []
    for step, delay_s in points():
        process = run_until(name, step, delay_s)
        process.kill()
        process.wait()
        seen.append(f"{step} + {delay_s:.2f} s: {where(name)}")
        assert main(["clean", name]) == 0, seen[-1]
        assert left(name) == [], seen[-1]
        check_host(before)
    print("\n".join(seen))


@pytest.mark.parametrize("step", STEPS)
def test_interrupted_at_any_point(step: str, name: str, before: Dict[str, str]) -> None:
    process = run_until(name, step, random.Random(step).uniform(0, LONGEST_S[step] / 2))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
    process.wait(30)
    assert left(name) == []
    check_host(before)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_told_to_end(how: signal.Signals, name: str, before: Dict[str, str]) -> None:
    process = run_until(name, "up", 0)
    assert host_state() != before
    assert main(["clean", name]) == 0
    assert process.poll() is None, "clean must leave a rig alone that is in use"
    process.send_signal(how)
    process.wait(30)
    assert left(name) == []
    check_host(before)


@pytest.mark.parametrize("damage", ["", "state file", "FUSE mount"])
def test_killed_when_all_is_up(damage: str, name: str, before: Dict[str, str],
                               capsys: pytest.CaptureFixture[str]) -> None:
    process = run_until(name, "up", 0)
    process.kill()
    process.wait()
    remains = Remains(name)
    if not damage:
        deadline = time.monotonic() + 10
        while any("dd if=" in each for each in left(name)):
            assert time.monotonic() < deadline, "the flood went on"
            time.sleep(0.05)
        # The disk did not go with the run: it can still be written.
        make_file(remains.mountpoint / "after", 1 << 20)
        with pytest.raises(RigError, match="clean"):
            Rig(name).__enter__()
    elif damage == "state file":
        remains.state_file.write_text(remains.state_file.read_text()[:40])
    else:
        subprocess.run(["umount", "--lazy", str(remains.disk_file.parent)], check=True)
    assert main(["clean", name]) == 0
    assert left(name) == []
    if damage == "state file":
        assert "damaged" in capsys.readouterr().err  # what the limits were is not known
    else:
        check_host(before)


def test_a_name_cannot_leave_the_directory() -> None:
    for bad in ("../etc", "a/b", "", "a.b", ".."):
        with pytest.raises(RigError, match="no name for a rig"):
            Remains(bad)
