# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads BTF: the types of a kernel, or of a BPF object (Documentation/bpf/btf.rst)."""

from __future__ import annotations

import collections
import struct
from typing import Dict, List, NamedTuple, Set, Tuple

INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT = range(1, 12)
FUNC_PROTO, VAR, DATASEC, DECL_TAG, TYPE_TAG, ENUM64 = 13, 14, 15, 17, 18, 19
# Words that follow a type of this kind, and words for each of its members.
TRAILER = {
    INT: (1, 0), ARRAY: (3, 0), STRUCT: (0, 3), UNION: (0, 3), ENUM: (0, 2), FUNC_PROTO: (0, 2),
    VAR: (1, 0), DATASEC: (0, 3), DECL_TAG: (1, 0), ENUM64: (0, 3),
}  # fmt: skip


class Type(NamedTuple):
    name: str
    kind: int
    flag: bool  # of a structure: members may be bit fields
    size: int  # or the number of the type that this one refers to
    trailer: Tuple[int, ...]


class Btf:
    def __init__(self, data: bytes) -> None:
        magic, _, _, header, at, length, strings, _ = struct.unpack_from("<HBBIIIII", data)
        assert magic == 0xEB9F, "no BTF of a little-endian machine"
        self._names = data[header + strings :]
        self._types = [Type("void", 0, False, 0, ())]
        at += header
        end = at + length
        while at < end:
            name, info, size = struct.unpack_from("<III", data, at)
            kind = info >> 24 & 0x1F
            fixed, each = TRAILER.get(kind, (0, 0))
            trailer = struct.unpack_from(f"<{fixed + each * (info & 0xFFFF)}I", data, at + 12)
            self._types.append(Type(self._name(name), kind, bool(info >> 31), size, trailer))
            at += 12 + 4 * len(trailer)

    def fields(self) -> Dict[str, Dict[str, Set[str]]]:
        """Structure -> field -> what it is, by the size of a number and the name of a structure.

        Fields of anonymous members count as their parent's. More than one structure may have a
        name: a field is then what it is in any of them.
        """
        found: Dict[str, Dict[str, Set[str]]] = {}
        for each in self._types:
            if each.kind == STRUCT:
                fields = found.setdefault(each.name, collections.defaultdict(set))
                self._add_fields(each, fields)
        return found

    def enumerators(self) -> List[Tuple[str, str, int]]:
        """`(enumeration, name, value)` of all."""
        return [
            (each.name, self._name(each.trailer[i]), each.trailer[i + 1])
            for each in self._types
            if each.kind in (ENUM, ENUM64)
            for i in range(0, len(each.trailer), TRAILER[each.kind][1])
        ]

    def _add_fields(self, parent: Type, fields: Dict[str, Set[str]]) -> None:
        for i in range(0, len(parent.trailer), 3):
            name, number, offset = parent.trailer[i : i + 3]
            bits = offset >> 24 if parent.flag else 0
            if name:
                fields[self._name(name)].add(f"{bits} bits" if bits else self._say(number))
            elif self._types[number].kind in (STRUCT, UNION):
                self._add_fields(self._types[number], fields)

    def _say(self, number: int) -> str:
        found = self._types[number]
        if found.kind in (TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG):
            return self._say(found.size)
        if found.kind in (INT, ENUM, ENUM64):
            return f"number of {found.size} bytes"
        if found.kind == ARRAY:
            return f"{found.trailer[2]} times {self._say(found.trailer[0])}"
        if found.kind == PTR:
            return f"pointer to {self._say(found.size)}"
        return found.name

    def _name(self, offset: int) -> str:
        return self._names[offset : self._names.index(b"\0", offset)].decode()


def elf_section(data: bytes, wanted: str) -> bytes:
    """Contents of a section of a 64-bit little-endian ELF file."""
    table, size, count, names_index = struct.unpack_from("<Q10xHHH", data, 40)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    names = data[headers[names_index][4] :]
    (found,) = [each for each in headers if names[each[0] :].startswith(wanted.encode() + b"\0")]
    return data[found[4] : found[4] + found[5]]


def in_image(image: bytes) -> bytes:
    """The BTF of an uncompressed kernel image, as arm64's is: the longest that is complete."""
    found = b""
    start = struct.pack("<HBBI", 0xEB9F, 1, 0, 24)
    at = image.find(start)
    while at >= 0:
        strings, size = struct.unpack_from("<II", image, at + 16)
        length = 24 + strings + size
        if len(found) < length <= len(image) - at:
            found = image[at : at + length]
        at = image.find(start, at + 1)
    return found
