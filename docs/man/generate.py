# SPDX-License-Identifier: GPL-2.0-or-later
"""generate.py SHARE: man pages and completions below a directory such as /usr/share.

Nothing of it is kept in the checkout, so nothing of it can be stale: options come from the
parsers, keys from the table of the policy, examples from the help.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "agent")]

import completions  # noqa: E402
import pages  # noqa: E402


def files() -> Dict[str, str]:
    """Every file by its path below the share directory."""
    return {
        "man/man1/writebackctl.1": pages.writebackctl_1(),
        "man/man8/writebackd.8": pages.writebackd_8(),
        "man/man8/writebackd-raid.8": pages.writebackd_raid_8(),
        "man/man5/writebackd.conf.5": pages.writebackd_conf_5(),
        "bash-completion/completions/writebackctl": completions.bash_writebackctl(),
        "zsh/site-functions/_writebackctl": completions.zsh(),
        "fish/vendor_completions.d/writebackctl.fish": completions.fish_writebackctl(),
        **{
            name.format(program): text
            for program in completions.WITHOUT_VERBS
            for name, text in (
                ("bash-completion/completions/{}", completions.bash_simple(program)),
                ("fish/vendor_completions.d/{}.fish", completions.fish_simple(program)),
            )
        },
    }


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: generate.py SHARE (such as /usr/share)", file=sys.stderr)
        return 2
    for name, text in files().items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main())
