# SPDX-License-Identifier: GPL-2.0-or-later
"""Detects collapsed synchronous IO and its causes.  Pure."""
