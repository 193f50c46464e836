# SPDX-License-Identifier: GPL-2.0-or-later
"""Who else sets the dirty limits on this host: tuned profiles and sysctl files."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Tuple

from writebackd.kernel.files import KernelFiles

Finding = Tuple[str, str]

# In systemd's order of precedence: a name in an earlier directory masks later ones.
_SYSCTL_DIRS = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/local/lib/sysctl.d",
    "/usr/lib/sysctl.d",
    "/lib/sysctl.d",
)
# sysctl.d(5): a leading "-" ignores errors, "/" and "." both part the name.
_SYSCTL = re.compile(r"\s*-?\s*vm[./](dirty_(?:background_)?(?:bytes|ratio))\s*=\s*(\S+)")
# tuned: vm.dirty_* in [sysctl], or dirty_* in [vm].
_TUNED = re.compile(r"\s*(?:vm\.)?(dirty_(?:background_)?(?:bytes|ratio))\s*=\s*(\S+)")
_INCLUDE = re.compile(r"\s*include\s*=\s*(.+)")
# Newer tuned keeps profiles one level deeper.
_TUNED_DIRS = (
    "/etc/tuned/profiles",
    "/etc/tuned",
    "/usr/lib/tuned/profiles",
    "/usr/lib/tuned",
)


def rivals(files: KernelFiles) -> Iterator[Finding]:
    """Findings (level, text), each with file and line."""
    found = False
    for place, setting in _tuned_lines(files):
        found = True
        yield (
            "warning",
            f"tuned's active profile sets vm.{setting} ({place}): whenever tuned applies it,"
            " writebackd yields; take the line out with a profile of your own",
        )
    for place, setting in _sysctl_lines(files):
        found = True
        yield (
            "note",
            f"vm.{setting} is set at boot ({place}): writebackd takes it for the original;"
            " `sysctl --system` while it runs makes it yield",
        )
    if not found:
        yield "good", "nobody else sets vm.dirty_* (tuned, sysctl.d)"


def _sysctl_lines(files: KernelFiles) -> Iterator[Tuple[str, str]]:
    chosen: Dict[str, str] = {}
    for directory in _SYSCTL_DIRS:
        for name in files.listdir(directory):
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{directory}/{name}")
    paths = [chosen[name] for name in sorted(chosen)]
    # procps reads this one last; systemd-sysctl through a link in sysctl.d.
    paths.append("/etc/sysctl.conf")
    seen: Dict[str, None] = {}
    for path in paths:
        real = str(files.path(path).resolve())
        if real not in seen:
            seen[real] = None
            yield from _matches(files, path, _SYSCTL)


def _tuned_lines(files: KernelFiles) -> Iterator[Tuple[str, str]]:
    names = (files.try_read("/etc/tuned/active_profile") or "").split()
    seen: List[str] = []
    while names:
        name = names.pop(0)
        # A profile can include itself by way of others; names are no paths.
        if name in seen or "/" in name:
            continue
        seen.append(name)
        path = next(
            (
                path
                for path in (f"{directory}/{name}/tuned.conf" for directory in _TUNED_DIRS)
                if files.try_read(path) is not None
            ),
            None,
        )
        if path is None:
            continue
        for line in (files.try_read(path) or "").splitlines():
            include = _INCLUDE.match(line)
            if include:
                names += re.split(r"[\s,;]+", include.group(1).strip())
        yield from _matches(files, path, _TUNED)


def _matches(
    files: KernelFiles, path: str, pattern: "re.Pattern[str]"
) -> Iterator[Tuple[str, str]]:
    for number, line in enumerate((files.try_read(path) or "").splitlines(), 1):
        found = pattern.match(line)
        if found:
            yield f"{path}:{number}", f"{found.group(1)}={found.group(2)}"
