# SPDX-License-Identifier: GPL-2.0-or-later
"""The pure core in a closed loop with a model of host and disk: minutes in milliseconds."""
