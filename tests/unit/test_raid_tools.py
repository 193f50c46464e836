# SPDX-License-Identifier: GPL-2.0-or-later
"""What the parsers make of tools' output, whole and broken."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raid_cases as cases
from fake_sysfs import FakeSysfs
from writebackd.storage import arcconf, linux_storage, megacli, ssacli, storcli, tool_output
from writebackd.storage.raid_tools import Kind, question
from writebackd.storage.tool_output import Controller, ToolError, Volume
from writebackd.types.storage import ArrayWork, CacheMode, Protection, Threshold

BACK, THROUGH = CacheMode.WRITE_BACK, CacheMode.WRITE_THROUGH
ALWAYS = CacheMode.ALWAYS_WRITE_BACK
LEARN = "2031-02-03 04:05:06"


def learn_s() -> float:
    return time.mktime(time.strptime(LEARN, "%Y-%m-%d %H:%M:%S"))


# ---- all of them -------------------------------------------------------------

Parse = Callable[[Sequence[str]], Tuple[Controller, ...]]
BATTERY = "On when protected by battery/ZMM"


def method(name: str) -> str:
    return cases.ssacli(more=f"         LD Acceleration Method: {name}")


# What is said of the first volume, and its mode.
MODES: Dict[Parse, List[Tuple[str, Optional[CacheMode]]]] = {
    storcli.parse: [
        (cases.storcli_all(policy=policy), mode)  # type: ignore[arg-type]
        for policy, mode in (
            ("RWBD", BACK), ("NRWBC", BACK), ("RAWBD", ALWAYS), ("NRAWBD", ALWAYS),
            ("RFWBD", ALWAYS), ("RWTD", THROUGH), ("NRWTC", THROUGH), ("R", None), ("", None),
            ("RWBDX", None), (7, None), ("NR, WB", BACK), ("RaWBD", BACK), ("NRAWBC", ALWAYS),
            ("RaAWBD", ALWAYS), ("RaWTC", THROUGH), ("RaFWBC", ALWAYS), ("NR,WB", BACK),
            ("RA,WT", THROUGH), ("R,AWB", ALWAYS), ("NR,WBx", None), ("WB,WT", None),
        )
    ],
    ssacli.parse: [
        (cases.ssacli(bare="Enabled"), ALWAYS), (cases.ssacli(caching="Disabled"), THROUGH),
        (cases.ssacli("Temporarily Disabled"), THROUGH), (method("Smart Path"), THROUGH),
        (cases.ssacli("Permanently Disabled"), THROUGH), (method("Controller Cache"), BACK),
        (cases.ssacli("Not Configured"), THROUGH), (cases.ssacli(""), None),
        (method("HPE SmartCache"), BACK), (method("Smart IO Path"), THROUGH),
        (cases.ssacli(caching="Enabled (unprotected)"), ALWAYS),
        (cases.ssacli("Temporarily Disabled (not protected)"), THROUGH),
        (cases.ssacli(caching=""), None), (method("HPE SSD Smart Path"), THROUGH),
    ],
    arcconf.parse: [
        (cases.arcconf("Enabled", "On"), ALWAYS), (cases.arcconf(BATTERY, "On"), BACK),
        (cases.arcconf("Enabled", "Off"), THROUGH), (cases.arcconf(BATTERY, "Off"), THROUGH),
        (cases.arcconf(BATTERY, ""), None), (cases.arcconf("Disabled", ""), THROUGH),
        # As the mode that old ones print instead of the status.
        (cases.arcconf(BATTERY, "Enabled (write-back)"), BACK),
        (cases.arcconf("Enabled (write-back)", "Enabled (write-back)"), ALWAYS),
        (cases.arcconf("Enabled (write-back)", "Enabled (write-through)"), THROUGH),
        (cases.arcconf(BATTERY, "Disabled (write-through)"), THROUGH),
        (cases.arcconf("Enabled", "?"), None),
        (cases.arcconf("Enabled", "Not supported"), THROUGH),
        (cases.arcconf("Enabled always", "Enabled (unprotected)"), ALWAYS),
        (cases.arcconf(BATTERY, "On (unprotected)"), ALWAYS),
    ],
}
OK, CHARGING, LEARNING = Protection.OK, Protection.CHARGING, Protection.LEARNING
FAILED, ABSENT = Protection.FAILED, Protection.ABSENT
BATTERIES: Dict[Parse, List[Tuple[str, Optional[Protection]]]] = {
    storcli.parse: [
        (cases.storcli_all(bits=bits, battery=battery), protection)
        for bits, battery, protection in (
            (0, "Optimal", OK), (4096, "Optimal", OK), (8, "Optimal", CHARGING),
            (64, "Optimal", LEARNING), (1024, "Optimal", FAILED), (256, "Optimal", FAILED),
            (512 | 8, "Optimal", FAILED), (1, "Optimal", ABSENT), (0, "Charging", CHARGING),
            ("NA", "Optimal", OK), (255, "Optimal", OK),
            ("NA", "", None), ("NA", "who knows", None), (0, "", OK), ("NA", None, ABSENT),
            (0, None, ABSENT), (1 << 13, "Optimal", OK), (1 << 14, "Optimal", None),
            (1 << 15, "Failed", FAILED),
        )
    ] + [(cases.storcli_all("RWTD", battery="Failed"), FAILED)],  # bad, though none is needed
    arcconf.parse: [
        (cases.arcconf(backup=backup), protection)
        for backup, protection in (
            ("Ready", OK), ("Not Ready", FAILED), ("Fatal", FAILED), ("?", None),
            ("Not Ready\n         Supercap Status : Charging", CHARGING),
            ("Not Ready\n         Supercap Status : Failed", FAILED),
        )
    ] + [
        (cases.arcconf(backup=backup).replace("Overall Backup Unit Status", key), protection)
        for key, backup, protection in (
            ("Backup Power Status", "Not Ready\n         Supercap Status : Charging", CHARGING),
            ("Status", "Failed\n         Supercap Status : Ready", FAILED),
        )
    ],
    megacli.parse: [
        (cases.megacli_battery("Failed"), FAILED), (cases.megacli_battery("Learning"), LEARNING),
        (cases.megacli_battery("Charging"), CHARGING), (cases.megacli_battery(""), OK),
        (cases.megacli_battery("", Charging_Status="Charging"), CHARGING),
        (cases.megacli_battery(Learn_Cycle_Active="Yes"), LEARNING),
        (cases.megacli_battery(Battery_Replacement_required="Yes"), FAILED),
        (cases.megacli_battery(Battery_Pack_Missing="Yes"), ABSENT),
        (cases.megacli_battery(Voltage="Low"), FAILED),
        (cases.megacli_battery(Voltage="Low", Learn_Cycle_Active="Yes"), LEARNING),
        (cases.megacli_battery(Learn_Cycle_Active=""), OK),
        (cases.megacli_battery(Learn_Cycle_Status="Failed", isSOHGood="Yes"), FAILED),
        (cases.megacli_battery(isSOHGood="No"), FAILED),
        *((cases.megacli_battery().replace("Battery State: Optimal\n", "")
           .replace("Type: BBU", f"Type: {kind}"), known) for kind, known in (
            ("CVPM02", OK), ("BBU", None))),
        ("Adapter 0: Get BBU Status Failed.\n", ABSENT), ("BBU status for Adapter: 0\n", None),
        ("Adapter 0: BBU Hardware Absent.\n", ABSENT),
    ],
}


def each_row(table: Dict[Parse, List[Tuple[str, Any]]]) -> List[Any]:
    return [
        pytest.param(parse, *row, id=f"{parse.__module__.rpartition('.')[2]}-{number}")
        for parse, found in table.items()
        for number, row in enumerate(found)
    ]


@pytest.mark.parametrize("parse, output, mode", each_row(MODES))
def test_cache_modes(parse: Parse, output: str, mode: Optional[CacheMode]) -> None:
    (found,) = parse([output])
    assert found.volumes[0].mode is mode


@pytest.mark.parametrize("parse, output, protection", each_row(BATTERIES))
def test_batteries(parse: Parse, output: str, protection: Optional[Protection]) -> None:
    (found,) = parse([output])
    assert found.protection is protection


# ---- storcli -----------------------------------------------------------------


def test_storcli_says_where_how_much_and_how_protected() -> None:
    (found,) = storcli.parse([cases.storcli_all()])
    assert found == Controller(
        pci="0000:3b:00.0", model="Modelled RAID 9", capacity_bytes=1715 << 20,
        protection=Protection.OK, learn_s=learn_s(),
        volumes=(Volume(238, mode=BACK), Volume(239, mode=THROUGH)),
    )  # fmt: skip
    assert storcli.parse([cases.NO_CONTROLLER]) == ()


@pytest.mark.parametrize("bits", [0, 1, "NA"])
@pytest.mark.parametrize("policy, cache_mb, protection", [
    ("RWBD", 0, None), ("RWTD", 1715, None), ("RWTD", 0, None),
    ("RWBD", 1715, Protection.ABSENT), ("RAWBD", "NA", Protection.ABSENT),
    ("?", 1715, Protection.ABSENT),
])  # fmt: skip
def test_storcli_misses_no_battery_where_none_is_needed(
    policy: str, cache_mb: Any, protection: Optional[Protection], bits: Any
) -> None:
    output = cases.storcli_all(policy, battery=None, bits=bits, cache_mb=cache_mb)
    (found,) = storcli.parse([output])
    assert found.protection is protection
    if bits == 1:
        (found,) = storcli.parse([output.replace('"BBU": "Absent"', '"BBU": "Present"')])
        assert found.protection is protection


def test_storcli_work_is_of_the_volumes_on_those_drives() -> None:
    outputs = [cases.storcli_all(drive="Rbld"), cases.REBUILD, cases.CHECK, cases.PATROL]
    (found,) = storcli.parse(outputs)
    assert found.volumes[0].works == (ArrayWork("rebuild", 0.37),)
    assert found.volumes[1].works == (ArrayWork("check", 0.08),)
    assert found.works == (ArrayWork("patrol"),)
    # Without progress; and of a drive in no enclosure.
    (found,) = storcli.parse([cases.storcli_all(drive="Rbld"), "not known", "", "{}"])
    assert [each.works for each in found.volumes] == [(ArrayWork("rebuild"),), ()]
    everything = cases.storcli_all(drive="Rbld").replace('"64:', '" :')
    (found,) = storcli.parse([everything, cases.REBUILD.replace("/e64", "")])
    assert found.volumes[0].works == (ArrayWork("rebuild", 0.37),) and found.works == ()


# ---- ssacli ------------------------------------------------------------------


def test_ssacli_counts_the_part_for_writes() -> None:
    (found,) = ssacli.parse([cases.ssacli()])
    assert found == Controller(
        pci="0000:af:00.0", model="Smart Array M1",
        capacity_bytes=int(3.5 * cases.GIB * 0.75), protection=Protection.OK,
        volumes=(Volume(disk="sdc", mode=BACK),),
    )  # fmt: skip


PARITY = "         Parity Initialization "
PARITY += f"Status: In Progress\n{PARITY}Progress: 12%\n"


@pytest.mark.parametrize("status, more, works", [
    ("OK", "", ()), ("Recovering, 23.5% complete", "", (ArrayWork("rebuild", 0.235),)),
    ("Ready for Rebuild", "", ()), ("Interim Recovery Mode", "", ()),
    ("Transforming, 4% complete", "", (ArrayWork("migration", 0.04),)),
    ("OK", PARITY, (ArrayWork("initialisation", 0.12),)),
])  # fmt: skip
def test_ssacli_work(status: str, more: str, works: Tuple[ArrayWork, ...]) -> None:
    (found,) = ssacli.parse([cases.ssacli(status=status, more=more)])
    assert found.volumes[0].works == works


def test_ssacli_two_controllers_and_none() -> None:
    two = ssacli.parse([cases.ssacli() + cases.ssacli(battery="Failed")])
    assert [each.protection for each in two] == [Protection.OK, Protection.FAILED]
    assert ssacli.parse(["\nError: No controllers detected. Possible causes: ...\n"]) == ()


# ---- arcconf -----------------------------------------------------------------


def test_arcconf_tells_what_it_does_not_what_it_was_told() -> None:
    (found,) = arcconf.parse([cases.arcconf(), cases.ARCCONF_TASK])
    assert found == Controller(
        pci="0000:18:00.0", model="Modelled 8", protection=Protection.OK,
        volumes=(
            Volume(0, mode=BACK),
            Volume(2, mode=THROUGH, works=(ArrayWork("rebuild", 0.44),)),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    "output, count", [("Controllers found: 3\n", 3), ("", 0), ("Controllers found: x", 0),
                      ("Controllers found: 100000", 64)],
)  # fmt: skip
def test_arcconf_counts_controllers(output: str, count: int) -> None:
    assert arcconf.count(output) == count


# ---- MegaCli -----------------------------------------------------------------


def test_megacli_puts_three_answers_together() -> None:
    outputs = [cases.megacli_battery(), cases.megacli_volumes(), cases.MEGACLI_PCI]
    assert megacli.parse(outputs) == (
        Controller(
            pci="0000:3b:00.0", protection=Protection.OK, learn_s=learn_s(),
            volumes=(
                Volume(0, mode=BACK, works=(ArrayWork("check", 0.13),)),
                Volume(5, mode=THROUGH),
            ),
        ),
    )  # fmt: skip
    policy = "WriteBack, ReadAhead, Direct, Write Cache OK if Bad BBU"
    (found,) = megacli.parse([cases.megacli_battery(), cases.megacli_volumes(policy)])
    assert found.volumes[0].mode is ALWAYS and found.pci is None


@pytest.mark.parametrize("policy, default, protection", [
    (cases.THROUGH, cases.THROUGH, None), (cases.CAREFUL, cases.THROUGH, Protection.ABSENT),
    # Through, as there is no battery: it was to write back.
    (cases.THROUGH, cases.CAREFUL, Protection.ABSENT), ("?", "", Protection.ABSENT),
])  # fmt: skip
def test_megacli_misses_no_battery_where_none_is_needed(
    policy: str, default: str, protection: Optional[Protection]
) -> None:
    none = "Adapter 0: Get BBU Status Failed.\n"
    (found,) = megacli.parse([none, cases.megacli_volumes(policy, default)])
    assert found.protection is protection


# ---- the kernel --------------------------------------------------------------


def test_mdstat() -> None:
    rebuild = ArrayWork("rebuild", 0.125, 50.0 * (1 << 20))
    assert linux_storage.parse_mdstat(cases.MDSTAT) == (
        Volume(disk="md7", works=(rebuild,)), Volume(disk="md8"),
    )  # fmt: skip
    assert linux_storage.parse_mdstat("") == ()


@pytest.mark.parametrize("word, kind", [("check", "check"), ("resync", "resync"),
                                        ("reshape", "migration")])  # fmt: skip
def test_mdstat_other_work(word: str, kind: str) -> None:
    (found,) = linux_storage.parse_mdstat(cases.MDSTAT.replace("recovery", word))[:1]
    assert found.works[0].kind == kind


def test_bcache_and_journals(tmp_path: Any) -> None:
    tree = FakeSysfs(tmp_path)
    for name, mode, state in (
        ("bcache0", "writethrough [writeback] writearound none", "dirty"),
        ("bcache1", "[writethrough] writeback writearound none", "clean"),
        ("bcache2", "writethrough [writeback] writearound none", "no cache"),
    ):
        tree.disk(name, f"252:{name[-1]}")
        tree.says(name, bcache__cache_mode=mode, bcache__state=state, bcache__dirty_data="1.5G")
    found = linux_storage.read_bcache(tree.files)
    assert [each.volumes for each in found] == [
        (Volume(disk="bcache0", mode=BACK),), (Volume(disk="bcache1", mode=THROUGH),),
        (Volume(disk="bcache2", mode=THROUGH),),
    ]  # fmt: skip
    assert found[0].dirty_bytes == 3 << 29
    tree.says("bcache0", bcache__dirty_data="0")
    tree.says("bcache1", bcache__dirty_data="1007")  # its unit begins at 1 KiB
    assert [each.dirty_bytes for each in linux_storage.read_bcache(tree.files)][:2] == [0, 1007]
    tree.text("/proc/mdstat", cases.MDSTAT)
    tree.disk("md8", "9:8")
    tree.says("md8", md__journal_mode="write-through [write-back]")
    assert linux_storage.read_md_journals(tree.files) == (
        Controller(volumes=(Volume(disk="md8", mode=BACK),)),
    )


def test_dm_writecache() -> None:
    disks = {"fast one": "dm-3"}
    (found,) = linux_storage.parse_dmsetup("writecache", cases.WRITECACHE, disks)
    assert found == Controller(
        capacity_bytes=1000 * 4096, dirty_bytes=100 * 4096,
        volumes=(Volume(disk="dm-3", mode=BACK),),
        # The lower one is not in the table: it is the kernel's default.
        thresholds=(Threshold("high_watermark", 60), Threshold("low_watermark", 45)),
    )  # fmt: skip
    jobs = cases.WRITECACHE[0].replace("60", "60 writeback_jobs 7")
    (found,) = linux_storage.parse_dmsetup("writecache", (jobs, cases.WRITECACHE[1]), disks)
    assert found.thresholds[2] == Threshold("writeback_jobs", 7)
    broken = (cases.WRITECACHE[0], cases.WRITECACHE[1].replace("writecache 0", "writecache 5"))
    (found,) = linux_storage.parse_dmsetup("writecache", broken, disks)
    assert found.volumes[0].mode is THROUGH
    assert linux_storage.parse_dmsetup("writecache", ("", "No devices found\n"), disks) == ()


def test_dm_cache() -> None:
    (found,) = linux_storage.parse_dmsetup("cache", cases.DM_CACHE, {"slow": "dm-1"})
    assert found == Controller(
        capacity_bytes=4000 << 16, dirty_bytes=40 << 16, volumes=(Volume(disk="dm-1", mode=BACK),),
        thresholds=(Threshold("migration_threshold", 2048),),
    )


def test_bcache_has_what_its_thresholds_leave_to_writes(tmp_path: Any) -> None:
    """As a VM's 6.1 has it: 2048 buckets of 64k, of which writes may fill 70 %."""
    tree = FakeSysfs(tmp_path)
    for name, of, dirty in (("bcache0", "a", "0.0k"), ("bcache1", "a", "16.0M"),
                            ("bcache2", "b", "8.0M")):  # fmt: skip
        tree.disk(name, f"252:{name[-1]}")
        tree.says(
            name, bcache__cache_mode="[writeback] none", bcache__state="dirty",
            bcache__dirty_data=dirty, bcache__writeback_percent="10",
            bcache__writeback_delay="30", bcache__writeback_rate_minimum="8",
        )
        tree.link(f"/sys/block/{name}/bcache/cache", f"{tree.root}/sys/fs/bcache/{of}")
    for of in "ab":
        tree.text(f"/sys/fs/bcache/{of}/cache0/nbuckets", "2048")
        tree.text(f"/sys/fs/bcache/{of}/cache0/bucket_size", "64.0k")
    tree.text("/sys/fs/bcache/b/internal/cutoff_writeback_sync", "50")
    found = linux_storage.read_bcache(tree.files)
    whole = (2048 << 16) * 7 // 10
    # What another device of the same set has in there is no room for this one.
    assert [each.capacity_bytes for each in found] == [whole - (16 << 20), whole, 1024 << 16]
    assert found[0].thresholds == (
        Threshold("writeback_percent", 10), Threshold("writeback_delay", 30),
        Threshold("writeback_rate_minimum", 8),
    )


