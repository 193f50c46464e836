# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy says of a device, as it is rendered, and what is shipped."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from policy_cases import load_text, system, write
from writebackd.policy import PolicyError, load_policy, render
from writebackd.policy.keys import KEYS
from writebackd.policy.load import packaged_dir, unresolved
from writebackd.policy.rules import Rule
from writebackd.policy.schema import Policy, is_pattern
from writebackd.tuning import SPEND
from writebackd.types.storage import Device

CHECKOUT = Path(__file__).resolve().parents[2]


def test_config_dir_stands_in_for_the_system(tmp_path: Path) -> None:
    config = tmp_path / "config"
    write(config / "default.conf.d/a.conf", "[limits]\nfloor = 3M\n")
    write(system(tmp_path, "etc", "default.conf.d/b.conf"), "[limits]\nfloor = 5M\n")
    policy = load_policy(None, config, root=tmp_path)
    assert policy.limits.floor_bytes == 3 << 20
    assert policy.files[0] == str(packaged_dir() / "default.conf")
    write(config / "default.conf", "[policy]\nsummary = own\n")
    assert load_policy("default", config, root=tmp_path).files[0] == str(config / "default.conf")
    with pytest.raises(PolicyError, match="correct --config-dir"):
        load_policy(None, tmp_path / "nowhere")


def test_a_path_is_that_file_and_its_own_drop_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(system(tmp_path, "etc", "default.conf.d/b.conf"), "[limits]\nfloor = 5M\n")
    write(tmp_path / "default.conf", "[limits]\nrest = 4M\n")
    write(tmp_path / "default.conf.d/a.conf", "[limits]\nfloor = 3M\n")
    monkeypatch.chdir(tmp_path)
    for text in ("default.conf", "./default.conf", str(tmp_path / "default.conf")):
        policy = load_policy(text, root=tmp_path)
        assert (policy.name, policy.limits.floor_bytes) == ("default", 3 << 20)
        assert policy.limits.rest_bytes == 4 << 20


@pytest.mark.parametrize(("name", "message"), [
    ("db-hwrad", "no policy 'db-hwrad': did you mean 'db-hwraid'?: known are "),
    ("zzz", "no policy 'zzz': known are"),
    ("-x", "not a policy name"),
    ("a b", "not a policy name"),
])  # fmt: skip
def test_unknown_name(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(message)):
        load_policy(name, root=tmp_path)


def test_the_law_has_a_share_for_every_preference(tmp_path: Path) -> None:
    (key,) = [key for key in KEYS if key.name == "prefer"]
    found = {
        choice: SPEND[load_text(tmp_path, f"[objective]\nprefer = {choice}\n").objective.prefer]
        for choice in key.kind.choices
    }
    assert found == SPEND and sorted(found, key=lambda each: -found[each]) == list(found)


def test_default_rest_moves_with_the_bounds(tmp_path: Path) -> None:
    assert load_text(tmp_path, "[limits]\nceiling = 3M\n").limits.rest_bytes == 3 << 20
    assert load_text(tmp_path, "[limits]\nfloor = 32M\n").limits.rest_bytes == 32 << 20


DEVICE_TEXT = """
[device sd*]
floor = 2M
fsync-p99 = 50ms
[device sda]
floor = 4M
rest = 8M
allowed-delay = 12ms
[device 8:16]
drain-time = 1s
baseline-multiple = 20x
ceiling = 64M
"""


SD = {"floor_bytes": 2 << 20, "fsync_p99_s": 0.05}


@pytest.mark.parametrize(("name", "devno", "changed"), [
    ("dm-0", "253:0", {}),
    ("sdc", "8:32", SD),
    ("sda", "8:0", {**SD, "floor_bytes": 4 << 20, "rest_bytes": 8 << 20,
                    "allowed_delay_s": 0.012}),
    ("sdb", "8:16", {**SD, "drain_time_s": 1.0, "baseline_multiple": 20.0,
                     "ceiling_bytes": 64 << 20, "own_ceiling_bytes": 64 << 20}),
])  # fmt: skip
def test_for_device(tmp_path: Path, name: str, devno: str, changed: dict[str, Any]) -> None:
    policy = load_text(tmp_path, DEVICE_TEXT)
    expected = dataclasses.replace(load_text(tmp_path, "").of(Device("x", "1:1", "1:1")), **changed)
    assert policy.of(Device(name, devno, devno)) == expected


