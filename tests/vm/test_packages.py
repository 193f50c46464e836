# SPDX-License-Identifier: GPL-2.0-or-later
"""The packages of `make dist`: the same bytes twice, clean for lintian, and a host's life with one.

A clean root of Debian, made by mmdebstrap, is booted with systemd in virtual time; inside,
package_life.py installs the package as the README says, and does all that is done to one until it
is purged.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, Set

import pytest

from tests.vm.inside import package_life

from . import image, sealed
from .fetch_kernel import CHECKOUT, MIRROR, SEARCH_PATH, KernelUnavailable, cache_dir, fetch
from .kernels import missing
from .machine import MachineMissing

INSIDE = Path(__file__).parent / "inside" / "package_life.py"
README = CHECKOUT / "README.md"
AUTOPKGTEST = CHECKOUT / "debian" / "tests" / "service"
SUITES = ("bookworm", "trixie")
# What `apt install` of the package takes along, on top of a Debian that boots.
INCLUDED = ("systemd", "systemd-sysv", "udev", "dbus", "kmod", "mount", "procps", "e2fsprogs",
            "libbpf1", "python3", "python3-psutil", "python3-pyroute2", "python3-rich")
MODULES = ("overlay", "sd_mod", "scsi_debug")
TOOLS = {"aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu", "apt-ftparchive": "apt-utils",
         "createrepo_c": "createrepo-c", "dpkg-buildpackage": "dpkg-dev", "dh_python3": "dh-python",
         "lintian": "lintian", "mmdebstrap": "mmdebstrap", "rpmbuild": "rpm", "rpmlint": "rpmlint",
         "dnf": "dnf"}  # fmt: skip
PYPROJECT = Path("/usr/share/dh-python/dhpython/build/plugin_pyproject.py")
# For dnf, which knows nothing of what a root has from elsewhere.
BASE = """Name: base
Version: 1
Release: 1
Summary: What the root has
License: GPL-2.0-or-later
BuildArch: noarch
Provides: /bin/sh, /usr/bin/python3, libbpf.so.1()(64bit), python3 = 3.13, systemd = 257
Provides: {libc}
%description
For tests.
%files
"""
# Where dnf and rpm keep records of any package.
RECORDS = ("var/lib", "var/cache", "var/log", "etc/dnf", "root/.rpmdb")
# Seconds of wall time.
TIME_LIMIT = 900.0
pytestmark = pytest.mark.full("builds the packages twice; three roots and six machines")


def run(*argv: str, cwd: Path = CHECKOUT, umask: int = 0o022) -> str:
    done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, umask=umask,
                          env={**os.environ, "PATH": SEARCH_PATH})  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def built(where: Path, umask: int) -> Dict[str, Path]:
    """What `make dist` leaves of a copy of the checkout, by the end of its name."""
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, names):
        if (CHECKOUT / name).exists() and not name.startswith("tests/"):
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, where / name, follow_symlinks=False)
    run("make", "dist", cwd=where, umask=umask)
    return {"".join(path.suffixes[-1:]): path for path in (where / "build/dist").iterdir()
            if path.is_file() and not re.search("libbpf|manylinux", path.name)}  # fmt: skip


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    lacking = {package for tool, package in TOOLS.items()
               if shutil.which(tool, path=SEARCH_PATH) is None}  # fmt: skip
    if not PYPROJECT.exists():
        lacking.add("pybuild-plugin-pyproject")
    if os.geteuid() != 0 or lacking:
        missing("needs root and apt-get install " + " ".join(sorted(lacking)))
    return built(tmp_path_factory.mktemp("dist") / "one", 0o022)


def test_two_builds_have_one_hash(dist: Dict[str, Path], tmp_path: Path) -> None:
    again = built(tmp_path / "another" / "place", 0o077)[".deb"].parent
    first, second = (
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
         for path in sorted(where.rglob("*")) if path.is_file()}
        for where in (dist[".deb"].parent, again)
    )  # fmt: skip
    assert len(re.findall(r"libbpf\S+(?:deb|rpm)|manylinux\S+whl", " ".join(first))) == 6
    assert first == second


def test_lintian_finds_nothing(dist: Dict[str, Path], tmp_path: Path) -> None:
    """In the package and in its source, for which the sdist is upstream's archive."""
    version = dist[".deb"].name.split("_")[1].rpartition("-")[0]
    shutil.copy(dist[".gz"], tmp_path / f"writebackd_{version}.orig.tar.gz")
    shutil.unpack_archive(dist[".gz"], tmp_path)
    run("dpkg-buildpackage", "-us", "-uc", "-S", "-d", cwd=tmp_path / f"writebackd-{version}")
    (source,) = tmp_path.glob("*.dsc")
    for path in (*dist[".deb"].parent.glob("*.deb"), source):
        assert run("lintian", "--allow-root", "-I", "--pedantic", str(path)) == "", path.name


