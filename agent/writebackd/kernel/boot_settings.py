# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds settings of our levers at boot, by jobs or by udev, in files of the root disk."""

from __future__ import annotations

import contextlib
import os
import re
from fnmatch import fnmatchcase
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.kernel.shell_commands import shell_commands
from writebackd.kernel.tuned_profiles import DIRTY, text_of

# In systemd's order of precedence: a name in an earlier directory masks later ones.
_PLACES = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
_RC_LOCAL = ("/etc/rc.local", "/etc/rc.d/rc.local", "/etc/init.d/boot.local")
# The command of a line: of scripts, tables of cron and anacron, units, interfaces(5), cloud-config.
_SHELL = re.compile(r"(?P<command>.*)")
_CRON = re.compile(r"\s*(?!\w+\s*=)(?:@\w+|(?:\S+\s+){4}\S+)\s+(?P<command>.*)")
_SYSTEM_CRON = re.compile(_CRON.pattern.replace("(?P<", r"root\s+(?P<"))
_ANACRON = re.compile(r"\s*(?!\w+\s*=)(?:\S+\s+){3}(?P<command>.*)")
_EXEC = re.compile(
    r"\s*(?P<key>Exec(?:Start(?:Pre|Post)?|StopPost|Condition|Reload))\s*=\s*[-@:+!|]*"
    r"(?P<command>.*)"
)
_UP = re.compile(r"\s*(?:pre-|post-)?up\s+(?P<command>.*)")
_LISTED = re.compile(r"\s*(?:-\s+)?(?P<command>(?![\w.]+:(?:\s|$)|#).*)")
_WITHIN = re.compile(r"\s*\w+\s*[=:]\s*(?P<command>/.*)")  # KEY = PROGRAM
# Directories, the names that count there, and their form.  run-parts and cron skip names with dots
# and tildes; packages leave files with these endings behind.
_NAMES, _PLAIN = r"[^.~]+", r"(?!\.).*(?<!~)(?<!\.bak)(?<!\.rpmsave)(?<!\.rpmnew)"
_JOBS = (
    ("/etc", "crontab", _SYSTEM_CRON), ("/etc", "anacrontab", _ANACRON),
    ("/etc/cron.d", _NAMES, _SYSTEM_CRON), ("/etc/network", "interfaces", _UP),
    ("/var/lib/cloud/instance", r"(?:user|vendor)-data\.txt", _LISTED),
    ("/etc/cloud/cloud.cfg.d", r".*\.cfg", _LISTED), ("/etc/network/interfaces.d", _PLAIN, _UP),
    ("/etc", r"vzdump\.conf", _WITHIN), ("/etc/acpi/events", _PLAIN, _WITHIN),
    ("/etc/dinit.d", _PLAIN, _WITHIN),
    # Unraid's; of init scripts those that read sysctl.d are known.
    ("/boot/config", "go", _SHELL), ("/etc/init.d", rf"(?!(?:procps|sysctl)$){_PLAIN}", _SHELL),
    ("/etc/local.d", r"[^.].*\.start", _SHELL),
    *((f"/etc/{name}", _NAMES, _SHELL) for name in (
        "cron.hourly", "cron.daily", "cron.weekly", "cron.monthly", "network/if-up.d")),
    *((name, _PLAIN, _CRON) for name in (
        "/var/spool/cron", "/var/spool/cron/crontabs", "/var/spool/cron/tabs")),
    *((name, _PLAIN, _SHELL) for name in (
        "/var/spool/at", "/var/spool/cron/atjobs", "/etc/acpi", "/etc/NetworkManager/dispatcher.d",
        "/usr/lib/systemd/system-sleep", "/lib/systemd/system-sleep", "/etc/systemd/system-sleep",
        "/var/lib/cloud/scripts/per-boot", "/var/lib/cloud/instance/scripts", "/etc/pm/power.d",
        "/usr/lib/pm-utils/power.d", "/etc/pm/sleep.d", "/etc/ppp/ip-up.d",
        "/usr/lib/NetworkManager/dispatcher.d", "/etc/libvirt/hooks",
        "/etc/dhcp/dhclient-exit-hooks.d",
        *(f"/etc/NetworkManager/dispatcher.d/{at}.d" for at in ("pre-up", "pre-down", "no-wait")),
        *(f"/etc/libvirt/hooks/{of}.d" for of in ("qemu", "daemon")),
        *(f"/etc/networkd-dispatcher/{state}.d" for state in ("routable", "configured")))),
)  # fmt: skip
_UNITS = "systemd/system"
_SYSCTL_CONF = "/etc/sysctl.conf"
_SYSTEMD = "/run/systemd/system"  # is there only where systemd runs the host
# sysctl.d(5): a leading "-" ignores errors, "/" and "." both part the name, which may be a glob;
# with "-" and without a value it is left out of globs.
_SYSCTL = re.compile(
    r"^\s*(?P<but>-?)\s*vm[./](?P<glob>[^\s=]+)\s*(?:$|=\s*(?P<value>\S+))"
)
_SETTINGS = ("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio")
_CMDLINE = re.compile(rf"(?:^|\s)\"?sysctl[./]vm[./]{DIRTY}=(?P<value>[^\s\"]+)")
# tmpfiles.d(5): type, path, mode, user, group, age, argument.
_TMPFILES = re.compile(
    r"^\s*[wfF]\S*\s+\"?(?P<target>/[^\s\"]+)\"?\s+(?:\S+\s+){4}(?P<value>\S+)"
)
_SYSFS = re.compile(r"^\s*(?P<target>\S+?)\s*=\s*(?P<value>\S+)")  # sysfs.conf(5), below /sys
# What sysctl(8) takes: a setting, or an option that loads files.
_ASSIGNED = re.compile(rf"\s*vm[./]{DIRTY}\s*=\s*[\"']?(?P<value>[^\"']*?)[\"']?\s*")
_LOADS = re.compile(r"(?:-\w*[pf]|--load(?:=|$)|--system$)(?P<file>.*)")
_OF_BDI = r"(?:(?:min|max)_(?:ratio|bytes)(?:_fine)?|strict_limit)"
# Of a loop over BDIs the directory is a variable.
_TARGET = re.compile(
    rf"/proc/sys/vm/{DIRTY}|(?:.*/bdi/(?:[^/]+/)?|\$[{{}}\w]+/)(?P<lever>{_OF_BDI})"
)
# udev(7): key, attribute, operator, value.
_UDEV = re.compile(
    r'(?:(?P<key>ATTR|SYSCTL|RUN)|PROGRAM|IMPORT)(?:\{(?P<name>[^}]*)\})?\s*'
    r'(?:\+=|:=|=(?!=)|(?(key)(?!)|==))\s*e?'
    r'"(?P<value>(?:\\.|[^"\\])*)"'
)
_OF_DISKS = re.compile(r'SUBSYSTEM=="[^"]*(?:bdi|block)')
_SCRIPT_BYTES = 1 << 16
_SHELLS = ("sh", "bash", "dash", ".", "source")
_DEEPEST = 3  # of scripts that run scripts
_INTERPRETED = re.compile(r"(?:python|perl|ruby|node|php|lua)[0-9.]*")
# A program in another language that may set something: a line that names it and writes.
_WRITES = re.compile(
    rf"[^#]*(?:/proc/sys/vm/|vm\.){DIRTY}(?!\w)(?:=(?P<value>[0-9]+))?.*"
)
_DOES = re.compile(r"""["'][wa]b?\+?["']|write|echo|>|sysctl\b.*=""")
# Functions of scripts whose names tell that they only look.
_ONLY_LOOKS = re.compile(r"\[+|.*(?:check|test|assert|verify|expect|grep|get).*|log.*")
# When a source sets, and what follows.
_AT_BOOT = ("is set at boot", "writebackd treats it as the original")
_EFFECTS = {
    "udev": ("is set when a device appears or changes", "writebackd yields"),
    "job": ("is set by a job", "if that runs later, writebackd yields"),
    "sysctl.conf": ("is not set at boot", "systemd-sysctl does not read this file; `sysctl -p`"
                    " makes writebackd yield"),
    "sysctl.d": (_AT_BOOT[0], f"{_AT_BOOT[1]}; `sysctl --system` while it runs makes it yield for a"
                 " minute"),
}  # fmt: skip


