# SPDX-License-Identifier: GPL-2.0-or-later
"""Alerts told from the confined unit: as it ships, and as docs/reference/alert-routes.md opens it.

The alert is a real one: somebody else sets the limit. The Alertmanager is a listener on
loopback; what takes the mail writes it where the unit may not, as an MTA does.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from tests.kernel.fault_rig import PIN, limits, limits_kept
from tests.kernel.scratch import run
from tests.vm.inside.rig import wait_for, wish
from tests.vm.inside.systemd_cases import DAEMON, DROP_IN, RUNTIME, journal, let_it_wish
from writebackd.cli.client import request
from writebackd.cli.exit_codes import CommandError
from writebackd.notify import exec_hook
from writebackd.notify.route import Refused, RouteError

GUIDE = Path(__file__).resolve().parents[3] / "docs/reference/alert-routes.md"
POLICY, OPENED = Path("/run/routes.conf"), DROP_IN.with_name("opened.conf")
# As an MTA: its spool is none of the unit's directories, and not root's.
MTA, SPOOL = Path("/run/mta"), Path("/var/spool/mta")
DELIVERED = SPOOL / "delivered"
# What a program of `exec` says of itself before it tells what it got, in the journal.
WHO = 'echo "$(id -u) $(grep NoNewPrivs /proc/self/status)"'
TAG = "told"


def block(first: str) -> str:
    """An indented block of the guide that begins with this line."""
    lines = GUIDE.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.strip() == first)
    indent = re.match(" +", lines[begin])
    assert indent
    found = []
    for line in lines[begin:]:
        if not line.startswith(indent[0]):
            break
        found.append(line.strip())
    return "\n".join(found) + "\n"


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


class Listener(http.server.HTTPServer):
    """Takes what an Alertmanager takes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.alerts: List[Dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, args=(5.0,), daemon=True).start()


