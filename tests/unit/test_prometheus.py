# SPDX-License-Identifier: GPL-2.0-or-later
"""Real Prometheus: it scrapes the daemon, and the shipped rules and dashboard are asked of it."""

from __future__ import annotations

import http.server
import json
import re
import selectors
import shlex
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set

import pytest

import samples
from busy_host import busy_host, counted
from checkout import ROOT
from fake_host import Rig
from writebackd.kernel.map_readers import Reading
from writebackd.policy.reload import Open
from writebackd.report.metrics import PROMETHEUS, render
from writebackd.report.metrics_server import Exposition, MetricsServer, open_tcp
from writebackd.types.decision import Mode
from writebackd.types.histogram import Histogram
from writebackd.types.samples import ClassSample, IoClass, SyncSample

pytestmark = pytest.mark.xdist_group("prometheus")  # one server for all of them
RULES = ROOT / "docs" / "prometheus"
DASHBOARD = ROOT / "docs" / "grafana" / "writebackd.json"
TIMEOUT_S = 30.0
TICK_S = 0.2
# What the variables of the dashboard stand for; a rate needs two scrapes.
VARIABLES = {"$job": ".*", "$host": ".*", "$device": ".*", "$__rate_interval": "30s"}
# Nothing is refused here.
EMPTY = {
    'sum by (lever, result) (increase(writebackd_lever_writes_total{job=~".*",instance=~".*",'
    'result="error"}[30s])) > 0'
}
real_time = time.time


def need(tool: str) -> None:
    if not shutil.which(tool):
        pytest.skip(f"{tool} is missing: apt-get install prometheus")


