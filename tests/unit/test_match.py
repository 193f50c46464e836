# SPDX-License-Identifier: GPL-2.0-or-later
"""[match]: what a host says of itself, the rules' points, and the policy that comes of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_sysfs import NVME, RAID, SATA, USB, VIRTIO, FakeSysfs
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_facts
from writebackd.policy import PolicyError, list_policies, load_policy, render, rules
from writebackd.policy.load import load_all
from writebackd.policy.match import Choice, choose, judge, rank
from writebackd.policy.rules import CACHES, VIRTUALISATIONS, DiskFacts, HostFacts
from writebackd.types.storage import Device

GIB = 1 << 30
NOWHERE = Path("/nonexistent")  # no site has policies there
JBOD = RAID.replace("target2:2:0/2:2:0:0", "target2:0:0/2:0:0:0")
HEAD = "virtual/nvme-subsystem/nvme-subsys0"


class Host:
    """A fake one, put together word by word; methods give it back."""

    def __init__(self, root: Path) -> None:
        self.tree = FakeSysfs(root)
        self._pid = 1
        self._disks = 0

    def memory(self, size: int) -> Host:
        self.tree.text("/proc/meminfo", f"MemTotal:       {size >> 10} kB\nMemFree: 1 kB")
        return self

    def metal(self) -> Host:
        self.tree.text("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse2 vmx")
        return self.memory(16 * GIB)

    def guest(self) -> Host:
        self.tree.text("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor sse2")
        self.tree.text("/sys/class/dmi/id/sys_vendor", "QEMU")
        return self.memory(16 * GIB)

    def disk(self, place: str, driver: str, rotational: bool = False, name: str = "") -> Host:
        self._disks += 1
        host = re.search(r"/host\d+/", place)
        number = self._disks
        if host is not None:  # an adapter of its own for each
            place = place.replace(host.group(), f"/host{20 + number}/")
            self.tree.scsi_host(f"host{20 + number}", driver)
        name = name or f"sd{chr(96 + number)}"
        cache = "write through" if place.startswith(RAID[:20]) else "write back"
        self.tree.disk(
            name, f"8:{16 * number}", place, rotational=rotational, write_cache=cache,
            driver=None if host or driver == "nvme" else driver,
        )  # fmt: skip
        return self

    def raid(self) -> Host:
        return self.disk(RAID, "megaraid_sas", rotational=True)

    def ssd(self) -> Host:
        return self.disk(SATA, "ahci")

    def hdd(self) -> Host:
        return self.disk(SATA, "ahci", rotational=True)

    def nvme(self) -> Host:
        return self.disk(NVME, "nvme", name=f"nvme{self._disks}n1")

    def volume(self) -> Host:
        return self.disk(VIRTIO, "virtio_blk", rotational=True, name="vda")

    def stick(self) -> Host:
        return self.disk(USB, "usb-storage", rotational=True)

    def runs(self, *names: str) -> Host:
        """Units (in system.slice) or processes."""
        for name in names:
            self._pid += 1
            unit = name.endswith((".service", ".scope"))
            cgroup = f"0::/system.slice/{name}" if unit else "0::/system.slice/some.service"
            self.tree.process(self._pid, "java" if unit else name, cgroup)
        return self

    def by_user(self, name: str) -> Host:
        self._pid += 1
        where = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service"
        self.tree.process(self._pid, name, where)
        return self

    def choice(
        self, config_dir: Optional[Path] = None, before: Optional[str] = None
    ) -> Choice:
        return choose(read_facts(self.tree.files), config_dir, root=NOWHERE, before=before)

    def fitting(self) -> List[str]:
        return [each.name for each in self.choice().verdicts if each.fits]


Build = Callable[[Host], Host]
# A host made for each class, and nothing else on it.
MADE_FOR: Dict[str, Build] = {
    "db-hwraid": lambda host: host.metal().raid().runs("postgres"),
    "db-ssd": lambda host: host.metal().ssd().ssd().runs("mariadbd"),
    "db-nvme": lambda host: host.metal().nvme().nvme().runs("mysqld"),
    "etcd": lambda host: host.metal().hdd().runs("etcd"),
    "kubernetes-node": lambda host: host.metal().ssd().runs("kubelet.service"),
    "file-server": lambda host: host.metal().hdd().runs("nfsd"),
    "backup-target": lambda host: host.metal().hdd().runs("bareos-sd"),
    "desktop": lambda host: host.metal().nvme().stick().runs("gdm.service"),
    "vm-guest": lambda host: host.guest().volume().runs("nginx"),
    "hypervisor": lambda host: host.metal().ssd().runs("qemu-system-x86"),
    "analytics": lambda host: host.metal().memory(256 * GIB).hdd().runs("hdfs-datanode.service"),
    "ceph-osd": lambda host: host.metal().hdd().nvme().runs("ceph-osd@3.service"),
    "default": lambda host: host.metal().ssd().runs("nginx"),
}


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
    ("dom0", lambda h: dom0(h.guest().hdd().runs("libvirtd.service")), "hypervisor"),
    ("desktop in a guest", lambda h: h.guest().volume().runs("sddm.service"), "desktop"),
    ("virtual machines on a desktop",
     lambda h: h.metal().nvme().runs("gdm.service", "libvirtd.service"), "hypervisor"),
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
    ("COSMIC", lambda h: h.metal().nvme().runs("cosmic-greeter.service"), "desktop"),
    ("ly", lambda h: h.metal().nvme().runs("ly@tty2.service"), "desktop"),
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
    ("a user's etcd", lambda h: h.metal().ssd().by_user("etcd"), "default"),
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


LEVERS = "[levers]\npace = on\n"


def test_a_policy_that_nobody_named_comes_without_pace(tmp_path: Path) -> None:
    choice = MADE_FOR["db-hwraid"](Host(tmp_path)).choice()
    assert load_policy("db-hwraid", root=NOWHERE).levers.pace
    assert not choice.policy.levers.pace
    assert choice.policy.chosen.startswith(
        "without pace, for which --policy db-hwraid or a drop-in is needed; best match, 150"
    )
    shown = render(choice.policy)
    assert re.search(
        r"# held back \(on in .*db-hwraid\.conf:\d+\): the policy was not named\npace = off", shown
    )


@pytest.mark.parametrize("where", ["etc/writebackd/policies.d", "run/writebackd/policies.d"])
def test_levers_that_a_site_asked_for_are_there_whoever_chose(tmp_path: Path, where: str) -> None:
    drop_in = tmp_path / where / "db-hwraid.conf.d" / "a.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(LEVERS)
    facts = read_facts(MADE_FOR["db-hwraid"](Host(tmp_path / "host")).tree.files)
    choice = choose(facts, root=tmp_path)
    assert choice.policy.levers.pace
    assert choice.policy.chosen.startswith("best match")


def test_levers_that_a_distribution_asks_for_are_held_back(tmp_path: Path) -> None:
    base = tmp_path / "usr/lib/writebackd/policies.d/default.conf"
    base.parent.mkdir(parents=True)
    base.write_text(LEVERS)
    choice = choose(HostFacts(), root=tmp_path)
    assert not choice.policy.levers.pace
    assert choice.policy.chosen == (
        "without pace, for which --policy default or a drop-in is needed; "
        "no policy fits this host"
    )


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


# ---- facts -----------------------------------------------------------------------------


def test_only_disks_that_are_no_stack_count(tmp_path: Path) -> None:
    host = Host(tmp_path).nvme().hdd().stick()
    tree = host.tree
    tree.disk("dm-0", "254:0", rotational=True, slaves=["sdb"])
    tree.disk("loop0", "7:0")
    tree.disk("sr0", "11:0", SATA)
    tree.disk("sdx", "8:240", USB, size=0)  # a card reader without a card
    tree.disk("nvme7n1", "259:70", HEAD)  # multipath: the head, and a path to it
    tree.disk("nvme7c0n1", "259:71", NVME)
    disks = {disk.name: disk for disk in read_facts(tree.files).disks}
    assert sorted(disks) == ["nvme0n1", "nvme7n1", "sdb", "sdc"]
    assert disks["sdb"] == DiskFacts("sdb", "ahci", "drive", True, False)
    assert (disks["sdc"].driver, disks["sdc"].removable) == ("usb-storage", True)
    assert [disk.name for disk in HostFacts(tuple(disks.values())).fixed_disks] == [
        "nvme0n1", "nvme7n1", "sdb",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "channel", "cache"),
    [
        ("megaraid_sas", 2, "controller"), ("megaraid_sas", 3, "controller"),
        ("megaraid_sas", 0, "none"), ("megaraid_sas", 1, "none"),
        ("hpsa", 1, "controller"), ("hpsa", 0, "none"), ("smartpqi", 1, "controller"),
        ("smartpqi", 3, "controller"), ("smartpqi", 0, "none"), ("aacraid", 0, "controller"),
        ("aacraid", 1, "none"), ("arcmsr", 0, "controller"), ("3w-9xxx", 0, "controller"),
        ("mpt3sas", 0, "none"), ("3w-9xxxx", 0, "none"),
    ],
)  # fmt: skip
def test_the_cache_of_a_controller_is_behind_its_volumes(
    tmp_path: Path, driver: str, channel: int, cache: str
) -> None:
    place = RAID.replace("2:2:0", f"2:{channel}:0")
    host = Host(tmp_path).disk(place, driver)
    assert read_facts(host.tree.files).disks[0].cache == cache


@pytest.mark.parametrize(
    ("cgroup", "units"),
    [
        ("0::/system.slice/etcd.service", ("etcd.service", "system.slice")),
        ("0::/system.slice/system-postgresql.slice/postgresql@15-main.service",
         ("postgresql@15-main.service", "system-postgresql.slice", "system.slice")),
        ("12:pids:/x.service\n1:name=systemd:/system.slice/etcd.service\n0::/",
         ("etcd.service", "system.slice")),
        ("0::/system.slice/etcd.service\n1:name=systemd:/", ()),
        ("0::/system.slice/docker-0a1b.scope", ("docker-0a1b.scope", "system.slice")),
        ("0:name=systemd:/system.slice/etcd.service", ()),
        ("nonsense", ()),
        ("", ()),
    ],
)  # fmt: skip
def test_units_are_told_by_their_processes(
    tmp_path: Path, cgroup: str, units: Tuple[str, ...]
) -> None:
    tree = FakeSysfs(tmp_path)
    tree.process(7, "etcd", cgroup)
    facts = read_facts(tree.files)
    assert (facts.units, facts.processes) == (units, ("etcd",))


HEX = "0123456789abcdef" * 4
STATIC = "kubepods-burstable-pod" + HEX[:32] + ".slice"
UUID_POD = "kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice"


@pytest.mark.parametrize(
    ("path", "uid", "counts", "units"),
    [
        ("/", 0, True, ()),
        ("/", 70, False, ()),
        ("/openrc.etcd", 0, True, ()),
        ("/init.scope", 0, True, ("init.scope",)),
        ("/system.slice/etcd.service", 70, True, ("etcd.service", "system.slice")),
        ("/system.slice/run-r1.scope", 0, True, ("run-r1.scope", "system.slice")),
        ("/system.slice/run-r1.scope", 70, False, ("run-r1.scope", "system.slice")),
        ("/system.slice/cron.service", 0, False, ("cron.service", "system.slice")),
        ("/system.slice/crond.service", 70, False, ("crond.service", "system.slice")),
        ("/system.slice/atd.service", 70, False, ("atd.service", "system.slice")),
        # Where no pam_systemd moves a session out of the service that began it.
        ("/system.slice/ssh.service", 70, False, ("ssh.service", "system.slice")),
        ("/system.slice/system-sshd.slice/sshd@1.service", 70, False, None),
        ("/system.slice/system-getty.slice/getty@tty1.service", 0, False, None),
        (f"/system.slice/docker-{HEX}.scope", 0, False, (f"docker-{HEX}.scope", "system.slice")),
        (f"/system.slice/docker-{HEX}.scope/system.slice/etcd.service", 0, False,
         (f"docker-{HEX}.scope", "system.slice")),
        (f"/docker/{HEX}", 0, False, ()),
        (f"/my-own-parent/{HEX}", 0, False, ()),
        ("/lxc/101/ns/system.slice/etcd.service", 0, False, ()),
        ("/lxc.payload.web/system.slice/etcd.service", 0, False, ()),
        (f"/machine.slice/libpod-{HEX}.scope/container", 0, False,
         (f"libpod-{HEX}.scope", "machine.slice")),
        ("/machine.slice/systemd-nspawn@a.service/payload/system.slice/etcd.service", 0, False,
         ("machine.slice", "systemd-nspawn@a.service")),
        ("/machine.slice/machine-qemu\\x2d1\\x2da.scope/libvirt/emulator", 64055, True,
         ("machine-qemu\\x2d1\\x2da.scope", "machine.slice")),
        ("/machine.slice/machine-a.scope/machine-qemu.scope", 0, False,
         ("machine-a.scope", "machine.slice")),
        (f"/system.slice/own.service/libpod-payload-{HEX}", 0, False,
         ("own.service", "system.slice")),
        ("/system.slice/own.service/delegated", 0, False, ("own.service", "system.slice")),
        (f"/kubepods/burstable/pod{HEX[:32]}/{HEX}", 0, True, ()),
        (f"/kubepods.slice/kubepods-burstable.slice/{STATIC}/cri-containerd-{HEX}.scope", 0, True,
         None),
        (f"/kubepods.slice/kubepods-burstable.slice/{UUID_POD}/cri-containerd-{HEX}.scope", 0,
         False, None),
        (f"/kubepods/pod01234567-89ab-cdef-0123-456789abcdef/pod{HEX[:32]}/x", 0, False, ()),
    ],
)  # fmt: skip
def test_what_runs_in_something_else_is_not_the_hosts(
    tmp_path: Path, path: str, uid: int, counts: bool, units: Optional[Tuple[str, ...]]
) -> None:
    tree = FakeSysfs(tmp_path)
    tree.process(7, "etcd", f"0::{path}", uid)
    facts = read_facts(tree.files)
    assert facts.processes == (("etcd",) if counts else ())
    if units is not None:
        assert facts.units == units


def test_a_process_name_alone_does_not_switch_protection_off(tmp_path: Path) -> None:
    host = Host(tmp_path / "host").metal().ssd().runs("ceph-osd", "postgres")
    assert host.choice().policy.name == "db-ssd"
    watched = "[policy]\nmode = observe\n[match]\nservices = 200: ceph-osd mine.service\n"
    own = site(tmp_path, mine=watched)
    assert host.choice(own).policy.name == "db-ssd"
    assert host.runs("mine.service").choice(own).policy.name == "mine"


FORGED = "1:name=systemd:/system.slice/ceph-osd@1.service"
SEPARATORS = "\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"  # of str.splitlines(), but for the kernel's


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_cgroup_that_a_user_named_is_no_line_of_its_own(tmp_path: Path, separator: str) -> None:
    host = Host(tmp_path).metal().ssd().runs("nginx.service")
    delegated = "0::/user.slice/user-1000.slice/user@1000.service/x" + separator
    host.tree.process(900, "sleep", delegated + FORGED, uid=1000)
    assert "ceph-osd@1.service" not in (read_facts(host.tree.files).units or ())
    assert (host.choice().policy.name, host.choice().policy.mode) == ("default", "enforce")


class Processes(KernelFiles):
    """A host that is nothing but processes: their files by pid and name."""

    def __init__(self, texts: Dict[str, Dict[str, str]]) -> None:
        super().__init__(NOWHERE)
        self.texts = texts

    def read_whole(self, name: str) -> str:
        _, _, pid, file = (name + "///").split("/")[:4]
        try:
            return self.texts[pid][file]
        except KeyError:
            raise FileNotFoundError(2, "no such file", name) from None

    def listdir(self, name: str) -> List[str]:
        return sorted(self.texts) if name == "/proc" else []


def process(comm: str, cgroup: str, real: int = 0, effective: int = 0) -> Dict[str, str]:
    """As the kernel prints it; it escapes what is no name in status alone."""
    name = comm.replace("\\", "\\\\").replace("\n", "\\n")
    uids = f"{real}\t{effective}\t{effective}\t{effective}"
    return {
        "comm": comm + "\n", "cgroup": cgroup, "status": f"Name:\t{name}\nUid:\t{uids}\n"
    }  # fmt: skip


SERVICES = ("ssh.service", "cron.service", "own.service", f"docker-{HEX}.scope", "mariadb.service")
SESSION = "/user.slice/user-1000.slice/session-2.scope"
HOSTS_OWN = {
    str(pid): process("mariadbd" if unit == SERVICES[-1] else "x", f"0::/system.slice/{unit}\n")
    for pid, unit in enumerate(SERVICES, 1)
}
# Where users put processes, and the names below which they choose the rest of the path.
USERS = [
    SESSION, "/user.slice/user-1000.slice/user@1000.service/app.slice",
    "/system.slice/own.service", f"/system.slice/docker-{HEX}.scope", "/docker", "/lxc.payload.a",
]  # fmt: skip
name = st.lists(
    st.sampled_from([
        *SEPARATORS, " ", ":", "0::", "/system.slice", "/ceph-osd@1.service", FORGED, "etcd",
        "/user.slice", "/..", "name=systemd", "Uid:\t0\t0\t", "x", "*", "\udc85",
    ]),
    min_size=1, max_size=6,
).map("".join) | st.text(max_size=40).map(lambda text: re.sub("[\n\0]", "x", text))  # fmt: skip
below = st.builds("{}/{}".format, st.sampled_from(USERS), name)
place = below | st.sampled_from(["/system.slice/ssh.service", "/system.slice/cron.service", "/"])
comm = st.sampled_from(["ceph-osd", "etcd", "postgres", "nfsd"]) | st.text(max_size=15).map(
    lambda text: text.replace("\0", "x")
)


@given(place=place, comm=comm, effective=st.sampled_from([0, 1000]), hybrid=st.booleans())
@settings(max_examples=300, deadline=None)
def test_what_a_user_starts_tells_nothing_of_the_host(
    place: str, comm: str, effective: int, hybrid: bool
) -> None:
    cgroup = f"12:pids:{place}\n1:name=systemd:{place}\n0::/\n" if hybrid else f"0::{place}\n"
    hostile = {**HOSTS_OWN, "900": process(comm, cgroup, 1000, effective)}
    assert read_facts(Processes(hostile)) == read_facts(Processes(HOSTS_OWN))


@pytest.mark.parametrize("cgroup", [
    f"/system.slice/docker-{HEX}.scope", f"/docker/{HEX}", "/lxc.payload.db/init.scope",
    f"/machine.slice/libpod-{HEX}.scope", "/lxc/101/ns",
    f"/kubepods.slice/kubepods-burstable.slice/cri-containerd-{HEX}.scope",
])  # fmt: skip
def test_what_root_starts_in_a_container_tells_nothing_of_the_host(cgroup: str) -> None:
    inside = {**HOSTS_OWN, "900": process("postgres", f"0::{cgroup}\n")}
    assert read_facts(Processes(inside)).processes == read_facts(Processes(HOSTS_OWN)).processes
    outside = {**HOSTS_OWN, "900": process("postgres", "0::/system.slice/postgresql.service\n")}
    assert "postgres" in (read_facts(Processes(outside)).processes or ())


@given(st.dictionaries(st.sampled_from(["processes", "units"]), st.lists(name)))
def test_hostile_names_are_judged_without_an_error(names: Dict[str, List[str]]) -> None:
    found = {each: tuple(sorted(some)) for each, some in names.items()}
    for policy in SHIPPED:
        judge(policy, HostFacts(**found))  # type: ignore[arg-type]


def test_a_roll_out_that_observes_takes_the_class_that_will_enforce(tmp_path: Path) -> None:
    rollout = site(tmp_path)
    for name in ("all", "etcd"):
        (rollout / f"{name}.conf.d").mkdir()
        (rollout / f"{name}.conf.d" / "a.conf").write_text("[policy]\nmode = observe\n")
        policy = MADE_FOR["etcd"](Host(tmp_path / name)).choice(rollout).policy
        assert (policy.name, policy.mode) == ("etcd", "observe")


def test_a_process_of_a_user_is_not_counted_on_either_cgroup_version(tmp_path: Path) -> None:
    tree = FakeSysfs(tmp_path)
    tree.process(7, "etcd", "1:name=systemd:/user.slice/user-1000.slice/session-2.scope\n0::/")
    tree.process(8, "mysqld", "0::/user.slice/user-1000.slice/session-2.scope")
    tree.process(9, "init")
    facts = read_facts(tree.files)
    assert (facts.units, facts.processes) == ((), ("init",))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/cpuinfo": "flags : a hypervisor"}, ("guest", "CPU flag hypervisor")),
        ({"/proc/cpuinfo": "flags : a hypervisors"}, ("metal", "no CPU flag hypervisor")),
        ({"/proc/cpuinfo": "model name : hypervisor\nflags : a"},
         ("metal", "no CPU flag hypervisor")),
        ({"/proc/xen/capabilities": "control_d", "/sys/hypervisor/type": "xen",
          "/proc/cpuinfo": "flags : hypervisor"}, ("host", "/proc/xen/capabilities: control_d")),
        ({"/sys/hypervisor/type": "xen"}, ("guest", "/sys/hypervisor/type: xen")),
        ({"/proc/cpuinfo": "flags : a", "/sys/class/dmi/id/sys_vendor": "Dell Inc."},
         ("metal", "no CPU flag hypervisor, DMI: Dell Inc.")),
        # ARM: no flags.
        ({"/proc/cpuinfo": "Features : fp", "/sys/class/dmi/id/sys_vendor": "QEMU"},
         ("guest", "DMI: QEMU")),
        ({"/sys/class/dmi/id/sys_vendor": "Amazon EC2",
          "/sys/class/dmi/id/product_name": "c6g.large"}, ("guest", "DMI: Amazon EC2 c6g.large")),
        ({"/sys/class/dmi/id/sys_vendor": "Amazon EC2",
          "/sys/class/dmi/id/product_name": "c6g.metal"}, ("metal", "DMI: Amazon EC2 c6g.metal")),
        ({"/proc/device-tree/hypervisor/compatible": "linux,kvm\0"},
         ("guest", "device tree: hypervisor linux,kvm")),
        ({"/sys/class/dmi/id/sys_vendor": "Example Cloud"}, (None, "")),
        ({"/sys/class/dmi/id/sys_vendor": "Example Cloud",
          "/sys/firmware/dmi/entries/0-0/raw": f"{'x' * 0x13}\x10"},
         ("guest", "DMI: virtual machine; DMI: Example Cloud")),
        ({"/sys/class/dmi/id/sys_vendor": "Example Cloud",
          "/sys/firmware/dmi/entries/0-0/raw": f"{'x' * 0x13}\x0f"},
         ("metal", "DMI: Example Cloud")),
        ({"/sys/class/dmi/id/sys_vendor": "Example Cloud",
          "/sys/bus/virtio/devices/virtio0/x": ""},
         ("guest", "virtio devices; DMI: Example Cloud")),
        ({"/sys/class/dmi/id/sys_vendor": "Supermicro"}, ("metal", "DMI: Supermicro")),
        ({"/proc/device-tree/model": "linux,dummy-virt\0"},
         ("guest", "device tree: linux,dummy-virt")),
        ({"/proc/device-tree/model": "Raspberry Pi 4 Model B\0"},
         ("metal", "device tree: Raspberry Pi 4 Model B")),
        ({"/proc/device-tree/model": "Board\0", "/sys/bus/virtio/devices/virtio0/x": ""},
         ("guest", "virtio devices; device tree: Board")),
        ({}, (None, "")),
    ],
)  # fmt: skip
def test_virtualisation(
    tmp_path: Path, files: Dict[str, str], expected: Tuple[Optional[str], str]
) -> None:
    tree = FakeSysfs(tmp_path)
    for name, text in files.items():
        tree.text(name, text)
    facts = read_facts(tree.files)
    assert (facts.virtualisation, facts.virtualisation_shown_by) == expected


class Watched(KernelFiles):
    """Remembers what was looked at."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.names: List[str] = []

    def read_whole(self, name: str) -> str:
        self.names.append(name)
        return super().read_whole(name)

    def listdir(self, name: str) -> List[str]:
        self.names.append(name)
        return super().listdir(name)


