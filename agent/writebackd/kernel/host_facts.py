# SPDX-License-Identifier: GPL-2.0-or-later
"""Facts about this host for [match], from /proc and /sys without touching a disk.

Of processes only /proc/PID/comm, cgroup and status are read, and init's mountinfo; of /etc, one
link.  psutil would complete a long name from /proc/PID/cmdline, which lies in the process' memory:
that may have to come from a disk that hangs, and waits for a lock that a stuck process holds.
"""

from __future__ import annotations

import contextlib
import re
from typing import List, Optional, Sequence, Set, Tuple

from writebackd.formats import printable
from writebackd.kernel.cgroup_io_max import memberships
from writebackd.kernel.disk_identity import Drivers
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.hidepid import HidePid, hiding
from writebackd.kernel.vm import host_info
from writebackd.policy.rules import DiskFacts, HostFacts

_UNIT = (".service", ".scope")
# Cgroups with systems of their own below, or a user's: what runs there is not the host's. A
# container's id has 64 digits. No end: lxc.payload.NAME, kubepods-burstable.slice.
_INNER = re.compile(
    r"user\.slice|machine\.slice|kubepods|docker$|libpod|lxc(?:$|[.@])|.*[0-9a-f]{64}"
)
# These are, from the root on, since a container may name what is in it as it likes: QEMU, which
# libvirt puts below machine.slice, and static pods, which the host's own files declare: their UID
# is an MD5 without dashes, where pods from the API have a UUID.
_HOSTS_OWN = re.compile(
    r"machine\.slice/machine-qemu[^/]*\.scope(?:/.*)?|"
    r"kubepods(?:\.slice)?/(?:(?:kubepods-)?(?:burstable|besteffort)(?:\.slice)?/)?"
    r"(?:kubepods-(?:[a-z]+-)?)?pod[0-9a-f]{32}(?:\.slice)?/.*"
)
# Services that start what users ask for: jobs, and sessions where no pam_systemd moves them.
_FOR_USERS = re.compile(
    r"(?:cron|crond|cronie|anacron|fcron|dcron|bcron|atd?"
    r"|sshd?(?:@.*)?|dropbear(?:@.*)?|(?:\w+-)?getty@.*)\.service"
)
# Channels on which controllers with a write cache show their volumes; physical disks that are
# handed through have others: MEGASAS_MAX_PD_CHANNELS, HPSA_RAID_VOLUME_BUS and _EXTERNAL_,
# PQI_RAID_VOLUME_BUS and _EXTERNAL_, CONTAINER_CHANNEL of the drivers; arcmsr has none.
VOLUMES = {
    "megaraid_sas": (2, 3), "mpi3mr": (1,), "hpsa": (1, 2), "smartpqi": (1, 3), "aacraid": (0,),
    "3w-9xxx": (0,), "3w-sas": (0,), "3w-xxxx": (0,),
}  # fmt: skip
# Parts of the names that virtual machines have in DMI, for processors without such a flag.
_VIRTUAL = (
    "qemu", "kvm", "vmware", "virtualbox", "innotek", "xen", "bochs", "parallels",
    "virtual machine", "openstack", "bhyve", "apple virtualization", "dummy-virt",
    "riscv-virtio", "xenvm",
)  # fmt: skip
# They rent whole machines, too.
_CLOUDS = ("google compute engine", "amazon ec2", "alibaba cloud", "digitalocean")
# Of makers of machines with such processors.
_MAKERS = (
    "ampere", "asrock", "dell", "fujitsu", "gigabyte", "hewlett", "hpe", "huawei", "inspur",
    "lenovo", "nvidia", "supermicro", "wiwynn",
)  # fmt: skip
_DMI = "/sys/class/dmi/id"
_DISPLAY = "display-manager.service"
_XEN_DOM0 = 1 << 11  # XENFEAT_dom0


def read_facts(files: KernelFiles) -> HostFacts:
    """One look at the host; unreadable facts are None.  Never raises."""
    units, processes = _services(files)
    virtualisation, shown_by = _virtualisation(files)
    return HostFacts(
        disks=read_disks(files),
        units=units,
        processes=processes,
        unseen=hiding(files) if HidePid(files).unseen() else None,
        virtualisation=virtualisation,
        virtualisation_shown_by=shown_by,
        memory_bytes=_memory_bytes(files),
    )


