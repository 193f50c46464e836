# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe's object on a kernel without BTF: its maps, with programs that bcc compiled.

libbpf makes the maps; it needs no BTF of the kernel's as long as it has no program to load.
Tracepoints are watched raw, functions by kprobes; fentry does not exist without BTF.
"""

from __future__ import annotations

import ctypes as C
import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from writebackd.kernel.libbpf import BpfError, Object, check

# include/uapi/linux/bpf.h
_PROGRAM_TYPES = {"kprobe": 2, "kretprobe": 2, "tp_btf": 17, "cgroup": 23}
_CGROUP_SYSCTL = 18
_LOAD_64 = 0x18  # the one instruction that takes two places
_PSEUDO_MAP = (1, 2)  # its source register: the map, the map's value

_KPROBES = Path("/sys/bus/event_source/devices/kprobe")
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_CLOEXEC = 8
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408
# struct perf_event_attr up to config2: type, size, config, ..., config1 (the function's name)
_PERF_EVENT = struct.Struct("=IIQ40xQ8x")

_INSTRUCTION = struct.Struct("=BBhi")


def with_maps(code: bytes, fds: Sequence[int]) -> bytes:
    """Compiled instructions, with the file descriptors of maps for their numbers."""
    patched = bytearray(code)
    at = 0
    while at < len(patched):
        opcode, registers, offset, number = _INSTRUCTION.unpack_from(patched, at)
        if opcode == _LOAD_64 and registers >> 4 in _PSEUDO_MAP:
            _INSTRUCTION.pack_into(patched, at, opcode, registers, offset, fds[number])
        at += _INSTRUCTION.size * (2 if opcode == _LOAD_64 else 1)
    return bytes(patched)


class BccObject(Object):
    """As libbpf's, of other programs."""

    TRACEPOINT = "raw_tp"

    def __init__(self, image: bytes, btf: str, compiled: Mapping[str, bytes]) -> None:
        """`btf` is a file that has the object's own types, with which it relocates nothing."""
        super().__init__(image, btf)
        self._compiled = compiled
        self._selected: List[str] = []
        self._programs: Dict[str, int] = {}  # file descriptors, as what follows
        self._attached: List[int] = []

    def select(self, programs: Sequence[str]) -> None:
        for name in programs:
            if name not in self._compiled:
                raise BpfError(f"no program {name} without BTF", errno.ENOENT)
        self._selected = list(programs)

    def load(self) -> None:
        super().select(())
        super().load()
        fds = [each.fd for each in self.maps()]
        for name in self._selected:
            code = with_maps(self._compiled[name], fds)
            kind = _PROGRAM_TYPES[self.section(name).partition("/")[0]]
            count = len(code) // _INSTRUCTION.size
            fd = self._lib.bpf_prog_load(kind, name[:15].encode(), b"GPL", code, count, None)
            self._programs[name] = check(fd, f"loading {name}")

    def program_fd(self, program: str) -> int:
        return self._programs[program]

    def attach(self, program: str, function: Optional[str] = None) -> None:
        kind, _, target = self.section(program).partition("/")
        fd = self._programs[program]
        if kind == "tp_btf":
            link = self._lib.bpf_raw_tracepoint_open(target.encode(), fd)
            self._attached.append(check(link, f"attaching {program} to {target}"))
        else:
            assert function is not None
            self._attached.append(_attach_kprobe(fd, function, kind == "kretprobe"))

    def attach_cgroup(self, program: str, cgroup: str) -> None:
        fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            link = self._lib.bpf_link_create(self._programs[program], fd, _CGROUP_SYSCTL, None)
            self._attached.append(check(link, f"attaching {program} to {cgroup}"))
        finally:
            os.close(fd)

    def close(self) -> None:
        for fd in [*self._attached, *self._programs.values()]:
            os.close(fd)
        self._attached.clear()
        self._programs.clear()
        super().close()


def _attach_kprobe(program: int, function: str, is_return: bool) -> int:
    """The event that runs the program when a kernel function begins, or returns."""
    event_type = int((_KPROBES / "type").read_text())
    name = C.create_string_buffer(function.encode())
    attributes = _PERF_EVENT.pack(
        event_type, _PERF_EVENT.size, int(is_return), C.addressof(name)
    )
    libc = C.CDLL(None, use_errno=True)
    number = C.c_long(_PERF_EVENT_OPEN[os.uname().machine])
    # Any process on one CPU: a kprobe is hit on all of them all the same.
    found = (attributes, C.c_int(-1), C.c_int(0), C.c_int(-1), C.c_ulong(_CLOEXEC))
    event = check(libc.syscall(number, *found), f"a kprobe on {function}")
    try:
        fcntl.ioctl(event, _IOC_SET_BPF, program)
        fcntl.ioctl(event, _IOC_ENABLE, 0)
    except OSError:
        os.close(event)
        raise
    return event
