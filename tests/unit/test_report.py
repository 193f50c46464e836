# SPDX-License-Identifier: GPL-2.0-or-later
"""The report: a page that needs nothing, whose words and curves are true to the history."""

from __future__ import annotations

import json
import os
import re
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import List, Tuple

import pytest

import report_case
import schema
from figure_cases import ABOUT, BEGIN_S, EVIL, FAST, SLOW, row, rows
from history_cases import written
from html_tree import Tree
from writebackd.cli import ctl
from writebackd.report.device_figures import Figures
from writebackd.report.device_plot import BINS, bins, device_plot
from writebackd.report.history_schema import Event, read_figures, read_history
from writebackd.report.plot import THIN, escape
from writebackd.report.report_page import MAX_EVENTS, render
from writebackd.report.timeline import Signs, Span, alert_marks, state_marks
from writebackd.safe_files import write_atomically


def test_the_page_needs_no_network_and_no_script() -> None:
    events = [Event(BEGIN_S + 5, "decision", "sda", "sda#1", "guard", text=EVIL)]
    page = render(ABOUT, rows(100, device=EVIL), events)
    elements = list(Tree(page).root.all())
    tags = {each.tag for each in elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "a"}
    names = {name for each in elements for name in each.attrs}
    assert not {name for name in names if name.startswith("on") or name in ("src", "href")}
    assert "url(" not in page and "@import" not in page and "http://" not in page


@pytest.mark.parametrize("field", ["device", "text", "state", "kind", "decision_id"])
def test_every_text_is_escaped(field: str) -> None:
    event = Event(BEGIN_S + 5, "alert", "sda", "sda#1", "warning", text="a: b")
    page = render(
        replace(ABOUT, host=EVIL, version=EVIL), rows(100),
        [replace(event, **{field: EVIL})],  # type: ignore[arg-type]
    )
    assert "<script" not in page and "\x1b" not in page
    page.encode("utf-8")
    Tree(page)


def test_a_week_of_observing_says_what_was_missed_by_whom_and_what_it_would_have_done() -> None:
    week = [row(at, ours_s=0.0, limit_bytes=4.7e9, target_bytes=5e6, latency=latency)
            for at, latency in ((0.0, SLOW), (10.0, FAST), (900.0, FAST), (1800.0, SLOW))
            for at in (at, at + 30.0, at + 60.0)]  # fmt: skip
    week.sort(key=lambda each: each.wall_s)
    alerts = [{
        "began": BEGIN_S + at, "device": "sda", "causes": ["writeback-flood"],
        "culprits": [{"comm": "dd", "unit": EVIL}],
    } for at in (5.0, 1805.0)]  # fmt: skip
    page = render(ABOUT, week, [], alerts).replace("&nbsp;", " ").replace(THIN, " ")
    # 6 rows of 1000 slow fsyncs, in two of three floods; 6 of 1000 fast ones.
    assert "missed the objective of 20 ms in 2 of 3 floods: 6 000 of 12 000 commits" in page
    assert "(50 %) took longer, the longest 2.0s" in page
    assert "writebackd would have set 4.8M instead of 4.4G" in page
    assert "named dd (&lt;script" in page and "in 2." in page
    assert "would have set" not in render(ABOUT, rows(100), [])


def test_each_plot_is_good_xml() -> None:
    page = render(ABOUT, rows(100) + rows(100, device=EVIL), [])
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 2
    for plot in plots:
        ElementTree.fromstring(plot)
        assert "nan" not in plot and "inf" not in plot


def test_a_curve_is_broken_where_nothing_is_known() -> None:
    page = render(ABOUT, rows(10) + [row(2000.0 + 10 * n) for n in range(10)], [])
    written = re.search(r'bytes per second.*?class="l one" d="(.*?)"', page, re.DOTALL)
    assert written is not None and written.group(1).count("M") == 2


def test_many_rows_become_so_many_that_can_be_seen_and_lose_no_fsync() -> None:
    found = rows(8640)
    drawn = bins(found, BEGIN_S, BEGIN_S + 86_400)
    assert BINS - 1 <= len(drawn) <= BINS + 1
    assert sum(each.figures.fsyncs for each in drawn) == 8640 * 1000


