# SPDX-License-Identifier: GPL-2.0-or-later
"""What thousands of small tests would wait for: a directory's name, and collections of garbage."""

from __future__ import annotations

import gc
import re
import tempfile
from pathlib import Path

import pytest


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no later collection has to go through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, which reads the names of all directories to find the next number."""
    name = re.sub(r"\W", "_", request.node.name)[:12]
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=tmp_path_factory.getbasetemp()))
