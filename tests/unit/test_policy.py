# SPDX-License-Identifier: GPL-2.0-or-later
"""Policy files: parsed, merged with their drop-ins, refused with file and line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import pytest

from policy_cases import load_text, system, write
from writebackd.policy import PolicyError, check, list_policies, load_policy, render
from writebackd.policy.keys import KEYS, Key
from writebackd.policy.load import misplaced, packaged_dir, unresolved, unused_drop_ins

DIRS = ("usr/lib", "run", "etc")
RANGED = [key for key in KEYS if key.low]

# Each: file text, then (line, part of the message) of every error, in order.
BAD_FILES: list[tuple[str, str, list[tuple[int, str]]]] = [
    ("unknown section", "[limit]\nfloor = 1M\n", [(1, "did you mean [limits]?")]),
    ("misspelt rule", "[match]\ndriver = 1: x\n", [(2, "did you mean 'drivers'?")]),
    ("rule without points", "[match]\ndrivers = nvme\n", [(2, "like '40: megaraid_sas hpsa")]),
    ("rule without words", "[match]\nservices = 40:\n", [(2, "is not POINTS: WHAT")]),
    ("no points", "[match]\ndrivers = 0: nvme\n", [(2, "0 points: use 1 to 1000")]),
    ("too many points", "[match]\ncache = 1001: none\n", [(2, "use 1 to 1000")]),
    ("negative points", "[match]\ndrivers = -5: nvme\n", [(2, "is not POINTS: WHAT")]),
    ("path for a driver", "[match]\ndrivers = 5: /sys/x\n", [(2, "is not a driver")]),
    ("driver twice", "[match]\ndrivers = 5: nvme nvme\n", [(2, "is listed twice")]),
    ("path for a unit", "[match]\nservices = 5: /bin/x\n", [(2, "is not a unit")]),
    ("unknown cache", "[match]\ncache = 5: bbu\n", [(2, "controller or drive or none")]),
    ("both ways", "[match]\nrotational = 5: yes no\n", [(2, "write one of them")]),
    ("number for yes", "[match]\nrotational = 5: 1\n", [(2, "use yes or no")]),
    ("hypervisor's name", "[match]\nvirtualisation = 5: kvm\n", [(2, "metal or guest or host")]),
    ("memory without dots", "[match]\nmemory = 5: 64G\n", [(2, "like '20: 64G..'")]),
    ("memory without bounds", "[match]\nmemory = 5: ..\n", [(2, "is not a range")]),
    ("memory turned round", "[match]\nmemory = 5: 8G..4G\n", [(2, "swap its ends")]),
    ("memory in other units", "[match]\nmemory = 5: 64GB..\n", [(2, "unknown size unit 'GB'")]),
    ("least of nothing", "[match]\nleast = 0\n", [(2, "0 is too small: use 1 to 10000")]),
    ("empty unknown section", "[nonsense]\n", [(1, "[policy], [match], [limits]")]),
    ("misspelt key", "[limits]\nflor = 1M\n", [(2, "did you mean 'floor'?")]),
    ("underscore", "[limits]\ndrain_time = 1s\n", [(2, "did you mean 'drain-time'?")]),
    ("capitals", "[limits]\nFloor = 1M\n", [(2, "did you mean 'floor'?")]),
    ("alien key", "[probe]\nqqqq = 1\n", [(2, "use backend, queue-latency, talkers")]),
    ("wrong section", "[limits]\nfsync-p99 = 1s\n", [(2, "move it to [objective]")]),
    ("not per device", "[device sda]\ncooldown = 1s\n",
     [(2, "cooldown cannot be set per device, only floor, ceiling")]),
    ("removed", "[levers]\nqueue = on\nnr-requests = 8\nmax-sectors = 0B\nflush-interval = 0s\n",
     [(2, "queue was removed: short queues gained nothing beside a dirty limit: delete this line"),
      (3, "nr-requests was removed"), (4, "max-sectors was removed"),
      (5, "flush-interval was removed: the flusher never sleeps in a flood: delete this line")]),
    ("duplicate", "[limits]\nrest = 2M\nrest = 2M\n", [(3, "first on line 2")]),
    ("duplicate over a reopened section", "[limits]\nrest = 2M\n[probe]\n[limits]\nrest = 2M\n",
     [(5, "first on line 2")]),
    ("bad unit", "[limits]\nfloor = 1MB\n", [(2, "floor: unknown size unit 'MB': write 1M")]),
    ("too small", "[limits]\nfloor = 4K\n", [(2, "4K is too small: use 8K to 1T")]),
    ("too large", "[limits]\nbackground = 51%\n", [(2, "51% is too large: use 1% to 50%")]),
    ("no value", "[limits]\nfloor =\n", [(2, "write it like 'floor = 15M'")]),
    ("empty include", "[devices]\ninclude =\n", [(2, "include: no value")]),
    ("bad word", "[policy]\nmode = enforced\n", [(2, "use enforce or observe")]),
    ("trailing comment", "[limits]\nfloor = 1M # why\n", [(2, "a comment needs a line of its")]),
    ("no equals sign", "[limits]\nfloor 1M\n", [(2, "add '=' and a value")]),
    ("no section", "floor = 1M\n", [(1, "put a [SECTION] line above it")]),
    ("open header", "[limits\nfloor = 1M\n", [(1, "does not end in ']'")]),
    ("continued line", "[devices]\ninclude = sda \\\n", [(2, "on one line")]),
    ("control character", "[policy]\nsummary = a\x00b\n", [(2, "U+0000")]),
    ("no-break space", "[limits]\n\n\xa0floor = 1M\n", [(3, "U+00A0")]),
    ("odd line ends", "[limits]\x0bfloor = 1M\n", [(1, "U+000B")]),
    ("other name", "[policy]\nname = q\n", [(2, "the file makes it policy 'p'")]),
    ("device without name", "[device]\nfloor = 1M\n", [(1, "write [device sda]")]),
    ("two devices", "[device sda sdb]\n", [(1, "needs one device")]),
    ("device in the plural", "[devices sda]\n", [(1, "write [device NAME]")]),
    ("half a path", "[device srv/db]\n", [(1, "write the whole path, like /srv/db")]),
    ("floor over default ceiling", "[limits]\nfloor = 8G\n",
     [(2, "floor 8G (FILE:2) is above ceiling 4G (default): lower floor or raise ceiling")]),
    ("ceiling under default floor", "[limits]\nceiling = 8K\n", [(2, "ceiling: floor 1M")]),
    (
        "floor over ceiling for a driver",
        "[device driver:usb-storage]\nceiling = 64M\n[device driver:usb-*]\nfloor = 128M\n",
        [(4, "above ceiling 64M (FILE:2) for device driver:usb-storage")],
    ),
    ("floor over ceiling for a device", "[limits]\nceiling = 1G\n[device sd*]\nfloor = 2G\n",
     [(4, "floor 2G (FILE:4) is above ceiling 1G (FILE:2) for device sd*")]),
    (
        "floor over ceiling of an overlapping section",
        "[device sd*]\nfloor = 100M\n[device sda]\nceiling = 10M\n",
        [(2, "above ceiling 10M (FILE:4) for device sda")],
    ),
    (
        "allowed-delay over drain-time",
        "[limits]\ndrain-time = 1s\n[objective]\nallowed-delay = 2s\n",
        [(4, "allowed-delay 2s (FILE:4) is above drain-time 1s")],
    ),
    ("a contradiction is told once for all devices",
     "[limits]\nfloor = 8G\n[device sda]\nfsync-p99 = 1s\n", [(2, "above ceiling")]),
    ("and not again for a window",
     "[limits]\nrest = 64M\nceiling = 32M\n[window n]\nwhen = 22:00-23:00\nfsync-p99 = 1s\n",
     [(2, "use 1M to 32M")]),
    ("rest below floor", "[limits]\nfloor = 2M\nrest = 1M\n", [(3, "use 2M to 4G")]),
    ("rest above ceiling", "[limits]\nrest = 64M\nceiling = 32M\n", [(2, "use 1M to 32M")]),
    ("same glob twice", "[devices]\ninclude = sd*\nexclude = sd*\n", [(3, "leaves out all")]),
    ("name excluded", "[devices]\ninclude = sda\nexclude = sd?\n", [(3, "include asks for")]),
    ("all excluded", "[devices]\nexclude = *\n", [(2, "leaves out all of '*'")]),
    (
        "all errors are told",
        "x = 1\n[limits]\nfloor = 1\nceiling = 1X\n[policy]\nmode = 3\n[foo]\nbar = 1\n",
        [(1, "a key before"), (3, "too small"), (4, "unit 'X'"), (6, "enforce"), (7, "[foo]")],
    ),
    (
        "a bad value does not hide a contradiction elsewhere",
        "[limits]\nfloor = 8G\n[device sda]\nfloor = 1Q\n",
        [(4, "unit 'Q'"), (2, "above ceiling")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "errors"), [row[1:] for row in BAD_FILES], ids=[row[0] for row in BAD_FILES]
)
def test_bad_file(tmp_path: Path, text: str, errors: list[tuple[int, str]]) -> None:
    path = write(tmp_path / "p.conf", text)
    with pytest.raises(PolicyError) as caught:
        load_policy(str(path))
    messages = caught.value.messages
    assert len(messages) == len(errors), messages
    for message, (line, part) in zip(messages, errors):
        assert message.startswith(f"{path}:{line}: "), message
        assert part.replace("FILE", str(path)) in message
    assert str(caught.value) == "\n".join(messages)
    assert check(str(path)) == list(messages)


def test_crlf_bom_blanks_and_comments_are_fine(tmp_path: Path) -> None:
    text = "\ufeff[ limits ]\r\n# a\r\n  ; b \xa0 \x01\r\n\tfloor\t=\t2M \r\n"
    text += "[policy]\nsummary = a=b #1"
    policy = load_text(tmp_path, text)
    assert policy.limits.floor_bytes == 2 << 20
    assert policy.summary == "a=b #1"
    assert policy.origins["limits", "floor"] == f"{tmp_path}/p.conf:4"


@pytest.mark.parametrize("key", RANGED, ids=[key.name for key in RANGED])
def test_ranges_end_where_they_say(tmp_path: Path, key: Key) -> None:
    for text, step in ((key.low, -1), (key.high, 1)):
        value = key.kind.parse(text)
        beyond = value + step if isinstance(value, int) else value * (1 + step * 1e-6)
        assert key.parse(text) == value
        if beyond > 0:
            with pytest.raises(ValueError, match=r"too (small|large)"):
                key.parse(key.kind.format(beyond))


def test_too_many_errors_stop_with_a_word(tmp_path: Path) -> None:
    messages = check(str(write(tmp_path / "log.conf", "12:00 all is well\n" * 5000)))
    assert len(messages) == 101
    assert "stopped after 100 errors" in messages[-1]


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "huge": lambda path: path.write_bytes(b"#" * ((1 << 20) + 1)),
    "latin-1": lambda path: path.write_bytes(b"[policy]\n# x\nsummary = M\xfcller\n"),
}


@pytest.mark.parametrize(("kind", "message"), [
    ("missing", ": cannot read it: No such file or directory: check the path"),
    ("directory", ": cannot read it: Is a directory"),
    ("fifo", ": not a regular file"),
    ("dangling link", ": cannot read it: No such file"),
    ("huge", ": larger than 1 MiB"),
    ("latin-1", ":3: byte 0xfc is not UTF-8: save it as UTF-8"),
])  # fmt: skip
def test_unreadable_base_and_drop_in(tmp_path: Path, kind: str, message: str) -> None:
    path = tmp_path / "p.conf"
    UNREADABLE[kind](path)
    assert check(str(path)) == [StartsWith(f"{path}{message}")]
    if kind == "missing":
        return
    base = write(tmp_path / "q.conf", "[limits]\nfloor = 1\n")
    drop_in = tmp_path / "q.conf.d" / "a.conf"
    drop_in.parent.mkdir()
    UNREADABLE[kind](drop_in)
    assert check(str(base)) == [StartsWith(f"{base}:2: "), StartsWith(f"{drop_in}{message}")]


class StartsWith(str):
    """Equal to every text that begins like this."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.startswith(str(self))

    __hash__ = str.__hash__


