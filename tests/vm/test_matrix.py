# SPDX-License-Identifier: GPL-2.0-or-later
"""Every kernel and probe of the matrix; each run renews its record in results/."""

from __future__ import annotations

import os

import pytest

from .fetch_kernel import KernelUnavailable
from .kernels import missing
from .machine import MachineMissing
from .matrix import NAMES, renew


@pytest.mark.full("every storage, lever, probe and a flood on each kernel, some minutes each")
@pytest.mark.parametrize("name", NAMES)
def test_matrix(name: str) -> None:
    if os.geteuid() != 0:
        missing("virtual machines with a root guest need root")
    try:
        wrong = renew(name)
    except (KernelUnavailable, MachineMissing) as error:
        missing(str(error))
    assert wrong == []
