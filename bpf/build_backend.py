# SPDX-License-Identifier: GPL-2.0-or-later
"""PEP 517 backend: setuptools, after the probe was compiled.

`_bpf/` in the package gets a CO-RE object for each machine, whatever host compiles them, so that
one wheel, ``py3-none-any``, serves all.  Objects that came along with these very sources, as in a
source distribution, are taken as they are: then no compiler is needed.  ``--config-settings
probe=no``, or WRITEBACKD_BUILD_PROBE=no, compiles none: without any the agent sees procfs alone.

Run as a program it only compiles the probe into the checkout.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "bpf"
PACKAGED = ROOT / "agent" / "writebackd" / "_bpf"
CHECKSUMS = PACKAGED / "sha256sums"
OBJECTS = "writeback.*.bpf.o"
SOURCE_FOR_BCC = "writeback.bcc.c"
Settings = Optional[Dict[str, Any]]

# What the compilation needs: variable that overrides it, command, Debian package.
TOOLS = (
    ("MAKE", "make", "make"),
    ("CLANG", "clang", "clang"),
    ("LLVM_STRIP", "llvm-strip", "llvm"),
)

get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
get_requires_for_build_editable = build_meta.get_requires_for_build_wheel
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    compile_probe(config_settings)
    return str(build_meta.build_sdist(sdist_directory, _for_setuptools(config_settings)))


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
    if CHECKSUMS.exists() and CHECKSUMS.read_text() == checksums():
        return
    asked = (config_settings or {}).get("probe") or os.environ.get("WRITEBACKD_BUILD_PROBE")
    if asked == "no":
        # Those of other sources would be packed.
        shutil.rmtree(PACKAGED, ignore_errors=True)
        return
    problems = missing()
    if problems:
        _give_up(*problems, "or build without the probe: WRITEBACKD_BUILD_PROBE=no")
    out = ROOT / "build" / "bpf"
    make = [os.environ.get("MAKE", "make"), "-C", str(SOURCE), f"OUT={out}"]
    try:
        subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        _give_up(f"compiling bpf/ failed (make ended with {error.returncode}): see above")
    PACKAGED.mkdir(exist_ok=True)
    for compiled in out.glob(OBJECTS):
        # Atomically, because a running agent may just be reading the old one.
        fresh = PACKAGED / "new"
        shutil.copyfile(compiled, fresh)
        os.replace(fresh, PACKAGED / compiled.name)
    (PACKAGED / SOURCE_FOR_BCC).write_text(in_one("writeback.bpf.c"))
    CHECKSUMS.write_text(checksums())


def in_one(name: str) -> str:
    """The source, with what it includes of bpf/ in place: bcc takes functions of one file."""
    text = (SOURCE / name).read_text()
    return re.sub(r'(?m)^#include "(.+)"$', lambda match: in_one(match[1]), text)


def checksums() -> str:
    """Sources and the objects made from them, in the format of sha256sum.

    agent/setup.sh checks the file with `sha256sum --check`.
    """
    files = [SOURCE / "Makefile", *SOURCE.glob("*.[ch]"), *PACKAGED.glob("writeback.*.[co]")]
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT)}\n"
        for path in sorted(files)
    )


def missing() -> List[str]:
    """What stands in the way of compiling, each with its remedy."""
    problems = [
        f"{command} not found: apt-get install {package}, or name it with {variable}="
        for variable, command, package in TOOLS
        if not shutil.which(os.environ.get(variable, command))
    ]
    headers = ("/usr/include", "/usr/local/include")
    if not any(Path(where, "bpf", "bpf_helpers.h").exists() for where in headers):
        problems.append(
            "libbpf's headers (bpf/bpf_helpers.h) not found: apt-get install libbpf-dev"
        )
    return problems


def _for_setuptools(config_settings: Settings) -> Dict[str, Any]:
    return {key: value for key, value in (config_settings or {}).items() if key != "probe"}


def _give_up(*problems: str) -> None:
    for problem in problems:
        print(f"writebackd: {problem}", file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    compile_probe()
