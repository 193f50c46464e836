# SPDX-License-Identifier: GPL-2.0-or-later
"""What is fuzzed: each target takes bytes, and raises for what must not happen."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List

from writebackd.actuate import ledger
from writebackd.kernel.diskstats import DISKSTATS, DiskStatsReader
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_facts
from writebackd.kernel.mounts import parse_mountinfo
from writebackd.kernel.vm import LEVERS, host_info, read_state
from writebackd.policy import PolicyError, load_policy
from writebackd.policy.load import load_all, render
from writebackd.policy.match import judge
from writebackd.policy.reload import Timetable
from writebackd.policy.rules import HostFacts
from writebackd.policy.schema import Policy
from writebackd.report import control_server, learned_store
from writebackd.report.control_server import RequestError, size_argument, text_argument
from writebackd.storage import arcconf, linux_storage, megacli, ssacli, storcli, tw_cli
from writebackd.storage import report_file as raid_report
from writebackd.storage.report_file import CollectorReport, Tool
from writebackd.storage.tool_output import Controller, ToolError, text_of
from writebackd.types.storage import Device


@functools.lru_cache(maxsize=None)
def _home() -> Path:
    """A directory for the files of one run; who started the run removes it."""
    return Path(tempfile.mkdtemp(prefix="writebackd-fuzz-"))


def policy(data: bytes) -> None:
    """A policy, which reads back as it is rendered, or errors with their place."""
    path = _home() / "p.conf"
    path.write_bytes(data)
    try:
        found = load_policy(str(path))
    except PolicyError as error:
        for message in error.messages:
            if not re.match(rf"{path}(:\d+)?: \S", message) or "\n" in message:
                raise AssertionError(message) from None
        return
    found.of(Device("sda", "8:0", "8:0"))
    found.selects(Device("loop0", "7:0", "7:0", driver="loop"), ("sd*",))
    for wall_s in range(0, 7 * 86400, 3600):
        Timetable(found).at(wall_s)
    again = _home() / "again" / "p.conf"
    again.parent.mkdir(exist_ok=True)
    again.write_text(render(found))
    assert load_policy(str(again)) == found


def request(data: bytes) -> None:
    """A line for the control socket: parsed, or refused with RequestError."""
    try:
        verb, args = control_server._parse(data)
    except RequestError:
        return
    assert isinstance(verb, str)
    for read in (text_argument, size_argument):
        for name in ("device", "bytes", "mode"):
            try:
                read(args, name)
            except RequestError:
                continue


class _Host(KernelFiles):
    """All kernel files have the same text, as far as they go."""

    def __init__(self, data: bytes) -> None:
        super().__init__(_home())
        parts = data.split(b"\0\0")
        names = ["/proc/vmstat", DISKSTATS, "/proc/meminfo", *(f"/proc/sys/vm/{x}" for x in LEVERS)]
        self.texts: Dict[str, bytes] = {
            name: parts[at % len(parts)] for at, name in enumerate(names)
        }

    def read(self, name: str) -> str:
        return self.texts.get(name, b"").decode("utf-8", "surrogateescape").strip()


def kernel(data: bytes) -> None:
    """/proc and cgroup files: a value, or ValueError."""
    host = _Host(data)
    for read in (read_state, host_info, lambda files: DiskStatsReader(files).read()):
        try:
            read(host)
        except ValueError:
            continue
    parse_mountinfo(data.decode("utf-8", "surrogateescape"))


class _Processes(KernelFiles):
    """A database of the host's, and a process of a user's."""

    def __init__(self, cgroup: str, comm: str) -> None:
        super().__init__(_home())
        self.texts = {
            "/proc/1/cgroup": "0::/system.slice/postgresql.service\n", "/proc/1/comm": "postgres\n",
            "/proc/2/cgroup": cgroup, "/proc/2/comm": comm, "/proc/2/status": "Uid:\t9\t0\t9\t9\n",
        }  # fmt: skip

    def read_whole(self, name: str) -> str:
        if name not in self.texts:
            raise FileNotFoundError(2, "no such file", name)
        return self.texts[name]

    def listdir(self, name: str) -> List[str]:
        return ["1", "2"] if name == "/proc" else []


def match(data: bytes) -> None:
    """What a user calls his cgroups and processes adds nothing to what the host is."""
    name, _, comm = data.replace(b"\n", b"").decode("utf-8", "surrogateescape").partition("\0")
    path = f"/user.slice/user-9.slice/user@9.service/{name}"
    cgroup = f"1:name=systemd:{path}\n0::{path}\n"
    facts = read_facts(_Processes(cgroup, comm))
    assert facts.units == ("postgresql.service", "system.slice")
    assert facts.processes == ("postgres",)
    named = HostFacts(units=(name,), processes=(comm, name))
    for each in _shipped():
        judge(each, named)


@functools.lru_cache(maxsize=None)
def _shipped() -> List[Policy]:
    return [each.policy for each in load_all(root=Path("/nonexistent"))]


def state(data: bytes) -> None:
    """The ledger and what was learned: what they were, or the errors that readers expect."""
    path = _home() / "ledger.json"
    path.write_bytes(data)
    try:
        ledger.load(path)
    except ledger.LedgerError:
        pass
    try:
        learned_store.read_learned(path)
    except ValueError:
        pass


def raid(data: bytes) -> None:
    """Vendors' tools and the collector's file: values that are possible, or ToolError."""
    try:
        outputs = [text_of(part) for part in (data.split(b"\0\0") + [b""] * 4)[:4]]
    except ToolError:
        outputs = [""] * 4
    found: List[Controller] = []
    parsers = (storcli.parse, ssacli.parse, arcconf.parse, megacli.parse, tw_cli.parse, *_MAPPERS)
    for parse in parsers:
        try:
            found += parse(outputs)
        except ToolError:
            continue
    found.append(Controller(volumes=linux_storage.parse_mdstat(outputs[0])))
    # Whatever a parser makes of it has to get through the file.
    whole = CollectorReport(1.0, 1.0, "", "", (Tool("fuzz", "", None, tuple(found)),))
    assert raid_report.decode(raid_report.encode(whole)) == whole
    try:
        raid_report.decode(data)
    except ToolError:
        pass


_MAPPERS = tuple(
    lambda outputs, target=target: linux_storage.parse_dmsetup(target, outputs[:2], {"a": "dm-0"})
    for target in ("writecache", "cache")
)

TARGETS: Dict[str, Callable[[bytes], None]] = {
    "policy": policy, "request": request, "kernel": kernel, "state": state,
    "raid": raid, "match": match,
}  # fmt: skip

_LINE = b"   8       0 sda 101 2 3000 41 501 6 7000 81 9 1001 1101 1 2 3 4 1601 1701\n"


def seeds(target: str) -> List[bytes]:
    """Good examples to begin with."""
    from writebackd.policy.load import packaged_dir

    examples: Dict[str, Any] = {
        "policy": [path.read_bytes() for path in packaged_dir().glob("*.conf")],
        "request": [b'{"verb": "why", "args": {"device": "sda"}}', b'{"verb": "status"}'],
        "kernel": [
            b"nr_dirty 1\nnr_writeback 2\nnr_dirty_threshold 30\nnr_dirty_background_threshold 4",
            b"\0\0".join([b"nr_dirty 1", _LINE, b"MemTotal: 4096 kB", b"0", b"20"]),
            b"30 1 8:1 / /srv rw shared:1 - ext4 /dev/sda1 rw\n",
        ],
        "raid": [
            b'{"Controllers": [{"Command Status": {"Controller": 0, "Status": "Success"},'
            b' "Response Data": {"Basics": {"PCI Address": "00:3b:00:00"}, "VD LIST": [{"DG/VD":'
            b' "0/1", "Cache": "RWBD"}], "PD LIST": [{"EID:Slt": "1:2", "DG": 0, "State": "Rbld"}]}'
            b"}]}",
            b"Smart Array M in Slot 1\n   Cache Ratio: 25% Read / 75% Write\n   Logical Drive: 1\n"
            b"      Status: Recovering, 3% complete\n      Disk Name: /dev/sda\n",
            b"Controller information\n  PCI Address (a:b) : 0:1:0:0\nLogical Device number 0\n"
            b"  Write-cache status : On\0\0Logical device Task:\n  Logical device : 0\n"
            b"  Current operation : Rebuild\n  Status : In Progress\n  Percentage complete : 4\n",
            b"BBU status for Adapter: 0\n Battery State: Optimal\0\0Adapter 0 -- x\n"
            b"Virtual Drive: 0 (Target Id: 0)\nCurrent Cache Policy: WriteBack, Direct\0\0"
            b"PCI information for Controller 0\nBus Number : 1\nDevice Number : 0\n"
            b"Function Number : 0\n",
            b"Ctl Model Units BBU\n---\nc0 9750 1 OK\n\0\0Unit Status %RCmpl %V/I/M Cache\n---\n"
            b"u0 REBUILDING 4% - RiW\n",
            b"a: 0 8 writecache s 1:1 1:2 4096 0\0\0a: 0 8 writecache 0 9 8 0\n",
            b"md0 : active raid1 sda[0](J)\n [>..] check = 1.5% (1/2) finish=1min speed=5K/sec\n",
        ],
        "match": [
            b"x\v1:name=systemd:/system.slice/ceph-osd@1.service\0etcd", b"\xc2\x85 0::/\0ceph-osd",
        ],
        "state": [b'{"version": 1, "devices": [\n\n], "crc32": "00000000"}\n'],
    }
    found: List[bytes] = examples[target]
    return found
