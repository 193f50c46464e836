# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds settings of our levers at boot, by jobs or by udev, in files of the root disk."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional

from writebackd.kernel.files import KernelFiles
from writebackd.kernel.tuned_profiles import DIRTY, text_of

# In systemd's order of precedence: a name in an earlier directory masks later ones.
_PLACES = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
_RC_LOCAL = ("/etc/rc.local", "/etc/rc.d/rc.local", "/etc/init.d/boot.local")
# Scripts and tables of cron, at, init systems, cloud-init, and of events: directories, and names
# that count.
_JOBS = (
    ("/etc", "(?:ana)?crontab"), ("/etc/network", "interfaces"), ("/etc/init.d", "after.local"),
    ("/var/lib/cloud/instance", "user-data.txt"),
    *(("/etc/" + name, "[^.]+") for name in (
        "cron.d", "cron.hourly", "cron.daily", "cron.weekly", "cron.monthly", "network/if-up.d")),
    *((name, ".+") for name in (
        "/var/spool/cron", "/var/spool/cron/crontabs", "/var/spool/cron/tabs", "/var/spool/at",
        "/var/spool/cron/atjobs", "/etc/local.d", "/etc/acpi", "/etc/NetworkManager/dispatcher.d",
        "/usr/lib/systemd/system-sleep", "/var/lib/cloud/scripts/per-boot")),
)  # fmt: skip
_UNITS = "systemd/system"
_SYSCTL_CONF = "/etc/sysctl.conf"
_SYSTEMD = "/run/systemd/system"  # is there only where systemd runs the host
# sysctl.d(5): a leading "-" ignores errors, "/" and "." both part the name, which may be a glob;
# without a value it is left out of globs.
_SYSCTL = re.compile(r"^\s*-?\s*vm[./](?P<glob>[^\s=]+)\s*(?:$|=\s*(?P<value>\S+))")
_SETTINGS = ("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio")
_CMDLINE = re.compile(rf"(?:^|\s)\"?sysctl[./]vm[./]{DIRTY}=(?P<value>[^\s\"]+)")
# tmpfiles.d(5): type, path, mode, user, group, age, argument.
_TMPFILES = re.compile(
    r"^\s*[wfF]\S*\s+\"?(?P<target>/[^\s\"]+)\"?\s+(?:\S+\s+){4}(?P<value>\S+)"
)
_SYSFS = re.compile(r"^\s*(?P<target>\S+?)\s*=\s*(?P<value>\S+)")  # sysfs.conf(5), below /sys
# By hand: `echo 5 > /proc/sys/vm/dirty_ratio`, `echo 5 | tee FILE`, `sysctl -w vm.dirty_ratio=5`.
_ECHO = re.compile(
    r"\b(?:echo|printf)\s+(?:-\w+\s+|\S*%\S*\s+)*(?P<value>\$\(\(.*?\)\)|[^\s>|]+)\s*"
    r"(?:>+|\|\s*(?:sudo\s+)?tee(?:\s+-\w+)*)\s*(?P<target>[^\s;&|)]+)"
)
_SYSCTL_COMMAND = re.compile(r"\bsysctl[\s,\"'][^;&|]*")  # also as a list of words
_ASSIGNED = re.compile(rf"\bvm[./]{DIRTY}\s*=\s*[\"']?(?P<value>[^\s;&,\]\"']+)")
_LOADS = re.compile(r"[\s\"'](?:-\w*[pf]|--load|--system)\b")
_PATH = re.compile(
    r"(?<![\w./}>*$])/(?!proc/|sys/|dev/|(?:usr/)?bin/(?:env|\w*sh)\b)[^\s\"'\\;&|<>()`$]+"
)
_COMMENT = re.compile(r"(?:^|\s)#.*")
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
    """One line that sets a lever."""

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
    if not setting.startswith("vm.") or re.search("[$<>`]", value):
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


def _sysctl(files: KernelFiles) -> "tuple[List[BootSetting], List[BootSetting]]":
    """Settings that are read at boot, and those that only procps reads."""
    seen, settings = set(), []  # type: set[object], List[BootSetting]
    systemd = files.path(_SYSTEMD).is_dir()
    for path in _chosen(files, "sysctl.d", ".conf"):
        seen.add(files.path(path).resolve())
        settings += _sysctl_lines(files, path, "sysctl.d")
    if systemd:
        # systemd-sysctl(8) keeps the place of an earlier line that sets the same to the same.
        kept: Dict[Optional[str], BootSetting] = {}
        for line in settings:
            if line.setting not in kept or kept[line.setting].value != line.value:
                kept.pop(line.setting, None)
                kept[line.setting] = line
        settings = list(kept.values())
    # procps reads this one last; systemd-sysctl through a link in sysctl.d.
    if files.path(_SYSCTL_CONF).resolve() in seen:
        return settings, []
    if systemd:
        return settings, list(_sysctl_lines(files, _SYSCTL_CONF, "sysctl.conf"))
    return [*settings, *_sysctl_lines(files, _SYSCTL_CONF, "sysctl.d")], []


