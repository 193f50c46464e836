# SPDX-License-Identifier: GPL-2.0-or-later
"""Policy files: found, merged with their drop-ins, checked with file and line."""

from __future__ import annotations

from .load import check, list_policies, load_files, load_policy, render
from .schema import Policy, PolicyError

__all__ = [
    "Policy",
    "PolicyError",
    "check",
    "list_policies",
    "load_files",
    "load_policy",
    "render",
]
