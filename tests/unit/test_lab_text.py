# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers and units as the lab's page shows them."""

from __future__ import annotations

from typing import Optional

import pytest

from tests.lab.report import text

MIB = 1 << 20


@pytest.mark.parametrize("value, words", [
    (None, text.UNKNOWN), (0, "0"), (450.75, "451"), (0.98, "0.98"), (0.15149, "0.151"),
    (26500, "26\u202f500"), (999.6, "1\u202f000"), (0.00036712, "0.000367"), (-2.5, "-2.5")])
def test_three_figures(value: Optional[float], words: str) -> None:
    assert text.number(value) == words


def test_units() -> None:
    assert text.size(15 * MIB) == "15 MB" and text.size(1024 * MIB) == "1 GB"
    assert text.byte_rate(247.3e6) == "247 MB/s" and text.byte_rate(0) == "0 B/s"
    assert text.seconds(0.00035) == "350 µs" and text.seconds(2.41) == "2.41 s"
    assert text.seconds(0.9999) == "1 s" and text.seconds(0.03041) == "30.4 ms"
    assert text.percent(0.1234) == "12.3 %"
