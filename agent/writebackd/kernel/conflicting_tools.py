# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds other tools that set the dirty limits: tuned profiles, sysctl.d, other agents.

These files are on the root disk, which may be the one that hangs: the daemon has
them read by a thread (ConflictMonitor) and never waits for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from writebackd.kernel.boot_settings import (
    BootSetting,
    boot_settings,
    commands,
    in_force,
    is_accepted,
    reapplied,
)
from writebackd.kernel.child_process import Job, Run
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.tuned_profiles import DIRTY, active_profile, read_profiles, text_of


@dataclass(frozen=True)
class ConflictingTool:
    """A tool that may set our levers; `level` as in doctor: warning (will), note (may)."""

    level: str
    kind: str  # tuned, saptune, boot or agent
    name: str  # the profile, the file, the process
    setting: Optional[str]  # such as vm.dirty_ratio=40; None: not known
    where: str  # file:line, or pid N
    text: str

    @property
    def path(self) -> str:
        """The path in `where`; empty for a process."""
        return self.where.rpartition(":")[0]


_NOTE_LINE = re.compile(rf"\s*vm[./]{DIRTY}[ \t]*=[ \t]*(?P<value>[^\s#]*)")
_VARIABLE = re.compile(r"""\s*(?:export\s+)?(?P<name>\w+)=["']?(?P<value>[^"'#\s]*)""")
# By process name: its effect on our levers.
_AGENTS: Mapping[str, str] = {
    "writebackd": "sets the same limits",
    "ktune": "applies vm.dirty_* of its profile",
    "ktuner": "tunes sysctls by itself, vm.dirty_* among them",
    "atuned": "tunes sysctls by itself, vm.dirty_* among them",
    "bpftune": "tunes sysctls by itself, as far as is known those of the network only",
    "laptop_mode": "sets vm.dirty_* when the power supply changes",
    "saptune": "applies vm.dirty_* of its notes",
    "sapconf": "applies vm.dirty_* of its configuration",
}
# An agent that is not known to touch the dirty limits.
_HARMLESS = ("bpftune",)
# saptune: notes that it applies, and their files, the later over the earlier.
_SAPTUNE = "/etc/sysconfig/saptune"
_SAPTUNE_NOTES = re.compile(r"""\s*NOTE_APPLY_ORDER\s*=\s*["']?([^"'#]*)""")
_NOTE_FILES = (
    "/usr/share/saptune/notes/{}", "/var/lib/saptune/working/notes/{}",
    "/etc/saptune/extra/{}.conf", "/etc/saptune/override/{}",
)  # fmt: skip
# laptop-mode-tools: with and without laptop mode, and what it takes without a line.
_LAPTOP_MODE = "/etc/laptop-mode/laptop-mode.conf"
_LAPTOP_MODE_SETS = (
    ("DIRTY_RATIO", (("LM", "60"), ("NOLM", "40"))),
    ("DIRTY_BACKGROUND_RATIO", (("LM", "1"), ("NOLM", "10"))),
)
_BINARIES = ("/usr/sbin", "/sbin", "/usr/bin")
_SAPCONF = "/etc/sysconfig/sapconf"
_SAPCONF_SETS = (
    ("DIRTY_BYTES", "vm.dirty_bytes"), ("DIRTY_BG_BYTES", "vm.dirty_background_bytes"),
)  # fmt: skip
_CONTAINER = re.compile(r"kubepods|docker|libpod|crio|containerd|lxc|[0-9a-f]{64}")
_LOOK_S = 30.0
_FAILED = "cannot look for conflicting tools"
_COMM = 15  # of a process' name, what the kernel keeps
_SERVICE = re.compile(r"/([^/\n]+)\.service(?:/|$)", re.MULTILINE)