class BootSetting(NamedTuple):
    source: str  # such as sysctl.d
    place: str  # file:line
    setting: Optional[str]  # such as vm.dirty_ratio or bdi/max_bytes; None: not known
    value: str

    @property
    def text(self) -> str:
        """The consequence for writebackd."""
        at = f"({self.place})"
        if self.setting is None:
            return f"udev runs {self.value} {at}, which cannot be read: it may set limits of disks"
        when, effect = _EFFECTS.get(self.source, _AT_BOOT)
        if not self.setting.startswith("vm."):
            effect = "writebackd releases that lever"
        return f"{self.setting}={self.value} {when} {at}: {effect}"


def boot_settings(files: KernelFiles) -> List[BootSetting]:
    """All settings; for the dirty limits only those that win."""
    first, last = list(_command_line(files)), list(_rc_local(files))
    sysctl, unread = _sysctl(files)
    read = {line.place for line in last}  # by `sysctl -p`
    unread = [line for line in unread if line.place not in read]
    # systemd does not order sysctl.d and tmpfiles.d: both are reported.
    tmpfiles = in_force([*_tmpfiles(files), *last])
    tmpfiles = [tmpfile for tmpfile in tmpfiles if tmpfile not in last]
    return [
        *in_force([*first, *sysctl, *last]), *tmpfiles, *in_force(unread), *_jobs(files),
        *_udev(files),
    ]  # fmt: skip