# ---- whatever else comes -----------------------------------------------------

PARSERS: Dict[str, Tuple[Parse, Tuple[str, ...]]] = {
    "storcli": (
        storcli.parse,
        (cases.storcli_all(drive="Rbld"), cases.REBUILD, cases.CHECK, cases.PATROL),
    ),
    "ssacli": (ssacli.parse, (cases.ssacli(),)),
    "arcconf": (arcconf.parse, (cases.arcconf(), cases.ARCCONF_TASK)),
    "megacli": (
        megacli.parse,
        (cases.megacli_battery(), cases.megacli_volumes(), cases.MEGACLI_PCI),
    ),
    "writecache": (
        lambda outputs: linux_storage.parse_dmsetup("writecache", outputs, {"fast one": "dm-3"}),
        cases.WRITECACHE,
    ),
    "dm-cache": (
        lambda outputs: linux_storage.parse_dmsetup("cache", outputs, {"slow": "dm-1"}),
        cases.DM_CACHE,
    ),
    "mdstat": (
        lambda outputs: (Controller(volumes=linux_storage.parse_mdstat(outputs[0])),),
        (cases.MDSTAT,),
    ),
}
each_parser = pytest.mark.parametrize("name", PARSERS)


def tried(name: str, outputs: Sequence[bytes]) -> Optional[Tuple[Controller, ...]]:
    """None: refused with words."""
    try:
        return PARSERS[name][0]([tool_output.text_of(each) for each in outputs])
    except ToolError as error:
        assert str(error) and "\n" not in str(error)
        return None