def test_a_drop_in_changes_one_line_of_a_device_section(tmp_path: Path) -> None:
    base = write(tmp_path / "p.conf", DEVICE_TEXT)
    drop_in = write(tmp_path / "p.conf.d/a.conf", "[device /dev/sd*]\nfsync-p99 = 70ms\n")
    policy = load_policy(str(base))
    sda = policy.of(Device("sda", "8:0", "8:0"))
    assert (sda.fsync_p99_s, sda.floor_bytes) == (0.07, 4 << 20)
    assert policy.origins["device sd*", "fsync-p99"] == f"{drop_in}:2"
    assert policy.origins["device sd*", "floor"] == f"{base}:3"
    assert load_policy(str(write(tmp_path / "again/p.conf", render(policy)))) == policy


def test_floor_wins_where_only_one_device_makes_globs_overlap(tmp_path: Path) -> None:
    policy = load_text(tmp_path, "[device sd*]\nfloor = 9M\n[device *a]\nceiling = 2M\n")
    assert policy.of(Device("sda", "8:0", "8:0")).ceiling_bytes == 9 << 20
    assert policy.of(Device("vda", "8:0", "8:0")).ceiling_bytes == 2 << 20


def test_rest_is_within_the_bounds_of_its_device(tmp_path: Path) -> None:
    policy = load_text(
        tmp_path,
        "[limits]\nrest = 8M\n[device sda]\nfloor = 32M\n[device sdb]\nceiling = 2M\n"
        "[device nvme*]\nrest = 64M\n",
    )
    names = ("vda", "sda", "sdb", "nvme0n1")
    rests = [policy.of(Device(name, "8:0", "8:0")).rest_bytes >> 20 for name in names]
    assert rests == [8, 32, 2, 64]
    for bound in ("ceiling = 16M", "floor = 1G"):
        with pytest.raises(PolicyError, match=r"p.conf:2: rest: 64M is outside .* for device sda"):
            load_text(tmp_path, f"[device sda]\nrest = 64M\n{bound}\n")
    # A ceiling for all, or a drop-in's for these devices, is not to end in an error about a line
    # that its author did not write.
    write(tmp_path / "shipped.conf", "[device nvme*]\nrest = 64M\n")
    write(tmp_path / "shipped.conf.d/site.conf", "[device nvme*]\nceiling = 32M\n")
    site = load_policy(str(tmp_path / "shipped.conf"))
    assert site.of(Device("nvme0n1", "259:0", "259:0")).rest_bytes == 32 << 20
    low = load_text(tmp_path, "[limits]\nceiling = 32M\n[device nvme*]\nrest = 64M\n")
    assert low.of(Device("nvme0n1", "259:0", "259:0")).rest_bytes == 32 << 20
    both = load_text(tmp_path, "[device sd*]\nrest = 64M\n[device *a]\nceiling = 2M\n")
    assert both.of(Device("sda", "8:0", "8:0")).rest_bytes == 2 << 20


