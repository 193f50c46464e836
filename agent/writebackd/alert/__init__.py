# SPDX-License-Identifier: GPL-2.0-or-later
"""Says so when synchronous IO collapses: the detector, which is pure, and where it is told."""