def test_what_stood_at_the_beginning_is_shown() -> None:
    events = [
        Event(BEGIN_S - 900, "decision", "sda", "sda#7", "squeeze", text="it began before"),
        Event(BEGIN_S - 500, "alert", "sda", state="warning", text="STALL (device): no end"),
        Event(BEGIN_S + 50, "alert", "sda", state="resolved", text="STALL (device): over"),
    ]
    page = render(ABOUT, rows(300), events)
    assert "sda#7: it began before" in page and "STALL (device): no end" in page
    # Not in the table, which is of the span.
    assert page.count("it began before") == 1 and page.count("STALL (device): over") == 1


DECIDED = Event(BEGIN_S + 10, "decision", "sda", "sda#1", "guard", text="somebody syncs")
RAISED = Event(BEGIN_S + 10, "alert", "sda", state="warning", text="STALL (device): no end")


def stretches(
    events: List[Event], found: List[Figures], span: Span = ABOUT
) -> List[Tuple[float, float]]:
    """From when to when the state and the alert are drawn, which has to be the same."""
    signs = Signs(events, found, span)
    marks = (state_marks(events, signs, "sda", span), alert_marks(events, signs, "sda", span))
    one, other = ([(m.begin_s - BEGIN_S, m.end_s - BEGIN_S) for m in each] for each in marks)
    assert one == other
    return one


@pytest.mark.parametrize("state", ["guard", "idle"])
def test_nothing_is_drawn_of_a_time_in_which_no_daemon_ran(state: str) -> None:
    events = [replace(DECIDED, state=state), RAISED]
    # Killed, which nobody wrote down: the last that was written is the last that is known.
    assert stretches(events, rows(100)) == [(10.0, 1000.0)]
    back = [*events, Event(BEGIN_S + 1500.0, "start", text="version 1")]
    assert stretches(back, [*rows(100), row(1600.0)]) == [(10.0, 1000.0)]
    other = [*events, Event(BEGIN_S + 1200.0, "mode", text="enforce"), back[-1]]
    assert stretches(other, rows(100)) == [(10.0, 1200.0)]
    # It runs, or ran on after the span; an idle device has no rows.
    assert stretches(events, rows(100), replace(ABOUT, running=True)) == [(10.0, 3600.0)]
    after = Event(BEGIN_S + 9000.0, "stop", text="SIGTERM")
    assert stretches([*events, after], rows(100)) == [(10.0, 3600.0)]
    killed = replace(after, kind="start")
    running = replace(ABOUT, running=True)
    assert stretches([*events, killed], rows(100), running) == [(10.0, 1000.0)]
    stopped = Event(BEGIN_S + 50, "stop", text="the limits are back")
    assert stretches([*events, stopped, back[-1]], rows(2)) == [(10.0, 50.0)]


def test_the_time_under_the_agents_limit_is_called_that_of_a_busy_device() -> None:
    """Ten minutes of a day in which somebody wrote; the limit was in force all day."""
    page = render(replace(ABOUT, end_s=BEGIN_S + 86_400.0), rows(60) + rows(6, device="sdb"), [])
    name, value = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page)[0]
    assert (name, value) == ("busy under writebackd's limit, longest device", "10m0s")
    assert "limit in force" not in page.partition("<main>")[0]
    assert "busy in each 10 s in which" in " ".join(page.split())


def test_what_observe_would_have_set_was_not_set() -> None:
    texts = (
        "dirty_bytes 1 -> 2", "would be set: dirty_bytes 1 -> 2", "x 1 -> 2 failed: EIO",
        # The other half of one change, its end, and another lever.
        "dirty_background_bytes 1 -> 4096", "dirty_ratio 0 -> 20", "queue sda nr_requests 1 -> 2",
    )  # fmt: skip
    events = [Event(BEGIN_S + n, "action", text=text) for n, text in enumerate(texts)]
    page = render(ABOUT, rows(10), events)
    counts = ("limit set", "2"), ("other levers set", "1"), ("failed writes", "1")
    for name, value in counts:
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page
    assert "dirty_background_bytes 1 -&gt; 4K" in page