@pytest.mark.parametrize("command, files", [
    ("promtool check rules", "*.rules.yml"), ("promtool test rules", "*.test.yml"),
    ("promtool check config", "prometheus.yml"), ("amtool check-config", "alertmanager.yml"),
])  # fmt: skip
def test_rules_and_examples_are_valid(command: str, files: str) -> None:
    tool, *words = command.split()
    need(tool)
    paths = list(map(str, RULES.glob(files)))
    result = subprocess.run(
        [tool, *words, *paths], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    assert paths and result.returncode == 0, result.stdout


def test_the_silence_of_the_runbook_is_one() -> None:
    need("amtool")
    asked: List[Dict[str, Any]] = []

    class Alertmanager(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # its version, of which amtool is to take no notice
            self.send_error(404)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"silenceID": "1"}')

        def log_message(self, *args: Any) -> None:
            pass

    (command,) = re.findall(r"(?m)^    (amtool .*)", (ROOT / "docs/howto/runbook.md").read_text())
    with http.server.HTTPServer(("127.0.0.1", 0), Alertmanager) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = subprocess.run(
            [*shlex.split(command), f"--alertmanager.url={url}", "--no-version-check"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20, check=False,
        )  # fmt: skip
        server.shutdown()
        thread.join()
    assert result.returncode == 0, result.stdout
    matchers = {each["name"]: each for each in asked[0]["matchers"]}
    assert set(matchers) == {"alertname", "instance", "device"}
    assert "alert: " + matchers["alertname"]["value"] in (RULES / "alerts.rules.yml").read_text()
    instance = matchers["instance"]
    assert instance["isRegex"]
    for name, fits in (("db1", True), ("db1:9100", True), ("db12", False)):
        assert bool(re.fullmatch(instance["value"], name)) is fits


def test_every_alert_is_tested_and_has_a_section_of_the_runbook() -> None:
    rules, tests = ((RULES / f"alerts.{part}.yml").read_text() for part in ("rules", "test"))
    names = re.findall(r"alert: (\w+)", rules)
    for name in names:
        assert tests.count(f"alertname: {name}") >= 1, name
    heads = re.findall(r"(?m)^## (.*)", (ROOT / "docs/howto/runbook.md").read_text())
    sections = {head.lower().replace(" ", "-") for head in heads}
    found = re.findall(r"runbook_url: file:///usr/share/doc/writebackd/docs/howto/"
                       r"runbook\.md#(\S+)", rules)  # fmt: skip
    assert len(found) == len(names) and set(found) <= sections


def expressions(node: Any) -> Iterator[str]:
    """Every query of the dashboard, its variables put in."""
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield put_in(node["expr"])
        for child in node.values():
            yield from expressions(child)
    elif isinstance(node, list):
        for child in node:
            yield from expressions(child)


def put_in(text: str) -> str:
    for name, stands_for in VARIABLES.items():
        text = text.replace(name, stands_for)
    assert "$" not in text, text
    return text


QUERIES = sorted(set(expressions(json.loads(DASHBOARD.read_text()))))


class Hosts(threading.Thread):
    """Daemons on hosts without a kernel: ticking, and answering scrapers, as in their loop."""

    def __init__(self, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(name="hosts")
        self.now = 1000.0
        self.rigs: Dict[str, Rig] = {}
        for name in ("enforcing", "yielded"):
            (tmp / name).mkdir()
            self.rigs[name] = Rig(tmp / name, monkeypatch)
        # The probe is opened by name of the last rig made; both have theirs by now.
        monkeypatch.setattr("writebackd.daemon._boottime", lambda: self.now)
        monkeypatch.setattr(time, "time", real_time)
        night = Open("night", real_time() + 3600.0, "06:00")
        self.full = counted(replace(busy_host(2), window=night))
        self.observing = samples.in_mode(self.full, Mode.OBSERVE)
        self.servers: Dict[str, MetricsServer] = {
            "enforcing": self.serve(lambda: self.rigs["enforcing"].daemon.state.snapshot),
            "yielded": self.serve(lambda: self.rigs["yielded"].daemon.state.snapshot),
            "full": self.serve(lambda: self.full),
            "observing": self.serve(lambda: self.observing),
        }
        self.end = threading.Event()

    @staticmethod
    def serve(snapshot: Any) -> MetricsServer:
        return open_tcp("127.0.0.1", 0, Exposition(snapshot))

    def tick(self) -> None:
        self.now += 1.0
        for rig in self.rigs.values():
            rig.probe.next = Reading(
                classes={"8:0": {IoClass.BACKGROUND_WRITE:
                         ClassSample(64, 64 << 20, Histogram(((90, 64),)))}},
                syncs={"8:0": SyncSample(fsyncs=20, latency=Histogram(((80, 15), (110, 5))))},
            )  # fmt: skip
            rig.host.flow(64 << 20)
            rig.now = self.now
            rig.daemon._tick()
        sample = replace(self.full.sample, wall_s=real_time())
        totals = replace(self.full.totals, limit_changes=self.full.totals.limit_changes + 1)
        self.full = counted(replace(self.full, sample=sample, totals=totals))
        # Its last tick was in 2024, as if it hung; its counters go on, for rates.
        self.observing = counted(self.observing)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for server in self.servers.values():
                server.register(selector)
            due = time.monotonic()
            while not self.end.is_set():
                for key, mask in selector.select(max(0.0, due - time.monotonic())):
                    key.data.service(key, mask)
                if time.monotonic() >= due:
                    self.tick()
                    due += TICK_S
            for server in self.servers.values():
                server.close()

    def stop(self) -> None:
        self.end.set()
        self.join()
        for rig in self.rigs.values():
            rig.end()


class Prometheus:
    """A server of our own on a free port, with the shipped rules."""

    def __init__(self, tmp: Path, hosts: Hosts) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        targets = [
            {"targets": ["127.0.0.1:%d" % server._listener.getsockname()[1]],
             "labels": {"instance": name}}
            for name, server in hosts.servers.items()
        ]  # fmt: skip
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms",
                       "evaluation_interval": "500ms"},
            "rule_files": [str(RULES / "*.rules.yml")],
            "scrape_configs": [{"job_name": "writebackd", "static_configs": targets}],
        }  # fmt: skip
        (tmp / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.log = tmp / "prometheus.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={tmp}/prometheus.yml",
                 f"--storage.tsdb.path={tmp}/data", f"--web.listen-address=127.0.0.1:{port}"],
                stdout=log, stderr=log,
            )  # fmt: skip

    def get(self, path: str, **query: str) -> Any:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, text: str) -> List[Dict[str, Any]]:
        result: List[Dict[str, Any]] = self.get("query", query=text)["result"]
        return result

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if self.query(text):
                    return
            except OSError:  # not up yet
                assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, (text, self.log.read_text())
            time.sleep(0.1)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    need("prometheus")
    tmp = tmp_path_factory.mktemp("prometheus")
    with pytest.MonkeyPatch.context() as monkeypatch:
        hosts = Hosts(tmp, monkeypatch)
        for _ in range(6):
            hosts.tick()
        hosts.rigs["yielded"].host.sysctl("dirty_bytes", 512 << 20)
        hosts.start()
        server = Prometheus(tmp, hosts)
        try:
            # Rules of rules lag by an evaluation each, and each group has a clock of its own: what
            # reads another group's results says nothing of when a third one last looked.
            server.wait_for("count(count_over_time(writebackd_build_info[1m]) >= 3) == 4")
            server.wait_for("instance:writebackd_commit_over_objective:max")
            server.wait_for("job:writebackd_collapses:rate1d")
            server.wait_for("mode:writebackd_flooded_throughput:ratio")
            server.wait_for("sum(mode:writebackd_hosts:count) == 4")
            yield server
        finally:
            server.stop()
            hosts.stop()