def read_disks(files: KernelFiles) -> Tuple[DiskFacts, ...]:
    """Disks that are not stacked on others."""
    drivers = Drivers(files)
    disks = []
    for name in files.listdir("/sys/block"):
        place = (files.readlink(f"/sys/block/{name}") or "").split("/")
        # dm, md, loop, zram: stacks and memory. A multipath NVMe head is virtual as well, but
        # below nvme-subsystem; its hidden paths (nvme0c0n1) are the same disk again.
        stacked = place[-3:-1] == ["virtual", "block"]
        if stacked or re.match(r"(?:sr|fd)\d|nvme\d+c\d", name):
            continue
        if (files.try_read(f"/sys/block/{name}/size") or "0") == "0":  # a card reader
            continue
        driver = drivers.of(name, place)
        disks.append(
            DiskFacts(
                name=name,
                driver=driver,
                cache=_cache(files, name, driver, place),
                rotational={"0": False, "1": True}.get(
                    files.try_read(f"/sys/block/{name}/queue/rotational") or ""
                ),
                removable=any(re.fullmatch(r"usb\d+", part) for part in place)
                or files.try_read(f"/sys/block/{name}/removable") == "1",
            )
        )
    return tuple(disks)


def _cache(
    files: KernelFiles, name: str, driver: Optional[str], place: List[str]
) -> Optional[str]:
    channel = re.search(r"/target\d+:(\d+):", "/".join(place))
    volumes = VOLUMES.get(driver or "", ())
    if driver == "arcmsr" or (channel and int(channel.group(1)) in volumes):
        return "controller"
    mode = files.try_read(f"/sys/block/{name}/queue/write_cache")
    return {"write back": "drive", "write through": "none"}.get(mode or "")


def _services(
    files: KernelFiles,
) -> Tuple[Optional[Tuple[str, ...]], Optional[Tuple[str, ...]]]:
    """Units that have a process, and process names, of the host itself.

    Units are recognised by their processes, which works on cgroup v1, v2 and hybrids. Without
    systemd a process stands for the unit of its name.
    """
    units: Set[str] = set()
    processes: Set[str] = set()
    without: Set[str] = set()  # that count where no systemd parts services from users
    seen = False
    for entry in files.listdir("/proc"):
        if not entry.isdigit():
            continue
        path = _systemd_path(memberships(files, entry))
        name = files.try_read(f"/proc/{entry}/comm")
        seen = seen or bool(name)
        if "user.slice" in path:
            continue
        depth = next((i for i, part in enumerate(path) if not part.endswith(".slice")), len(path))
        unit = path[depth] if depth < len(path) and path[depth].endswith(_UNIT) else None
        # A unit's parts beyond its name are inside of it: another systemd names its own there.
        units.update(printable(part) for part in path[:depth] + ([unit] if unit else []))
        own = _is_hosts_own(files, entry, path, unit)
        if name and own is not False:
            (without if own is None else processes).add(printable(name))
    if not seen:
        return None, None
    if not any(unit.endswith(_UNIT) for unit in units):  # OpenRC, runit, sysvinit
        processes |= without
        units |= {f"{name}.service" for name in processes}
    # Whatever the display manager is called, also as an instance: ly@tty2.service of ly@.service.
    called = (files.readlink(f"/etc/systemd/system/{_DISPLAY}") or "").rpartition("/")[2]
    if called in units | {re.sub("@.*[.]", "@.", unit) for unit in units}:
        units.add(_DISPLAY)
    return tuple(sorted(units)), tuple(sorted(processes))


def _is_hosts_own(
    files: KernelFiles, pid: str, path: List[str], unit: Optional[str]
) -> Optional[bool]:
    """Whether a process tells the host's purpose: any user can choose his processes' names.

    None: it does without systemd, as the process of a system user.
    """
    if _HOSTS_OWN.fullmatch("/".join(path)):
        return True
    if any(_INNER.match(part) for part in path) or _FOR_USERS.fullmatch(unit or ""):
        return False
    if unit is not None and unit.endswith(".service"):
        return path[-1] == unit  # below it is a subtree that it manages, often a container
    status = files.try_read(f"/proc/{pid}/status") or ""
    # Real and effective: a link to sudo, called etcd, runs with the second alone.
    ids = re.search(r"^Uid:\t([0-9]{1,10})\t\1\t", status, re.MULTILINE)
    uid = int(ids[1]) if ids else 1000
    # Debian has system users from 60000 on, too; of containers they begin at 100000.
    return uid == 0 or (None if (uid < 1000 or 60000 <= uid < 65534) and unit is None else False)