def encoded(name: str) -> Tuple[bytes, ...]:
    return tuple(each.encode() for each in PARSERS[name][1])


@each_parser
def test_cut_off_at_every_byte(name: str) -> None:
    outputs = encoded(name)
    for number, whole in enumerate(outputs):
        for end in range(len(whole)):
            tried(name, (*outputs[:number], whole[:end], *outputs[number + 1 :]))


@each_parser
def test_flipped_bits(name: str) -> None:
    rng, outputs = random.Random(5), encoded(name)
    for _ in range(300):
        broken = [bytearray(each) for each in outputs]
        for _ in range(rng.randint(1, 8)):
            part = rng.choice(broken)
            part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
        tried(name, [bytes(each) for each in broken])


@each_parser
@settings(max_examples=60, deadline=None)
@given(junk=st.lists(st.binary(max_size=400), min_size=4, max_size=4))
def test_junk(name: str, junk: "list[bytes]") -> None:
    count = len(PARSERS[name][1])
    tried(name, junk[:count])


@each_parser
def test_numbers_of_any_size(name: str) -> None:
    """int() takes a minute for a million digits, and a float of them is infinite."""
    for number in ("9" * 200_000, "1e999999", "-1", "0.0000000000000000001", "1" * 19):
        outputs = [
            each.replace("0", number, 3).replace("12", number, 2) for each in PARSERS[name][1]
        ]
        begun = time.process_time()
        found = tried(name, [each.encode() for each in outputs])
        assert time.process_time() - begun < 2.0
        for controller in found or ():
            assert (controller.capacity_bytes or 0) <= tool_output.MOST_CACHE
            assert (controller.dirty_bytes or 0) <= tool_output.MOST_CACHE


