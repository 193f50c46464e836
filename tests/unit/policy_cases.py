# SPDX-License-Identifier: GPL-2.0-or-later
"""Policy files in a directory of a test."""

from __future__ import annotations

from pathlib import Path

from writebackd.policy import load_policy
from writebackd.policy.schema import Policy


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))
    return path


def system(root: Path, top: str, name: str) -> Path:
    return root / top / "writebackd" / "policies.d" / name


def load_text(tmp_path: Path, text: str) -> Policy:
    return load_policy(str(write(tmp_path / "p.conf", text)))