def test_rpmlint_finds_nothing(dist: Dict[str, Path], tmp_path: Path) -> None:
    """In spec, SRPM and package at once: a filter that none of them needs is an error."""
    run("rpmbuild", "-ts", "--quiet", "--define", f"_topdir {tmp_path}", str(dist[".gz"]))
    (source,) = tmp_path.glob("SRPMS/*.src.rpm")
    said = run("rpmlint", "--rpmlintrc", "packaging/writebackd.rpmlintrc",
               "packaging/writebackd.spec", str(source),
               *map(str, dist[".rpm"].parent.glob("*.rpm")))  # fmt: skip
    assert " 0 errors, 0 warnings" in said, said


def unpacked(package: Path, where: Path) -> Path:
    where.mkdir()
    if package.suffix == ".deb":
        run("dpkg-deb", "-x", str(package), str(where))
    else:
        run("sh", "-c", f"rpm2cpio {package} | cpio -id --quiet", cwd=where)
    return where


@pytest.mark.parametrize("end", [".deb", ".rpm"])
def test_links_of_the_installed_manual_lead_somewhere(
    dist: Dict[str, Path], end: str, tmp_path: Path
) -> None:
    pages = sorted(unpacked(dist[end], tmp_path / "tree").rglob("*.md"))
    links = [(page, link) for page in pages
             for link in re.findall(r"\]\(([^)\s#]+)", page.read_text())
             if not re.match(r"https?:|mailto:", link)]  # fmt: skip
    assert len(links) > 100
    dead = [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert dead == []


def test_the_rpm_has_the_objects_of_the_deb(dist: Dict[str, Path], tmp_path: Path) -> None:
    """Stripped by no build script."""
    deb, rpm = unpacked(dist[".deb"], tmp_path / "deb"), unpacked(dist[".rpm"], tmp_path / "rpm")
    objects = sorted(deb.rglob("*.bpf.o"))
    assert len(objects) == 2
    for path in objects:
        other = rpm / path.relative_to(deb)
        assert other.read_bytes() == path.read_bytes(), path.name


def dnf(tree: Path, where: Path, line: str) -> str:
    """One command of the README, in a root; without repositories."""
    options = f"--installroot={tree} --disablerepo=* --setopt=reposdir=/nonexistent --assumeyes"
    command = line.replace("dnf", f"dnf {options}", 1)
    return run("sh", "-c", f"cd {where} && exec {command}")


def base_rpm(where: Path, library: Path) -> Path:
    needed = run("rpm", "-q", "--requires", "--package", str(library))
    libc = ", ".join(re.findall(r"(?m)^(?:ld-linux|libc|rtld).*", needed))
    (where / "base.spec").write_text(BASE.format(libc=libc))
    run("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {where}", str(where / "base.spec"))
    (package,) = where.rglob("*.noarch.rpm")
    return package


def put(package: Path, tree: Path, work: Path) -> str:
    """Installs into a root; what that says."""
    if package.suffix == ".deb":
        shutil.copy(package, tree / "tmp/package.deb")
        return run("chroot", str(tree), "dpkg", "-i", "/tmp/package.deb")
    (library,) = package.parent.glob("writebackd-libbpf-*.x86_64.rpm")
    dnf(tree, work, f"dnf install {base_rpm(work, library)}")
    dnf(tree, package.parent, f"dnf install ./{library.name}")
    install, *_ = package_life.commands(str(README), package_life.FEDORA)
    return dnf(tree, package.parent, install)


def seen(tree: Path) -> Set[str]:
    """Files, less records; of directories ours: Fedora has owners for the shared ones."""
    found = {str(path.relative_to(tree)) for path in tree.rglob("*")
             if "writebackd" in path.name or path.is_symlink() or not path.is_dir()}  # fmt: skip
    return {name for name in found if not name.startswith(RECORDS) or "writebackd" in name}


def test_dnf_installs_the_rpm_and_removes_it(dist: Dict[str, Path], tmp_path: Path) -> None:
    """In a root that systemd has not booted, where its scripts find nothing to stop.

    Its Python is newer than that of the build, and leaves compiled files of its own.
    """
    tree = tmp_path / "tree"
    tree.mkdir()
    run("tar", "-xf", str(root_of("trixie")), "-C", str(tree))
    before = seen(tree)
    said = put(dist[".rpm"], tree, tmp_path)
    assert "not enabled and not started" in said, said
    enabled = subprocess.run(["chroot", str(tree), "systemctl", "is-enabled", "writebackd"],
                             capture_output=True, text=True)  # fmt: skip
    assert enabled.stdout == "disabled\n", enabled
    assert run("rpm", f"--root={tree}", "-V", "writebackd") == ""
    version = dist[".rpm"].name.split("-")[1]
    listed = set(run("rpm", f"--root={tree}", "-ql", "writebackd").split())
    assert version in run("chroot", str(tree), "writebackctl", "version")
    compiled = (tree / "usr/lib/writebackd").rglob("*.pyc")
    assert {f"/{path.relative_to(tree)}" for path in compiled} - listed, "nothing compiled anew"
    dnf(tree, dist[".rpm"].parent, "dnf reinstall ./writebackd-*.noarch.rpm")
    run("chroot", str(tree), "systemctl", "enable", "writebackd")
    for name in ("var/lib/writebackd", "var/cache/writebackd"):
        (tree / name).mkdir()
        (tree / name / "state").touch()
    licences = (tree / "usr/share/doc/writebackd-libbpf/copyright").read_text()
    assert licences.count("TERMS AND CONDITIONS FOR COPYING") == 2 and "LESSER" in licences
    said = dnf(tree, tmp_path, "dnf remove writebackd writebackd-libbpf")
    assert "not restored" not in said, said
    left = sorted(seen(tree) - before)
    assert left == [], "\n".join(left)


def test_it_lives_in_roots_of_other_releases(dist: Dict[str, Path]) -> None:
    print(run("python3", "packaging/roots.py", str(dist[".deb"].parent)))


PLAY = """- hosts: localhost
  connection: local
  gather_facts: false
  roles:
    - role: writebackd
      writebackd_textfile_directory: /srv
      writebackd_options: --policy db-hwraid
      writebackd_service: false
"""
# Ansible needs /proc, and semaphores.
IN_ROOT = ("mount -t proc proc $0/proc; mount -t tmpfs tmpfs $0/dev/shm;"
           " exec chroot $0 env ANSIBLE_ROLES_PATH=/tmp LC_ALL=C.UTF-8"
           " ansible-playbook -i localhost, /tmp/play.yml")  # fmt: skip


def test_the_ansible_role_sets_what_it_says_and_nothing_twice(
    dist: Dict[str, Path], tmp_path: Path
) -> None:
    """In a root that systemd has not booted, where the package is installed already."""
    tree = tmp_path / "tree"
    tree.mkdir()
    run("tar", "-xf", str(root_of("bookworm", "ansible-core", "python3-apt")), "-C", str(tree))
    put(dist[".deb"], tree, tmp_path)
    shutil.copytree(CHECKOUT / "packaging/ansible/writebackd", tree / "tmp/writebackd")
    (tree / "tmp/play.yml").write_text(PLAY)
    for changed in ("changed=4 ", "changed=0 "):
        said = run("unshare", "--mount", "sh", "-ec", IN_ROOT, str(tree))
        assert changed in said and "failed=0 " in said, said
    site = (tree / "etc/writebackd/policies.d/all.conf.d/50-site.conf").read_text()
    assert site.split() == ["[policy]", "mode", "=", "observe", "[metrics]", "textfile", "=",
                            "/run/writebackd/host.prom"]  # fmt: skip
    assert 'OPTIONS="--policy db-hwraid"\n' in (tree / "etc/default/writebackd").read_text()
    assert os.readlink(tree / "srv/writebackd.prom") == "/run/writebackd/host.prom"


def root_of(suite: str, *more: str) -> Path:
    """A clean Debian as a tar, with more packages in it, made once."""
    place = cache_dir() / f"{'-'.join(('root', suite, *more))}.tar"
    if not place.exists():
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir()) as work:
            made = Path(work, "root.tar")
            included = ",".join((*INCLUDED, *more))
            run("mmdebstrap", "--variant=minbase", f"--include={included}", suite, str(made),
                MIRROR)  # fmt: skip
            made.rename(place)
    return place


