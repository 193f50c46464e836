# SPDX-License-Identifier: GPL-2.0-or-later
"""libbpf.so.1 through ctypes: only the calls that the probe needs.

ctypes takes 1.3 MB and no compiler (cffi needs a build per ABI, bcc 134 MB). Types of all functions
are declared: an undeclared result would be truncated to 32 bits and crash later.
"""

from __future__ import annotations

import ctypes as C
import errno
import functools
import logging
import mmap
import os
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

log = logging.getLogger(__name__)


class BpfError(Exception):
    """A bpf call failed; `errno` says why, `verdict` is the verifier's message, if any."""

    def __init__(self, what: str, number: int, verdict: str = "") -> None:
        super().__init__(": ".join(filter(None, (what, _strerror(number), verdict))))
        self.errno = number


def _strerror(number: int) -> str:
    if number == _NOT_SUPPORTED:
        return "not supported by this kernel (ENOTSUPP)"
    return os.strerror(number)


class _ProgInfo(C.Structure):
    """struct bpf_prog_info up to the run statistics (include/uapi/linux/bpf.h)."""

    _fields_ = [
        ("type", C.c_uint32),
        ("id", C.c_uint32),
        ("tag", C.c_uint8 * 8),
        ("before_load_time", C.c_uint8 * 24),
        ("load_time", C.c_uint64),
        ("created_by_uid", C.c_uint32),
        ("nr_map_ids", C.c_uint32),
        ("map_ids", C.c_uint64),
        ("name", C.c_char * 16),
        ("between", C.c_uint8 * 112),
        ("run_time_ns", C.c_uint64),
        ("run_cnt", C.c_uint64),
        ("recursion_misses", C.c_uint64),
    ]


class _OpenOptions(C.Structure):
    """struct bpf_object_open_opts (libbpf.h), up to the last field used."""

    _fields_ = [
        ("size", C.c_size_t),
        ("object_name", C.c_char_p),
        ("relaxed_maps", C.c_bool),
        ("pin_root_path", C.c_char_p),
        ("unused", C.c_uint32),
        ("kconfig", C.c_char_p),
        ("btf_custom_path", C.c_char_p),
    ]


# A test checks it against a program that ran.
assert _ProgInfo.load_time.offset == 40 and _ProgInfo.run_time_ns.offset == 192

_NO_EXIST = 1  # BPF_NOEXIST
_NOT_SUPPORTED = 524  # ENOTSUPP, of which no header for programs and no C library knows

