# SPDX-License-Identifier: GPL-2.0-or-later
"""Benchmarks: they print figures, and docs/ quotes them with the command."""
