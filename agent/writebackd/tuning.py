# SPDX-License-Identifier: GPL-2.0-or-later
"""Every constant of the law and the estimators: unit, reason, and source of the figure.

What half and double of those of the law do on disks drawn by seed is in
docs/research/2026-11-law.md, printed by `python -m tests.sim drawn constants`.  R is what the media
take of a flood, bytes per second.
"""

from __future__ import annotations

# ---- what is a flood ----

# Of a tick, while somebody waits behind a flood: a full write cache halves the syncs at least, and
# it is seen after two ticks.
HURRY = 0.5
# Bytes per second.  Journals, logs and page cleaning of a quiet host were seen at up to 1 MB/s, and
# disturb no sync.
FLOOD_RATE = 1 << 20
# Share of a tick that writers sleep for the limit, all together, from which on it sets their speed.
# One dd at the knee of a 250 MB/s array slept 20 to 80 % of the time; a writer slower than the
# device does not sleep at all.
HELD_BACK_SHARE = 0.1
# Bytes of the flusher that are in flight at a disk, in the mean over a tick, from which on the disk
# sets the flusher's speed: an array had 120 to 200 MB while its cache was full, and 9 to 46 while
# it filled; writers that are slower than their disk had less than 10.
QUEUED_BYTES = 16 << 20
# Of a tick.  A device whose cache is full is busy nearly all the time: 77 to 98 % were seen.  One
# writer that sleeps for so long was held all the while; several that bring a burst at once sleep
# as long together, and are done soon.  A flood that is on lasts at half of it.
BUSY_SHARE = 0.6
# Seconds.  What is over within a tick and the next is a burst: 1 s from the one to the other, and
# some for a timer that is late.
BURST_S = 1.25
# Seconds.  A shorter pause is none, as between two files of a copy.
GAP_S = 0.8
# Seconds.  1 GB of cache that takes 1 GB/s is full by then: a flood that nobody syncs beside runs
# at R.  And so long after a flood a controller destages (512 MB at 60 MB/s: 9 s), and its pages may
# be dirty.
CACHE_S = 10.0

# ---- is the cache full ----

# Share of the syncs' time that slow ones take.  By time a full cache shows 35 % and more, and one
# with room next to nothing; by count they overlap.
MARK = 0.2
# A sync is slow from so many times its unloaded latency on: what is ahead of it on the link takes
# that.
SLOW_MULTIPLE = 2.0
# Seconds.  A write cache answers within that, media do not: no sync is slow below it, and where
# none was seen unloaded it takes no longer.
UNLOADED_S = 1e-3
# With room a sync waits on the link for what is queued ahead of it: p99 was 0.14 to 0.37 of limit /
# rate, 0.42 to 0.75 without room.  Seconds at most: a cache takes 1 MB in 5 ms at 200 MB/s.
LINK_SHARE, LINK_MOST_S = 0.5, 5e-3
# Seconds.  The kernel follows a limit by two thirds in so long (3 to 4 s by nine tenths, 6.18).
FOLLOW_S = 1.5

# ---- R, and what a sync costs of it ----

# Seconds of a full cache whose median is R; and a slower disk shows itself in as many.
SHOWN_S = 3.0
# A limit is in force within so many times of what was asked for: before, what is seen is of another
# one.
IN_FORCE = 1.25
# Share of R that a slower disk falls below.
FELL = 0.9
# Share of R below which it may as well be a sweep over the syncs' scattered blocks, which takes the
# media for 2 to 3 s: there a second counts as so much of one.
DEEP = 0.25
# With room left for GAIN_S at so many times R, the disk has become faster.  A cache that takes
# 0.4 R for longer is rare, and is full soon after.
FASTER = 1.4
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
# Most of one change, down and up: where throughput is short the disk may have become slower.
CUT, RISE = 0.6, 1.4
# While R is not known: a step, and what it has to bring.
SEEK, PAYS = 3.0, 1.12
# Seconds of R: the largest limit while R is not known, which has to be found; the first one then;
# and the largest from there on.  The largest knee seen was 0.06 s, of a virtio disk; above it syncs
# wait longer and nobody is faster.  From the first one the limit gets to any knee between 0.007 and
# 0.1 s within 8 s; half and double of it cost 0.01 on drawn hosts.
SEEK_MOST_S, FIRST_S, MOST_S = 0.25, 0.03, 0.1
# Share of R that the objective may cost beside, seconds that it takes and is tried for, and after
# which it is tried again where it did not help.
EXTRA, TRY_S, TRY_AGAIN_S = 0.1, 20.0, 600.0
# Seconds.  No longer is a flood one of several waves, nor twice as long the pause between two.  So
# long a flood counts where nothing but its end would tell: where no fsync can be seen, and of a
# small cgroup; twice as long for a cap, which moves two limits when it comes and goes.
WAVE_S = 30.0
# Of the flood before, that a pause is as long as at least: in less nothing drains that helps, as in
# a tick without a flood.
PAUSE_LEAST = 0.1
# Of what the pause drains, that memory may take of a wave; and a wave is so much longer at most
# than the one before.
WAVE, WAVE_LONGER = 0.7, 1.25

