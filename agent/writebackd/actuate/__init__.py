# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the limits, reads them back, and brings home what was found."""