def _sysctl_lines(files: KernelFiles, path: str, source: str) -> Iterator[BootSetting]:
    lines = [
        (match["glob"], BootSetting(source, f"{path}:{number}", None, match["value"]))
        for number, line in _lines(files, path) for match in _SYSCTL.finditer(line)
    ]  # fmt: skip
    named = {glob for glob, _ in lines}
    for glob, line in lines:
        for name in _SETTINGS if line.value else ():
            if glob == name or (name not in named and fnmatchcase(name, glob)):
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
    by_file = {files.path(path).resolve(): path for path in reversed(_RC_LOCAL)}
    for path in reversed(list(by_file.values())):
        for number, line in _lines(files, path):
            if re.match(r"exit\b", line):  # what was appended behind it never runs
                break
            yield from commands(files, line, "rc.local", f"{path}:{number}")


def _jobs(files: KernelFiles) -> Iterator[BootSetting]:
    names = {name for place in _PLACES for name in files.listdir(f"{place}/{_UNITS}")}
    paths = _chosen(files, _UNITS, ".service")
    for name in sorted(name for name in names if name.endswith(".service.d")):
        paths += _chosen(files, f"{_UNITS}/{name}", ".conf")
    for directory, wanted in _JOBS:
        found = (name for name in files.listdir(directory) if re.fullmatch(wanted, name))
        paths += [f"{directory}/{name}" for name in found]
    for path in {files.path(path).resolve(): path for path in paths}.values():  # some are links
        for number, line in _lines(files, path):
            for each in commands(files, line, "job", f"{path}:{number}"):
                if is_accepted(each.setting or "", each.value):
                    yield each


def commands(
    files: KernelFiles, line: str, source: str, place: str, inner: bool = False
) -> Iterator[BootSetting]:
    """The settings that a shell command makes, in their order; then those of scripts it names."""
    line = _COMMENT.sub("", line)
    settings = [
        (echo.start(), _setting(echo["target"]), echo["value"]) for echo in _ECHO.finditer(line)
    ]
    loaded: List[str] = []
    for command in _SYSCTL_COMMAND.finditer(line):
        for match in _ASSIGNED.finditer(line, command.start(), command.end()):
            settings.append((match.start(), f"vm.{match['setting']}", match["value"]))
        if _LOADS.search(command[0]):
            loaded += _PATH.findall(command[0]) or [_SYSCTL_CONF] * ("$" not in command[0])
    for _, setting, value in sorted(settings, key=lambda each: each[0]):
        if setting is not None:
            yield BootSetting(source, place, setting, value.strip("\\\"'"))
    for path in loaded:
        yield from _sysctl_lines(files, path, source)
    # rc-local.service runs what is read already.
    for path in () if inner else sorted(set(_PATH.findall(line)).difference(_RC_LOCAL)):
        for number, each in enumerate((_script(files, path) or "").split("\n"), 1):
            yield from commands(files, each, source, f"{path}:{number}", True)


def _setting(target: str) -> Optional[str]:
    match = _TARGET.fullmatch(target.strip("\\\"'"))
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
    settings = list(commands(files, value, "udev", place))
    yield from settings
    for script in () if settings else _PATH.findall(value)[:1]:
        if _script(files, script) is None and _OF_DISKS.search(rule):
            yield BootSetting("udev", place, None, script)


def _script(files: KernelFiles, path: str) -> Optional[str]:
    """The beginning of a script; empty for other files, None if it cannot be read."""
    try:
        if not files.path(path).is_file():  # a pipe would wait
            return None
        with files.path(path).open("rb") as file:
            data = file.read(_SCRIPT_BYTES)
    except OSError:
        return None
    return data.decode("utf-8", "replace") if data[:2] == b"#!" or path.endswith(".sh") else ""


def _chosen(files: KernelFiles, directory: str, ending: str) -> List[str]:
    """Paths in the order in which they are read: by file name across all directories."""
    chosen: Dict[str, str] = {}
    for place in _PLACES:
        for name in files.listdir(f"{place}/{directory}"):
            if name.endswith(ending) and name[0] != ".":
                chosen.setdefault(name, f"{place}/{directory}/{name}")
    return [chosen[name] for name in sorted(chosen)]


def _lines(files: KernelFiles, path: str) -> Iterator["tuple[int, str]"]:
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
