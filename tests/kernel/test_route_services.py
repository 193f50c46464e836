# SPDX-License-Identifier: GPL-2.0-or-later
"""Routes against the real thing: Debian's Alertmanager, and a journald of our own.

journald has a mount namespace of its own, with another /run: the host's is neither seen nor asked.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from tests.kernel.fault_rig import wait_for
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Severity
from writebackd.notify.dispatch import Routes
from writebackd.notify.journal_route import ALERT_BEGIN, ALERT_CHANGE, ALERT_END
from writebackd.policy.keys import Routing

ROOT = Path(__file__).resolve().parents[2]
ALERTMANAGER = "prometheus-alertmanager"
JOURNALD = "/lib/systemd/systemd-journald"
RESEND_S = 1.0  # the policy allows 30 s at least


def flood() -> Alert:
    dd = Culprit(4242, "dd", "dd if=/dev/zero of=/x", None, "backup.service", None, 310e6)
    return Alert(
        AlertName.COLLAPSE, "sda", Severity.WARNING, Cause.FLOOD, time.time() - 12,
        "syncs 12/s against 340/s", "limit 4.0G -> 15M", (dd,),
    )  # fmt: skip


def routes(**changes: Any) -> Routes:
    off = Routing(False, (), "", (), "/usr/sbin/sendmail", RESEND_S, 2.0, "https://wiki/runbook")
    return Routes(replace(off, **changes), host="db1")


# ---- Alertmanager ----------------------------------------------------------


class Receiver(http.server.ThreadingHTTPServer):
    """A webhook: what Alertmanager would page somebody with."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.pages: List[Dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Page(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        page = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.pages.extend(page["alerts"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


