# SPDX-License-Identifier: GPL-2.0-or-later
"""Command lines that go to mails and screens: no secret that says that it is one."""

from __future__ import annotations

import time
from typing import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writebackd.kernel.argv_redaction import redacted, redacted_text
from writebackd.kernel.lever_writers import command_line


@pytest.mark.parametrize(
    "words, said",
    [
        ("mysqldump -uroot -pS3cret shop", "mysqldump -uroot -p*** shop"),
        ("/usr/bin/mariadb-dump -p'S3cret' shop", "/usr/bin/mariadb-dump -p*** shop"),
        ("mysqldump -P3306 -p shop", "mysqldump -P3306 -p shop"),
        ("mysqldump --password=S3cret shop", "mysqldump --password=*** shop"),
        ("app --password S3cret --quiet", "app --password *** --quiet"),
        ("app --password --quiet", "app --password --quiet"),
        ("app --password-file /etc/secret", "app --password-file /etc/secret"),
        ("app --password-file=/etc/secret", "app --password-file=/etc/secret"),
        ("psql host=db password=S3cret", "psql host=db password=***"),
        ("env PGPASSWORD=S3cret pg_dump", "env PGPASSWORD=*** pg_dump"),
        ("env AWS_SECRET_ACCESS_KEY=S3cret x", "env AWS_SECRET_ACCESS_KEY=*** x"),
        ("curl https://joe:S3cret@host/x", "curl https://joe:***@host/x"),
        ("curl https://joe:S3@cret@host/x", "curl https://joe:***@host/x"),
        ("curl http://host:8080/x http://[::1]:80", "curl http://host:8080/x http://[::1]:80"),
        ("curl ssh://git@host/x", "curl ssh://git@host/x"),
        ("curl -u joe:S3cret x", "curl -u joe:*** x"),
        ("docker run -u 1000:1000 x", "docker run -u 1000:1000 x"),
        ("curl http://h/?token=S3cret&a=1", "curl http://h/?token=***&a=1"),
        ("sshpass -p S3cret rsync", "sshpass -p *** rsync"),
        ("mongodump -p S3cret -d x", "mongodump -p *** -d x"),
        ("tar -pcf /backup /srv", "tar -pcf /backup /srv"),
        ("dd if=/dev/zero of=/backup/x", "dd if=/dev/zero of=/backup/x"),
        ("postgres: checkpointer", "postgres: checkpointer"),
        ("env SMTP_PASS=S3cret x", "env SMTP_PASS=*** x"),
        ("app --pass S3cret --dbpass=S3cret", "app --pass *** --dbpass=***"),
        ("app --private-key=S3cret x", "app --private-key=*** x"),
        ("app --routing-key=S3cret x", "app --routing-key=*** x"),
        ("app --integration_key S3cret x", "app --integration_key *** x"),
        ("sshpass -pS3cret ssh -p 22 h", "sshpass -p*** ssh -p 22 h"),
        ("sshpass -p S3cret ssh -p 22 h", "sshpass -p *** ssh -p 22 h"),
        ("nice /usr/bin/mongodump -pS3cret -d x", "nice /usr/bin/mongodump -p*** -d x"),
        ("rsync /srv/mongo -p x", "rsync /srv/mongo -p x"),
        ("redis-cli -h x -a S3cret get y", "redis-cli -h x -a *** get y"),
        ("cp -a x y", "cp -a x y"),
        ("curl -ujoe:S3cret x", "curl -ujoe:*** x"),
        ("curl -su joe:S3cret -sujoe:S3cret x", "curl -su joe:*** -sujoe:*** x"),
        ("curl --user=joe:S3cret x", "curl --user=joe:*** x"),
        ('curl -d {"password":"S3cret"} x', 'curl -d {"password":***} x'),
        ("app -urn:isbn:x -u8:9", "app -urn:isbn:x -u8:9"),
    ],
)
def test_what_says_that_it_is_secret_is_masked(words: str, said: str) -> None:
    assert redacted(words.replace(" ", "\0") + "\0") == said


@pytest.mark.parametrize(
    "script",
    [
        "mysqldump -uroot -pS3cret shop >/backup/x",
        "mysqldump --password='S3 cret' shop",
        "PGPASSWORD=S3cret pg_dump x",
        "app --token S3cret; sync",
        "rclone sync https://joe:S3cret@h/x /y",
        "echo smtp_pass = S3cret",
        "echo appPass: S3cret",
        "sshpass -pS3cret ssh -p 22 h",
        "sshpass -p 'S3 cret' ssh -p 22 h",
        "redis-cli -a S3cret get y",
        "mongodump -pS3cret -d x",
        "curl -uuser:S3cret h",
        "curl -u 'user:S3 cret' h",
        "curl -H 'Authorization: Basic S3cret' h",
        'curl -H "Cookie: sid=S3cret; b=S3" h',
        'curl -d \'{"password": "S3 cret"}\' h',
        'curl -d "{\\"password\\": \\"S3 cret\\"}" h',
        'curl -d \'{"Authorization": "Basic S3cret"}\' h',
        'app --token "S3 cre',
        "app --token \\\n  S3cret",
    ],
)
def test_also_in_the_text_of_a_shell(script: str) -> None:
    said = redacted(f"sh\0-c\0{script}\0")
    assert "S3" not in said and "***" in said


@pytest.mark.parametrize(
    "words",
    [
        ("curl", "-d", '{"password": "S3 cret"}', "h"),
        ("curl", "-H", "Authorization: Basic S3", "h"),
        ("curl", "-H", "Cookie: sid=S3; b=S3", "h"), ("curl", "-HCookie: sid=S3", "h"),
    ],
)  # fmt: skip
def test_also_with_blanks_in_a_word(words: Sequence[str]) -> None:
    said = redacted("\0".join(words))
    assert "S3" not in said and "***" in said and said.endswith(" h") is (words[-1] == "h")


@pytest.mark.parametrize(
    "word",
    [
        "passenger=7", "compass=north", "bypass=1", "--pass-through", "--pass-through=on",
        "passes: 3", "pass_rate=0.9", "--passive", "monkey=1", "keyboard: us", "cookies=3",
        "--routing=on", "--private-key-file=/etc/x", "first-pass-done: 3", "surpass: yes",
    ],
)  # fmt: skip
def test_words_that_only_look_like_one_are_told(word: str) -> None:
    assert redacted(f"app\0{word}\0x") == f"app {word} x"
    assert redacted(f"sh\0-c\0app {word} x") == f"sh -c app {word} x"
    assert redacted_text(f"app {word} x") == f"app {word} x"


def test_a_long_line_does_not_take_long() -> None:
    begun_s = time.process_time()
    for text in ("pass", "pass-", "-u a:", 'password\\', "curl -u", "'", '\\"', "key_", "x" * 9):
        redacted(text * 400)
        redacted_text(text * 400)
    assert time.process_time() - begun_s < 2.0  # of 4096 bytes at most; measured 0.1 s


def test_a_value_with_blanks_is_masked_to_its_end() -> None:
    assert redacted("app\0--password=my S3cret\0x\0") == "app --password=*** x"


def test_a_line_that_was_cut_off_within_a_secret() -> None:
    assert command_line(b"curl\0https://joe:S3cr") == "curl https://joe:***..."
    assert command_line(b"mysqldump\0-pS3cr") == "mysqldump -p***..."


@given(st.text(max_size=300))
def test_any_line_can_be_told(text: str) -> None:
    assert redacted(text).isprintable()
