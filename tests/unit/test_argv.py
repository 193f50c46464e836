# SPDX-License-Identifier: GPL-2.0-or-later
"""Command lines that go to mails and screens: no secret that says that it is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writebackd.kernel.argv import told
from writebackd.kernel.writers import command_line


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
    ],
)
def test_what_says_that_it_is_secret_is_masked(words: str, said: str) -> None:
    assert told(words.replace(" ", "\0") + "\0") == said


@pytest.mark.parametrize(
    "script",
    [
        "mysqldump -uroot -pS3cret shop >/backup/x",
        "mysqldump --password='S3 cret' shop",
        "PGPASSWORD=S3cret pg_dump x",
        "app --token S3cret; sync",
        "rclone sync https://joe:S3cret@h/x /y",
    ],
)
def test_also_in_the_text_of_a_shell(script: str) -> None:
    said = told(f"sh\0-c\0{script}\0")
    assert "S3" not in said and "***" in said


def test_a_value_with_blanks_is_masked_to_its_end() -> None:
    assert told("app\0--password=my S3cret\0x\0") == "app --password=*** x"


def test_a_line_that_was_cut_off_within_a_secret() -> None:
    assert command_line(b"curl\0https://joe:S3cr") == "curl https://joe:***..."
    assert command_line(b"mysqldump\0-pS3cr") == "mysqldump -p***..."


@given(st.text(max_size=300))
def test_any_line_can_be_told(text: str) -> None:
    assert told(text).isprintable()
