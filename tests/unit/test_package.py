# SPDX-License-Identifier: GPL-2.0-or-later
"""What a built wheel and an installed tree contain, and how a build that cannot be done ends."""

from __future__ import annotations

import configparser
import email
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Dict, Set

import pytest

from checkout import BTF, copy_checkout, need_compiler, run
from writebackd import __version__

OBJECT = "writebackd/_bpf/writeback.bpf.o"
EM_BPF = 247  # elf.h
PIP_WHEEL = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]


def build(checkout: Path, out: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    argv = [*PIP_WHEEL, "--no-build-isolation", "--no-deps", "-w", str(out), *options, "."]
    return run(argv, checkout)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_compiler()
    return copy_checkout(tmp_path_factory.mktemp("package") / "checkout")


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> zipfile.ZipFile:
    result = build(checkout, checkout.parent / "wheel")
    assert result.returncode == 0, result.stdout
    (path,) = (checkout.parent / "wheel").glob("*.whl")
    return zipfile.ZipFile(path)


def in_wheel(wheel: zipfile.ZipFile, end: str) -> str:
    (name,) = (name for name in wheel.namelist() if name.endswith(end))
    return wheel.read(name).decode()


def test_wheel_holds_every_module_and_policy(checkout: Path, wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    source = checkout / "agent"
    assert {str(path.relative_to(source)) for path in source.rglob("*.py")} <= names
    policies = {f"writebackd/policies/{path.name}" for path in checkout.glob("policies/*.conf")}
    assert "writebackd/policies/default.conf" in policies
    assert policies <= names
    assert not [name for name in names if "vmlinux" in name or "egg-info" in name]


def elf_sections(data: bytes) -> Set[str]:
    """Names of the sections of a 64-bit ELF file of this host's byte order."""
    table, size, count, names_index = struct.unpack_from("=Q10xHHH", data, 40)
    headers = [struct.unpack_from("=IIQQQQ", data, table + i * size) for i in range(count)]
    names = data[headers[names_index][4] :]
    return {names[h[0] : names.index(b"\0", h[0])].decode() for h in headers}


def test_the_object_is_bpf_with_types_and_without_debug_info(wheel: zipfile.ZipFile) -> None:
    data = wheel.read(OBJECT)
    assert data[:4] == b"\x7fELF"
    assert struct.unpack_from("=H", data, 18) == (EM_BPF,)
    sections = elf_sections(data)
    assert {".BTF", ".BTF.ext", ".maps", "license"} <= sections  # CO-RE needs the first two
    assert not [name for name in sections if name.startswith(".debug")]


def test_metadata(wheel: zipfile.ZipFile) -> None:
    meta = email.message_from_string(in_wheel(wheel, ".dist-info/METADATA"))
    assert (meta["Name"], meta["Version"]) == ("writebackd", __version__)
    assert meta["Requires-Python"] == ">=3.9"
    assert "GPL-2.0-or-later" in (meta["License"] or meta["License-Expression"])
    needs = [need for need in meta.get_all("Requires-Dist", []) if "extra" not in need]
    assert sorted(needs) == ["psutil", "pyroute2"]
    tags = email.message_from_string(in_wheel(wheel, ".dist-info/WHEEL")).get_all("Tag", [])
    # Not "any": the registers of kprobes and the byte order are compiled in.
    assert [tag for tag in tags if not re.fullmatch(r"py3-none-linux_\w+", tag)] == []


def test_all_commands_start(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    scripts = configparser.ConfigParser()
    scripts.read_string(in_wheel(wheel, ".dist-info/entry_points.txt"))
    commands = dict(scripts["console_scripts"])
    assert sorted(commands) == ["writebackctl", "writebackd", "writebackd-raid"]
    for entry in commands.values():
        module, function = entry.split(":")
        call = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module} as m; "
        result = run([sys.executable, "-I", "-c", f"{call}m.{function}(['--help'])"], tmp_path)
        assert (result.returncode, "usage:" in result.stdout) == (0, True), result.stdout


def test_a_file_deleted_from_the_source_leaves_the_next_wheel(
    checkout: Path, wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    extra = checkout / "agent" / "writebackd" / "passing.py"
    extra.write_text("")
    assert build(checkout, tmp_path / "one").returncode == 0
    extra.unlink()
    assert build(checkout, tmp_path / "two").returncode == 0
    held = [
        "writebackd/passing.py" in zipfile.ZipFile(next((tmp_path / out).glob("*.whl"))).namelist()
        for out in ("one", "two")
    ]
    assert held == [True, False]


def test_btf_can_be_given(checkout: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    btf = tmp_path / "vmlinux.btf"
    shutil.copyfile(BTF, btf)
    result = build(checkout, tmp_path / "out", "--config-settings", f"btf={btf}")
    assert result.returncode == 0, result.stdout
    (path,) = (tmp_path / "out").glob("*.whl")
    assert zipfile.ZipFile(path).read(OBJECT) == wheel.read(OBJECT)
    assert str(btf) in (checkout / "build" / "bpf" / "config").read_text()


def test_without_probe(checkout: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    result = build(checkout, tmp_path, "--config-settings", "probe=no")
    assert result.returncode == 0, result.stdout
    (path,) = tmp_path.glob("*.whl")
    assert set(wheel.namelist()) - set(zipfile.ZipFile(path).namelist()) == {OBJECT}


CANNOT = {
    "no such BTF": ({"WRITEBACKD_BTF": "/nonexistent/btf"}, ["/nonexistent/btf", "btf=FILE"]),
    "no clang": ({"CLANG": "no-such-clang"}, ["clang not found", "apt-get install clang"]),
    "no bpftool": ({"BPFTOOL": "no-such-bpftool"}, ["apt-get install bpftool"]),
    "two things": (
        {"LLVM_STRIP": "no-such-strip", "WRITEBACKD_BTF": "/nonexistent/btf"},
        ["apt-get install llvm", "/nonexistent/btf"],
    ),
}


@pytest.mark.parametrize("variables, told", CANNOT.values(), ids=CANNOT.keys())
def test_a_build_that_cannot_be_done_says_what_to_do(
    variables: Dict[str, str], told: "list[str]", checkout: Path
) -> None:
    backend = checkout / "bpf" / "build_backend.py"
    result = subprocess.run(
        [sys.executable, str(backend)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert [text for text in told if text not in result.stdout] == []
    assert "Traceback" not in result.stdout


def test_a_broken_source_leaves_the_last_object(checkout: Path, tmp_path: Path) -> None:
    copy = copy_checkout(tmp_path / "copy")
    compile_probe = [sys.executable, "bpf/build_backend.py"]
    assert run(compile_probe, copy).returncode == 0
    installed = copy / "agent" / OBJECT
    good = installed.read_bytes()
    with (copy / "bpf" / "writeback.bpf.c").open("a") as source:
        source.write("\nint broken(\n")
    result = run(compile_probe, copy)
    assert (result.returncode, installed.read_bytes() == good) == (1, True)
    assert "compiling bpf/ failed" in result.stdout


@pytest.fixture(scope="module")
def installed(checkout: Path) -> Path:
    target = checkout.parent / "installed"
    python = f"PYTHON={sys.executable}"
    result = run(["make", "install", f"DESTDIR={target}", python], checkout)
    assert result.returncode == 0, result.stdout
    return target


def test_installed_tree(checkout: Path, installed: Path) -> None:
    expected = {
        "usr/bin/writebackd",
        "usr/bin/writebackctl",
        "usr/bin/writebackd-raid",
        "usr/lib/systemd/system/writebackd-raid.service",
        "usr/lib/systemd/system/writebackd-raid.timer",
        "usr/lib/systemd/system/writebackd-watch.service",
        "usr/lib/systemd/system/writebackd.service",
        f"usr/lib/writebackd/{OBJECT}",
        "usr/share/doc/writebackd/README.md",
        "usr/share/man/man1/writebackctl.1",
        "usr/share/man/man5/writebackd.conf.5",
        "usr/share/man/man8/writebackd.8",
        "usr/share/bash-completion/completions/writebackctl",
        "usr/share/bash-completion/completions/writebackd",
        "usr/share/zsh/site-functions/_writebackctl",
        *(f"usr/lib/writebackd/policies.d/{p.name}" for p in checkout.glob("policies/*.conf")),
    }
    held = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert expected - held == set()
    assert {name.split("/")[0] for name in held} == {"usr"}
    assert (installed / "etc/writebackd/policies.d").is_dir()
    # The package finds the same files, not a second copy that could differ.
    inside = installed / "usr/lib/writebackd/writebackd/policies"
    assert inside.resolve() == (installed / "usr/lib/writebackd/policies.d").resolve()


def test_installed_paths_agree(installed: Path) -> None:
    unit = (installed / "usr/lib/systemd/system/writebackd.service").read_text()
    commands = re.findall(r"^Exec(?:Start|StopPost)=(/\S+)", unit, re.MULTILINE)
    assert commands == ["/usr/bin/writebackd", "/usr/bin/writebackctl"]
    for command in commands:
        launcher = installed / command.lstrip("/")
        assert os.access(launcher, os.X_OK)
        assert str(installed) not in launcher.read_text()


@pytest.mark.parametrize("command", ["writebackd", "writebackctl", "writebackd-raid"])
def test_installed_command_runs(command: str, installed: Path, tmp_path: Path) -> None:
    text = (installed / "usr/bin" / command).read_text()
    here = text.replace('"/usr/lib/', f'"{installed}/usr/lib/')
    assert here != text
    launcher = tmp_path / command
    launcher.write_text(here)
    result = run([sys.executable, "-I", str(launcher), "--version"], tmp_path)
    assert (result.returncode, __version__ in result.stdout) == (0, True), result.stdout


def test_uninstall_takes_all_but_the_admins_files(
    checkout: Path, installed: Path, tmp_path: Path
) -> None:
    shutil.copytree(installed, tmp_path, symlinks=True, dirs_exist_ok=True)
    drop_in = tmp_path / "etc/writebackd/policies.d/default.conf.d/local.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("")
    assert run(["make", "uninstall", f"DESTDIR={tmp_path}"], checkout).returncode == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [drop_in]