class Manager:
    """An Alertmanager, and what its API shows."""

    def __init__(self, directory: Path, port: int, receiver: Receiver) -> None:
        config = directory / "alertmanager.yml"
        config.write_text(
            "route: {receiver: hook, group_by: ['...'], group_wait: 0s, group_interval: 1s}\n"
            "receivers:\n- name: hook\n  webhook_configs:\n"
            f"  - url: http://127.0.0.1:{receiver.server_port}/\n"
        )
        self.url = f"http://127.0.0.1:{port}"
        self._argv = [
            ALERTMANAGER, f"--config.file={config}", f"--storage.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
        ]  # fmt: skip
        self._log = open(directory / "log", "ab")
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._argv, stdout=self._log, stderr=self._log)
        wait_for(self.ready)

    def ready(self) -> bool:
        assert self._process.poll() is None, "alertmanager does not start"
        try:
            return bool(urllib.request.urlopen(f"{self.url}/-/ready", timeout=2).status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def alerts(self) -> List[Dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=2) as answer:
            found: List[Dict[str, Any]] = json.load(answer)
        return found

    def causes(self) -> List[Tuple[str, str]]:
        return sorted((a["labels"]["cause"], a["labels"]["severity"]) for a in self.alerts())


def paged(receiver: Receiver, cause: str, severity: str) -> bool:
    """Whether somebody was told of both: that it burns, and that it is over."""
    told = {
        page["status"]
        for page in receiver.pages
        if (page["labels"]["cause"], page["labels"]["severity"]) == (cause, severity)
    }
    return told == {"firing", "resolved"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Manager]:
    if not shutil.which(ALERTMANAGER):
        pytest.skip(f"{ALERTMANAGER} is missing: agent/setup.sh test installs it")
    manager = Manager(tmp_path_factory.mktemp("alertmanager"), free_port(), receiver)
    yield manager
    manager.stop()


def test_fired_sent_again_changed_and_resolved(manager: Manager, receiver: Receiver) -> None:
    told = routes(alertmanager=(manager.url,))
    alert = flood()
    told.tell([alert], time.time())
    wait_for(manager.alerts)
    (seen,) = manager.alerts()
    assert seen["labels"] == {
        "alertname": "WritebackdCollapse", "cause": "writeback-flood", "device": "sda",
        "instance": "db1", "job": "writebackd", "severity": "warning",
    }  # fmt: skip
    assert seen["annotations"]["runbook_url"] == "https://wiki/runbook#collapse"
    assert seen["annotations"]["culprits"].startswith("dd (pid 4242, backup.service)")

    # Sent again, with other numbers: it is the same one, and burns on.
    told.tell([replace(alert, summary="syncs 9/s against 340/s")], time.time())
    wait_for(lambda: manager.alerts()[0]["endsAt"] > seen["endsAt"])
    (again,) = manager.alerts()
    assert (again["fingerprint"], again["startsAt"]) == (seen["fingerprint"], seen["startsAt"])
    assert again["annotations"]["summary"].startswith("syncs 9/s")

    # It gets worse, then turns out to be something else: one stands at a time.
    told.tell([replace(alert, severity=Severity.CRITICAL)], time.time())
    wait_for(lambda: manager.causes() == [("writeback-flood", "critical")])
    told.tell([replace(alert, cause=Cause.WRITE_THROUGH)], time.time())
    wait_for(lambda: manager.causes() == [("write-through", "warning")])

    told.tell([], time.time())
    wait_for(lambda: manager.alerts() == [])
    for cause, severity in (
        ("writeback-flood", "warning"), ("writeback-flood", "critical"),
        ("write-through", "warning"),
    ):  # fmt: skip
        wait_for(partial(paged, receiver, cause, severity))
    assert told.close(1.0)


def test_a_clock_ahead_of_alertmanagers_is_believed_in_the_end(manager: Manager) -> None:
    """endsAt that is not past yet on its clock would be ignored for the later one before."""
    told = routes(alertmanager=(manager.url,))
    alert = replace(flood(), device="sdb")
    told.tell([alert], time.time())
    wait_for(manager.alerts)
    told.tell([], time.time() + 1.5)
    wait_for(lambda: manager.alerts() == [], seconds=5.0)
    told.close(1.0)


def test_it_burns_no_longer_when_nobody_says_so(manager: Manager) -> None:
    told = routes(alertmanager=(manager.url,))
    told.tell([replace(flood(), device="sdc")], time.time())
    wait_for(manager.alerts)
    told.close(1.0)  # as when the daemon dies: nothing is taken back
    assert manager.alerts()
    wait_for(lambda: manager.alerts() == [], seconds=3 * RESEND_S + 2)


def test_one_that_was_away_is_told_what_stands(manager: Manager) -> None:
    told = routes(alertmanager=(manager.url,))
    alert = replace(flood(), device="sdd")
    manager.stop()
    told.tell([alert], time.time())
    wait_for(lambda: told.states()[0].error)
    told.tell([replace(alert, cause=Cause.DEVICE)], time.time())
    manager.start()
    wait_for(lambda: manager.causes() == [("device", "warning")])
    told.tell([], time.time())
    wait_for(lambda: manager.alerts() == [])
    assert told.close(1.0)


# ---- journald --------------------------------------------------------------

# In the namespace: journald with a /run of its own, told by the routes, read by journalctl.
IN_NAMESPACE = """
set -e
mount -t tmpfs run /run
mount -t tmpfs log /var/log
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d /run/log/journal
printf '[Journal]\\nStorage=volatile\\nAudit=no\\nReadKMsg=no\\nRateLimitBurst=0\\n' \\
    >/run/systemd/journald.conf.d/test.conf
mkdir -p /var/lib/systemd/catalog
mount --bind "$2/var/lib/systemd/catalog" /var/lib/systemd/catalog
# Not left behind, not even stopped.
setpriv --pdeathsig KILL "$4" >/dev/null 2>&1 &
journald=$!
trap 'kill -KILL $journald' EXIT
until [ -S /run/systemd/journal/socket ]; do sleep 0.05; done
"$1" "$3" $journald
"""

TELL = """
import json, os, signal, subprocess, sys, time
sys.path[:0] = {path!r}
from dataclasses import replace
from tests.kernel.fault_rig import wait_for
from tests.kernel.test_route_services import flood, routes
from writebackd.alerts.alert_types import Cause, Severity

def read(*options):
    base = ["journalctl", "-D", "/run/log/journal", "--no-pager", "-q", *options]
    return subprocess.run(base, capture_output=True, text=True).stdout

told = routes(journal=True)
alert = flood()
told.tell([alert], time.time())
told.tell([replace(alert, severity=Severity.CRITICAL)], time.time())
told.tell([], time.time())
wait_for(lambda: read("-o", "json", "ALERT=COLLAPSE").count("\\n") == 3)
entries = [json.loads(row) for row in read("-o", "json", "ALERT=COLLAPSE").splitlines()]
explained = read("-x", "ALERT=COLLAPSE")
blamed = read("-o", "cat", "-u", "backup.service")

# journald hangs, as where its disk does: its socket takes some datagrams, then no more.
journald = int(sys.argv[1])
os.kill(journald, signal.SIGSTOP)
slowest = 0.0
for number in range(60):
    begun = time.monotonic()
    told.tell([replace(alert, device=f"sd{{number}}")], time.time())
    slowest = max(slowest, time.monotonic() - begun)
wait_for(lambda: told.states()[0].waiting)
time.sleep(0.2)
stuck = told.states()[0].waiting
os.kill(journald, signal.SIGCONT)
wait_for(lambda: read("-o", "cat", "ALERT_STATE=begin").count("\\n") == 61)
closed = told.close(1.0)
print(json.dumps(dict(entries=entries, explained=explained, blamed=blamed, slowest=slowest,
                      stuck=stuck, closed=closed, state=str(told.states()))))
"""


def run(argv: List[str]) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("needs root: journald gets a namespace of its own")
    if not Path(JOURNALD).exists():
        pytest.skip(f"{JOURNALD} is missing: apt-get install systemd")
    pytest.importorskip("systemd.journal", reason="apt-get install python3-systemd")
    root = tmp_path_factory.mktemp("journal")
    catalog = root / "usr/lib/systemd/catalog"
    catalog.mkdir(parents=True)
    (root / "var/lib/systemd/catalog").mkdir(parents=True)
    shutil.copy(ROOT / "systemd" / "writebackd.catalog", catalog)
    run(["journalctl", "--update-catalog", "--root", str(root)])
    path = [str(ROOT), str(ROOT / "agent")]
    script = TELL.format(path=path)
    (root / "tell.py").write_text(script)
    # A network of its own has net.unix.max_dgram_qlen = 10, whatever the host's is.
    namespace = ["unshare", "--net", "--mount", "--propagation", "private"]
    tell = [sys.executable, str(root), str(root / "tell.py"), JOURNALD]
    argv = [*namespace, "bash", "-c", IN_NAMESPACE, "test", *tell]
    answer: Dict[str, Any] = json.loads(run(argv).splitlines()[-1])
    return answer


def test_entries_have_the_fields(seen: Dict[str, Any]) -> None:
    entries = seen["entries"]
    assert [entry["MESSAGE_ID"] for entry in entries] == [ALERT_BEGIN, ALERT_CHANGE, ALERT_END]
    assert [entry["PRIORITY"] for entry in entries] == ["4", "2", "5"]
    assert [entry["ALERT_STATE"] for entry in entries] == ["begin", "change", "end"]
    assert len({entry["ALERT_ID"] for entry in entries}) == 1
    for entry in entries:
        assert entry["_TRANSPORT"] == "journal"
        assert (entry["DEVICE"], entry["CAUSE"]) == ("sda", "writeback-flood")
        assert entry["CULPRIT_PID"] == "4242"
        assert entry["SYSLOG_IDENTIFIER"] == "writebackd"


def test_journalctl_x_explains_them(seen: Dict[str, Any]) -> None:
    text = seen["explained"]
    for said in (
        "Subject: COLLAPSE began: warning, writeback-flood",
        "Subject: COLLAPSE changed: severity warning -> critical",
        "Subject: COLLAPSE is over",
        "The runbook: https://wiki/runbook#collapse",
        "limit 4.0G -> 15M",
    ):
        assert said in text, text
    assert "@" not in text.replace("hello@", ""), text  # a field that the entry has not


def test_the_unit_to_blame_shows_it_in_its_own_log(seen: Dict[str, Any]) -> None:
    assert "COLLAPSE on sda" in seen["blamed"]


def test_a_journald_that_hangs_holds_up_nothing_and_gets_all_of_it(seen: Dict[str, Any]) -> None:
    assert seen["slowest"] < 0.05
    assert seen["stuck"] > 10, seen["state"]
    assert seen["closed"]
