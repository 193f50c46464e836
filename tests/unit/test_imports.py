# SPDX-License-Identifier: GPL-2.0-or-later
"""The import rules hold, and they can fail: each is broken once in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from checkout import ROOT, copy_checkout

VIOLATIONS = {
    "by a detour": ("control/law.py", "from writebackd.policy import load"),
    "against the direction": ("kernel/vm.py", "from writebackd.report import snapshot"),
}


def lint(checkout: Path) -> "tuple[int, str]":
    linter = shutil.which("lint-imports")
    if not linter:
        pytest.skip("lint-imports is missing: agent/setup.sh test installs it")
    result = subprocess.run(
        [linter, "--no-logo", "--no-cache", "--config", str(checkout / "setup.cfg")],
        # The working directory is first on lint-imports' path, before an installed package.
        cwd=checkout / "agent",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return result.returncode, result.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("imports") / "checkout")


@pytest.mark.parametrize("module, line", VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_rules_can_be_broken(module: str, line: str, checkout: Path) -> None:
    path = checkout / "agent" / "writebackd" / module
    text = path.read_text()
    path.write_text(re.sub(r"(?m)^(from __future__ .*)$", rf"\1\n{line}  # noqa", text, count=1))
    assert path.read_text() != text
    try:
        code, output = lint(checkout)
    finally:
        path.write_text(text)
    assert code == 1, output
    assert "0 broken" not in output


def test_memory_has_one_writer() -> None:
    """Commands, reports and the executor leave it to the daemon, which writes it in the tick."""
    agent = ROOT / "agent/writebackd"
    writers = [
        str(path.relative_to(agent)) for path in agent.rglob("*.py")
        if re.search(r"\.memory = ", path.read_text())
    ]  # fmt: skip
    assert writers == ["daemon.py"]
