# SPDX-License-Identifier: GPL-2.0-or-later
"""The law and what follows from it: estimates in, a decision out.  Pure: no clock, no file."""