def test_every_host_is_scraped_without_a_complaint(prometheus: Prometheus) -> None:
    targets = prometheus.get("targets")["activeTargets"]
    assert {each["health"]: each["lastError"] for each in targets} == {"up": ""}
    # Every sample that is sent is stored: none is refused as out of order or double.
    left = prometheus.query("scrape_samples_scraped - scrape_samples_post_metric_relabeling")
    assert {each["value"][1] for each in left} == {"0"}
    log = prometheus.log.read_text()
    assert "level=error" not in log and "level=warn" not in log, log


def test_every_series_arrives(prometheus: Prometheus) -> None:
    full = replace(busy_host(2), window=Open("night", 0.0, "06:00"))
    sent = sum(not line.startswith("#") for line in render(counted(full)).splitlines())
    (got,) = prometheus.query('scrape_samples_scraped{instance="full"}')
    assert int(got["value"][1]) == sent
    stored = prometheus.query('count({__name__=~"writebackd_.+",instance="full"})')
    assert int(stored[0]["value"][1]) == sent


def test_what_is_to_be_quiet_while_a_window_is_open_can_say_so(prometheus: Prometheus) -> None:
    query = 'writebackd_enforcing unless on (job, instance) writebackd_window{window="%s"}'
    assert {each["metric"]["instance"] for each in prometheus.query(query % "night")} == {
        "enforcing", "yielded"}  # fmt: skip
    assert len(prometheus.query(query % "other")) == 4
    closes = prometheus.query("writebackd_window_end_timestamp_seconds - time() > 0")
    assert {each["metric"]["instance"] for each in closes} == {"full", "observing"}


def test_types_and_units_arrive(prometheus: Prometheus) -> None:
    found = prometheus.get("metadata")
    name = "writebackd_device_commit_duration_seconds"
    assert (found[name][0]["type"], found[name][0]["unit"]) == ("histogram", "seconds")
    assert found["writebackd_limit_changes"][0]["type"] == "counter"
    assert found["writebackd_dirty_limit_bytes"][0]["unit"] == "bytes"
    assert all(each[0]["help"] for key, each in found.items() if key.startswith("writebackd_"))


def test_the_counters_of_a_daemon_count(prometheus: Prometheus) -> None:
    name = "writebackd_device_commit_duration_seconds"
    (p99,) = prometheus.query(
        f'histogram_quantile(0.99, rate({name}_bucket{{instance="enforcing"}}[30s]))'
    )
    # A quarter of them in bucket 110 of the probe, 59 to 63 ms.
    assert 0.05 < float(p99["value"][1]) <= 0.1
    (rate,) = prometheus.query(
        f'rate({name}_count{{instance="enforcing"}}[30s])'
        ' / rate(writebackd_device_written_bytes_total{instance="enforcing"}[30s])'
    )
    assert float(rate["value"][1]) == pytest.approx(20 / (64 << 20), rel=0.05)


