# SPDX-License-Identifier: GPL-2.0-or-later
"""The door to kernel files: roots, white space, errors, one write(2) per value."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from writebackd.kernel.files import KernelFiles


@pytest.fixture
def files(tmp_path: Path) -> KernelFiles:
    (tmp_path / "sys").mkdir()
    return KernelFiles(tmp_path)


@pytest.mark.parametrize("root", [Path("/"), Path("/fake"), Path("/fake/")])
def test_names_are_absolute_and_stay_below_the_root(root: Path) -> None:
    assert KernelFiles(root).path("/proc/vmstat") == root / "proc/vmstat"


@pytest.mark.parametrize("raw, text", [
    (b"  4096\n", "4096"),
    (b"disk-\xff\n", os.fsdecode(b"disk-\xff")),  # bytes that are no UTF-8 survive
    (b"x" * 300_000, "x" * 300_000),  # more than one read
])  # fmt: skip
def test_text_comes_without_white_space(files: KernelFiles, raw: bytes, text: str) -> None:
    files.path("/sys/x").write_bytes(raw)
    assert files.read("/sys/x") == text


def test_a_pipe_is_read_to_its_end_over_short_reads(files: KernelFiles) -> None:
    """seq_files give a page at a time; so does a pipe with two writes."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"one ")
        os.write(writer, b"two\n")
        os.close(writer)
        files.path("/sys/x").symlink_to(f"/proc/self/fd/{reader}")
        assert files.read("/sys/x") == "one two"
    finally:
        os.close(reader)


def test_an_integer_error_names_the_file(files: KernelFiles) -> None:
    files.path("/sys/x").write_text("4096\n")
    assert files.read_int("/sys/x") == 4096
    files.path("/sys/x").write_text("many")
    with pytest.raises(ValueError, match="/sys/x: expected an integer, found 'many'"):
        files.read_int("/sys/x")


def test_missing_things(files: KernelFiles) -> None:
    assert files.try_read("/sys/none") is None
    assert files.listdir("/sys/none") == []
    assert files.readlink("/sys/none") is None
    with pytest.raises(FileNotFoundError):
        files.read("/sys/none")


def test_write_replaces_the_value(files: KernelFiles) -> None:
    files.path("/sys/x").write_text("1073741824\n")
    files.write("/sys/x", "15728640")
    assert files.read("/sys/x") == "15728640"


def test_write_never_creates_a_lever(files: KernelFiles) -> None:
    with pytest.raises(FileNotFoundError):
        files.write("/sys/max_bytes", "1")
    assert files.listdir("/sys") == []


def test_write_passes_the_errno_on(files: KernelFiles) -> None:
    files.path("/sys/full").symlink_to("/dev/full")
    with pytest.raises(OSError) as failure:
        files.write("/sys/full", "1")
    assert failure.value.errno == errno.ENOSPC
