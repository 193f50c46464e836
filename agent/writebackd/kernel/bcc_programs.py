# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe's programs for a kernel without BTF: compiled by bcc once, then kept in a file.

A child compiles (bcc_child.py), so that LLVM's 210 MB are gone when it is done.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import subprocess
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from writebackd.paths import CACHE_DIR, others_may_change
from writebackd.safe_files import write_atomically

log = logging.getLogger(__name__)

# bcc's module is the system's Python's, wherever ours is.
PYTHON = "/usr/bin/python3"
CHILD = Path(__file__).with_name("bcc_child.py")
# systemd gives a start of the unit 90 s.
LIMIT_S = 60.0
_FIND_BCC = "import importlib.util, sys; sys.exit(importlib.util.find_spec('bcc') is None)"
_KHEADERS = Path("/sys/kernel/kheaders.tar.xz")
_MODULES = Path("/lib/modules")
_BTF = Path("/sys/kernel/btf/vmlinux")


def missing() -> List[str]:
    """Packages without which bcc cannot compile for the running kernel."""
    release = os.uname().release
    lacking = []
    trees = [_MODULES / release / name for name in ("source", "build")]
    headers = [_KHEADERS, *(tree / "include/linux/kconfig.h" for tree in trees)]
    if not any(header.exists() for header in headers):
        lacking.append(f"linux-headers-{release} (or kernel-devel-{release})")
    if subprocess.run([PYTHON, "-I", "-c", _FIND_BCC], check=False).returncode:
        lacking.append("python3-bpfcc (or python3-bcc)")
    return lacking


def programs(source: str, maps: Sequence[str], cache_dir: Path = CACHE_DIR) -> Dict[str, bytes]:
    """Instructions by program; `maps` are in the order of their numbers.

    Taken from the cache, or compiled.  Raises OSError that says what to do.
    """
    flags = ["-DBCC", *(f"-DMAP_{_identifier(name)}={at}" for at, name in enumerate(maps))]
    kernel = os.uname()
    made_from = "\0".join([kernel.version, *flags, source])
    key = hashlib.sha256(made_from.encode()).hexdigest()
    cache = cache_dir / f"bcc-{kernel.release}.json"
    compiled = _cached(cache, key)
    if compiled is None:
        compiled = _compile(source, flags)
        _keep(cache, key, compiled)
    return {name: base64.b64decode(code) for name, code in compiled.items()}


def _identifier(map_name: str) -> str:
    """`.rodata.config` -> `_rodata_config`; libbpf puts the object's name before `.bss`."""
    return re.sub(r"^[^.]*\.", "_", map_name).replace(".", "_")


def _cached(cache: Path, key: str) -> Optional[Dict[str, str]]:
    """None if there is no usable cache: other sources, or not root's file."""
    try:
        if others_may_change(cache):
            return None
        kept: Optional[Dict[str, str]] = json.loads(cache.read_text()).get(key)
    except (OSError, ValueError, AttributeError):
        return None
    return kept


def _keep(cache: Path, key: str, compiled: Dict[str, str]) -> None:
    """Write the cache; a failure only costs seconds at the next start."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache, json.dumps({key: compiled}).encode())
    except OSError as error:
        log.warning("compiled probe not kept: %s", error)


def _compile(source: str, flags: Sequence[str]) -> Dict[str, str]:
    why = "" if _BTF.exists() else "the kernel has no BTF, and "
    modules = _MODULES / os.uname().release
    if _hidden(_MODULES):
        raise OSError(
            f"{why}bcc has not compiled the probe yet; {_MODULES} cannot be read here: see"
            " `systemctl status writebackd-probe`, or run `writebackd --compile-probe`"
        )
    if not modules.is_dir():
        raise OSError(f"{why}{modules} is missing: a kernel without modules or headers")
    lacking = missing()
    if lacking:
        raise OSError(f"{why}bcc needs {' and '.join(lacking)}")
    try:
        done = subprocess.run(
            [PYTHON, "-I", str(CHILD), *flags], input=source, capture_output=True, text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(f"bcc did not compile within {LIMIT_S:g} s") from None
    if done.returncode:
        log.debug("bcc: %s", done.stderr)
        raise OSError(f"bcc: {_reason(done.stderr)}")
    compiled: Dict[str, str] = json.loads(done.stdout)
    return compiled


def _hidden(directory: Path) -> bool:
    """Whether the unit's sandbox hides it: systemd mounts a directory without mode bits over it."""
    try:
        return not directory.stat().st_mode & 0o777
    except OSError:
        return False


def _reason(errors: str) -> str:
    """The compiler's first error, else its last line."""
    lines = errors.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error: " in line), lines[-1])