def test_nothing_but_proc_and_sys_is_read_and_no_memory_of_a_process(tmp_path: Path) -> None:
    MADE_FOR["db-hwraid"](Host(tmp_path)).tree.process(900, "nfsd")
    files = Watched(tmp_path)
    read_facts(files)
    assert all(name.startswith(("/proc", "/sys/")) for name in files.names), files.names
    of_processes = {name.rsplit("/", 1)[-1] for name in files.names if re.match(r"/proc/\d", name)}
    assert of_processes == {"comm", "cgroup", "status", "mountinfo"}


def test_hostile_files_are_read_as_far_as_they_make_sense(tmp_path: Path) -> None:
    tree = FakeSysfs(tmp_path)
    tree.process(7, "a\nb\x1b[2J", "0::/system.slice/x\x07.service")
    tree.process(8, "", "::\n:::::\n0::/" + "/".join(["a.slice"] * 5000))
    (tree.root / "proc/9").mkdir()
    (tree.root / "proc/9/comm").mkdir()
    tree.process(10, "")
    tree.process(11, "no uid")
    tree.text("/proc/11/status", "Uid:\nUid:\t0\nUid: x 0\n")
    (tree.root / "proc/10/comm").write_bytes(b"\xff\xfe")
    tree.text("/proc/meminfo", "MemTotal: " + "9" * 5000 + " kB")
    tree.text("/proc/cpuinfo", "flags\n" * 1000)
    tree.disk("sda", "8:0", "target", rotational=None, write_cache="\x00")
    tree.text("/sys/block/sda/queue/rotational", "2")
    tree.link("/sys/block/sdz", "sdz")  # to itself
    facts = read_facts(tree.files)
    assert facts.processes == ("??", "a?b?[2J")
    assert facts.units == ("a.slice", "system.slice", "x?.service")
    assert facts.memory_bytes is None
    assert facts.disks == (DiskFacts("sda", "sda"),)
    assert choose(facts, root=NOWHERE).policy.name == "default"


