# SPDX-License-Identifier: GPL-2.0-or-later
"""What a built wheel and an installed tree contain, and how a build that cannot be done ends."""

from __future__ import annotations

import configparser
import email
import os
import re
import shutil
import struct
import sys
import zipfile
from pathlib import Path
from typing import Dict, Set, Tuple

import pytest

from checkout import copy_checkout, need_compiler, run
from test_docs import broken
from writebackd import __version__

pytestmark = pytest.mark.xdist_group("package")  # the wheel is built once
OBJECTS = [f"writebackd/_bpf/writeback.{machine}.bpf.o" for machine in ("aarch64", "x86_64")]
FOR_BCC = "writebackd/_bpf/writeback.bcc.c"
COMPILE = [sys.executable, "bpf/build_backend.py"]
NO_COMPILER = {"CLANG": "no-such-clang", "LLVM_STRIP": "no-such-strip"}
EM_BPF = 247  # elf.h
EXTRA = "writebackd/passing.py"
PIP_WHEEL = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check",
             "--no-build-isolation", "--no-deps", "-w"]  # fmt: skip


def built(checkout: Path, call: str, **variables: str) -> None:
    """As pip calls the backend, without pip."""
    argv = [sys.executable, "-c", f"import build_backend; build_backend.{call}"]
    result = run(argv, checkout, PYTHONPATH=str(checkout / "bpf"), **variables)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_compiler()
    return copy_checkout(tmp_path_factory.mktemp("package") / "checkout")


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> zipfile.ZipFile:
    """With a file that is gone before anything else is built of the checkout."""
    extra = checkout / "agent" / EXTRA
    extra.write_text("")
    result = run([*PIP_WHEEL, str(checkout.parent / "wheel"), "."], checkout)
    assert result.returncode == 0, result.stdout
    extra.unlink()
    (path,) = (checkout.parent / "wheel").glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture
def compiled(checkout: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> Path:
    """A checkout of the test's own, with the objects that were compiled of it."""
    return Path(shutil.copytree(checkout, tmp_path / "copy", symlinks=True))


def in_wheel(wheel: zipfile.ZipFile, end: str) -> str:
    (name,) = (name for name in wheel.namelist() if name.endswith(end))
    return wheel.read(name).decode()


def test_wheel_holds_every_module_and_policy(checkout: Path, wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    source = checkout / "agent"
    assert {EXTRA, *(str(path.relative_to(source)) for path in source.rglob("*.py"))} <= names
    policies = {f"writebackd/policies/{path.name}" for path in checkout.glob("policies/*.conf")}
    assert "writebackd/policies/default.conf" in policies
    assert policies <= names
    assert {name for name in names if "_bpf/" in name} == {*OBJECTS, FOR_BCC}
    assert not [name for name in names if "egg-info" in name]


def elf_sections(data: bytes) -> Set[str]:
    """Names of the sections of a 64-bit little-endian ELF file."""
    table, size, count, names_index = struct.unpack_from("<Q10xHHH", data, 40)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    names = data[headers[names_index][4] :]
    return {names[h[0] : names.index(b"\0", h[0])].decode() for h in headers}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_bpf_with_types_and_without_debug_info(
    name: str, wheel: zipfile.ZipFile
) -> None:
    data = wheel.read(name)
    assert data[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", data, 18) == (EM_BPF,)
    sections = elf_sections(data)
    assert {".BTF", ".BTF.ext", ".maps", "license"} <= sections  # CO-RE needs the first two
    assert not [name for name in sections if name.startswith(".debug")]


def test_the_source_for_bcc_is_in_one_file(checkout: Path, wheel: zipfile.ZipFile) -> None:
    """bcc takes programs of the main file only."""
    source = wheel.read(FOR_BCC).decode()
    assert '#include "' not in source
    parts = [path.read_text() for path in (checkout / "bpf").glob("*.[ch]")]
    assert source.count('\nSEC("?') == sum(part.count('\nSEC("?') for part in parts) > 0


def test_the_machines_differ_in_their_registers(wheel: zipfile.ZipFile) -> None:
    names = [b"user_pt_regs\0" in wheel.read(name) for name in OBJECTS]
    assert names == [True, False]


def test_objects_are_the_same_bytes_wherever_they_are_compiled(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    copy = copy_checkout(tmp_path / "copy")
    # Reached by another name, as a shell leaves it in PWD: compilers believe it.
    link = tmp_path / "link"
    link.symlink_to(copy)
    assert run(["make", "OUT=out"], link / "bpf", PWD=str(link / "bpf")).returncode == 0
    for name in OBJECTS:
        assert (copy / "bpf/out" / Path(name).name).read_bytes() == wheel.read(name)


def test_compiling_reads_no_kernel_s_headers(checkout: Path, wheel: zipfile.ZipFile) -> None:
    rules = [path.read_text() for path in (checkout / "build/bpf").glob("writeback.*.d")]
    assert len(rules) == len(OBJECTS)
    for rule in rules:
        read = {Path(word) for word in rule.replace("\\\n", " ").split() if word[-1] != ":"}
        assert Path("kernel_types.h") in {Path(path.name) for path in read}
        outside = {path.parent.name for path in read if path.is_absolute()}
        assert outside == {"bpf"}, read  # /usr/include/bpf: libbpf's


def test_metadata(wheel: zipfile.ZipFile) -> None:
    meta = email.message_from_string(in_wheel(wheel, ".dist-info/METADATA"))
    assert (meta["Name"], meta["Version"]) == ("writebackd", __version__)
    assert meta["Requires-Python"] == ">=3.9"
    assert "GPL-2.0-or-later" in (meta["License"] or meta["License-Expression"])
    # What `writebackctl top` needs is an extra.
    needs = [need for need in meta.get_all("Requires-Dist", []) if "extra" not in need]
    assert needs == []
    tags = email.message_from_string(in_wheel(wheel, ".dist-info/WHEEL")).get_all("Tag", [])
    assert tags == ["py3-none-any"]


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


def test_without_probe(checkout: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """And without a file that was deleted since the wheel before; objects that are there stay."""
    copy = copy_checkout(tmp_path / "copy")
    for source, missing in ((copy, {EXTRA, *OBJECTS, FOR_BCC}), (checkout, {EXTRA})):
        out = tmp_path / f"of-{source.name}"
        out.mkdir()
        built(source, f"build_wheel({str(out)!r}, {{'probe': 'no'}})")
        (path,) = out.glob("*.whl")
        assert set(wheel.namelist()) - set(zipfile.ZipFile(path).namelist()) == missing


CANNOT = {
    "no clang": ({"CLANG": "no-such-clang"}, ["clang not found", "apt-get install clang"]),
    "two things": (NO_COMPILER, ["apt-get install clang", "apt-get install llvm"]),
}


@pytest.mark.parametrize("variables, told", CANNOT.values(), ids=CANNOT.keys())
def test_a_build_that_cannot_be_done_says_what_to_do(
    variables: Dict[str, str], told: "list[str]", tmp_path: Path
) -> None:
    result = run(COMPILE, copy_checkout(tmp_path / "copy"), **variables)
    assert result.returncode == 1
    assert [text for text in told if text not in result.stdout] == []
    assert "WRITEBACKD_BUILD_PROBE=no" in result.stdout
    assert "Traceback" not in result.stdout


def test_a_source_distribution_needs_no_compiler(
    wheel: zipfile.ZipFile, compiled: Path, tmp_path: Path
) -> None:
    built(compiled, f"build_sdist({str(tmp_path)!r})")
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)
    source = tmp_path / archive.name[: -len(".tar.gz")]
    built(source, f"build_wheel({str(tmp_path)!r})", **NO_COMPILER)
    (path,) = tmp_path.glob("*.whl")
    assert [zipfile.ZipFile(path).read(name) for name in OBJECTS] == [
        wheel.read(name) for name in OBJECTS
    ]


def test_objects_of_other_sources_are_compiled_anew(
    wheel: zipfile.ZipFile, compiled: Path
) -> None:
    # The same question as agent/setup.sh asks, before it installs a compiler.
    ask = ["sha256sum", "--check", "--status", "agent/writebackd/_bpf/sha256sums"]

    def codes(**variables: str) -> Tuple[int, int]:
        return run(COMPILE, compiled, **variables).returncode, run(ask, compiled).returncode

    assert codes(**NO_COMPILER) == (0, 0)
    with (compiled / "bpf" / "compat.h").open("a") as source:
        source.write("/* changed */\n")
    assert codes(**NO_COMPILER) == (1, 1)
    assert codes() == (0, 0)
    (compiled / "agent" / OBJECTS[0]).unlink()
    assert codes() == (0, 0)
    assert (compiled / "agent" / OBJECTS[0]).read_bytes() == wheel.read(OBJECTS[0])


def test_setup_installs_a_compiler_only_where_it_has_to_compile(
    compiled: Path, tmp_path: Path
) -> None:
    stubs = tmp_path / "bin"
    stubs.mkdir()
    # Nothing is installed, and who asks may not install: it says what is missing.
    for name, text in (("dpkg-query", "exit 1"), ("id", "echo 1000"), ("apt-get", "exit 1")):
        (stubs / name).write_text(f"#!/bin/sh\n{text}\n")
        (stubs / name).chmod(0o755)

    def wanted(what: str) -> Set[str]:
        done = run(["agent/setup.sh", what], compiled, PATH=f"{stubs}:{os.environ['PATH']}")
        assert done.returncode == 4 and "libbpf1" in done.stdout, done.stdout
        return {"clang", "llvm", "libbpf-dev", "bpftool"} & set(done.stdout.split())

    assert wanted("run") == set()
    assert wanted("test") == {"clang", "llvm", "libbpf-dev"}
    shutil.rmtree(compiled / "agent/writebackd/_bpf")
    assert wanted("run") == {"clang", "llvm", "libbpf-dev"}


def test_a_broken_source_leaves_the_last_object(wheel: zipfile.ZipFile, compiled: Path) -> None:
    with (compiled / "bpf" / "writeback.bpf.c").open("a") as source:
        source.write("\nint broken(\n")
    result = run(COMPILE, compiled)
    assert result.returncode == 1 and "compiling bpf/ failed" in result.stdout
    for name in OBJECTS:
        assert (compiled / "agent" / name).read_bytes() == wheel.read(name)


@pytest.fixture(scope="module")
def installed(checkout: Path, wheel: zipfile.ZipFile) -> Path:
    """Of a wheel that is built already, as the packages of distributions do."""
    target = checkout.parent / "installed"
    argv = ["make", "install", f"DESTDIR={target}", f"PYTHON={sys.executable}"]
    result = run([*argv, f"WHEEL={wheel.filename}"], checkout, **NO_COMPILER)
    assert result.returncode == 0, result.stdout
    return target


def test_installed_tree(checkout: Path, wheel: zipfile.ZipFile, installed: Path) -> None:
    expected = {
        "etc/default/writebackd",
        "usr/bin/writebackd",
        "usr/bin/writebackctl",
        "usr/bin/writebackd-raid",
        "usr/lib/systemd/system/writebackd-drain.service",
        "usr/lib/systemd/system/writebackd-probe.service",
        "usr/lib/systemd/system/writebackd-caches.service",
        "usr/lib/systemd/system/writebackd-raid.service",
        "usr/lib/systemd/system/writebackd-raid.timer",
        "usr/lib/systemd/system/writebackd-watch.service",
        "usr/lib/systemd/system/writebackd.service",
        "usr/lib/writebackd/restart",
        *(f"usr/lib/writebackd/{name}" for name in (*OBJECTS, FOR_BCC)),
        "usr/share/doc/writebackd/README.md",
        "usr/share/man/man1/writebackctl.1",
        "usr/share/man/man5/writebackd.conf.5",
        "usr/share/man/man8/writebackd.8",
        "usr/share/man/man8/writebackd-raid.8",
        *(
            name.format(program)
            for program in ("writebackctl", "writebackd", "writebackd-raid")
            for name in ("usr/share/bash-completion/completions/{}",
                         "usr/share/fish/vendor_completions.d/{}.fish")
        ),
        "usr/share/zsh/site-functions/_writebackctl",
        *(f"usr/lib/writebackd/policies.d/{p.name}" for p in checkout.glob("policies/*.conf")),
    }
    held = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert expected - held == set()
    for name in OBJECTS:
        assert (installed / "usr/lib/writebackd" / name).read_bytes() == wheel.read(name)
    assert {name for name in held if not name.startswith("usr/")} == {"etc/default/writebackd"}
    assert (installed / "etc/writebackd/policies.d").is_dir()
    # The package finds the same files, not a second copy that could differ.
    inside = installed / "usr/lib/writebackd/writebackd/policies"
    assert inside.resolve() == (installed / "usr/lib/writebackd/policies.d").resolve()


def test_links_of_the_installed_manual_lead_somewhere(installed: Path) -> None:
    pages = sorted((installed / "usr/share/doc/writebackd").rglob("*.md"))
    assert len(pages) > 20
    assert [each for page in pages for each in broken(page, page.read_text())] == []


def test_installed_paths_agree(installed: Path) -> None:
    unit = (installed / "usr/lib/systemd/system/writebackd.service").read_text()
    commands = re.findall(r"^Exec(?:Start|StopPost)=(/\S+)", unit, re.MULTILINE)
    options = (installed / "etc/default/writebackd").read_text()
    assert "EnvironmentFile=-/etc/default/writebackd\n" in unit and '\nOPTIONS=""\n' in options
    assert "ExecStart=/usr/bin/writebackd $OPTIONS\n" in unit
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