def test_unreadable_for_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "p.conf", "").chmod(0)
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    user = os.geteuid()
    if user == 0:  # who can read every file
        os.seteuid(65534)
    try:
        messages = check("./p.conf")
    finally:
        os.seteuid(user)
    assert messages == [
        "p.conf: cannot read it: Permission denied: check the path and its permissions"
    ]


def test_no_descriptor_is_lost(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        check(str(tmp_path) + "/")
    assert len(os.listdir("/proc/self/fd")) == before


def test_base_file_of_the_strongest_directory_wins(tmp_path: Path) -> None:
    for rank, top in enumerate(DIRS, start=1):
        path = write(system(tmp_path, top, "x.conf"), f"[policy]\nsummary = {top}\n")
        policy = load_policy("x", root=tmp_path)
        assert (policy.summary, policy.files) == (top, (str(path),)), rank


def test_a_name_here_overrides_the_packaged_policy(tmp_path: Path) -> None:
    assert load_policy(root=tmp_path).files == (str(packaged_dir() / "default.conf"),)
    write(system(tmp_path, "etc", "default.conf"), "[policy]\nsummary = mine\n")
    assert load_policy(root=tmp_path).summary == "mine"


def test_drop_ins_apply_by_file_name_over_all_directories(tmp_path: Path) -> None:
    write(system(tmp_path, "usr/lib", "x.conf"), "[policy]\nsummary = base\n[limits]\nrest = 2M\n")
    order = [("etc", "10-a"), ("usr/lib", "20-b"), ("run", "30-c"), ("etc", "9-last")]
    for top, name in order:
        text = f"[policy]\nsummary = {name}\n"
        write(system(tmp_path, top, f"x.conf.d/{name}.conf"), text)
    write(system(tmp_path, "etc", "x.conf.d/99-readme.txt"), "not read")
    write(system(tmp_path, "etc", "x.conf.d/.99-hidden.conf"), "not read")
    policy = load_policy("x", root=tmp_path)
    assert [Path(file).stem for file in policy.files] == ["x", "10-a", "20-b", "30-c", "9-last"]
    assert policy.summary == "9-last"
    assert policy.limits.rest_bytes == 2 << 20
    assert policy.origins["policy", "summary"].endswith(
        "etc/writebackd/policies.d/x.conf.d/9-last.conf:2"
    )


@pytest.mark.parametrize("strong", ["a file", "a link to /dev/null", "nothing"])
def test_same_drop_in_name_masks(tmp_path: Path, strong: str) -> None:
    write(system(tmp_path, "usr/lib", "x.conf"), "[limits]\nfloor = 2M\n")
    weak = write(system(tmp_path, "usr/lib", "x.conf.d/a.conf"), "[limits]\nfloor = 3M\nrest = 5M")
    masking = system(tmp_path, "etc", "x.conf.d/a.conf")
    if strong == "a file":
        write(masking, "[limits]\nfloor = 4M\n")
    elif strong == "a link to /dev/null":
        masking.parent.mkdir(parents=True)
        masking.symlink_to("/dev/null")
    limits = load_policy("x", root=tmp_path).limits
    expected = {"a file": (4, 4), "a link to /dev/null": (2, 4), "nothing": (3, 5)}[strong]
    assert (limits.floor_bytes >> 20, limits.rest_bytes >> 20) == expected
    assert weak.exists()


def test_masked_policy_is_refused_and_listed(tmp_path: Path) -> None:
    path = system(tmp_path, "etc", "default.conf")
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/null")
    with pytest.raises(PolicyError, match="is masked: remove the link"):
        load_policy("default", root=tmp_path)
    rows = {entry.name: entry for entry in list_policies(root=tmp_path)}
    assert rows["default"].path == str(path)
    assert "masked" in rows["default"].problems[0]
    assert rows["db-hwraid"].problems == ()
    assert "RAID" in rows["db-hwraid"].summary


def test_errors_in_a_drop_in_name_the_drop_in(tmp_path: Path) -> None:
    base = write(system(tmp_path, "usr/lib", "x.conf"), "[limits]\nceiling = 1G\n")
    bad = write(system(tmp_path, "etc", "x.conf.d/a.conf"), "\n[limits]\nfloor = 2G\nx = 1\n")
    assert check("x", root=tmp_path) == [
        StartsWith(f"{bad}:4: unknown key 'x'"),
        f"{bad}:3: floor: floor 2G ({bad}:3) is above ceiling 1G ({base}:2): "
        "lower floor or raise ceiling",
    ]


def test_drop_ins_of_all_are_merged_into_every_policy_before_its_own(tmp_path: Path) -> None:
    site = write(
        system(tmp_path, "etc", "all.conf.d/90-site.conf"),
        "[policy]\nmode = observe\n[limits]\nrest = 64M\n[devices]\nexclude = sdz\n",
    )
    own = write(system(tmp_path, "usr/lib", "etcd.conf.d/10-own.conf"), "[limits]\nrest = 65M\n")
    rows = list_policies(root=tmp_path)
    assert len(rows) == 13 and not any(row.problems for row in rows)
    for row in rows:
        policy = load_policy(row.name, root=tmp_path)
        assert (policy.mode, policy.devices.exclude) == ("observe", ("sdz",)), row.name
        assert policy.origins["policy", "mode"] == f"{site}:2"
        assert policy.limits.rest_bytes >> 20 == (65 if row.name == "etcd" else 64), row.name
    assert load_policy("etcd", root=tmp_path).files[1:] == (str(site), str(own))
    assert f"# {site}:2\nmode = observe" in render(load_policy("desktop", root=tmp_path))
    # A file is that file and its own drop-ins.
    assert load_policy(str(packaged_dir() / "etcd.conf"), root=tmp_path).mode == "enforce"


def test_drop_ins_of_all_are_as_strict_and_tell_no_policies_apart(tmp_path: Path) -> None:
    text = "[policy]\nname = all\nsummary = x\nmod = observe\n[match]\nmemory = 5: 1G..\n"
    bad = write(system(tmp_path, "etc", "all.conf.d/a.conf"), text)
    assert check("desktop", root=tmp_path) == [
        StartsWith(f"{bad}:2: name: belongs to one policy"),
        StartsWith(f"{bad}:3: summary: belongs to one policy"),
        StartsWith(f"{bad}:4: unknown key 'mod'"),
        StartsWith(f"{bad}:6: memory: belongs to one policy"),
    ]


SPOILS_TWO = "[policy]\nmode = observe\n[limits]\nceiling = 32M\n"


def test_a_drop_in_of_all_is_checked_with_every_policy(tmp_path: Path) -> None:
    site = write(system(tmp_path, "etc", "all.conf.d/50-site.conf"), SPOILS_TWO)
    floors = {name: load_policy(name, root=tmp_path / "no").origins["limits", "floor"]
              for name in ("analytics", "backup-target")}  # fmt: skip
    assert check(str(site), root=tmp_path) == [
        f"{floor}: floor: floor 64M ({floor}) is above ceiling 32M ({site}:4): lower floor or raise"
        f" ceiling (as a part of policy {name})"
        for name, floor in floors.items()
    ]
    write(site, "[policy]\nname = x\n[match]\nleast = 3\n")
    assert check(str(site), root=tmp_path) == [  # of every policy, so told once
        f"{site}:{line}: {key}: belongs to one policy, and this file applies to all: move it into "
        "NAME.conf.d"
        for line, key in ((2, "name"), (4, "least"))
    ]
    write(site, "[limits]\nceiling = 300M\n")
    assert check(str(site), root=tmp_path) == []


def test_a_drop_in_is_checked_with_its_policy_and_told_its_own_errors_alone(tmp_path: Path) -> None:
    write(system(tmp_path, "etc", "all.conf.d/90-late.conf"), "[limits]\nrest = 3M\nx = 1\n")
    own = write(system(tmp_path, "etc", "etcd.conf.d/a.conf"), "[limits]\nfloor = 1G\n")
    (problem,) = check(str(own), root=tmp_path)
    assert problem.startswith(f"{own}:2: floor: floor 1G ({own}:2) is above ceiling 512M (")
    assert problem.endswith("lower floor or raise ceiling")
    write(own, "[limits]\nfloor = 2M\n")
    assert check(str(own), root=tmp_path) == []
    other = write(system(tmp_path, "etc", "no-such.conf.d/a.conf"), "")
    assert check(str(other), root=tmp_path) == [StartsWith("no policy 'no-such'")]
    mine = write(tmp_path / "mine.conf", "[limits]\nceiling = 2M\n")  # used by its path
    own = write(tmp_path / "mine.conf.d/a.conf", "[limits]\nfloor = 3M\n")
    assert check(str(own)) == [StartsWith(f"{own}:2: floor: floor 3M ({own}:2) is above ceiling 2M "
                                          f"({mine}:2)")]  # fmt: skip


def test_a_file_is_checked_as_what_it_is_to_be(tmp_path: Path) -> None:
    place = system(tmp_path, "etc", "all.conf.d/50-site.conf")
    write(place, "[limits]\nnonsense\n")  # what is there now goes when it comes
    write(place.with_name("60-more.conf"), "[limits]\nceiling = 1G\n")
    new = write(tmp_path / "ansible.x7", "[limits]\nceiling = 32M\n[policy]\nmode = observe\n")
    assert check(str(new), root=tmp_path, place=str(place)) == []  # in order: 60 is after it
    late = check(str(new), root=tmp_path, place=str(place.with_name("70-site.conf")))
    assert [each.partition("policy ")[2] for each in late] == ["analytics)", "backup-target)"]
    whole = write(tmp_path / "tmp1", "[policy]\nname = ours\n")
    ours = str(tmp_path / "ours.conf")
    assert check(str(whole), place=ours) == []
    assert check(str(whole), place=ours.replace("ours", "theirs")) == [StartsWith(f"{whole}:2: ")]


def test_no_policy_is_called_all(tmp_path: Path) -> None:
    path = write(system(tmp_path, "etc", "all.conf"), "[limits]\nfloor = 2M\n")
    assert "all" not in [row.name for row in list_policies(root=tmp_path)]
    with pytest.raises(PolicyError, match="'all' is no policy"):
        load_policy("all", root=tmp_path)
    assert misplaced([path.parent]) == [StartsWith(f"{path}: no policy can be called 'all'")]
    assert check(str(path), root=tmp_path) == misplaced([path.parent])
    other = system(tmp_path, "etc", "default.d/x.conf")
    assert check(str(path), root=tmp_path, place=str(other)) == [
        f"{other}: never read: move it into {other.parents[1]}/default.conf.d/"
    ]


REACHED = "textfile = /run/writebackd/x.prom", "textfile = /var/run/writebackd/x.prom", ""
NODE = "textfile = /var/lib/prometheus/node-exporter/x.prom"


@pytest.mark.parametrize("line,problem,warning", [
    *((line, "", "") for line in REACHED),
    (NODE, "ReadWritePaths=/var/lib/prometheus/node-exporter to the unit", ""),
    ("textfile = /home/x/y.prom", "may not write there", ""),
    ("textfile = /run/writebackd/../x.prom", "may not write there", ""),
    ("textfile = /tmp/y.prom", "has a /tmp of its own", ""),
    ("textfile = /srv/y.prom", "", "ReadWritePaths=/srv to the unit"),
    ("exec = /home/ops/page.sh", "has no access there", "no such file here"),
    ("exec = /tmp/page.sh", "has no access there", "no such file here"),
    ("exec = /bin/sh", "", ""),
    ("mail = root\nsendmail = /root/mail", "has no access there", "no such file here"),
    ("sendmail = /root/mail", "", ""),
])  # fmt: skip
def test_a_check_tells_what_the_unit_cannot_reach(
    tmp_path: Path, line: str, problem: str, warning: str
) -> None:
    section = "metrics" if line.startswith("textfile") else "alerts"
    path = write(tmp_path / "p.conf", f"[{section}]\n{line}\n")
    load_policy(str(path))  # a daemon that is started otherwise may reach it
    for lines, wanted in (
        (check(str(path), root=tmp_path), problem), (unresolved(str(path), []), warning)
    ):  # fmt: skip
        assert len(lines) == bool(wanted) and all(wanted in each for each in lines)


def test_a_textfile_may_be_where_a_drop_in_lets_the_unit_write(tmp_path: Path) -> None:
    path = write(tmp_path / "p.conf", f"[metrics]\n{NODE}\n")
    unit = tmp_path / "etc/systemd/system/writebackd.service.d/x.conf"
    for setting, good in (
        ("ReadWritePaths=/srv -/var/lib/prometheus", True), ("ReadWritePaths=/var/lib/prom", False),
        ("BindPaths=/srv:/var/lib/prometheus:rbind", True), ("BindPaths=/var/lib/prometheus", True),
        ('ReadWritePaths="/var/lib/prometheus"', True),
        ("BindPaths=/var/lib/prometheus:/srv", False),
    ):  # fmt: skip
        write(unit, f"[Service]\n{setting}\n")
        assert (check(str(path), root=tmp_path) == []) is good


def test_a_drop_in_is_checked_from_within_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "default.conf.d"
    directory.mkdir()
    for name in ("50-site.conf", "50-site"):
        (directory / name).write_text("[limits]\nlease = 12s\n")
    monkeypatch.chdir(directory)
    for path in ("50-site.conf", "./50-site.conf"):
        assert check(path, tmp_path) == []
    (said,) = check("./50-site", tmp_path)
    assert said.endswith("50-site: never read, since its name does not end in .conf")


def test_drop_ins_of_another_policy_are_named(tmp_path: Path) -> None:
    write(system(tmp_path, "etc", "all.conf.d/a.conf"), "")
    write(system(tmp_path, "etc", "etcd.conf.d/a.conf"), "")
    write(system(tmp_path, "run", "default.conf.d/a.conf"), "")
    write(system(tmp_path, "etc", "desktop.conf.d/readme"), "")  # nothing that would be read
    assert unused_drop_ins("etcd", root=tmp_path) == (system(tmp_path, "run", "default.conf.d"),)
    assert unused_drop_ins("default", root=tmp_path) == (system(tmp_path, "etc", "etcd.conf.d"),)
