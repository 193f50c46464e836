# SPDX-License-Identifier: GPL-2.0-or-later
"""dist.py DIR: a release in a directory: sdist, wheels, debs, rpms, SBOMs and SHA256SUMS.

The directory is a repository for apt and dnf as well, unsigned.

All but the sdist are built from the sdist, and every time in them is that of the last entry of
debian/changelog: the same sources and tools give the same bytes in any directory.  A package whose
tools are missing is left out, and a line says so.

A release in DIR is replaced: the files that its SHA256SUMS names, and no others.  A DIR that has
files and no SHA256SUMS is refused.
"""

from __future__ import annotations

import email.utils
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Set

import bundle
import sbom

ROOT = Path(__file__).resolve().parents[1]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOT_SOURCES = (".*", "_bpf", "*.egg-info", "__pycache__")
# At the top alone: debian/tests is the package's.
NOT_AT_TOP = {"build", "tests"}
PIP = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
SUMS = "SHA256SUMS"
REPODATA = "repodata"
SDIST = "import build_backend, sys; build_backend.build_sdist(sys.argv[1])"


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: dist.py DIR", file=sys.stderr)
        return 2
    where = Path(sys.argv[1]).resolve()
    last = last_release(where)
    os.umask(0o022)
    epoch = changelog_epoch()
    # Not the caller's Python and compilers, nor what steers them.
    environ = {"HOME": os.environ.get("HOME", "/"), "PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8",
               "SOURCE_DATE_EPOCH": str(epoch)}
    with tempfile.TemporaryDirectory(prefix="writebackd-dist-") as name:
        work = Path(name)
        out = work / "out"
        out.mkdir()
        source = copy_sources(work / "source")
        sdist = make_sdist(source, work, out, epoch, environ)
        tree = unpack(sdist, work / "wheel")
        run([sys.executable, *PIP, "wheel", "--no-build-isolation", "--no-deps", "-w", str(out),
             "."], tree, environ)  # fmt: skip
        if shutil.which("dpkg-buildpackage", path=SYSTEM_PATH):
            run(["dpkg-buildpackage", "-us", "-uc", "-b"], unpack(sdist, work / "deb"), environ)
            (package,) = (work / "deb").glob("*.deb")
            shutil.move(str(package), out)
        else:
            print("dist: no deb: dpkg-buildpackage is missing")
        if shutil.which("rpmbuild", path=SYSTEM_PATH):
            make_rpm(sdist, tree / "packaging" / "writebackd.spec", work / "rpm", out, environ)
        else:
            print("dist: no rpm: rpmbuild is missing")
        (wheel,) = out.glob("*.whl")
        compiler = (source / "build" / "bpf" / "config").read_text().strip()
        (out / f"{wheel.stem}.cdx.json").write_text(sbom.cyclonedx(wheel, compiler, epoch))
        make_bundles(wheel, work / "bundle", compiler, epoch, environ)
        recipe, digest = tree / "packaging" / "PKGBUILD", hashlib.sha256(sdist.read_bytes())
        text = recipe.read_text().replace("(SKIP)", f"('{digest.hexdigest()}')")
        (out / recipe.name).write_text(text)
        shutil.copy(tree / "packaging" / "writebackd.install", out)
        make_repositories(out, epoch, environ)
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
                for path in sorted(out.iterdir()) if path.is_file()]  # fmt: skip
        (out / SUMS).write_text("".join(sums))
        for path in last:
            path.unlink(missing_ok=True)
        if last:
            shutil.rmtree(where / REPODATA, ignore_errors=True)
        where.mkdir(parents=True, exist_ok=True)
        for path in sorted(out.iterdir()):
            shutil.move(str(path), where)
    print("".join(sums), end="")
    return 0


def last_release(where: Path) -> List[Path]:
    """The files of the release in a directory; ends the program where others are and none is."""
    if not where.exists() or not any(where.iterdir()):
        return []
    if not (where / SUMS).is_file():
        raise SystemExit(f"dist: {where} is not empty and has no {SUMS}: name another directory")
    names = re.findall(r"(?m)^[0-9a-f]{64}  (\w[^/\n]*)$", (where / SUMS).read_text())
    return [where / name for name in (*names, SUMS)]


def copy_sources(target: Path) -> Path:
    generated = shutil.ignore_patterns(*NOT_SOURCES)

    def ignored(directory: str, names: List[str]) -> Set[str]:
        return generated(directory, names) | (NOT_AT_TOP if directory == str(ROOT) else set())

    shutil.copytree(ROOT, target, symlinks=True, ignore=ignored)
    return target


def changelog_epoch() -> int:
    """Of the last entry of debian/changelog, in seconds."""
    dates = re.findall(r"(?m)^ -- .*>  (.*)$", (ROOT / "debian" / "changelog").read_text())
    return int(email.utils.parsedate_to_datetime(dates[0]).timestamp())


