# SPDX-License-Identifier: GPL-2.0-or-later
"""Matches policies to this host: scores their [match] rules and reports the evidence.

Pure, except `choose`, which reads the policies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Iterable, List, Literal, Optional, Sequence, Tuple

from writebackd.types.quantities import Number

from .keys import KEYS
from .load import DEFAULT_NAME, load_all, load_policy, misplaced, search_dirs, unsafe
from .rules import DiskFacts, HostFacts, Rule, bounds
from .schema import Policy
from .units import format_size

_COMM = 15  # of a process' name, what the kernel keeps
_UNIT = (".service", ".scope", ".slice")
_MOST_NAMED = 4  # disks and the like in a line of evidence
NAMED = "named by --policy"  # why a policy is in force that was not chosen here


@dataclass(frozen=True)
class Finding:
    rule: Annotated[str, Literal[
        "drivers", "cache", "rotational", "services", "virtualisation", "memory"
    ]]  # key of [match]
    wanted: str
    points: Number  # that it is worth
    holds: Optional[bool]  # None: the fact is not known, so no points
    evidence: str  # what was found on this host
    origin: str  # file:line of the rule


@dataclass(frozen=True)
class Verdict:
    """How well a policy fits; `points` of matching rules, `least` needed to fit."""

    name: str
    summary: str
    points: int
    least: int
    findings: Tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """A policy without rules has no points and needs some, so it never fits."""
        return self.points >= self.least

    @property
    def runs(self) -> bool:
        """Whether the services in its rules run."""
        return any(finding.rule == "services" and finding.holds for finding in self.findings)


@dataclass(frozen=True)
class Choice:
    """The policy for a host, and the scores of all policies, the best first."""

    policy: Policy
    verdicts: Tuple[Verdict, ...]
    skipped: Tuple[str, ...] = ()  # errors of policies that this host does without

    @property
    def runner_up(self) -> Optional[Verdict]:
        """The policy with the next most points, fitting or not."""
        others = [one for one in self.verdicts if one.name != self.policy.name and one.points]
        return others[0] if others else None


def judge(policy: Policy, facts: HostFacts) -> Verdict:
    """Points and evidence of one policy for a host with these facts."""
    findings = []
    for key in KEYS:
        rule = policy.value(key) if key.section == "match" else None
        if isinstance(rule, Rule):
            holds, evidence = _look(key.name, rule.words, facts, policy)
            origin = policy.origins[key.section, key.name]
            findings.append(Finding(key.name, str(rule), rule.points, holds, evidence, origin))
    points = sum(finding.points for finding in findings if finding.holds)
    return Verdict(policy.name, policy.summary, points, policy.match.least, tuple(findings))


def rank(verdicts: Iterable[Verdict]) -> Tuple[Verdict, ...]:
    """Best first: fitting ones, by points; ties by the points they need, then by name."""
    return tuple(
        sorted(verdicts, key=lambda each: (not each.fits, -each.points, -each.least, each.name))
    )


def choose(
    facts: HostFacts,
    config_dir: Optional[Path] = None,
    root: Path = Path("/"),
    before: Optional[str] = None,
) -> Choice:
    """The best match, else ``default``, with the reason in `policy.chosen`.

    `before` is the class taken earlier since the host booted: it counts as if its services ran,
    since a database that is down for a minute is no other host, unless another class fits by
    services that do run.

    A policy with an error is passed over (`Choice.skipped`). Raises PolicyError when it is the best
    match by what could be read of it, the one taken before, or ``default``. One whose files others
    may change is passed over in any case, since they might have written its rules; whether
    ``default`` is one of these is for the caller to ask.
    """
    every = load_all(config_dir, root)
    problems = {one.name: unsafe(one.policy.files) for one in every if one.name != DEFAULT_NAME}
    distrusted = {name: why for name, why in problems.items() if why}
    loaded = {one.name: one for one in every if one.name not in distrusted}
    for name in (DEFAULT_NAME, before):
        if name in loaded:
            loaded[name].valid()
    verdicts = [judge(one.policy, facts) for one in loaded.values()]
    if not any(verdict.fits and verdict.runs for verdict in verdicts):
        verdicts = [_with_services(one) if one.name == before else one for one in verdicts]
    verdicts = list(rank(verdicts))
    best = verdicts[0] if verdicts and verdicts[0].fits else None
    if best is not None:
        loaded[best.name].valid()
    wrong = [name for name, one in loaded.items() if one.problems]
    verdicts = [verdict for verdict in verdicts if verdict.name not in wrong]
    skipped = (
        *misplaced(search_dirs(config_dir, root)),
        *(line for name in wrong for line in loaded[name].problems),
        *dict.fromkeys(line for why in distrusted.values() for line in why),
    )
    if best is None:
        policy = load_policy(DEFAULT_NAME, config_dir, root)
    else:
        policy = loaded[best.name].policy
    kept = best is not None and best != judge(policy, facts)
    reason = f"{'kept from before: ' if kept else ''}{_reason(verdicts, best)}"
    # What is missing comes first: `status` has one line for it all.
    wrong = sorted([*wrong, *distrusted])
    missing = f"skipped because of errors: {_few(wrong)}; " if wrong else ""
    policy = replace(policy, chosen=missing + reason)
    return Choice(policy, tuple(verdicts), skipped)


def _reason(verdicts: Sequence[Verdict], best: Optional[Verdict]) -> str:
    if best is None:
        nearest = f"; nearest is {_score(verdicts[0])}" if verdicts and verdicts[0].points else ""
        return f"no policy fits this host{nearest}"
    held = [f"{f.evidence} +{f.points}" for f in best.findings if f.holds]
    reason = f"best match, {best.points} points: {'; '.join(held)}"
    others = [verdict for verdict in verdicts[1:] if verdict.fits]
    if others:
        tied = "tied with" if others[0].points == best.points else "next is"
        reason += f" ({tied} {_score(others[0])})"
    return reason


def _with_services(verdict: Verdict) -> Verdict:
    """The verdict with its services assumed to run, if nothing else is missing."""
    findings = tuple(
        replace(finding, holds=True, evidence=f"{finding.wanted} (not now)")
        if finding.rule == "services" and not finding.holds
        else finding
        for finding in verdict.findings
    )
    points = sum(finding.points for finding in findings if finding.holds)
    if verdict.fits or points < verdict.least:
        return verdict
    return replace(verdict, points=points, findings=findings)


def _score(verdict: Verdict) -> str:
    needed = "" if verdict.fits else f" of the {verdict.least} needed"
    return f"{verdict.name} with {verdict.points}{needed}"


def _look(
    name: str, words: Sequence[str], facts: HostFacts, policy: Policy
) -> Tuple[Optional[bool], str]:
    """Whether a rule matches, and the evidence."""
    if name == "memory":
        return _memory(words[0], facts.memory_bytes)
    if name == "services":
        return _services(words, facts, _only_watches(policy))
    if name == "virtualisation":
        return _virtualisation(words, facts)
    if name == "rotational":
        return _rotational(words == ("yes",), facts.fixed_disks)
    if name == "cache":
        return _any_disk("cache", [(disk.name, disk.cache) for disk in facts.fixed_disks], words)
    return _any_disk("driver", [(disk.name, disk.driver) for disk in facts.disks], words)


def _memory(word: str, memory: Optional[int]) -> Tuple[Optional[bool], str]:
    if memory is None:
        return None, "memory size unknown"
    low, high = bounds(word)
    fits = (low is None or memory >= low) and (high is None or memory <= high)
    return fits, f"{format_size(memory >> 20 << 20)} of memory"


def _only_watches(policy: Policy) -> bool:
    """Whether its own file says `observe`; in a drop-in that is a roll-out, not the class."""
    origin = Path(policy.origins["policy", "mode"].rpartition(":")[0])
    return policy.mode == "observe" and not origin.parent.name.endswith(".conf.d")


def _services(
    globs: Sequence[str], facts: HostFacts, only_units: bool
) -> Tuple[Optional[bool], str]:
    """`only_units`: a process' name, which anybody can give, shall not switch everything off."""
    if facts.units is None or facts.processes is None:
        return None, "running services unknown"
    names: List[str] = []
    # Globs outside: fnmatch keeps a few hundred compiled, and a policy may have a thousand.
    for glob in globs:
        if glob.endswith(_UNIT):
            names += [unit for unit in facts.units if fnmatchcase(unit, glob)]
        else:
            names += [process for process in facts.processes if _is_called(process, glob)]
    if not names and facts.unseen is not None:
        return None, f"none that can be seen runs (/proc is mounted {facts.unseen})"
    if names and only_units and not any(name.endswith(_UNIT) for name in names):
        return False, f"{_few(names)} runs, but none of the units"
    return bool(names), f"{_few(names)} runs" if names else "none runs"