def in_force(lines: Iterable[BootSetting]) -> List[BootSetting]:
    """The settings that win: bytes and ratio are one setting, the last one counts."""
    chosen: Dict[str, BootSetting] = {}
    for line in lines:
        setting = line.setting or ""
        name = re.sub("bytes|ratio", "", setting)
        if not setting.startswith("vm."):
            name += line.place  # of a disk: which one is not known
        before = chosen.get(name)
        if is_accepted(setting, line.value, before.setting if before else None):
            chosen.pop(name, None)
            chosen[name] = line
    return list(chosen.values())


def is_accepted(setting: str, value: str, before: Optional[str] = None) -> bool:
    """Whether the kernel accepts a value, as far as known; `before`: the form in force."""
    if not setting.startswith("vm.") or re.search("[$<>`?]", value):
        return True
    number = int(value) if re.fullmatch("[0-9]{1,18}", value) else -1
    if setting.endswith("ratio"):
        # Under bytes dirty_ratio is 0 already, and a write that changes nothing does nothing.
        return 0 <= number <= 100 and not (
            number == 0 and setting == "vm.dirty_ratio" and before == "vm.dirty_bytes"
        )
    return number >= (1 if "background" in setting else 8192)  # two pages


def _command_line(files: KernelFiles) -> Iterator[BootSetting]:
    text = f" {files.try_read('/proc/cmdline') or ''} ".partition(" -- ")[0]
    for each in _CMDLINE.finditer(text):
        yield BootSetting("command line", "/proc/cmdline:1", f"vm.{each['setting']}", each["value"])


def _sysctl(files: KernelFiles) -> Tuple[List[BootSetting], List[BootSetting]]:
    """Settings that are read at boot, and those that only procps reads."""
    systemd, paths = files.path(_SYSTEMD).is_dir(), _chosen(files, "sysctl.d", ".conf")
    settings = list(_sysctl_lines(files, paths, "sysctl.d"))
    if systemd:
        # systemd-sysctl(8) keeps the place of an earlier line that sets the same to the same.
        kept: Dict[Optional[str], BootSetting] = {}
        for line in settings:
            if line.setting not in kept or kept[line.setting].value != line.value:
                kept.pop(line.setting, None)
                kept[line.setting] = line
        settings = list(kept.values())
    # procps reads this one last; systemd-sysctl through a link in sysctl.d.
    if _real(files, _SYSCTL_CONF) in {_real(files, path) for path in paths}:
        return settings, []
    if systemd:
        return settings, list(_sysctl_lines(files, [_SYSCTL_CONF], "sysctl.conf"))
    return [*settings, *_sysctl_lines(files, [_SYSCTL_CONF], "sysctl.d")], []


