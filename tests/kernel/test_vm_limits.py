# SPDX-License-Identifier: GPL-2.0-or-later
"""The global limits on the running kernel; leaves them as they were, and checks that.

Some originals of the table hold writers back hard: they stand for less than a
millisecond each.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Tuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from fake_vm import PAGE, SYSCTL, FakeVm
from limit_cases import MIB, ORIGINALS
from tests.kernel.fault_rig import AGENT, Crash, CrashingFiles, started
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import LEVERS, expected_thresholds, host_info, read_limits, read_state
from writebackd.types.levers import VmLimits

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(SYSCTL + "dirty_bytes", os.W_OK),
    reason="needs root and a writable /proc/sys/vm",
)

FIRST = (15 * MIB, 7 * MIB)
SECOND = (96 * MIB, 32 * MIB)
ODD = (5_000_001, 6_000_001)
SPELL = (FIRST, SECOND, ODD)


def live() -> Dict[str, int]:
    return {lever: int(Path(SYSCTL + lever).read_text()) for lever in LEVERS}


def set_live(values: Dict[str, int]) -> None:
    """By a way of its own: bytes of another value first, so that no write is ignored."""
    for prefix in ("dirty_", "dirty_background_"):
        ratio, size = values[prefix + "ratio"], values[prefix + "bytes"]
        Path(SYSCTL + prefix + "ratio").write_text("99")
        Path(SYSCTL + prefix + ("bytes" if size else "ratio")).write_text(str(size or ratio))
    assert live() == values


@pytest.fixture(autouse=True)
def limits_as_found() -> Iterator[None]:
    found = live()
    try:
        yield
    finally:
        set_live(found)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


# -- the fake is this kernel -----------------------------------------------------

WRITES: List[Tuple[str, int]] = [
    ("dirty_bytes", 0),
    ("dirty_bytes", 2 * PAGE - 1),
    ("dirty_bytes", 2 * PAGE),
    ("dirty_bytes", 2 * PAGE + 1),
    ("dirty_bytes", 15 * MIB + 1),
    ("dirty_bytes", 10**17),
    ("dirty_ratio", 0),
    ("dirty_ratio", 1),
    ("dirty_ratio", 20),
    ("dirty_ratio", 100),
    ("dirty_ratio", 101),
    ("dirty_ratio", -1),
    ("dirty_background_bytes", 0),
    ("dirty_background_bytes", 1),
    ("dirty_background_bytes", PAGE + 1),
    ("dirty_background_bytes", 15 * MIB + 1),
    ("dirty_background_bytes", 10**17),
    ("dirty_background_ratio", 0),
    ("dirty_background_ratio", 10),
    ("dirty_background_ratio", 60),
    ("dirty_background_ratio", 101),
]


def outcome(files: KernelFiles, lever: str, value: int) -> str:
    try:
        files.write(SYSCTL + lever, str(value))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "written"


def live_thresholds() -> Tuple[int, int]:
    state = read_state(KernelFiles())
    return state.threshold_bytes // PAGE, state.background_threshold_bytes // PAGE


def dirtyable_pages() -> int:
    """What the kernel takes percentages of; it tells only through a threshold."""
    set_live(dict(zip(LEVERS, (0, 100, 0, 0))))
    return live_thresholds()[0]


def assert_same(fake: FakeVm, what: str) -> None:
    assert dict(vars(fake.limits)) == live(), what
    in_bytes = fake.values["dirty_bytes"] and not fake.values["dirty_background_ratio"]
    for modelled, real in zip(fake.thresholds(), live_thresholds()):
        # Dirtyable memory drifts between two reads; bytes do not.
        assert abs(modelled - real) <= (0 if in_bytes else 1 + fake.available // 100), what


@pytest.mark.parametrize("start", ORIGINALS.values(), ids=ORIGINALS)
def test_the_fake_does_what_this_kernel_does(start: VmLimits) -> None:
    for lever, value in WRITES:
        fake = FakeVm(start, available=dirtyable_pages())
        set_live(dict(vars(start)))
        assert_same(fake, "before the write")
        told = outcome(fake, lever, value)
        assert told == outcome(KernelFiles(), lever, value), f"{lever}={value}"
        assert_same(fake, f"{lever}={value}")


def test_the_fake_and_this_kernel_agree_after_any_sequence() -> None:
    dice = random.Random(6)
    start = VmLimits(0, 20, 0, 10)
    fake = FakeVm(start, available=dirtyable_pages())
    set_live(dict(vars(start)))
    for _ in range(500):
        lever, value = dice.choice(WRITES)
        told = outcome(fake, lever, value)
        assert told == outcome(KernelFiles(), lever, value), f"{lever}={value}"
        assert_same(fake, f"{lever}={value}")


def test_an_unchanged_dirty_ratio_does_not_clear_the_bytes() -> None:
    set_live(dict(zip(LEVERS, (15 * MIB, 0, 7 * MIB, 0))))
    KernelFiles().write(SYSCTL + "dirty_ratio", "0")
    assert live()["dirty_bytes"] == 15 * MIB
    KernelFiles().write(SYSCTL + "dirty_background_ratio", "0")
    assert live()["dirty_background_bytes"] == 0


def test_thresholds_are_exact_in_bytes_form_and_larger_for_a_real_time_reader() -> None:
    for wanted in (*SPELL, (2 * PAGE + 1, 1)):
        set_live(dict(zip(LEVERS, (wanted[0], 0, wanted[1], 0))))
        assert live_thresholds() == expected_thresholds(*wanted, PAGE)
    set_live(dict(zip(LEVERS, (FIRST[0], 0, FIRST[1], 0))))
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError as error:
        pytest.skip(f"cannot become real-time: {error.strerror}")
    try:
        seen = live_thresholds()
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    normal = expected_thresholds(*FIRST, PAGE)
    print(f"real-time reader: {seen} instead of {normal} pages")
    assert seen[0] >= normal[0] + normal[0] // 4


# -- the way home ------------------------------------------------------------------


def home_by_restore(actuator: Actuator, files: KernelFiles, path: Path) -> None:
    assert all(action.ok for action in actuator.restore())


def home_by_ledger(actuator: Actuator, files: KernelFiles, path: Path) -> None:
    assert restore_from_ledger(files, path).status in ("restored", "nothing")


def home_by_next_run(actuator: Actuator, files: KernelFiles, path: Path) -> None:
    following = started(files, path)
    assert all(action.ok for action in following.apply(*ODD))
    home_by_restore(following, files, path)


@pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)
@pytest.mark.parametrize("home", [home_by_restore, home_by_ledger, home_by_next_run])
def test_restored_in_the_form_it_was_found(
    path: Path, original: VmLimits, home: Callable[[Actuator, KernelFiles, Path], None]
) -> None:
    set_live(dict(vars(original)))
    files = KernelFiles()
    actuator = started(files, path)
    assert actuator.originals == original
    for wanted in (*SPELL, FIRST):
        assert all(action.ok for action in actuator.apply(*wanted))
        assert read_limits(files) == VmLimits(wanted[0], 0, wanted[1], 0)
        assert live_thresholds() == expected_thresholds(*wanted, PAGE)
        assert actuator.apply(*wanted) == ()
    home(actuator, files, path)
    assert live() == dict(vars(original))
    assert load(path) is None


@pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)
@pytest.mark.parametrize("home", [home_by_ledger, home_by_next_run])
def test_restored_after_a_crash_before_any_write(
    tmp_path: Path, original: VmLimits, home: Callable[[Actuator, KernelFiles, Path], None]
) -> None:
    for count in range(100):
        set_live(dict(vars(original)))
        files, path = CrashingFiles(), tmp_path / f"ledger-{count}.json"
        files.crash_before = count
        actuator = started(files, path)
        try:
            for wanted in SPELL:
                actuator.apply(*wanted)
            actuator.restore()
        except Crash:
            files.crash_before = None
            home(actuator, files, path)
            assert live() == dict(vars(original)), f"after {count} writes"
            assert load(path) is None
        else:
            break
    assert count >= 2 * len(SPELL)


def test_foreign_write_is_seen_and_left(path: Path) -> None:
    set_live(dict(vars(ORIGINALS["default"])))
    files = KernelFiles()
    actuator = started(files, path)
    actuator.apply(*FIRST)
    subprocess.run(["sysctl", "-qw", "vm.dirty_ratio=31"], check=True)
    found = [(write.lever, write.value) for write in actuator.foreign(read_limits(files))]
    assert found == [("dirty_ratio", "31")]
    actuator.yield_()
    assert read_limits(files) == VmLimits(0, 31, 0, 10)


WRITER = """
import itertools, sys
from pathlib import Path
from writebackd.actuate.actuator import Actuator
from writebackd.kernel.files import KernelFiles
actuator = Actuator(KernelFiles(), Path(sys.argv[1]), "restore")
actuator.start()
print("ready", flush=True)
for n in itertools.count():
    actuator.apply((16 + n % 64) << 20, (8 + n % 32) << 20)
    if n % 8 == 7:
        actuator.restore()
