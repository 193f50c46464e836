# SPDX-License-Identifier: GPL-2.0-or-later
"""Command lines without what may be private; what other users may see."""

from __future__ import annotations

import inspect
import json
import re
import time
from pathlib import Path
from typing import Dict, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_host import FakeHost, Rig
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Severity
from writebackd.commands import Commands
from writebackd.kernel.argv_redaction import redacted, redacted_text
from writebackd.kernel.lever_writers import command_line
from writebackd.kernel.map_readers import Reading
from writebackd.report.control_server import WRITE_VERBS, RequestError
from writebackd.types.copying import replace
from writebackd.types.levers import ForeignWrite


@pytest.mark.parametrize("words, said", [
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
])  # fmt: skip
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


OWNER, OTHER = 1000, 1001
# Secrets that no mask can know, by whose process has them.
OWNERS, ROOTS, UNKNOWN = "x6-of-the-owner", "x7-of-root", "x8-of-nobody-knows"
READ_VERBS = ("status", "devices", "why", "alerts", "top", "verify", "metrics")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Somebody has set a limit, and three processes are blamed for a collapse."""
    rig = Rig(tmp_path, monkeypatch, FakeHost(tmp_path / "root"))
    rig.tick(2)
    rig.pin(15 << 20)
    rig.tick(2)
    rig.host.sysctl("dirty_bytes", 7 << 20)
    write = ForeignWrite("dirty_bytes", str(7 << 20), 4242, "tuned", cmdline=f"tuned {ROOTS}")
    rig.probe.next = Reading(writers=(write,))
    rig.tick()
    snapshot = rig.daemon.state.snapshot
    assert snapshot is not None
    culprits = (
        Culprit(17, "dd", f"dd {OWNERS}", uid=OWNER), Culprit(18, "cp", f"cp {ROOTS}", uid=0),
        Culprit(19, "mv", f"mv {UNKNOWN}"),
    )  # fmt: skip
    alert = Alert(
        AlertName.COLLAPSE, "sda", Severity.WARNING, Cause.FLOOD, 1.0, "slow", "", culprits
    )
    rig.daemon.state.snapshot = replace(snapshot, alerts=(*snapshot.alerts, alert))
    yield rig
    rig.end()


def told(rig: Rig, uid: int) -> Dict[str, str]:
    return {verb: json.dumps(rig.daemon.handle(verb, {}, uid)) for verb in READ_VERBS}


def test_these_are_all_that_anybody_may_ask() -> None:
    source = inspect.getsource(Commands.handle)
    known = set(re.findall(r'"(\w+)": lambda', source)) | set(re.findall(r'"(\w+)"', " ".join(
        line for line in source.split("\n") if "if verb" in line
    )))  # fmt: skip
    assert known - WRITE_VERBS == set(READ_VERBS)


def test_no_verb_tells_others_a_command_line(rig: Rig) -> None:
    for verb, answer in told(rig, OTHER).items():
        assert not any(word in answer for word in (OWNERS, ROOTS, UNKNOWN)), verb
    mine = told(rig, OWNER)
    for verb, answer in mine.items():
        assert not any(word in answer for word in (ROOTS, UNKNOWN)), verb
    assert OWNERS in mine["status"] and OWNERS in mine["alerts"]
    # Who it was is for all to know.
    assert all("tuned (pid 4242" in mine[verb] for verb in ("status", "alerts", "why", "verify"))


def test_root_is_told_all_of_them(rig: Rig) -> None:
    answers = told(rig, 0)
    for verb in ("status", "alerts"):
        assert all(word in answers[verb] for word in (OWNERS, ROOTS, UNKNOWN)), verb
    (alert,) = (a for a in json.loads(answers["alerts"])["active"] if a["name"] == "FOREIGN_WRITER")
    assert ROOTS in alert["writers"][0]["cmdline"] and ROOTS in alert["culprits"][0]["cmdline"]


def test_where_proc_hides_processes_others_than_root_get_figures_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = "22 1 0:22 / /proc rw - proc proc rw,hidepid=invisible\n"
    rig.daemon._monitor.hidepid._next_s = 0.0
    (Path(rig.daemon._files.root) / "proc/self").mkdir(parents=True, exist_ok=True)
    (Path(rig.daemon._files.root) / "proc/self/mountinfo").write_text(mounts)
    for verb in READ_VERBS:
        rig.daemon.handle(verb, {}, 0)
        if verb == "metrics":
            assert "tuned" not in json.dumps(rig.daemon.handle(verb, {}, OWNER))
            continue
        with pytest.raises(RequestError, match="hidepid=invisible.*sudo") as refused:
            rig.daemon.handle(verb, {}, OWNER)
        assert refused.value.exit_code == 4
