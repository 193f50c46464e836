# SPDX-License-Identifier: GPL-2.0-or-later
"""From samples to estimates of each device.  Pure: no clock, file or kernel."""