"""


@pytest.mark.parametrize(
    "name", ["default", "bytes", "limit ratio 0", "half of what the agent sets"]
)
def test_restored_after_sigkill_at_any_moment(path: Path, name: str) -> None:
    original = ORIGINALS[name]
    set_live(dict(vars(original)))
    dice = random.Random(name)
    for _ in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            env={**os.environ, "PYTHONPATH": str(AGENT)},
            stdout=subprocess.PIPE,
        )
        assert process.stdout and process.stdout.readline() == b"ready\n"
        time.sleep(dice.uniform(0, 0.02))  # the moment is the point, nothing is waited for
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert restore_from_ledger(KernelFiles(), path).status in ("restored", "nothing")
        assert live() == dict(vars(original))
        assert load(path) is None


# -- refusals of the kernel ----------------------------------------------------------

APPLY_AND_RESTORE = """
import os, sys
from pathlib import Path
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.kernel.files import KernelFiles
ours, left = Path(sys.argv[1]), Path(sys.argv[2])
files = KernelFiles()
actuator = Actuator(files, ours, "restore")
actuator.start()
if sys.argv[3] == "nobody":
    os.setgid(65534)
    os.setuid(65534)
for action in actuator.apply(8 << 20, 4 << 20):
    print(action.ok, action.error)
