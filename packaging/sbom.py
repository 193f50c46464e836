# SPDX-License-Identifier: GPL-2.0-or-later
"""The SBOM of a release: every file of the wheel, and what has to be there to run it, as CycloneDX.

Debian's and rpm's packages hold the same files, and in addition what is written in the checkout:
units, manual, completions.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

LICENSE = [{"expression": "GPL-2.0-or-later"}]
# name, license, purl, needed or not, what for
RUNTIME = (
    ("python3", "PSF-2.0", "pkg:deb/debian/python3", True, "the interpreter, 3.9 or later"),
    ("libbpf", "LGPL-2.1-only OR BSD-2-Clause", "pkg:deb/debian/libbpf1", True, "loads the probe"),
    ("psutil", "BSD-3-Clause", "pkg:pypi/psutil", False, "writebackctl top"),
    ("pyroute2", "Apache-2.0 OR GPL-2.0-or-later", "pkg:pypi/pyroute2", False, "writebackctl top"),
    ("rich", "MIT", "pkg:pypi/rich", False, "writebackctl top"),
    ("bcc", "Apache-2.0", "pkg:deb/debian/python3-bpfcc", False, "the probe without BTF"),
)


def cyclonedx(
    wheel: Path, compiler: str, epoch: int, bundled: Sequence[Tuple[str, str, str, str]] = ()
) -> str:
    """JSON of CycloneDX 1.5; the same wheel gives the same text.

    `bundled`: name, version, license and purl of the libraries that are compiled into the wheel.
    """
    name, version = wheel.name.split("-")[:2]
    content = wheel.read_bytes()
    own = f"{name}@{version}"
    parts = [*_files(wheel, compiler), *(_dependency(*each) for each in RUNTIME)]
    parts += [{**_dependency(part, license_, purl, True, "in libbpf.so.1"), "version": number}
              for part, number, license_, purl in bundled]  # fmt: skip
    return json.dumps({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, _sha256(content)).urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).isoformat(),
            "component": {
                "type": "application", "bom-ref": own, "name": name, "version": version,
                "licenses": LICENSE, "hashes": [_hash(content)],
            },
        },
        "components": parts,
        "dependencies": [{"ref": own, "dependsOn": [each[2] for each in RUNTIME if each[3]]}],
    }, indent=2) + "\n"  # fmt: skip


def _files(wheel: Path, compiler: str) -> List[Dict[str, Any]]:
    found = []
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            part: Dict[str, Any] = {
                "type": "file", "bom-ref": name, "name": name, "licenses": LICENSE,
                "hashes": [_hash(archive.read(name))],
            }  # fmt: skip
            if name.endswith(".bpf.o"):
                part["properties"] = [{"name": "compiler", "value": compiler}]
            found.append(part)
    return found


def _dependency(name: str, license_: str, purl: str, needed: bool, use: str) -> Dict[str, Any]:
    return {
        "type": "library", "bom-ref": purl, "name": name, "purl": purl, "description": use,
        "scope": "required" if needed else "optional", "licenses": [{"expression": license_}],
    }  # fmt: skip


def _hash(content: bytes) -> Dict[str, str]:
    return {"alg": "SHA-256", "content": _sha256(content)}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
