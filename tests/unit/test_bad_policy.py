# SPDX-License-Identifier: GPL-2.0-or-later
"""Policies that mean no good: a valid policy or errors with their place, soon, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, List, Tuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from writebackd.cli import daemon_main, doctor_checks
from writebackd.cli.exit_codes import USAGE
from writebackd.policy import Policy, PolicyError, check, load_policy
from writebackd.policy.keys import KEYS, SECTIONS
from writebackd.policy.load import render
from writebackd.policy.units import MOST_GLOBS
from writebackd.types.storage import Device

DEVICES = [
    ("sda", "8:0"), ("dm-1", "254:1"), ("nvme0n1", "259:0"), ("btrfs-19", "btrfs-19"), ("", ""),
]  # fmt: skip

NUMBER = st.one_of(
    st.integers(-5, 1 << 70).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(str),
    st.sampled_from(
        ["0", "00", "1e9", "0x10", "1_000", "+1", "-0", "\u0663", "1.", ".5", "9" * 5000]
    ),
)
UNIT = st.sampled_from(
    ["", "B", "K", "M", "G", "T", "P", "k", "ms", "us", "s", "min", "h", "%", "x", "/s", "M/s"]
)
GLOB = st.one_of(
    st.text(alphabet="sdam*?[]-!0:/.\\ \t", max_size=30),
    st.sampled_from(
        ["*", "sd[z-a]", "[", "[]", "[!]", "**", "a*" * 200, "../..", "/dev/", "loop0"]
    ),
)
VALUE = st.one_of(
    st.builds("{}{}".format, NUMBER, UNIT),
    GLOB,
    st.sampled_from([key.default for key in KEYS] + [key.high for key in KEYS]),
    st.text(max_size=40),
)
SECTION = st.one_of(
    st.sampled_from([f"[{name}]" for name in SECTIONS]),
    st.builds("[device {}]".format, GLOB),
    st.text(alphabet="[]device ls#;=\\", max_size=20),
)
KEY = st.one_of(st.sampled_from([key.name for key in KEYS]), st.text(max_size=12))
LINE = st.one_of(
    SECTION,
    st.builds("{} = {}".format, KEY, VALUE),
    st.builds("{} = {}".format, st.sampled_from(KEYS).map(lambda key: key.name), VALUE),
    st.text(max_size=30),
)
TEXT = st.lists(LINE, max_size=25).map("\n".join)


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A file that nearly is one: bytes of a good text put in, taken out, flipped."""
    data = bytearray(raw(draw(TEXT)))
    for _ in range(draw(st.integers(0, 6))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.integers(0, 2))
        if kind == 0:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1:
            del data[at : at + draw(st.integers(1, 9))]
        else:
            data[at:at] = draw(st.binary(max_size=9))
    return bytes(data)


def load_or_refuse(base: Path) -> bool:
    """Whether `base` is a policy; its errors say where, its values keep to their ranges."""
    try:
        policy = load_policy(str(base))
    except PolicyError as error:
        assert error.messages
        for message in error.messages:
            assert re.match(rf"{re.escape(str(base))}(\.d/[^:]+)?(:\d+)?: \S", message), message
            assert "\n" not in message
            assert len(message) < 1000
        return False
    for name, devno in DEVICES:
        bounds = policy.of(Device(name, devno, devno))
        assert 8192 <= bounds.floor_bytes <= bounds.ceiling_bytes <= 1 << 40
        for named in ((), ("sd*",)):
            policy.selects(Device(name, devno, devno), named)
    again = base.parent / "again" / base.name
    again.parent.mkdir(exist_ok=True)
    again.write_text(render(policy))
    assert load_policy(str(again)) == policy
    return True


