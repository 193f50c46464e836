# SPDX-License-Identifier: GPL-2.0-or-later
"""writebackd keeps dirty pages where they do not starve synchronous IO."""

__version__ = "0.1.0"
