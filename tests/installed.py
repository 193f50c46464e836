# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make install` makes of this checkout, in a directory of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PARTS = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md",
         "SECURITY.md",
         "pyproject.toml", "setup.cfg", "agent", "bpf", "docs", "policies", "systemd")


def make_install(tmp_path: Path) -> Path:
    """The tree below DESTDIR; takes about 3 s, with the probe as it lies in the checkout.

    From a copy, since pip builds in the directory that it installs from.
    """
    checkout, tree = tmp_path / "checkout", tmp_path / "installed"
    checkout.mkdir()
    for part in PARTS:
        source = CHECKOUT / part
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, checkout / part)
    done = subprocess.run(
        ["make", "-s", "install", f"DESTDIR={tree}"], cwd=checkout, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return tree
