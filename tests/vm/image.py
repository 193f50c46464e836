# SPDX-License-Identifier: GPL-2.0-or-later
"""A root filesystem for a guest whose clock runs in virtual time, as one image file.

Such a clock jumps ahead whenever the processor waits, so a file that comes from the host takes
seconds on it, and other seconds each time. The guest has this image in its address space instead:
reading it is copying memory, which takes as long as its instructions do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .fetch_kernel import CHECKOUT, SEARCH_PATH

# Documentation, and what only a compiler reads.
_UNREAD = re.compile(r"/usr/share/(doc|man|locale|info|icons|lintian|bug)/|/usr/include/|/boot/")
_GRAIN = 128 << 20  # the kernel maps persistent memory in sections of this size
# Mountpoints of what the guest makes itself.
MOUNTPOINTS = ("dev", "proc", "sys", "run", "tmp", "var")
# Of the checkout: results and caches of other tools are megabytes nobody reads there.
_BUILT = ("venv", "lab", "bpf")


def make(image: Path, packages: Iterable[str], directories: Sequence[Path] = (),
         installed: Path | None = None) -> None:
    """Write an image with these Debian packages, what they depend on, /etc and the checkout.

    packages: those that are not installed are left out. directories: made empty, to mount on.
    installed: a tree whose files come on top.
    """
    with _packed(image, directories) as tree:
        for path in Path("/").iterdir():
            if path.is_symlink():
                _copy(path, tree)
        for line in _dpkg("-L", *closure(packages)).splitlines():
            # /etc is copied as a whole.
            if line.startswith("/") and not _UNREAD.match(line) and not line.startswith("/etc/"):
                _copy(Path(line), tree)
        _copy_rest(tree)
        if installed is not None:
            shutil.copytree(installed, tree, symlinks=True, dirs_exist_ok=True)


def make_from(root: Path, image: Path, directories: Sequence[Path] = ()) -> None:
    """Write an image with a root filesystem as fetch_root() leaves it, and the checkout."""
    def ignored(directory: str, names: list[str]) -> list[str]:
        inside = directory.removeprefix(str(root))
        return [name for name in names if _UNREAD.match(f"{inside}/{name}/")]

    with _packed(image, directories) as tree:
        shutil.copytree(root, tree, symlinks=True, ignore=ignored, dirs_exist_ok=True)


@contextlib.contextmanager
def _packed(image: Path, directories: Sequence[Path]) -> Iterator[Path]:
    """A tree with mountpoints and the checkout, which becomes the image."""
    tree = image.with_suffix(".tree")
    try:
        for name in (*MOUNTPOINTS, *(str(directory)[1:] for directory in directories)):
            (tree / name).mkdir(parents=True, exist_ok=True)
        _copy_checkout(tree)
        yield tree
        used = sum(path.lstat().st_blocks for path in tree.rglob("*")) * 512
        sparse(image, used * 5 // 4)
        format_image(image, "root", tree)
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def sparse(image: Path, size: int) -> None:
    """An empty file at least as large, in whole sections of memory."""
    with open(image, "wb") as file:
        file.truncate(-(-size // _GRAIN) * _GRAIN)


def format_image(image: Path, label: str, tree: Path) -> None:
    """Make it an ext4 with the contents of a directory."""
    mkfs = ["mkfs.ext4", "-q", "-b", "4096", "-L", label, "-O", "^has_journal", "-d", str(tree)]
    subprocess.run([*mkfs, str(image)], check=True, env={**os.environ, "PATH": SEARCH_PATH})


def closure(packages: Iterable[str]) -> list[str]:
    """Those of the packages that are installed, the essential ones, and all they depend on."""
    depends: dict[str, list[list[str]]] = {}
    provided: dict[str, str] = {}
    todo = list(packages)
    fields = "\t".join(["${Package}", "${Essential}", "${Provides}", "${Pre-Depends}, ${Depends}",
                        "${db:Status-Status}\n"])
    for line in _dpkg("-W", "-f", fields).splitlines():
        name, essential, provides, needs, status = line.split("\t")
        if status != "installed":
            continue
        depends[name] = [_names(each, "|") for each in needs.split(",")]
        provided.update((each, name) for each in _names(provides, ","))
        if essential == "yes":
            todo.append(name)
    found: set[str] = set()
    while todo:
        word = todo.pop()
        package = word if word in depends else provided.get(word)
        if package is None or package in found:
            continue
        found.add(package)
        for choices in depends[package]:
            todo += [name for name in choices if name in depends or name in provided][:1]
    return sorted(found)


def _names(text: str, separator: str) -> list[str]:
    """Package names of a list, without versions and architectures."""
    return [word.split()[0].split(":")[0] for word in text.split(separator) if word.strip()]


def _dpkg(*argv: str) -> str:
    return subprocess.run(["dpkg-query", *argv], check=True, capture_output=True, text=True).stdout


def _copy(path: Path, tree: Path) -> None:
    """One file or link to the place it really has: /bin/sh is in /usr/bin where that is merged."""
    place = tree / str(path.parent.resolve() / path.name)[1:]
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:  # removed by hand, or diverted
        return
    if place.is_symlink() or place.exists() or not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, place, follow_symlinks=False)


def _copy_rest(tree: Path) -> None:
    """What belongs to no package: configuration, alternatives, Python's compiled files."""
    secrets = shutil.ignore_patterns("shadow*", "gshadow*", "ssh", "private")
    shutil.copytree("/etc", tree / "etc", symlinks=True, ignore=secrets)
    for directory in ("/usr/bin", "/usr/sbin"):
        for path in Path(directory).iterdir():
            if path.is_symlink() and os.readlink(path).startswith("/etc/alternatives/"):
                _copy(path, tree)
    for library in (tree / "usr/lib").glob("python3*"):
        for source in list(library.rglob("*.py")):
            compiled = Path("/", source.relative_to(tree)).parent / "__pycache__"
            for path in compiled.glob(f"{source.stem}.*.pyc"):
                _copy(path, tree)


def _copy_checkout(tree: Path) -> None:
    build = (CHECKOUT / "build").resolve()  # a worktree may have it elsewhere

    def ignored(directory: str, names: list[str]) -> list[str]:
        if Path(directory).resolve() == build:
            return [name for name in names if name not in _BUILT]
        return [name for name in names if Path(directory) == CHECKOUT and name.startswith(".")]

    for source in [CHECKOUT] if CHECKOUT in build.parents else [CHECKOUT, build]:
        shutil.copytree(source, tree / str(source)[1:], symlinks=True, ignore=ignored,
                        dirs_exist_ok=True)
