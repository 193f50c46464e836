# SPDX-License-Identifier: GPL-2.0-or-later
"""Constants of the control law and its estimators: unit, meaning, reason, source of the figure.

Words used below:

- R is the drain rate: the bytes per second that the media write of a flood, whatever a write cache
  accepts for a while.
- A flood is background writeback that lasts; see estimate/drain.py.
- "Full" means that syncs wait for the media, because the write cache is full or there is none.

`python -m tests.sim drawn constants` prints what half and double of each constant bring on
simulated hosts.
"""

from __future__ import annotations

# ---- what is a flood ----

# Factor on the tick interval while programs sync during a flood: a full write cache cuts the fsync
# rate by half or more, and it takes two ticks to detect one.
HURRY = 0.5
# Bytes per second.  Background writeback below this rate is not a flood.  Journals, logs and page
# cleaning wrote up to 1 MB/s on quiet hosts and delayed no fsync.
FLOOD_RATE = 1 << 20
# Share of a tick, summed over all writers.  If writers sleep in balance_dirty_pages() for longer,
# the limit sets their speed.  At the knee of a 250 MB/s array one dd slept 20 to 80 % of the time;
# a writer slower than the device does not sleep at all.
HELD_BACK_SHARE = 0.1
# Bytes of the flusher in flight at one disk, averaged over a tick.  With more than this the disk
# sets the flusher's speed: an array had 120 to 200 MB in flight while its cache was full and 9 to
# 46 MB while it filled; writers slower than their disk had less than 10.
QUEUED_BYTES = 16 << 20
# Share of a tick.  A flood counts only if the device is busy, or one writer sleeps, for longer: a
# device with a full cache was busy 77 to 98 % of the time.  The longest sleep of one writer counts,
# not the sum: the writers of a short burst together sleep that long as well.  A flood goes on while
# the device is busy for half of this.
BUSY_SHARE = 0.6
# Seconds.  A shorter flood is a burst and ignored: one tick of 1 s, and 0.25 s for a late timer.
BURST_S = 1.25
# Seconds.  A shorter pause does not end a flood: a copy pauses that long between two files.
GAP_S = 0.8
# Seconds of flood after which a write cache is assumed full, even without syncs: 1 GB at 1 GB/s.
# From then on the device's rate is taken for R.  Also the time after a flood during which the
# device may still be writing back (512 MB at 60 MB/s take 9 s) and nothing counts as unloaded.
CACHE_S = 10.0

# ---- is the cache full ----

# Share of the total time of syncs.  If slow syncs take more, the cache is full.  A full cache shows
# 0.35 or more, one with room almost 0.  Shares of the number of syncs overlap, so time is used.
MARK = 0.2
# The same under a pace.  io.max lets a flood through in slices of 0.1 s, and a sync may wait for
# one on the link: 1 % of them took 20 to 45 ms, 0.35 of all the time, with room in the cache; 0.9
# or more without.  Half of it takes a cache with room for full, double misses a full one.
MARK_PACED = 0.45
# Multiple of the unloaded latency.  A sync that takes longer is slow.  Below that it may only have
# waited on the link for one request ahead of it.
SLOW_MULTIPLE = 2.0
# Seconds.  A write cache answers faster than this, media do not.  No sync below it is slow, and an
# unloaded latency that was not measured is assumed to be this.
UNLOADED_S = 1e-3
# Share of limit / rate, and its upper bound in seconds: how long a sync may wait on the link for
# the data queued ahead of it and not be slow.  p99 was 0.14 to 0.37 of limit / rate with room in
# the cache, and 0.42 to 0.75 without.  5 ms is the time for 1 MB at 200 MB/s.
LINK_SHARE, LINK_MOST_S = 0.5, 5e-3
# Seconds.  Time constant (63 %) with which the write rate follows a new limit; the kernel takes 3
# to 4 s for 90 % (measured on 6.18).
FOLLOW_S = 1.5

# ---- R, and what a sync costs of it ----

