# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent with another law than its own, to compare laws on a real kernel.

    python -m tests.lab.law LAW [options of writebackd]

Probe, estimates, rails and levers are the agent's; what decides is one of tests/sim/laws.py.
"""

from __future__ import annotations

import sys
from typing import Sequence

from tests.sim.laws import LAWS
from writebackd import daemon
from writebackd.cli.daemon import main as run


def main(argv: Sequence[str]) -> int:
    """The exit code of the agent."""
    vars(daemon)["decide"] = LAWS[argv[0]]()
    return run(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
