# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe on a kernel whose BTF is hidden: compiled by bcc against its headers.

WRITEBACKD_BCC names the unpacked packages of bcc and of the kernel's headers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

from tests.kernel.fault_rig import AGENT, limits
from tests.kernel.scratch import run
from tests.kernel.test_daemon import Running
from tests.kernel.test_unit_rights import bounding_set, confined, probe_of
from tests.vm.inside.flood import MIB, daemon, hold_a_flood
from tests.vm.inside.recorded import Record, record_probe
from writebackd.kernel import bcc_programs
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.probe import BTF, BccProbe, BpfProbe, object_image
from writebackd.paths import CACHE_DIR

__all__ = ["daemon"]

# LLVM takes a hundred times as long when it is emulated.
COMPILE = """
import sys
from writebackd.cli import daemon_main
from writebackd.kernel import bcc_programs
bcc_programs.LIMIT_S = 600.0
sys.exit(daemon_main.main(["--compile-probe"]))
"""


def compile_probe() -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(AGENT)})  # fmt: skip


def install() -> None:
    """Link what the packages hold to where it would be."""
    modules = Path("/lib/modules", os.uname().release)
    if modules.is_symlink():  # into a cache that may be read-only
        kept = modules.resolve()
        modules.unlink()
        modules.mkdir()
        for each in kept.iterdir():
            (modules / each.name).symlink_to(each)
    for tree in map(Path, os.environ["WRITEBACKD_BCC"].split(":")):
        for pattern in ("usr/src/*", "usr/lib/python3/dist-packages/bcc", "usr/lib/*/libbcc*",
                        "lib/modules/*/*", "usr/lib/modules/*/*"):  # fmt: skip
            for path in tree.glob(pattern):
                place = Path("/") / path.relative_to(tree)
                with contextlib.suppress(FileExistsError):
                    place.symlink_to(os.readlink(path) if path.is_symlink() else path)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Without BTF, and at first without headers, which are then asked for."""
    run("mount", "-t", "tmpfs", "none", str(Path(BTF).parent))
    refused = compile_probe()
    assert refused.returncode == 1, refused
    assert f"no BTF, and bcc needs linux-headers-{os.uname().release}" in refused.stderr
    install()
    types = Path("/lib/modules", os.uname().release, "build/vmlinux")
    if types.exists():  # Debian 13's headers have them too, where libbpf would find them
        run("mount", "--bind", "/dev/null", str(types))
    assert bcc_programs.missing() == []
    begun = time.monotonic()
    done = compile_probe()
    assert done.returncode == 0, done.stderr
    (kept,) = CACHE_DIR.iterdir()
    print(f"\ncompiled in {time.monotonic() - begun:.0f} s: {kept} of {kept.stat().st_size} bytes")


def test_libbpf_cannot_work_here() -> None:
    with pytest.raises(BpfError):
        BpfProbe(object_image(), KernelFiles())


def test_it_hooks_all_that_can_be_hooked_without_btf() -> None:
    probe = BccProbe(object_image(), KernelFiles())
    try:
        info, choice = probe.info(), probe.choice
    finally:
        probe.close()
    print(f"\n{info}")
    assert info.backend == "bcc" and info.request_hook == "raw_tp: block_rq_complete"
    assert info.fsync_hook is not None
    assert "raw_tp: ext4_sync_file_enter/exit" in info.fsync_hook
    assert "kprobe: xfs_file_fsync btrfs_sync_file" in info.fsync_hook
    dirtied, *others = [hook.target for hook in choice.others]
    assert dirtied in ("writeback_dirty_folio", "writeback_dirty_page")
    assert others == ["balance_dirty_pages", "sysctl"]
    assert choice.issue is not None and not choice.refused
    assert all(miss.startswith("fsync on filesystems other than") for miss in info.misses)


def test_the_rights_of_the_unit_suffice() -> None:
    seen = probe_of(*confined(bounding_set()))
    assert seen.startswith("bcc") and seen == probe_of()


def test_a_flood_is_held_with_its_fsyncs_seen(
    daemon: Callable[..., Running], record_testsuite_property: Record
) -> None:
    found = limits()
    running = daemon("--probe", "auto", "--mode", "enforce")
    status = hold_a_flood(running)
    record_probe(record_testsuite_property, status["probe"])
    assert status["probe"]["backend"] == "bcc"
    assert status["self"]["rss_bytes"] < 64 * MIB, "the daemon does not carry LLVM"
    assert running.end() == 0 and limits() == found
