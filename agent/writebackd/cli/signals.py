# SPDX-License-Identifier: GPL-2.0-or-later
"""Signal handlers that a verb sets for as long as its work takes."""

from __future__ import annotations

import contextlib
import signal
from typing import Any, Callable, Iterator, List, Mapping


@contextlib.contextmanager
def handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Set these handlers, and in the end those from before."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, when everything started can be ended.

    No mask: children would inherit it.  Raises KeyboardInterrupt.  Where a shell has it ignored
    (`drain &` in a script), it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    came: List[int] = []
    with handled({signal.SIGINT: lambda number, _frame: came.append(number)}):
        yield
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def ended_by_signals(*also: signal.Signals) -> Iterator[Callable[[], None]]:
    """Treat SIGTERM, SIGHUP and `also` as Ctrl-C, so that nobody waits for the lease to expire.

    Only once: if ssh drops, SIGHUP comes from the shell and from the kernel, and the second arrives
    before the page is written. Yields the signals; one that nohup ignores stays ignored.
    """

    def interrupt(number: int, frame: object) -> None:
        no_more()
        raise KeyboardInterrupt

    def no_more() -> None:
        for each in caught:
            signal.signal(each, signal.SIG_IGN)

    asked = (signal.SIGTERM, signal.SIGHUP, *also)
    caught = [each for each in asked if signal.getsignal(each) is not signal.SIG_IGN]
    with handled(dict.fromkeys(caught, interrupt)):
        yield no_more