def test_a_number_too_long_costs_no_other() -> None:
    output = cases.storcli_all(Errors=7).replace('"Errors": 7', f'"Errors": {"9" * 200_000}')
    assert storcli.parse([output]) == storcli.parse([cases.storcli_all()])


@pytest.mark.parametrize("output", [
    "[" * 100_000, '{"Controllers":' * 100_000, '{"Controllers": 7}',
    '{"Controllers": [[], 7]}', "null", "7", '"Controllers"', "{", "", '{"Controllers": NaN',
])  # fmt: skip
def test_json_that_is_no_answer(output: str) -> None:
    assert tried("storcli", [output.encode()]) in (None, ())


def test_a_key_with_two_values_is_not_known() -> None:
    twice = cases.storcli_all().replace('"BBU": "Present"', '"BBU": "Present", "BBU": "Absent"')
    twice = twice.replace(
        '"Current Size of FW Cache (MB)": 1715',
        '"Current Size of FW Cache (MB)": 1715, "Current Size of FW Cache (MB)": 512',
    )
    (found,) = storcli.parse([twice])
    assert found.capacity_bytes is None and found.pci == "0000:3b:00.0"
    same = cases.storcli_all().replace('"BBU": "Present"', '"BBU": "Present", "BBU": "Present"')
    assert storcli.parse([same]) == storcli.parse([cases.storcli_all()])


