# SPDX-License-Identifier: GPL-2.0-or-later
"""The values that flow through one tick, and what is remembered between two.

    Sample -> Estimate -> Decision -> Action

All are frozen: a decision can be explained, stored and recomputed only if nobody changes what it
was based on.  Units are in the names: `_s` seconds, `_bytes` bytes, `_rate` bytes or operations
per second, `_share` a fraction of one.  `None` means "not known", never zero.

Memory lives here and not beside its owners, because estimate/ reads what control/ remembers and
may not import it.  What only one package needs is beside its owner (alerts/detector_memory.py).
"""
