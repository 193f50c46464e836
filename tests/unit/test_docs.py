# SPDX-License-Identifier: GPL-2.0-or-later
"""The manual: links lead somewhere, lines can be read, and what the code knows is as it says."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from enum import Enum
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Type

import pytest

from checkout import ROOT, files
from writebackd.alerts.alert_types import AlertName, Cause
from writebackd.types.decision import DeviceState, Rule
from writebackd.types.levers import LeverKind

sys.path += [str(ROOT / "docs" / "man"), str(ROOT)]
import reference
import schemas
from tests.sim import pictures

WIDEST = 100
LINK = re.compile(r"\[[^]\n]*\]\(([^)\s]+)\)|^\[[^]]+\]: (\S+)", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<![\w/])(?:docs|tests|agent|bpf|policies)/[\w./-]*\w\.(?:md|py|conf|yml)\b")
PLACEHOLDER = re.compile(r"\b(?:NAME|YYYY)")
PAGES = files("*.md")


def anchors(text: str) -> List[str]:
    """Those that GitHub and every renderer of Markdown makes of headings."""
    headings = re.findall(r"^#+ (.*)", FENCE.sub("", text), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]


def broken(page: Path, text: str) -> Iterator[str]:
    """Links that lead nowhere."""
    for link in (first or second for first, second in LINK.findall(FENCE.sub("", text))):
        name, _, anchor = link.partition("#")
        if re.match(r"https?:|mailto:", name):
            continue
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{page.name}: no file {link}"
        elif anchor and anchor not in anchors(text if target == page else target.read_text()):
            yield f"{page.name}: no heading {link}"


def long_lines(text: str) -> Iterator[int]:
    """Numbers of lines that are too long; a row of a table may be."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDEST and not line.lstrip().startswith("|"):
            yield number


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere_and_every_line_fits(page: Path) -> None:
    text = page.read_text()
    assert list(broken(page, text)) == []
    assert list(long_lines(text)) == []


def test_every_page_is_reached_from_the_first() -> None:
    seen, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for first, second in LINK.findall(page.read_text()):
            target = (page.parent / (first or second).partition("#")[0]).resolve()
            if target.is_dir():
                left += target.glob("*.md")
            elif target.is_file():
                left.append(target)
    assert [page.name for page in PAGES if page not in seen] == []


def test_files_that_are_named_exist() -> None:
    """Also those that code, policies, units and alerting rules send a reader to."""
    wrong = []
    places = ("*.md", "agent", "bpf", "docs", "policies", "systemd", "Makefile", "setup.cfg")
    for file in files(*places):
        for name in NAMED.findall(file.read_text(errors="replace")):
            if not (ROOT / name).exists() and not PLACEHOLDER.search(name):
                wrong.append(f"{file.relative_to(ROOT)}: {name}")
    assert wrong == []


def test_schemas_are_those_of_the_answers() -> None:
    there = {each.name: each.read_text() for each in schemas.PLACE.iterdir()}
    assert there == schemas.files(), "run `make docs`"


def test_inherited_keys_of_an_answer_keep_their_description() -> None:
    """A TypedDict forgets its bases before Python 3.12."""
    def keys(name: str, *path: str) -> Dict[str, Any]:
        found: Any = json.loads((ROOT / "docs/schema" / f"{name}.json").read_text())
        for each in path:
            found = found["properties"][each]["items"]
        return {key: part.get("description", "") for key, part in found["properties"].items()}

    # DeviceFigures under StatusDevice and DeviceReason, AlertRow under ActiveAlert.
    assert keys("status", "devices")["slow_share"] and keys("why", "devices")["objective_s"]
    assert keys("status", "alerts")["culprits"].startswith("the heaviest first")
    assert keys("trial")["settle_s"]


@pytest.mark.parametrize("name", reference.pages())
def test_generated_pages_are_those_of_the_code(name: str) -> None:
    assert (reference.PLACE / name).read_text() == reference.pages()[name], "run `make docs`"


def test_the_pictures_can_be_drawn_and_read_on_a_dark_page_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pictures", str(tmp_path)])
    assert pictures.main() == 0
    drawn = sorted(each.name for each in tmp_path.iterdir())
    assert drawn == sorted(each.name for each in pictures.DIRECTORY.glob("*.svg"))
    for name in drawn:
        words = {each.text for each in ET.parse(tmp_path / name).iter()}
        assert "writebackd" in words
        assert "prefers-color-scheme: dark" in (tmp_path / name).read_text()


@pytest.mark.parametrize("page, kinds", [
    ("alerts.md", [AlertName, Cause]),
    ("decisions.md", [DeviceState, Rule]),
    ("levers.md", [LeverKind]),
])  # fmt: skip
def test_the_reference_has_every_word(page: str, kinds: Iterable[Type[Enum]]) -> None:
    text = (reference.PLACE / page).read_text()
    missing = [each.value for kind in kinds for each in kind if f"`{each.value}`" not in text]
    assert missing == []


def test_a_newcomer_finds_what_to_change() -> None:
    rows = re.findall(r"^\| \d+ \| (.*) \| (.*) \|$", (ROOT / "tests/newcomer.md").read_text(),
                      re.MULTILINE)
    assert len(rows) == 20
    touched = [len(paths.split(", ")) for _, paths in rows]
    assert sum(count > 3 for count in touched) <= 1
    for _, paths in rows:
        for name in re.findall(r"`([^`]+)`", paths):
            assert (ROOT / name).exists(), name
