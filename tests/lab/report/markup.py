# SPDX-License-Identifier: GPL-2.0-or-later
"""Pieces of HTML that several parts of the page are made of; plain text in, safe text out."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from .text import escape

Bar = Tuple[str, str, Optional[float], str]  # label, class, value, value as text


def swatch(style: str) -> str:
    return f'<i class="swatch {style}"></i>'


def bars(rows: Sequence[Bar], title: str) -> str:
    """Horizontal bars, the longest as wide as there is room; no bar where nothing is known."""
    longest = max((value for _, _, value, _ in rows if value is not None), default=0.0)
    parts: List[str] = []
    for label, style, value, words in rows:
        share = 100 * value / longest if value and longest else 0.0
        parts.append(f'<tr class="{style}"><th scope="row">{escape(label)}</th>'
                     f'<td><span class="bar" style="width:{share:.1f}%"></span></td>'
                     f'<td class="n">{escape(words)}</td></tr>')
    return (f'<table class="bars"><caption>{escape(title)}</caption><tbody>'
            + "".join(parts) + "</tbody></table>")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A plain table of text; its first column names the row."""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f'<td class="n">{escape(cell)}</td>' for cell in row[1:]) + "</tr>"
        for row in rows)
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return (f'<div class="wide"><table>{title}<thead><tr>{columns}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>")


def anchor(scenario: str) -> str:
    """An id for a scenario's section: no character that a link or a selector minds."""
    return "s-" + "".join(char if char.isalnum() and char.isascii() else "-" for char in scenario)
