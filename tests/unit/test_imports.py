# SPDX-License-Identifier: GPL-2.0-or-later
"""Who may write what all decisions rest on; the import rules are those of setup.cfg."""

from __future__ import annotations

import re

from checkout import ROOT


def test_memory_has_one_writer() -> None:
    """Commands, reports and the executor leave it to the daemon, which writes it in the tick."""
    agent = ROOT / "agent/writebackd"
    writers = [
        str(path.relative_to(agent)) for path in agent.rglob("*.py")
        if re.search(r"\.memory = ", path.read_text())
    ]  # fmt: skip
    assert writers == ["daemon.py"]