def test_a_long_table_is_cut_and_says_so() -> None:
    events = [Event(BEGIN_S + n, "mode", text=f"number {n}") for n in range(MAX_EVENTS + 10)]
    page = render(ABOUT, [], events)
    assert "10 before them are not shown" in page and "number 9<" not in page
    assert "No figures of this time: a device has a row for each 10 s" in page


def test_escape_shows_what_cannot_be_seen() -> None:
    assert escape("a\u202eb\x00c\u202fd") == "a\ufffdb\ufffdc\u202fd"


# ---- the verb ----------------------------------------------------------


def test_the_verb_writes_the_page_of_a_played_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_case.write(tmp_path / "history.db", 1200)
    begin_s = read_figures(tmp_path / "history.db")[0].wall_s
    page = tmp_path / "page.html"
    code = ctl.main([
        "report", "--state-dir", str(tmp_path), "--since", "2026-01-01", "-o", str(page),
    ])  # fmt: skip
    assert code == 0 and "rows of figures" in capsys.readouterr().out
    text = page.read_text()
    Tree(text)
    # The model: milliseconds with the agent, most of a second without.
    assert re.search(r"\d+ times as long as with writebackd", text.replace("&nbsp;", " "))
    assert "COLLAPSE sda: " in text and "<h2>sdb</h2>" in text
    # A fifth of the time, to its end.
    events = [e for e in read_history(tmp_path / "history.db") if e.kind == "alert"]
    about = Span("host", "0", begin_s, begin_s + 1200.0, begin_s + 1200.0)
    (mark,) = alert_marks(events, Signs(events, [], about), "sda", about)
    assert mark.style == "warning" and 235 < mark.end_s - mark.begin_s < 245
    ctl.main(["report", "--json", "--state-dir", str(tmp_path), "-o", str(page)])
    answer = json.loads(capsys.readouterr().out)
    assert list(schema.problems(answer, schema.load("report"))) == []
    assert answer["bytes"] == page.stat().st_size
    code = ctl.main(["report", "--state-dir", str(tmp_path), "--device", "sdb", "-o", "-"])
    only = capsys.readouterr().out
    assert code == 0 and "<h2>sdb</h2>" in only and "<h2>sda</h2>" not in only
    assert begin_s > report_case.BEGIN_S


