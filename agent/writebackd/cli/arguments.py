# SPDX-License-Identifier: GPL-2.0-or-later
"""Argument types of the command lines."""

from __future__ import annotations

import argparse
import re


def kernel_name(device: str) -> str:
    """The kernel's likely name for a path below /dev, if no daemon can be asked."""
    # As sysfs writes cciss/c0d0.
    return device[5:].replace("/", "!") if device.startswith("/dev/") else device


def number(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid integer: {text!r}") from None


def positive(text: str) -> int:
    """A whole number above 0."""
    value = number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be above 0: {text!r}")
    return value


def span(text: str) -> float:
    """A time above 0 in the form used in policies, in seconds; minutes may be `m`."""
    # Imported here: the start-up time is imports, and few verbs take a span.
    from writebackd.policy.units import UnitError, parse_time

    minutes = re.fullmatch(r"([\d.]+)m", text)
    try:
        value = parse_time(f"{minutes.group(1)}min" if minutes else text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0: {text!r}")
    return value