# ---- who syncs ----

# Seconds.  Every host syncs a little (journald, chrony); demand is a rate over this time.
DEMAND_WINDOW_S = 10.0
# Seconds that demand outlives the last of its syncs without a flood, and a flood itself without
# demand: a limit kept for longer throttles every writer of the host, for syncs that may never come.
RELEASE_S = 5.0
# Bytes that a sync may write itself: a commit is some pages of log and of journal, on btrfs some
# nodes of 16 KiB, and twice.  Direct IO has their class; one of 1 MB for every four syncs, which
# this lets pass, does not move their median.
OWN_BYTES = 256 << 10
# Syncs (or writes) in a tick below which its median is no sample.
ENOUGH = 5
# Weight of a second, and of a tick while somebody syncs: about 20 s of memory, slow enough that a
# few loaded ticks taken for quiet do not shift it.
WEIGHT = 0.05
# Seconds.  What was not learned again for a month belongs to another use of the disk, or to a disk
# that is gone.
KEEP_S = 30 * 86400.0

# ---- one limit for all devices, and the way to it ----

# Seconds.  The kernel gives each device a part of the limit by its part of all completions, which
# halve in weight in this time (VM_COMPLETIONS_PERIOD_LEN in mm/page-writeback.c).
SHARE_HALF_S = 3.0
# Of the limit.  A device that has only begun to write has next to none; a limit made larger by more
# would let the others fill memory.
SHARE_LEAST = 0.1
# Of free memory and page cache, the largest limit: the default of vm.dirty_ratio.
DIRTYABLE_SHARE = 0.2
# A goal that moved by less is the same goal: the estimates it comes from are not more exact, and
# every write moves the kernel's own pacing.
DEADBAND = 0.1
# Times what is dirty or under writeback, on the way down: below it every writer stops.
HEADROOM = 1.005
# Bytes that are left to drain in a moment are no reason for a step of their own: 0.4 s on a stick
# of 10 MB/s, nothing on an array.  Where the flooded devices are known to drain more, what they
# drain in so many seconds, since near the end the flood brings in most of what drains: 130, 54, 25
# and 4 MB took 1.5 s of an array of 260 MB/s.  But no more than so many bytes, for somebody else's
# pages may be among what is dirty.
AT_ONCE_BYTES, AT_ONCE_S, AT_ONCE_MOST_BYTES = 4 << 20, 0.5, 128 << 20
# The background limit stays while it is between these shares: of what it should be, and of the
# limit (the kernel takes half of the limit for one above it).
BACKGROUND_LEAST, BACKGROUND_MOST = 0.6, 0.95
# Part of the global limit that all caps together are promised at most: the kernel refuses minima of
# 100 % (EINVAL).  And that a device with a ceiling of its own is, which may be idle for long.
MINIMA_SHARE, OWN_SHARE = 2, 16
# Caps of devices with a ceiling of their own: each takes reads and writes of sysfs.
MOST_OWN = 32
# Seconds.  What may have passed is tried anew: a cap that was refused (an earlier test on its way
# home, a ledger that could not be saved), and what is stuck, in which others' pages are counted.
AGAIN_S = 300.0
# Bytes: folios and write chunks.  A request that a disk completes between two resets moves no
# limit, and a cgroup with less is strangled (docs/reference/levers.md: what it then writes).
GRAIN_BYTES = 1 << 20
# Of R, what others may write beside a small cgroup: so much the background limit, which stays
# small, keeps up with.
OTHERS_SHARE = 0.25

# ---- pages that do not drain (estimate/hung_device.py) ----

# On a limit's way down what is dirty falls as long as anything drains.  Where so much of the limit
# is taken that writers are held back, and it has not fallen by so many bytes from its highest for
# so many seconds while a device completed nothing at all, it is stuck.
STUCK_TAKEN, STUCK_BYTES, STUCK_S = 0.9, 2 << 20, 3.0
# Of what stands there, that is written back at most meanwhile.  A flood keeps its device busy, or
# writes much more, through a small limit many times what it is.
STUCK_PART = 0.25
# ---- a pace in the place of the limit ----

# Share of its pace from which on a flood, or a cgroup of it, is held by it.
USES = 0.85
