# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe without BTF: compiled by bcc, kept, refused; its object."""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator, List, Tuple

import pytest

from writebackd.kernel import bcc_child, bcc_programs, probe
from writebackd.kernel.bcc_object import with_maps
from writebackd.kernel.files import KernelFiles

RELEASE = os.uname().release
MAPS = ("starts", "5581ab90.bss", ".rodata.config")
# What bcc_child.py does, as far as the other side sees it; it leaves a mark for each run.
CHILD = """
import json, sys
with open({mark!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
source = sys.stdin.read()
if source.startswith("error"):
    sys.exit("warning: headers\\n/virtual/main.c:3:5: error: no member named 'q'\\n1 error")
if source.startswith("endless"):
    import time
    time.sleep(600)
json.dump({{"empty": "AAEC"}}, sys.stdout)
"""


class Host:
    """One with bcc and headers, and a directory for the cache."""

    def __init__(self, tmp: Path) -> None:
        self.cache = tmp / "cache"
        self.mark = tmp / "mark"
        self.file = self.cache / f"bcc-{RELEASE}.json"

    def programs(self, source: str = "source") -> "dict[str, bytes]":
        return bcc_programs.programs(source, MAPS, self.cache)

    @property
    def compiled(self) -> int:
        return len(self.mark.read_text().splitlines()) if self.mark.exists() else 0


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path)
    modules = tmp_path / "modules"
    (modules / RELEASE / "build/include/linux").mkdir(parents=True)
    (modules / RELEASE / "build/include/linux/kconfig.h").touch()
    child = tmp_path / "child.py"
    child.write_text(CHILD.format(mark=str(host.mark)))
    monkeypatch.setattr(bcc_programs, "CHILD", child)
    monkeypatch.setattr(bcc_programs, "PYTHON", sys.executable)
    monkeypatch.setattr(bcc_programs, "_FIND_BCC", "")
    monkeypatch.setattr(bcc_programs, "_MODULES", modules)
    monkeypatch.setattr(bcc_programs, "_KHEADERS", tmp_path / "none")
    monkeypatch.setattr(bcc_programs, "_BTF", tmp_path / "btf")
    # pytest's directories lie below /tmp.
    monkeypatch.setattr(bcc_programs, "others_may_change", lambda path: path.stat().st_mode & 0o022)
    return host


def test_compiled_once_and_kept(host: Host) -> None:
    assert host.programs() == {"empty": b"\0\1\2"}
    assert host.programs() == {"empty": b"\0\1\2"} and host.compiled == 1
    (flags,) = (json.loads(line) for line in host.mark.read_text().splitlines())
    assert flags == ["-DBCC", "-DMAP_starts=0", "-DMAP__bss=1", "-DMAP__rodata_config=2"]


