# SPDX-License-Identifier: GPL-2.0-or-later
"""What a host says of itself: disks, services, virtualisation; what users start is not told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_sysfs import NVME, RAID, SATA, USB, FakeSysfs
from match_host import MADE_FOR, NOWHERE, SHIPPED, Host, site
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_facts
from writebackd.policy.match import choose, judge
from writebackd.policy.rules import DiskFacts, HostFacts

HEAD = "virtual/nvme-subsystem/nvme-subsys0"


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


@pytest.mark.parametrize(("driver", "channel", "cache"), [
    ("megaraid_sas", 2, "controller"), ("megaraid_sas", 3, "controller"),
    ("megaraid_sas", 0, "none"), ("megaraid_sas", 1, "none"),
    ("hpsa", 1, "controller"), ("hpsa", 0, "none"), ("smartpqi", 1, "controller"),
    ("smartpqi", 3, "controller"), ("smartpqi", 0, "none"), ("aacraid", 0, "controller"),
    ("aacraid", 1, "none"), ("arcmsr", 0, "controller"),
    ("mpi3mr", 1, "controller"), ("mpi3mr", 0, "none"), ("3w-9xxx", 0, "controller"),
    ("mpt3sas", 0, "none"), ("3w-9xxxx", 0, "none"),
])  # fmt: skip
def test_the_cache_of_a_controller_is_behind_its_volumes(
    tmp_path: Path, driver: str, channel: int, cache: str
) -> None:
    place = RAID.replace("2:2:0", f"2:{channel}:0")
    host = Host(tmp_path).disk(place, driver)
    assert read_facts(host.tree.files).disks[0].cache == cache


@pytest.mark.parametrize(("cgroup", "units"), [
    ("0::/system.slice/etcd.service", ("etcd.service", "system.slice")),
    ("0::/system.slice/system-postgresql.slice/postgresql@15-main.service",
     ("postgresql@15-main.service", "system-postgresql.slice", "system.slice")),
    ("12:pids:/x.service\n1:name=systemd:/system.slice/etcd.service\n0::/",
     ("etcd.service", "system.slice")),
    # Without systemd: of the same name.
    ("0::/system.slice/etcd.service\n1:name=systemd:/", ("etcd.service",)),
    ("0::/system.slice/etcd.service (deleted)", ("etcd.service", "system.slice")),
    ("0::/system.slice/docker-0a1b.scope", ("docker-0a1b.scope", "system.slice")),
    ("0:name=systemd:/system.slice/etcd.service", ("etcd.service",)),
    ("nonsense", ("etcd.service",)),
    ("", ("etcd.service",)),
    ("4:memory:/\n1:name=openrc:/etcd", ("etcd.service",)),
])  # fmt: skip
def test_units_are_told_by_their_processes(
    tmp_path: Path, cgroup: str, units: Tuple[str, ...]
) -> None:
    tree = FakeSysfs(tmp_path)
    tree.process(7, "etcd", cgroup)
    facts = read_facts(tree.files)
    assert (facts.units, facts.processes) == (units, ("etcd",))


def test_a_container_is_not_the_host_on_cgroup_v1_without_systemd(tmp_path: Path) -> None:
    tree = FakeSysfs(tmp_path)
    tree.process(7, "postgres", f"9:pids:/\n4:memory:/docker/{'0a' * 32}", 999)
    assert read_facts(tree.files).processes == ()


HEX = "0123456789abcdef" * 4
STATIC = "kubepods-burstable-pod" + HEX[:32] + ".slice"
UUID_POD = "kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice"


@pytest.mark.parametrize(("path", "uid", "counts", "units"), [
    ("/", 0, True, ("etcd.service",)),
    ("/", 70, True, ("etcd.service",)),
    ("/openrc.etcd", 64055, True, ("etcd.service",)),
    ("/openrc.etcd", 1000, False, ()),
    ("/", 100070, False, ()),
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
    (f"/kubepods/burstable/pod{HEX[:32]}/{HEX}", 0, True, ("etcd.service",)),
    (f"/kubepods.slice/kubepods-burstable.slice/{STATIC}/cri-containerd-{HEX}.scope", 0, True,
     None),
    (f"/kubepods.slice/kubepods-burstable.slice/{UUID_POD}/cri-containerd-{HEX}.scope", 0,
     False, None),
    (f"/kubepods/pod01234567-89ab-cdef-0123-456789abcdef/pod{HEX[:32]}/x", 0, False, ()),
])  # fmt: skip
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
NAME = st.lists(
    st.sampled_from([
        *SEPARATORS, " ", ":", "0::", "/system.slice", "/ceph-osd@1.service", FORGED, "etcd",
        "/user.slice", "/..", "name=systemd", "Uid:\t0\t0\t", "x", "*", "\udc85",
    ]),
    min_size=1, max_size=6,
).map("".join) | st.text(max_size=40).map(lambda text: re.sub("[\n\0]", "x", text))  # fmt: skip
BELOW = st.builds("{}/{}".format, st.sampled_from(USERS), NAME)
PLACE = BELOW | st.sampled_from(["/system.slice/ssh.service", "/system.slice/cron.service", "/"])
COMM = st.sampled_from(["ceph-osd", "etcd", "postgres", "nfsd"]) | st.text(max_size=15).map(
    lambda text: text.replace("\0", "x")
)


@given(place=PLACE, comm=COMM, effective=st.sampled_from([0, 1000]), hybrid=st.booleans())
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
    # Where there is systemd, a service has a unit.
    loose = {**HOSTS_OWN, "900": process("postgres", "0::/\n", 70, 70)}
    assert read_facts(Processes(loose)) == read_facts(Processes(HOSTS_OWN))
    outside = {**HOSTS_OWN, "900": process("postgres", "0::/system.slice/postgresql.service\n")}
    assert "postgres" in (read_facts(Processes(outside)).processes or ())


@given(st.dictionaries(st.sampled_from(["processes", "units"]), st.lists(NAME)))
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


@pytest.mark.parametrize(("files", "expected"), [
    ({"/proc/cpuinfo": "flags : a hypervisor"}, ("guest", "CPU flag hypervisor")),
    ({"/proc/cpuinfo": "flags : a hypervisors"}, ("metal", "no CPU flag hypervisor")),
    ({"/proc/cpuinfo": "model name : hypervisor\nflags : a"},
     ("metal", "no CPU flag hypervisor")),
    ({"/proc/xen/capabilities": "control_d", "/sys/hypervisor/type": "xen",
      "/proc/cpuinfo": "flags : hypervisor"}, ("host", "/proc/xen/capabilities: control_d")),
    ({"/sys/hypervisor/type": "xen"}, ("guest", "/sys/hypervisor/type: xen")),
    ({"/proc/cpuinfo": "flags : a", "/sys/class/dmi/id/sys_vendor": "Dell Inc."},
     ("metal", "no CPU flag hypervisor, DMI: Dell Inc.")),
    ({"/proc/cpuinfo": "flags : a", "/sys/class/dmi/id/sys_vendor": "VMware, Inc."},
     ("guest", "no CPU flag hypervisor, DMI: VMware, Inc.")),
    ({"/proc/cpuinfo": "flags : a", "/sys/class/dmi/id/sys_vendor": "Amazon EC2"},
     ("metal", "no CPU flag hypervisor, DMI: Amazon EC2")),
    *(({"/sys/hypervisor/type": "xen", "/sys/hypervisor/properties/features": features},
       (kind, shown)) for features, kind, shown in (
        ("000228f0", "host", "/sys/hypervisor/properties/features: 000228f0"),
        ("000000f0", "guest", "/sys/hypervisor/type: xen"),
        ("x", "guest", "/sys/hypervisor/type: xen"))),
    ({"/proc/sysinfo": "LPAR Name: A\nVM00 Control Program: z/VM    7.2.0\n"},
     ("guest", "/proc/sysinfo: z/VM    7.2.0")),
    # ARM: no flags.
    ({"/proc/cpuinfo": "Features : fp", "/sys/class/dmi/id/sys_vendor": "QEMU"},
     ("guest", "DMI: QEMU")),
    ({"/sys/class/dmi/id/sys_vendor": "Amazon EC2",
      "/sys/class/dmi/id/product_name": "c6g.large"}, ("guest", "DMI: Amazon EC2 c6g.large")),
    ({"/sys/class/dmi/id/sys_vendor": "Amazon EC2",
      "/sys/class/dmi/id/product_name": "c6g.metal"}, ("metal", "DMI: Amazon EC2 c6g.metal")),
    ({"/sys/class/dmi/id/product_name": "c8g.metal-24xl"}, ("metal", "DMI: c8g.metal-24xl")),
    ({"/proc/device-tree/model": "IBM,9009-42A\0", "/proc/device-tree/ibm,partition-name": "x"},
     ("guest", "device tree: IBM,9009-42A")),
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
])  # fmt: skip
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