def reapplied(files: KernelFiles) -> List[BootSetting]:
    """What tuned applies again behind a [sysctl] of its profile."""
    paths = _chosen(files, "sysctl.d", ".conf", ("/run", "/etc"))
    return list(_sysctl_lines(files, [*paths, _SYSCTL_CONF], "sysctl.d"))


def _real(files: KernelFiles, path: str) -> str:
    """Without links; pathlib's would raise in a loop of them."""
    return os.path.realpath(files.path(path))


def _sysctl_lines(
    files: KernelFiles, paths: Iterable[str], source: str
) -> Iterator[BootSetting]:
    lines = [
        (match, BootSetting(source, f"{path}:{number}", None, match["value"]))
        for path in paths for number, line in _lines(files, path)
        for match in _SYSCTL.finditer(line)
    ]  # fmt: skip
    named = {match["glob"] for match, _ in lines if match["value"] or match["but"]}
    for match, line in lines:
        for name in _SETTINGS if line.value else ():
            if match["glob"] == name or (name not in named and fnmatchcase(name, match["glob"])):
                yield line._replace(setting=f"vm.{name}")


def _tmpfiles(files: KernelFiles) -> Iterator[BootSetting]:
    sysfs = ("/etc/sysfs.conf", *_chosen(files, "sysfs.d", ".conf"))
    places = [("tmpfiles.d", _TMPFILES, path) for path in _chosen(files, "tmpfiles.d", ".conf")]
    for source, form, path in [*places, *(("sysfs.d", _SYSFS, path) for path in sysfs)]:
        for number, line in _lines(files, path):
            match = form.match(line)
            setting = _setting(f"/{match['target'].lstrip('/')}") if match else None
            if match and setting:
                yield BootSetting(source, f"{path}:{number}", setting, match["value"])


def _rc_local(files: KernelFiles) -> Iterator[BootSetting]:
    by_file = {_real(files, path): path for path in reversed(_RC_LOCAL)}
    for path in reversed(list(by_file.values())):
        yield from commands(files, _lines(files, path), "rc.local", path)


def _jobs(files: KernelFiles) -> Iterator[BootSetting]:
    names = {name for place in _PLACES for name in files.listdir(f"{place}/{_UNITS}")}
    units = {os.path.basename(path): [path] for path in _chosen(files, _UNITS, ".service")}
    for name in (name for name in names if name.endswith(".service.d")):
        units.setdefault(name[:-2], []).extend(_chosen(files, f"{_UNITS}/{name}", ".conf"))
    paths = {path: _EXEC for name in sorted(units) for path in units[name]}
    cleared = {each for own in units.values() for each in _cleared(files, own)}
    sv = [(f"/etc/sv/{name}", "run", _SHELL) for name in files.listdir("/etc/sv")]
    for directory, wanted, form in (*_JOBS, *sv):
        found = [name for name in files.listdir(directory) if re.fullmatch(wanted, name)]
        if directory == "/etc/init.d":  # a unit of the name is run in its place
            found = [name for name in found if f"{name}.service" not in names]
        paths.update((f"{directory}/{name}", form) for name in found)
    yield from _sysctl_lines(files, ["/etc/ufw/sysctl.conf"], "job")
    once: Set[str] = set()  # what many lines run
    for real, path in {_real(files, path): path for path in paths}.items():  # some are links
        if "/spool/" in path and not _is_ours(files, path):  # a user's, who may not set them
            continue
        text = _lines(files, path) if paths[path] is not _LISTED else _cloud_commands(files, path)
        matches = ((number, paths[path].fullmatch(line)) for number, line in text)
        lines = [(number, match["command"]) for number, match in matches
                 if match and (real, number) not in cleared]  # fmt: skip
        if paths[path] is _LISTED:
            lines = [(number, re.sub(r"^[\"']|[\"']$|[][,]", " ", line)) for number, line in lines]
        for each in commands(files, lines, "job", path, once):
            if is_accepted(each.setting or "", each.value):
                yield each


def _cleared(files: KernelFiles, paths: Sequence[str]) -> Set[Tuple[str, int]]:
    """Commands of a unit and its drop-ins that an empty assignment behind them takes back."""
    before: Dict[str, Set[Tuple[str, int]]] = {}
    cleared: Set[Tuple[str, int]] = set()
    for path in paths:
        for number, line in _lines(files, path):
            match = _EXEC.fullmatch(line)
            if match and match["command"]:
                before.setdefault(match["key"], set()).add((_real(files, path), number))
            elif match:
                cleared |= before.pop(match["key"], set())
    return cleared


