# SPDX-License-Identifier: GPL-2.0-or-later
"""What the agent reports: answers, history, metrics, pages, control socket."""
