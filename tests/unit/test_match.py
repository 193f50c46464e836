# SPDX-License-Identifier: GPL-2.0-or-later
"""[match]: the policy that comes of what a host says of itself, and the text of a rule."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_sysfs import RAID, SATA
from match_host import GIB, MADE_FOR, NOWHERE, SHIPPED, Build, Host, site
from writebackd.kernel.host_facts import read_facts
from writebackd.policy import PolicyError, list_policies, load_policy, rules, units
from writebackd.policy.match import choose, judge, rank
from writebackd.policy.rules import CACHES, VIRTUALISATIONS, DiskFacts, HostFacts
from writebackd.types.storage import Device

JBOD = RAID.replace("target2:2:0/2:2:0:0", "target2:0:0/2:0:0:0")


def test_every_shipped_policy_has_a_host() -> None:
    assert {each.name for each in list_policies(root=NOWHERE)} == set(MADE_FOR)


@pytest.mark.parametrize("name", MADE_FOR)
def test_a_host_made_for_a_class_is_matched_by_it_alone(tmp_path: Path, name: str) -> None:
    host = MADE_FOR[name](Host(tmp_path))
    assert host.fitting() == ([name] if name != "default" else [])
    assert host.choice().policy.name == name


def dom0(host: Host) -> Host:
    host.tree.text("/proc/xen/capabilities", "control_d")
    return host


def greets(host: Host, unit: str, named: str) -> Host:
    link = "/etc/systemd/system/display-manager.service"
    host.tree.link(link, f"/usr/lib/systemd/system/{named}")
    return host.metal().nvme().runs(unit)


# Hosts that are several things at once, and what decides.
MIXED: List[Tuple[str, Build, str]] = [
    ("control plane", lambda h: h.metal().ssd().runs("kubelet", "etcd"), "etcd"),
    ("k3s in a guest", lambda h: h.guest().volume().runs("k3s.service"), "etcd"),
    ("database in a pod", lambda h: h.metal().nvme().runs("kubelet", "postgres"),
     "kubernetes-node"),
    ("Rook", lambda h: h.metal().nvme().runs("kubelet", "ceph-osd@0.service"), "kubernetes-node"),
    ("Patroni", lambda h: h.metal().raid().runs("postgres", "etcd"), "etcd"),
    ("Proxmox with Ceph", lambda h: h.metal().ssd().runs("pvedaemon.service", "ceph-osd@0.service"),
     "hypervisor"),
    ("guests of libvirt with Ceph",
     lambda h: h.metal().hdd().runs("qemu-system-x86", "ceph-0a1b@osd.3.service"), "hypervisor"),
    ("database with Ceph", lambda h: h.metal().ssd().runs("mariadbd", "ceph-osd@0.service"),
     "db-ssd"),
    ("backups with Ceph", lambda h: h.metal().hdd().runs("bareos-sd", "ceph-osd@0.service"),
     "backup-target"),
    ("Ceph with a desktop", lambda h: h.metal().hdd().runs("gdm.service", "ceph-osd@0.service"),
     "ceph-osd"),
    ("Ceph in a guest", lambda h: h.guest().volume().runs("ceph-osd@0.service"), "ceph-osd"),
    ("database in a guest", lambda h: h.guest().volume().runs("postgres"), "vm-guest"),
    ("cloud volume as nvme", lambda h: h.guest().nvme().runs("mysqld"), "vm-guest"),
    ("SMB in a guest", lambda h: h.guest().volume().runs("smbd"), "vm-guest"),
    ("guest agent", lambda h: h.guest().volume().runs("qemu-ga"), "vm-guest"),
    ("nested", lambda h: h.guest().volume().runs("qemu-system-x86"), "vm-guest"),
    ("dom0", lambda h: dom0(h.guest().hdd().runs("xapi.service")), "hypervisor"),
    ("desktop in a guest", lambda h: h.guest().volume().runs("sddm.service"), "desktop"),
    ("virtual machines on a desktop",
     lambda h: h.metal().nvme().runs("gdm.service", "qemu-system-x86"), "hypervisor"),
    ("virt-manager without guests",
     lambda h: h.metal().nvme().runs("gdm.service", "libvirtd.service"), "desktop"),
    ("Cockpit on a database", lambda h: h.metal().nvme().runs("virtqemud.service", "postgres"),
     "db-nvme"),
    ("Ganeti", lambda h: h.metal().nvme().runs("kvm"), "hypervisor"),
    ("MicroCeph", lambda h: h.metal().hdd().runs("snap.microceph.osd.service"), "ceph-osd"),
    ("BackupPC", lambda h: h.metal().hdd().runs("BackupPC"), "backup-target"),
    ("MegaRAID 96xx", lambda h: h.metal().disk(
        RAID.replace("2:2:0", "1:1:0"), "mpi3mr", rotational=True).runs("postgres"), "db-hwraid"),
    ("backups and their catalog", lambda h: h.metal().hdd().runs("bareos-sd", "postgres"),
     "backup-target"),
    ("backups beside a database", lambda h: h.metal().raid().runs("bareos-sd", "postgres"),
     "db-hwraid"),
    ("backups on the SSDs of a database", lambda h: h.metal().ssd().runs("taper", "postmaster"),
     "db-ssd"),
    ("a database that is backed up", lambda h: h.metal().nvme().runs("amandad", "edb-postgres"),
     "db-nvme"),
    ("MicroK8s without a control plane", lambda h: h.metal().ssd().runs("kubelite"),
     "kubernetes-node"),
    ("k0s", lambda h: h.metal().ssd().runs("k0scontroller.service"), "etcd"),
    ("MicroShift", lambda h: h.guest().volume().runs("microshift-etcd"), "etcd"),
    ("PostgreSQL in a Quadlet", lambda h: h.metal().nvme().runs("postgres.service"), "db-nvme"),
    ("Xen without XAPI", lambda h: dom0(h.guest().hdd().runs("xenconsoled")), "hypervisor"),
    ("NFS-Ganesha", lambda h: h.metal().hdd().runs("ganesha.nfsd"), "file-server"),
    ("a file server that is backed up", lambda h: h.metal().hdd().runs("smbd", "veeamtransport"),
     "file-server"),
    ("Sway from a console", lambda h: h.metal().ssd().runs("rtkit-daemon.service"), "desktop"),
    ("ly", lambda h: greets(h, "ly-kmsconvt@tty2.service", "ly-kmsconvt@.service"), "desktop"),
    ("a display manager of any name", lambda h: greets(h, "ddm.service", "ddm.service"), "desktop"),
    ("one that does not run", lambda h: greets(h, "cron.service", "gdm.service"), "default"),
    ("Oracle 23ai Free", lambda h: h.metal().nvme().runs("db_pmon_FREE"), "db-nvme"),
    ("Kunpeng", lambda h: h.metal().disk(SATA, "hisi_sas_v3_hw").runs("irisdb"), "db-ssd"),
    ("Veeam's hardened repository", lambda h: h.metal().hdd().runs("veeamimmureposv"),
     "backup-target"),
    ("KubeEdge", lambda h: h.metal().ssd().runs("edgecore"), "kubernetes-node"),
    ("database beside guests", lambda h: h.metal().raid().runs("pvedaemon.service", "mariadbd"),
     "hypervisor"),
    ("Proxmox Backup on Proxmox",
     lambda h: h.metal().ssd().runs("pvedaemon.service", "proxmox-backup-proxy.service"),
     "hypervisor"),
    ("server with a desktop", lambda h: h.metal().raid().runs("gdm.service", "postgres"),
     "db-hwraid"),
    ("RAID without a database", lambda h: h.metal().raid().runs("nginx"), "default"),
    ("database on a disk handed through",
     lambda h: h.metal().disk(JBOD, "megaraid_sas", rotational=True).runs("postgres"), "default"),
    ("database on an SSD handed through",
     lambda h: h.metal().disk(JBOD, "megaraid_sas").runs("postgres"), "db-ssd"),
    ("RAID and NVMe", lambda h: h.metal().raid().nvme().runs("postgres"), "db-hwraid"),
    ("NVMe and an SSD to boot from", lambda h: h.metal().ssd().nvme().runs("mysqld"), "db-nvme"),
    ("SSD and a rotating disk", lambda h: h.metal().ssd().hdd().runs("postgres"), "default"),
    ("SSD and a stick", lambda h: h.metal().ssd().stick().runs("postgres"), "db-ssd"),
    ("small analytics", lambda h: h.metal().hdd().runs("spark-worker.service"), "default"),
    ("a name that the kernel cuts off",
     lambda h: h.metal().memory(256 * GIB).ssd().runs("clickhouse-serv"), "analytics"),
    ("a user's database", lambda h: h.metal().raid().by_user("postgres"), "default"),
    ("nothing known", lambda h: h, "default"),
]


@pytest.mark.parametrize(
    ("build", "name"), [row[1:] for row in MIXED], ids=[row[0] for row in MIXED]
)
def test_of_several_classes_the_most_telling_one_wins(
    tmp_path: Path, build: Build, name: str
) -> None:
    assert build(Host(tmp_path)).choice().policy.name == name


def test_the_reason_has_the_evidence_and_the_runner_up(tmp_path: Path) -> None:
    choice = MIXED[0][1](Host(tmp_path)).choice()
    assert choice.policy.chosen == (
        "best match, 170 points: etcd runs +170 (next is kubernetes-node with 160)"
    )
    assert choice.runner_up is not None and choice.runner_up.name == "kubernetes-node"
    (finding,) = choice.verdicts[0].findings
    assert re.search(r"policies/etcd\.conf:\d+$", finding.origin)


@pytest.mark.parametrize("name", ["db-hwraid", "db-nvme", "db-ssd", "etcd", "hypervisor"])
def test_a_class_that_nobody_named_paces_where_the_limit_fails(tmp_path: Path, name: str) -> None:
    assert MADE_FOR[name](Host(tmp_path)).choice().policy.levers.pace == "auto"


def test_elsewhere_nobody_is_paced_who_did_not_ask_for_it(tmp_path: Path) -> None:
    paced = {"db-hwraid", "db-nvme", "db-ssd", "etcd", "hypervisor"}
    for name in set(MADE_FOR) - paced:
        assert load_policy(name, root=NOWHERE).levers.pace == "off", name


def test_without_a_match_the_nearest_is_told(tmp_path: Path) -> None:
    choice = Host(tmp_path).metal().raid().runs("nginx").choice()
    assert choice.policy.chosen.startswith(
        "no policy fits this host; nearest is db-hwraid with 90 of the 140 needed"
    )


def test_what_is_not_known_gives_no_points_and_is_told(tmp_path: Path) -> None:
    choice = Host(tmp_path).choice()
    assert choice.policy.chosen == "no policy fits this host"
    assert choice.runner_up is None
    findings = [each for verdict in choice.verdicts for each in verdict.findings]
    assert {each.holds for each in findings} == {None}
    assert all("known" in each.evidence for each in findings)


def test_a_disk_without_a_driver_or_a_mode_is_unknown_not_another() -> None:
    facts = HostFacts(disks=(DiskFacts("sda", "ahci", "none", False), DiskFacts("sdb")))
    verdicts = {each.name: judge(each, facts) for each in SHIPPED}
    holds = {each.rule: each.holds for each in verdicts["db-nvme"].findings}
    assert (holds["drivers"], holds["rotational"]) == (None, None)
    assert {f.rule: f.holds for f in verdicts["db-ssd"].findings}["drivers"] is True
    assert {f.rule: f.holds for f in verdicts["db-hwraid"].findings}["cache"] is None


def test_what_may_be_gone_tomorrow_counts_for_its_driver_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.conf"
    path.write_text("[match]\ndrivers = 1: uas\ncache = 1: drive\nrotational = 1: yes\n")
    facts = HostFacts((DiskFacts("sda", "uas", "drive", True, removable=True),))
    findings = judge(load_policy(str(path)), facts).findings
    assert [(each.rule, each.holds) for each in findings] == [
        ("drivers", True), ("cache", None), ("rotational", None),
    ]  # fmt: skip


RULE = "[match]\nleast = {least}\nvirtualisation = {points}: metal\n"


def test_of_equal_points_the_one_that_asks_for_more_wins_then_the_name(tmp_path: Path) -> None:
    equal = site(
        tmp_path, aa=RULE.format(least=20, points=500), zz=RULE.format(least=400, points=500),
        zx=RULE.format(least=400, points=500), out=RULE.format(least=501, points=500),
    )  # fmt: skip
    choice = Host(tmp_path / "host").metal().choice(equal)
    assert [each.name for each in choice.verdicts[:4]] == ["zx", "zz", "aa", "out"]
    assert "(tied with zz with 500)" in choice.policy.chosen
    # More points beat more that is asked for; without a rule a policy has to be named.
    (equal / "one.conf").write_text(RULE.format(least=1, points=501))
    (equal / "plain.conf").write_text("[match]\nleast = 1\n")
    choice = Host(tmp_path / "again").metal().choice(equal)
    assert choice.policy.name == "one"
    assert not [each for each in choice.verdicts if each.name == "plain" and each.fits]


def test_a_wrong_policy_of_another_class_is_skipped_and_told(tmp_path: Path) -> None:
    wrong = site(
        tmp_path, mine="[match]\nservices = 10 nginx\n", other="[limits]\nflor = 1M\n",
        all="[limits]\nfloor = 2M\n", desktop="\0",
    )  # fmt: skip
    (wrong / "db-nvme.conf.d").write_text("no directory")
    choice = MADE_FOR["etcd"](Host(tmp_path / "host")).choice(wrong)
    assert choice.policy.name == "etcd"
    assert choice.policy.chosen.startswith(
        "skipped because of errors: db-nvme, desktop, mine, other; best match, 170 points"
    )
    assert [message.split(": ")[0] for message in choice.skipped] == [
        f"{wrong}/all.conf", f"{wrong}/db-nvme.conf.d", f"{wrong}/desktop.conf:1",
        f"{wrong}/mine.conf:2", f"{wrong}/other.conf:2",
    ]  # fmt: skip
    assert not {"mine", "other", "desktop"} & {each.name for each in choice.verdicts}
    choice = Host(tmp_path / "nothing").choice(wrong)
    assert choice.policy.name == "default"
    assert choice.policy.chosen.endswith("mine, other; no policy fits this host")


@pytest.mark.parametrize("wrong", ["", "flor = 1M\n"])
@pytest.mark.parametrize("before", [None, "mine"])
def test_a_policy_that_others_may_change_is_skipped_and_told(
    tmp_path: Path, before: Optional[str], wrong: str
) -> None:
    files = site(
        tmp_path, mine=RULE.format(least=1, points=502) + wrong,
        second=RULE.format(least=1, points=501),
    )  # fmt: skip
    host = Host(tmp_path / "host").metal()
    if not wrong:
        assert host.choice(files, before=before).policy.name == "mine"
    (files / "mine.conf").chmod(0o664)
    choice = host.choice(files, before=before)
    assert choice.policy.name == "second" and "mine" not in {v.name for v in choice.verdicts}
    chosen = "skipped because of errors: mine; best match, 501 points"
    assert choice.policy.chosen.startswith(chosen)
    (skipped,) = choice.skipped
    assert skipped.startswith(f"{files}/mine.conf: not taken: others than root may write ")


@pytest.mark.parametrize(
    ("drop_in", "before"), [("etcd", None), ("default", None), ("db-ssd", "db-ssd"), ("all", None)]
)
def test_a_wrong_policy_that_the_host_needs_is_an_error(
    tmp_path: Path, drop_in: str, before: Optional[str]
) -> None:
    wrong = site(tmp_path)
    (wrong / f"{drop_in}.conf.d").mkdir()
    (wrong / f"{drop_in}.conf.d" / "a.conf").write_text("[limits]\nflor = 1M\n")
    facts = read_facts(MADE_FOR["etcd"](Host(tmp_path / "host")).tree.files)
    with pytest.raises(PolicyError) as caught:
        choose(facts, wrong, NOWHERE, before)
    (message,) = caught.value.messages
    assert message.startswith(f"{wrong}/{drop_in}.conf.d/a.conf:2: unknown key 'flor'")
    assert choose(facts, root=NOWHERE, before=before).policy.name == "etcd"


def test_a_masked_policy_matches_nobody(tmp_path: Path) -> None:
    masked = site(tmp_path)
    (masked / "etcd.conf").symlink_to("/dev/null")
    host = MADE_FOR["etcd"](Host(tmp_path / "host"))
    assert host.choice().policy.name == "etcd"
    assert host.choice(masked).policy.name == "default"


def test_a_drop_in_takes_a_rule_away(tmp_path: Path) -> None:
    changed = site(tmp_path)
    (changed / "vm-guest.conf.d").mkdir()
    (changed / "vm-guest.conf.d" / "a.conf").write_text("[match]\nvirtualisation =\n")
    host = MADE_FOR["vm-guest"](Host(tmp_path / "host"))
    assert host.choice(changed).policy.name == "default"


# ---- the text of a rule ---------------------------------------------------------------------

POINTS = st.integers(1, rules.MOST_POINTS)
NAMES = st.lists(
    st.from_regex(r"[a-z][a-z0-9_*-]{0,20}", fullmatch=True), min_size=1, max_size=5, unique=True
).map(tuple)
SIZES = st.one_of(st.just(""), st.integers(0, 1 << 50).map(units.format_size))


def few(words: Tuple[str, ...]) -> "st.SearchStrategy[Tuple[str, ...]]":
    return st.lists(st.sampled_from(words), min_size=1, unique=True).map(tuple)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_rule_reads_back_as_it_is_written(data: st.DataObject) -> None:
    points = data.draw(POINTS)
    low, high = data.draw(SIZES), units.format_size(data.draw(st.integers(1 << 50, 1 << 60)))
    for parse, rule in (
        (rules.parse_drivers, rules.Rule(points, data.draw(NAMES))),
        (rules.parse_services, rules.Rule(points, data.draw(NAMES))),
        (rules.parse_cache, rules.Rule(points, data.draw(few(CACHES)))),
        (rules.parse_virtualisation, rules.Rule(points, data.draw(few(VIRTUALISATIONS)))),
        (rules.parse_rotational, rules.Rule(points, (data.draw(st.sampled_from(["yes", "no"])),))),
        (rules.parse_memory, rules.Rule(points, (f"{low}..{high}",))),
        (rules.parse_memory, rules.Rule(points, (f"{high}..",))),
    ):
        assert parse(rules.format_rule(rule)) == rule
        assert parse("") is None and rules.format_rule(None) == ""


WORDS = st.sampled_from(["postgres", "etcd.service", "nvme", "ahci", "\ud800", "a" * 15, ""])
FACTS = st.builds(
    HostFacts,
    st.lists(st.builds(DiskFacts, st.text(max_size=4), st.one_of(st.none(), WORDS),
                       st.one_of(st.none(), st.sampled_from(CACHES)),
                       st.one_of(st.none(), st.booleans()), st.booleans()), max_size=4).map(tuple),
    st.one_of(st.none(), st.lists(WORDS, max_size=4).map(tuple)),
    st.one_of(st.none(), st.lists(WORDS, max_size=4).map(tuple)),
    st.one_of(st.none(), st.sampled_from(VIRTUALISATIONS)),
    st.text(max_size=4),
    st.one_of(st.none(), st.integers(0, 1 << 50)),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(FACTS)
def test_any_facts_have_a_verdict(facts: HostFacts) -> None:
    verdicts = rank(judge(policy, facts) for policy in SHIPPED)
    for verdict in verdicts:
        assert verdict.points == sum(each.points for each in verdict.findings if each.holds)
    fits = [each.fits for each in verdicts]
    assert fits == sorted(fits, reverse=True)
    # A fact less never makes points more, but that a disk less may be the last that rotates.
    blind = replace(facts, units=None, processes=None, memory_bytes=None, virtualisation=None)
    for policy in SHIPPED:
        assert judge(policy, blind).points <= judge(policy, facts).points


# ---- [device driver:NAME] -----------------------------------------------------------------


def test_a_desktop_caps_sticks_whatever_they_are_called() -> None:
    policy = load_policy("desktop", root=NOWHERE)
    sticks = [(name, "usb-storage", 48) for name in ("sdb", "sdq", "dm-3")]
    for name, driver, most in (*sticks, ("sdb", "uas", 256), ("sdb", "ahci", 512)):
        disk = Device(name, "8:16", "8:16", driver=driver)
        assert policy.of(disk).ceiling_bytes == most << 20
    assert policy.of(Device("sdb", "8:16", "8:16")).ceiling_bytes == 512 << 20


@pytest.mark.parametrize(("pattern", "driver", "found"), [
    ("driver:usb-storage", "usb-storage", True), ("driver:usb-*", "usb-storage", True),
    ("driver:usb", "usb-storage", False), ("driver:*", "ahci", True),
    ("driver:*", None, False), ("usb-storage", "usb-storage", False),
])  # fmt: skip
def test_patterns_of_drivers(
    tmp_path: Path, pattern: str, driver: Optional[str], found: bool
) -> None:
    path = tmp_path / "p.conf"
    path.write_text(f"[devices]\nexclude = {pattern}\n[device {pattern}]\nfloor = 2M\n")
    policy = load_policy(str(path))
    assert (policy.of(Device("sda", "8:0", "8:0", driver=driver)).floor_bytes == 2 << 20) is found
    excluded = policy.selects(Device("sda", "8:0", "8:0", driver=driver)) is not None
    assert excluded is found