def test_bytes_that_are_no_text() -> None:
    strange = cases.ssacli().encode() + b"\xff\xfe"
    assert tried("ssacli", [strange]) == ssacli.parse([cases.ssacli()])
    with pytest.raises(ToolError, match="no text"):
        tool_output.text_of(b"\x7fELF\xff\0\0")
    with pytest.raises(ToolError, match="more than 8 MB"):
        tool_output.text_of(b" " * (tool_output.MOST_BYTES + 1))


@pytest.mark.parametrize("controllers", [
    (Controller(),) * 65, (Controller(volumes=(Volume(),) * 1025),),
])  # fmt: skip
def test_more_of_a_thing_than_any_machine_has(controllers: Tuple[Controller, ...]) -> None:
    tool, _ = question(Kind("x", (), lambda ask: controllers), Path("/x"), "/")
    assert "more controllers or volumes" in (tool.error or "")


@pytest.mark.parametrize("said, address", [
    ("00:3b:00:00", "0000:3b:00.0"), ("0000:AF:00.1", "0000:af:00.1"),
    ("0:2:0:0", "0000:02:00.0"),
    ("3b:00.0", "0000:3b:00.0"), ("10000:01:00.0", "10000:01:00.0"), ("00:3b:00:08", None),
    ("3b", None), ("", None), (None, None), ("zz:00:00:00", None),
])  # fmt: skip
def test_pci_addresses(said: Optional[str], address: Optional[str]) -> None:
    assert tool_output.pci_address(said) == address