@pytest.mark.parametrize(("devices", "name", "loop", "command_line", "reason"), [
    ("", "sda", False, (), None),
    ("", "loop0", True, (), "loop device: only managed when named by --device or a policy"),
    ("", "loop0", True, ("loop0",), None),
    ("", "loop0", True, ("/dev/loop0",), None),
    ("", "loop0", True, ("loop*",), None),
    ("", "loop0", True, ("*",), "loop device"),
    ("", "sda", False, ("loop0",), "not among the devices named by --device"),
    ("", "dm-0", True, ("dm-0",), None),
    ("include = * loop1", "loop1", True, (), None),
    ("include = * loop1", "loop0", True, (), "loop device"),
    ("include = * loop1", "sda", False, (), None),
    ("include = loop?", "sda", False, (), "not in include (FILE:2)"),
    ("include = /dev/sd[ab]", "sdb", False, (), None),
    ("include = /dev/sd[ab]", "sdc", False, (), "not in include"),
    ("include = 8:0", "sda", False, (), None),
    ("exclude = sd*", "sda", False, (), "excluded by 'sd*' (FILE:2)"),
    ("exclude = 8:*", "sda", False, (), "excluded by '8:*'"),
    ("exclude = sd*", "sda", False, ("sda",), None),
    ("exclude = sd*", "dm-0", False, (), None),
])  # fmt: skip
def test_selects(
    tmp_path: Path,
    devices: str,
    name: str,
    loop: bool,
    command_line: tuple[str, ...],
    reason: str | None,
) -> None:
    policy = load_text(tmp_path, f"[devices]\n{devices}\n")
    devno = "8:0" if name == "sda" else ""
    device = Device(name, devno, devno, driver="loop" if loop else None)
    answer = policy.selects(device, command_line)
    assert (answer is None) is (reason is None)
    assert (reason or "").replace("FILE", f"{tmp_path}/p.conf") in (answer or "")


WWN = "wwn-0x5000c500a1b2c3d4"


@pytest.mark.parametrize("section,found", [
    (f"/dev/disk/by-id/{WWN}", True), (WWN, True), ("/dev/disk/by-id/wwn-*", True),
    ("/srv/db", True), ("/srv/db/", True), ("/srv/*", True), ("sd*", True),
    ("wwn-*", True), ("ata-X_1", True),
    ("/srv", False), (f"{WWN}0", False), ("ata-*", False), ("/dev/disk/by-id/sda", False),
])  # fmt: skip
def test_sections_name_a_device_by_what_stays(tmp_path: Path, section: str, found: bool) -> None:
    policy = load_text(tmp_path, f"[device {section}]\nceiling = 9M\n")
    disk = Device(
        "sda", "8:0", "8:0", filesystems=(("8:1", "ext4", "/srv/db"),),
        links=(f"/dev/disk/by-id/{WWN}", "/dev/disk/by-id/ata-X_1"),
    )  # fmt: skip
    written = policy.devices.settings[0].glob
    place = f"[device {written}] ({tmp_path}/p.conf:2)"
    assert policy.of(disk).ceiling_bytes == (9 << 20 if found else 4 << 30)
    assert policy.sections(disk) == ([place] if found else [])
    # What looks like the kernel's may come later.
    stays = section.startswith(("/", "wwn-"))
    said = f"{place}: no device with a filesystem has this name now; see `writebackctl devices`"
    assert policy.unresolved([disk]) == ([said] if stays and not found else [])
    assert policy.unresolved([]) == ([said] if stays else [])
    literal = stays or not is_pattern(written)
    assert unresolved(f"{tmp_path}/p.conf", []) == ([said] if literal else [])


def test_a_volume_is_named_by_its_path(tmp_path: Path) -> None:
    write(tmp_path / "p.conf", "[device vg0-data]\nceiling = 9M\n")
    volume = Device("dm-0", "253:0", "253:0", links=("/dev/mapper/vg0-data",))
    (said,) = unresolved(f"{tmp_path}/p.conf", [volume])
    assert said.endswith("has this name now; write /dev/mapper/vg0-data")


def test_lists_of_devices_take_such_names_too(tmp_path: Path) -> None:
    policy = load_text(tmp_path, f"[devices]\ninclude = /srv/db\nexclude = {WWN}\n")
    loop = Device("loop0", "7:0", "7:0", filesystems=(("7:0", "ext4", "/srv/db"),), driver="loop")
    assert policy.selects(loop) is None
    known = dataclasses.replace(loop, links=(f"/dev/disk/by-id/{WWN}",))
    assert "excluded by 'wwn-" in (policy.selects(known) or "")
    assert policy.unresolved([loop]) == [
        f"exclude {WWN} ({tmp_path}/p.conf:3): no device with a filesystem has this name now; see"
        " `writebackctl devices`"
    ]


