# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns samples into estimates of each device.  Pure: no clock, file or kernel access."""