# Seconds.  R is the median rate over this time with a full cache and follows a higher one with this
# time constant, and a disk counts as slower after this time below FELL.
SHOWN_S = 3.0
# Factor.  A limit is in force while the kernel's limit is within this factor of the requested one.
# Outside it the measured rate belongs to another limit.
IN_FORCE = 1.25
# Share of R.  With a full cache, a rate below this share of what syncs leave means a slower disk.
# Also the share of a tick that a disk must be busy for QUEUED_BYTES to count.
FELL = 0.9
# Share of R.  A rate below it may be an array writing back the scattered blocks of syncs, which
# occupies the media for 2 to 8 s, rather than a slower disk.  So a second of it counts as this
# share of a second towards SHOWN_S.  A first R takes SHOWN_S by this share where the rates that
# show it differ by more than this factor.
DEEP = 0.25
# Seconds for which a measured R is believed: with this time constant it falls to a slightly lower
# rate (part of the rate first measured was the cache's), and so often twice the limit tests it.
TRUST_S = 60.0
# Seconds.  The cost of a sync is averaged over this time.  The media pay for syncs in sweeps, when
# the array writes back their scattered blocks every 8 to 9 s, so it must span several sweeps.
PRICE_S = 30.0

# ---- the limit ----

# Factors on `allowed-delay`, by the policy's `prefer`.
PREFER = {"latency": 0.5, "balanced": 1.0, "throughput": 2.0}
# Seconds between two steps of the limit while R is unknown.  Must exceed FOLLOW_S, or the effect
# measured is that of the previous limit.
EVERY_S = 2.0
# Factors.  SEEK: of one step while R is unknown, of the delay that the limit goes up to anyway, and
# the most that a limit is above its knee once R is known.  PAYS: beyond that delay, what the step
# before must have raised the rate by.
SEEK, PAYS = 2.0, 1.12
# Seconds.  The largest limit while R is unknown, in terms of the rate that it lets in.  The largest
# knee seen was 0.06 s (a virtio disk).
MOST_S = 0.1
# Seconds.  A limit that is worth more than this at the rate that comes lets in all that the disk
# takes, so that the rate shows R.  Smaller ones may hold the flood themselves: the kernel needed 7
# ms of R on one host and 18 on a busy one.
LETS_IN_S = 24e-3
# Shares of R, and seconds.  A flood that gets less than LEAST over CYCLE_S gets a larger limit,
# and above the mean of LEAST and FELL a smaller one again: below it throughput is worth more than
# the commits that it costs.  A destage sweep of an array takes the media for 2 to 3 s of every 9,
# so CYCLE_S must span one.
# So do commits that sleep in write() for more than LEAST of their time: under 1 MB two threads
# slept 87 to 92 % and four 94 to 98 %; one slept 57 % and was better off there.  Of four on one
# file one slept 97 % of all time, and the others waited for its lock, which is not seen.
LEAST, CYCLE_S = 0.8, 10.0
# Seconds.  How long a flood is remembered where only its end could show that it is over: on devices
# whose fsync is not visible, and for small cgroups.  Twice that for device limits, because
# setting or removing one moves two limits.
WAVE_S = 30.0

# ---- who syncs ----

# Seconds.  The commit rate is averaged over this time.
DEMAND_WINDOW_S = 10.0
# Ticks with syncs, and the most seconds between two of them, that make a program that commits
# regularly: one that commits every 10 s is protected from its third commit on.  A lone sync(1), or
# a service that syncs every few minutes, never is.
REGULAR, REGULAR_GAP_S = 3, 12.0
# Syncs within DEMAND_WINDOW_S that are demand at once: no service syncs as much by itself.
BUSY_SYNCS = 50
# Seconds.  How long demand outlives the last sync if there is no flood, and a flood is remembered
# if there is no demand.  A limit kept for longer throttles every writer of the host for syncs that
# may never come.
RELEASE_S = 5.0
# Bytes that one sync may write itself: some pages of log and journal, or on btrfs some 16 KiB nodes
# twice.  More than that is other direct IO, which has the same request class.  One 1 MB write for
# every four syncs stays below the bound, but does not shift the median latency.
OWN_BYTES = 256 << 10
# Number of syncs (or writes).  The median of a tick with fewer is not used.
ENOUGH = 5
# Weight of one second, or of one tick shortened by HURRY, in the average of unloaded latencies:
# about 20 s of memory.  A few loaded ticks mistaken for quiet ones do not shift it.
WEIGHT = 0.05
# Seconds.  Learned values not confirmed for a month are dropped: the disk is gone, or used for
# something else.
KEEP_S = 30 * 86400.0

# ---- one limit for all devices, and the way to it ----