def test_a_disk_on_the_command_line_stands_for_what_lies_on_it(tmp_path: Path) -> None:
    policy = load_text(tmp_path, "[devices]\nexclude = vg*\n")
    pool = Device("btrfs-19", "btrfs-19", "btrfs-19", ("sdb", "sdc"))
    assert policy.selects(pool, ("/dev/sdb",)) is None
    assert "named by --device" in str(policy.selects(pool, ("sda",)))
    # A policy's globs are for the device itself: what excludes a disk must not
    # exclude a pool that has it among others.
    other = load_text(tmp_path, "[devices]\nexclude = sdb\n")
    assert other.selects(pool) is None


def test_policies_are_equal_by_what_they_say(tmp_path: Path) -> None:
    one = load_policy(str(write(tmp_path / "a/p.conf", "[limits]\nfloor = 1M\n")))
    two = load_policy(str(write(tmp_path / "b/p.conf", "\n\n")))
    assert one == two
    assert one.origins["limits", "floor"] != two.origins["limits", "floor"] == "default"
    assert one != load_policy(str(write(tmp_path / "c/p.conf", "[limits]\nfloor = 2M\n")))


def test_render_tells_the_origin_of_every_value(tmp_path: Path) -> None:
    text = render(load_text(tmp_path, DEVICE_TEXT))
    lines = text.splitlines()
    values = [i for i, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    assert len(values) == len(KEYS) + 8
    for index in values:
        assert re.fullmatch(r"# (default|.*/p\.conf:\d+)", lines[index - 1]), lines[index]
    assert f"# {tmp_path}/p.conf:6\nfloor = 4M" in text
    assert "# default\nmode = enforce" in text


# Within these no two keys can contradict each other, nor DEVICE_TEXT.
ANY_VALUE: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(["enforce", "observe"]),
    "prefer": st.sampled_from(["latency", "balanced", "throughput"]),
    "floor": st.integers(8 << 10, 2 << 20),
    "rest": st.integers(2 << 20, 64 << 20),
    "ceiling": st.integers(64 << 20, 1 << 40),
    "allowed-delay": st.floats(1e-3, 0.5),
    "drain-time": st.floats(0.5, 60),
    "cooldown": st.one_of(st.just(0.0), st.floats(1e-6, 600)),
    "demand-hold": st.floats(1, 3600),
    "fsync-p99": st.floats(1e-4, 60),
    "background": st.floats(0.01, 0.5),
    "step-up": st.floats(1.1, 16),
    "min-sync-rate": st.floats(0.1, 1e6),
    "include": st.sampled_from([("*", "loop0"), ("sd[a-c]*", "8:16")]),
    "exclude": st.sampled_from([(), ("dm-*", "zram?")]),
    "talkers": st.booleans(),
    "services": st.sampled_from([None, Rule(7, ("etcd.service", "mysql*"))]),
    "memory": st.sampled_from([None, Rule(1000, ("1G..",)), Rule(1, ("5B..5B",))]),
}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_render_reads_back_as_the_same_policy(tmp_path: Path, data: st.DataObject) -> None:
    lines = []
    drawn = {}
    for key in (key for key in KEYS if key.name in ANY_VALUE):
        drawn[key.section, key] = data.draw(ANY_VALUE[key.name], label=key.name)
        lines.append(f"[{key.section}]\n{key.name} = {key.kind.format(drawn[key.section, key])}\n")
    policy = load_text(tmp_path, "".join(lines) + DEVICE_TEXT)
    for (section, key), value in drawn.items():
        part = policy if section == "policy" else getattr(policy, section)
        assert getattr(part, key.attribute) == value
    again = load_policy(str(write(tmp_path / "again/p.conf", render(policy))))
    assert again == policy


@given(name=st.text())
@example(name="/\0")
def test_any_name_is_found_or_refused(name: str) -> None:
    try:
        load_policy(name, root=Path("/nonexistent"))
    except PolicyError as error:
        assert error.messages


