# SPDX-License-Identifier: GPL-2.0-or-later
"""A trial on this host: the agent's limits against the originals, in alternating blocks."""