def _cloud_commands(files: KernelFiles, path: str) -> Iterator[Tuple[int, str]]:
    """Lines of a script, or of cloud-config those that are run: not files that it writes."""
    key, is_script = "", "\n#!" in "\n" + (text_of(files, path) or "")
    for number, line in _lines(files, path):
        begins = re.match(r"(\w+):(?=\s|$)|--", line)  # the second: a part of MIME
        key = begins[1] or "" if begins else key
        if is_script or key in ("", "bootcmd", "runcmd"):
            yield number, line


def _is_ours(files: KernelFiles, path: str) -> bool:
    with contextlib.suppress(OSError):
        return files.path(path).stat().st_uid == os.geteuid()
    return False


def commands(
    files: KernelFiles, lines: Iterable[Tuple[int, str]], source: str, path: str,
    once: Optional[Set[str]] = None, depth: int = 0,
) -> Iterator[BootSetting]:
    """The settings of numbered lines of shell, and of the scripts that they run, in order.

    `once`: scripts that were followed already, which are left out.
    """
    once = set() if once is None else once
    here = ""
    for number, words, targets in shell_commands(lines):
        place, program = f"{path}:{number}", words[0].rpartition("/")[2]
        says = program in ("echo", "printf")
        for setting in filter(None, (_setting(os.path.join(here, each)) for each in targets)):
            yield BootSetting(source, place, setting, words[-1].replace("\\n", "") if says else "?")
        if program in ("cd", "pushd", "popd"):
            to = next((word for word in words[1:] if word[:1] != "-"), "")
            here = os.path.normpath(os.path.join(here, to)) if to else ""
        elif program == "sysctl":
            yield from _sysctl_command(files, words[1:], source, place)
        elif not says and depth < _DEEPEST:
            if "/" not in words[0]:
                yield from _arguments(words, source, place)
            interpreted = program in _SHELLS or _INTERPRETED.fullmatch(program)
            runs = words[1 if interpreted or program == "run-parts" else 0 :]
            script = os.path.normpath(
                os.path.join(here, next((word for word in runs if word[:1] != "-"), ""))
            )
            found = [script]
            if program == "run-parts":
                names = files.listdir(script)
                found = [f"{script}/{name}" for name in names if re.fullmatch(_NAMES, name)]
            for script in found:
                # rc-local.service runs what is read already.
                if script[:1] == "/" and script not in _RC_LOCAL and script not in once:
                    once.add(script)
                    text = _script(files, script) or ""
                    shell = commands(
                        files, enumerate(text.split("\n"), 1), source, script, once, depth + 1
                    )
                    first = text.partition("\n")[0]
                    other = first[:2] == "#!" and not re.search(r"sh\b|openrc-run", first)
                    other = other or _INTERPRETED.fullmatch(program) is not None
                    yield from _program_lines(text, source, script) if other else shell


def _arguments(words: Sequence[str], source: str, place: str) -> Iterator[BootSetting]:
    """Settings that a function of a script, or dd, is given."""
    for word, value in zip(words[1:], [*words[2:], ""]):
        named = re.fullmatch(rf"vm[./]{DIRTY}", word)
        path = word[3:] if word.startswith("of=") else word
        setting = f"vm.{named['setting']}" if named else _setting(path)
        known = value.isdigit() and not _ONLY_LOOKS.fullmatch(words[0])
        if setting and (known or word.startswith("of=")):
            yield BootSetting(source, place, setting, value if known else "?")


def _program_lines(text: str, source: str, path: str) -> Iterator[BootSetting]:
    for number, line in enumerate(text.split("\n"), 1):
        match = _WRITES.fullmatch(line[:4096])
        if match and _DOES.search(line):
            setting = f"vm.{match['setting']}"
            yield BootSetting(source, f"{path}:{number}", setting, match["value"] or "?")


