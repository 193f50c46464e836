# SPDX-License-Identifier: GPL-2.0-or-later
"""What the agent is worth on this host, by experiment: its limits and those found in turn."""