_PRINT = C.CFUNCTYPE(C.c_int, C.c_int, C.c_char_p, C.c_void_p)
_SIGNATURES: Sequence[Tuple[str, Any, Sequence[Any]]] = (
    ("libbpf_set_print", C.c_void_p, [_PRINT]),
    ("libbpf_num_possible_cpus", C.c_int, []),
    ("bpf_object__open_mem", C.c_void_p, [C.c_char_p, C.c_size_t, C.c_void_p]),
    ("bpf_object__load", C.c_int, [C.c_void_p]),
    ("bpf_object__close", None, [C.c_void_p]),
    ("bpf_object__next_program", C.c_void_p, [C.c_void_p, C.c_void_p]),
    ("bpf_object__next_map", C.c_void_p, [C.c_void_p, C.c_void_p]),
    ("bpf_object__find_program_by_name", C.c_void_p, [C.c_void_p, C.c_char_p]),
    ("bpf_object__find_map_by_name", C.c_void_p, [C.c_void_p, C.c_char_p]),
    ("bpf_program__set_autoload", C.c_int, [C.c_void_p, C.c_bool]),
    ("bpf_program__name", C.c_char_p, [C.c_void_p]),
    ("bpf_program__section_name", C.c_char_p, [C.c_void_p]),
    ("bpf_program__fd", C.c_int, [C.c_void_p]),
    ("bpf_program__attach", C.c_void_p, [C.c_void_p]),
    ("bpf_program__attach_kprobe", C.c_void_p, [C.c_void_p, C.c_bool, C.c_char_p]),
    ("bpf_program__attach_cgroup", C.c_void_p, [C.c_void_p, C.c_int]),
    ("bpf_link__destroy", C.c_int, [C.c_void_p]),
    ("bpf_map__fd", C.c_int, [C.c_void_p]),
    ("bpf_map__name", C.c_char_p, [C.c_void_p]),
    ("bpf_map__key_size", C.c_uint32, [C.c_void_p]),
    ("bpf_map__value_size", C.c_uint32, [C.c_void_p]),
    ("bpf_map__max_entries", C.c_uint32, [C.c_void_p]),
    ("bpf_map__set_max_entries", C.c_int, [C.c_void_p, C.c_uint32]),
    ("bpf_map__set_initial_value", C.c_int, [C.c_void_p, C.c_void_p, C.c_size_t]),
    ("bpf_map_lookup_batch", C.c_int,
     [C.c_int, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.POINTER(C.c_uint32), C.c_void_p]),
    ("bpf_map_delete_elem", C.c_int, [C.c_int, C.c_void_p]),
    ("bpf_map_lookup_and_delete_elem", C.c_int, [C.c_int, C.c_void_p, C.c_void_p]),
    ("bpf_map_lookup_elem", C.c_int, [C.c_int, C.c_void_p, C.c_void_p]),
    ("bpf_map_update_elem", C.c_int, [C.c_int, C.c_void_p, C.c_void_p, C.c_uint64]),
    ("bpf_obj_get_info_by_fd", C.c_int, [C.c_int, C.c_void_p, C.POINTER(C.c_uint32)]),
    ("bpf_enable_stats", C.c_int, [C.c_int]),
    ("bpf_prog_load", C.c_int,
     [C.c_int, C.c_char_p, C.c_char_p, C.c_char_p, C.c_size_t, C.c_void_p]),
    ("bpf_raw_tracepoint_open", C.c_int, [C.c_char_p, C.c_int]),
    ("bpf_link_create", C.c_int, [C.c_int, C.c_int, C.c_int, C.c_void_p]),
)
SYSTEM = "libbpf.so.1"
# packaging/bundle.py builds it, for distributions that have none or an older one.
BUNDLED = Path(__file__).parents[1] / "_lib" / SYSTEM
_keep: List[Any] = []  # callbacks must outlive the library's use of them
_WARN = 0  # enum libbpf_print_level
_verdicts: List[str] = []  # of the programs that were refused since the last load began


def load() -> Tuple[C.CDLL, str]:
    """The system's library, else that of our package, and which; OSError says what to install."""
    problems = []
    for path, whose in ((SYSTEM, "the system's"), (str(BUNDLED), "bundled with writebackd")):
        try:
            return C.CDLL(path, use_errno=True), whose
        except OSError as error:
            problems.append(str(error))
    if not BUNDLED.exists():
        del problems[1]
    why = "; ".join(problems)
    raise OSError(f"cannot load {SYSTEM} ({why}): install libbpf1, libbpf or writebackd-libbpf")


@functools.lru_cache(maxsize=None)
def library() -> C.CDLL:
    """The loaded library, its functions declared; OSError if there is none."""
    lib, _ = load()
    for name, result, arguments in _SIGNATURES:
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    libc = C.CDLL(None)
    libc.vasprintf.argtypes = [C.POINTER(C.c_void_p), C.c_char_p, C.c_void_p]
    libc.free.argtypes = [C.c_void_p]

    def to_log(level: int, fmt: bytes, args: int) -> int:
        # A rejected program's verifier log comes through here, in thousands
        # of lines: trying hooks is routine, so it is for debugging only.
        if level == _WARN or log.isEnabledFor(logging.DEBUG):
            buffer = C.c_void_p()
            # A va_list is passed by pointer: an array on x86-64, a large structure on arm64.
            if libc.vasprintf(C.byref(buffer), fmt, args) < 0:
                return 0
            text = C.string_at(buffer).decode(errors="replace").rstrip()
            libc.free(buffer)
            if "BEGIN PROG LOAD LOG" in text:
                _verdicts.append(verdict_of(text))
            log.debug("libbpf: %s", text)
        return 0

    _keep.append(_PRINT(to_log))
    lib.libbpf_set_print(_keep[-1])
    return lib


def verdict_of(text: str) -> str:
    """Why the verifier refused a program: the last line of its log before the statistics."""
    lines = [line for line in text.splitlines() if not line.startswith(("processed ", "-- END "))]
    return lines[-1].strip() if lines else ""


def check(result: int, what: str, verdict: str = "") -> int:
    if result < 0:
        number = -result if result != -1 else C.get_errno() or errno.EIO
        raise BpfError(what, number, verdict)
    return result


