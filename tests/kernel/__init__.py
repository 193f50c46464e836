# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks on the running kernel; root, with disks made for the purpose."""
