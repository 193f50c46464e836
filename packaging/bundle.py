# SPDX-License-Identifier: GPL-2.0-or-later
"""libbpf for distributions that have none or an older one: one shared library for each machine.

libbpf, libelf and zlib are Debian's sources, verified by apt, compiled here for this machine and
crosswise for the other. It needs glibc 2.22 (August 2015), which is checked: what later versions
renamed is called by its system call. writebackd-libbpf as deb and rpm, and a wheel of each machine,
hold it; a system's own libbpf.so.1 is taken before it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Tuple

Run = Callable[[List[str], Path], None]

MIRROR = "http://deb.debian.org/debian"
SUITE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PLACE = "writebackd/_lib/libbpf.so.1"
# Debian's and Python's names of the machines, and the compiler.
MACHINES = (("amd64", "x86_64", "x86_64-linux-gnu-gcc"),
            ("arm64", "aarch64", "aarch64-linux-gnu-gcc"))  # fmt: skip
# source package, part of it that is compiled, licence
SOURCES = (
    ("libbpf", "libbpf", "LGPL-2.1-only OR BSD-2-Clause"),
    ("elfutils", "libelf", "GPL-2.0-or-later OR LGPL-3.0-or-later"),
    ("zlib", "zlib", "Zlib"),
)
# Hosts of rpm and pip have no /usr/share/common-licenses, at which Debian's copyright texts point.
LICENCES = (("libbpf", "LICENSE.LGPL-2.1"), ("elfutils", "COPYING-GPLV2"),
            ("elfutils", "COPYING-LGPLV3"), ("elfutils", "COPYING"))  # fmt: skip
ZLIB = ("adler32", "crc32", "inffast", "inflate", "inftrees", "zutil", "deflate", "trees",
        "compress", "uncompr", "gzclose", "gzlib", "gzread", "gzwrite")  # fmt: skip
FLAGS = ["-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections",
         "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-std=gnu99", "-w", "-D_GNU_SOURCE",
         "-DHAVE_CONFIG_H", "-DHAVE_UNISTD_H", "-DHAVE_STDARG_H"]
LINK = ["-shared", "-Wl,--gc-sections", "-Wl,-s", "-Wl,-z,now", "-Wl,-z,relro",
        "-Wl,-z,noexecstack", "-Wl,-soname,libbpf.so.1", "-Wl,--build-id=sha1"]  # fmt: skip
# What elfutils' configure finds on both machines, for libelf alone.
CONFIG = """#define PACKAGE_NAME "elfutils"
#define HAVE_VISIBILITY 1
#define HAVE_FALLTHROUGH 1
#define HAVE_STDATOMIC_H 1
#define HAVE_DECL_MEMRCHR 1
#define HAVE_DECL_RAWMEMCHR 1
#define HAVE_DECL_POWEROF2 1
#define HAVE_DECL_MEMPCPY 1
#define HAVE_DECL_REALLOCARRAY 1
#define HAVE_ERROR_H 1
#define HAVE_ERR_H 1
#define HAVE_MREMAP 1
#define SIZEOF_LONG 8
#include <eu-config.h>
"""
GLIBC = (2, 22)
# glibc 2.33 made fstat a function; before, it was an inline call of another.  Since 2.38 strtol and
# others are by default those of C23, under names of their own.
OLD_LIBC = """#include <features.h>
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static inline int old_fstat(int fd, struct stat *st) { return syscall(SYS_fstat, fd, st); }
#define fstat old_fstat
"""
CONTROL = """Package: writebackd-libbpf
Version: {version}
Architecture: {machine}
Maintainer: writebackd maintainers <maintainers@writebackd.example>
Section: libs
Priority: optional
Installed-Size: {size}
Depends: libc6 (>= 2.22)
Enhances: writebackd
Description: libbpf 1 for writebackd alone
 writebackd loads its probe with libbpf 1. Ubuntu 22.04, Debian 11 and others
 have none or an older one; this is {libbpf},
 with libelf and zlib in it, built from the sources of Debian. Where the
 system has a libbpf.so.1, that is used. No other program finds this one.