result = restore_from_ledger(files, left)
print(result.status, *result.lines, sep="\\n")
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Where a process without rights can save a ledger too."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        yield Path(directory)


@pytest.mark.parametrize(
    "case, words",
    [("nobody", "only uid 0 may write it"), ("read-only", "read-only: a container")],
)
def test_refusal_is_told_and_the_ledger_stays(open_directory: Path, case: str, words: str) -> None:
    path = open_directory / "ledger.json"
    set_live(dict(vars(ORIGINALS["default"])))
    actuator = started(KernelFiles(), path)
    actuator.apply(*FIRST)
    before = live()
    arguments = [str(open_directory / "own"), str(path), case]
    command = [sys.executable, "-c", APPLY_AND_RESTORE, *arguments]
    if case == "read-only":
        remount = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && "$@"'
        command = ["unshare", "--mount", "sh", "-c", remount, "sh", *command]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(AGENT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("False") and "True" not in done.stdout
    assert done.stdout.count(words) >= 3
    assert "failed\n" in done.stdout
    assert live() == before and load(path) is not None
    actuator.restore()
    assert live() == dict(vars(ORIGINALS["default"]))


# -- cost and host -------------------------------------------------------------------


READ_BUDGET_S = 300e-6  # of a tick of 1 s: 0.03 % of a core


def test_reading_the_state_is_cheap() -> None:
    files = KernelFiles()
    durations = []
    for _ in range(300):
        start = time.perf_counter()
        read_state(files)
        durations.append(time.perf_counter() - start)
    median = statistics.median(durations)
    print(f"read_state: {median * 1e6:.0f} us")
    assert median < READ_BUDGET_S


def test_host_info_of_this_host() -> None:
    info = host_info(KernelFiles())
    assert info.cpus_online == os.sysconf("SC_NPROCESSORS_ONLN")
    pages = os.sysconf("SC_PHYS_PAGES") * info.page_size
    assert abs(info.memory_bytes - pages) < pages / 50
