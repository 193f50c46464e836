# SPDX-License-Identifier: GPL-2.0-or-later
"""doctor --bundle: all that helps, no secret, and no part that can spoil the others."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import string
import tarfile
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import schema
from test_cli import FakeDaemon
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Severity
from writebackd.cli import bundle as bundle_module
from writebackd.cli import ctl, doctor_checks
from writebackd.cli.bundle import PrivateData, bundle
from writebackd.cli.bundle_parts import COLLECTORS, Host
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, CommandError
from writebackd.kernel.files import KernelFiles
from writebackd.paths import RAID
from writebackd.report.history_schema import Event
from writebackd.report.history_store import History
from writebackd.report.learned_store import save_learned
from writebackd.types.device_memory import Learned

# How long an example takes says more of the machine, which may be shared, than of the code.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SERIAL, WWID = "WD-WCC4E7XK31PL", "naa.50014ee2b7c0a1f3"
GONE = "naa.600605b00a1b2c3d4e5f60718293a4b5"  # a disk that is there no more
# What may be in no part, with what it is.
SECRETS = {
    "hunter2": "password in a command line", "hunter3": "the same, as the next word",
    "hunter6": "password in a URL", "hunter7": "token in the path of a URL",
    "hunter8": "token in a policy that is refused", "hunter9": "environment of a unit",
    "hunter10": "our own environment", "hunter11": "bearer token", "hunter12": "a mount's password",
    "hunter13": "password in a comment", "hunter14": "environment on a line that is continued",
    "hunter15": "a credential on one", "hunter16": "environment in a comment",
    "hunter17": "in JSON within JSON", "hunter18": "quoted within JSON", "hunter19": "of a name in "
    "JSON", "hunter20": "at the end of a quoted word within JSON",
    "dbhost7": "name of the host", "192.0.2.77": "its address",
    "2001:db8::77": "the same", "00:16:3e:5a:77:01": "its card", "WCC4E7XK31PL": "serial number",
    "50014ee2b7c0a1f3": "wwid", "600605b00a1b2c3d4e5f60718293a4b5": "wwid of a disk that is gone",
    "0a1b2c3d-1111-2222-3333-444455556666": "UUID", "alice": "a home directory",
    "ops@example.org": "mail address", "nas.example.net": "a server", "f00dfacef00dfacef00dfacef00d"
    "face": "machine-id",
}  # fmt: skip


def put(root: Path, name: str, text: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host full of secrets, and of what a bug report is about."""
    root = tmp_path / "root"
    put(root, "/etc/hostname", "dbhost7.example.net\n")
    put(root, "/etc/machine-id", "f00dfacef00dfacef00dfacef00dface\n")
    put(root, "/etc/os-release", 'PRETTY_NAME="Debian 13"\n')
    put(root, "/etc/writebackd/policies.d/all.conf.d/a.conf", "\n".join([
        "[alerts]", "alertmanager = http://bob:hunter6@192.0.2.77:9093",
        "exec = https://hooks.example.net/services/hunter7", "mail = ops@example.org",
        "token = hunter8", "# password: hunter13", "[limits]", "floor = 2M",
    ]))  # fmt: skip
    put(root, "/etc/systemd/system/writebackd.service.d/a.conf",
        "[Service]\nEnvironment=PROXY=hunter9\nNice=-5\n")
    put(root, "/etc/systemd/system/writebackd-raid.service.d/a.conf",
        '[Service]\nEnvironment="A=1 \\\n  # of 2024\n  B=hunter14" \\\n"C=hunter14"\nCPUQuota=7%\n'
        "SetCredential=x: \\\n  hunter15\n#Environment=D=hunter16\nTasksMax=9\n")
    said = {"token": "hunter19", "error": f"/dev/disk/by-id/{SERIAL} is gone",
            "wwn": WWID[4:]}
    put(root, RAID, json.dumps({"tools": [said]}))
    put(root, "/proc/vmstat", "nr_free_pages 1\nnr_dirty 77\nnr_dirty_threshold 99")
    put(root, "/proc/meminfo", "MemTotal: 1 kB\nDirty: 5 kB\nHugepagesize: 1 kB")
    put(root, "/proc/diskstats", "8 0 sda 1 2 3")
    put(root, "/proc/sys/vm/dirty_bytes", "15728640")
    put(root, "/proc/self/mountinfo", "\n".join([
        "30 1 8:1 / / rw - ext4 /dev/sda1 rw",
        "31 1 8:2 / /home/alice rw - ext4 /dev/disk/by-id/ata-X_" + SERIAL + " rw",
        "32 1 0:40 / /srv rw - cifs //nas.example.net/s rw,username=bob,password=hunter12",
        "33 1 0:41 / /nfs rw - nfs4 nas.example.net:/x rw,addr=192.0.2.77",
        "34 1 254:0 / /var rw - ext4 /dev/mapper/dbhost7--vg-var rw",
        "35 1 254:1 /var/home/alice /var/home/alice rw - xfs /dev/mapper/rhel_dbhost7-home rw",
    ]))  # fmt: skip
    for name, text in (
        ("dev", "8:0"), ("device/model", "WDC WD40EFRX-68N32N0"), ("device/serial", SERIAL),
        ("device/wwid", WWID),
        ("queue/nr_requests", "64"),
    ):  # fmt: skip
        put(root, f"/sys/block/sda/{name}", text)
    put(root, "/sys/class/bdi/8:0/max_ratio", "100")
    put(root, f"/boot/config-{os.uname().release}", "CONFIG_HZ=250\nCONFIG_FOO=1\n"
        "# CONFIG_PSI is not set")
    tools = tmp_path / "tools"
    put(tools, "journalctl", "#!/bin/sh\nenv\necho asked for \"$@\"\n"
        "echo 'pid 7, command line: pg_dump "
        "--password hunter3 by dbhost7 at 192.0.2.77, [2001:db8::77], 00:16:3e:5a:77:01'\n"
        "echo '0a1b2c3d-1111-2222-3333-444455556666 Authorization: Bearer hunter11'\n"
        "echo '12:34:56 kernel 6.1.0 on 8:0 at *** is slow, unit a@b-main.service'\n")
    put(tools, "systemctl", "#!/bin/sh\necho ActiveState=active\n")
    for name in ("journalctl", "systemctl"):
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("BACKUP_KEY", "hunter10")
    for name in ("probe", "policies", "rivals"):  # take seconds
        monkeypatch.setattr(doctor_checks, name, lambda *_, **__: iter(()))
    return root


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    """One with an alert, a history and something learned that tell more than they should."""
    history = History(tmp_path / "history.db")
    said = f"/dev/disk/by-id/{SERIAL}"
    said += """ and curl -d {"password": "hunter17"} y, PGPASSWORD="hunter18" pg_dump"""
    said += ' "--token=hunter20" z'
    history.record(Event(time.time() - 60, "foreign", text=said))
    history.record(Event(time.time() - 3 * 86400, "mode", text="of three days ago"))
    assert history.close(5.0)
    learned = {f"{name}, cache write back": Learned() for name in (WWID, GONE)}
    save_learned(tmp_path / "learned.json", learned)
    (tmp_path / "ledger.json").write_text('{"boot_id": "0a1b2c3d-1111-2222-3333-444455556666"}')
    fake = FakeDaemon(tmp_path)
    culprit = Culprit(pid=7, comm="dd", cmdline="dd --password=hunter2 of=/home/alice/x")
    alert = Alert(
        AlertName.STALL, "sda", Severity.WARNING, Cause.UNKNOWN, fake.snapshot.sample.wall_s,
        "it hangs", "nothing", culprits=(culprit,),
    )  # fmt: skip
    fake.snapshot = replace(fake.snapshot, state_dir=str(tmp_path), alerts=(alert,))
    yield fake
    fake.stop()