def _is_called(process: str, glob: str) -> bool:
    if len(process) == _COMM and glob.startswith(process):
        return True  # cut off by the kernel: proxmox-backup- is proxmox-backup-proxy
    return fnmatchcase(process, glob)


def _virtualisation(words: Sequence[str], facts: HostFacts) -> Tuple[Optional[bool], str]:
    if facts.virtualisation is None:
        return None, "virtualisation unknown"
    shown = f"{facts.virtualisation} ({facts.virtualisation_shown_by})"
    return facts.virtualisation in words, shown


def _any_disk(
    what: str, known: Sequence[Tuple[str, Optional[str]]], globs: Sequence[str]
) -> Tuple[Optional[bool], str]:
    """Whether a disk has one of these drivers, or caches; ``known`` has their names and values."""
    if not known:
        return None, "no disk is known"
    disks = [f"{name}: {own}" for name, own in known
             if own is not None and any(fnmatchcase(own, glob) for glob in globs)]  # fmt: skip
    if disks:
        return True, f"{what} of {_few(disks)}"
    blind = [name for name, own in known if own is None]
    if blind:
        return None, f"{what} of {_few(blind)} is not known"
    return False, f"{what} of {_few([f'{name}: {own}' for name, own in known])}"


def _rotational(wanted: bool, disks: Sequence[DiskFacts]) -> Tuple[Optional[bool], str]:
    if not disks:
        return None, "no disk is known"
    spinning = [disk.name for disk in disks if disk.rotational]
    if spinning:
        return wanted, f"{_few(spinning)} rotates"
    blind = [disk.name for disk in disks if disk.rotational is None]
    if blind:
        return None, f"whether {_few(blind)} rotates is not known"
    return not wanted, "no disk rotates"


def _few(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
