# SPDX-License-Identifier: GPL-2.0-or-later
"""What bpf/kernel_types.h says of the kernel, against the types of a real one.

The running kernel's, or those of another in BTF=FILE, of x86_64 or aarch64.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Set

import pytest

from tests.kernel.btf import Btf, elf_section
from writebackd.kernel.probe import object_path

HEADER = (Path(__file__).resolve().parents[2] / "bpf/kernel_types.h").read_text()
BTF = Path(os.environ.get("BTF") or "/sys/kernel/btf/vmlinux")
# What some kernels lack, and the programs ask for before they read it.
OPTIONAL = {
    "request.rq_disk",  # until 5.16
    "request_queue.disk",  # since 5.17
    "gendisk.diskseq",  # since 5.15
    "xfs_inode.i_vnode",  # in the kernel's own types unless xfs is a module
}


@pytest.fixture(scope="module")
def kernel() -> Btf:
    if not BTF.exists():
        pytest.skip(f"no kernel types: {BTF} is missing")
    return Btf(BTF.read_bytes())


def compiled(machine: str) -> Btf:
    """The types of an object: what the compiler made of the header."""
    image = object_path().with_name(f"writeback.{machine}.bpf.o").read_bytes()
    return Btf(elf_section(image, ".BTF"))


def structures() -> Set[str]:
    return set(re.findall(r"^struct (\w+) \{", HEADER, re.MULTILINE))


def test_fields_are_there_and_what_the_header_says(kernel: Btf) -> None:
    real = kernel.fields()
    machine = "aarch64" if "user_pt_regs" in real else "x86_64"
    ours = compiled(machine).fields()
    wrong, absent = [], set()
    for name in structures() & set(ours):
        struct = name.partition("___")[0]
        for field, said in ours[name].items():
            found = real.get(struct, {}).get(field)
            if not found:
                absent.add(f"{struct}.{field}")
            elif not said & found:
                wrong.append(f"{struct}.{field}: {said}, and in {BTF} {found}")
    assert wrong == []
    assert absent - OPTIONAL == set()
    assert not {"request.rq_disk", "request_queue.disk"} <= absent


def test_numbers_are_the_kernel_s(kernel: Btf) -> None:
    """Those that are compiled in; others the header gives without a value, by their name."""
    real = kernel.enumerators()
    values = {(name, value) for _, name, value in real}
    numbers = re.findall(r"^\t(\w+) = (\d+),", HEADER, re.MULTILINE)
    assert "REQ_OP_WRITE" in dict(numbers)
    assert {(name, int(value)) for name, value in numbers} - values == set()
    flags = {name for enum, name, _ in compiled("x86_64").enumerators() if enum == "req_flag_bits"}
    assert "__REQ_SYNC" in flags
    assert flags - {name for enum, name, _ in real if enum == "req_flag_bits"} == set()


def test_the_header_has_nothing_that_no_program_uses() -> None:
    used = set(compiled("x86_64").fields()) | set(compiled("aarch64").fields())
    assert structures() - used == set()
