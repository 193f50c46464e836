# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables of kernels, from the records of tests.vm.matrix, within pages written by hand."""

from __future__ import annotations

import re
from collections import Counter
from typing import Iterable, List, Mapping, Sequence

from tests.vm.records import CLAIMS, PASSED, Record

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_STORAGE = {"plain": "plain disk", "raid10": "md raid10", "lvm": "LVM", "crypt": "dm-crypt"}
_PROBES = {"bcc": ", BTF hidden", "procfs": ", no probe"}
_REQUESTS = "storage_cases.test_requests_equal_fio"
_SCHEDULED = f"{_REQUESTS}_under_each_scheduler"
_SYNCS = "storage_cases.test_syncs_are_exact"


def filled(text: str, records: Mapping[str, Record]) -> str:
    """A page with its tables made anew, between `<!-- table: NAME -->` and the end."""
    tables = {"proven": proven, "hooks": hooks, "storage": storage, "cost": cost,
              "flood": flood, "skipped": skipped}
    return _TABLE.sub(lambda found: found[1] + tables[found[2]](records) + found[3], text)


def proven(records: Mapping[str, Record]) -> str:
    """Kernels x what was proven."""
    return _table(
        ["kernel", "probe", *CLAIMS],
        ([_name(each), _probe(each),
          *(_cell(each.of_claim(claim).values()) for claim in CLAIMS)]
         for each in records.values()),
    )  # fmt: skip


def hooks(records: Mapping[str, Record]) -> str:
    return _table(
        ["kernel", "release", "tried", "requests", "fsync", "not visible"],
        ([_name(each), each.release, f"{each.date}, {each.place}", each.request_hook or "none",
          each.fsync_hook or "none", "; ".join(each.misses) or "-"]
         for each in records.values()),
    )  # fmt: skip


def storage(records: Mapping[str, Record]) -> str:
    """Requests and syncs on each storage, and requests under each scheduler, by kernel."""
    records = {name: each for name, each in records.items() if _REQUESTS in each.outcomes}
    stacks = [f"{kind}-{fstype}" for kind in _STORAGE for fstype in ("ext4", "xfs", "btrfs")]
    schedulers = ("none", "mq-deadline", "bfq", "kyber")
    rows = []
    for stack in stacks:
        kind, _, fstype = stack.partition("-")
        cells = []
        for each in records.values():
            synced = each.outcomes.get(_SYNCS, {})
            rows_of = [outcome for row, outcome in synced.items() if row.startswith(f"{stack}-")]
            cells.append(f"{_cell(_one(each, _REQUESTS, stack))}; {_cell(rows_of)}")
        rows.append([f"{_STORAGE[kind]}, {fstype}", *cells])
    for name in schedulers:
        cells = [_cell(_one(each, _SCHEDULED, name)) for each in records.values()]
        rows.append([f"scheduler {name}", *cells])
    return _table(["requests; syncs", *map(_name, records.values())], rows)


def cost(records: Mapping[str, Record]) -> str:
    """Instructions of the probe per block IO, where they were counted."""
    return _figures({_name(each): each.io_instructions for each in records.values()})


def flood(records: Mapping[str, Record]) -> str:
    """A flood without a probe."""
    return _figures({_name(each): each.flood for each in records.values()})


def skipped(records: Mapping[str, Record]) -> str:
    """What a kernel does not have or show, by the words of the tests."""
    rows = []
    for each in records.values():
        outcomes = (outcome for tests in each.outcomes.values() for outcome in tests.values())
        other = Counter(outcome for outcome in outcomes if outcome != PASSED)
        rows += [[_name(each), outcome.replace("|", "\\|"), str(count)]
                 for outcome, count in sorted(other.items())]  # fmt: skip
    return _table(["kernel", "why", "tests"], rows)


def _figures(of_kernels: Mapping[str, Mapping[str, float]]) -> str:
    """Kernels that have any x figures."""
    of_kernels = {name: figures for name, figures in of_kernels.items() if figures}
    heads = list(dict.fromkeys(head for figures in of_kernels.values() for head in figures))
    return _table(
        ["kernel", *heads],
        ([name, *(f"{figures[head]:g}" if head in figures else "not run" for head in heads)]
         for name, figures in of_kernels.items()),
    )  # fmt: skip


def _one(record: Record, test: str, row: str) -> List[str]:
    outcomes = record.outcomes.get(test, {})
    return [outcomes[row]] if row in outcomes else []


def _name(record: Record) -> str:
    version = re.match(r"\d+\.\d+", record.release)
    machine = "" if record.machine == "x86_64" else f", {record.machine}"
    probe = _PROBES.get(record.probe, "")
    return f"{version[0] if version else record.release} ({record.kernel}{machine}{probe})"


def _probe(record: Record) -> str:
    kinds = [part.partition(":")[0].strip() for part in (record.fsync_hook or "").split(";")]
    return f"{record.probe}: {', '.join(kinds)}" if record.fsync_hook else record.probe


def _cell(outcomes: Iterable[str]) -> str:
    """yes; `passed of all`, where some were skipped; no, where all were; what failed."""
    found: Sequence[str] = list(outcomes)
    failed = sum(outcome.startswith("failed") for outcome in found)
    passed = found.count(PASSED)
    if not found:
        return "not run"
    if failed:
        return f"**{failed} of {len(found)} failed**"
    if not passed:
        return "no"
    return "yes" if passed == len(found) else f"{passed} of {len(found)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