def make(tmp_path: Path, root: Path, name: str = "b.tar.gz", **more: Any) -> Dict[str, str]:
    """The members of a bundle, by their names."""
    options = {"json": False, "runtime_dir": tmp_path, **more}
    assert bundle(Namespace(bundle=str(tmp_path / name), **options), KernelFiles(root)) == GOOD
    return members(tmp_path / name)


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    few = tuple(each for each in COLLECTORS if each[0] in names)
    assert len(few) == len(names)
    monkeypatch.setattr(bundle_module, "COLLECTORS", few)


def members(path: Path) -> Dict[str, str]:
    found = {}
    with tarfile.open(path) as archive:
        for each in archive:
            file = archive.extractfile(each)
            assert file is not None and each.mode == 0o600 and (each.uname, each.uid) == ("", 0)
            found[each.name.partition("/")[2]] = file.read().decode()
    return found


def test_no_secret_is_in_any_part_and_what_helps_is(
    tmp_path: Path, root: Path, daemon: FakeDaemon
) -> None:
    parts = make(tmp_path, root)
    assert set(parts) == {"MANIFEST", *(name for name, _ in COLLECTORS)}
    for secret, what in SECRETS.items():
        for name, text in parts.items():
            assert secret not in text, f"{what} in {name}"
    raw = (tmp_path / "b.tar.gz").read_bytes()
    assert b"dbhost7" not in raw
    for name, helps in (
        ("vm.txt", "vm/dirty_bytes: 15728640"), ("vm.txt", "nr_dirty 77"),
        ("block.txt", "device/model: WDC WD40EFRX-68N32N0"), ("block.txt", "nr_requests: 64"),
        ("bdi.txt", "max_ratio: 100"), ("mountinfo.txt", "/ / rw - ext4 /dev/sda1 rw"),
        ("mountinfo.txt", "/srv rw - cifs *** ***"),
        ("mountinfo.txt", "/var rw - ext4 /dev/mapper/***--vg-var rw"),
        ("kernel.txt", "CONFIG_HZ=250"),
        ("kernel.txt", "# CONFIG_PSI is not set"), ("policy.conf", "ceiling = "),
        ("policy-files.txt", "floor = 2M"), ("policy-files.txt", "token = ***"),
        ("policy-files.txt", "alertmanager = http://***"), ("unit.txt", "Nice=-5"),
        ("unit.txt", "Environment=***\nCPUQuota=7%"),
        ("unit.txt", "SetCredential=***\n#Environment=***\nTasksMax=9"),
        ("unit.txt", "# writebackd-raid.timer\nActiveState="),
        ("raid.json", '"token": "***"'),
        ("journal.txt", "-u writebackd-raid.service"), ("MANIFEST", "  raid.json  "),
        ("history.jsonl", r'curl -d {\"password\": ***} y, PGPASSWORD=*** pg_dump'),
        ("unit.txt", "Environment=***"), ("unit.txt", "ActiveState=active"),
        ("journal.txt", "--password *** by *** at ***, [***], ***"), ("versions.txt", "Debian 13"),
        ("journal.txt", "12:34:56 kernel 6.1.0 on 8:0 at *** is slow, unit a@b-main.service"),
        ("alerts.json", "dd --password=*** of=/home/***/x"), ("run.txt", '"boot_id": "***'),
        ("status.json", '"name": "sda"'),
        ("why.json", '"steps"'), ("metrics.txt", "writebackd_"), ("MANIFEST", "Not in it"),
    ):  # fmt: skip
        assert helps in parts[name], (name, helps, parts[name])
    for name, text in parts.items():
        for document in {"json": [text], "jsonl": text.splitlines()}.get(name.split(".")[-1], []):
            assert not document or json.loads(document) is not None
    assert "CONFIG_FOO" not in parts["kernel.txt"]
    assert "of three days ago" not in parts["history.jsonl"]
    for name in parts:
        assert name == "MANIFEST" or f"  {name} " in parts["MANIFEST"]
    assert re.search(r"Left out, [1-9]\d* times", parts["MANIFEST"])