def _check_pointer(pointer: Optional[int], what: str) -> int:
    if not pointer:
        raise BpfError(what, C.get_errno() or errno.EIO)
    return pointer


def possible_cpus() -> int:
    """CPUs the kernel may ever bring up; per-CPU maps have one value for each."""
    return check(library().libbpf_num_possible_cpus(), "possible CPUs")


class Map:
    def __init__(self, pointer: int) -> None:
        lib = library()
        self.name = lib.bpf_map__name(pointer).decode()
        self.fd: int = lib.bpf_map__fd(pointer)
        self.key_size: int = lib.bpf_map__key_size(pointer)
        self.value_size: int = lib.bpf_map__value_size(pointer)
        self.max_entries: int = lib.bpf_map__max_entries(pointer)

    def mapped(self) -> mmap.mmap:
        """The map's memory, shared and read-only; only for arrays with BPF_F_MMAPABLE."""
        length = -(-self.max_entries * self.value_size // mmap.PAGESIZE) * mmap.PAGESIZE
        return mmap.mmap(self.fd, length, mmap.MAP_SHARED, mmap.PROT_READ)

    def batch_reader(self, most: int) -> "BatchReader":
        return BatchReader(self, most)

    def delete(self, key: bytes) -> None:
        """Remove an entry; no error if it is already gone."""
        library().bpf_map_delete_elem(self.fd, key)

    def add(self, key: bytes, value: bytes) -> bool:
        """Add a new entry; False if the key exists, or there is no room."""
        return not library().bpf_map_update_elem(self.fd, key, value, _NO_EXIST)

    def has(self, key: bytes) -> bool:
        value = C.create_string_buffer(self.value_size)
        return not library().bpf_map_lookup_elem(self.fd, key, value)

    def pop(self) -> Optional[bytes]:
        """Remove the oldest entry of a queue; None if it is empty."""
        value = C.create_string_buffer(self.value_size)
        result = library().bpf_map_lookup_and_delete_elem(self.fd, None, value)
        if result == -errno.ENOENT:
            return None
        check(result, f"reading map {self.name}")
        return value.raw

    def memory_bytes(self) -> int:
        """Memory charged for the map (fdinfo memlock)."""
        text = Path(f"/proc/self/fdinfo/{self.fd}").read_text()
        match = re.search(r"^memlock:\s*(\d+)", text, re.M)
        return int(match.group(1)) if match else self.max_entries * self.value_size


class BatchReader:
    """Reads a whole hash map in few system calls, into reused buffers."""

    def __init__(self, bpf_map: Map, most: int) -> None:
        self._map = bpf_map
        self._most = most
        self._keys = C.create_string_buffer(most * bpf_map.key_size)
        self._values = C.create_string_buffer(most * bpf_map.value_size)
        # A hash map's cursor is a 32-bit bucket number; smaller keys exist.
        self._cursor = C.create_string_buffer(max(bpf_map.key_size, 4))

    def read(self) -> Iterator[Tuple[bytes, bytes]]:
        """`(key, value)` pairs; entries may come or go during the read."""
        lib = library()
        key_size, value_size = self._map.key_size, self._map.value_size
        start: Optional[Any] = None
        while True:
            count = C.c_uint32(self._most)
            result = lib.bpf_map_lookup_batch(
                self._map.fd, start, self._cursor, self._keys, self._values, C.byref(count), None
            )
            number = 0 if result >= 0 else (-result if result != -1 else C.get_errno())
            if number not in (0, errno.ENOENT):  # ENOENT: that was the last batch
                raise BpfError(f"reading map {self._map.name}", number)
            keys = C.string_at(self._keys, count.value * key_size)
            values = C.string_at(self._values, count.value * value_size)
            for i in range(count.value):
                yield (
                    keys[i * key_size : (i + 1) * key_size],
                    values[i * value_size : (i + 1) * value_size],
                )
            if number == errno.ENOENT or not count.value:
                return
            start = self._cursor


class Object:
    """An open, then loaded BPF object; a context manager that closes it."""

    TRACEPOINT = "tp_btf"  # how it watches one

    def __init__(self, image: bytes, btf: Optional[str] = None) -> None:
        """`image` is the ELF file's content: opening it must not wait for a disk.

        `btf`: file with the types to relocate to; without it those of the running kernel.
        """
        self._lib = library()
        self._image = image  # libbpf keeps pointers into it until loading
        self._links: List[int] = []
        options = None
        if btf is not None:
            options = C.byref(_OpenOptions(C.sizeof(_OpenOptions), btf_custom_path=btf.encode()))
        self._object: Optional[int] = _check_pointer(
            self._lib.bpf_object__open_mem(image, len(image), options), "opening the BPF object"
        )
        self.programs: Dict[str, int] = dict(
            self._walk(self._lib.bpf_object__next_program, self._lib.bpf_program__name)
        )

    def _walk(self, advance: Any, name: Any) -> Iterator[Tuple[str, int]]:
        pointer = advance(self._object, None)
        while pointer:
            yield name(pointer).decode(), pointer
            pointer = advance(self._object, pointer)

    def section(self, program: str) -> str:
        text: bytes = self._lib.bpf_program__section_name(self.programs[program])
        return text.decode().lstrip("?")

    def select(self, programs: Sequence[str]) -> None:
        """Load only these programs; ENOENT if the object lacks one."""
        for name in programs:
            if name not in self.programs:
                raise BpfError(f"no program {name} in the BPF object", errno.ENOENT)
        for name, pointer in self.programs.items():
            check(self._lib.bpf_program__set_autoload(pointer, name in programs), name)

    def set_entries(self, map_name: str, entries: int) -> None:
        pointer = self._map_pointer(map_name)
        check(self._lib.bpf_map__set_max_entries(pointer, entries), map_name)

    def set_constants(self, map_name: str, value: C.Structure) -> None:
        """Fill a read-only data section before loading."""
        pointer = self._map_pointer(map_name)
        result = self._lib.bpf_map__set_initial_value(pointer, C.byref(value), C.sizeof(value))
        check(result, f"{map_name} (size differs from the probe's?)")

    def load(self) -> None:
        """BpfError if the kernel refuses a selected program."""
        _verdicts.clear()
        result = self._lib.bpf_object__load(self._object)
        check(result, "loading BPF programs", _verdicts[-1] if _verdicts else "")

    def attach(self, program: str, function: Optional[str] = None) -> None:
        """Attach by section, or as a kprobe on `function`."""
        pointer = self.programs[program]
        if function is None:
            link = self._lib.bpf_program__attach(pointer)
        else:
            is_return = self.section(program).startswith("kret")
            link = self._lib.bpf_program__attach_kprobe(pointer, is_return, function.encode())
        where = f"attaching {program}" + (f" to {function}" if function else "")
        self._links.append(_check_pointer(link, where))

    def attach_cgroup(self, program: str, cgroup: str) -> None:
        fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._attach_to(program, fd, f"attaching {program} to {cgroup}")
        finally:
            os.close(fd)

    def _attach_to(self, program: str, cgroup: int, what: str) -> None:
        link = self._lib.bpf_program__attach_cgroup(self.programs[program], cgroup)
        self._links.append(_check_pointer(link, what))

    def _map_pointer(self, name: str) -> int:
        pointer = self._lib.bpf_object__find_map_by_name(self._object, name.encode())
        return _check_pointer(pointer, f"finding map {name}")

    def map(self, name: str) -> Map:
        return Map(self._map_pointer(name))

    def maps(self) -> List[Map]:
        walk = self._walk(self._lib.bpf_object__next_map, self._lib.bpf_map__name)
        return [Map(pointer) for _, pointer in walk]

    def program_fd(self, program: str) -> int:
        """The file descriptor of a loaded program."""
        return check(self._lib.bpf_program__fd(self.programs[program]), program)

    def run_stats(self, program: str) -> Tuple[int, int, int]:
        """`(ns, runs, recursion misses)`; ns and runs only while statistics are on."""
        info = _ProgInfo()
        size = C.c_uint32(C.sizeof(info))
        fd = self.program_fd(program)
        check(self._lib.bpf_obj_get_info_by_fd(fd, C.byref(info), C.byref(size)), program)
        return info.run_time_ns, info.run_cnt, info.recursion_misses

    def close(self) -> None:
        if self._object is None:
            return
        for link in self._links:
            self._lib.bpf_link__destroy(link)
        self._lib.bpf_object__close(self._object)
        self._object = None

    def __enter__(self) -> "Object":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def enable_run_stats() -> int:
    """A file descriptor that enables run statistics while it is open."""
    return check(library().bpf_enable_stats(0), "enabling run statistics")
