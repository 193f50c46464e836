/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the BPF programs and user space share.  The Python side mirrors these
 * structures with ctypes (agent/writebackd/kernel/bpf_layout.py) and refuses to
 * run when the sizes differ.
 */
#ifndef PROBE_WRITEBACK_H
#define PROBE_WRITEBACK_H

/* Latency in units of 2^10 ns: exact below 8, then 8 buckets per octave up to
 * 64 s.  Shifts instead of divisions, 12.5 % wide at most. */
#define HIST_BUCKETS 192
#define HIST_UNIT_SHIFT 10
#define HIST_SUB_BITS 3

/* Reading the clock is two thirds of what a completion costs.  So many a jiffy
 * of a class are timed one by one (8 000 a second on each CPU at 250 Hz);
 * beyond, every fourth is, and stands for the three after it. */
#define TIMED_PER_JIFFY 32
#define TIMED_EVERY 4

enum io_class {
	IO_SYNC_WRITE,
	IO_BACKGROUND_WRITE,
	IO_READ,
	IO_JOURNAL,
	IO_FLUSH,
	IO_CLASSES,
};

/* One device on one shard of the CPUs; slots are found by request_queue.id.
 * What every completion touches comes first, in two cache lines.  3968 bytes: a
 * whole number of lines, so shards do not share one. */
struct io_slot {
	__u64 diskseq;
	__u32 dev; /* kernel dev_t: major << 20 | minor */
	__u32 unstamped; /* completions without a start time: not in a histogram */
	struct {
		__u64 count;
		__u64 bytes;
	} total[IO_CLASSES];
	__u64 jiffy; /* the current one, and the class's completions in it */
	__u16 in_jiffy[IO_CLASSES];
	__u8 last_bucket[IO_CLASSES]; /* where the class was timed last */
	__u8 pad[9];
	__u32 hist[IO_CLASSES][HIST_BUCKETS];
};

struct queue_slot {
	__u32 hist[IO_CLASSES][HIST_BUCKETS];
};

enum sync_kind {
	SYNC_FSYNC, /* fsync, O_SYNC */
	SYNC_FDATASYNC, /* fdatasync, O_DSYNC, msync */
	SYNC_SYNCFS,
	SYNC_KINDS,
};

/* Per s_dev (or bdev): file syncs in one histogram, syncfs in its own, since
 * the latter takes as long as everything dirty and would drown a p99.  A commit
 * is a file sync and the sleep in balance_dirty_pages() before it. */
struct sync_stats {
	__u64 count[SYNC_KINDS];
	__u64 throttled_ns; /* the sleep in commit_hist, together */
	__u32 file_hist[HIST_BUCKETS];
	__u32 syncfs_hist[HIST_BUCKETS];
	__u32 commit_hist[HIST_BUCKETS];
};

/* A sync that has not returned; key is the thread id. */
struct sync_start {
	__u64 start_ns;
	__u64 slept_ns; /* what it waited for already: see take_sleep() */
	__u32 dev;
	__u8 kind;
	__u8 owner; /* which hook opened it, and alone may close it */
	__u16 pad;
};

/* Syncs that a cgroup has begun, of any kind, per filesystem device.  Begun, not
 * done: one that is stuck tells as well that its caller waits. */
struct cgroup_key {
	__u64 cgroup_id;
	__u32 dev;
	__u32 pad;
};

struct cgroup_syncs {
	__u64 count;
	__u64 last_ns; /* tells an entry that was removed and came back */
	__u32 tgid; /* of the last one: user space finds the cgroup's path by it */
	__u32 pad;
};

/* A thread that dirties pages or sleeps for it; key is the thread id. */
struct dirtier {
	__u64 task_start_ns; /* tells a reused thread id */
	__u64 first_bytes; /* the thread's own count when first seen */
	__u64 bytes; /* the same when last seen */
	__u64 throttled_ns;
	__u64 attached_ns; /* of these, what a sync or the process has taken */
	__u64 synced_ns; /* when its last file sync began; 0: none was seen */
	__u64 cgroup_id;
	__u32 throttled;
	__u32 tgid;
	__u32 dev; /* s_dev of what it dirtied last */
	__u32 synced_dev; /* and of what it synced last */
	char comm[16];
};

/* A process of several threads that syncs; key is its tgid. */
struct committer {
	__u64 leader_start_ns; /* tells a reused process id */
	__u64 synced_ns; /* when its last file sync began */
	__u64 throttled_ns; /* sleep of threads that do not sync */
	__u64 attached_ns; /* of it, what a sync has taken */
	__u32 dev; /* of the last sync */
	__u32 pad;
};

struct probe_config {
	__u32 slots; /* request_queue ids that have a slot */
	__u32 shard_mask; /* shards - 1, a power of two less one */
	__u32 shard_shift;
	__u32 per_cpu; /* 1: a shard has one CPU only, plain adds suffice */
	__u32 queue_latency; /* 1: fill the queue histograms */
	__u32 dirty_grain; /* bytes a thread dirties between two looks at it */
	__u32 jiffy_ns;
	__u32 sees_sleep; /* 1: balance_dirty_pages is watched */
	__u32 without_disk; /* 1: count syncs of filesystems without a block device */
	__u32 pad;
};

#define SYSCTL_WRITES 16 /* that user space, which looks every tick, can find */

/* The command line is taken here: a sysctl(8) is gone long before the next tick. */
struct sysctl_write {
	__u64 cgroup_id;
	__u32 pid;
	char comm[16];
	char name[44];
	char value[24];
	char cmdline[128]; /* its start, words parted by NUL */
};

struct probe_state {
	__u64 no_slot; /* completions of queues beyond the slots */
	__u64 sync_lost; /* syncs whose table was full */
	__u64 sync_unmatched; /* syncs entered where their end cannot be seen */
	__u64 no_room; /* looks at threads and cgroups whose table was full */
	__u64 sleep_lost; /* processes that sync whose table was full */
};

#endif