"""
OVERRIDES = """# A directory of its own, so that no other program can load it by accident.
writebackd-libbpf: repeated-path-segment *
# Never uploaded to Debian: no ITP to close.
writebackd-libbpf: initial-upload-closes-no-bugs *
"""
SPEC = """%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global source_date_epoch_from_changelog 0
Name: writebackd-libbpf
Version: {version}
Release: {release}
Summary: The libbpf 1 of writebackd alone
License: (LGPL-2.1-only OR BSD-2-Clause) AND (GPL-2.0-or-later OR LGPL-3.0-or-later) AND Zlib
Enhances: writebackd
# libbpf.so.1 is found by writebackd alone, and so is provided to nobody.
AutoProv: no
%description
writebackd loads its probe with libbpf 1. RHEL 8, SLES 15 and others have none
or an older one; this is {libbpf}, with libelf and
zlib in it, built from the sources of Debian. Where the system has a
libbpf.so.1, that is used.
%install
cp -a {tree}/. %{{buildroot}}
%files
%license /usr/share/doc/writebackd-libbpf/copyright
%dir /usr/share/doc/writebackd-libbpf
%dir /usr/lib/writebackd
%dir /usr/lib/writebackd/writebackd
/usr/lib/writebackd/writebackd/_lib
%changelog
* Thu Nov 26 2026 writebackd maintainers <maintainers@writebackd.example> - {version}-{release}
- Of the same release as writebackd.
"""


@dataclass(frozen=True)
class Sources:
    """Where the sources of each Debian package lie, and of which versions they are."""

    directories: Mapping[str, Path]
    versions: Mapping[str, str]

    def copyright(self, whole: bool = True) -> str:
        """`whole`: with the licences that are longer than a page."""
        parts = ["libbpf.so.1 of writebackd is made of these sources of Debian, unchanged, from",
                 f"{MIRROR} ({SUITE}):\n"]  # fmt: skip
        for name, _, licence in SOURCES:
            text = (self.directories[name] / "debian/copyright").read_text()
            parts.append(f"==== {name} {self.versions[name]}: {licence} ====\n\n{text}")
        for name, file in LICENCES if whole else ():
            text = (self.directories[name] / file).read_text()
            parts.append(f"==== {file} of {name} ====\n\n{text}")
        return "\n".join(parts)

    def components(self) -> List[Tuple[str, str, str, str]]:
        """Name, version, licence and purl of what the library is made of, for an SBOM."""
        return [
            (part, self.versions[name], licence,
             f"pkg:deb/debian/{name}@{self.versions[name]}?arch=source")
            for name, part, licence in SOURCES
        ]  # fmt: skip


def missing(path: str) -> List[str]:
    """What stands in the way of a bundle for any machine."""
    tools = {"apt-get": "apt", "dpkg-source": "dpkg-dev", "dpkg-deb": "dpkg"}
    lacking = [package for tool, package in tools.items() if not shutil.which(tool, path=path)]
    return lacking + ([] if KEYRING.exists() else ["debian-archive-keyring"])


def fetch(work: Path, run: Run) -> Sources:
    """The sources, by an apt of its own: the host's lists and sources stay as they are."""
    for name in ("lists/partial", "cache/archives/partial", "src"):
        (work / name).mkdir(parents=True)
    line = f"deb-src [signed-by={KEYRING}] {MIRROR} {SUITE} main\n"
    (work / "sources.list").write_text(line)
    options = {"Dir::State::Lists": work / "lists", "Dir::Cache": work / "cache",
               "Dir::Etc::SourceList": work / "sources.list", "APT::Sandbox::User": "root",
               "Dir::Etc::SourceParts": "/nonexistent"}  # fmt: skip
    apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
    run([*apt, "update"], work)
    names = [name for name, _, _ in SOURCES]
    run([*apt, "source", *names], work / "src")
    directories, versions = {}, {}
    for name in names:
        (description,) = (work / "src").glob(f"{name}_*.dsc")
        found = re.search(r"(?m)^Version: (\S+)$", description.read_text())
        assert found
        versions[name] = found[1]
        (directories[name],) = (path for path in (work / "src").glob(f"{name}-*") if path.is_dir())
    return Sources(directories, versions)


def compile_library(sources: Sources, compiler: str, work: Path, run: Run) -> Path:
    """The library for one machine; the sources are not changed."""
    bpf, elf, zlib = (sources.directories[name] for name, _, _ in SOURCES)
    work.mkdir()
    (work / "config.h").write_text(CONFIG)
    (work / "old_libc.h").write_text(OLD_LIBC)
    include = [f"-I{path}" for path in (
        work, elf / "libelf", elf / "lib", zlib, bpf / "include", bpf / "include/uapi")]
    files = [*sorted((bpf / "src").glob("*.c")), *sorted((elf / "libelf").glob("*.c")),
             *(zlib / f"{name}.c" for name in ZLIB)]  # fmt: skip
    for path in files:
        # Names of one source each: several have a `hash` or a `common`.
        made = work / f"{path.parent.parent.name}-{path.stem}.o"
        # assert() names its file: by its place among the sources, wherever these lie.
        run([compiler, *FLAGS, f"-fmacro-prefix-map={bpf.parent}/=",
             "-include", str(work / "old_libc.h"), *include, "-c", str(path),
             "-o", str(made)], work)  # fmt: skip
    library = work / "libbpf.so.1"
    objects = sorted(map(str, work.glob("*.o")))
    run([compiler, *LINK, f"-Wl,--version-script={bpf}/src/libbpf.map", "-o", str(library),
         *objects], work)  # fmt: skip
    run([compiler.replace("gcc", "strip"), "--remove-section=.comment", str(library)], work)
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library.read_bytes())
    newest = max((int(major), int(minor)) for major, minor in versions)
    if newest > GLIBC:
        raise SystemExit(f"dist: {library} needs glibc {newest[0]}.{newest[1]}: build on Debian 12")
    return library