# Seconds.  The kernel divides the limit among devices by their shares of recent write completions,
# whose weight halves in this time (VM_COMPLETIONS_PERIOD_LEN in mm/page-writeback.c).
SHARE_HALF_S = 3.0
# Share of the limit assumed for a device at least.  A device that has just begun to write has
# almost none; a limit enlarged to make up for that would let other devices fill memory.
SHARE_LEAST = 0.1
# Share of free memory plus page cache: the largest limit ever set.  The default of vm.dirty_ratio.
DIRTYABLE_SHARE = 0.2
# Share of the goal.  A smaller change is ignored: the estimates are no more exact, and every write
# to the limits disturbs the kernel's own pacing.
DEADBAND = 0.1
# Multiple of dirty plus writeback bytes.  A falling limit is not set below this: below the amount
# of dirty memory the kernel blocks every buffered writer.
HEADROOM = 1.005
# The last step down is taken at once if little is left to drain: AT_ONCE_BYTES, which take 0.4 s on
# a 10 MB/s USB stick, or what the slowest flooded device drains in AT_ONCE_S, where known, but at
# most AT_ONCE_MOST_BYTES, since part of it may belong to other devices.  Without this the end takes
# long, because the flood refills most of what drains: on a 260 MB/s array the steps at 130, 54, 25
# and 4 MB took 1.5 s.
AT_ONCE_BYTES, AT_ONCE_S, AT_ONCE_MOST_BYTES = 4 << 20, 0.5, 128 << 20
# Divisors of the lowest limit.  The minimum shares (min_bytes) of all device limits together are at
# most 1 / MINIMA_SHARE of it: the kernel refuses a sum of 100 % (EINVAL).  That of a device with a
# ceiling of its own is at most 1 / OWN_SHARE, since the device may be idle for long.
MINIMA_SHARE, OWN_SHARE = 2, 16
# Number of devices with a ceiling of their own that get a limit: each costs sysfs reads and writes.
MOST_OWN = 32
# Seconds after which a temporary problem is tried again: a device limit that was refused (an
# earlier self-test not undone yet, a ledger that could not be saved), and stuck pages, whose count
# includes pages of other devices.
AGAIN_S = 300.0
# Bytes: the size of the largest folios and write chunks.  A cgroup whose share of the limit is less
# is strangled: one with 80 kB wrote 1.9 MB/s instead of 87 (6.1, docs/reference/levers.md).  The
# limit makes room for stuck pages in multiples of this, so that one request that a hung disk
# completes between two resets does not move it.
GRAIN_BYTES = 1 << 20
# Share of R that other writers may add while the limit is raised for a small cgroup.  The
# background limit, which stays small, keeps up with that.
OTHERS_SHARE = 0.25

# ---- pages that do not drain (estimate/hung_device.py) ----

# Share of the limit, bytes, seconds.  Dirty pages are stuck if they take STUCK_TAKEN of the limit,
# so that writers are throttled, and have not fallen by STUCK_BYTES from their maximum for STUCK_S,
# while a device with requests in flight completes none.  As long as anything drains they fall.
STUCK_TAKEN, STUCK_BYTES, STUCK_S = 0.9, 2 << 20, 3.0
# Share of the dirty pages.  If more than that was written back in the meantime, they are a flood
# and not stuck: through a small limit a flood writes many times the limit.
STUCK_PART = 0.25

# ---- a pace in the place of the limit ----

# Share of its pace (io.max).  A flood, or a cgroup of it, that writes more is held back by it.
USES = 0.85
# Share of R that syncs may cost, by the policy's `prefer`.  In theory 1 / (1 + e) is best, with
# e = 2, 4, 8: 1/3, 1/5, 1/9.  With 1/4 a modelled array had no slow second in a minute, with 1/5
# from its 32nd second on: what syncs get beyond that saves them the sweeps of a full cache.
SPEND = {"latency": 1 / 3, "balanced": 1 / 4, "throughput": 1 / 7}
# 1 / s^2.  After t seconds in which the cache had room, the target rate is 1 + this times t^2 times
# as large, to detect faster disks: one 1.4 times as fast after 40 s.  Where the disk is not, that
# fills the cache: with four times this an array had room for 26 s and then a stall of two.
CREEP = 0.00025
# Factors: the largest single decrease and increase of a pace.  Large cuts are risky: low
# throughput may also mean a slower disk.
CUT, RISE = 0.6, 1.4
