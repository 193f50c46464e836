# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernels that are tried, by the Debian suite that has them; versions follow from there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from .fetch_kernel import KernelUnavailable, fetch
from .machine import MachineMissing, check_host


@dataclass(frozen=True)
class Kernel:
    """suite: Debian's name. hooks: the kinds of hook on fsync that it should take.

    lacks: what its tests may be skipped for, in their words.
    """

    suite: str
    hooks: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    @property
    def settings(self) -> Mapping[str, str]:
        """What the guest's tests may expect: they fail there, not skip, without it."""
        expected = {f"WRITEBACKD_EXPECT_{each.upper()}": "1" for each in self.hooks}
        return {"WRITEBACKD_VM": "1", **expected}


NO_LIMITS_PER_DEVICE = ("this kernel has no limits in bytes per device",)
# Oldest first: 5.10, 6.1, 6.12, and whatever is newest. 5.10 takes nothing of a module, as ext4 is
# one, but kprobes.
KERNELS = (
    Kernel("bullseye", ("kprobe",), NO_LIMITS_PER_DEVICE),
    Kernel("bookworm", ("fentry", "tp_btf", "kprobe"), NO_LIMITS_PER_DEVICE),
    Kernel("trixie", ("fentry", "tp_btf", "kprobe")),
    Kernel("sid", ("fentry", "tp_btf", "kprobe")),
)


def of_suite(suite: str) -> Kernel:
    return next(each for each in KERNELS if each.suite == suite)


def fetched(suite: str) -> Path:
    """Image of a suite's kernel; without it a skip, or a failure with WRITEBACKD_REQUIRE_VM."""
    if os.geteuid() != 0:
        return missing("virtual machines with a root guest need root")
    try:
        check_host()
        return fetch(suite=suite)
    except (MachineMissing, KernelUnavailable) as error:
        return missing(f"no kernel of {suite}: {error}")


def missing(reason: str) -> Path:
    if os.environ.get("WRITEBACKD_REQUIRE_VM"):
        pytest.fail(reason)
    pytest.skip(reason)


def left_out(what: str) -> None:
    """A warning, and a line below the gate's tests: see LEFT_OUT in tests/run."""
    warnings.warn(what, stacklevel=2)
    path = os.environ.get("LEFT_OUT")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            print(what, file=file)
