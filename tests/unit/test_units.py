# SPDX-License-Identifier: GPL-2.0-or-later
"""Units: what is read, what is refused, and that writing and reading agree exactly."""

from __future__ import annotations

import re
from typing import Any, Callable, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writebackd.policy import rules, units, window

Parser = Callable[[str], Any]
Table = dict[Parser, list[tuple[str, Any]]]

GOOD: Table = {
    units.parse_size: [
        ("15M", 15728640), ("15 M", 15728640), ("0", 0), ("8192", 8192), ("8192B", 8192),
        ("1.5K", 1536), ("1T", 1 << 40),
    ],
    units.parse_count: [("8", 8)],
    units.parse_time: [
        ("20ms", 0.02), ("100us", 0.0001), ("0.5s", 0.5), ("2min", 120.0), ("1h", 3600.0),
    ],
    units.parse_share: [("20%", 0.2), ("12.5%", 0.125)],
    units.parse_multiple: [("10x", 10.0), ("1.1x", 1.1)],
    units.parse_frequency: [("5", 5.0), ("0.5/s", 0.5)],
    units.parse_switch: [("yes", True), ("false", False)],
    units.parse_device: [
        ("/dev/sd[a-c]*", "sd[a-c]*"), ("8:16", "8:16"), ("driver:nvme", "driver:nvme"),
        ("nvme*", "nvme*"), ("/srv/db-part1", "/srv/db-part1"),
        ("usb-SanDisk_Ultra-0:0", "usb-SanDisk_Ultra-0:0"),
    ],
    units.parse_devices: [("sda  dm-0\tloop*", ("sda", "dm-0", "loop*")), ("", ())],
    units.parse_urls: [
        ("http://a:9093  https://[::1]/x", ("http://a:9093", "https://[::1]/x")), ("", ()),
    ],
    units.parse_addresses: [("root ops+x@example.org", ("root", "ops+x@example.org"))],
    units.parse_path: [("/usr/local/bin/page", "/usr/local/bin/page"), ("", "")],
    units.parse_runbook: [(text, text) for text in ("", "https://wiki/r", "file:///r", "/srv/r")],
}  # fmt: skip
# The second column is the part of the message that says what to do.
BAD: Table = {
    units.parse_size: [
        ("15MB", "write 15M"), ("15m", "write 15M"), ("15 KiB", "write 15K"), ("15Q", "write 15M"),
        ("-1M", "write it like 15M"), ("1,5M", "units are B, K, M"), ("1e6", "units are B, K, M"),
        (".5M", "write it like 15M"), ("0.3B", "use a smaller unit"), ("٣M", "write it like 15M"),
        ("9" * 5000, "write it like 15M"), ("inf", "write it like 15M"),
    ],
    units.parse_count: [("8.0", "write it like 8"), ("9" * 5000, "write it like 8")],
    units.parse_time: [
        ("20", "write 20ms or 20s"), ("2m", "minutes are 'min'"),
        ("1min 30s", "use us, ms, s, min or h"),
    ],
    units.parse_share: [("0.2", "write it like 20%"), ("20 percent", "write it like 20%")],
    units.parse_multiple: [("10", "write it like 10x")],
    units.parse_frequency: [("5/min", "write it like 5/s")],
    units.parse_switch: [("1", "use on, yes"), ("On", "use on, yes")],
    units.parse_device: [
        ("srv/db", "write the whole path, like /srv/db"),
        ("/dev/sdb1", "write its disk, sdb"), ("nvme0n1p2", "write its disk, nvme0n1"),
        ("dasdb2", "write its disk, dasdb"),
        ("nvme0", "write its disk, nvme0n1"), ("ata-X-part1", "write its disk, ata-X"),
        ("/dev/disk/by-id/wwn-0x5-part12", "write its disk, /dev/disk/by-id/wwn-0x5"),
        ("/dev/disk/by-partuuid/x", "write its disk or mount point"),
        ("fs:nfs4", "only driver:NAME"), ("drivers:nvme", "only driver:NAME"),
        ("sd[ab", "write it like sda"), ("sd[z-a]", "swap its ends"), ("", "write it like sda"),
    ],
    units.parse_devices: [("sda,sdb", "write it like sda"), ("sda sdb sda", "remove one")],
    units.parse_url: [
        ("10.0.0.5:9093", "write it like http://127.0.0.1:9093"),
        ("ftp://a", "not a URL of http or https"),
        ("http://", "write it like http://127.0.0.1:9093"), ("http://a:99999", "is not a URL"),
        ("http://[::1", "is not a URL"), ("http://root:secret@a", "leave it out"),
        ("http://a:0", "that can be reached"), ("http://http://a:9093", "that can be reached"),
        ("http://a/?x=1", "leave out what follows"), ("http://a/\r\nX: y", "is not a URL"),
    ],
    units.parse_urls: [
        ("http://a http://a", "remove one"),
        ("http://a http://b http://c http://d http://e", "4 at most"),
    ],
    units.parse_addresses: [
        ("-oQ/tmp", "write it like root"), ("a@b,c@d", "write it like root"),
        ("a@b@c", "write it like root"), ("root root", "remove one"),
    ],
    units.parse_path: [
        ("bin/page", "not an absolute path"), ("/bin/page\x00", "not an absolute path"),
        ("/bin/page ops", "has arguments"), ("/bin/page # pager", "has arguments"),
        ("/usr/local/bin/", "is a directory"),
    ],
    units.parse_runbook: [("wiki", "is not a URL"), ("https://wiki/r # page", "is not a URL")],
    units.parse_units: [("postgresql@.service", "write postgresql@*.service")],
    rules.parse_services: [
        ("40: backup.timer", "name its service"), ("40: a x@.service", "write x@*.service"),
    ],
}  # fmt: skip


