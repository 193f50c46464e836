# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns estimates into a decision: the law, rails, arbitration.  Pure: no clock, no file access."""
