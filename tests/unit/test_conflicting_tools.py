# SPDX-License-Identifier: GPL-2.0-or-later
"""Rivals on made-up hosts, and that nobody waits for the disk that they are on."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple
from unittest import mock

import pytest

from test_doctor import host
from writebackd.kernel import conflicting_tools
from writebackd.kernel.conflicting_tools import (
    ConflictingTool,
    ConflictMonitor,
    find_conflicting_tools,
)

UDEV = "/etc/udev/rules.d/60-x.rules"
RUNS = {"/proc/900/comm": "tuned\n"}


def found(root: Path, files: Dict[str, str], own_pid: int = 0) -> List[Tuple[str, str, str]]:
    """(level, setting or name, place)."""
    return [
        (each.level, each.setting or each.name, each.where)
        for each in find_conflicting_tools(host(root, files), own_pid)
    ]


def tuned(root: Path, text: str, **parents: str) -> List[Tuple[str, str, str]]:
    files = {"/etc/tuned/active_profile": "mine\n", "/etc/tuned/mine/tuned.conf": text, **RUNS}
    for name, parent in parents.items():
        files[f"/usr/lib/tuned/profiles/{name}/tuned.conf"] = parent
    return found(root, files)


# ---- saptune -----------------------------------------------------------------


def test_notes_of_saptune_that_are_applied_count_and_the_override_wins(tmp_path: Path) -> None:
    files = {
        "/etc/sysconfig/saptune": '# NOTE_APPLY_ORDER="3"\nNOTE_APPLY_ORDER=" 1 2 ../x "\n',
        "/usr/share/saptune/notes/1": "[sysctl]\nvm.dirty_bytes = 629145600\n",
        "/var/lib/saptune/working/notes/1": "[sysctl]\n\nvm.dirty_bytes = 314572800\n",
        "/etc/saptune/extra/2.conf": "[sysctl]\nvm.dirty_background_bytes = 100\n",
        "/etc/saptune/override/2": "[sysctl]\nvm.dirty_background_bytes = 200\n",
        "/usr/share/saptune/x": "[sysctl]\nvm.dirty_background_ratio = 5\n",
        "/usr/share/saptune/notes/3": "[sysctl]\nvm.dirty_ratio = 5\n",
    }
    assert found(tmp_path, files) == [
        ("note", "vm.dirty_bytes=314572800", "/var/lib/saptune/working/notes/1:3"),
        ("note", "vm.dirty_background_bytes=200", "/etc/saptune/override/2:2"),
    ]
    (first, _) = find_conflicting_tools(host(tmp_path, files))
    assert (first.kind, first.name) == ("saptune", "1") and "saptune applies it" in first.text


@pytest.mark.parametrize("empty", ["vm.dirty_bytes =\n", "vm.dirty_bytes=  # off\n"])
def test_an_override_without_a_value_takes_the_line_out_of_its_note(
    tmp_path: Path, empty: str
) -> None:
    files = {
        "/etc/sysconfig/saptune": 'NOTE_APPLY_ORDER="1 2"\n',
        "/usr/share/saptune/notes/1": "[sysctl]\nvm.dirty_bytes = 100\n",
        "/usr/share/saptune/notes/2": "[sysctl]\nvm.dirty_bytes = 200\nvm.dirty_ratio = 5\n",
        "/etc/saptune/override/2": f"[sysctl]\n{empty}",
    }
    assert found(tmp_path, files) == [  # the other note sets its own
        ("note", "vm.dirty_bytes=100", "/usr/share/saptune/notes/1:2"),
        ("note", "vm.dirty_ratio=5", "/usr/share/saptune/notes/2:3"),
    ]


# ---- tuned -------------------------------------------------------------------


MINE, PARENT = "/etc/tuned/mine/tuned.conf", "/usr/lib/tuned/profiles/{}/tuned.conf"


@pytest.mark.parametrize("text, name, parent, expected", [
    # A profile beats what it includes, and takes out what it drops, by type.
    ("[main]\ninclude = base, -optional\n[vm]\ndirty_ratio=5\n", "base",
     "[main]\ninclude=mine\n[sysctl]\nvm.dirty_ratio=40\nvm.dirty_background_ratio = 10\n",
     [("vm.dirty_background_ratio=10", PARENT, 5), ("vm.dirty_ratio=5", MINE, 4)]),
    ("[main]\ninclude=base\n[sysctl]\ndrop=vm.dirty_ratio, vm.x\n[vm]\ndrop=dirty_bytes\n", "base",
     "[sysctl]\nvm.dirty_ratio=40\n[other]\ntype=vm\ndirty_bytes=70000\n",
     [("vm.dirty_bytes=70000", PARENT, 5)]),
    # It may include the one that it hides.
    ("[main]\ninclude=mine\n[vm]\ndirty_ratio=5\n", "mine",
     "[vm]\ndirty_background_bytes=7\ndirty_bytes=70000\n",
     [("vm.dirty_background_bytes=7", PARENT, 2), ("vm.dirty_ratio=5", MINE, 4)]),
    # A section's type counts, and not its name.
    ("[mine]\ntype=sysctl\nvm.dirty_bytes=10000\n[sysctl]\ntype=disk\nvm.dirty_ratio=1\n"
     "dirty_ratio=2\n[disk]\ndirty_ratio=3\n#[vm]\n;dirty_ratio=4\n", "base", "",
     [("vm.dirty_bytes=10000", MINE, 3)]),
])  # fmt: skip
def test_a_profile_and_the_one_that_it_includes(
    tmp_path: Path, text: str, name: str, parent: str, expected: List[Tuple[str, str, int]]
) -> None:
    assert tuned(tmp_path, text, **{name: parent}) == [
        ("warning", setting, f"{file.format(name)}:{line}") for setting, file, line in expected
    ]


@pytest.mark.parametrize("text, expected", [
    ("[vm]\nenabled=false\ndirty_ratio=5\n", []),
    ("[vm]\nenabled=yes\ndirty_ratio=5\n", []),  # no word for tuned
    ("[main]\ninclude=base\n[vm]\nenabled=0\n", []),
    ("[main]\ninclude=base\n[vm]\ndirty_bytes=300000000\n", ["vm.dirty_bytes=300000000"]),
    ("[main]\ninclude=base\n[vm]\ntransparent_hugepages=never\n", ["vm.dirty_ratio=30"]),
    ("[variables]\nhalf=15\n[sysctl]\nvm.dirty_ratio=${half}\n", ["vm.dirty_ratio=15"]),
    ("[variables]\ninclude=/etc/x.conf\n[sysctl]\nvm.dirty_ratio=${x}\n", ["vm.dirty_ratio=7"]),
    ("[script]\nscript=${i:PROFILE_DIR}/../tune\n", ["vm.dirty_ratio=7"]),
    ("[script]\nscript=../tune\nenabled=0\n", []),
    ("[main]\ninclude=script\n[script]\nscript=own\n", ["vm.dirty_ratio=7"]),  # both run
    ("[variables]\na=15\nb=${a}\nc=${c}\n[sysctl]\nvm.dirty_ratio=${b}\n",
     ["vm.dirty_ratio=15"]),
    ("[variables]\na=5\n[sysfs]\n/sys/class/bdi/8:0/max_ratio=${a}\n"
     "/sys/devices/virtual/bdi/*/strict_limit=1\n/proc/sys/vm/dirty_ratio=10\n",
     ["bdi/max_ratio=5", "bdi/strict_limit=1"]),
    ('[sysctl]\nvm.dirty_ratio="15"\n', ["vm.dirty_ratio=15"]),
    ("[sysctl]\n  vm/dirty_ratio = 15 # x\n", ["vm.dirty_ratio=15"]),
    ("[vm]\ndirty_bytes=0\ndirty_ratio=101\n", []),  # refused
    ("[vm]\ndirty_ratio=5\ndirty_bytes=300000000\n", ["vm.dirty_ratio=5"]),
    ("[sysctl]\nvm.dirty_ratio=5\nvm.dirty_bytes=300000000\n", ["vm.dirty_bytes=300000000"]),
    ("[main]\ninclude=-none\n", []),
    ("[main]\ninclude=none\n", ["mine"]),
    ("no section\n", ["mine"]),
])  # fmt: skip
def test_a_profile_is_read_as_tuned_reads_it(
    tmp_path: Path, text: str, expected: List[str]
) -> None:
    host(tmp_path, {
        "/etc/x.conf": "x=7\n", "/etc/tuned/tune": "#!/bin/sh\nsysctl -w vm.dirty_ratio=7\n"
    })  # fmt: skip
    script = "[script]\nscript=/etc/tuned/tune\n"
    found = tuned(tmp_path, text, base="[vm]\ndirty_bytes=30%\n", script=script)
    assert [each[1] for each in found] == expected


def test_profile_dirs_count_and_of_several_profiles_the_last_wins(tmp_path: Path) -> None:
    files = {
        "/etc/tuned/active_profile": "zero one\n", "/etc/tuned/post_loaded_profile": "two\n",
        "/usr/a/zero/tuned.conf": "[vm]\ndirty_ratio=1\n", **RUNS,
        "/etc/tuned/tuned-main.conf": "# profile_dirs = /x\nprofile_dirs = /usr/a, /opt/b\n",
        "/etc/tuned/one/tuned.conf": "[vm]\ndirty_ratio=1\n",
        "/usr/a/one/tuned.conf": "[vm]\ndirty_ratio=2\ndirty_background_ratio=2\n",
        "/opt/b/two/tuned.conf": "\n[vm]\ndirty_ratio=3\n",
    }  # fmt: skip
    assert found(tmp_path, files) == [
        ("warning", "vm.dirty_ratio=3", "/opt/b/two/tuned.conf:3"),
        ("warning", "vm.dirty_background_ratio=2", "/usr/a/one/tuned.conf:3"),
    ]


@pytest.mark.parametrize("files, expected", [
    ({"/etc/tuned/active_profile": "gone\n"}, "cannot be read here"),
    ({"/etc/tuned/active_profile": "one\n", "/etc/tuned/one/tuned.conf": "[vm]\n",
      "/proc/900/cgroup": "0::/kubepods.slice/pod1/cri-containerd-1.scope\n"},
     "runs in a container"),
    ({"/etc/tuned/active_profile": "\n"}, None),  # tuned-adm off
])  # fmt: skip
def test_what_tuned_sets_may_be_unknown(
    tmp_path: Path, files: Dict[str, str], expected: Optional[str]
) -> None:
    tools = find_conflicting_tools(host(tmp_path, {**files, **RUNS}))
    assert [each.setting for each in tools] == [None] * (expected is not None)
    assert all(expected in each.text for each in tools if expected)


@pytest.mark.parametrize("profile, main, paths, expected", [
    ("[vm]\ndirty_ratio=40\n[sysctl]\nvm.swappiness=1\n", "", ["sysctl.d/9.conf"], "again"),
    ("[sysctl]\nvm.dirty_ratio=40\n", "", ["sysctl.conf"], "again"),
    ("[sysctl]\nvm.dirty_ratio=40\n", "", ["sysctl.d/9.conf", "sysctl.conf"], "again"),
    ("[sysctl]\nvm.swappiness=1\n[vm]\ndirty_ratio=40\n", "", ["sysctl.conf"], "40"),
    ("[sysctl]\nvm.dirty_ratio=40\n", "reapply_sysctl = 0\n", ["sysctl.conf"], "40"),
    ("[vm]\ndirty_ratio=40\n", "", ["sysctl.conf"], "40"),
])  # fmt: skip
def test_tuned_applies_the_system_s_sysctls_again(
    tmp_path: Path, profile: str, main: str, paths: List[str], expected: str
) -> None:
    files = {f"/etc/{path}": "vm.dirty_ratio=10\n" for path in paths}
    files.update({"/run/systemd/system/x": "", "/etc/tuned/tuned-main.conf": main})
    files.update({"/etc/tuned/active_profile": "p", "/etc/tuned/p/tuned.conf": profile, **RUNS})
    tools = find_conflicting_tools(host(tmp_path, files))
    if expected == "again":
        (tool,) = tools
        assert (tool.setting, tool.where) == ("vm.dirty_ratio=10", f"/etc/{paths[-1]}:1")
        assert tool.level == "note" and "by tuned again" in tool.text
    else:
        assert [tool.setting for tool in tools] == ["vm.dirty_ratio=40", "vm.dirty_ratio=10"]


def test_a_profile_of_a_tuned_that_does_not_run_is_a_note(tmp_path: Path) -> None:
    files = {
        "/etc/tuned/active_profile": "one", "/etc/tuned/one/tuned.conf": "[vm]\ndirty_ratio=1\n",
        "/proc/900/comm": "tunedish",
    }  # fmt: skip
    (rival,) = find_conflicting_tools(host(tmp_path, files))
    assert rival.level == "note" and "tuned is not running" in rival.text


# ---- boot --------------------------------------------------------------------


SAME = "vm.dirty_ratio=40\nvm.dirty_bytes=20000\nvm.dirty_ratio=40\n"


@pytest.mark.parametrize("files, expected", [
    ({"/etc/sysctl.d/10-a.conf": "vm.dirty_ratio=1\nvm.dirty_ratio=2\n",
      "/run/sysctl.d/20-b.conf": "vm.dirty_ratio=3\n",
      "/usr/local/lib/sysctl.d/10-a.conf": "vm.dirty_ratio=4\n",
      "/lib/sysctl.d/05-c.conf": "vm/dirty_background_bytes=5\n"},
     [("vm.dirty_background_bytes=5", "/lib/sysctl.d/05-c.conf:1"),
      ("vm.dirty_ratio=3", "/run/sysctl.d/20-b.conf:1")]),
    # Under bytes a ratio of 0 changes nothing; the background's does.
    ({"/proc/cmdline": "sysctl.vm.dirty_ratio=50",
      "/etc/sysctl.d/10-a.conf": "vm.dirty_bytes=20000\nvm.dirty_ratio=0\n",
      "/etc/sysctl.d/20-b.conf": "vm.dirty_background_bytes=9\nvm.dirty_background_ratio=0\n"},
     [("vm.dirty_bytes=20000", "/etc/sysctl.d/10-a.conf:1"),
      ("vm.dirty_background_ratio=0", "/etc/sysctl.d/20-b.conf:2")]),
    # systemd keeps the place of an equal line.
    ({"/etc/sysctl.d/a.conf": SAME}, [("vm.dirty_ratio=40", "/etc/sysctl.d/a.conf:3")]),
    ({"/etc/sysctl.d/a.conf": SAME, "/run/systemd/system/x": ""},
     [("vm.dirty_bytes=20000", "/etc/sysctl.d/a.conf:2")]),
    # A glob leaves out what is named; nobody reads hidden files, or those that are masked.
    ({"/etc/sysctl.d/a.conf": "vm/dirty_*_ratio = 5\nvm.dirty_*bytes=9000\n-vm.dirty_bytes\n",
      "/etc/sysctl.d/.b.conf": "vm.dirty_ratio=6\n"},
     [("vm.dirty_background_bytes=9000", "/etc/sysctl.d/a.conf:2")]),
    ({"/usr/lib/sysctl.d/50-a.conf": "vm.dirty_ratio=4\n", "/null": "",
      "/etc/sysctl.d/50-a.conf": "-> ../null"}, []),
])  # fmt: skip
def test_the_lines_that_are_in_force(
    tmp_path: Path, files: Dict[str, str], expected: List[Tuple[str, str]]
) -> None:
    assert found(tmp_path, files) == [("note", *each) for each in expected]


def test_sysctl_conf_is_read_at_boot_by_its_link_or_by_a_command(tmp_path: Path) -> None:
    files = {"/etc/sysctl.conf": "vm.dirty_ratio=40\n", "/run/systemd/system/x": ""}
    texts = [each.text for each in find_conflicting_tools(host(tmp_path, files))]
    assert len(texts) == 1 and "is not set at boot" in texts[0]
    (tmp_path / "etc/sysctl.d").mkdir()
    (tmp_path / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    (linked,) = find_conflicting_tools(host(tmp_path, files))
    assert "is set at boot (/etc/sysctl.d/99-sysctl.conf:1)" in linked.text
    (tmp_path / "etc/sysctl.d/99-sysctl.conf").unlink()
    (run,) = find_conflicting_tools(host(tmp_path, {**files, "/etc/rc.local": "sysctl -p\n"}))
    assert "is set at boot (/etc/sysctl.conf:1)" in run.text


SET = "sysctl -w vm.dirty_ratio=5"


@pytest.mark.parametrize("path, line, place", [
    ("/etc/rc.local", "/opt/tune &", "/opt/tune:2"),
    ("/etc/crontab", "@reboot root sh /opt/tune >/dev/null", "/opt/tune:2"),
    ("/usr/lib/systemd/system/a.service", "ExecStart=-/opt/tune", "/opt/tune:2"),
    ("/etc/udev/rules.d/1.rules", 'PROGRAM=="/opt/tune %k"', "/opt/tune:2"),
    ("/etc/rc.local", "/opt/binary; cat /opt/pipe", None),
    ("/lib/systemd/system/rc-local.service", "ExecStart=/etc/rc.local start", None),
    ("/etc/rc.local", "sysctl -qp /etc/x.conf", "/etc/x.conf:1"),
    ("/etc/systemd/system/a.service", "ExecStart=sysctl --load=/etc/x.conf", "/etc/x.conf:1"),
    ("/etc/rc.local", "sysctl -q -f /etc/x.conf", "/etc/x.conf:1"),
    ("/etc/rc.local", "sysctl -p $FILE", None),
    ("/etc/cron.d/a", "@reboot root sysctl -e -p", "/etc/sysctl.conf:1"),
    ("/etc/rc.local", "bash -x /opt/plain", "/opt/plain:1"),
    ("/etc/rc.local", "cd /opt && ./plain", "/opt/plain:1"),
    ("/etc/rc.local", "/opt/outer", "/opt/plain:1"),
    ("/etc/rc.local", "run-parts /opt/parts", "/opt/parts/a:1"),
    ("/etc/rc.local", "sysctl -p /etc/x*.conf", "/etc/x.conf:1"),
    ("/etc/rc.local", "python3 /opt/tune.py", "/opt/tune.py:2"),
    ("/etc/rc.local", "/opt/tune.pl", "/opt/tune.pl:2"),
    ("/etc/acpi/events/ac", "action=/opt/tune", "/opt/tune:2"),
])  # fmt: skip
def test_what_a_command_runs_or_loads_counts(
    tmp_path: Path, path: str, line: str, place: Optional[str]
) -> None:
    files = {
        "/opt/tune": "#!/bin/sh\nsysctl -w vm.dirty_ratio='5'\n", "/etc/x.conf": "vm.dirty_ratio=5",
        "/opt/plain": "sysctl -w vm.dirty_ratio=5\n", "/opt/outer": "#!/bin/sh\n. /opt/mid\n",
        "/opt/mid": "/opt/plain\n", "/opt/parts/a": f"{SET}\n", "/opt/parts/b.old": f"{SET}\n",
        "/opt/tune.py": "print(open('/proc/sys/vm/dirty_ratio').read())\n"
        "open('/proc/sys/vm/dirty_ratio', 'w').write('5')\n",
        "/opt/tune.pl": "#!/usr/bin/perl\nsystem('sysctl -w vm.dirty_ratio=5');\n",
        "/opt/binary": "\x7fsysctl -w vm.dirty_ratio=6\n",
        "/etc/sysctl.conf": "vm.dirty_ratio=5", "/etc/sysctl.d/a.conf": "",
        "/etc/rc.local": "#!/bin/sh\nexit\nsysctl vm.dirty_ratio=5\n", path: line,
    }  # fmt: skip
    root = host(tmp_path, files)
    (tmp_path / "etc/sysctl.d/a.conf").unlink()
    (tmp_path / "etc/sysctl.d/a.conf").symlink_to("../sysctl.conf")
    os.mkfifo(tmp_path / "opt/pipe")
    at = {each.where for each in find_conflicting_tools(root)} - {"/etc/sysctl.d/a.conf:1"}
    assert at == ({place} if place else set())


@pytest.mark.parametrize("script, line", [
    ("true\n" * 9_999 + SET, 10_000), ("true\n" * 10_000 + SET, None),  # the most that is read
    (f"run-parts '/a\0b'\n{SET}", 2),  # a NUL is no name
    ("b0=x\n" + "".join(f"b{n}={9 * f'$b{n - 1}'}\n" for n in range(1, 12)) + SET, 13),  # 9^11
    (f"  exit 0\n{SET}", None), (f"true; exit 0\n{SET}", None), (f"exec /x\n{SET}", None),
    (f"exec >/log\n{SET}", 2), (f"grep x || exit 1\n{SET}", 2),
    (f"if [ -e /x ]\nthen\n exit 1\nfi\n{SET}", 5),
    (f"cat >/etc/motd <<'X'\n{SET}\nX\ntrue", None), (f'echo "run {SET}"', None),
    (f"if grep -q '{SET}' /x; then true; fi", None),
    ("logger 'echo 5 > /proc/sys/vm/dirty_ratio'", None),
    (f"stop() {{\n {SET}\n}}\n", None), (f"stop() {{ true; }}\nstart() {{\n {SET}\n}}", 3),
    (f'case "$1" in\nstart) {SET} ;;\nstop) sysctl -w vm.dirty_ratio=9 ;;\nesac', 2),
    ("sysctl -p > /etc/log", None), ("sysctl -p; echo 5 >/proc/sys/vm/dirty_ratio", 1),
    ("systemctl restart foo-sysctl -f; ssh db2 sysctl -p", None), (f"{SET} --dry-run", None),
    ("rm -f /opt/t.sh; test -e /opt/t.sh || chmod 1 /opt/t.sh", None),
    (f"nice -n 5 sudo {SET}", 1), (f"[ -e /x ] && {SET} >/dev/null 2>&1", 1),
    ("echo 5 | tee /proc//sys/vm/dirty_ratio", 1), ("tee /proc/sys/vm/dirty_ratio <<< 5", 1),
    ("write /proc/sys/vm/dirty_ratio 5", 1), ("set_sysctl vm.dirty_ratio 5", 1),
    ("check_sysctl vm.dirty_ratio 5", None), ("[ vm.dirty_ratio 5 ]", None),
    ("V=/proc/sys/vm\nF=${V}/dirty_ratio\necho 5 > $F", 3), ("N=5\nsysctl vm.dirty_ratio=$N", 2),
    ("for k in dirty_ratio; do\n echo 5 > /proc/sys/vm/$k\ndone", 2),
    ("for s in vm.dirty_ratio=5 vm.swappiness=1; do\n sysctl -w $s; done", 2),
    ("sysctl -w vm.dirty_{ratio,expire_centisecs}=5", 1),
    ("cd /proc/sys/vm; echo 5 >dirty_ratio", 1),
    ("cd -- /proc/sys && cd vm\necho 5 >dirty_ratio", 2),
    ("pushd /proc/sys/vm; popd; echo 5 >dirty_ratio", None),
    ("echo 5 1> /proc/sys/vm/dirty_ratio", 1), ("echo 5>/proc/sys/vm/dirty_ratio", None),
    (f"nsenter -t 1 -m -- {SET}", 1), (f"docker run x {SET}", 1),
    (f"sh -c '{SET} 2>/dev/null'", 1), (f"bash -c '{SET} 2>\"a b\" && x'", 1),
    ("A=$A:x; for x in $x; do $x $A; done\n$(which x) y\n/opt/$(x y)/z", None),
    (f"sysctl -p - <<E\nvm.dirty_ratio = 5\nE\n{SET[:6]}", 2),
    ("echo vm.dirty_ratio=5 | xargs sysctl -w", 1), ("echo vm.dirty_ratio=5 | sysctl -p -", 1),
    (f"flock -n /run/x {SET}", 1), (f"flock /run/x -c '{SET}'", 1), (f"eval '{SET}'", 1),
    (f"systemd-cat -t x {SET}", 1), (f"runuser -l root -c '{SET}'", 1), (f"busybox {SET}", 1),
    (f"echo 'not closed\n{SET}", 2), ("echo " + "%% " * 40 + "\n" + SET, 2),
])  # fmt: skip
def test_of_a_script_only_what_it_runs_counts(
    tmp_path: Path, script: str, line: Optional[int]
) -> None:
    files = {"/etc/sysctl.conf": "vm.dirty_ratio=40%\n", "/etc/log": "vm.dirty_ratio=7\n",
             "/opt/t.sh": f"{SET}\n", "/etc/rc.local": script}  # fmt: skip
    expected = [("note", "vm.dirty_ratio=5", f"/etc/rc.local:{line}")] if line else []
    assert found(tmp_path, files) == expected


@pytest.mark.parametrize("path, text", [
    ("/etc/systemd/system/a.service", f"Description=Reverts {SET}"),
    ("/etc/systemd/system/a.service", f"ExecStop={SET}"),
    ("/etc/systemd/system/a.service", "ConditionPathExists=!/opt/t.sh"),
    ("/etc/cron.d/a", f"* * * * * nobody {SET}"), ("/etc/cron.d/a~", f"* * * * * root {SET}"),
    ("/etc/crontab", f'NOTE="a b c d e root {SET}"'),
    ("/var/spool/cron/.root.swp", f"@daily {SET}"),
    ("/etc/network/interfaces", f" down {SET}"), ("/etc/local.d/a.stop", SET),
    ("/var/lib/cloud/instance/user-data.txt", f'final_message: "{SET}"'),
    ("/var/lib/cloud/instance/user-data.txt", f"write_files:\n- content: |\n   {SET}\n  path: /x"),
    ("/var/spool/cron/root", "@daily sysctl -p /opt/fifo"),
    ("/var/spool/cron/root", "@daily sysctl -p /opt/a\0b"),
    ("/etc/sysctl.d/90.conf", "vm.dirty_*o=5\n-vm.dirty_ratio\n-vm.dirty_background_ratio"),
])  # fmt: skip
def test_what_sets_nothing_is_not_named(tmp_path: Path, path: str, text: str) -> None:
    root = host(tmp_path, {"/opt/t.sh": f"{SET}\n", path: f"{text}\n"})
    os.mkfifo(tmp_path / "opt/fifo")
    (tmp_path / "etc/systemd/system").mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/systemd/system/loop.service").symlink_to("loop.service")
    assert find_conflicting_tools(root) == ()


@pytest.mark.parametrize("unit, drop_in, at", [
    (f"ExecStart={SET}\n", f"ExecStart=\nExecStart={SET}\n", ["a.service.d/b.conf:2"]),
    (f"ExecStart={SET}\nExecStart=\nExecStart={SET}\n", "", ["a.service:3"]),
    (f"ExecStartPre={SET}\n", "ExecStart= \n", ["a.service:1"]),
])  # fmt: skip
def test_an_empty_exec_takes_back_those_before_it(
    tmp_path: Path, unit: str, drop_in: str, at: List[str]
) -> None:
    place = "/etc/systemd/system"
    files = {f"{place}/a.service": unit, f"{place}/a.service.d/b.conf": drop_in}
    assert [where for *_, where in found(tmp_path, files)] == [f"{place}/{each}" for each in at]


def test_who_may_not_set_them_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/var/spool/cron/alice": f"@daily {SET}\n"}
    assert len(found(tmp_path, files)) == 1
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert found(tmp_path, files) == []


@pytest.mark.parametrize("path, line, setting", [
    ("/etc/rc.local", "echo 15728640 > /proc/sys/vm/dirty_bytes", "vm.dirty_bytes=15728640"),
    ("/etc/rc.local", "sysctl -q -w vm.dirty_ratio=3 || true", "vm.dirty_ratio=3"),
    ("/etc/rc.local", "# echo 15728640 > /proc/sys/vm/dirty_bytes", None),
    ("/etc/rc.local", "cat /proc/sys/vm/dirty_bytes", None),
    ("/etc/tmpfiles.d/a.conf", "w /proc/sys/vm/dirty_bytes - - - - 9000",
     "vm.dirty_bytes=9000"),
    ("/etc/tmpfiles.d/a.conf", "r /proc/sys/vm/dirty_bytes - - - - 9000", None),
    (UDEV, 'ATTR{bdi/max_ratio}="1"', "bdi/max_ratio=1"),
    (UDEV, 'ATTR{bdi/max_ratio}=="1"', None),
    (UDEV, '# ATTR{bdi/max_ratio}="1"', None),
    (UDEV, 'ATTR{queue/scheduler}="none"', None),
    (UDEV, 'SUBSYSTEM=="bdi", KERNEL=="0:*", ATTR{max_ratio}="1"', "bdi/max_ratio=1"),
    (UDEV, 'SUBSYSTEM=="net", ATTR{max_ratio}="1"', None),
    (UDEV, 'SYSCTL{vm.dirty_bytes}="0"', None),
    (UDEV, 'RUN+="/bin/sh -c \\"echo 5 | tee /proc/sys/vm/dirty_ratio\\""',
     "vm.dirty_ratio=5"),
    (UDEV, 'SUBSYSTEM=="block", RUN+="/usr/local/bin/cap %k"', "udev"),  # not readable
    (UDEV, 'SUBSYSTEM=="net", RUN+="/usr/local/bin/cap %k"', None),
    ("/etc/rc.local", "echo $((5 * 1024)) > /proc/sys/vm/dirty_bytes",
     "vm.dirty_bytes=$((5 * 1024))"),
    ("/etc/tmpfiles.d/a.conf", "w- /sys/class/bdi/8:0/max_ratio - - - - 5", "bdi/max_ratio=5"),
    ("/proc/cmdline", "quiet sysctl.vm.dirty_ratio=5 -- sysctl.vm.dirty_ratio=6", None),
    ("/etc/sysctl.d/a.conf", "vm.dirty_bytes = 0", None),
    ("/etc/sysctl.d/a.conf", "vm.dirty_ratio = 20 # x", "vm.dirty_ratio=20"),
    ("/etc/sysconfig/sapconf", "DIRTY_BYTES=629145600", "vm.dirty_bytes=629145600"),
    ("/etc/sysconfig/sapconf", "DIRTY_BG_BYTES=0", None),
    ("/etc/cron.d/tune", "@reboot root /sbin/sysctl -w vm.dirty_ratio=5", "vm.dirty_ratio=5"),
    ("/etc/rc.local", "echo 5 > /sys/class/bdi/$(mountpoint -d /srv)/max_ratio",
     "bdi/max_ratio=5"),
    ("/etc/rc.local", "echo 5 | tee /sys/class/bdi/0:`stat -c %d /srv`/max_ratio",
     "bdi/max_ratio=5"),
    ("/etc/rc.local", "cat /x > /proc/sys/vm/dirty_ratio", "vm.dirty_ratio=?"),
    ("/etc/rc.local", "dd if=/x of=/proc/sys/vm/dirty_ratio", "vm.dirty_ratio=?"),
    ("/etc/rc.local", "{ cat /x; } > /proc/sys/vm/dirty_ratio", "vm.dirty_ratio=?"),
    ("/etc/rc.local", "A=5\nA=6\nsysctl vm.dirty_ratio=$A", "vm.dirty_ratio=$A"),
    *((path, f"{before}sysctl -w vm.dirty_ratio=5", "vm.dirty_ratio=5") for path, before in (
        ("/var/lib/cloud/instance/user-data.txt", "bootcmd:\n- |\n  "),
        ("/var/lib/cloud/instance/user-data.txt", "#!/bin/sh\ncat >x <<E\nnetwork:\nE\n"),
        ("/var/lib/cloud/instance/vendor-data.txt", "runcmd:\n - "),
        ("/var/lib/cloud/instance/user-data.txt", "packages:\n--BOUNDARY\n\n"),
        ("/etc/cloud/cloud.cfg.d/9.cfg", "bootcmd:\n - "), ("/etc/init.d/tune", ""),
        ("/etc/sv/tune/run", ""), ("/etc/dinit.d/tune", "command = /sbin/"),
        ("/etc/network/interfaces.d/eth0", " post-up "), ("/etc/systemd/system-sleep/x", ""),
        ("/etc/libvirt/hooks/qemu", ""), ("/etc/systemd/system/a.service", "ExecStopPost="))),
    ("/etc/ufw/sysctl.conf", "vm/dirty_ratio=5", "vm.dirty_ratio=5"),
    ("/etc/init.d/procps", "sysctl vm.dirty_ratio=5", None),
    ("/etc/crontab", "#@reboot root sysctl -w vm.dirty_ratio=5", None),
    ("/etc/cron.daily/tune.disabled", "echo 5 >/proc/sys/vm/dirty_ratio", None),
    ("/etc/cron.d/tune", "@reboot root sysctl vm.dirty_ratio=999", None),
    ("/etc/systemd/system/a.service", ";ExecStart=sysctl vm.dirty_ratio=5", None),
    ("/etc/cron.daily/tune", "echo 5 >/proc/sys/vm/dirty_ratio", "vm.dirty_ratio=5"),
    ("/var/spool/cron/tabs/root", "@reboot sysctl vm.dirty_ratio=5", "vm.dirty_ratio=5"),
    ("/etc/local.d/a.start", "for b in /sys/class/bdi/*; do echo 1 > $b/max_ratio; done",
     "bdi/max_ratio=1"),
    ("/etc/sysctl.d/a.conf", "vm.dirty_ratio = 40%", None),
    ("/etc/sysfs.conf", "block/sda/bdi/max_ratio = 5", "bdi/max_ratio=5"),
    ("/etc/sysfs.conf", "devices/system/cpu/x = 5", None),
    ("/var/lib/cloud/instance/user-data.txt", '- [sysctl, "-w", vm.dirty_ratio=5]',
     "vm.dirty_ratio=5"),
    ("/etc/rc.local", "exit 0\nsysctl -w vm.dirty_ratio=5", None),
    ("/etc/systemd/system/tune.service", "ExecStart=sh -c 'sysctl vm.dirty_bytes=15728640'",
     "vm.dirty_bytes=15728640"),
    ("/etc/systemd/system/a.service", "ExecStart=/bin/cat /proc/sys/vm/dirty_bytes", None),
    ("/etc/systemd/system/a.service.d/b.conf",
     "ExecStart=sysctl \\\n# x\n vm.dirty_ratio=5", "vm.dirty_ratio=5"),
    ("/etc/systemd/system/a.service", "ExecStart=sysctl \\\n;vm.dirty_ratio=5\n -a", None),
    (UDEV, 'ATTR{x}="1", \\\nATTR{bdi/max_ratio}="1"', "bdi/max_ratio=1"),
    ("/etc/laptop-mode/laptop-mode.conf", "ENABLE_LAPTOP_MODE_TOOLS=1", None),  # removed
])  # fmt: skip
def test_other_files_that_set_levers(
    tmp_path: Path, path: str, line: str, setting: "str | None"
) -> None:
    number = 2 if "\\\n" in line else 2 + line.count("\n")
    expected = [("note", setting, f"{path}:{number}")] if setting else []
    if path == "/proc/cmdline":
        assert found(tmp_path, {path: line}) == [("note", "vm.dirty_ratio=5", f"{path}:1")]
        return
    assert found(tmp_path, {path: f"# head\n{line}\n"}) == expected


# ---- agents ------------------------------------------------------------------


def test_other_agents_by_their_processes(tmp_path: Path) -> None:
    files = {
        "/proc/7/comm": "writebackd\n", "/proc/8/comm": "writebackd\n", "/proc/9/comm": "bpftune\n",
        "/proc/10/comm": "python3\n", "/proc/10/cgroup": "0::/system.slice/atuned.service/child\n",
        "/proc/11/comm": "bash\n", "/proc/stat": "", "/proc/12/cmdline": "",
    }  # fmt: skip
    assert found(tmp_path, files, own_pid=7) == [
        ("warning", "writebackd", "pid 8"), ("warning", "atuned", "pid 10"),
        ("note", "bpftune", "pid 9"),
    ]  # fmt: skip
    # For doctor a running writebackd is no rival: it says elsewhere that it runs.
    assert "writebackd" not in [name for _, name, _ in found(tmp_path, files)]


# ---- the thread --------------------------------------------------------------


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_nobody_waits_for_a_disk_that_hangs() -> None:
    disk, looks = threading.Event(), []
    rival = ConflictingTool("note", "boot", "sysctl.d", "vm.dirty_ratio=1", "/etc/x:1", "x")

    def find() -> Tuple[ConflictingTool, ...]:
        looks.append(threading.current_thread())
        disk.wait(5)
        return (rival,)

    watch = ConflictMonitor(find)
    began = time.monotonic()
    for _ in range(100):
        watch.look()
    assert time.monotonic() - began < 1
    assert watch.tools is None and len(looks) <= 1  # one thread, however often asked
    disk.set()
    until(lambda: len(looks) == 2)  # asked again meanwhile: it looks once more
    until(lambda: watch.tools == (rival,))
    assert looks[0] is looks[1]


def test_a_look_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = threading.Event()

    def find() -> Tuple[ConflictingTool, ...]:
        disk.wait(5)
        return ()

    monkeypatch.setattr(conflicting_tools, "_LOOK_S", 0.1)
    watch = ConflictMonitor(find)
    watch.look()
    assert watch.error is None
    until(lambda: "not done within 0.1 s" in (watch.error or ""))
    disk.set()
    until(lambda: watch.tools == () and watch.error is None)


def test_what_goes_wrong_is_told_and_the_last_answer_stays() -> None:
    find = mock.Mock(side_effect=[(), ValueError("a file with teeth"), ()])
    watch = ConflictMonitor(find)
    watch.look()
    until(lambda: watch.tools == () and watch.error is None)
    watch.look()
    until(lambda: "a file with teeth" in (watch.error or ""))
    assert watch.tools == ()
    watch.look()
    until(lambda: watch.error is None and find.call_count == 3)