# ---- ties, other people's policies --------------------------------------------------------


def site(tmp_path: Path, **texts: str) -> Path:
    directory = tmp_path / "policies"
    directory.mkdir()
    for name, text in texts.items():
        (directory / f"{name}.conf").write_text(text)
    return directory


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
SIZES = st.one_of(st.none(), st.integers(0, 1 << 50))


def few(words: Tuple[str, ...]) -> "st.SearchStrategy[Tuple[str, ...]]":
    return st.lists(st.sampled_from(words), min_size=1, unique=True).map(tuple)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_rule_reads_back_as_it_is_written(data: st.DataObject) -> None:
    points = data.draw(POINTS)
    low, high = data.draw(SIZES), data.draw(st.integers(1 << 50, 1 << 60))
    for parse, rule in (
        (rules.parse_drivers, rules.Rule(points, data.draw(NAMES))),
        (rules.parse_services, rules.Rule(points, data.draw(NAMES))),
        (rules.parse_cache, rules.Rule(points, data.draw(few(CACHES)))),
        (rules.parse_virtualisation, rules.Rule(points, data.draw(few(VIRTUALISATIONS)))),
        (rules.parse_rotational, rules.Rule(points, (data.draw(st.sampled_from(["yes", "no"])),))),
        (rules.parse_memory, rules.MemoryRule(points, low, high)),
        (rules.parse_memory, rules.MemoryRule(points, high, None)),
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
SHIPPED = tuple(each.policy for each in load_all(root=NOWHERE))


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
    for name in ("sdb", "sdq", "dm-3"):
        assert policy.for_device(name, "8:16", "usb-storage").ceiling_bytes == 48 << 20
    assert policy.for_device("sdb", "8:16", "uas").ceiling_bytes == 256 << 20
    assert policy.for_device("sdb", "8:16", "ahci").ceiling_bytes == 512 << 20
    assert policy.for_device("sdb", "8:16").ceiling_bytes == 512 << 20


@pytest.mark.parametrize(
    ("pattern", "driver", "found"),
    [
        ("driver:usb-storage", "usb-storage", True), ("driver:usb-*", "usb-storage", True),
        ("driver:usb", "usb-storage", False), ("driver:*", "ahci", True),
        ("driver:*", None, False), ("usb-storage", "usb-storage", False),
    ],
)  # fmt: skip
def test_patterns_of_drivers(
    tmp_path: Path, pattern: str, driver: Optional[str], found: bool
) -> None:
    path = tmp_path / "p.conf"
    path.write_text(f"[devices]\nexclude = {pattern}\n[device {pattern}]\nfloor = 2M\n")
    policy = load_policy(str(path))
    assert (policy.for_device("sda", "8:0", driver).floor_bytes == 2 << 20) is found
    excluded = policy.selects(Device("sda", "8:0", "8:0", driver=driver)) is not None
    assert excluded is found
