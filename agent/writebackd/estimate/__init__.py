# SPDX-License-Identifier: GPL-2.0-or-later
"""From what was read to what is believed.  Pure: no clock, no file, no kernel."""
