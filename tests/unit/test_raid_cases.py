# SPDX-License-Identifier: GPL-2.0-or-later
"""RAID tools of many releases: what is read of their answers, and that nothing is made up."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import pytest

import raid_cases as cases
from fake_sysfs import SATA, VIRTUAL, FakeSysfs
from raid_host import ME, bin_dir, program, told, tree
from writebackd.cli.doctor_checks import raid
from writebackd.kernel.topology import scan
from writebackd.paths import RAID as FILE
from writebackd.storage import (
    arcconf,
    linux_storage,
    megacli,
    raid_tools,
    report_file,
    ssacli,
    storcli,
    tw_cli,
)
from writebackd.storage.backing_watch import look_at_arrays
from writebackd.storage.collector import collect
from writebackd.storage.device_matcher import Matcher
from writebackd.storage.report_file import Tool
from writebackd.storage.tool_output import Controller, ToolError, Volume
from writebackd.types.storage import ArrayWork, CacheMode, Protection

__all__ = ["bin_dir", "tree"]  # fixtures

OUTPUTS = Path(__file__).with_name("raid_outputs")
BACK, THROUGH = CacheMode.WRITE_BACK, CacheMode.WRITE_THROUGH
ALWAYS = CacheMode.ALWAYS_WRITE_BACK
OK, CHARGING, FAILED = Protection.OK, Protection.CHARGING, Protection.FAILED
LEARNING, ABSENT = Protection.LEARNING, Protection.ABSENT
Parse = Callable[[Sequence[str]], Tuple[Controller, ...]]
Modes = Dict[object, Optional[CacheMode]]


def output(name: str) -> str:
    return (OUTPUTS / f"{name}.txt").read_text()


# ---- of each release ---------------------------------------------------------

# Name of the output; address, bytes of cache, protection, and modes by disk or number.
READ: List[Tuple[Parse, str, Optional[str], Optional[int], Optional[Protection], Modes]] = [
    (arcconf.parse, "arcconf-old-unprotected-write-back", None, None, ABSENT, {0: ALWAYS}),
    (arcconf.parse, "arcconf-smartraid-write-back", "0000:4b:00.0", 3638978150, OK,
     {"sda": BACK, "sdb": THROUGH, "sdc": THROUGH}),
    (ssacli.parse, "hpacucli-array-accelerator", None, None, OK, {"sda": BACK}),
    (ssacli.parse, "ssacli-warning-before-keys", "0000:05:00.0", 314572800, OK, {"sda": BACK}),
    (megacli.parse, "megacli-degraded-charging", None, None, CHARGING, {}),
    (storcli.parse, "storcli-hpe-energy-pack-ok", "0000:64:00.0", 7002390528, OK, {239: BACK}),
    (storcli.parse, "storcli-plain-show", "0000:3b:00.0", None, OK, {0: BACK}),
    (storcli.parse, "storcli2-supercap-write-back", "0000:16:00.0", 4065329152, OK, {1: BACK}),
    (tw_cli.parse, "tw_cli-unit-cache", None, None, OK, {0: BACK, 1: THROUGH}),
]  # fmt: skip


@pytest.mark.parametrize(
    "parse, name, pci, size, protection, modes", [pytest.param(*row, id=row[1]) for row in READ]
)
def test_an_output_is_read(
    parse: Parse, name: str, pci: Optional[str], size: Optional[int],
    protection: Optional[Protection], modes: Modes,
) -> None:
    (found,) = parse([output(name)])
    assert (found.pci, found.capacity_bytes, found.protection) == (pci, size, protection)
    assert {each.disk or each.number: each.mode for each in found.volumes} == modes
    assert found.unread == ()


def test_every_output_is_in_a_test() -> None:
    elsewhere = {"mdstat-name-with-dash", "storcli-nolog-unsupported"}
    assert {path.stem for path in OUTPUTS.iterdir()} == {row[1] for row in READ} | elsewhere


def test_models_and_rebuilds() -> None:
    (found,) = storcli.parse([output("storcli-plain-show")])
    assert found.model == "AVAGO 3108 MegaRAID"
    (found,) = storcli.parse([output("storcli2-supercap-write-back")])
    assert found.model == "MegaRAID 9660-16i"
    (found,) = tw_cli.parse([output("tw_cli-unit-cache")])
    assert found.model == "9650SE-16ML"
    assert found.volumes[1].works == (ArrayWork("rebuild", 0.46),)
    old = swap("tw_cli-unit-cache", "%RCmpl", "%Cmpl").replace("46%", "46")
    assert tw_cli.parse([old])[0].volumes == found.volumes
    (bare,) = tw_cli.parse([tw_cli_bbu("-")])
    assert [each.mode for each in bare.volumes] == [ALWAYS, THROUGH]


def test_an_array_with_a_name_of_the_administrator() -> None:
    assert linux_storage.parse_mdstat(output("mdstat-name-with-dash")) == (
        Volume(disk="md_my-data", works=(ArrayWork("rebuild", 0.126, 34242560.0),)),
    )


# ---- states ------------------------------------------------------------------


def swap(name: str, old: str, new: str) -> str:
    text = output(name)
    assert old in text
    return text.replace(old, new)


def storcli_state(said: str) -> str:
    return cases.storcli_all(battery=said)


def tw_cli_bbu(said: str) -> str:
    return swap("tw_cli-unit-cache", "      OK\n", f"      {said}\n")


def smartraid(said: str) -> str:
    return swap("arcconf-smartraid-write-back", "Backup Power Status                        : Ok",
                f"Backup Power Status : {said}")  # fmt: skip


def energy_bits(said: str) -> str:
    return swap("storcli-hpe-energy-pack-ok", '"Energy Pack Status": 0',
                f'"Energy Pack Status": {said}')  # fmt: skip


def megacli_state(said: str, **flags: str) -> str:
    return cases.megacli_battery(said, **flags)


STATES: List[Tuple[Parse, str, Optional[Protection]]] = [
    *((storcli.parse, storcli_state(said), protection) for said, protection in (
        ("Optimal", OK), ("Dgd (Needs Attention)", FAILED), ("Degraded(Charging)", CHARGING),
        ("Failed", FAILED), ("Critical", FAILED), ("Msng", ABSENT), ("Learning", LEARNING),
        ("Discharging", None), ("Not Charging", None), ("Not Optimal", FAILED),
        ("Sub-optimal", None), ("Okay-ish", None), ("Optimal?", OK), ("Optimal 3", None),
        ("Fully Charged", OK), ("Half Charged", None), ("No Failure", None), ("EOL", FAILED),
    )),
    (storcli.parse, storcli_state("Failed").replace('"Model": "CV"', '"Property": "State"').replace(
        '"State": "Failed"', '"Value": "Failed"'), FAILED),
    (storcli.parse, swap("storcli2-supercap-write-back", '"CurrentCache": "NR,WB"',
                         '"CurrentCache": "NR,WT"').replace('"Present"', '"Absent"').replace(
                         '"Energy Pack Info"', '"Other"'), ABSENT),
    *((storcli.parse, energy_bits(bits), protection) for bits, protection in (
        ("4096", OK), ("2048", OK), ("8", CHARGING), ("64", LEARNING), ("1", ABSENT),
        ("1024", FAILED), ("8192", None), ('"NA"', None), ('"fine"', None), ("255", None),
    )),
    *((arcconf.parse, smartraid(said), protection) for said, protection in (
        ("Ok", OK), ("Okay", OK), ("Failed", FAILED), ("Fully Charged", OK),
        ("Not Fully Charged", CHARGING), ("Recharging", CHARGING),
        ("Not Present", ABSENT), ("Overheated", None), ("Not Ok", None),
    )),
    *((ssacli.parse, cases.ssacli(battery=said), protection) for said, protection in (
        ("OK", OK), ("Failed (Replace Batteries)", FAILED), ("Not OK", None), ("", None),
        ("Recharging", CHARGING), ("Not Present", ABSENT), ("?", None),
    )),
    *((tw_cli.parse, tw_cli_bbu(said), protection) for said, protection in (
        ("OK", OK), ("Testing", LEARNING), ("Charging", CHARGING), ("Fault", FAILED),
        ("Failed", FAILED), ("Error", FAILED), ("WeakBat", FAILED), ("-", ABSENT), ("Fine", None),
    )),
    *((megacli.parse, text, protection) for text, protection in (
        (megacli_state("Optimal"), OK), (megacli_state("Operational"), OK),
        (megacli_state("Non Operational"), FAILED), (megacli_state("Degraded"), FAILED),
        (megacli_state("Degraded(Charging)"), CHARGING), (megacli_state("Unknown"), None),
        (megacli_state("Optimal", Remaining_Capacity_Low="Yes"), OK),
        (swap("megacli-degraded-charging", "Battery State: Degraded(Charging)\n", "").replace(
            ": Charging", ": None"), None),
    )),
]  # fmt: skip


@pytest.mark.parametrize("parse, text, protection", STATES)
def test_words_of_batteries(parse: Parse, text: str, protection: Optional[Protection]) -> None:
    (found,) = parse([text])
    assert found.protection is protection


@pytest.mark.parametrize("parse, text", [
    (storcli.parse, storcli_state("Sleepy")), (arcconf.parse, smartraid("Sleepy")),
    (ssacli.parse, cases.ssacli(battery="Sleepy")), (tw_cli.parse, tw_cli_bbu("Sleepy")),
    (megacli.parse, megacli_state("Sleepy")),
])  # fmt: skip
def test_words_in_no_row_are_kept(parse: Parse, text: str) -> None:
    (found,) = parse([text])
    assert found.protection is None and found.unread == ('battery "Sleepy"',)


@pytest.mark.parametrize("parse, text", [
    (storcli.parse, swap("storcli-plain-show", "RWBD", "RZZD")),
    (storcli.parse, swap("storcli2-supercap-write-back", '"CurrentCache": "NR,WB"',
                         '"CurrentCache": "NR,ZZ"')),
    (ssacli.parse, cases.ssacli(caching="Sleepy")),
    (arcconf.parse, cases.arcconf(status="Sleepy")),
    (tw_cli.parse, swap("tw_cli-unit-cache", "  ON  ", "  ZZ  ")),
    (megacli.parse, "Adapter 0 -- Virtual Drive Information:\nVirtual Drive: 0 (Target Id: 0)\n"
                    "Current Cache Policy: WriteSometimes, Direct\n"),
])  # fmt: skip
def test_a_mode_in_no_row_is_kept(parse: Parse, text: str) -> None:
    (found,) = parse(["", text] if parse is megacli.parse else [text])
    assert found.volumes[0].mode is None
    (said,) = found.volumes[0].unread
    assert "Sleepy" in said or "ZZ" in said or "WriteSometimes" in said


def test_a_title_that_nobody_knows_ends_a_part() -> None:
    text = swap("arcconf-smartraid-write-back", "Physical Drive Write Cache Policy Information",
                "Something New")  # fmt: skip
    text = text.replace("Configured Drives                          : Default",
                        "Cache Status : of drives")  # fmt: skip
    text = text.replace("   Cache Status                               : Ok\n", "", 1)
    (found,) = arcconf.parse([text])
    assert [each.mode for each in found.volumes] == [None, THROUGH, THROUGH]


@pytest.mark.parametrize("key, said, mode", [
    ("Cache Status", "Permanently Disabled", THROUGH), ("Cache Status", "Ok (Unprotected)", ALWAYS),
    ("Cache Status", "Disabled (unprotected)", THROUGH),
    ("No-Battery Write Cache", "Enabled", ALWAYS),
])  # fmt: skip
def test_what_a_smartraid_cache_keeps(key: str, said: str, mode: CacheMode) -> None:
    text = re.sub(f"{key} +:.*", f"{key} : {said}", output("arcconf-smartraid-write-back"))
    modes = [each.mode for each in arcconf.parse([text])[0].volumes]
    assert modes == [mode, THROUGH, THROUGH]


@pytest.mark.parametrize("battery, why, protection", [
    ("", "Cable Error", FAILED), ("OK", "the backup power source failed to charge", FAILED),
    ("OK", "Cache disabled; battery/capacitor charge is low.", CHARGING),
    ("Recharging", "Cable Error", CHARGING), ("OK", "failed to expand an array", OK),
])  # fmt: skip
def test_why_a_cache_is_off(battery: str, why: str, protection: Protection) -> None:
    for cache, told_of in (("Temporarily Disabled", protection), ("OK", None)):
        text = cases.ssacli(f"{cache}\n   Cache Status Details: {why}", battery)
        expected = told_of or {"": None, "OK": OK, "Recharging": CHARGING}[battery]
        assert ssacli.parse([text])[0].protection is expected


# ---- broken answers ----------------------------------------------------------


@pytest.mark.parametrize("around", [
    ("noise (\n", ""), ("", "\n{}"), ("\x1b[2J", "\x00"), ("\ufeff", ""), ("50%\r60%\r\n", "\n"),
    ("\r\n", "\r\n"),
])  # fmt: skip
def test_text_and_control_characters_around_json(around: Tuple[str, str]) -> None:
    text = output("storcli-plain-show")
    assert storcli.parse([around[0] + text + around[1]]) == storcli.parse([text])


@pytest.mark.parametrize("broken", ["S\\N0", "S\x01N0", "S\nN0", "SN0\\", "S\\\\N\\q", "\\uZZ"])
def test_what_a_string_may_not_have(broken: str) -> None:
    plain = output("storcli2-supercap-write-back")
    text = plain.replace('"Serial Number": "SN0"', f'"Serial Number": "{broken}"')
    assert text != plain and storcli.parse([text]) == storcli.parse([plain])


def controllers(*answers: Dict[str, Any]) -> str:
    return json.dumps({"Controllers": list(answers)})


def test_every_status_but_no_controller_is_told() -> None:
    good = json.loads(output("storcli-plain-show"))["Controllers"][0]
    bad = {"Command Status": {"Controller": 1, "Status": "Failure", "Description": "no answer"}}
    none = {"Command Status": {"Status": "Failure", "Description": "No Controller found"}}
    with pytest.raises(ToolError, match="Un-supported command"):
        storcli.parse([output("storcli-nolog-unsupported")])
    (found,) = storcli.parse([controllers(good, bad)])
    assert found.unread == ("controller 1: Failure: no answer",)
    assert storcli.parse([controllers(none)]) == ()
    (half,) = storcli.parse([controllers({**good, **bad})])
    assert half.volumes and half.unread == ("controller 1: Failure: no answer",)
    with pytest.raises(ToolError, match="Error: cannot open"):
        ssacli.parse(["\nError: cannot open the driver\n"])


def damaged(text: str, rng: random.Random) -> str:
    """Some characters changed, lines lost, repeated or swapped."""
    lines = text.split("\n")
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(len(lines)), rng.randrange(4)
        if kind == 0 and lines[at]:
            place = rng.randrange(len(lines[at]))
            other = chr(rng.randrange(32, 127))
            lines[at] = lines[at][:place] + other + lines[at][place + 1 :]
        elif kind == 1:
            del lines[at]
            lines = lines or [""]
        elif kind == 2:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        else:
            other_at = rng.randrange(len(lines))
            lines[at], lines[other_at] = lines[other_at], lines[at]
    return "\n".join(lines)


UNPROTECTED = [
    *((parse, output(name)) for parse, name, *_, protection, _ in READ if protection is not OK),
    *((parse, text) for parse, text, protection in STATES if protection is not OK),
]
# Where the state is good and one flag is not, a lost line is the loss of all that is wrong.
FLAGGED = [
    megacli_state("Optimal", **{flag: "Yes"})
    for flag in ("I2c_Errors_Detected", "No_space_to_cache_offload", "Learn_Cycle_Timeout",
                 "Battery_Replacement_required", "Pack_is_about_to_fail_&_should_be_replaced")
]  # fmt: skip


@pytest.mark.parametrize("text", FLAGGED)
def test_a_bad_flag_counts_also_where_the_answer_is_cut_off(text: str) -> None:
    lines = text.split("\n")
    for end in range(len(lines) + 1):
        try:
            found = megacli.parse(["\n".join(lines[:end])])
        except ToolError:
            continue
        assert found[0].protection in (None, FAILED)


@pytest.mark.parametrize("number", range(len(UNPROTECTED)))
def test_nothing_that_is_not_protected_ever_becomes_it(number: int) -> None:
    parse, text = UNPROTECTED[number]
    rng, lines = random.Random(number), text.split("\n")
    broken = ["\n".join(lines[:end]) for end in range(len(lines))]
    broken += [damaged(text, rng) for _ in range(40)]
    for each in broken:
        try:
            found = parse([each])
        except ToolError:
            continue
        assert not any(one.protection is OK for one in found), each


# ---- how tools are asked -----------------------------------------------------


def asked(tree: FakeSysfs, bin_dir: Path) -> Dict[str, Tool]:
    found = collect(tree.files, 10.0, [str(bin_dir)], bin_dir.parent)
    return {each.name: each for each in found.tools}


@pytest.mark.parametrize("works, outcome", [
    ("'nolog' not in sys.argv", None), ("'all' not in sys.argv", None),
    ("not {'all', 'nolog'} & {*sys.argv}", None), ("False", "Failure: Un-supported command"),
])  # fmt: skip
def test_a_question_that_fails_is_asked_with_less(
    works: str, outcome: Optional[str], tree: FakeSysfs, bin_dir: Path
) -> None:
    program(bin_dir, "storcli64",
            f"bad = {output('storcli-nolog-unsupported')!r}\n"
            f"print({output('storcli-plain-show')!r} if {works} else bad)")  # fmt: skip
    found = asked(tree, bin_dir)["storcli"]
    assert outcome in (found.error or "") if outcome else found.error is None
    assert [each.protection for each in found.controllers] == [OK] * (outcome is None)


def test_a_tool_that_dies_of_show_all_is_asked_for_less(tree: FakeSysfs, bin_dir: Path) -> None:
    program(bin_dir, "perccli64",
            "if 'all' in sys.argv: os.kill(os.getpid(), 4)\n"
            f"print({output('storcli-plain-show')!r})")  # fmt: skip
    assert asked(tree, bin_dir)["perccli"].controllers[0].protection is OK


def test_hpes_tools_pass_foreign_disks_over(tree: FakeSysfs, bin_dir: Path) -> None:
    program(bin_dir, "ssacli",
            "if os.environ.get('INFOMGR_BYPASS_NONSA') != '1': time.sleep(600)\n"
            f"print({cases.ssacli()!r})")  # fmt: skip
    assert asked(tree, bin_dir)["ssacli"].error is None


@pytest.mark.parametrize("place, name", [
    ("/opt/hpe/storcli/storcli64", "storcli"), ("/opt/hp/ssacli/bld/ssacli", "ssacli"),
    ("/opt/hp/hpssacli/bld/hpssacli", "ssacli"), ("/opt/MegaRAID/storcli2/storcli2", "storcli2"),
    ("/opt/MegaRAID/perccli2/perccli2", "perccli2"), ("/opt/lsi/perccli/perccli64", "perccli"),
    ("/opt/MegaRAID/CmdTool2/CmdTool2_64", "megacli"), ("/opt/3ware/tw_cli", "tw_cli"),
])  # fmt: skip
def test_names_and_places(place: str, name: str, tmp_path: Path, tree: FakeSysfs) -> None:
    assert str(Path(place).parent) in raid_tools.search_path()
    directory = tmp_path / Path(place).parent.relative_to("/")
    directory.mkdir(parents=True)
    program(directory, Path(place).name, "")
    found = [
        kind.name
        for kind in raid_tools.kinds(tree.files)
        if raid_tools.find(kind, [str(directory)], tmp_path)
    ]
    assert found == [name]


STORCLI2_DISKS = {"Virtual Drives": [{
    "VD Info": {"DG/VD": "0/1"},
    "VD Properties": {"OS Drive Name": "/dev/sdg"},
}]}  # fmt: skip


def test_storcli2_is_asked_which_disks_its_volumes_are(tree: FakeSysfs, bin_dir: Path) -> None:
    program(bin_dir, "storcli2",
            f"print({cases.storcli(STORCLI2_DISKS)!r} if '/cALL/vALL' in sys.argv else"
            f" {output('storcli2-supercap-write-back')!r})")  # fmt: skip
    (volume,) = asked(tree, bin_dir)["storcli2"].controllers[0].volumes
    assert (volume.number, volume.disk, volume.mode) == (1, "sdg", BACK)


def test_tw_cli_is_asked_for_each_controller(tree: FakeSysfs, bin_dir: Path) -> None:
    units, listed = output("tw_cli-unit-cache").split("\n\nCtl")
    second = listed.splitlines()[-1].replace("c0 ", "c3 ").replace("OK", "Fault")
    program(bin_dir, "tw_cli",
            f"units, listed = {units!r}, {'Ctl' + listed + second!r}\n"
            "off = units.replace('ON ', 'OFF')\n"
            "print({'/c0': units, '/c3': off}.get(sys.argv[1], listed))")  # fmt: skip
    first, other = asked(tree, bin_dir)["tw_cli"].controllers
    assert [each.mode for each in first.volumes] == [BACK, THROUGH] and first.protection is OK
    assert [each.mode for each in other.volumes] == [THROUGH] * 2 and other.protection is FAILED


def test_what_the_second_controller_fails_with_is_told(tree: FakeSysfs, bin_dir: Path) -> None:
    two = output("arcconf-smartraid-write-back").replace("found: 1", "found: 2")
    program(bin_dir, "arcconf", f"print({two!r} if sys.argv[2] == '1' else 'Error: no such card')")
    (found,) = asked(tree, bin_dir)["arcconf"].controllers
    assert found.unread == ("controller 2: Error: no such card",)
    program(bin_dir, "arcconf", "print('Error: driver too old')")
    assert asked(tree, bin_dir)["arcconf"].error == "Error: driver too old"


# ---- whose disk that is ------------------------------------------------------


def matched(tree: FakeSysfs, source: str, *found: Controller) -> Tuple[Dict[str, Any], List[str]]:
    matcher = Matcher(tree.files, scan(tree.files))
    table = {each.device: each for each in matcher.backings(source, found, 7.0)}
    return table, matcher.unmatched


def two_adaptecs(tree: FakeSysfs) -> List[Controller]:
    for disk, host, pci in (("sda", 0, "05"), ("sdb", 1, "0a")):
        place = f"pci0000:00/0000:{pci}:00.0/host{host}/target{host}:0:0/{host}:0:0:0/block"
        tree.disk(disk, f"8:{16 * host}", place)
        tree.scsi_host(f"host{host}", "aacraid")
    good = swap("arcconf-old-unprotected-write-back", "ZMM not installed", "ZMM Optimal").replace(
        "write-back)\n   Partitioned", "write-back) when protected by battery/ZMM\n   Partitioned"
    ).replace("Physical Slot                            : 3", "Physical Slot : 18")  # fmt: skip
    bad = good.replace("Slot : 18", "Slot : 19").replace("ZMM Info", "Battery Info").replace(
        "ZMM Optimal", "Failed").replace("(write-back)\n", "write-through\n")  # fmt: skip
    return [arcconf.parse([text])[0] for text in (good, bad)]


def test_two_controllers_without_an_address_are_told_by_their_slots(tree: FakeSysfs) -> None:
    found = two_adaptecs(tree)
    table, unmatched = matched(tree, "arcconf", *found)
    assert table == {} and unmatched == [
        "arcconf: no disk is known to be of Adaptec 5405, which tells no address"
    ] * 2  # fmt: skip
    tree.text("/sys/bus/pci/slots/18/address", "0000:05:00")
    tree.text("/sys/bus/pci/slots/19/address", "0000:0a:00")
    table, unmatched = matched(tree, "arcconf", *found)
    assert unmatched == []
    assert (table["sda"].mode, table["sda"].protection) == (BACK, OK)
    assert (table["sdb"].mode, table["sdb"].protection) == (THROUGH, FAILED)


def leave(tree: FakeSysfs, *tools: Tool) -> None:
    path = tree.files.path(FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    report_file.write(told(*tools, now_s=time.clock_gettime(time.CLOCK_BOOTTIME)), path)


def test_doctor_tells_what_was_read_and_what_was_not(tree: FakeSysfs, bin_dir: Path) -> None:
    unknown = storcli.parse([storcli_state("Unknown")])
    leave(tree, Tool("arcconf", "/x", None, tuple(two_adaptecs(tree))),
          Tool("storcli", "/y", None, unknown))  # fmt: skip
    found = [(level, text) for level, text in raid(tree.files, ME, tree.root.parent)]
    model, modes = "Modelled RAID 9", "1 volume write-back, 1 volume write-through"
    assert ("good", f"{model}: cache 1.7G, {modes} (storcli)") in found
    assert ("warning", f'{model}: not read: battery "Unknown" (storcli)') in found
    assert any(level == "warning" and "which tells no address" in text for level, text in found)
    _, error = look_at_arrays(
        tree.files, scan(tree.files), time.clock_gettime(time.CLOCK_BOOTTIME), ME
    )
    assert error is not None and "Adaptec 5405" in error


@pytest.mark.parametrize("properties, known", [
    ({"OS Drive Name": "/dev/sdg"}, True), ({"OS Drive Name": "/dev/sdh"}, False),
    ({"OS Drive Name": "N/A", "SCSI NAA Id": "600062B2000000000000000000000001"}, True),
    ({"SCSI NAA Id": "600062b2000000000000000000000002"}, False), ({}, False),
])  # fmt: skip
def test_a_volume_of_mpi3mr(properties: Dict[str, str], known: bool, tree: FakeSysfs) -> None:
    tree.disk("sdg", "8:96", "pci0000:15/0000:16:00.0/host4/target4:1:7/4:1:7:0/block")
    tree.says("sdg", device__wwid="naa.600062b2000000000000000000000001")
    tree.scsi_host("host4", "mpi3mr")
    assert scan(tree.files)[0].driver == "mpi3mr"
    disks = {"Virtual Drives": [{"VD Info": {"DG/VD": "0/1"}, "VD Properties": properties}]}
    found = storcli.parse([output("storcli2-supercap-write-back"), "", cases.storcli(disks)])
    table, unmatched = matched(tree, "storcli2", *found)
    assert list(table) == ["sdg"] * known
    # A disk of another name may have come and gone; without any name, nobody knows.
    named = bool(found[0].volumes[0].disk)
    assert unmatched == [] if known or named else "MegaRAID 9660-16i" in unmatched[0]


def test_a_tool_that_finds_no_controller_is_told(tree: FakeSysfs) -> None:
    two_adaptecs(tree)
    none, other = Tool("ssacli", "/x"), Tool("arcconf", "/y")
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    for tools, error in (
        ((none,), None), ((other,), "arcconf: finds no controller, but aacraid has disks"),
        ((other, replace(none, name="tw_cli")), "arcconf: finds no controller, but aacraid"),
        ((replace(other, error="broken"),), None),
    ):  # fmt: skip
        leave(tree, *tools)
        said = look_at_arrays(tree.files, scan(tree.files), now_s, ME)[1]
        assert (said or "").startswith(error or "x") if error else said is None


@pytest.mark.parametrize("driver, channel, known", [
    ("mpi3mr", 0, False), ("mpi3mr", 1, True), ("mpt3sas", 0, False), ("smartpqi", 0, False),
    ("smartpqi", 1, True), ("megaraid_sas", 0, False), ("megaraid_sas", 2, True),
])  # fmt: skip
def test_a_disk_handed_through_has_no_battery(
    driver: str, channel: int, known: bool, tree: FakeSysfs
) -> None:
    """Also where the controller lists no volume at all."""
    place = f"host4/target4:{channel}:7/4:{channel}:7:0"
    tree.disk("sda", "8:0", f"pci0000:15/0000:16:00.0/{place}/block")
    tree.scsi_host("host4", driver)
    found = Controller(pci="0000:16:00.0", protection=OK)
    assert list(matched(tree, "storcli", found)[0]) == ["sda"] * known


def test_units_of_3ware(tree: FakeSysfs) -> None:
    for unit, disk in enumerate(("sda", "sdb")):
        tree.disk(disk, f"8:{16 * unit}",
                  f"pci0000:00/0000:03:00.0/host6/target6:0:{unit}/6:0:{unit}:0/block")  # fmt: skip
    tree.scsi_host("host6", "3w-9xxx")
    table, _ = matched(tree, "tw_cli", *tw_cli.parse([output("tw_cli-unit-cache")]))
    assert {name: each.mode for name, each in table.items()} == {"sda": BACK, "sdb": THROUGH}


def test_a_disk_of_cciss(tree: FakeSysfs) -> None:
    tree.disk("cciss!c0d0", "104:0", "pci0000:00/0000:06:00.0/cciss0/c0d0/block")
    tree.partition("cciss!c0d0", "cciss!c0d0p1", "104:1")
    tree.mount("104:1", "ext3", "/dev/cciss/c0d0p1", "/")
    (device,) = scan(tree.files)
    assert (device.name, device.leaves, device.driver) == ("cciss!c0d0", ("cciss!c0d0",), "cciss")
    assert [mount for _, _, mount in device.filesystems] == ["/"]
    text = swap("ssacli-warning-before-keys", "/dev/sda ", "/dev/cciss/c0d0 ")
    table, _ = matched(tree, "ssacli", *ssacli.parse([text]))
    assert table["cciss!c0d0"].protection is OK


@pytest.mark.parametrize("linked", [True, False])
def test_a_device_of_open_cas(linked: bool, tree: FakeSysfs) -> None:
    """With a link to its core disk a tool's words on that reach it, else they are the disk's."""
    tree.disk("sda", "8:0", SATA)
    tree.disk("cas1-1", "252:0", VIRTUAL, slaves=["sda"] if linked else [])
    tree.disk("cas1-11", "252:256", VIRTUAL)
    tree.partition("cas1-1", "cas1-1p1", "252:1")
    tree.mount("252:1", "xfs", "/dev/cas1-1p1", "/srv")
    found = {each.name: each for each in scan(tree.files)}
    assert sorted(found) == ["cas1-1", "cas1-11", *([] if linked else ["sda"])]
    assert [mount for _, _, mount in found["cas1-1"].filesystems] == ["/srv"]
    assert found["cas1-1"].leaves == (("sda",) if linked else ("cas1-1",))
    said = Controller(volumes=(Volume(disk="sda", mode=BACK),))
    assert list(matched(tree, "ssacli", said)[0]) == ["cas1-1" if linked else "sda"]
