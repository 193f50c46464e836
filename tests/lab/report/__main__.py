# SPDX-License-Identifier: GPL-2.0-or-later
"""python3 -m tests.lab.report DIRECTORY [-o FILE]: one page of HTML from a directory of runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import List

from .. import score
from ..remains import RigError
from ..show import FIGURES
from .evaluation import Run
from .page import write_report

SCHEMA = 1


def read_runs(directory: Path) -> List[Run]:
    """All runs in it, in the order of their names; RigError tells which file is none."""
    if not directory.is_dir():
        raise RigError(f"{directory}: no directory: name the one that tests.lab.bench wrote to")
    runs: List[Run] = []
    for path in sorted(directory.rglob("*.json")):
        if path.name == FIGURES:
            continue
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RigError(f"{path}: {error}: delete it and run tests.lab.bench again, which "
                           "does what is missing") from None
        if not isinstance(run, dict) or run.get("schema") != SCHEMA:
            raise RigError(f"{path}: no run of the lab of schema {SCHEMA}: move it elsewhere")
        runs.append(run)
    if not runs:
        raise RigError(f"{directory}: no runs in it (*.json): make some with tests.lab.bench")
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab.report",
                                     description="One page of HTML from a directory of runs.")
    parser.add_argument("directory", type=Path, help="where the runs are, one JSON each")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="where to write the page (DIRECTORY/report.html)")
    options = parser.parse_args()
    output = options.output or options.directory / "report.html"
    try:
        runs = read_runs(options.directory)
        write_report(score.evaluate(runs), output)
    except (RigError, OSError) as error:
        print(f"tests.lab.report: {error}", file=sys.stderr)
        return 1
    print(f"{output}: {len(runs)} runs, {output.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