def rows(table: Table) -> list[tuple[Parser, str, Any]]:
    return [(parse, *row) for parse, found in table.items() for row in found]


@pytest.mark.parametrize(("parse", "text", "value"), rows(GOOD))
def test_reads(parse: Parser, text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "text", "advice"), rows(BAD))
def test_refuses_with_advice(parse: Parser, text: str, advice: str) -> None:
    with pytest.raises(units.UnitError, match=re.escape(advice)) as caught:
        parse(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.0075, "7.5ms"), (0.02, "20ms"), (0.0001, "100us"), (0.5, "500ms"),
     (90.0, "90s"), (120.0, "2min"), (3600.0, "1h")],
)  # fmt: skip
def test_times_are_written_short(seconds: float, text: str) -> None:
    assert units.format_time(seconds) == text


FACTORS = st.floats(min_value=1e-6, max_value=1e9)
WRITTEN: list[tuple[Parser, Callable[[Any], str], st.SearchStrategy[Any]]] = [
    (units.parse_size, units.format_size, st.integers(min_value=0, max_value=1 << 60)),
    (units.parse_time, units.format_time, st.one_of(
        st.just(0.0), st.floats(min_value=1e-9, max_value=1e9),
        st.integers(0, 10**9).map(lambda us: us / 1e6))),
    (units.parse_share, units.format_share, st.floats(min_value=1e-6, max_value=1.0)),
    (units.parse_multiple, units.format_multiple, FACTORS),
    (units.parse_frequency, units.format_frequency, FACTORS),
    (units.parse_switch, units.format_switch, st.booleans()),
]  # fmt: skip


@pytest.mark.parametrize(("parse", "write", "values"), WRITTEN)
@given(data=st.data())
def test_what_is_written_reads_back(
    parse: Parser,
    write: Callable[[Any], str],
    values: st.SearchStrategy[Any],
    data: st.DataObject,
) -> None:
    value = data.draw(values)
    assert parse(write(value)) == value


PARSERS: List[Callable[[str], object]] = [
    units.parse_size, units.parse_count, units.parse_time, units.parse_share,
    units.parse_multiple, units.parse_frequency, units.parse_switch, units.parse_device,
    units.parse_devices, units.parse_units, units.parse_urls, units.parse_addresses,
    units.parse_path, units.parse_textfile, units.parse_address, rules.parse_drivers,
    rules.parse_services, rules.parse_cache, rules.parse_virtualisation, rules.parse_rotational,
    rules.parse_memory, window.parse_when,
]  # fmt: skip
ANY_TEXT = st.one_of(
    st.text(), st.from_regex(r"[0-9.]+ *[BKMGTumshin%x/]*", fullmatch=True),
    st.builds("{}: {}".format, st.integers(-1, 20000), st.one_of(
        st.text(), st.sampled_from(["metal", "yes no", "..", "1G..2M", "[", "*"]))),
)  # fmt: skip


@given(text=ANY_TEXT)
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in PARSERS:
        try:
            parse(text)
        except units.UnitError as error:
            assert str(error), parse