def test_a_foreign_writer_fires_on_its_host_alone(prometheus: Prometheus) -> None:
    prometheus.wait_for('ALERTS{alertname="WritebackdForeignWriter",alertstate="firing"}')
    firing = [each for each in prometheus.get("alerts")["alerts"] if each["state"] == "firing"]
    assert {(each["labels"]["alertname"], each["labels"]["instance"]) for each in firing} == {
        ("WritebackdForeignWriter", "yielded")
    }


def test_every_query_of_the_dashboard_finds_something(prometheus: Prometheus) -> None:
    assert {query for query in QUERIES if not prometheus.query(query)} == set(EMPTY)


NAMES = [
    (query, name) for query in QUERIES for name in sorted({*re.findall(r"writebackd_\w+", query)})
]


def test_no_query_survives_that_a_metric_is_renamed(prometheus: Prometheus) -> None:
    for query, name in NAMES:
        found = prometheus.query(re.sub(rf"{name}\b", f"{name}_renamed", query))
        # One host of four does not report; without the time of the ticks none does.
        everyone = [{"metric": {}, "value": [found[0]["value"][0], "4"]}] if found else []
        wanted = [] if " unless " not in query or "build_info" in name else everyone
        assert found == wanted, (query, name)


def test_queries_take_raw_metrics_of_the_jobs_that_were_chosen() -> None:
    text = DASHBOARD.read_text()
    queries = re.findall(r'"expr": "(.*)"', text)
    assert len(set(queries)) == len(QUERIES)
    for query in queries:
        plain = query.replace('\\"', '"')
        assert not re.search(r"[a-z]:[a-z]|ALERTS", plain), query
        selectors = re.findall(r"writebackd_\w+(\{[^}]*\}|)", plain)
        assert selectors and all('job=~"$job"' in each for each in selectors), query


def test_the_import_asks_for_data_source_and_manual() -> None:
    board = json.loads(DASHBOARD.read_text())
    asked = {each["name"] for each in board["__inputs"]}
    taken = {each["name"]: each["current"]["value"]
             for each in board["templating"]["list"] if "value" in each["current"]}  # fmt: skip
    assert taken == {"datasource": "${DS_PROMETHEUS}", "manual": "${VAR_MANUAL}"}
    assert set(taken.values()) == {f"${{{name}}}" for name in asked}
    assert {each["name"] for each in board["annotations"]["list"]} == {"Alerts", "Decisions"}
    for link in board["links"]:
        assert (ROOT / "docs" / link["url"].replace("$manual/", "")).is_file()


# What a recorded series shows, and the panel that computes the same.
RECORDED = {
    "instance:writebackd_commit_over_objective:max":
        "Worst hosts: commit p99 in multiples of its objective",
    "mode:writebackd_hosts:count": "Hosts by mode",
    "job:writebackd_collapses:rate1d": "Collapses per host and day",
    "mode:writebackd_flooded_commit_seconds:p99_5m": "Effect: commit p99 while flooded, by mode",
    "mode:writebackd_flooded_throughput:ratio": "Cost: throughput of the flood, by mode",
}


def test_recording_rules_only_make_panels_faster(tmp_path: Path) -> None:
    """The figures that promtool expects of the rules, asked of the panels."""
    need("promtool")
    text = (RULES / "alerts.test.yml").read_text()
    panels = {each["title"]: each for each in json.loads(DASHBOARD.read_text())["panels"]}
    for name, title in RECORDED.items():
        assert name in text
        raw = put_in(panels[title]["targets"][0]["expr"])
        text = text.replace(f"'{name}{{", "'{").replace(name, raw)
    rules = "rule_files: [alerts.rules.yml, recording.rules.yml]"
    path = tmp_path / "panels.test.yml"
    path.write_text(text.replace(rules, f"rule_files: [{RULES}/alerts.rules.yml]"))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_variables_of_the_dashboard(prometheus: Prometheus) -> None:
    wanted = {
        "job": {"writebackd"},
        "host": {"enforcing", "yielded", "full", "observing"},
        "device": {"sda", "sd0", "sd1"},
    }
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    for each in variables:
        if each["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", each["definition"])
            assert match
            found = prometheus.get(f"label/{match[2]}/values", **{"match[]": put_in(match[1])})
            assert set(found) == wanted[each["name"]]