@pytest.mark.parametrize("path", sorted((CHECKOUT / "policies").glob("*.conf")), ids=str)
def test_shipped_policies_are_good_and_give_reasons(path: Path) -> None:
    policy = load_policy(str(path))
    assert policy.summary
    assert policy.origins["policy", "name"] != "default"
    lines = path.read_text(encoding="utf-8").splitlines()
    # A value is one line, however many names it has.
    assert max(len(line) for line in lines if not line.startswith("services = ")) <= 100
    for (section, key), origin in policy.origins.items():
        if origin == "default" or key in ("name", "summary"):
            continue
        number = int(origin.rsplit(":", 1)[1])
        assert lines[number - 1].startswith(key)
        above = lines[number - 2]
        empty = lines[number - 1].endswith("=")
        if path.stem == "default" and empty:
            above = next(  # all keys are there, so one comment may be for several
                line for line in lines[number - 2 :: -1] if "=" not in line or line.startswith("#")
            )
        assert above.startswith("# "), f"{path}:{number}: [{section}] {key} has no reason above it"


def cells(page: str, beginning: str, *after: str) -> list[str]:
    """The first row of a table of the manual that begins so, after these phrases."""
    text = (CHECKOUT / "docs" / page).read_text(encoding="utf-8")
    for phrase in after:
        text = text.partition(phrase)[2]
    row = next(line for line in text.splitlines() if line.startswith(f"| {beginning} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_figures_in_reasons_are_those_of_the_manual() -> None:
    text = (CHECKOUT / "policies/db-hwraid.conf").read_text(encoding="utf-8").replace("\n#", "")
    page = "research/2026-11-policies.md"
    (p99,) = re.findall(rf"p99 is (\S+ ms) with this policy in the lab \(docs/{page}", text)
    assert p99 == cells(page, "db-hwraid", "syncs/s, default limits")[5]
    slow = "On the model of the slow array (60 MB/s"
    told = re.findall(r"(\S+) % on (xfs|ext4) \(best fixed limit: (\S+) %\)", text)
    rates = re.findall(r"of the flood's rate (\S+) % and (\S+) %", text)[0]
    assert len(told) == len(rates) == 2
    for (kept, filesystem, of_fixed), rate in zip(told, rates):
        after = (slow, f"| {filesystem}, default limits")
        fixed = cells("research/2026-11-pacing.md", "1 MB, the best fixed limit", *after)
        paced = cells("research/2026-11-pacing.md", "the agent, pacing", *after)
        for said, figure in ((kept, paced[2]), (of_fixed, fixed[2]), (rate, paced[4])):
            assert float(said) == pytest.approx(float(figure) * 100)


@pytest.mark.parametrize("path", sorted((CHECKOUT / "policies").glob("*.conf")), ids=str)
def test_shipped_policies_say_only_what_is_not_so_anyway(path: Path, tmp_path: Path) -> None:
    policy = load_policy(str(path))
    built_in = load_policy(str(write(tmp_path / "p.conf", "")))
    assert policy.match.least == sum_of_must(policy) or policy.name == "default"
    if policy.name == "default":
        return
    for key in KEYS:
        said = policy.origins[key.section, key.name] != "default"
        if key.name not in ("name", "summary", "least"):
            assert said == (policy.value(key) != built_in.value(key)), key.name
    for setting in policy.devices.settings:
        in_general = policy.of(Device("none", "0:0", "0:0"))
        assert setting.value != getattr(in_general, setting.key.attribute)


def sum_of_must(policy: Policy) -> int:
    """The points of all rules but those that only add to what fits already."""
    extra = {"db-hwraid": ["virtualisation"], "vm-guest": ["drivers"],
             "backup-target": ["rotational"]}
    return sum(
        getattr(policy.match, key.attribute).points
        for key in KEYS
        if key.section == "match" and key.name != "least" and policy.value(key) is not None
        and key.name not in extra.get(policy.name, [])
    )


def test_default_conf_spells_out_the_built_in_defaults(tmp_path: Path) -> None:
    shipped = load_policy(str(CHECKOUT / "policies/default.conf"))
    built_in = load_policy(str(write(tmp_path / "default.conf", "")))
    (nvme,) = shipped.devices.settings  # what only devices of one kind get is no default
    assert (nvme.glob, nvme.key.name, nvme.value) == ("driver:nvme", "rest", 64 << 20)
    devices = dataclasses.replace(shipped.devices, settings=())
    assert dataclasses.replace(shipped, summary="", devices=devices) == built_in
    assert [where for where, origin in shipped.origins.items() if origin == "default"] == []
