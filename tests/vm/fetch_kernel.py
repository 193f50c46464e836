# SPDX-License-Identifier: GPL-2.0-or-later
"""Fetch a Debian kernel and unpack it where a virtual machine can boot it.

Nothing is installed: the package is unpacked into a cache directory, its modules stay beside it,
and the host's /boot and /lib/modules are left alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
ARCHITECTURE = "amd64"
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LISTS_LAST_S = 86400.0
STORAGE_PACKAGES = (
    "mdadm", "lvm2", "libdevmapper-event1.02.1", "cryptsetup-bin", "libcryptsetup12", "libpopt0",
)  # fmt: skip
# depmod lives in sbin, which an unprivileged or CI shell may not have in its path.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class KernelUnavailable(Exception):
    """The kernel could not be fetched or unpacked; the text says what to do."""


def cache_dir() -> Path:
    """Directory that keeps unpacked kernels: WRITEBACKD_VM_CACHE, else build/vm."""
    return Path(os.environ.get("WRITEBACKD_VM_CACHE") or CHECKOUT / "build" / "vm").absolute()


def parse_depends(text: str, architecture: str = ARCHITECTURE) -> str:
    """Name of the image that a kernel meta package stands for, from `apt-cache depends`.

    Virtual packages (in angle brackets) and cloud or rt flavours do not match: 6.1 is
    linux-image-6.1.0-56-amd64, 6.12 is linux-image-6.12.57+deb13-amd64.
    """
    name = rf"linux-image-\d[\w.+~-]*-{architecture}"
    match = re.search(rf"^\s*\|?Depends: ({name})\s*$", text, re.MULTILINE)
    if match is None:
        raise KernelUnavailable(
            f"apt knows no kernel behind linux-image-{architecture}: "
            "run `apt-get update`, on a Debian amd64 host"
        )
    return match.group(1)


def parse_parts(package: str, text: str) -> list[str]:
    """Packages that hold a kernel, from `apt-cache depends` of its image.

    In newer suites the image is empty: the kernel is in linux-binary-*, modules in linux-modules-*.
    """
    return re.findall(r"^\s*Depends: (linux-(?:binary|modules)-\S+)$", text, re.M) or [package]


def parse_uri(text: str) -> str:
    """File name that `apt-get download --print-uris` announces, without `.deb`."""
    match = re.match(r"'[^']+' (\S+)\.deb ", text)
    if match is None:
        raise KernelUnavailable(f"apt offers no download: {text.strip() or 'no answer'}")
    return match.group(1)


def fetch(
    package: str | None = None, suite: str | None = None, architecture: str = ARCHITECTURE
) -> Path:
    """Unpack a kernel package once and return its image.

    package: Debian package name; without it the suite's current default kernel.
    suite: Debian's name of it; without it what the host's apt is set up for. architecture: another
    than the host's needs a suite.
    The modules are under lib/modules of the same tree, with their dependency lists, where
    virtme-ng looks for them. Raises KernelUnavailable.
    """
    options = _apt_of(suite, architecture)
    if package is None:
        depends = _run("apt-cache", *options, "depends", f"linux-image-{architecture}")
        package = parse_depends(depends, architecture)
    parts = parse_parts(package, _run("apt-cache", *options, "depends", package))
    return _image(fetch_packages(parts, _finish_kernel, options))


def fetch_bcc(kernel: Path, suite: str | None = None) -> list[Path]:
    """Unpack bcc's Python module and library, and the headers of a kernel, once each.

    kernel: its image, of `suite` as in fetch(). bcc is the host's: what it depends on, LLVM's
    libraries, comes with clang. Raises KernelUnavailable.
    """
    options = _apt_of(suite)
    headers = f"linux-headers-{_release(kernel)}"
    depends = _run("apt-cache", *options, "depends", headers)
    common = re.findall(r"Depends: (linux-headers-\S+-common\S*)", depends)
    bcc = [fetch_packages([each]) for each in ("python3-bpfcc", "libbpfcc")]
    return [*bcc, *(fetch_packages([each], options=options) for each in (headers, *common))]


def fetch_packages(
    packages: Sequence[str],
    finish: Callable[[Path], object] = lambda tree: None,
    options: Sequence[str] = (),
) -> Path:
    """Unpack packages once into one tree, named like the first, and return it.

    finish completes the tree, options are apt's. Raises KernelUnavailable.
    """
    name = parse_uri(_run("apt-get", *options, "download", "--print-uris", packages[0]))
    root = cache_dir() / name
    if not root.is_dir():
        _unpack(packages, root, finish, options)
    return root


def fetch_root(packages: Sequence[str], suite: str, architecture: str) -> Path:
    """Unpack packages and all that they depend on once, and return the tree.

    No script of theirs runs: users are Debian's own, and there are no alternatives.
    """
    options = _apt_of(suite, architecture)
    install = ["install", "-y", "--no-install-recommends", "--print-uris", *packages]
    names = re.findall(r"^'[^']+' (\S+)\.deb ", _run("apt-get", *options, *install), re.MULTILINE)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    root = cache_dir() / f"root-{suite}-{architecture}-{digest[:12]}"
    if not root.is_dir():
        _unpack([name.partition("_")[0] for name in names], root, _add_users, options)
    return root


def _release(kernel: Path) -> str:
    """What uname -r says of an image: boot/vmlinuz-RELEASE or usr/lib/modules/RELEASE/vmlinuz."""
    return kernel.name.partition("-")[2] or kernel.parent.name


def _finish_kernel(tree: Path) -> None:
    _join_module_dirs(tree)
    for modules in (tree / "lib" / "modules").iterdir():
        _run("depmod", "-b", str(tree), modules.name)
    _image(tree)


def fetch_storage_tools() -> list[Path]:
    """Unpack the tools of md, LVM and dm-crypt with what else they need, once each.

    They are not installed: their packages would start services, and watch the host's disks.
    """
    return [fetch_packages([each]) for each in STORAGE_PACKAGES]


def _own_suite() -> str:
    """The host's, by Debian's name; its apt may know of newer packages, from other mirrors."""
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line).get(
        "VERSION_CODENAME", ""
    )


def _add_users(tree: Path) -> None:
    for name in ("passwd", "group"):
        shutil.copy(tree / f"usr/share/base-passwd/{name}.master", tree / f"etc/{name}")


def _apt_of(suite: str | None, architecture: str = ARCHITECTURE) -> list[str]:
    """Options by which apt reads other package lists, none for the host's own suite.

    Those of the host stay as they are. The others are fetched once a day: a suite that moves takes
    old packages away. As apt sees it, nothing of another architecture is installed.
    """
    if architecture == ARCHITECTURE and suite in (None, _own_suite()):
        return []
    foreign = architecture != ARCHITECTURE
    state = cache_dir() / (f"apt-{suite}-{architecture}" if foreign else f"apt-{suite}")
    lists = state / "lists"
    options = [
        *("-o", f"Dir::Etc::sourcelist={state}/sources.list", "-o", "Dir::Etc::sourceparts=-"),
        *("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={state}"),
        *("-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none"),
    ]
    if foreign:
        for each in ("Architecture", "Architectures"):
            options += ["-o", f"APT::{each}={architecture}"]
        options += ["-o", "Dir::State::status=/dev/null"]
    sources = state / "sources.list"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    with open(state / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once
        _update_lists(suite, lists, sources, options)
    return options


def _update_lists(
    suite: str | None, lists: Path, sources: Path, options: Sequence[str]
) -> None:
    known = bool(list(lists.glob("*_Packages*")))
    if not known or time.time() - sources.stat().st_mtime > LISTS_LAST_S:
        if not sources.exists():
            sources.write_text(f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n")
        try:
            _run("apt-get", "-qq", "--error-on=any", *options, "update")
        except KernelUnavailable as error:
            if not known:
                raise
            print(f"{error}; going on with the lists of {suite} that are there", file=sys.stderr)
        else:
            sources.touch()


def _unpack(
    packages: Sequence[str], root: Path, finish: Callable[[Path], object], options: Sequence[str]
) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    # A tree is complete or absent: two test runs at once, or one that was interrupted, must not
    # leave half a set of modules under the final name.
    work = Path(tempfile.mkdtemp(prefix="unpack-", dir=root.parent))
    try:
        download = ["-qq", "-o", "APT::Sandbox::User=root", *options, "download", *packages]
        _run("apt-get", *download, cwd=work)
        tree = work / "root"
        for archive in work.glob("*.deb"):
            _run("dpkg-deb", "-x", str(archive), str(tree))
        finish(tree)
        try:
            tree.rename(root)
        except OSError:
            if not root.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _join_module_dirs(tree: Path) -> None:
    """Make lib/modules and usr/lib/modules one directory.

    Debian 12 packages ship the former, Debian 13 the latter; kmod and virtme-ng each look in one.
    """
    old, new = tree / "lib" / "modules", tree / "usr" / "lib" / "modules"
    if not old.exists() and not new.exists():
        raise KernelUnavailable(f"the package holds no modules, only {os.listdir(tree)}")
    if not old.exists():
        old.parent.mkdir(exist_ok=True)
        old.symlink_to("../usr/lib/modules")
    elif not new.exists():
        new.parent.mkdir(parents=True, exist_ok=True)
        new.symlink_to("../../lib/modules")


def _image(root: Path) -> Path:
    images = sorted([*root.glob("boot/vmlinuz-*"), *root.glob("usr/lib/modules/*/vmlinuz")])
    if not images:
        raise KernelUnavailable(f"{root} holds no kernel image: remove it and try again")
    return images[0]


def _run(*argv: str, cwd: Path | None = None) -> str:
    program = shutil.which(argv[0], path=SEARCH_PATH)
    if program is None:
        raise KernelUnavailable(f"{argv[0]} is missing: a Debian host with apt and kmod is needed")
    # The patterns above match apt's words, which it translates.
    done = subprocess.run(
        [program, *argv[1:]],
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8", "PATH": SEARCH_PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise KernelUnavailable(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    try:
        print(fetch(sys.argv[1] if len(sys.argv) > 1 else None))
    except KernelUnavailable as error:
        sys.exit(str(error))
