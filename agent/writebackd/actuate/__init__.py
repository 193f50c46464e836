# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes limits and levers, reads them back, and restores the originals."""
