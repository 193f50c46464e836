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

from writebackd.kernel.files import KernelFiles
from writebackd.kernel.tuned_profiles import DIRTY, active_profile, read_profiles


@dataclass(frozen=True)
class ConflictingTool:
    """One who may set a lever of ours; `level` as doctor's: warning (will), note (may)."""

    level: str
    kind: str  # tuned, saptune, boot or agent
    name: str  # the profile, the file, the process
    setting: Optional[str]  # such as vm.dirty_ratio=40; None: not known
    where: str  # file:line, or pid N
    text: str

    @property
    def path(self) -> str:
        """Of `where`; empty for a process."""
        return self.where.rpartition(":")[0]


# In systemd's order of precedence: a name in an earlier directory masks later ones.
_SYSCTL_DIRS = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/local/lib/sysctl.d",
    "/usr/lib/sysctl.d",
    "/lib/sysctl.d",
)
_TMPFILES_DIRS = ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d")
_UDEV_DIRS = (
    "/etc/udev/rules.d", "/run/udev/rules.d", "/usr/local/lib/udev/rules.d",
    "/usr/lib/udev/rules.d", "/lib/udev/rules.d",
)  # fmt: skip
_RC_LOCAL = ("/etc/rc.local", "/etc/rc.d/rc.local", "/etc/init.d/boot.local")
# sysctl.d(5): a leading "-" ignores errors, "/" and "." both part the name.
_SYSCTL = re.compile(rf"\s*-?\s*vm[./]{DIRTY}\s*=\s*(?P<value>\S+)")
_NOTE_LINE = re.compile(rf"\s*vm[./]{DIRTY}[ \t]*=[ \t]*(?P<value>[^\s#]*)")
# tmpfiles.d(5): type, path, mode, user, group, age, argument.
_TMPFILES = re.compile(rf"\s*[wf]\S*\s+/proc/sys/vm/{DIRTY}\s+(?:\S+\s+){{4}}(?P<value>\S+)")
# By hand: `echo 15728640 > /proc/sys/vm/dirty_bytes`, `sysctl -w vm.dirty_bytes=15728640`.
_ECHO = re.compile(rf"[^#]*?\becho\s+(?:-n\s+)?(?P<value>\S+)\s*>\s*/proc/sys/vm/{DIRTY}")
_SYSCTL_W = re.compile(rf"[^#]*?\bsysctl\b.*?\bvm[./]{DIRTY}\s*=\s*(?P<value>[^\s;&\"']+)")
# A BDI's limits and a disk's queue, from udev rules: levers that the policy may turn on.
_UDEV = re.compile(
    r'[^#]*\bATTR\{(?:\.\./)*(?P<setting>(?:bdi|queue)/(?:min_ratio|max_ratio|min_bytes|max_bytes'
    r'|strict_limit|nr_requests|max_sectors_kb)[a-z_]*)\}\s*=\s*"(?P<value>[^"]*)"'
)
# By the name of the process: what it does to levers of ours.
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
_LOOK_S = 30.0
_FAILED = "cannot look for conflicting tools"
_COMM = 15  # of a process' name, what the kernel keeps
# To read command lines; and of reads that hang, each with a thread, the most at once.
_LINES_S, _MOST_STUCK = 2.0, 4


class CommandLines:
    """Command lines of processes, read by threads that have so many seconds each.

    /proc/PID/cmdline waits for the process' memory, which a page fault on a disk that hangs may
    hold for ever.
    """

    def __init__(self) -> None:
        self._stuck: Dict[int, threading.Thread] = {}  # by the pid that it waits for

    def hangs(self, pid: int) -> bool:
        """Whether a read of it was begun that has not come back."""
        return pid in self._stuck

    def read(self, files: KernelFiles, pids: Sequence[int]) -> Dict[int, List[str]]:
        """Words by pid; without those that cannot be had."""
        lines: Dict[int, List[str]] = {}

        def work(pids: Sequence[int]) -> None:
            for pid in pids:
                lines[pid] = (files.try_read(f"/proc/{pid}/cmdline") or "").split("\0")

        self._stuck = {pid: each for pid, each in self._stuck.items() if each.is_alive()}
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
    """Everybody, the most likely to interfere first.  Reads the root disk: may hang."""
    names, unread = _processes(files, lines)
    agents = (*_agents(names, own_pid), *_unread(unread, lines))
    return (*_tuned(files, "tuned" in names), *agents, *_saptune(files), *_boot(files))


class ConflictMonitor:
    """Looks for conflicting tools in a thread; `found` is what it saw last, None before."""

    def __init__(self, find: Callable[[], Tuple[ConflictingTool, ...]]) -> None:
        self._find = find
        self._thread: Optional[threading.Thread] = None
        self._wanted = threading.Event()
        self._begun_s: Optional[float] = None  # of the look that goes on
        self._error: Optional[str] = None
        self.found: Optional[Tuple[ConflictingTool, ...]] = None

    @property
    def error(self) -> Optional[str]:
        """Why `found` is not what there is now."""
        begun_s = self._begun_s
        if begun_s is not None and time.monotonic() - begun_s > _LOOK_S:
            return f"{_FAILED}: not done within {_LOOK_S:g} s; a disk may hang"
        return self._error

    def look(self) -> None:
        """Have them looked for; returns at once, also while an earlier look hangs."""
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rivals", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            self._begun_s = time.monotonic()
            try:
                self.found, self._error = self._find(), None
            except Exception as error:  # somebody else's files: whatever is wrong with them
                self._error = f"{_FAILED}: {error}"
            self._begun_s = None


