# SPDX-License-Identifier: GPL-2.0-or-later
"""Everything that touches /proc, /sys, bpf(2) or netlink."""