def make_tree(sources: Sources, library: Path, tree: Path) -> None:
    """What both packages install."""
    target = tree / "usr/lib/writebackd" / PLACE
    document = tree / "usr/share/doc/writebackd-libbpf"
    for directory in (target.parent, document):
        directory.mkdir(parents=True)
    shutil.copy(library, target)
    target.chmod(0o644)
    (document / "copyright").write_text(sources.copyright())


def make_deb(tree: Path, sources: Sources, version: str, machine: str, epoch: int, out: Path,
             run: Run) -> None:  # fmt: skip
    own = tree.parent / "deb"
    shutil.copytree(tree, own)
    size = sum(path.stat().st_size for path in own.rglob("*") if path.is_file()) // 1024
    (own / "DEBIAN").mkdir()
    document = own / "usr/share/doc/writebackd-libbpf"
    (document / "copyright").write_text(sources.copyright(whole=False))
    (own / "DEBIAN/control").write_text(CONTROL.format(
        version=version, machine=machine, size=size, libbpf=sources.versions["libbpf"]))
    changes = Path(__file__).resolve().parents[1] / "debian/changelog"
    with gzip.GzipFile(document / "changelog.Debian.gz", "wb", 9, mtime=epoch) as file:
        file.write(changes.read_bytes().replace(b"writebackd (", b"writebackd-libbpf ("))
    (own / "usr/share/lintian/overrides").mkdir(parents=True)
    (own / "usr/share/lintian/overrides/writebackd-libbpf").write_text(OVERRIDES)
    files = sorted(path for path in own.rglob("*") if path.is_file() and "DEBIAN" not in path.parts)
    (own / "DEBIAN/md5sums").write_text("".join(
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(own)}\n"
        for path in files))
    run(["dpkg-deb", "--root-owner-group", "--build", str(own), str(out)], own.parent)


def make_rpm(tree: Path, sources: Sources, version: str, machine: str, out: Path,
             run: Run) -> None:  # fmt: skip
    number, _, release = version.partition("-")
    work = tree.parent / "rpm"
    work.mkdir()
    spec = work / "writebackd-libbpf.spec"
    spec.write_text(SPEC.format(version=number, release=release, tree=tree,
                                libbpf=sources.versions["libbpf"]))  # fmt: skip
    run(["rpmbuild", "-bb", "--quiet", "--target", f"{machine}-linux", "--define",
         f"_topdir {work}", "--define", "_buildhost reproducible", "--define",
         "use_source_date_epoch_as_buildtime 1", "--define",
         "clamp_mtime_to_source_date_epoch 1", str(spec)], work)  # fmt: skip
    (package,) = (work / "RPMS").rglob("*.rpm")
    shutil.move(str(package), out)


def make_wheel(wheel: Path, sources: Sources, library: Path, machine: str, epoch_time: Tuple[
    int, int, int, int, int, int
]) -> Path:  # fmt: skip
    """The common wheel with the library in it, for pip on this machine."""
    tag = f"py3-none-manylinux_2_22_{machine}"
    made = wheel.with_name(wheel.name.replace("py3-none-any", tag))
    extra = {PLACE: library.read_bytes(),
             "writebackd/_lib/COPYRIGHT": sources.copyright().encode()}  # fmt: skip
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        content: Dict[str, bytes] = {}
        for info in old.infolist():
            data = old.read(info.filename)
            if info.filename.endswith(".dist-info/WHEEL"):
                data = data.replace(b"py3-none-any", tag.encode()).replace(
                    b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
            content[info.filename] = data
        (record,) = (name for name in content if name.endswith(".dist-info/RECORD"))
        del content[record]
        content.update(extra)
        lines = []
        for name, data in content.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        content[record] = f"{''.join(lines)}{record},,\n".encode()
        for name, data in content.items():
            member = zipfile.ZipInfo(name, epoch_time)
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            new.writestr(member, data)
    return made