def test_recording_rules_all_have_results(prometheus: Prometheus) -> None:
    names = re.findall(r"record: (\S+)", (RULES / "recording.rules.yml").read_text())
    assert len(names) > 8
    for name in names:
        assert prometheus.query(name), name
    modes = prometheus.query("mode:writebackd_hosts:count")
    assert {each["metric"]["mode"]: each["value"][1] for each in modes} == {
        "enforce": "3", "observe": "1",
    }  # fmt: skip


def test_panels_do_not_overlap_and_name_what_they_show() -> None:
    taken: Set[Any] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"] and panel["targets"], panel["title"]


def test_the_dashboard_needs_no_migration_of_the_version_that_it_says() -> None:
    """Grafana brings a dashboard up to date from its schemaVersion on, and no earlier step."""
    board = json.loads(DASHBOARD.read_text())
    assert board["schemaVersion"] == 37
    for panel in board["panels"]:
        legend = panel.get("options", {}).get("legend")
        # Step 37: whether a legend is shown is said by `showLegend` alone.
        assert legend is None or legend["showLegend"] is True, panel["title"]
        # Step 36: data sources by type and uid, not by name.
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_metric_is_described_and_nothing_else() -> None:
    night = Open("night", 1_717_220_000.0, "06:00")
    shown = [counted(busy_host(1)), replace(samples.pinned(), lease_s=5.0, window=night)]
    exported = {found for each in shown for found in re.findall(
        r"^# TYPE (\S+) (\S+)\n# HELP \S+ (.*)", render(each, PROMETHEUS), re.M)}
    manual = (ROOT / "docs/reference/metrics.md").read_text()
    described = re.findall(r"^\| `(writebackd_\w+)[^|]*\| (\w+) \| (.*) \|$", manual, re.M)
    assert len(described) == len(exported) and set(described) == exported


def test_the_manual_counts_series_as_they_are() -> None:
    """docs/howto/fleet.md reckons with these."""
    series = []
    for devices in (1, 4):
        shown = replace(counted(busy_host(devices)), lease_s=5.0)
        series.append(sum(not line.startswith("#") for line in render(shown).splitlines()))
    manual = (ROOT / "docs/howto/fleet.md").read_text()
    device, rest = divmod(series[1] - series[0], 3)
    host = series[0] - device
    assert rest == 0
    assert f"{host} series a host and {device} a managed device" in manual
    assert f"| 1 000 hosts, 4 devices each | {thousands(1000 * series[1])} |" in manual
    assert f"| 5 000 hosts, 12 devices each | {thousands(5000 * (host + 12 * device))} |" in manual


def test_what_the_example_drops_is_counted_and_not_asked_for() -> None:
    (dropped,) = set(re.findall(r"regex: (writebackd_\S+)", (RULES / "prometheus.yml").read_text()))
    lines = render(counted(busy_host(1))).splitlines()
    names = [line.partition("{")[0] for line in lines if not line.startswith("#")]
    count = sum(bool(re.fullmatch(dropped, name)) for name in names)
    assert f"drops {count} a device that" in (ROOT / "docs/howto/fleet.md").read_text()
    asked = DASHBOARD.read_text() + "".join(
        (RULES / name).read_text() for name in ("alerts.rules.yml", "recording.rules.yml")
    )
    named = set(re.findall(r"writebackd_\w+", asked))
    assert not [name for name in named if re.fullmatch(dropped, name)]


def thousands(number: int) -> str:
    return f"{number:,}".replace(",", " ")
