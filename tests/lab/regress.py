# SPDX-License-Identifier: GPL-2.0-or-later
"""Ratios that were reached once, and whether they still are.

ratios.json holds {scenario: {ratio: value}}, a ratio written as in a scenario's
[expect]: `agent f / static-15M f`.  Larger is better in all of them.

`python3 -m tests.lab.regress DIRECTORY` stores what the runs in there reached.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from .evaluation import Evaluation
from .remains import RigError
from .scenario import parse_expectation
from .score import check, evaluate

FILE = Path(__file__).with_name("ratios.json")
TOLERANCE = 0.15

Ratios = Mapping[str, Mapping[str, float]]


def stored(path: Path = FILE) -> Ratios:
    """Raises RigError."""
    try:
        ratios: Ratios = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RigError(f"{path}: {error}") from None
    if not ratios or not all(value > 0 for each in ratios.values() for value in each.values()):
        raise RigError(f"{path}: a ratio that is not above 0 lets everything pass")
    return ratios


def compare(evaluation: Evaluation, runs: Sequence[Mapping[str, Any]],
            ratios: Ratios) -> List[str]:
    """A line for each stored ratio of the scenarios that were run; REGRESSED in the bad ones.

    A scenario without stored ratios, and a ratio that cannot be told, count as bad:
    otherwise a check would vanish with the thing it checks.
    """
    lines = []
    for scenario in evaluation.scenarios:
        of = [run for run in runs if run["scenario"] == scenario.name and run["error"] is None]
        if scenario.name not in ratios:
            lines.append(f"REGRESSED {scenario.name}: no ratios are stored for it")
        for text, value in ratios.get(scenario.name, {}).items():
            least = value * (1 - TOLERANCE)
            found = check(parse_expectation(f"{text} >= {least:.6f}"), scenario, of)
            lines.append(f"{'good     ' if found.ok else 'REGRESSED'} {scenario.name}: {text}: "
                         f"{found.value}, stored {value:.3g}")
    return lines


def measured(evaluation: Evaluation, runs: Sequence[Mapping[str, Any]],
             ratios: Ratios) -> Dict[str, Dict[str, float]]:
    """The same ratios with the values of these runs; RigError when one cannot be told."""
    found: Dict[str, Dict[str, float]] = {}
    for scenario in evaluation.scenarios:
        of = [run for run in runs if run["scenario"] == scenario.name and run["error"] is None]
        for text in ratios.get(scenario.name, {}):
            answer = check(parse_expectation(f"{text} >= 0"), scenario, of)
            if answer.ok is None:
                raise RigError(f"{scenario.name}: {text}: {answer.value}")
            found.setdefault(scenario.name, {})[text] = float(answer.value)
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python3 -m tests.lab.regress DIRECTORY, of one way's results",
              file=sys.stderr)
        return 2
    try:
        ratios: Ratios = json.loads(FILE.read_text(encoding="utf-8"))
        runs = [run for name in ratios for path in sorted(Path(sys.argv[1], name).glob("*.json"))
                for run in [json.loads(path.read_text(encoding="utf-8"))]]
        found = {**ratios, **measured(evaluate(runs), runs, ratios)}
    except (RigError, OSError, ValueError) as error:
        print(f"tests.lab.regress: {error}", file=sys.stderr)
        return 1
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
