# SPDX-License-Identifier: GPL-2.0-or-later
"""Pictures of `writebackctl top` and `writebackctl report`, taken while the agent works."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
from pathlib import Path
from typing import Iterator, Optional

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from writebackd.report.report_page import STYLE

from .agent import BIN, Agent
from .remains import RigError

COLUMNS, LINES = 108, 30
FRAME = "\x1b[1mwritebackd: "  # how each begins
# An image loads no font, and no page is to be asked for one.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
CARD = ".card{fill:var(--paper)}"


class Screenshots:
    """What was asked for: each is a file, or None."""

    def __init__(self, top: Optional[Path] = None, report: Optional[Path] = None) -> None:
        self._top, self._report = top, report

    @contextlib.contextmanager
    def top(self, agent: Agent) -> Iterator[None]:
        """The last frame of those that are shown meanwhile."""
        if self._top is None:
            yield
            return
        shown = agent.directory / "top.txt"
        environ = dict(os.environ, COLUMNS=str(COLUMNS), LINES=str(LINES), LC_ALL="C.UTF-8",
                       TERM="xterm-256color")
        with open(shown, "wb") as output:
            process = agent.spawn(
                [str(BIN / "writebackctl"), "--runtime-dir", str(agent.runtime),
                 "--color", "always", "top", "--frames", "100000", "--interval", "1"],
                stdout=output, stderr=output, env=environ)
            try:
                yield
            finally:
                process.terminate()
                process.wait()
        self._top.write_text(terminal(last_frame(shown.read_text()), "writebackctl top"))

    def report(self, agent: Agent) -> None:
        """Its plot: the page is HTML, which an image cannot hold."""
        if self._report is None:
            return
        page = subprocess.run(
            [str(BIN / "writebackctl"), "report", "--state-dir", str(agent.state), "-o", "-"],
            capture_output=True, text=True, check=False)
        if page.returncode:
            raise RigError(f"writebackctl report: {page.stderr.strip()}")
        self._report.write_text(plot_of(page.stdout))


def last_frame(shown: str) -> str:
    """The last whole one: another may have begun."""
    frames = shown.split(FRAME)
    if len(frames) < 3:
        raise RigError(f"writebackctl top showed nothing: {shown.strip()}")
    return (FRAME + frames[-2]).rstrip()


def terminal(frame: str, title: str) -> str:
    """Lines with escape codes as an image of a terminal."""
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True,
                      legacy_windows=False)
    console.print(Text.from_ansi(frame), no_wrap=True, crop=True)
    drawn = console.export_svg(title=title, code_format=FORMAT, unique_id="top")
    return "\n".join(line.strip() for line in drawn.splitlines() if line.strip()) + "\n"


def plot_of(page: str) -> str:
    """The first device's plot of a report as an image, without what only a pointer shows."""
    found = re.search(r'<svg viewBox="([^"]+)"(.*?)</svg>', page, re.DOTALL)
    if found is None:
        raise RigError("writebackctl report has no figures: the run was too short")
    box, inside = found.groups()
    inside = re.sub(r'<rect class="hover".*?</rect>', "", inside, flags=re.DOTALL)
    _, _, width, height = box.split()
    attributes, _, body = inside.partition(">")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="{width}"'
            f' height="{height}"{attributes}><style>{STYLE}{CARD}</style>'
            f'<rect class="card" width="100%" height="100%"/>{body}</svg>\n')
