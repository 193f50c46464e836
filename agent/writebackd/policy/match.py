# SPDX-License-Identifier: GPL-2.0-or-later
"""Matches policies to this host: scores their [match] rules and gives the evidence.

Pure but for `choose`, which reads the policies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from .facts import DiskFacts, HostFacts
from .find import is_shipped, misplaced, search_dirs, unsafe
from .keys import KEYS
from .load import DEFAULT_NAME, load_all, load_policy
from .rules import MemoryRule, Rule
from .schema import Policy, PolicyError
from .units import format_size

_COMM = 15  # of a process' name, what the kernel keeps
_UNIT = (".service", ".scope", ".slice")
_MOST_NAMED = 4  # disks and the like in a line of evidence
NAMED = "named by --policy"  # why a policy is in force that was not chosen here
# Levers that reach into other people's units, freeze queues or change what all flushers do. That
# a host looks like a class is no leave for these: somebody has to want them.
_WANTED = (("pace", False), ("queue", False), ("flush-interval", 0.0))


@dataclass(frozen=True)
class Finding:
    """What became of one rule."""

    rule: str  # the key
    wanted: str
    points: int  # that it is worth
    holds: Optional[bool]  # None: the fact is not known, so no points
    evidence: str
    origin: str  # file:line


@dataclass(frozen=True)
class Verdict:
    """How well one policy fits; `points` of the rules that hold, `least` from which it fits."""

    name: str
    summary: str
    points: int
    least: int
    findings: Tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """A policy without rules has no points and needs some: it fits nobody."""
        return self.points >= self.least


@dataclass(frozen=True)
class Choice:
    """The policy for a host, and how all of them did, the best first."""

    policy: Policy
    verdicts: Tuple[Verdict, ...]
    skipped: Tuple[str, ...] = ()  # errors of policies that this host does without

    @property
    def runner_up(self) -> Optional[Verdict]:
        """Of the others, the one with the most points, fitting or not."""
        others = [each for each in self.verdicts if each.name != self.policy.name and each.points]
        return others[0] if others else None


def judge(policy: Policy, facts: HostFacts) -> Verdict:
    """Points and evidence of one policy on a host with these facts."""
    findings = []
    for key in KEYS:
        rule = getattr(policy.match, key.attribute) if key.section == "match" else None
        if isinstance(rule, (Rule, MemoryRule)):
            if key.name == "services" and isinstance(rule, Rule):
                holds, evidence = _services(rule.words, facts, _only_watches(policy))
            else:
                holds, evidence = _look(key.name, rule, facts)
            origin = policy.origins[key.section, key.name]
            findings.append(Finding(key.name, str(rule), rule.points, holds, evidence, origin))
    points = sum(finding.points for finding in findings if finding.holds)
    return Verdict(policy.name, policy.summary, points, policy.match.least, tuple(findings))


def rank(verdicts: Iterable[Verdict]) -> Tuple[Verdict, ...]:
    """The best first: those that fit, by points; of equals the one that asks for more, by name."""
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
    since a database that is down for a minute is no other host.

    A policy with an error is passed over (`Choice.skipped`). Raises PolicyError when it is the best
    match by what could be read of it, the one taken before, or ``default``. One whose files others
    may change is passed over in any case, since they might have written its rules; whether
    ``default`` is one of these is for the caller to ask.
    """
    loaded = {each.policy.name: each for each in load_all(config_dir, root)}
    found = {name: unsafe(each.policy.files) for name, each in loaded.items()}
    distrusted = {name: why for name, why in found.items() if why and name != DEFAULT_NAME}
    loaded = {name: each for name, each in loaded.items() if name not in distrusted}
    policies = {name: each.policy for name, each in loaded.items()}
    for name in (DEFAULT_NAME, before):
        if name in loaded and loaded[name].errors:
            raise PolicyError(loaded[name].errors)
    verdicts = rank(
        _with_services(verdict) if verdict.name == before else verdict
        for verdict in (judge(policy, facts) for policy in policies.values())
    )
    best = verdicts[0] if verdicts and verdicts[0].fits else None
    if best is not None and loaded[best.name].errors:
        raise PolicyError(loaded[best.name].errors)
    wrong = [name for name, each in loaded.items() if each.errors]
    verdicts = tuple(each for each in verdicts if each.name not in wrong)
    skipped = (
        *misplaced(search_dirs(config_dir, root)),
        *(line for name in wrong for line in loaded[name].errors),
        *dict.fromkeys(line for why in distrusted.values() for line in why),
    )
    wrong = sorted([*wrong, *distrusted])
    if best is None:
        policy = load_policy(DEFAULT_NAME, config_dir, root)
        nearest = f"; nearest is {_score(verdicts[0])}" if verdicts and verdicts[0].points else ""
        policy = without_unwanted_levers(policy, root)
        reason = f"no policy fits this host{nearest}"
        return Choice(_because(policy, reason, wrong), verdicts, skipped)
    held = [f"{f.evidence} +{f.points}" for f in best.findings if f.holds]
    kept = "" if best == judge(policies[best.name], facts) else "kept from before: "
    reason = f"{kept}best match, {best.points} points: {'; '.join(held)}"
    others = [each for each in verdicts[1:] if each.fits]
    if others:
        tied = "tied with" if others[0].points == best.points else "next is"
        reason += f" ({tied} {_score(others[0])})"
    policy = without_unwanted_levers(policies[best.name], root)
    return Choice(_because(policy, reason, wrong), verdicts, skipped)


