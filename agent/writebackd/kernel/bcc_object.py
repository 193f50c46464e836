# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe's object on a kernel without BTF: its maps, with programs that bcc compiled.

libbpf creates the maps; it needs no kernel BTF as long as it loads no program.  Tracepoints are
attached raw, functions by kprobes; fentry does not exist without BTF.
"""

from __future__ import annotations

import ctypes as C
import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from writebackd.kernel.libbpf import BpfError, Object, check, verdict_of

# include/uapi/linux/bpf.h
_PROGRAM_TYPES = {
    "kprobe": 2, "kretprobe": 2, "ksyscall": 2, "kretsyscall": 2, "tp_btf": 17, "cgroup": 23,
}  # fmt: skip
_CGROUP_SYSCTL = 18
_LOAD_64 = 0x18  # the one instruction that takes two places
_PSEUDO_MAP = (1, 2)  # its source register: the map, the map's value

_KPROBES = Path("/sys/bus/event_source/devices/kprobe")
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
# Functions of system calls: SYSCALL_DEFINEx() with CONFIG_ARCH_HAS_SYSCALL_WRAPPER.
_SYSCALL = {"x86_64": "__x64_sys_", "aarch64": "__arm64_sys_"}
_CLOEXEC = 8
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408
# struct perf_event_attr up to config2: type, size, config, ..., config1 (the function's name)
_PERF_EVENT = struct.Struct("=IIQ40xQ8x")

_INSTRUCTION = struct.Struct("=BBhi")

# Bytes.  Of a refused program the log is an instruction a line.
_LOG_SIZE = 1 << 20


class _LoadOptions(C.Structure):
    """struct bpf_prog_load_opts (libbpf's bpf.h); only the log is used."""

    _fields_ = [
        ("size", C.c_size_t),
        ("unused", C.c_uint32 * 9),
        ("fd_array", C.c_void_p),
        ("func_info", C.c_void_p),
        ("func_info_counts", C.c_uint32 * 2),
        ("line_info", C.c_void_p),
        ("line_info_counts", C.c_uint32 * 2),
        ("log_level", C.c_uint32),
        ("log_size", C.c_uint32),
        ("log_buf", C.c_void_p),
    ]


assert _LoadOptions.log_buf.offset == 96


def with_maps(code: bytes, fds: Sequence[int]) -> bytes:
    """Compiled instructions, with map numbers replaced by file descriptors."""
    patched = bytearray(code)
    at = 0
    while at < len(patched):
        opcode, registers, offset, number = _INSTRUCTION.unpack_from(patched, at)
        if opcode == _LOAD_64 and registers >> 4 in _PSEUDO_MAP:
            _INSTRUCTION.pack_into(patched, at, opcode, registers, offset, fds[number])
        at += _INSTRUCTION.size * (2 if opcode == _LOAD_64 else 1)
    return bytes(patched)


class BccObject(Object):
    """The same interface as libbpf.Object, for programs compiled by bcc."""

    TRACEPOINT = "raw_tp"

    def __init__(self, image: bytes, btf: str, compiled: Mapping[str, bytes]) -> None:
        """`btf` is a file with the object's own types, which need no relocation."""
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
        fds = [table.fd for table in self.maps()]
        for name in self._selected:
            self._programs[name] = self._load_program(name, with_maps(self._compiled[name], fds))

    def _load_program(self, name: str, code: bytes) -> int:
        kind = _PROGRAM_TYPES[self.section(name).partition("/")[0]]
        count = len(code) // _INSTRUCTION.size
        arguments = (kind, name[:15].encode(), b"GPL", code, count)
        fd: int = self._lib.bpf_prog_load(*arguments, None)
        if fd >= 0:
            return fd
        text = C.create_string_buffer(_LOG_SIZE)
        options = _LoadOptions(
            C.sizeof(_LoadOptions), log_level=1, log_size=_LOG_SIZE, log_buf=C.addressof(text)
        )
        # Before 6.4 too long a log ends this call with ENOSPC: the first one's errno counts.
        refused = C.get_errno()
        again: int = self._lib.bpf_prog_load(*arguments, C.byref(options))
        if again >= 0:
            return again
        C.set_errno(refused)
        return check(fd, f"loading {name}", verdict_of(text.value.decode(errors="replace")))

    def program_fd(self, program: str) -> int:
        return self._programs[program]

    def attach(self, program: str, function: Optional[str] = None) -> None:
        kind, _, target = self.section(program).partition("/")
        fd = self._programs[program]
        if kind == "tp_btf":
            link = self._lib.bpf_raw_tracepoint_open(target.encode(), fd)
            self._attached.append(check(link, f"attaching {program} to {target}"))
        else:
            if function is None:
                function = _SYSCALL[os.uname().machine] + target
            self._attached.append(_attach_kprobe(fd, function, kind.startswith("kret")))

    def _attach_to(self, program: str, cgroup: int, what: str) -> None:
        link = self._lib.bpf_link_create(self._programs[program], cgroup, _CGROUP_SYSCTL, None)
        self._attached.append(check(link, what))

    def close(self) -> None:
        for fd in [*self._attached, *self._programs.values()]:
            os.close(fd)
        self._attached.clear()
        self._programs.clear()
        super().close()


def _attach_kprobe(program: int, function: str, is_return: bool) -> int:
    """The perf event that runs the program at a kernel function's entry or return."""
    event_type = int((_KPROBES / "type").read_text())
    name = C.create_string_buffer(function.encode())
    attributes = _PERF_EVENT.pack(
        event_type, _PERF_EVENT.size, int(is_return), C.addressof(name)
    )
    libc = C.CDLL(None, use_errno=True)
    number = C.c_long(_PERF_EVENT_OPEN[os.uname().machine])
    # Any process on one CPU: a kprobe is hit on all of them all the same.
    arguments = (attributes, C.c_int(-1), C.c_int(0), C.c_int(-1), C.c_ulong(_CLOEXEC))
    event = check(libc.syscall(number, *arguments), f"a kprobe on {function}")
    try:
        fcntl.ioctl(event, _IOC_SET_BPF, program)
        fcntl.ioctl(event, _IOC_ENABLE, 0)
    except OSError:
        os.close(event)
        raise
    return event
