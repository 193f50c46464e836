# SPDX-License-Identifier: GPL-2.0-or-later
"""Exit codes of the commands, and the error that carries one."""

from __future__ import annotations

GOOD = 0
BAD_NEWS = 1  # a check failed: verify found a difference, doctor a blocker
USAGE = 2  # wrong use or wrong configuration
NO_DAEMON = 3
NOT_PERMITTED = 4


class CommandError(Exception):
    """Ends a command with one line on stderr that says what to do, and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
