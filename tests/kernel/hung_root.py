# SPDX-License-Identifier: GPL-2.0-or-later
"""A root of the daemon's own on a disk model: interpreter, libraries, package, state and log."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Set

PYTHON = Path("/usr/bin/python3")
AGENT = Path(__file__).resolve().parents[2] / "agent"
# Loaded at run time, so that no executable names them.
_LIBRARIES = ("libbpf.so.1", "libgcc_s.so.1")
_NOT_NEEDED = ("test", "idlelib", "ensurepip", "lib2to3", "distutils", "pydoc_data", "tkinter")
# The mount namespace is the daemon's own: what is mounted in it goes with it.  Its root is
# the disk; what the kernel offers, the runtime directory and the flooded disk are bound in.
_ENTER = """
set -e
mount --make-rprivate /
for name in proc sys dev; do mount --rbind /$name "$1/$name"; done
mount --bind "$2" "$1/run"
mount --bind "$3" "$1/data"
root=$1; shift 3
exec env -i PATH=/usr/sbin:/usr/bin PYTHONPATH=/agent NOTIFY_SOCKET=/run/notify chroot "$root" "$@"
"""


def build(root: Path) -> None:
    """Copy all that the daemon needs below `root`."""
    for name in ("proc", "sys", "dev", "run", "data", "tmp", "agent", "var/lib/writebackd"):
        (root / name).mkdir(parents=True, exist_ok=True)
    library = Path(f"/usr/lib/python{sys.version_info[0]}.{sys.version_info[1]}")
    skip = shutil.ignore_patterns(*_NOT_NEEDED, "*.a", "config-*")
    shutil.copytree(library, _inside(root, library), ignore=skip, symlinks=True)
    packages = Path("/usr/lib/python3/dist-packages")
    for name in ("psutil", "pyroute2", "systemd"):
        if (packages / name).is_dir():
            shutil.copytree(packages / name, _inside(root, packages / name), symlinks=True)
    shutil.copytree(AGENT / "writebackd", root / "agent/writebackd")
    shutil.copytree(AGENT.parent / "policies", root / "policies")
    executable = PYTHON.resolve()
    _copy(root, executable)
    (root / "usr/bin/python3").symlink_to(executable.name)
    modules = [str(path) for path in root.rglob("*.so")]
    for path in _needed([str(executable), *modules]):
        _copy(root, path)
    # Compiled before: a disk that hangs takes no __pycache__ either.
    subprocess.run(
        ["chroot", str(root), "/usr/bin/python3", "-m", "compileall", "-q", "/agent"],
        check=True, stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip


def command(root: Path, run: Path, data: Path, *options: str) -> List[str]:
    """The daemon's, with that root, `data` as /data, and `run` as /run, with systemd's socket."""
    return ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(root), str(run), str(data),
            "/usr/bin/python3", "-m", "writebackd.cli.daemon_main",
            "--runtime-dir", "/run/writebackd", *options]


def _inside(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _copy(root: Path, path: Path) -> None:
    target = _inside(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)


def _needed(executables: List[str]) -> Set[Path]:
    """Libraries by the names under which the loader looks for them."""
    text = subprocess.run(["ldd", *executables], capture_output=True, text=True).stdout
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    extra = re.findall(rf"(?:{'|'.join(map(re.escape, _LIBRARIES))}) .* => (/\S+)", cache)
    for path in extra:
        text += subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    found = set(re.findall(r"(/\S+) \(0x", text)) | set(extra)
    return {Path(name) for name in found if not name.startswith(str(executables[-1]))}