def _processes(
    files: KernelFiles, lines: CommandLines
) -> Tuple[Dict[str, List[int]], List[int]]:
    """Pids by name, of the agents and of tuned; and those of which it is not known."""
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
    found: Dict[str, List[int]] = {}
    for pid, comm in names.items():
        name = wanted.get(comm[:_COMM])
        if name is not None:
            found.setdefault(name, []).append(pid)
    return found, [pid for pid in interpreted if pid not in read]


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
    """Notes are applied by a command or at boot: no process stays."""
    lines = (files.try_read(_SAPTUNE) or "").splitlines()
    notes = [name for found in filter(None, map(_SAPTUNE_NOTES.match, lines))
             for name in found[1].split() if "/" not in name]  # fmt: skip
    settings: Dict[str, Tuple[str, str, str]] = {}
    for note in notes:
        own: Dict[str, Tuple[str, str, str]] = {}
        for form in _NOTE_FILES:
            for place, setting, value in _matches(files, form.format(note), _NOTE_LINE):
                own[setting] = (note, place, value)
        # An override without a value takes the line out of its note.
        settings.update({setting: line for setting, line in own.items() if line[2]})
    for setting, (note, place, value) in settings.items():
        said = f"{setting}={value}"
        yield ConflictingTool(
            "note", "saptune", note, said, place,
            f"saptune's note {note} sets {said} ({place}): whenever saptune applies it, writebackd"
            " yields",
        )


# place, setting, value
_Line = Tuple[str, str, str]


def _boot(files: KernelFiles) -> Iterator[ConflictingTool]:
    original = "is set at boot ({}): writebackd treats it as the original"
    sources = (
        ("sysctl.d", _last(_sysctl_lines(files)),
         f"{original}; `sysctl --system` while it runs makes it yield"),
        ("tmpfiles.d", _last(_in_directories(files, _TMPFILES_DIRS, ".conf", _TMPFILES)), original),
        ("rc.local", _last(_rc_lines(files)), original),
        ("udev", _in_directories(files, _UDEV_DIRS, ".rules", _UDEV),
         "is set when a disk appears or changes ({}): writebackd releases that lever"),
    )  # fmt: skip
    for name, lines, consequence in sources:
        for place, setting, value in lines:
            said = f"{setting}={value}"
            text = f"{said} {consequence.format(place)}"
            yield ConflictingTool("note", "boot", name, said, place, text)


def _last(lines: Iterator[_Line]) -> Iterator[_Line]:
    """Of several lines that set the same the last is in force."""
    return iter({line[1]: line for line in lines}.values())


def _sysctl_lines(files: KernelFiles) -> Iterator[_Line]:
    paths = _chosen(files, _SYSCTL_DIRS, ".conf")
    # procps reads this one last; systemd-sysctl through a link in sysctl.d.
    paths.append("/etc/sysctl.conf")
    seen = set()
    for path in paths:
        real = files.path(path).resolve()
        if real not in seen:
            seen.add(real)
            yield from _matches(files, path, _SYSCTL)


def _rc_lines(files: KernelFiles) -> Iterator[_Line]:
    for path in _RC_LOCAL:
        for pattern in (_ECHO, _SYSCTL_W):
            yield from _matches(files, path, pattern)


def _chosen(files: KernelFiles, directories: Sequence[str], ending: str) -> List[str]:
    """Paths in the order in which they are read: by file name over all directories."""
    chosen: Dict[str, str] = {}
    for directory in directories:
        for name in files.listdir(directory):
            if name.endswith(ending):
                chosen.setdefault(name, f"{directory}/{name}")
    return [chosen[name] for name in sorted(chosen)]


def _in_directories(
    files: KernelFiles, directories: Sequence[str], ending: str, pattern: "re.Pattern[str]"
) -> Iterator[_Line]:
    for path in _chosen(files, directories, ending):
        yield from _matches(files, path, pattern)


def _matches(files: KernelFiles, path: str, pattern: "re.Pattern[str]") -> Iterator[_Line]:
    prefix = "" if pattern is _UDEV else "vm."
    for number, line in enumerate((files.try_read(path) or "").splitlines(), 1):
        found = pattern.match(line)
        if found:
            yield f"{path}:{number}", prefix + found["setting"], found["value"]


def _tuned(files: KernelFiles, runs: bool) -> Iterator[ConflictingTool]:
    active = active_profile(files)
    _, lines = read_profiles(files, active.split())
    for line in {each.setting: each for each in lines}.values():
        setting = f"{line.setting}={line.value}"
        said = f"tuned's active profile sets {setting} ({line.place})"
        yield ConflictingTool(
            "warning" if runs else "note", "tuned", active, setting, line.place,
            f"{said}: whenever tuned applies it, writebackd yields; override the line in a"
            " profile of your own"
            if runs
            else f"{said}, but tuned is not running",
        )
