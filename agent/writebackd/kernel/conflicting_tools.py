# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds other tools that set the dirty limits: tuned profiles, sysctl.d, other agents.

These files are on the root disk, which may be the one that hangs: the daemon has
them read by a thread (ConflictMonitor) and never waits for it.
"""

from __future__ import annotations

import os
import re
import threading
import time
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
# To read command lines; and of reads that hang, each with a thread, the most at once.
_LINES_S, _MOST_STUCK = 2.0, 4


class CommandLines:
    """Command lines of processes, read in threads with a time limit each.

    Reading /proc/PID/cmdline waits for the process' mmap_lock, which a page fault on a hung disk
    may hold for ever.
    """

    def __init__(self) -> None:
        self._stuck: Dict[int, threading.Thread] = {}  # by the pid that it waits for

    def hangs(self, pid: int) -> bool:
        """Whether a read of it has begun and not returned."""
        return pid in self._stuck

    def read(self, files: KernelFiles, pids: Sequence[int]) -> Dict[int, List[str]]:
        """Words by pid, without those that cannot be read."""
        lines: Dict[int, List[str]] = {}

        def work(pids: Sequence[int]) -> None:
            for pid in pids:
                lines[pid] = (files.try_read(f"/proc/{pid}/cmdline") or "").split("\0")

        self._stuck = {pid: thread for pid, thread in self._stuck.items() if thread.is_alive()}
        left = [pid for pid in pids if pid not in self._stuck]
        while left and len(self._stuck) < _MOST_STUCK:
            thread = threading.Thread(target=work, args=(left,), name="rivals", daemon=True)
            thread.start()
            thread.join(_LINES_S)
            left = [pid for pid in left if pid not in lines]
            if left:
                self._stuck[left.pop(0)] = thread
        return dict(lines)


_LINES = CommandLines()


def find_conflicting_tools(
    files: KernelFiles, own_pid: int = 0, lines: CommandLines = _LINES
) -> Tuple[ConflictingTool, ...]:
    """All tools, the likeliest to interfere first.  Reads the root disk: may hang."""
    names, unread = _processes(files, lines)
    agents = (*_agents(names, own_pid), *_unread(unread, lines))
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
    return (*tuned, *agents, *_scripts(files), *_saptune(files), *boot)


class ConflictMonitor:
    """Looks for conflicting tools in a thread; `tools` is the last result, None before."""

    def __init__(self, find: Callable[[], Tuple[ConflictingTool, ...]]) -> None:
        self._find = find
        self._thread: Optional[threading.Thread] = None
        self._wanted = threading.Event()
        self._begun_s: Optional[float] = None  # of the look that goes on
        self._error: Optional[str] = None
        self.tools: Optional[Tuple[ConflictingTool, ...]] = None

    @property
    def error(self) -> Optional[str]:
        """Why `tools` is out of date."""
        begun_s = self._begun_s
        if begun_s is not None and time.monotonic() - begun_s > _LOOK_S:
            return f"{_FAILED}: not done within {_LOOK_S:g} s; a disk may hang"
        return self._error

    def look(self) -> None:
        """Start a look; returns at once, also while an earlier one hangs."""
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rivals", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            self._begun_s = time.monotonic()
            try:
                self.tools, self._error = self._find(), None
            except Exception as error:  # somebody else's files: whatever is wrong with them
                self._error = f"{_FAILED}: {error}"
            self._begun_s = None


def _processes(
    files: KernelFiles, lines: CommandLines
) -> Tuple[Dict[str, List[int]], List[int]]:
    """Pids of agents and of tuned by name, and those whose name is unknown."""
    wanted = {name[:_COMM]: name for name in (*_AGENTS, "tuned")}
    names: Dict[int, str] = {}
    interpreted: List[int] = []
    for entry in files.listdir("/proc"):
        if not entry.isdigit():
            continue
        comm = names[int(entry)] = files.try_read(f"/proc/{entry}/comm") or ""
        # A program in Python has its interpreter's name, and its own in the command line.
        if comm.startswith(("python", "platform-python")):
            interpreted.append(int(entry))
    read = lines.read(files, interpreted)
    for pid, words in read.items():
        own = (os.path.basename(word) for word in words[1:] if not word.startswith("-"))
        names[pid] = next(own, names[pid])
    pids: Dict[str, List[int]] = {}
    for pid, comm in names.items():
        name = wanted.get(comm[:_COMM])
        if name is not None:
            pids.setdefault(name, []).append(pid)
    return pids, [pid for pid in interpreted if pid not in read]


def _unread(unread: Sequence[int], lines: CommandLines) -> Iterator[ConflictingTool]:
    hung = [pid for pid in unread if lines.hangs(pid)]
    others = [pid for pid in unread if not lines.hangs(pid)]
    for pids, why in (
        (hung, f"cannot be read within {_LINES_S:g} s: its memory is locked, as when a disk"
         " hangs"),
        (others, f"is not read: {len(hung)} reads already hang"),
    ):  # fmt: skip
        if pids:
            where = f"pid {pids[0]}" + (f" and {len(pids) - 1} more" if len(pids) > 1 else "")
            yield ConflictingTool(
                "note", "agent", "python", None, where,
                f"the command line of {where} {why}: unknown which program it runs",
            )  # fmt: skip


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
