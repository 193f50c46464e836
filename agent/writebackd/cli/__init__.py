# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands: one module per verb or small group, imported when used."""
