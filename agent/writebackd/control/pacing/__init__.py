# SPDX-License-Identifier: GPL-2.0-or-later
"""Pacing: io.max of flooding cgroups as an actuator of the law.  Pure."""
