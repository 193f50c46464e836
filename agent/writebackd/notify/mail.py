# SPDX-License-Identifier: GPL-2.0-or-later
"""Mails alert events through the system's sendmail."""

from __future__ import annotations

import time
from functools import partial
from typing import List, Sequence

from .alert_events import AlertEvent, EventKind, fact_lines, headline, line, runbook_of, who
from .exec_hook import run_unprivileged
from .route import QueuedRoute


def mail_route(
    sendmail: str, to: Sequence[str], host: str, runbook: str, limit_s: float
) -> QueuedRoute:
    send = partial(_send, sendmail, tuple(to), host, runbook, limit_s)
    return QueuedRoute("mail", " ".join(to), send)


def _send(
    sendmail: str, to: Sequence[str], host: str, runbook: str, limit_s: float, event: AlertEvent
) -> None:
    # -t: recipients from the headers; -i: a line of one dot is not the end.
    mail = message(event, to, host, runbook)
    run_unprivileged("mail", [sendmail, "-t", "-i"], mail, limit_s, set_uid=True)


def message(event: AlertEvent, to: Sequence[str], host: str, runbook: str) -> bytes:
    """The mail with its headers.

    alert_events.line has removed line ends from foreign text (names of processes and devices), and
    EmailMessage refuses a header that has one.
    """
    # Megabytes, with OpenSSL, that are only there when mail is.
    from email.message import EmailMessage
    from email.utils import format_datetime, localtime
    from hashlib import sha256

    alert = event.alert
    mail = EmailMessage()
    mail["To"] = ", ".join(to)
    mail["Subject"] = line(f"{host}: {headline(event)}")
    mail["Date"] = format_datetime(localtime())
    # Begin, change and end of one alert are one thread in the reader.
    thread = sha256(f"{host} {event.id}".encode("utf-8", "replace")).hexdigest()
    first = f"<{thread[:24]}@writebackd.invalid>"
    if event.what is EventKind.BEGIN:
        mail["Message-ID"] = first
    else:
        mail["In-Reply-To"] = first
        mail["References"] = first
    # No out-of-office answers to root (RFC 3834).
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Writebackd-Alert"] = alert.name.value
    mail.set_content("\n".join(body(event, host, runbook)) + "\n")
    return mail.as_bytes()


def body(event: AlertEvent, host: str, runbook: str) -> List[str]:
    """The text of the mail, the most urgent information first."""
    alert = event.alert
    since = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(alert.since_s))
    lines = [headline(event), "", f"host     {line(host)}", f"since    {since}"]
    facts = fact_lines(alert)
    if facts:
        lines.append(f"evidence {facts}")
    lines += [f"who      {who(culprit)}" for culprit in alert.culprits]
    lines.append(f"done     {line(alert.done)}")
    lines.append(f"runbook  {runbook_of(alert, runbook)}")
    lines += ["", "To see it now: writebackctl alerts"]
    return lines
