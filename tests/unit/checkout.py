# SPDX-License-Identifier: GPL-2.0-or-later
"""A copy of the checkout to build in: a test must not touch the object the agent may be using."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a build or an installation reads; build/ and generated files are not among it.
PARTS = (
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md",
    "SECURITY.md", "pyproject.toml", "setup.cfg", "agent", "bpf", "debian", "docs", "packaging",
    "policies", "systemd",
)  # fmt: skip


def copy_checkout(target: Path) -> Path:
    """The sources under `target`, without anything that an earlier build left."""
    generated = shutil.ignore_patterns("_bpf", "*.egg-info", "__pycache__", ".*_cache")
    target.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, symlinks=True, ignore=generated)
        else:
            shutil.copy2(source, target / part)
    return target


def files(*patterns: str) -> List[Path]:
    """Those of the checkout that git knows or would take, so nothing of build/."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, timeout=20, check=True,
    ).stdout.split("\0")  # fmt: skip
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def need_compiler() -> None:
    """Skip unless the probe can be compiled here."""
    sys.path.insert(0, str(ROOT / "bpf"))
    try:
        import build_backend
    finally:
        sys.path.remove(str(ROOT / "bpf"))
    problems = build_backend.missing()
    if problems:
        pytest.skip("; ".join(problems))


def run(argv: List[str], cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Output and exit code of a build command; its tools are this interpreter's."""
    return subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