def test_the_page_is_of_the_span_that_was_asked_for_and_counts_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second of a busy host was an empty page "from 0 rows and 443 events"."""
    page, found = tmp_path / "page.html", rows(6)
    events = [Event(each.wall_s + 9.0, "mode", text="enforce") for each in found]
    written(tmp_path / "history.db", [*found, *events])

    def asked(*words: str) -> Tuple[int, str, str]:
        monkeypatch.setattr(time, "time", lambda: BEGIN_S + 65.0)
        code = ctl.main(["report", "--state-dir", str(tmp_path), *words, "-o", str(page)])
        return (code, *capsys.readouterr())

    # The last row ended 5 s ago; it is shown whole, and so is its time.
    code, out, _ = asked("--since", "12s")
    assert code == 0 and out.endswith("from 1 rows of figures and 1 events\n")
    text = page.read_text()
    begins = time.strftime("%H:%M:%S", time.localtime(BEGIN_S + 50.0))
    assert f" {begins} to " in text and "No figures" not in text and ", 15s</p>" in text
    code, out, _ = asked("--since", "36s", "--until", "24s")
    assert code == 0 and out.endswith("from 3 rows of figures and 3 events\n")
    page.unlink()
    for words in (("--since", "1s"), ("--since", "30s", "--until", "25s")):
        code, out, err = asked(*words)
        assert (code, out) == (2, "") and not page.exists()
        assert "is too short: figures cover 10 s each; use 10s or more" in err


def test_a_slip_in_the_span_does_not_take_the_memory_of_the_host(tmp_path: Path) -> None:
    report_case.write(tmp_path / "history.db", 60)
    path = tmp_path / "history.db"
    first = time.localtime(min(read_figures(path)[0].wall_s, read_history(path)[0].wall_s))
    begins = (time.strftime("%Y-%m-%d %H:%M:%S to ", first), "1991-01-01 00:00:00 to 1991-01-01")
    page = tmp_path / "page.html"
    for words in (["--since", "1900-01-01"], ["--since", "1990-01-01", "--until", "1991-01-01"]):
        assert ctl.main(["report", "--state-dir", str(tmp_path), *words, "-o", str(page)]) == 0
        text = page.read_text()
        Tree(text)
        assert text.count("<text") < 100
        (told,) = re.findall(r'class="when">([^<]*)<', text)
        # From the first record on, or empty.
        assert told.startswith(begins), told
    years = device_plot("sda", [], (), (), (), 0.0, 3e9)
    below = years.partition('<g class="below">')[2]
    labels = [float(x) for x in re.findall(r'<text x="([\d.]+)"', below)]
    assert 5 <= len(labels) <= 20
    assert min(b - a for a, b in zip(labels, labels[1:])) >= 70.0


def test_what_is_no_plain_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`-o /dev/null` as root, above all."""
    report_case.write(tmp_path / "history.db", 20)
    pipe, link, onward = (tmp_path / name for name in ("pipe", "link", "onward"))
    os.mkfifo(pipe)
    link.symlink_to("pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for output in (pipe, link):
        assert ctl.main(["report", "--state-dir", str(tmp_path), "-o", str(output)]) == 0
        assert os.read(reader, 1 << 20).startswith(b"<!DOCTYPE html>")
    os.close(reader)
    assert pipe.is_fifo() and link.is_symlink()
    # What /dev/stdout leads to may well be a plain file.
    with open(onward, "wb") as file:
        words = ["report", "--state-dir", str(tmp_path), "-o", f"/proc/self/fd/{file.fileno()}"]
        assert ctl.main(words) == 0
        assert os.path.samestat(os.fstat(file.fileno()), onward.stat())
    assert onward.read_text().startswith("<!DOCTYPE html>")


def test_a_link_to_a_plain_file_is_replaced(tmp_path: Path) -> None:
    """In /tmp anybody may have put it there, and root writes the page."""
    report_case.write(tmp_path / "history.db", 20)
    link, behind, beside = (tmp_path / name for name in ("page", "behind", ".page.new"))
    behind.write_text("theirs")
    for each in (link, beside):
        each.symlink_to(behind)
    before = os.umask(0o027)
    try:
        assert ctl.main(["report", "--state-dir", str(tmp_path), "-o", str(link)]) == 0
    finally:
        os.umask(before)
    assert behind.read_text() == "theirs" and not beside.is_symlink()
    assert not link.is_symlink() and link.read_text().startswith("<!DOCTYPE html>")
    assert link.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("dangling", [True, False])
def test_a_file_is_not_written_through_a_link_beside_it(tmp_path: Path, dangling: bool) -> None:
    path, theirs = tmp_path / "node" / "writebackd.prom", tmp_path / "theirs"
    path.parent.mkdir()
    if not dangling:
        theirs.write_text("theirs")
    (path.parent / ".writebackd.prom.new").symlink_to(theirs)
    write_atomically(path, b"ours")
    assert path.read_bytes() == b"ours" and not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o644
    assert theirs.exists() != dangling and (dangling or theirs.read_text() == "theirs")
    assert list(path.parent.iterdir()) == [path]


def test_who_puts_the_link_back_in_between_gains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, theirs = tmp_path / "page", tmp_path / "theirs"
    (tmp_path / ".page.new").symlink_to(theirs)
    real = os.unlink
    monkeypatch.setattr(os, "unlink", lambda name: None)
    with pytest.raises(FileExistsError):
        write_atomically(path, b"ours")
    monkeypatch.setattr(os, "unlink", real)
    assert not theirs.exists() and not path.exists()


def test_a_page_that_cannot_be_written_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_case.write(tmp_path / "history.db", 20)
    target = tmp_path / "missing" / "page.html"
    assert ctl.main(["report", "--state-dir", str(tmp_path), "-o", str(target)]) == 1
    assert "name another with -o" in capsys.readouterr().err
    assert ctl.main(["report", "--state-dir", str(tmp_path / "none")]) == 1
