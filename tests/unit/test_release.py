# SPDX-License-Identifier: GPL-2.0-or-later
"""One version, and a bill of materials that tells what a wheel holds."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest

from checkout import ROOT
from writebackd import __version__

sys.path.append(str(ROOT / "packaging"))
import sbom

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
