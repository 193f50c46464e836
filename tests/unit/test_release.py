# SPDX-License-Identifier: GPL-2.0-or-later
"""One version, and a bill of materials that tells what a wheel holds."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Tuple

import pytest

from checkout import ROOT, run
from writebackd import __version__

sys.path.append(str(ROOT / "packaging"))
import dist
import roots
import sbom

UNITS = (".service", ".timer")
# Each names the version again, in a format of its own.
VERSIONS = {
    "debian/changelog": r"\Awritebackd \((.+)-\d+\) ",
    "packaging/writebackd.spec": r"(?m)^Version: +(.+)$",
    "packaging/PKGBUILD": r"(?m)^pkgver=(.+)$",
    "CHANGELOG.md": r"(?m)^## (\d.*)$",
}


@pytest.mark.parametrize("name", VERSIONS)
def test_every_package_has_the_program_s_version(name: str) -> None:
    # The newest comes first.
    assert re.findall(VERSIONS[name], (ROOT / name).read_text())[:1] == [__version__]


def test_the_readme_installs_in_three_lines_what_make_dist_builds() -> None:
    """Install, watch, start: on Debian as on Fedora; tests/vm/test_packages.py runs them."""
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"(?m)^.*On (Debian|Fedora)[^\n]*:\n\n((?:    .+\n)+)", readme)
    blocks = [(name, text.split("\n")[:-1]) for name, text in blocks if "install ./" in text]
    (version,) = re.findall(r"\Awritebackd \((.+)\)", (ROOT / "debian/changelog").read_text())
    packages = [f"./writebackd_{version}_all.deb", f"./writebackd-{version}.noarch.rpm"]
    assert [name for name, _ in blocks] == ["Debian", "Fedora"]
    for (_, lines), package in zip(blocks, packages):
        assert len(lines) == 3
        assert fnmatch.fnmatch(package, lines[0].split()[-1]), lines[0]


@pytest.mark.parametrize("name, begin, end", [
    ("debian/writebackd.prerm", "= remove", "#DEBHELPER#"),
    ("packaging/writebackd.spec", "\n%preun\n", "\n%postun\n"),
    ("packaging/writebackd.install", "pre_remove() {", "\n}"),
])  # fmt: skip
def test_a_removal_stops_every_unit(name: str, begin: str, end: str) -> None:
    script = (ROOT / name).read_text().partition(begin)[2].partition(end)[0]
    units = {path.name for path in (ROOT / "systemd").glob("*.*") if path.suffix in UNITS}
    assert len(units) == 7
    assert set(re.findall(r"writebackd[\w-]*(?:\.service|\.timer)", script)) == units
    assert "reset-failed 'writebackd*'" in script


def test_the_spec_s_changelog_ends_with_its_version() -> None:
    text = (ROOT / "packaging/writebackd.spec").read_text()
    (release,) = re.findall(r"(?m)^Release: +(\d+)", text)
    assert re.findall(r"(?m)^\* .* - (.+)$", text)[0] == f"{__version__}-{release}"


def test_the_sbom_names_every_file_and_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / f"writebackd-{__version__}-py3-none-any.whl"
    files = {"writebackd/__init__.py": b"", "writebackd/_bpf/writeback.x86_64.bpf.o": b"\x7fELF"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    text = sbom.cyclonedx(path, "clang 14 -O2", 1_800_000_000)
    assert text == sbom.cyclonedx(path, "clang 14 -O2", 1_800_000_000)
    bill = json.loads(text)
    parts = {each["name"]: each for each in bill["components"]}
    for name, content in files.items():
        assert parts[name]["hashes"][0]["content"] == hashlib.sha256(content).hexdigest()
    assert parts["writebackd/_bpf/writeback.x86_64.bpf.o"]["properties"][0]["value"][:5] == "clang"
    assert bill["metadata"]["component"]["version"] == __version__
    optional = {name for name, part in parts.items() if part.get("scope") == "optional"}
    assert optional == {"psutil", "pyroute2", "rich", "bcc"}
    assert {parts[name]["purl"] for name in ("python3", "libbpf")} == set(
        bill["dependencies"][0]["dependsOn"]
    )


def test_a_release_replaces_the_last_one_and_nothing_else(tmp_path: Path) -> None:
    where, beside = tmp_path / "dist", tmp_path / "beside"
    assert dist.last_release(where) == []
    where.mkdir()
    assert dist.last_release(where) == []
    names = ["writebackd-0.1.0.tar.gz", "../beside", str(beside)]
    (where / "SHA256SUMS").write_text("".join(f"{'0' * 64}  {name}\n" for name in names))
    (where / "notes").touch()
    assert dist.last_release(where) == [where / names[0], where / "SHA256SUMS"]


def test_a_directory_that_holds_no_release_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years")
    done = run([sys.executable, str(ROOT / "packaging/dist.py"), str(tmp_path)], ROOT)
    assert done.returncode == 1 and "not empty and has no SHA256SUMS" in done.stdout
    assert [path.read_text() for path in tmp_path.iterdir()] == ["years"]


def test_the_sdist_has_the_package_s_tests_and_not_the_checkout_s(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    source = dist.copy_sources(tmp_path / "source")
    environ = {**os.environ, "WRITEBACKD_BUILD_PROBE": "no"}
    sdist = dist.make_sdist(source, tmp_path, out, dist.changelog_epoch(), environ)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"debian/tests/control", "debian/tests/service"} <= names
    assert [name for name in names if name.split("/")[0] in dist.NOT_AT_TOP] == []


THEIRS, OURS, NONE = (f"doctor {said}" for _, said in roots.LIBRARIES.values())
PROBE, PROCFS = "status after 800 ms, libbpf", "status after 800 ms, procfs"
LEFT, NOT_ON_OFFER = "purge nothing left", f"install {roots.NOT_ON_OFFER}"


@pytest.mark.parametrize("suite, library, code, lines, good", [
    ("sid", "libbpf1", 0, (PROBE, THEIRS, LEFT), True),
    ("sid", "libbpf1", 1, (PROBE, THEIRS, LEFT), False),
    ("sid", "libbpf1", 0, (PROCFS, THEIRS, LEFT), False),
    ("sid", "libbpf1", 0, (PROBE, THEIRS), False),
    ("sid", "libbpf1", 0, (NOT_ON_OFFER,), False),
    ("bullseye", "libbpf1", 0, (NOT_ON_OFFER,), True),
    ("sid", "writebackd-libbpf", 0, (PROBE, OURS, LEFT), True),
    ("sid", "writebackd-libbpf", 0, (PROBE, THEIRS, LEFT), False),
    ("sid", "none", 0, (PROCFS, NONE, LEFT), True),
])  # fmt: skip
def test_a_root_is_good_if_it_says_what_its_library_gives(
    suite: str, library: str, code: int, lines: Tuple[str, ...], good: bool
) -> None:
    passed, row = roots.judged(suite, library, code, "\n".join(lines))
    assert (passed, row.endswith("FAILED")) == (good, not good)
