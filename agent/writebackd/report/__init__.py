# SPDX-License-Identifier: GPL-2.0-or-later
"""What the agent tells people: status, history, control socket."""
