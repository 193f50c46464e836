# SPDX-License-Identifier: GPL-2.0-or-later
"""A page of HTML as a tree of elements, and the corners of the paths that it draws."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Dict, Iterator, List, Optional, Tuple

VOID = {"meta", "input", "br", "hr", "img", "link"}


class Element:
    def __init__(self, tag: str, attrs: Dict[str, str], parent: Optional[Element]) -> None:
        self.tag, self.attrs, self.parent = tag, attrs, parent
        self.children: List[Element] = []
        self.own = ""
        self.whole = ""  # text of all inside of it, in order

    def all(self, tag: str = "", style: str = "") -> Iterator[Element]:
        for child in self.children:
            if tag in ("", child.tag) and (
                    not style or style in child.attrs.get("class", "").split()):
                yield child
            yield from child.all(tag, style)

    def one(self, tag: str = "", style: str = "") -> Element:
        found = list(self.all(tag, style))
        assert len(found) == 1, (tag, style, len(found))
        return found[0]


class Tree(HTMLParser):
    """A strict one: what is opened has to be closed, in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.at = Element("", {}, None)
        self.feed(page)
        self.close()
        assert self.at is self.root, f"{self.at.tag} is not closed"

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"attribute twice in {tag}: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_startendtag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.own += data
        element: Optional[Element] = self.at
        while element is not None:
            element.whole += data
            element = element.parent


def paths(element: Element, style: str) -> List[str]:
    return [path.attrs["d"] for path in element.all("path", style)]


def corners(path: str) -> List[Tuple[float, float]]:
    """Where a path's points are, by the rules of SVG's path data."""
    found: List[Tuple[float, float]] = []
    at = (0.0, 0.0)
    for letter, rest in re.findall(r"([MLHV])([^MLHV]*)", path):
        first, *more = map(float, rest.split())
        at = (at[0], first) if letter == "V" else (first, more[0] if more else at[1])
        found.append(at)
    return found
