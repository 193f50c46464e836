# SPDX-License-Identifier: GPL-2.0-or-later
"""What runs inside of a machine with systemd; collected there, by name, and nowhere else."""
