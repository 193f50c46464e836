# SPDX-License-Identifier: GPL-2.0-or-later
"""PEP 517 backend: setuptools, after the probe was compiled.

The kernel types come from the running kernel's BTF; another file is named by
``--config-settings btf=FILE`` or by WRITEBACKD_BTF, so that a package can be
built on a host whose kernel has none.  The result, ``_bpf/writeback.bpf.o``, is
CO-RE: it loads on other kernels of the same architecture.  ``probe=no``, or
WRITEBACKD_BUILD_PROBE=no, leaves it out: the agent then runs on procfs alone.

Run as a program it only compiles the probe into the checkout.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Dict, List, Optional

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "bpf"
OBJECT = ROOT / "agent" / "writebackd" / "_bpf" / "writeback.bpf.o"
RUNNING_KERNEL = "/sys/kernel/btf/vmlinux"
Settings = Optional[Dict[str, Any]]
OURS = ("btf", "probe")  # keys of config_settings that setuptools has no business with

# What the compilation needs: variable that overrides it, command, Debian package.
TOOLS = (
    ("MAKE", "make", "make"),
    ("CLANG", "clang", "clang"),
    ("LLVM_STRIP", "llvm-strip", "llvm"),
    ("BPFTOOL", "bpftool", "bpftool"),
)

get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
get_requires_for_build_editable = build_meta.get_requires_for_build_wheel
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_wheel
build_sdist = build_meta.build_sdist


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    compile_probe(config_settings)
    # setuptools copies into its build directory and packs all that lies there,
    # files that were since deleted from the source included.
    shutil.rmtree(ROOT / "build" / "setuptools", ignore_errors=True)
    return str(
        build_meta.build_wheel(
            wheel_directory, _for_setuptools(config_settings), metadata_directory
        )
    )


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    compile_probe(config_settings)
    return str(build_meta.build_editable(wheel_directory, None, metadata_directory))


def compile_probe(config_settings: Settings = None) -> None:
    """Compile bpf/ into the package; ends the build with what to do when it cannot."""
    if _setting(config_settings, "probe", "WRITEBACKD_BUILD_PROBE") == "no":
        # One that an earlier build left would be packed.
        OBJECT.unlink(missing_ok=True)
        return
    btf = _setting(config_settings, "btf", "WRITEBACKD_BTF") or RUNNING_KERNEL
    problems = missing(Path(btf))
    if problems:
        _give_up(*problems)
    out = ROOT / "build" / "bpf"
    make = [os.environ.get("MAKE", "make"), "-C", str(SOURCE), f"OUT={out}"]
    make.append(f"BTF={Path(btf).resolve()}")
    try:
        subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        _give_up(f"compiling bpf/ failed (make ended with {error.returncode}): see above")
    _replace(OBJECT, out / OBJECT.name)


def _setting(config_settings: Settings, key: str, variable: str) -> str:
    return str((config_settings or {}).get(key) or os.environ.get(variable, ""))


def _replace(target: Path, source: Path) -> None:
    """Atomically, because a running agent may just be reading the old one."""
    if target.exists() and filecmp.cmp(source, target, shallow=False):
        return
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_suffix(".new")
    shutil.copyfile(source, fresh)
    os.replace(fresh, target)


def missing(btf: Path) -> List[str]:
    """What stands in the way of compiling, each with its remedy."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    problems = [
        f"{command} not found: apt-get install {package}, or name it with {variable}="
        for variable, command, package in TOOLS
        if not shutil.which(os.environ.get(variable, command), path=path)
    ]
    headers = ("/usr/include", "/usr/local/include")
    if not any(Path(where, "bpf", "bpf_helpers.h").exists() for where in headers):
        problems.append(
            "libbpf's headers (bpf/bpf_helpers.h) not found: apt-get install libbpf-dev"
        )
    if not btf.exists():
        problems.append(
            f"{btf}: no such file: the kernel types come from it. Where the kernel has no BTF, "
            "give another kernel's with --config-settings btf=FILE or WRITEBACKD_BTF=FILE, or "
            "build without the probe with --config-settings probe=no or WRITEBACKD_BUILD_PROBE=no"
        )
    return problems


def _for_setuptools(config_settings: Settings) -> Dict[str, Any]:
    """Our settings taken out, and the architecture put into the wheel's name.

    Registers of kprobes and byte order are compiled in, so that "any" would be wrong.
    """
    settings = {key: value for key, value in (config_settings or {}).items() if key not in OURS}
    options = settings.get("--build-option", [])
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    settings["--build-option"] = [
        *([options] if isinstance(options, str) else options),
        f"--plat-name={platform}",
    ]
    return settings


def _give_up(*problems: str) -> None:
    for problem in problems:
        print(f"writebackd: {problem}", file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    compile_probe()
