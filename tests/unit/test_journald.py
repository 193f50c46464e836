# SPDX-License-Identifier: GPL-2.0-or-later
"""What reaches journald's socket, and what happens when nobody reads it."""

from __future__ import annotations

import logging
import socket
import struct
import time
from pathlib import Path
from typing import Dict, Iterator, Tuple, Union

import pytest

from writebackd import journald as journal
from writebackd.notify import journal_route
from writebackd.notify.journal_route import DECISION, FOREIGN_WRITER, REVERTED
from writebackd.types.levers import Action, ForeignWrite, Intrusion

Journald = Tuple[socket.socket, str]


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(5.0)
        yield sock, path


def parsed(data: bytes) -> Dict[str, str]:
    """systemd's description of the protocol, read backwards."""
    found = {}
    while data:
        head, _, rest = data.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert rest[:1] == b"\n"
            rest = rest[1:]
        found[name.decode()] = value.decode()
        data = rest
    return found


def test_fields_arrive_whatever_is_in_them(journald: Journald) -> None:
    sock, path = journald
    fields: Dict[str, Union[str, int]] = {
        "MESSAGE": "two\nlines", "PRIORITY": 4, "DEVICE": "a=b", "EMPTY": "", "ODD": "\udc80",
    }  # fmt: skip
    journal.send(fields, path)
    assert parsed(sock.recv(65536)) == {
        "MESSAGE": "two\nlines", "PRIORITY": "4", "DEVICE": "a=b", "EMPTY": "", "ODD": "\\udc80",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["_PID", "lower", "A B", "A=B", "A\nB", "", "1A"])
def test_no_value_makes_a_field(name: str, journald: Journald) -> None:
    with pytest.raises(ValueError, match="no name of a field"):
        journal.send({name: "x"}, journald[1])


def test_a_value_without_end_is_cut(journald: Journald) -> None:
    sock, path = journald
    journal.send({"MESSAGE": "x" * 1_000_000}, path)
    assert len(sock.recv(1 << 20)) < 20_000


def test_a_journald_that_reads_nothing_is_waited_for_a_bounded_time(journald: Journald) -> None:
    _, path = journald
    begun, sent = time.monotonic(), 0
    with pytest.raises(TimeoutError):
        while True:
            journal.send({"MESSAGE": "x"}, path, limit_s=0.2)
            sent += 1
    assert sent >= 10  # net.unix.max_dgram_qlen
    assert 0.15 < time.monotonic() - begun < 2.0
    # Without burning a processor meanwhile.
    before = time.process_time()
    with pytest.raises(TimeoutError):
        journal.send({"MESSAGE": "x"}, path, limit_s=0.3)
    assert time.process_time() - before < 0.1


def test_nobody_there(tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        journal.send({"MESSAGE": "x"}, path)


def test_the_log_has_fields_as_well(journald: Journald) -> None:
    sock, path = journald
    log = logging.Logger("test")
    log.addHandler(journal.JournalHandler(path))
    action = Action("dirty_bytes", "0", "15728640", True)
    log.info("%s set", action.lever, extra=journal_route.lever(action, "a flood"))
    found = parsed(sock.recv(65536))
    wanted = {
        "MESSAGE": "dirty_bytes set", "PRIORITY": "6", "SYSLOG_IDENTIFIER": "writebackd",
        "MESSAGE_ID": DECISION, "OLD_BYTES": "0", "NEW_BYTES": "15728640", "REASON": "a flood",
    }  # fmt: skip
    assert {name: found.get(name) for name in wanted} == wanted
    log.critical("x")
    assert parsed(sock.recv(65536))["PRIORITY"] == "2"


def test_a_log_that_cannot_be_told_is_no_error(tmp_path: Path) -> None:
    log = logging.Logger("test")
    log.addHandler(journal.JournalHandler(str(tmp_path / "none")))
    log.error("x")


def test_a_lever_that_goes_home_is_another_kind_of_message() -> None:
    fields = journal_route.lever(Action("queue sda nr_requests", "8", "64", True), "")["journal"]
    assert fields["MESSAGE_ID"] == REVERTED
    assert "OLD_BYTES" not in fields and "REASON" not in fields


def test_a_limit_names_the_decision_that_it_follows() -> None:
    limit = journal_route.lever(Action("dirty_bytes", "0", "4194304", True), "a flood", "sda#3")
    assert limit["journal"]["DECISION_ID"] == "sda#3"
    # Another lever has a reason of its own, and what goes home has none.
    queue = Action("queue sdb nr_requests", "64", "8", True)
    assert "DECISION_ID" not in journal_route.lever(queue, "a flood", "sda#3")["journal"]
    restored = journal_route.lever(Action("dirty_bytes", "1", "2", True), "")
    assert "DECISION_ID" not in restored["journal"]


def test_a_foreign_writer_is_named() -> None:
    limit = ForeignWrite("dirty_ratio", "40", pid=7, comm="sysctl", cmdline="sysctl -w x")
    fields = journal_route.foreign(limit)["journal"]
    assert (fields["MESSAGE_ID"], fields["NEW"]) == (FOREIGN_WRITER, "40")
    assert fields["WRITER"].startswith("sysctl (pid 7") and fields["WRITER_PID"] == "7"
    other = ForeignWrite("queue sda nr_requests", "8")
    found = journal_route.foreign_limits([Intrusion(other, 1.0), Intrusion(limit, 1.0)])
    assert found["journal"] == fields
    assert journal_route.foreign_limits([Intrusion(other, 1.0)]) == {}


def test_lines_for_a_journal_that_reads_standard_error() -> None:
    formatter = journal.PriorityFormatter()
    record = logging.LogRecord("x", logging.WARNING, "", 0, "two\nlines", (), None)
    assert formatter.format(record) == "<4>two\n<4>lines"
