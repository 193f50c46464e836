# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon for hours: does it grow, does it lose descriptors, is its history bounded."""