def find_conflicting_tools(files: KernelFiles, own_pid: int = 0) -> Tuple[ConflictingTool, ...]:
    """All tools, the likeliest to interfere first.  Reads the root disk: may hang."""
    names = _processes(files)
    tuned = list(_tuned(files, names.get("tuned", ())))
    again = [each.setting for each in tuned if each.level == "note" and names.get("tuned")]
    boot = (
        ConflictingTool(
            "note", "boot", line.source, line.setting and f"{line.setting}={line.value}",
            line.place, line.text,
        )
        for line in boot_settings(files)
        if not (line.source.startswith("sysctl") and f"{line.setting}={line.value}" in again)
    )  # fmt: skip
    return (*tuned, *_agents(names, own_pid), *_scripts(files), *_saptune(files), *boot)


class ConflictMonitor:
    """Looks for conflicting tools in a thread; `tools` is the last result, None before."""

    def __init__(self, find: Callable[[], Tuple[ConflictingTool, ...]]) -> None:
        self._find = find
        self._job: Optional[Job] = None
        self._wanted = False
        self._error: Optional[str] = None
        self.tools: Optional[Tuple[ConflictingTool, ...]] = None

    @property
    def error(self) -> Optional[str]:
        """Why `tools` is out of date."""
        if self._job is not None and self._job.busy and self._job.decided:
            return f"{_FAILED}: {self._job.failure()}; a disk may hang"
        return self._error

    def look(self) -> None:
        """Start a look; returns at once, also while an earlier one hangs."""
        self._wanted = True
        if self._job is None or not self._job.busy:
            self._job = Job(self._look, _LOOK_S, "rivals")

    def _look(self, _: Run) -> None:
        while self._wanted:
            self._wanted = False
            try:
                self.tools, self._error = self._find(), None
            except Exception as error:  # somebody else's files: whatever is wrong with them
                self._error = f"{_FAILED}: {error}"


def _processes(files: KernelFiles) -> Dict[str, List[int]]:
    wanted = {name[:_COMM]: name for name in (*_AGENTS, "tuned")}
    pids: Dict[str, List[int]] = {}
    for entry in filter(str.isdigit, files.listdir("/proc")):
        comm = files.try_read(f"/proc/{entry}/comm") or ""
        # What runs in Python may have its interpreter's name.  Its command line is in its memory,
        # which a page fault on a hung disk may have locked: the unit tells as well.
        if comm.startswith(("python", "platform-python")):
            unit = _SERVICE.search(files.try_read(f"/proc/{entry}/cgroup") or "")
            comm = unit[1] if unit else comm
        name = wanted.get(comm[:_COMM])
        if name is not None:
            pids.setdefault(name, []).append(int(entry))
    return pids


def _agents(names: Mapping[str, Sequence[int]], own_pid: int) -> Iterator[ConflictingTool]:
    for name, deed in _AGENTS.items():
        pids = [pid for pid in names.get(name, ()) if pid != own_pid]
        if pids and not (name == "writebackd" and not own_pid):
            level = "note" if name in _HARMLESS else "warning"
            where = f"pid {pids[0]}"
            yield ConflictingTool(
                level, "agent", name, None, where, f"{name} runs ({where}): it {deed}"
            )


def _saptune(files: KernelFiles) -> Iterator[ConflictingTool]:
    """Notes are applied by a command or at boot, so no process remains."""
    lines = (files.try_read(_SAPTUNE) or "").splitlines()
    notes = [name for listed in filter(None, map(_SAPTUNE_NOTES.match, lines))
             for name in listed[1].split() if "/" not in name]  # fmt: skip
    settings: Dict[str, Tuple[str, str, str]] = {}
    for note in notes:
        own: Dict[str, Tuple[str, str, str]] = {}
        for form in _NOTE_FILES:
            path = form.format(note)
            for number, line in enumerate((text_of(files, path) or "").split("\n"), 1):
                match = _NOTE_LINE.match(line)
                if match:
                    own[f"vm.{match['setting']}"] = (note, f"{path}:{number}", match["value"])
        # An override without a value takes the line out of its note.
        settings.update({setting: line for setting, line in own.items() if line[2]})
    for setting, (note, place, value) in settings.items():
        said = f"{setting}={value}"
        yield ConflictingTool(
            "note", "saptune", note, said, place,
            f"saptune's note {note} sets {said} ({place}): whenever saptune applies it, writebackd"
            " yields",
        )