def test_without_a_daemon_the_rest_is_there_and_the_manifest_says_so(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = make(tmp_path, root, runtime_dir=tmp_path / "none")
    assert {"doctor.txt", "vm.txt", "policy.conf", "journal.txt"} <= set(parts)
    for name in ("status.json", "why.json", "alerts.json"):
        assert name not in parts
        assert f"  {name:<24}no daemon at {tmp_path}/none/control.sock" in parts["MANIFEST"]
    assert "without status.json" in capsys.readouterr().out


def test_a_part_that_hangs_fails_or_is_too_large_costs_that_part_alone(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"

    def hang(host: Host) -> str:
        (tmp_path / "pid.new").write_text(str(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")))
        os.rename(tmp_path / "pid.new", pid_file)
        time.sleep(60)
        return ""

    def fail(host: Host) -> str:
        raise RuntimeError("--password=hunter2 was wrong")

    def crash(host: Host) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    collectors: Tuple[Tuple[str, Callable[[Host], str]], ...] = (
        ("hang.txt", hang), ("fail.txt", fail), ("crash.txt", crash),
        ("large.txt", lambda host: "0123456\n" * 10_000 + "password=hunter2"),
        ("odd.txt", lambda host: "\udcff\ud800"), ("last.txt", lambda host: "well"),
    )  # fmt: skip
    monkeypatch.setattr(bundle_module, "COLLECTORS", collectors)
    monkeypatch.setattr(bundle_module, "LIMIT_S", 2.0)
    monkeypatch.setattr(bundle_module, "MOST_BYTES", 10_003)
    before, begun_s = len(os.listdir("/proc/self/fd")), time.monotonic()
    parts = make(tmp_path, root)
    assert time.monotonic() - begun_s < 30
    assert set(parts) == {"MANIFEST", "large.txt", "odd.txt", "last.txt"}
    assert parts["last.txt"] == "well\n"
    assert parts["large.txt"] == "0123456\n" * 1250 + "[cut: more than 10K]\n"
    manifest = " ".join(parts["MANIFEST"].split())
    for said in (
        "hang.txt timed out after 2 s", "fail.txt --password=*** was wrong",
        "crash.txt the child ended without an answer", "large.txt 10021 bytes, cut",
    ):  # fmt: skip
        assert said in manifest, manifest
    # What it had started ended with it, and nothing of it is left here.
    sleeper = Path(f"/proc/{pid_file.read_text()}/stat")
    deadline = time.monotonic() + 5
    while sleeper.exists() and sleeper.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_goes_on_after_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    children = Path("/proc/self/task") / str(os.getpid()) / "children"
    before = children.read_text()
    monkeypatch.setattr("select.select", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bundle_module._in_child(lambda: os.read(os.pipe()[0], 1).decode())  # has no end
    assert children.read_text() == before


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "COLLECTORS", (("one.txt", lambda host: "1"),))


def test_it_is_for_its_owner_alone_and_never_written_over(
    tmp_path: Path, root: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = os.umask(0)
    try:
        make(tmp_path, root)
    finally:
        os.umask(old)
    path = tmp_path / "b.tar.gz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    data = path.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("b.tar.gz", "link"):
        with pytest.raises(CommandError, match="exists: name another"):
            make(tmp_path, root, name)
        # Also where it came while all was collected.
        with monkeypatch.context() as patched:
            patched.setattr(bundle_module, "_refuse", lambda path: None)
            with pytest.raises(CommandError, match="exists: name another"):
                make(tmp_path, root, name)
    assert path.read_bytes() == data and not (tmp_path / "nowhere").exists()
    with pytest.raises(CommandError, match="cannot write"):
        make(tmp_path, root, "none/b.tar.gz")


def test_half_an_archive_is_none(tmp_path: Path, root: Path, quick: None) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(CommandError, match="File too large"):
            make(tmp_path, root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [each for each in os.listdir(tmp_path) if "tar.gz" in each] == []


def test_the_command(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ctl.main(["--json", "doctor", "--bundle"]) == GOOD
    answer = json.loads(capsys.readouterr().out)
    assert list(schema.problems(answer, schema.load("doctor-bundle"))) == []
    assert Path(answer["file"]).stat().st_size == answer["bytes"]
    assert [each["name"] for each in answer["members"]] == ["MANIFEST", "one.txt"]
    assert list(members(Path(answer["file"]))) == ["MANIFEST", "one.txt"]
    assert ctl.main(["doctor", "--bundle", "x.tar.gz"]) == GOOD
    assert "x.tar.gz: " in capsys.readouterr().out
    assert ctl.main(["doctor", "--bundle", "x.tar.gz"]) == BAD_NEWS
    assert "exists: name another" in capsys.readouterr().err


# ---- what is left out ----------------------------------------------------------

class OneFile(KernelFiles):
    def try_read(self, name: str) -> Optional[str]:
        return "db-host-7.example.net"


PRIVATE = PrivateData(OneFile())
PLACES = (
    "x --password={} y", "x --password {} y", "PGPASSWORD={} psql", "http://u:{}@h/", "api_key: {}",
    '"token": "{}"', "secret = {}", "x --token 'a {}'; sync", 'x --password="a {}', "appPass: {}",
    "Authorization: Basic {}", "bearer {}", "https://h/hook/{}/x", "x?access_key={}&y",
    "Environment=A={}", "SMTP_PASS={} x", "--pass {} y", "smtp_pass = {}", "--private-key={} y",
    "--routing-key={}", "--integration_key {} y", "Cookie: sid={}; b={}", "x -H 'Cookie: b={}' y",
    'Environment="A=1 \\\n"B={}" \\\n"C={}"', "curl -H 'Authorization: Basic {}' x",
    'x "c": "PGPASSWORD=\\"{}\\" pg_dump"', 'x "c": "{{\\"password\\": \\"{}\\"}}"',
)  # fmt: skip


@UNHURRIED
@given(
    st.sampled_from(PLACES),
    st.text(string.ascii_letters + string.digits + "_.~+/=!%#$", min_size=6, max_size=30)
    .filter(lambda text: not text.isdigit() and text[0].isalnum() and "***" not in text),
    st.sampled_from(("", "a line\n", "x ")),
)  # fmt: skip
def test_a_secret_beside_its_word_is_masked(place: str, secret: str, before: str) -> None:
    if place.startswith("Environment"):
        before = ""  # at the beginning of its line
    text = PRIVATE.without(before + place.format(secret, secret) + "\nnext")
    assert secret not in text and text.endswith("\nnext"), text


@pytest.mark.parametrize("document, masked", [
    ({"c": 'curl -d {"password": "hunter2"} x'}, {"c": 'curl -d {"password": ***} x'}),
    ({"c": 'PGPASSWORD="hunter2" pg_dump'}, {"c": "PGPASSWORD=*** pg_dump"}),
    ({"c": 'curl -d "{\\"password\\": \\"hunter2\\"}"'},
     {"c": 'curl -d "{\\"password\\": ***}"'}),
    ({"token": "hun ter2", "x": [1, 2.5, None]}, {"token": "***", "x": [1, 2.5, None]}),
    ({"Cookie": ["hunter2"], "pin_code": 7}, {"Cookie": "***", "pin_code": 7}),
    ({"password": ["hun ter2"]}, {"password": "***"}),
])  # fmt: skip
def test_json_stays_json_and_tells_no_secret(document: object, masked: object) -> None:
    text = json.dumps(document)
    assert json.loads(PRIVATE.document(text)) == masked
    # Cut off, it is a text: that it stays whole is lost, but no secret is told.
    for said in (PRIVATE.document(text[:-1]), PRIVATE.without(text)):
        assert "ter2" not in said and "***" in said


@UNHURRIED
@given(st.text())
def test_any_text_can_be_masked(text: str) -> None:
    PRIVATE.without(text)


@pytest.mark.parametrize("text", [
    "12:34:56 8:0 0000:00:1f.2 6.1.0-13-amd64 1.2.3", "postgresql@13-main.service is up",
    "file:///usr/share/doc/writebackd/runbook.md#stall", "rate 123456789 of 50014ee2b7c0",
    "::1 localhost", "token-ring", "/homely/alice /var/home", "ExecStart=/x -n",
    "db-host-70 is another, mydb-host-7 too",
    "passengers: 3, compass = n, bypass=1, pass-through: on",
    "monkey=1 keyboard: us cookies=3 --passive pass_rate=1 --api-key-file=/etc/x",
])  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert PRIVATE.without(text) == text


@pytest.mark.parametrize("text", [
    "/dev/mapper/{0}--vg-root /dev/{0}-vg/root", "vg_{0} {0}_data", "backup-{0}.service is up",
    "a=/home/{0}/x", "/var/home/{0}/x", "/@/home/{0}", "/media/{0}", "/run/media/{0}",
])  # fmt: skip
def test_the_host_and_people_are_left_out_of_names(text: str) -> None:
    for name in ("db-host-7", "DB-Host-7", "db--host--7"):
        assert PRIVATE.without(text.format(name)) == text.format("***")


def test_mounts_from_elsewhere_lose_their_source(tmp_path: Path) -> None:
    local = [f"9 1 0:9 / /x rw - {kind} rw" for kind in ("tracefs tracefs", "bpf none",
                                                        "ext4 /dev/sda1")]  # fmt: skip
    remote = "33 1 0:41 / /nfs rw,relatime shared:3 - nfs4"
    lines = [*local, f"{remote} srv:/x rw,addr=10.1.1.1", "not a mount"]
    put(tmp_path, "/proc/self/mountinfo", "\n".join(lines))
    collect = dict(COLLECTORS)["mountinfo.txt"]
    said = collect(Host(KernelFiles(tmp_path), tmp_path, 0.0))
    assert said.split("\n") == [*local, f"{remote} *** ***", "not a mount"]
