# SPDX-License-Identifier: GPL-2.0-or-later
"""Message ids in the journal; systemd/writebackd.catalog explains each.

They never change: `journalctl MESSAGE_ID=...` and people's filters rest on them.
"""

from __future__ import annotations

ALERT_BEGIN = "e31a69081d114ab1a200a8a08c7eb49f"
ALERT_CHANGE = "47a84b331cf349c4839d631e6d3e045c"
ALERT_END = "8cc2633afc6e457fa400b7e848424166"
DECISION = "222133b5caff4a47a7c631a5a7c95502"
FOREIGN_WRITER = "0a211a0b8de8412096dd1f4f376df7d9"
REVERTED = "8202022c3ffd4a7db80330320a70286b"
