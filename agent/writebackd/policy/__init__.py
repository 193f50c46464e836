# SPDX-License-Identifier: GPL-2.0-or-later
"""Policy files: found, merged with their drop-ins, checked with file and line."""

from __future__ import annotations

from .load import PolicyEntry, check, list_policies, load_files, load_policy, render
from .schema import DevicePolicy, Policy, PolicyError

__all__ = [
    "DevicePolicy",
    "Policy",
    "PolicyEntry",
    "PolicyError",
    "check",
    "list_policies",
    "load_files",
    "load_policy",
    "render",
]