def _variables(files: KernelFiles, path: str) -> Dict[str, Tuple[str, str]]:
    """Value and place of each variable in a shell file."""
    lines = enumerate((text_of(files, path) or "").split("\n"), 1)
    matches = ((number, _VARIABLE.match(line)) for number, line in lines)
    return {each["name"]: (each["value"], f"{path}:{number}") for number, each in matches if each}


def _scripts(files: KernelFiles) -> Iterator[ConflictingTool]:
    """Tools that exit once they have set the limits."""
    values = _variables(files, _LAPTOP_MODE)
    on, where = values.get("ENABLE_LAPTOP_MODE_TOOLS", ("1", f"{_LAPTOP_MODE}:1"))
    if on == "1" and any(files.path(f"{place}/laptop_mode").exists() for place in _BINARIES):
        said = " and ".join(
            f"vm.{name.lower()} to " + " or ".join(
                values.get(f"{mode}_{name}", (usual, ""))[0] for mode, usual in modes
            )
            for name, modes in _LAPTOP_MODE_SETS
        )  # fmt: skip
        yield ConflictingTool(
            "warning", "agent", "laptop-mode-tools", None, where,
            f"laptop-mode-tools sets {said} ({_LAPTOP_MODE}) when the power supply changes and"
            " on a timer: each time writebackd yields",
        )  # fmt: skip
    values = _variables(files, _SAPCONF)
    for variable, setting in _SAPCONF_SETS:
        value, where = values.get(variable, ("", ""))
        if value and is_accepted(setting, value):
            yield ConflictingTool(
                "note", "agent", "sapconf", f"{setting}={value}", where,
                f"sapconf sets {setting}={value} ({where}): whenever sapconf applies it,"
                " writebackd yields",
            )  # fmt: skip


def _tuned(files: KernelFiles, pids: Sequence[int]) -> Iterator[ConflictingTool]:
    active = active_profile(files)
    profiles = read_profiles(files, (active or "").split())
    pid = f"pid {pids[0]}" if pids else ""
    level = "warning" if pids else "note"
    inside = pids and _CONTAINER.search(files.try_read(f"/proc/{pids[0]}/cgroup") or "")
    if pids and (inside or active is None or (active and not profiles.paths)):
        why = "runs in a container" if inside else "runs, and its profile cannot be read here"
        yield ConflictingTool(
            level, "tuned", active or "tuned", None, pid,
            f"tuned ({pid}) {why}: unknown whether it sets vm.dirty_*",
        )  # fmt: skip
        return
    for name in profiles.unknown if profiles.paths else ():
        yield ConflictingTool(
            level, "tuned", active or "", None, f"{profiles.paths[0]}:1",
            f"tuned's active profile {active} includes {name}, which cannot be resolved or read"
            f" ({', '.join(profiles.paths)}): unknown whether it sets vm.dirty_*",
        )  # fmt: skip
    lines = [BootSetting("tuned", line.place, line.setting, line.value) for line in profiles.lines]
    if pids and profiles.reapplies:
        at = profiles.reapplies[-1]
        lines[at:at] = reapplied(files)
    for path, place, value in profiles.writes:
        file, _, number = place.rpartition(":")
        lines += commands(files, [(int(number), f"echo '{value}' > {path}")], "tuned", file)
    for script in profiles.scripts:
        lines += commands(files, [(1, script)], "tuned", script)
    for line in in_force(lines):
        setting = f"{line.setting}={line.value}"
        if line.source != "tuned":
            yield ConflictingTool(
                "note", "tuned", active or "", setting, line.place,
                f"{setting} is set at boot ({line.place}), and by tuned again whenever it applies"
                f" its profile {active}: then writebackd yields",
            )  # fmt: skip
            continue
        said = f"tuned's active profile sets {setting} ({line.place})"
        yield ConflictingTool(
            level, "tuned", active or "", setting, line.place,
            f"{said}: whenever tuned applies it, writebackd yields; override the line in a"
            " profile of your own"
            if pids
            else f"{said}, but tuned is not running",
        )  # fmt: skip