class _Take(http.server.BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        self.server.alerts += json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    server = Listener()
    yield server
    server.shutdown()
    server.server_close()


Routes = Dict[str, Dict[str, Any]]


def routes() -> Routes:
    """By name; without an answer none."""
    try:
        told = request(RUNTIME, "alerts")
    except CommandError:
        return {}
    return {route["name"]: route for route in told["routes"]}


@pytest.fixture
def told(listener: Listener) -> Iterator[None]:
    """The service is stopped in the end, and the unit as it ships."""
    listener.alerts.clear()
    SPOOL.mkdir(exist_ok=True)
    SPOOL.chmod(0o1777)
    DELIVERED.unlink(missing_ok=True)
    script(MTA, f"#!/bin/sh\n{{ {WHO}; cat; }} >{DELIVERED}\n")
    with limits_kept():
        try:
            yield
        finally:
            run("systemctl", "stop", DAEMON)
            OPENED.unlink(missing_ok=True)
            POLICY.unlink()
            let_it_wish()
    assert "Traceback" not in journal()


def tell(listener: Listener, opened: str, sendmail: Path) -> Tuple[Routes, str]:
    """Start it, have an alert told to all routes: what became of each, and what status says."""
    page = script(Path("/run/page"), f"#!/bin/sh\n{{ {WHO}; cat; }} | systemd-cat -t {TAG}\n")
    POLICY.write_text(
        f"[alerts]\nalertmanager = http://127.0.0.1:{listener.server_port}\nexec = {page}\n"
        f"mail = root\nsendmail = {sendmail}\n"
    )
    wish([PIN])
    let_it_wish(f"--policy {POLICY}")
    if opened:
        OPENED.write_text(opened)
        run("systemctl", "daemon-reload")
    run("systemctl", "reset-failed")
    run("systemctl", "start", DAEMON)
    wait_for(lambda: limits().dirty_bytes == PIN, what="for the limit")
    Path("/proc/sys/vm/dirty_bytes").write_text(str(2 * PIN))
    tried: Routes = {}

    def all_tried() -> bool:
        tried.update(routes())
        names = {"exec", "mail", "alertmanager"}
        return names <= tried.keys() and all(tried[n]["told"] or tried[n]["error"] for n in names)

    wait_for(all_tried, what="for every route to be tried", pause_s=1.0)
    return tried, run("writebackctl", "status")


def paged() -> List[str]:
    """What programs of `exec` said, of all tests so far."""
    run("journalctl", "--sync")
    return run("journalctl", "--no-pager", "--output", "cat", "-t", TAG).splitlines()


def delivered_by_nobody(before: int) -> None:
    """Both programs ran without root's rights, and were told; `before` lines are older."""
    who, first = paged()[before : before + 2]
    uid, _, no_new_privileges = who.split()
    assert int(uid) >= 61184 and no_new_privileges == "1"  # systemd's dynamic users
    told = json.loads(first)
    assert told["what"] == "begin" and told["alert"]["name"] == "FOREIGN_WRITER"
    who, mail = DELIVERED.read_text().split("\n", 1)
    assert who.split() == ["65534", "NoNewPrivs:", "0"]
    assert "To: root" in mail and "X-Writebackd-Alert: FOREIGN_WRITER" in mail


def test_without_the_bus_nothing_is_run_as_root(told: None, listener: Listener) -> None:
    tried, status = tell(listener, "", MTA)
    for name in ("exec", "mail"):
        assert "install dbus" in tried[name]["error"]
        assert f"alerts do not reach {name}" in status
    assert not paged() and not DELIVERED.exists()


def test_one_that_ignores_sigterm_is_alone_and_soon_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    run("systemctl", "start", "dbus.socket")
    monkeypatch.setattr(exec_hook, "_may_change_user", lambda: False)  # as within the unit
    hook = script(Path("/run/deaf"), "#!/bin/sh\ntrap '' TERM\nsleep 60\n")
    with pytest.raises(Refused, match="killed: not done within 5 s"):
        exec_hook.run_unprivileged("exec", [str(hook)], b"", 5.0)
    with pytest.raises(RouteError, match="its last run has not ended yet"):
        exec_hook.run_unprivileged("exec", [str(hook)], b"", 5.0)
    cgroup = Path("/sys/fs/cgroup/system.slice/writebackd-exec.service")
    assert cgroup.exists()
    wait_for(lambda: not cgroup.exists(), 10, what="for SIGKILL", pause_s=1.0)


def test_as_shipped_the_network_fails_and_says_why(told: None, listener: Listener) -> None:
    run("systemctl", "start", "dbus.socket")
    before = len(paged())
    tried, status = tell(listener, "", MTA)
    assert tried["exec"]["error"] is tried["mail"]["error"] is None, tried
    delivered_by_nobody(before)
    assert "Address family not supported" in tried["alertmanager"]["error"]
    assert "alerts do not reach alertmanager" in status and not listener.alerts


def test_network_without_an_address_that_is_allowed(told: None, listener: Listener) -> None:
    lines = block("[Service]").splitlines(keepends=True)
    opened = "".join(line for line in lines if not line.startswith("IPAddressAllow="))
    assert opened.count("\n") == 3
    tried, _ = tell(listener, opened, MTA)
    assert tried["alertmanager"]["error"] and not listener.alerts
    print("\nrefused:", tried["alertmanager"]["error"])


def test_opened_as_the_guide_says_all_are_told(told: None, listener: Listener) -> None:
    before = len(paged())
    tried, status = tell(listener, block("[Service]"), MTA)
    errors = {name: route["error"] for name, route in tried.items()}
    assert errors == dict.fromkeys(tried), errors
    assert "alerts do not reach" not in status
    delivered_by_nobody(before)
    labels = listener.alerts[0]["labels"]
    assert (labels["alertname"], labels["job"]) == ("WritebackdForeignWriter", "writebackd")