@settings(
    max_examples=120, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(base=st.one_of(damaged(), st.binary(max_size=200)), drop_ins=st.lists(damaged(), max_size=2))
def test_any_files_are_a_policy_or_errors_with_their_place(
    tmp_path: Path, base: bytes, drop_ins: List[bytes]
) -> None:
    path = tmp_path / "p.conf"
    path.write_bytes(base)
    extra = Path(f"{path}.d")
    shutil.rmtree(extra, ignore_errors=True)
    extra.mkdir()
    for number, data in enumerate(drop_ins):
        (extra / f"{number}.conf").write_bytes(data)
    load_or_refuse(path)


MANY = 100_000
LARGE: List[Tuple[str, str]] = [
    ("patterns", "[devices]\ninclude = " + " ".join(f"s{n}" for n in range(MANY))),
    ("left out", "[devices]\nexclude = " + " ".join(f"s{n}" for n in range(MANY))),
    ("units", "[protect]\nunits = " + " ".join(f"s{n}" for n in range(MANY))),
    ("sections", "".join(f"[device s{n}*]\nfloor = 2M\nceiling = 1G\n" for n in range(MANY))),
    ("one pattern", "[devices]\ninclude = " + "a*" * MANY),
    ("no sections", "[x]\n" * MANY),
    ("no keys", "[limits]\n" + "".join(f"k{n} = 1\n" for n in range(MANY))),
    ("header", "[" + "x" * MANY),
    ("number", "[limits]\nfloor = " + "9" * MANY + "M"),
    ("nesting", "[" * MANY + "]" * MANY),
]


@pytest.mark.parametrize("text", [text for _, text in LARGE], ids=[name for name, _ in LARGE])
def test_a_file_of_a_megabyte_is_judged_within_seconds(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.conf"
    path.write_text(text[: 1 << 20])
    begun = time.process_time()
    assert not load_or_refuse(path)
    # 0.1 s at most here; compared each with each it would be minutes.
    assert time.process_time() - begun < 5


def test_as_many_patterns_and_sections_as_a_large_host_has_disks(tmp_path: Path) -> None:
    path = tmp_path / "p.conf"
    names = [f"sd{n}" for n in range(MOST_GLOBS)]
    sections = "".join(f"[device {name}]\nfloor = 2M\n" for name in names)
    path.write_text(f"[devices]\ninclude = {' '.join(names)}\n{sections}")
    assert load_or_refuse(path)
    path.write_text(f"{path.read_text()}[device one-more]\nfloor = 2M\n")
    with pytest.raises(PolicyError, match=rf"p\.conf:{2 * MOST_GLOBS + 4}: more than"):
        load_policy(str(path))


# ---- whose files ---------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of somebody else are made")
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("drop_in", [True, False])
@pytest.mark.parametrize("spoil, remedy", [
    (lambda path: os.chown(path, 1234, -1), "uid 1234 owns {0}: chown -h root {0}"),
    (lambda path: path.chmod(0o664), "others than root may write {0}: chmod go-w {0}"),
    (lambda path: path.parent.chmod(0o777), "others than root may write {1}: move {0} to where root"
     " alone may write, such as /etc/writebackd"),
])  # fmt: skip
def test_the_daemon_takes_no_file_that_others_may_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None], remedy: str, drop_in: bool, named: bool,
) -> None:  # fmt: skip
    base = tmp_path / "policies" / "default.conf"
    path = base.with_name("default.conf.d") / "50-site.conf" if drop_in else base
    path.parent.mkdir(parents=True)
    for each in {base, path}:
        each.write_text("[limits]\nlease = 20s\n")
    run = tmp_path / "run"
    argv = ["--config-dir", str(base.parent), "--runtime-dir", str(run)]
    argv += ["--state-dir", str(tmp_path / "state"), *(["--policy", "default"] if named else [])]
    loaded: List[Policy] = []

    class Loads:
        def __init__(self, options: object, load: Callable[[], Policy], *_: object) -> None:
            loaded.append(load())
            spoil(path)
            load()

    monkeypatch.setattr(daemon_main, "Daemon", Loads)
    monkeypatch.setattr(daemon_main, "memory_lock", SimpleNamespace(lock_used=str))
    monkeypatch.setattr(daemon_main, "_start_logging", lambda verbose, quiet: None)
    monkeypatch.setattr(daemon_main, "_stop_logging", lambda listener: None)
    monkeypatch.setattr(daemon_main, "choose", lambda *_, **more: SimpleNamespace(
        policy=load_policy("default", base.parent), skipped=()))
    # At a reload, which keeps the old policy, and at the next start.
    assert daemon_main.main(argv) == USAGE and len(loaded) == 1
    shutil.rmtree(run)
    assert daemon_main.main(argv) == USAGE and len(loaded) == 1 and not run.exists()
    why = remedy.format(path, path.parent)
    assert f"{path}: not taken: {why}" in capsys.readouterr().err
    assert f"policy: {path}: not taken: {why}" in [
        text for _, text in doctor_checks.policies(base.parent)
    ]
    # As a text there is nothing wrong with it, whoever asks.
    assert check("default", base.parent) == []


@pytest.mark.parametrize("option", ["--runtime-dir", "--state-dir"])
@pytest.mark.parametrize("spoil", [
    lambda path: os.chown(path, 1000, 1000), lambda path: path.chmod(0o777),
    lambda path: path.chmod(0o1777),  # as /tmp is
])  # fmt: skip
def test_a_directory_that_others_may_change_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None], option: str,
) -> None:  # fmt: skip
    """Links in it would have root truncate the lock's file, and set the modes of others."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give files away")
    file = tmp_path / "precious"
    file.write_text("precious")
    directories = {name: tmp_path / name[2:] for name in ("--runtime-dir", "--state-dir")}
    for each in directories.values():
        each.mkdir()
    (directories["--runtime-dir"] / "class").symlink_to(file)
    spoil(directories[option])
    monkeypatch.setattr(daemon_main, "Daemon", None)
    monkeypatch.setattr(daemon_main, "memory_lock", SimpleNamespace(lock_used=str))
    monkeypatch.setattr(daemon_main, "_start_logging", lambda verbose, quiet: None)
    monkeypatch.setattr(daemon_main, "_stop_logging", lambda listener: None)
    monkeypatch.setattr(daemon_main, "choose", lambda *_, **more: SimpleNamespace(
        policy=replace(load_policy("default"), name="etcd"), skipped=()))
    argv = [word for each in directories.items() for word in map(str, each)]
    assert daemon_main.main(argv) == USAGE
    assert f"{directories[option]}: not used: " in capsys.readouterr().err
    assert file.read_text() == "precious"
