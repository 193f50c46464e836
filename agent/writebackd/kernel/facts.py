# SPDX-License-Identifier: GPL-2.0-or-later
"""What kind of host this is, from /proc and /sys alone: no disk is asked, none waited for.

Of processes only /proc/PID/comm and /proc/PID/cgroup are read.  psutil is not used for them: it
completes a long name from /proc/PID/cmdline, which lies in the process' memory, so it may have to
come from the swap of a disk that hangs, and waits for the lock that a stuck process holds.
"""

from __future__ import annotations

import re
from typing import List, Optional, Set, Tuple

from writebackd.kernel.drivers import Drivers
from writebackd.kernel.files import KernelFiles
from writebackd.policy.facts import DiskFacts, HostFacts

_UNIT = (".service", ".scope", ".slice")
# Channels on which controllers with a write cache show their volumes; physical disks that are
# handed through have others: MEGASAS_MAX_PD_CHANNELS, HPSA_RAID_VOLUME_BUS and _EXTERNAL_,
# PQI_RAID_VOLUME_BUS and _EXTERNAL_, CONTAINER_CHANNEL of the drivers. arcmsr and 3w-* keep none
# apart.
_VOLUMES = {
    "megaraid_sas": (2, 3), "hpsa": (1, 2), "smartpqi": (1, 3), "aacraid": (0,),
}  # fmt: skip
_CACHING = re.compile(r"arcmsr|3w-(9xxx|sas|xxxx)")
# Parts of the names that virtual machines have in DMI, for processors whose flags do not tell.
_VIRTUAL = (
    "qemu", "kvm", "vmware", "virtualbox", "innotek", "xen", "bochs", "parallels",
    "virtual machine", "openstack", "google compute engine", "amazon ec2", "alibaba cloud",
    "digitalocean", "bhyve", "apple virtualization",
)  # fmt: skip
_DMI = "/sys/class/dmi/id"


def read_facts(files: KernelFiles) -> HostFacts:
    """One look at the host; what cannot be read is None.  Never raises."""
    units, processes = _services(files)
    virtualisation, shown_by = _virtualisation(files)
    return HostFacts(
        disks=_disks(files),
        units=units,
        processes=processes,
        virtualisation=virtualisation,
        virtualisation_shown_by=shown_by,
        memory_bytes=_memory_bytes(files),
    )


def _disks(files: KernelFiles) -> Tuple[DiskFacts, ...]:
    drivers = Drivers(files)
    found = []
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
        found.append(
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
    return tuple(found)


def _cache(
    files: KernelFiles, name: str, driver: Optional[str], place: List[str]
) -> Optional[str]:
    channel = next((re.match(r"target\d+:(\d+):", part) for part in place
                    if part.startswith("target")), None)
    volumes = _VOLUMES.get(driver or "")
    if volumes is not None and channel is not None and int(channel.group(1)) in volumes:
        return "controller"
    if _CACHING.fullmatch(driver or ""):
        return "controller"
    mode = files.try_read(f"/sys/block/{name}/queue/write_cache")
    return {"write back": "drive", "write through": "none"}.get(mode or "")


def _services(
    files: KernelFiles,
) -> Tuple[Optional[Tuple[str, ...]], Optional[Tuple[str, ...]]]:
    """Units that have a process, and names of processes.

    A unit is told by its processes: that is the same on cgroup v1, v2 and in between.
    """
    units: Set[str] = set()
    processes: Set[str] = set()
    for entry in files.listdir("/proc"):
        if not entry.isdigit():
            continue
        cgroup = files.try_read(f"/proc/{entry}/cgroup")
        path = _systemd_path(cgroup or "")
        # Any user can give his process any name.
        if "user.slice" in path:
            continue
        name = files.try_read(f"/proc/{entry}/comm")
        if name:
            processes.add(_printable(name))
        units.update(_printable(part) for part in path if part.endswith(_UNIT))
    if not processes:
        return None, None
    return tuple(sorted(units)), tuple(sorted(processes))


def _printable(name: str) -> str:
    """These names end up in the log: a process may have put a line feed into its own."""
    return name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name)


def _systemd_path(cgroup: str) -> List[str]:
    """The parts of the path in systemd's hierarchy, or in v2's."""
    found: List[str] = []
    for line in cgroup.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "name=systemd" or (hierarchy == "0" and not found):
            found = path.strip("/").split("/")
    return found


def _virtualisation(files: KernelFiles) -> Tuple[Optional[str], str]:
    if "control_d" in (files.try_read("/proc/xen/capabilities") or "").split():
        return "host", "/proc/xen/capabilities: control_d"
    kind = files.try_read("/sys/hypervisor/type")
    if kind:
        return "guest", f"/sys/hypervisor/type: {kind}"
    names = [
        name
        for name in (files.try_read(f"{_DMI}/{each}") for each in ("sys_vendor", "product_name"))
        if name
    ]
    called = f", DMI: {' '.join(names)}" if names else ""
    flags = _cpu_flags(files)
    if flags is not None:
        if "hypervisor" in flags:
            return "guest", f"CPU flag hypervisor{called}"
        return "metal", f"no CPU flag hypervisor{called}"
    # Processors other than x86 have no such flag.
    node = files.try_read("/proc/device-tree/hypervisor/compatible")
    if node:
        text = node.replace("\0", " ").strip()
        return "guest", f"device tree: hypervisor {text}"
    text = " ".join(names).lower()
    # A whole machine of Amazon's is called so: c6g.metal.
    if any(each in text for each in _VIRTUAL) and not text.endswith(".metal"):
        return "guest", called[2:]
    return ("metal", called[2:]) if names else (None, "")


def _cpu_flags(files: KernelFiles) -> Optional[List[str]]:
    for line in (files.try_read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return value.split()
    return None


def _memory_bytes(files: KernelFiles) -> Optional[int]:
    found = re.search(
        r"^MemTotal:\s+([0-9]{1,18}) kB$", files.try_read("/proc/meminfo") or "", re.MULTILINE
    )
    return int(found.group(1)) << 10 if found else None