def make_sdist(
    source: Path, work: Path, out: Path, epoch: int, environ: Dict[str, str]
) -> Path:
    """setuptools', packed again: it takes times and modes from the checkout."""
    python_path = {**environ, "PYTHONPATH": str(source / "bpf")}
    run([sys.executable, "-c", SDIST, str(work)], source, python_path)
    (made,) = work.glob("*.tar.gz")
    top = unpack(made, work / "sdist")
    sdist = out / made.name
    with open(sdist, "wb") as file, gzip.GzipFile("", "wb", 9, file, epoch) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in (top, *sorted(top.rglob("*"))):
            member = archive.gettarinfo(str(path), str(path.relative_to(top.parent)))
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            if member.isfile():
                with open(path, "rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)
    return sdist


def unpack(sdist: Path, where: Path) -> Path:
    """Its one directory."""
    shutil.unpack_archive(sdist, where)
    (top,) = where.iterdir()
    return top


def make_rpm(sdist: Path, spec: Path, work: Path, out: Path, environ: Dict[str, str]) -> None:
    macros = {
        "_topdir": str(work), "_sourcedir": str(sdist.parent), "_buildhost": "reproducible",
        "use_source_date_epoch_as_buildtime": "1", "clamp_mtime_to_source_date_epoch": "1",
    }  # fmt: skip
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    # What is installed as a deb is not in rpm's data base.
    no_rpms = ["--nodeps"] if Path("/etc/debian_version").exists() else []
    run(["rpmbuild", "-bb", "--quiet", *no_rpms, *defines, str(spec)], work.parent, environ)
    (package,) = (work / "RPMS").rglob("*.rpm")
    shutil.move(str(package), out)


def make_bundles(
    wheel: Path, work: Path, compiler: str, epoch: int, environ: Dict[str, str]
) -> None:
    """libbpf for hosts that have none: a deb, an rpm and a wheel of each machine."""
    out = wheel.parent
    lacking = bundle.missing(SYSTEM_PATH)
    lacking += [gcc for _, _, gcc in bundle.MACHINES if not shutil.which(gcc, path=SYSTEM_PATH)]
    if lacking:
        print(f"dist: no writebackd-libbpf: {', '.join(lacking)} is missing")
        return

    def command(argv: List[str], cwd: Path) -> None:
        run(argv, cwd, environ)

    try:
        sources = bundle.fetch(work, command)
    except SystemExit as error:
        print(f"{error}\ndist: no writebackd-libbpf: Debian's sources cannot be had")
        return
    (version,) = re.findall(r"\A\S+ \((\S+)\)", (ROOT / "debian" / "changelog").read_text())
    moment = time.gmtime(epoch)[:6]
    for debian, machine, gcc in bundle.MACHINES:
        place = work / machine
        library = bundle.compile_library(sources, gcc, place, command)
        bundle.make_tree(sources, library, place / "tree")
        bundle.make_deb(place / "tree", sources, version, debian, epoch, out, command)
        if shutil.which("rpmbuild", path=SYSTEM_PATH):
            bundle.make_rpm(place / "tree", sources, version, machine, out, command)
        made = bundle.make_wheel(wheel, sources, library, machine, moment)
        text = sbom.cyclonedx(made, compiler, epoch, sources.components())
        (out / f"{made.stem}.cdx.json").write_text(text)


def make_repositories(out: Path, epoch: int, environ: Dict[str, str]) -> None:
    """The metadata of apt and dnf beside the packages; whoever serves them signs them."""
    for package in (*out.glob("*.deb"), *out.glob("*.rpm")):
        os.utime(package, (epoch, epoch))
    if shutil.which("apt-ftparchive", path=SYSTEM_PATH):
        (out / "Packages").write_text(run(["apt-ftparchive", "packages", "."], out, environ))
        # It has no option for the date.
        release = run(["apt-ftparchive", "release", "."], out, environ)
        date = email.utils.formatdate(epoch, usegmt=True).replace("GMT", "UTC")
        (out / "Release").write_text(re.sub(r"(?m)^Date: .*$", f"Date: {date}", release))
    else:
        print("dist: no metadata for apt: apt-ftparchive (apt-utils) is missing")
    if shutil.which("createrepo_c", path=SYSTEM_PATH):
        run(["createrepo_c", "--quiet", "--revision", str(epoch), "--set-timestamp-to-revision",
             "."], out, environ)  # fmt: skip
    else:
        print("dist: no metadata for dnf: createrepo_c is missing")


def run(argv: List[str], cwd: Path, environ: Dict[str, str]) -> str:
    """What the command printed; ends the program with that when it fails."""
    done = subprocess.run(
        argv, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise SystemExit(f"dist: {' '.join(argv[:4])} ended with {done.returncode}: see above")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