def test_another_source_or_kernel_is_compiled_anew(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.programs()
    host.programs("another")
    assert host.compiled == 2
    kernel = os.uname()
    built_again = os.uname_result((*kernel[:3], "#2 SMP", kernel.machine))
    monkeypatch.setattr(os, "uname", lambda: built_again)
    host.programs("another")
    assert host.compiled == 3


def test_a_file_that_is_no_cache_is_replaced(host: Host) -> None:
    host.programs()
    for number, text in enumerate(("", "{", "[]", "{}", '{"key": 1}')):
        host.file.write_text(text)
        for _ in range(2):
            assert host.programs() == {"empty": b"\0\1\2"} and host.compiled == 2 + number, text


def test_programs_that_others_may_write_are_not_taken(host: Host) -> None:
    host.programs()
    host.file.chmod(0o666)
    host.programs()
    assert host.compiled == 2 and host.file.stat().st_mode & 0o777 == 0o644


def test_without_a_place_for_the_cache_it_works(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.cache.write_text("a file")
    assert host.programs() == {"empty": b"\0\1\2"}
    assert "not kept" in caplog.text


def test_the_compilers_first_error_is_told(host: Host) -> None:
    with pytest.raises(OSError, match="bcc: /virtual/main.c:3:5: error: no member named 'q'"):
        host.programs("error")
    assert not host.file.exists()


def test_a_compiler_that_does_not_end_is_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bcc_programs, "LIMIT_S", 0.5)
    with pytest.raises(OSError, match=r"not compile within 0\.5 s"):
        host.programs("endless")


def test_what_is_missing_is_named_with_its_packages(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert bcc_programs.missing() == []
    (tmp_path / "modules" / RELEASE / "build/include/linux/kconfig.h").unlink()
    monkeypatch.setattr(bcc_programs, "_FIND_BCC", "raise SystemExit(1)")
    with pytest.raises(OSError, match="no BTF") as error:
        host.programs()
    assert f"linux-headers-{RELEASE}" in str(error.value) and "python3-bpfcc" in str(error.value)
    assert host.compiled == 0
    (tmp_path / "none").touch()  # kheaders
    assert bcc_programs.missing() == ["python3-bpfcc (or python3-bcc)"]


def test_where_modules_are_hidden_nothing_is_called_missing(host: Host, tmp_path: Path) -> None:
    """As the daemon's unit hides them: its headers may well be installed."""
    (tmp_path / "modules").rename(tmp_path / "hidden")
    (tmp_path / "modules").mkdir(mode=0)
    with pytest.raises(OSError, match="writebackd --compile-probe"):
        host.programs()


def test_a_kernel_without_modules_is_told_so(host: Host, tmp_path: Path) -> None:
    (tmp_path / "modules" / RELEASE).rename(tmp_path / "modules" / "another")
    modules = tmp_path / "modules" / RELEASE
    why = f"{modules} is missing: a kernel without modules or headers"
    with pytest.raises(OSError, match="no BTF") as without:
        host.programs()
    (tmp_path / "btf").touch()
    with pytest.raises(OSError, match="missing") as with_btf:
        host.programs()
    assert (str(without.value), str(with_btf.value)) == (f"the kernel has no BTF, and {why}", why)


def instruction(opcode: int, source: int, number: int) -> bytes:
    return struct.pack("=BBhi", opcode, source << 4, 0, number)


def test_maps_take_the_place_of_their_numbers_and_constants_stay() -> None:
    second = instruction(0, 0, 0)
    code = [
        instruction(0x18, 1, 1), second,  # a map
        instruction(0x18, 2, 0), second,  # a map's value
        instruction(0x18, 0, 1), instruction(0x18, 1, 1),  # a constant, whatever its upper half
        instruction(0xB7, 1, 1),
    ]  # fmt: skip
    patched = with_maps(b"".join(code), [70, 71])
    assert patched == b"".join(
        [instruction(0x18, 1, 71), second, instruction(0x18, 2, 70), second, *code[4:]]
    )


def test_the_newest_fields_with_which_it_compiles() -> None:
    tried: List[List[str]] = []

    def compiles(text: str, cflags: List[str]) -> Any:
        tried.append(cflags)
        if "-DHAS_DISKSEQ" in cflags:
            raise Exception("no member named 'diskseq'")
        return text

    bcc = SimpleNamespace(BPF=compiles)
    assert bcc_child.compile_source(bcc, "source", ["-DBCC"]) == "source"
    assert tried[0] == ["-DBCC", "-DHAS_DISKSEQ"] and tried[-1] == ["-DBCC", "-DHAS_RQ_DISK"]
    with pytest.raises(Exception, match="never"):
        bcc_child.compile_source(SimpleNamespace(BPF=_never), "source", [])


def _never(**_: object) -> None:
    raise Exception("never")


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


@pytest.mark.parametrize("machine, built, said", [
    ("riscv64", ("x86_64", "aarch64"), "no BPF object for riscv64, only for aarch64, x86_64"),
    ("x86_64", (), r"writeback.x86_64.bpf.o is missing: build the package"),
])  # fmt: skip
def test_a_package_without_a_probe_for_the_machine_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, built: Tuple[str, ...], said: str
) -> None:
    on(monkeypatch, machine, *built, at=tmp_path)
    with pytest.raises(OSError, match=said):
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