def _sysctl_command(
    files: KernelFiles, words: Sequence[str], source: str, place: str
) -> Iterator[BootSetting]:
    loads, loaded = False, []
    for word in () if "--dry-run" in words else words:
        assigned, load = _ASSIGNED.fullmatch(word), _LOADS.fullmatch(word)
        if assigned:
            yield BootSetting(source, place, f"vm.{assigned['setting']}", assigned["value"])
        elif load:
            loads = True
            loaded += [load["file"]] if load["file"] else []
        elif word[:1] != "-" and "=" not in word:
            loaded.append(word)
    if loads:
        paths = [
            f"{parent}/{name}" for each in loaded or [_SYSCTL_CONF] if each[:1] == "/"
            for parent, _, wanted in [each.rpartition("/")]
            for name in (sorted(files.listdir(parent)) if "*" in wanted else [wanted])
            if fnmatchcase(name, wanted)
        ]
        yield from _sysctl_lines(files, paths, source)


def _setting(target: str) -> Optional[str]:
    plain = re.sub(r"\$\(.*?\)|`.*?`", "$", target.strip("\\\"'"))  # such as a mount's number
    match = _TARGET.fullmatch(re.sub("/+", "/", plain))
    if match is None:
        return None
    return f"vm.{match['setting']}" if match["setting"] else f"bdi/{match['lever']}"


def _udev(files: KernelFiles) -> Iterator[BootSetting]:
    for path in _chosen(files, "udev/rules.d", ".rules"):
        for number, rule in _lines(files, path):
            yield from _udev_rule(files, rule, f"{path}:{number}")


def _udev_rule(files: KernelFiles, rule: str, place: str) -> Iterator[BootSetting]:
    for each in _UDEV.finditer(rule):
        key, name, value = each["key"], each["name"] or "", each["value"]
        if key == "SYSCTL":
            match = re.fullmatch(rf"vm[./]{DIRTY}", name)
            if match and is_accepted(f"vm.{match['setting']}", value):
                yield BootSetting("udev", place, f"vm.{match['setting']}", value)
        elif key == "ATTR":
            # The device is the disk, the BDI itself, or something else that has no such file.
            kind = "/bdi" if "bdi" in (_OF_DISKS.search(rule) or [""])[0] else ""
            setting = _setting(f"{kind}/{name}")
            if setting:
                yield BootSetting("udev", place, setting, value)
        elif name in ("", "program"):
            # Of a program that is only asked nothing is suspected.
            yield from _program(files, rule if key else "", place, value)


def _program(files: KernelFiles, rule: str, place: str, value: str) -> Iterator[BootSetting]:
    """The settings made by a program that a rule runs: a shell command, or a script."""
    value = value if value.startswith("/") else f"/usr/lib/udev/{value}"
    path, _, number = place.rpartition(":")
    lines = [(int(number), value.replace('\\"', '"'))]
    settings = list(commands(files, lines, "udev", path))
    yield from settings
    script = value.split(" ")[0]
    if not settings and _script(files, script) is None and _OF_DISKS.search(rule):
        yield BootSetting("udev", place, None, script)


def _script(files: KernelFiles, path: str) -> Optional[str]:
    """The beginning of a text; empty for other files, None if it cannot be read."""
    text = text_of(files, path, _SCRIPT_BYTES)
    return text if text is None or ("\0" not in text and text[:1].isprintable()) else ""


def _chosen(
    files: KernelFiles, directory: str, ending: str, places: Sequence[str] = _PLACES
) -> List[str]:
    """Paths in the order in which they are read: by file name across all directories."""
    chosen: Dict[str, str] = {}
    for place in places:
        for name in files.listdir(f"{place}/{directory}"):
            if name.endswith(ending) and name[0] != ".":
                chosen.setdefault(name, f"{place}/{directory}/{name}")
    return [chosen[name] for name in sorted(chosen)]


def _lines(files: KernelFiles, path: str) -> Iterator[Tuple[int, str]]:
    """Lines without comments, each with those that a backslash at its end adds to it."""
    first, whole = 0, ""
    for number, line in enumerate((text_of(files, path) or "").split("\n"), 1):
        if line.lstrip()[:1] not in ("#", ";"):
            first, whole = (first if whole else number), whole + line
            if whole.endswith("\\"):
                whole = whole[:-1] + " "
            else:
                yield first, whole
                whole = ""
