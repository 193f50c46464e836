# SPDX-License-Identifier: GPL-2.0-or-later
"""The ledger on disk: what was saved comes back, or an error that helps."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writebackd.actuate import ledger as ledger_module
from writebackd.actuate.ledger import Ledger, LedgerError, boot_id, load, set_aside
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import BACKGROUND, LIMIT
from writebackd.safe_files import with_checksum
from writebackd.types.levers import VmLimits

LEDGER = Ledger(
    boot_id="0c5d1a3e-7b1f-4c7e-9d43-1a2b3c4d5e6f",
    pid=4711,
    created_wall_s=1_764_000_000.123456,
    on_exit="restore",
    originals=VmLimits(0, 20, 0, 10),
    written=((15728640, 7340032), (16777216, 8388608)),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


def test_no_file_is_no_ledger(path: Path) -> None:
    assert load(path) is None


def test_readable_by_all_whatever_the_umask(path: Path) -> None:
    old = os.umask(0o077)
    try:
        LEDGER.save(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o644


def test_our_values_of_each_pair() -> None:
    assert LEDGER.ours(LIMIT) == ((15728640, 0), (16777216, 0))
    assert LEDGER.ours(BACKGROUND) == ((7340032, 0), (8388608, 0))


@given(
    limit=st.one_of(
        st.tuples(st.integers(0, 2**64), st.just(0)), st.tuples(st.just(0), st.integers(0, 100))
    ),
    background=st.one_of(
        st.tuples(st.integers(0, 2**64), st.just(0)), st.tuples(st.just(0), st.integers(0, 100))
    ),
    written=st.lists(
        st.tuples(st.integers(1, 2**63), st.integers(1, 2**63)), min_size=1, max_size=2
    ),
    created=st.floats(0, 1e12),
    on_exit=st.sampled_from(ledger_module.ON_EXIT),
)
def test_comes_back_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory,
    limit: Tuple[int, int],
    background: Tuple[int, int],
    written: List[Tuple[int, int]],
    created: float,
    on_exit: str,
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.json"
    saved = replace(
        LEDGER,
        originals=VmLimits(*limit, *background),
        written=tuple(written),
        created_wall_s=created,
        on_exit=on_exit,
    )
    saved.save(path)
    assert load(path) == saved


def test_every_flipped_bit_is_told_or_harmless(path: Path) -> None:
    LEDGER.save(path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with contextlib.suppress(LedgerError):
                assert load(path) == LEDGER, f"byte {place}, bit {bit}"


@pytest.mark.parametrize("change", [
    {"version": 3},
    {"originals": {"dirty_bytes": 0, "dirty_ratio": 20}},
    {"originals": dict(vars(VmLimits(5 << 20, 20, 0, 10)))},
    {"originals": dict(vars(VmLimits(-1, 0, 0, 10)))},
    {"originals": dict(vars(VmLimits(0, True, 0, 10)))},
    {"written": []},
    {"written": [[1, 2], [3, 4], [5, 6]]},
    {"written": [[1, 2, 3]]},
    {"written": None},
    {"on_exit": "explode"},
    {"pid": "4711"},
], ids=str)  # fmt: skip
def test_impossible_contents_are_told(path: Path, change: Dict[str, Any]) -> None:
    """Also where the checksum fits: another release may have written it."""
    LEDGER.save(path)
    body = json.loads(path.read_text())
    body.update(change)
    path.write_text(json.dumps(with_checksum(body)))
    with pytest.raises(LedgerError, match="damaged"):
        load(path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "\xff\xfe", "[" * 60000, "7" * 100_000])
def test_what_is_no_ledger_at_all_is_told(path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(LedgerError):
        load(path)


def test_error_tells_what_to_do_and_the_default(path: Path) -> None:
    path.write_text("garbage")
    with pytest.raises(LedgerError) as caught:
        load(path)
    for part in (str(path), "vm.dirty_ratio=20 vm.dirty_background_ratio=10", "remove the file"):
        assert part in str(caught.value)


def test_unreadable_is_not_absent(path: Path) -> None:
    path.mkdir()
    with pytest.raises(LedgerError, match="cannot be read"):
        load(path)


@pytest.mark.parametrize("step", ["open", "replace"])
def test_failed_save_leaves_the_old_one_and_no_litter(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    LEDGER.save(path)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space"):
            replace(LEDGER, pid=1).save(path)
    assert load(path) == LEDGER
    assert os.listdir(path.parent) == [path.name]


def test_set_aside_can_be_read_but_is_not_found(path: Path) -> None:
    LEDGER.save(path)
    aside = set_aside(path)
    assert load(path) is None
    assert load(aside) == LEDGER


def test_boot_id_of_a_view_without_one(tmp_path: Path) -> None:
    assert boot_id(KernelFiles(tmp_path)) == ""
