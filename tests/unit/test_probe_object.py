# SPDX-License-Identifier: GPL-2.0-or-later
"""Which probe and which of the package's BPF objects is taken, and what is said without any."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Iterator, List

import pytest

from writebackd.kernel import bcc_programs, probe
from writebackd.kernel.files import KernelFiles


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    probe.object_image.cache_clear()
    yield
    probe.object_image.cache_clear()


def on(monkeypatch: pytest.MonkeyPatch, machine: str, *objects: str, at: Path) -> None:
    """A package with these objects, on a host of this machine."""
    host = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*host[:4], machine)))
    monkeypatch.setattr(probe, "__file__", str(at / "writebackd/kernel/probe.py"))
    (at / "writebackd/_bpf").mkdir(parents=True)
    for each in objects:
        (at / f"writebackd/_bpf/writeback.{each}.bpf.o").write_text(f"object for {each}")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_machine_chooses(machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on(monkeypatch, machine, "aarch64", "x86_64", at=tmp_path)
    assert probe.object_image() == f"object for {machine}".encode()


def test_another_machine_is_told_which_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on(monkeypatch, "riscv64", "x86_64", "aarch64", at=tmp_path)
    with pytest.raises(OSError, match="no BPF object for riscv64, only for aarch64, x86_64"):
        probe.object_image()


def test_a_package_without_the_probe_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on(monkeypatch, "x86_64", at=tmp_path)
    with pytest.raises(OSError, match=r"writeback.x86_64.bpf.o is missing: build the package"):
        probe.object_image()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """The BPF probes that were tried, none of which can be had."""
    tried: List[str] = []

    def refused(name: str) -> object:
        def opening(*_: object, **__: object) -> None:
            tried.append(name)
            raise OSError(f"no {name} here")

        return opening

    monkeypatch.setattr(probe, "object_image", lambda: b"")
    monkeypatch.setattr(probe, "BpfProbe", refused("libbpf"))
    monkeypatch.setattr(probe, "BccProbe", refused("bcc"))
    return tried


@pytest.mark.parametrize(("btf", "best"), [(True, "libbpf"), (False, "bcc")])
def test_bcc_is_for_kernels_without_btf(
    btf: bool, best: str, opened: List[str], tmp_path: Path
) -> None:
    if btf:
        (tmp_path / "sys/kernel/btf").mkdir(parents=True)
        (tmp_path / "sys/kernel/btf/vmlinux").touch()
    fallback = probe.open_probe("auto", KernelFiles(tmp_path), False, True)
    assert opened == [best]
    assert f"BPF: no {best} here" in fallback.info().misses


@pytest.mark.parametrize("backend", ["libbpf", "bcc"])
def test_what_is_asked_for_is_had_or_refused(
    backend: str, opened: List[str], tmp_path: Path
) -> None:
    with pytest.raises(OSError, match=f"no {backend} here"):
        probe.open_probe(backend, KernelFiles(tmp_path), False, True)
    assert opened == [backend]


def test_what_bcc_lacks_is_told_by_who_opens_its_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errno alone would read as that of a hook: no such file."""

    def lacking(*_: object) -> None:
        raise OSError(errno.ENOENT, "bcc needs headers")

    monkeypatch.setattr(bcc_programs, "programs", lacking)
    probe.compiled_programs.cache_clear()
    with pytest.raises(OSError, match="bcc needs headers"):
        probe.BccProbe(probe.object_image(), KernelFiles())


def test_a_hook_is_not_forced_without_bpf(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="--fsync-hook kprobe needs BPF"):
        probe.open_probe("procfs", KernelFiles(tmp_path), False, True, "kprobe")
