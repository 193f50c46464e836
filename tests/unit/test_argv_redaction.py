# SPDX-License-Identifier: GPL-2.0-or-later
"""Command lines that go to mails and screens: the program, options by name, and paths."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writebackd.kernel.argv_redaction import redacted, redacted_text
from writebackd.kernel.lever_writers import command_line


@pytest.mark.parametrize(
    "words, said",
    [
        ("dd if=/dev/zero of=/srv/backup bs=1M count=1000", ""),
        ("dd bs=10.5k seek=4KiB conv=fsync of=x", "dd bs=10.5k seek=4KiB conv=*** of=***"),
        ("sysctl -w vm.dirty_ratio=40", ""), ("tar -c /srv/my.d --sparse --", ""),
        ("postgres: checkpointer", "postgres: ***"), ("x --token-file=/e --pass-file /e", ""),
        ("mysqldump -pS3 -u root --all shop", "mysqldump -p*** -u *** --all ***"),
        ("app --password S3 7 -P 3306 -n5", "app --password *** -P *** -n***"),
        ("app --password=S3 --count=5 --at=/srv/x", "app --password=*** --count=*** --at=/srv/x"),
        ("app --key /srv/x password=/S3 --token=/S3", "app --key /srv/x password=*** --token=***"),
        ("env PIN=12 pwd=12 A=/srv/x S3== =S3 S3=", "env PIN=*** pwd=*** A=/srv/x ***"),
        ("curl https://joe:S3@h/x /S3@h /x://S3 //h/x?token=S3 A=http://h/S3", "curl *** A=***"),
    ],
)  # fmt: skip
def test_only_the_program_options_and_paths_are_shown(words: str, said: str) -> None:
    assert redacted(words.replace(" ", "\0") + "\0") == (said or words)


@pytest.mark.parametrize("word", ["echo S3", "/srv/a S3", "-H S3", "--a S3", "A=/x S3", "a=1\nS3"])
def test_a_text_within_a_word_is_left_out(word: str) -> None:
    said = redacted(f"/bin/sh\0-c\0{word}\0/srv/x")
    assert "S3" not in said and "***" in said and said.endswith(" /srv/x")


def test_a_line_that_was_cut_off_and_one_that_a_program_wrote() -> None:
    assert command_line(b"curl\0https://joe:S3cr") == "curl ***..."
    assert redacted("postgres: checkpointer") == "postgres: checkpointer"
    assert redacted("app --password 'my S3'") == "app --password ***"


@given(
    st.sampled_from(("{}", "-p{}", "--a={}", "A={}", "a={}", "-p\0{}", "u:{}")),
    st.text("Ss3.+", max_size=9), st.sampled_from(("", "=", "==")),
)  # fmt: skip
def test_no_secret_without_a_label_is_shown(place: str, secret: str, end: str) -> None:
    assert "3" not in redacted("x\0" + place.format(f"X3{secret}{end}"))


@given(st.text(max_size=300))
def test_any_line_can_be_told(text: str) -> None:
    assert redacted(text).isprintable()


def test_a_long_line_does_not_take_long() -> None:
    begun_s = time.process_time()
    for text in ("pass-", "password\\", "'", '\\"', "a_key", "token", "://a:", "\0-p", " ***"):
        redacted(text * 1600 + "\0" + text * 1600)
        redacted_text(text * 1600)
    assert time.process_time() - begun_s < 1.0  # measured 0.1 s