@pytest.fixture(scope="module")
def kernel() -> Path:
    try:
        sealed.SealedMachine.check_tools()
        return fetch()
    except (MachineMissing, KernelUnavailable) as error:
        return missing(str(error))


def newer(package: Path, where: Path) -> Path:
    """The same one as another version, which says so."""
    tree = where / "newer"
    run("dpkg-deb", "-R", str(package), str(tree))
    control, init = tree / "DEBIAN/control", tree / "usr/lib/writebackd/writebackd/__init__.py"
    version = run("dpkg-deb", "-f", str(package), "Version").strip()
    upstream = version.rpartition("-")[0]
    for path in (control, init):
        text = path.read_text()
        assert upstream in text
        path.write_text(text.replace(upstream, f"{upstream}.1"))
    run("dpkg-deb", "-b", str(tree), str(where / "newer.deb"))
    return where / "newer.deb"


def make_root(suite: str, where: Path, *packages: Path) -> Path:
    """The image of a clean root; with these packages, enabled."""
    tree, root = where / "tree", where / "root"
    tree.mkdir()
    try:
        run("tar", "-xf", str(root_of(suite)), "-C", str(tree))
        (tree / str(CHECKOUT)[1:]).mkdir(parents=True)
        for package in packages:
            put(package, tree, where)
            run("chroot", str(tree), "systemctl", "enable", "writebackd")
        used = sum(path.lstat().st_blocks for path in tree.rglob("*")) * 512
        image.sparse(root, used * 5 // 4)
        image.format_image(root, "root", tree)
    finally:
        shutil.rmtree(tree)
    return root


def boot(kernel: Path, root: Path, share: Path, *words: str) -> None:
    machine = sealed.SealedMachine(kernel, root, modules=MODULES, systemd=True, writable=True,
                                   shift=0)  # fmt: skip
    for path in (INSIDE, README, AUTOPKGTEST):
        shutil.copy(path, share)
    command = ["python3", str(share / INSIDE.name), *words]
    result = machine.run(command, TIME_LIMIT, share=share)
    print(f"{result.output}\n{result.seconds:.0f} s")
    assert result.returncode == 0, result.output


@pytest.mark.parametrize("suite", SUITES)
def test_life_of_the_package(
    kernel: Path, dist: Dict[str, Path], suite: str, tmp_path: Path
) -> None:
    """Installed, flooded, reloaded, killed, upgraded, downgraded, removed, purged."""
    share = tmp_path / "share"
    share.mkdir()
    package = Path(shutil.copy(dist[".deb"], share))
    other = newer(package, tmp_path).rename(share / "newer.deb")
    root = make_root(suite, tmp_path)
    boot(kernel, root, share, str(share / README.name), str(package), str(other))


@pytest.mark.parametrize("end", [".deb", ".rpm"])
def test_it_starts_after_a_reboot(
    kernel: Path, dist: Dict[str, Path], end: str, tmp_path: Path
) -> None:
    share = tmp_path / "share"
    share.mkdir()
    boot(kernel, make_root("bookworm", tmp_path, dist[end]), share, "boot")


@pytest.mark.parametrize("suite, limit", [("bookworm", "90s"), ("trixie", "3s")])
def test_a_shutdown_drains_for_a_bounded_time(
    kernel: Path, dist: Dict[str, Path], suite: str, limit: str, tmp_path: Path
) -> None:
    """150 MB for a disk of 25 MB/s: within the unit's own limit, and not within one of 3 s."""
    share = tmp_path / "share"
    share.mkdir()
    root = make_root(suite, tmp_path, dist[".deb"])
    screen = f"/dev/{sealed.SealedMachine.OUTPUT}"
    boot(kernel, root, share, "shutdown", limit, str(share), screen)
