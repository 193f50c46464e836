# SPDX-License-Identifier: GPL-2.0-or-later
"""Units: what is read, what is refused, and that writing and reading agree exactly."""

from __future__ import annotations

import re
from typing import Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writebackd.policy import units

GOOD = [
    (units.parse_size, "15M", 15728640),
    (units.parse_size, "15 M", 15728640),
    (units.parse_size, "0", 0),
    (units.parse_size, "8192", 8192),
    (units.parse_size, "8192B", 8192),
    (units.parse_size, "1.5K", 1536),
    (units.parse_size, "1T", 1 << 40),
    (units.parse_rate, "200M/s", 200 << 20),
    (units.parse_time, "20ms", 0.02),
    (units.parse_time, "100us", 0.0001),
    (units.parse_time, "0.5s", 0.5),
    (units.parse_time, "2min", 120.0),
    (units.parse_time, "1h", 3600.0),
    (units.parse_share, "20%", 0.2),
    (units.parse_share, "12.5%", 0.125),
    (units.parse_multiple, "10x", 10.0),
    (units.parse_multiple, "1.1x", 1.1),
    (units.parse_frequency, "5", 5.0),
    (units.parse_frequency, "0.5/s", 0.5),
    (units.parse_switch, "yes", True),
    (units.parse_switch, "false", False),
    (units.parse_device, "/dev/sd[a-c]*", "sd[a-c]*"),
    (units.parse_device, "8:16", "8:16"),
    (units.parse_devices, "sda  dm-0\tloop*", ("sda", "dm-0", "loop*")),
    (units.parse_devices, "", ()),
    (units.parse_urls, "http://a:9093  https://[::1]/x", ("http://a:9093", "https://[::1]/x")),
    (units.parse_urls, "", ()),
    (units.parse_addresses, "root ops+x@example.org", ("root", "ops+x@example.org")),
    (units.parse_path, "/usr/local/bin/page", "/usr/local/bin/page"),
    (units.parse_path, "", ""),
]

# The last column is the part of the message that tells what to do.
BAD = [
    (units.parse_size, "15MB", "write 15M"),
    (units.parse_size, "15m", "write 15M"),
    (units.parse_size, "15 KiB", "write 15K"),
    (units.parse_size, "15Q", "write 15M"),
    (units.parse_size, "-1M", "write it like 15M"),
    (units.parse_size, "1,5M", "units are B, K, M"),
    (units.parse_size, "1e6", "units are B, K, M"),
    (units.parse_size, ".5M", "write it like 15M"),
    (units.parse_size, "0.3B", "use a smaller unit"),
    (units.parse_size, "٣M", "write it like 15M"),
    (units.parse_size, "9" * 5000, "write it like 15M"),
    (units.parse_size, "inf", "write it like 15M"),
    (units.parse_rate, "200M", "write it like 200M/s"),
    (units.parse_rate, "200Mbit/s", "write 200M"),
    (units.parse_time, "20", "write 20ms or 20s"),
    (units.parse_time, "2m", "minutes are 'min'"),
    (units.parse_time, "1min 30s", "use us, ms, s, min or h"),
    (units.parse_share, "0.2", "write it like 20%"),
    (units.parse_share, "20 percent", "write it like 20%"),
    (units.parse_multiple, "10", "write it like 10x"),
    (units.parse_frequency, "5/min", "write it like 5/s"),
    (units.parse_switch, "1", "use on, yes"),
    (units.parse_switch, "On", "use on, yes"),
    (units.parse_device, "/dev/disk/by-id/ata-X", "readlink -f /dev/disk/by-id/ata-X"),
    (units.parse_device, "sd[ab", "write it like sda"),
    (units.parse_device, "sd[z-a]", "turn it round"),
    (units.parse_device, "", "write it like sda"),
    (units.parse_devices, "sda,sdb", "write it like sda"),
    (units.parse_devices, "sda sdb sda", "remove one"),
    (units.parse_url, "10.0.0.5:9093", "write it like http://127.0.0.1:9093"),
    (units.parse_url, "ftp://a", "not a URL of http or https"),
    (units.parse_url, "http://", "write it like http://127.0.0.1:9093"),
    (units.parse_url, "http://a:99999", "is not a URL"),
    (units.parse_url, "http://[::1", "is not a URL"),
    (units.parse_url, "http://root:secret@a", "leave it out"),
    (units.parse_url, "http://a/?x=1", "leave out what follows"),
    (units.parse_url, "http://a/\r\nX: y", "is not a URL"),
    (units.parse_urls, "http://a http://a", "remove one"),
    (units.parse_urls, "http://a http://b http://c http://d http://e", "4 at most"),
    (units.parse_addresses, "-oQ/tmp", "write it like root"),
    (units.parse_addresses, "a@b,c@d", "write it like root"),
    (units.parse_addresses, "a@b@c", "write it like root"),
    (units.parse_addresses, "root root", "remove one"),
    (units.parse_path, "bin/page", "not an absolute path"),
    (units.parse_path, "/bin/page\x00", "not an absolute path"),
]


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_reads(parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "text", "advice"), BAD)
def test_refuses_with_advice(parse: Callable[[str], Any], text: str, advice: str) -> None:
    with pytest.raises(units.UnitError, match=re.escape(advice)) as caught:
        parse(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0075, "7.5ms"),
        (0.02, "20ms"),
        (0.0001, "100us"),
        (0.5, "500ms"),
        (90.0, "90s"),
        (120.0, "2min"),
        (3600.0, "1h"),
    ],
)
def test_times_are_written_short(seconds: float, text: str) -> None:
    assert units.format_time(seconds) == text


SECONDS = st.floats(min_value=1e-9, max_value=1e9)
FACTORS = st.floats(min_value=1e-6, max_value=1e9)


@given(st.integers(min_value=0, max_value=1 << 60))
def test_size_round_trip(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == size
    assert units.parse_rate(units.format_rate(size)) == size


@given(st.one_of(st.just(0.0), SECONDS, st.integers(0, 10**9).map(lambda us: us / 1e6)))
def test_time_round_trip(seconds: float) -> None:
    assert units.parse_time(units.format_time(seconds)) == seconds


@given(st.floats(min_value=1e-6, max_value=1.0))
def test_share_round_trip(share: float) -> None:
    assert units.parse_share(units.format_share(share)) == share


@given(FACTORS)
def test_multiple_and_frequency_round_trip(factor: float) -> None:
    assert units.parse_multiple(units.format_multiple(factor)) == factor
    assert units.parse_frequency(units.format_frequency(factor)) == factor


@given(st.booleans())
def test_switch_round_trip(value: bool) -> None:
    assert units.parse_switch(units.format_switch(value)) is value


@given(st.lists(st.from_regex(r"[a-z]{1,4}[0-9*?]{0,3}", fullmatch=True), unique=True))
def test_devices_round_trip(globs: list[str]) -> None:
    assert units.parse_devices(units.format_devices(tuple(globs))) == tuple(globs)


PARSERS = [
    units.parse_size,
    units.parse_rate,
    units.parse_time,
    units.parse_share,
    units.parse_multiple,
    units.parse_frequency,
    units.parse_switch,
    units.parse_device,
    units.parse_devices,
    units.parse_urls,
    units.parse_addresses,
    units.parse_path,
]


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.one_of(st.text(), st.from_regex(r"[0-9.]+ *[BKMGTumshin%x/]*", fullmatch=True)))
def test_any_text_is_read_or_refused(parse: Callable[[str], Any], text: str) -> None:
    try:
        parse(text)
    except units.UnitError as error:
        assert str(error)
