# SPDX-License-Identifier: GPL-2.0-or-later
"""From what is believed to what shall be done.  Pure: no clock, no file, no kernel."""