def _systemd_path(memberships: Sequence[Tuple[str, str, str]]) -> List[str]:
    """The parts of the path in systemd's hierarchy, else in cgroup v2, else the deepest."""
    parts: List[str] = []
    deepest: List[str] = []  # where there is neither: of a container all paths tell
    for hierarchy, controllers, path in memberships:
        path = re.sub(r" \(deleted\)$", "", path)  # by an upgrade of its package
        if hierarchy != "0" and controllers == "name=systemd":
            return path[1:].split("/")
        if hierarchy == "0" and not controllers:
            parts = path[1:].split("/")
        elif hierarchy != "0":
            deepest = max(deepest, path[1:].split("/"), key=len)
    return parts or deepest


def _virtualisation(files: KernelFiles) -> Tuple[Optional[str], str]:
    if "control_d" in (files.try_read("/proc/xen/capabilities") or "").split():
        return "host", "/proc/xen/capabilities: control_d"
    kind = files.try_read("/sys/hypervisor/type")
    features = files.try_read("/sys/hypervisor/properties/features") or ""
    if kind and re.fullmatch("[0-9a-f]{1,16}", features) and int(features, 16) & _XEN_DOM0:
        return "host", f"/sys/hypervisor/properties/features: {features}"
    if kind:
        return "guest", f"/sys/hypervisor/type: {kind}"
    names = [files.try_read(f"{_DMI}/{name}") for name in ("sys_vendor", "product_name")]
    named = " ".join(filter(None, names))
    called = f", DMI: {named}" if named else ""
    flags = _cpu_flags(files)
    if flags is not None:
        if "hypervisor" in flags:
            return "guest", f"CPU flag hypervisor{called}"
        # The flag can be hidden, from licences and drivers of GPUs.
        if any(name in named.lower() for name in _VIRTUAL):
            return "guest", f"no CPU flag hypervisor{called}"
        return "metal", f"no CPU flag hypervisor{called}"
    # Processors other than x86 have no such flag. z/VM and KVM on s390 are above its partition.
    above = re.search("^VM00 Control Program:(.*)", files.try_read("/proc/sysinfo") or "", re.M)
    if above:
        return "guest", f"/proc/sysinfo: {above[1].strip()}"
    tree = "/proc/device-tree"
    node = files.try_read(f"{tree}/hypervisor/compatible")
    if node:
        compatible = node.replace("\0", " ").strip()
        return "guest", f"device tree: hypervisor {compatible}"
    board = (files.try_read(f"{tree}/model") or "").rstrip("\0") if not named else ""
    shown = f"device tree: {board}" if board else called[2:]
    # A whole machine of Amazon's is called so: c6g.metal, c8g.metal-24xl.
    text = (board or named).lower()
    if re.search(r"\.metal(-\w+)?$", text):
        return "metal", shown
    # The second: PowerVM's name of a partition.
    virtual = any(name in text for name in (*_VIRTUAL, *_CLOUDS))
    if virtual or files.inode(f"{tree}/ibm,partition-name"):
        return "guest", shown
    # Anybody may write any name into DMI. Only root may read the bit.
    says_guest = _dmi_bit(files)
    disks = [files.readlink(f"/sys/block/{name}") or "" for name in files.listdir("/sys/block")]
    virtio = files.listdir("/sys/bus/virtio/devices") or any("/virtio" in disk for disk in disks)
    if says_guest or virtio:
        return "guest", f"{'DMI: virtual machine' if says_guest else 'virtio devices'}; {shown}"
    if board or says_guest is False or any(maker in text for maker in _MAKERS):
        return "metal", shown
    return None, ""


def _dmi_bit(files: KernelFiles) -> Optional[bool]:
    """Whether SMBIOS describes a virtual machine: bit 4 of type 0's byte 0x13."""
    try:
        text = files.read_whole("/sys/firmware/dmi/entries/0-0/raw")
    except OSError:
        return None
    data = text.encode("utf-8", "surrogateescape")
    return bool(data[0x13] & 0x10) if len(data) > 0x13 else None


def _cpu_flags(files: KernelFiles) -> Optional[List[str]]:
    match = re.search(r"^flags\s*:(.*)", files.try_read("/proc/cpuinfo") or "", re.MULTILINE)
    return match.group(1).split() if match else None


def _memory_bytes(files: KernelFiles) -> Optional[int]:
    with contextlib.suppress(OSError, ValueError):
        return host_info(files).memory_bytes
    return None