@pytest.mark.parametrize("said, unit, count", [
    ("1.8", "G", int(1.8 * cases.GIB)), ("512MB", "", 512 << 20), ("2 GB", "M", 2 << 30),
    ("349", "M", 349 << 20), ("7", "", None), ("x", "G", None),
    ("", "G", None), (None, "G", None), ("0", "B", 0), ("512", "B", 512), ("3 B", "G", 3),
    ("12 parsecs", "", None), ("1048576", "G", 1 << 50), ("1048577", "G", None),
    ("9" * 300, "G", None),
])  # fmt: skip
def test_sizes(said: Optional[str], unit: str, count: Optional[int]) -> None:
    assert tool_output.size_bytes(said, unit) == count


@pytest.mark.parametrize("said, name", [
    ("/dev/sda", "sda"), ("/dev/sda (Disk0)", "sda"), ("/dev/../etc/passwd", None), ("sda", None),
    ("/dev/disk/by-id/x", None), ("None", None), ("/dev/" + "x" * 40, None),
])  # fmt: skip
def test_disk_names(said: str, name: Optional[str]) -> None:
    assert tool_output.disk_name(said) == name


@pytest.mark.parametrize("said", ["00/00/0000, 00:00:00", "01/01/1970, 00:00:00", "", None, "soon",
                                  "2031/02/30 00:00:00"])  # fmt: skip
def test_times_that_are_none(said: Optional[str]) -> None:
    assert tool_output.moment(said) is None