def without_unwanted_levers(policy: Policy, root: Path = Path("/")) -> Policy:
    """The policy as it is when nobody named it.

    Levers beyond the pair and limits per device keep what a shipped file says of them only where
    that is off; what a site's own file says holds.
    """
    off: Dict[str, Any] = {}
    origins = dict(policy.origins)
    held: List[str] = []
    for name, rest in _WANTED:
        key = next(each for each in KEYS if (each.section, each.name) == ("levers", name))
        where, value = ("levers", name), policy.value(key)
        if value == rest or not is_shipped(origins[where], root):
            continue
        off[key.attribute] = rest
        held.append(name)
        origins[where] = (
            f"held back ({key.kind.format(value)} in {origins[where]}): the policy was not named"
        )
    if not held:
        return policy
    return replace(
        policy, levers=replace(policy.levers, **off), origins=origins,
        chosen=f"without {', '.join(held)}, for which --policy {policy.name} or a drop-in is"
        " needed",
    )  # fmt: skip


def _because(policy: Policy, reason: str, wrong: Sequence[str]) -> Policy:
    """What is missing comes first: `status` has one line for it all."""
    parts = [f"skipped because of errors: {_few(wrong)}"] if wrong else []
    parts += [policy.chosen] if policy.chosen else []
    return replace(policy, chosen="; ".join([*parts, reason]))


def _with_services(verdict: Verdict) -> Verdict:
    """The verdict with its services taken for running, where they are all that it lacks."""
    findings = tuple(
        replace(each, holds=True, evidence=f"{each.wanted} (not now)")
        if each.rule == "services" and not each.holds
        else each
        for each in verdict.findings
    )
    points = sum(each.points for each in findings if each.holds)
    if verdict.fits or points < verdict.least:
        return verdict
    return replace(verdict, points=points, findings=findings)


def _score(verdict: Verdict) -> str:
    needed = "" if verdict.fits else f" of the {verdict.least} needed"
    return f"{verdict.name} with {verdict.points}{needed}"


def _look(name: str, rule: Union[Rule, MemoryRule], facts: HostFacts) -> Tuple[Optional[bool], str]:
    """Whether a rule holds, and by what that is seen."""
    if isinstance(rule, MemoryRule):
        return _memory(rule, facts.memory_bytes)
    if name == "virtualisation":
        return _virtualisation(rule.words, facts)
    if name == "drivers":
        return _drivers(rule.words, facts.disks)
    if name == "cache":
        return _cache(rule.words, facts.fixed_disks)
    return _rotational(rule.words == ("yes",), facts.fixed_disks)


def _memory(rule: MemoryRule, memory: Optional[int]) -> Tuple[Optional[bool], str]:
    if memory is None:
        return None, "memory size unknown"
    low = rule.low_bytes is None or memory >= rule.low_bytes
    high = rule.high_bytes is None or memory <= rule.high_bytes
    return low and high, f"{format_size(memory >> 20 << 20)} of memory"


def _only_watches(policy: Policy) -> bool:
    """Whether its own file says `observe`; a drop-in says it of a roll-out, not of the class."""
    origin = Path(policy.origins["policy", "mode"].rpartition(":")[0])
    return policy.mode == "observe" and not origin.parent.name.endswith(".conf.d")


def _services(
    globs: Sequence[str], facts: HostFacts, only_units: bool
) -> Tuple[Optional[bool], str]:
    """`only_units`: a process' name, which anybody can give, shall not switch everything off."""
    if facts.units is None or facts.processes is None:
        return None, "running services unknown"
    found: List[str] = []
    # Globs outside: fnmatch keeps a few hundred compiled, and a policy may have a thousand.
    for glob in globs:
        if glob.endswith(_UNIT):
            found += [each for each in facts.units if fnmatchcase(each, glob)]
        else:
            found += [each for each in facts.processes if _is_called(each, glob)]
    if not found and facts.unseen is not None:
        return None, f"none that can be seen runs (/proc is mounted {facts.unseen})"
    if found and only_units and not any(each.endswith(_UNIT) for each in found):
        return False, f"{_few(found)} runs, but none of the units"
    return bool(found), f"{_few(found)} runs" if found else "none runs"


def _is_called(process: str, glob: str) -> bool:
    if len(process) == _COMM and glob.startswith(process):
        return True  # cut off by the kernel: proxmox-backup- is proxmox-backup-proxy
    return fnmatchcase(process, glob)


def _virtualisation(words: Sequence[str], facts: HostFacts) -> Tuple[Optional[bool], str]:
    if facts.virtualisation is None:
        return None, "virtualisation unknown"
    shown = f"{facts.virtualisation} ({facts.virtualisation_shown_by})"
    return facts.virtualisation in words, shown


def _drivers(globs: Sequence[str], disks: Sequence[DiskFacts]) -> Tuple[Optional[bool], str]:
    return _any_disk(
        "driver", disks, lambda disk: disk.driver,
        lambda driver: any(fnmatchcase(driver, glob) for glob in globs),
    )  # fmt: skip


def _cache(words: Sequence[str], disks: Sequence[DiskFacts]) -> Tuple[Optional[bool], str]:
    return _any_disk("cache", disks, lambda disk: disk.cache, lambda cache: cache in words)


def _any_disk(
    what: str,
    disks: Sequence[DiskFacts],
    value: Callable[[DiskFacts], Optional[str]],
    wanted: Callable[[str], bool],
) -> Tuple[Optional[bool], str]:
    if not disks:
        return None, "no disk is known"
    known = [(disk.name, value(disk)) for disk in disks]
    found = [f"{name}: {each}" for name, each in known if each is not None and wanted(each)]
    if found:
        return True, f"{what} of {_few(found)}"
    blind = [name for name, each in known if each is None]
    if blind:
        return None, f"{what} of {_few(blind)} is not known"
    return False, f"{what} of {_few([f'{name}: {each}' for name, each in known])}"


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
