# SPDX-License-Identifier: GPL-2.0-or-later
"""Every constant of the law and of what it measures: unit, reason, and where the figure is from.

What half and double of each do on disks drawn by seed is in docs/research/2026-11-law.md, printed
by `python -m tests.sim drawn constants`.  R is what the media take of a flood, bytes per second.
"""

from __future__ import annotations

# ---- what is a flood (estimate/drain.py) ----

# Bytes per second.  Journals, logs and page cleaning of a quiet host were seen at up to 1 MB/s.
FLOOD_RATE = 1 << 20
# Share of a tick that writers sleep for the limit, all together, from which on it holds somebody
# back.  One throttled writer sleeps most of the time.
THROTTLED_SHARE = 0.05
# From here on the limit sets the writers' speed.  One dd at the knee of a 250 MB/s array slept 20
# to 80 % of the time; a writer slower than the device does not sleep at all.
HELD_BACK_SHARE = 0.1
# The writer that slept most of a tick slept for so much of it: the limit held the flood all the
# while.  Several that bring a burst at once sleep as long together and are done soon.
HELD_SHARE = 0.5
# A device whose cache is full is busy nearly all the time: 77 to 98 % were seen.
BUSY_SHARE = 0.6
# Seconds.  A flood that nobody syncs beside, and that keeps the device busy for longer, runs at R:
# 1 GB of cache that takes 1 GB/s is full by then.
UNWATCHED_S = 10.0

# ---- is the cache full ----

# Share of the syncs' time that slow ones take.  By time a full cache shows 35 % and more, and one
# with room next to nothing; by count they overlap.
MARK = 0.2
# A sync is slow from so many times its unloaded latency on, and from half a millisecond: what is
# ahead of it on the link takes that.
SLOW_MULTIPLE = 4.0
SLOW_LEAST_S = 0.5e-3
# Seconds.  Where no sync was seen unloaded: a write cache answers within that, media do not.
UNLOADED_S = 1e-3
# With room a sync waits on the link for what is queued ahead of it: p99 was 0.14 to 0.37 of limit /
# rate, 0.42 to 0.75 without room.  Seconds at most: a cache takes 1 MB in 5 ms at 200 MB/s.
LINK_SHARE, LINK_MOST_S = 0.3, 5e-3
# Seconds.  The kernel follows a limit by two thirds in so long (3 to 4 s by nine tenths, 6.18).
FOLLOW_S = 1.5

# ---- R, and what a sync costs of it ----

# Seconds of a full cache whose mean is R; and a slower disk shows itself in as many.
SHOWN_S = 3.0
# Share of R that a slower disk falls below, and below which it may as well be a sweep over the
# syncs' scattered blocks, which take the media for 2 to 3 s: there a second counts as so much.
FELL, DEEP, DEEP_COUNTS = 0.9, 0.25, 0.3
# With room left for so long at so many times R, the disk has become faster.  A cache that takes
# 0.4 R for longer is rare, and is full soon after.
FASTER, FASTER_S = 1.4, 5.0
# Share of R that a limit has to let in to be enough for it.
NEAR = 0.97
# Seconds in which R follows a higher rate of a full cache by two thirds: under a large limit syncs
# wait on the link as well, and look as behind a full cache that takes 1.4 R for some seconds.
GAIN_S = 5.0
# Seconds in which R comes down by two thirds to a rate that is a little lower: what a first look
# took for R was partly the cache's.
FADE_S = 60.0
# Seconds.  What a sync leaves in the cache is paid for by sweeps, every 8 to 9 s: the price is a
# mean over several.
PRICE_S = 30.0

# ---- the limit ----

# Share of R that syncs may cost, by the policy's `prefer`.  1 / (1 + e), for e of 2, 4 and 8, would
# be best if each part bought as many syncs; the last buys few, since they also wait for processors
# and the link.
SPEND = {"latency": 1 / 4, "balanced": 1 / 7, "throughput": 1 / 10}
# While nothing is full the flood gets more and more, by so much of R times seconds squared: so
# faster disks are found, in 20 s one that is 1.4 times as fast.
CREEP = 0.001
# Seconds between two changes of the limit: less than FOLLOW_S would judge the one before.
EVERY_S = 2.0
# Most of one change: down, up, and up because throughput is short, which may be a slower disk.
CUT, RISE, RISE_SHORT = 0.6, 2.0, 1.4
# While R is not known: a step, and what it has to bring.
SEEK, PAYS = 3.0, 1.12
# Seconds of R, the largest limit: while R is not known, which has to be found, and then.  The
# largest knee seen was 0.06 s, of a virtio disk; above it syncs wait longer and nobody is faster.
SEEK_MOST_S, MOST_S = 0.25, 0.1
# Share of R that the objective may cost beside, seconds that it takes and is tried for, and after
# which it is tried again where it did not help.
EXTRA, TRY_S, TRY_AGAIN_S = 0.1, 20.0, 600.0
# Seconds.  No longer is a flood one of several waves, nor twice as long the pause between two.
WAVE_S = 30.0
# Of the flood before, that a pause is as long as at least: in less nothing drains that helps, as in
# a tick without a flood.
PAUSE_LEAST = 0.1
# Of what the pause drains, that memory may take of a wave; and a wave is so much longer at most
# than the one before.
WAVE, WAVE_LONGER = 0.7, 1.25
