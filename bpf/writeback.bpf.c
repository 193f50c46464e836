// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Counts what the agent decides on: block completions by class and latency,
 * syncs by device and latency, who dirties pages, who sleeps for it, and who
 * writes vm.dirty_*.
 *
 * Every program is optional ("?"): user space loads those that this kernel
 * takes.  Nothing here allocates, loops without bound or sends events; user
 * space reads the maps once a tick.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "compat.h"
#include "writeback.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct probe_config cfg SEC(".rodata.config");
struct probe_state shared;

/* ---- block requests ---------------------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* slots << shard_shift, set before loading */
	__type(key, __u32);
	__type(value, struct io_slot);
} io_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* as above when queue latency is asked for */
	__type(key, __u32);
	__type(value, struct queue_slot);
} queue_slots SEC(".maps");

/* Start times for queues that keep none: direct-mapped, verified by the
 * request's address, so a collision costs one sample and never a wrong one. */
#define STARTS 16384

struct start {
	__u64 rq;
	__u64 time_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STARTS);
	__type(key, __u32);
	__type(value, struct start);
} starts SEC(".maps");

static __always_inline __u32 start_index(struct request *rq)
{
	/* Requests lie in arrays, one per hardware queue, a few hundred bytes
	 * each: the tag spreads neighbours, the queue id separates the arrays. */
	return ((__u32)rq->tag + ((__u32)rq->q->id << 6) +
		(rq->mq_hctx ? rq->mq_hctx->queue_num << 10 : 0)) & (STARTS - 1);
}

static __always_inline __u64 hist_bucket(__u64 ns)
{
	__u64 value = ns >> HIST_UNIT_SHIFT, bucket = value;
	__u32 v, exponent = 0;

	if (value >= 1 << HIST_SUB_BITS) {
		/* The position of the highest bit, in five steps, not a loop. */
		v = value < 1U << 26 ? value : (1U << 26) - 1;
		value = v;
		if (v >> 16) { exponent += 16; v >>= 16; }
		if (v >> 8) { exponent += 8; v >>= 8; }
		if (v >> 4) { exponent += 4; v >>= 4; }
		if (v >> 2) { exponent += 2; v >>= 2; }
		exponent += v >> 1;
		bucket = ((exponent - HIST_SUB_BITS) << HIST_SUB_BITS) +
			 (value >> (exponent - HIST_SUB_BITS));
	}
	/* Always true, but only the compiler can see that: hide the value from
	 * it, so that the check stays in place for the verifier. */
	barrier_var(bucket);
	return bucket < HIST_BUCKETS ? bucket : HIST_BUCKETS - 1;
}

#define ADD(target, n) do {                                     \
	if (cfg.per_cpu)                                     \
		(target) += (n);                                \
	else                                                    \
		__sync_fetch_and_add(&(target), (n));           \
} while (0)

/* Classes as wbc_to_write_flags() and the journals mark them; -1: of no use
 * here (discard, zone management, passthrough). */
static __always_inline int io_class(__u32 flags)
{
	const __u32 sync = 1U << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC);
	const __u32 idle = 1U << bpf_core_enum_value(enum req_flag_bits, __REQ_IDLE);
	const __u32 meta = 1U << bpf_core_enum_value(enum req_flag_bits, __REQ_META);
	const __u32 background = 1U << bpf_core_enum_value(enum req_flag_bits, __REQ_BACKGROUND);

	switch (flags & 0xff) { /* REQ_OP_MASK */
	case REQ_OP_READ:
		return IO_READ;
	case REQ_OP_FLUSH:
		return IO_FLUSH;
	case REQ_OP_WRITE:
		if (flags & background || !(flags & sync))
			return IO_BACKGROUND_WRITE;
		if (flags & meta && flags & idle)
			return IO_JOURNAL;
		return IO_SYNC_WRITE;
	default:
		return -1;
	}
}

static __always_inline __u64 request_start(struct request *rq)
{
	/* Set when the request was handed to the driver, if the queue keeps
	 * statistics; reading it costs nothing. */
	__u64 own = rq->io_start_time_ns;
	struct start *start;
	__u32 index;

	/* Or the compiler merges this load with the map's below, and the verifier
	 * wants one kind of pointer per load. */
	barrier_var(own);
	if (own)
		return own;
	index = start_index(rq);
	start = bpf_map_lookup_elem(&starts, &index);
	if (start && start->rq == (__u64)rq) {
		start->rq = 0;
		return start->time_ns;
	}
	return 0;
}

SEC("?tp_btf/block_rq_complete")
int BPF_PROG(rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	struct gendisk *disk = request_disk(rq);
	struct io_slot *slot;
	__u64 start, sequence;
	__u32 index, dev;
	int class;

	class = io_class(rq->cmd_flags);
	if (class < 0 || !disk)
		return 0;
	/* The second completion of a write in a flush sequence carries no data. */
	if (class != IO_FLUSH && !nr_bytes)
		return 0;

	index = rq->q->id;
	if (index >= cfg.slots) {
		__sync_fetch_and_add(&shared.no_slot, 1);
		return 0;
	}
	index = (index << cfg.shard_shift) |
		(bpf_get_smp_processor_id() & cfg.shard_mask);
	slot = bpf_map_lookup_elem(&io_slots, &index);
	if (!slot)
		return 0;

	dev = disk->major << 20 | disk->first_minor;
	sequence = disk_sequence(disk);
	if (slot->dev != dev || slot->diskseq != sequence) {
		/* Another disk got this queue id; user space sees the change
		 * and takes the counts of this moment as its new zero. */
		slot->dev = dev;
		slot->diskseq = sequence;
	}

	ADD(slot->total[class].bytes, nr_bytes);
	if (nr_bytes < rq->__data_len)
		return 0; /* partial: the request goes on */
	ADD(slot->total[class].count, 1);

	start = request_start(rq);
	if (!start) {
		ADD(slot->unstamped, 1);
		return 0;
	}
	/* Clocks are read at different places: never count a negative time. */
	__u64 now = bpf_ktime_get_ns();

	ADD(slot->hist[class][hist_bucket(now > start ? now - start : 0)], 1);

	if (cfg.queue_latency) {
		struct queue_slot *queue = bpf_map_lookup_elem(&queue_slots, &index);
		__u64 queued = rq->start_time_ns;

		if (queue && queued)
			ADD(queue->hist[class][hist_bucket(start > queued ? start - queued : 0)], 1);
	}
	return 0;
}

static __always_inline int note_issue(struct request *rq)
{
	__u32 index = start_index(rq);
	struct start *start = bpf_map_lookup_elem(&starts, &index);

	if (start) {
		start->time_ns = bpf_ktime_get_ns();
		start->rq = (__u64)rq;
	}
	return 0;
}

/* Attached only where completions come without a start time. */
SEC("?tp_btf/block_rq_issue")
int BPF_PROG(rq_issue, struct request *rq)
{
	return note_issue(rq);
}

/* Before 5.11 (and 5.10.137) the queue came first.  Tried first: a new kernel
 * refuses it, while an old one would take a queue for a request. */
SEC("?tp_btf/block_rq_issue")
int BPF_PROG(rq_issue_old, struct request_queue *q, struct request *rq)
{
	return note_issue(rq);
}

/* ---- syncs ------------------------------------------------------------- */

enum owner {
	OWNER_FILESYSTEM, /* a hook pair on the filesystem's own function */
	OWNER_SYSCALL, /* closed when the syscall returns */
	OWNER_SYNCFS, /* a hook pair on sync_filesystem() */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct sync_start);
} syncs_inflight SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct sync_stats);
} syncs SEC(".maps");

static const struct sync_stats no_syncs;

static __always_inline __u32 inode_dev(struct inode *inode)
{
	/* A block device's own inode lives in bdevfs; its s_dev tells nothing. */
	if ((inode->i_mode & 0170000) == 0060000)
		return inode->i_rdev;
	return inode->i_sb->s_dev;
}

static __always_inline void sync_begin(__u32 dev, __u8 kind, __u8 owner)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct sync_start *open = bpf_map_lookup_elem(&syncs_inflight, &tid);
	struct sync_start start = {
		.start_ns = bpf_ktime_get_ns(),
		.dev = dev,
		.kind = kind,
		.owner = owner,
	};

	/* Inside another hook's sync the outer one measures.  One of the same
	 * owner cannot be running: it was left over, and is replaced. */
	if (open && open->owner != owner)
		return;
	if (bpf_map_update_elem(&syncs_inflight, &tid, &start, BPF_ANY))
		__sync_fetch_and_add(&shared.sync_lost, 1);
}

static __always_inline void sync_end(__u8 owner, int kind)
{
	__u32 tid = bpf_get_current_pid_tgid(), dev;
	struct sync_start *start = bpf_map_lookup_elem(&syncs_inflight, &tid);
	struct sync_stats *stats;
	__u64 begun, now;

	if (!start || start->owner != owner)
		return;
	dev = start->dev;
	begun = start->start_ns;
	if (kind < 0)
		kind = start->kind;
	bpf_map_delete_elem(&syncs_inflight, &tid);

	stats = bpf_map_lookup_elem(&syncs, &dev);
	if (!stats) {
		/* Fails when another CPU was first, which is as good. */
		bpf_map_update_elem(&syncs, &dev, &no_syncs, BPF_NOEXIST);
		stats = bpf_map_lookup_elem(&syncs, &dev);
		if (!stats) {
			__sync_fetch_and_add(&shared.sync_lost, 1);
			return;
		}
	}
	if (kind < 0 || kind >= SYNC_KINDS)
		return;
	now = bpf_ktime_get_ns();
	__u64 bucket = hist_bucket(now > begun ? now - begun : 0);

	__sync_fetch_and_add(&stats->count[kind], 1);
	if (kind == SYNC_SYNCFS)
		__sync_fetch_and_add(&stats->syncfs_hist[bucket], 1);
	else
		__sync_fetch_and_add(&stats->file_hist[bucket], 1);
}

#define FILE_SYNC(file, datasync)                                              \
	sync_begin(inode_dev((file)->f_mapping->host),                         \
		   (datasync) ? SYNC_FDATASYNC : SYNC_FSYNC, OWNER_FILESYSTEM)

/* First choice: the functions that f_op->fsync points to.  A hook on
 * vfs_fsync_range would miss fdatasync where the compiler inlined it. */
#define FSYNC_FENTRY(function)                                                 \
SEC("?fentry/" #function)                                                      \
int BPF_PROG(fentry_##function, struct file *file, loff_t start, loff_t end,   \
	     int datasync)                                                     \
{                                                                              \
	FILE_SYNC(file, datasync);                                             \
	return 0;                                                              \
}                                                                              \
SEC("?fexit/" #function)                                                       \
int BPF_PROG(fexit_##function)                                                 \
{                                                                              \
	sync_end(OWNER_FILESYSTEM, -1);                                        \
	return 0;                                                              \
}

FSYNC_FENTRY(ext4_sync_file)
FSYNC_FENTRY(xfs_file_fsync)
FSYNC_FENTRY(btrfs_sync_file)
FSYNC_FENTRY(f2fs_sync_file)
FSYNC_FENTRY(blkdev_fsync)

SEC("?fentry/sync_filesystem")
int BPF_PROG(fentry_sync_filesystem, struct super_block *sb)
{
	sync_begin(sb->s_dev, SYNC_SYNCFS, OWNER_SYNCFS);
	return 0;
}

SEC("?fexit/sync_filesystem")
int BPF_PROG(fexit_sync_filesystem)
{
	sync_end(OWNER_SYNCFS, -1);
	return 0;
}

/* Second choice: tracepoints of the filesystems; only ext4 has an exit. */
SEC("?tp_btf/ext4_sync_file_enter")
int BPF_PROG(tp_ext4_sync_file_enter, struct file *file, int datasync)
{
	FILE_SYNC(file, datasync);
	return 0;
}

SEC("?tp_btf/ext4_sync_file_exit")
int BPF_PROG(tp_ext4_sync_file_exit)
{
	sync_end(OWNER_FILESYSTEM, -1);
	return 0;
}

/* Third choice: kprobes; user space attaches the pair to each function. */
SEC("?kprobe")
int BPF_KPROBE(kprobe_fsync, struct file *file, loff_t start, loff_t end, int datasync)
{
	struct inode *inode = BPF_CORE_READ(file, f_mapping, host);
	__u32 dev;

	if ((BPF_CORE_READ(inode, i_mode) & 0170000) == 0060000)
		dev = BPF_CORE_READ(inode, i_rdev);
	else
		dev = BPF_CORE_READ(inode, i_sb, s_dev);
	sync_begin(dev, datasync ? SYNC_FDATASYNC : SYNC_FSYNC, OWNER_FILESYSTEM);
	return 0;
}

SEC("?kretprobe")
int BPF_KRETPROBE(kretprobe_fsync)
{
	sync_end(OWNER_FILESYSTEM, -1);
	return 0;
}

SEC("?kprobe")
int BPF_KPROBE(kprobe_syncfs, struct super_block *sb)
{
	sync_begin(BPF_CORE_READ(sb, s_dev), SYNC_SYNCFS, OWNER_SYNCFS);
	return 0;
}

SEC("?kretprobe")
int BPF_KRETPROBE(kretprobe_syncfs)
{
	sync_end(OWNER_SYNCFS, -1);
	return 0;
}

/* Last choice: syscalls.  Every syscall of the host pays for these hooks, and
 * what does not end in a syscall of its caller (io_uring's workers, kernel
 * threads) cannot be measured. */
#ifdef SYSCALL_NR

static __always_inline bool is_write(long nr)
{
	return nr == NR_write || nr == NR_pwrite64 || nr == NR_writev ||
	       nr == NR_pwritev || nr == NR_pwritev2;
}

SEC("?tp_btf/sys_enter")
int BPF_PROG(sys_enter, struct pt_regs *regs, long nr)
{
	struct task_struct *task;
	struct file **files, *file = NULL;
	struct inode *inode;
	unsigned int fd;
	__u32 dev;

	if (nr != NR_fsync && nr != NR_fdatasync && nr != NR_syncfs)
		return 0;
	task = bpf_get_current_task_btf();
	if (SYSCALL_IS_COMPAT(task))
		return 0;
	fd = SYSCALL_ARG0(regs);
	if (fd >= BPF_CORE_READ(task, files, fdt, max_fds))
		return 0;
	files = BPF_CORE_READ(task, files, fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), &files[fd]);
	if (!file)
		return 0;
	if (nr == NR_syncfs) {
		sync_begin(BPF_CORE_READ(file, f_inode, i_sb, s_dev), SYNC_SYNCFS, OWNER_SYSCALL);
		return 0;
	}
	inode = BPF_CORE_READ(file, f_mapping, host);
	if ((BPF_CORE_READ(inode, i_mode) & 0170000) == 0060000)
		dev = BPF_CORE_READ(inode, i_rdev);
	else
		dev = BPF_CORE_READ(inode, i_sb, s_dev);
	sync_begin(dev, nr == NR_fdatasync ? SYNC_FDATASYNC : SYNC_FSYNC, OWNER_SYSCALL);
	return 0;
}

SEC("?tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *regs, long ret)
{
	long nr = SYSCALL_NR(regs);

	if (nr == NR_fsync || nr == NR_fdatasync || nr == NR_syncfs || nr == NR_msync)
		sync_end(OWNER_SYSCALL, -1);
	else if (is_write(nr))
		sync_end(OWNER_SYSCALL, -1);
	return 0;
}

/* Filesystems with an entry tracepoint only: it shows the O_DSYNC writes and
 * msyncs that the filter on sys_enter does not. */
static __always_inline int entry_only(struct inode *inode, __u8 kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	long nr = SYSCALL_NR(regs);
	bool seen = nr == NR_fsync || nr == NR_fdatasync || nr == NR_msync || is_write(nr);

	/* PF_KTHREAD, PF_IO_WORKER: no syscall of its own will return. */
	if (task->flags & (0x00200000 | 0x00000010) || SYSCALL_IS_COMPAT(task) || !seen) {
		__sync_fetch_and_add(&shared.sync_unmatched, 1);
		return 0;
	}
	if (nr == NR_fsync || nr == NR_fdatasync)
		return 0; /* sys_enter has opened it */
	sync_begin(inode_dev(inode), kind, OWNER_SYSCALL);
	return 0;
}

SEC("?tp_btf/xfs_file_fsync")
int BPF_PROG(tp_xfs_file_fsync, struct xfs_inode *ip)
{
	return entry_only(&((struct xfs_inode___any *)ip)->i_vnode, SYNC_FDATASYNC);
}

SEC("?tp_btf/btrfs_sync_file")
int BPF_PROG(tp_btrfs_sync_file, struct file *file, int datasync)
{
	return entry_only(file->f_mapping->host, datasync ? SYNC_FDATASYNC : SYNC_FSYNC);
}

#endif

/* ---- who dirties, who waits -------------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct dirtier);
} dirtiers SEC(".maps");

/* The thread a CPU looked at last, and the thread's count at that time. */
struct last_look {
	__u64 bytes;
	__u32 tid;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct last_look);
} last_looks SEC(".maps");

static __always_inline struct dirtier *dirtier(struct task_struct *task)
{
	__u32 tid = task->pid;
	struct dirtier *entry = bpf_map_lookup_elem(&dirtiers, &tid);

	if (entry && entry->task_start_ns == task->start_time)
		return entry;
	struct dirtier fresh = {
		.task_start_ns = task->start_time,
		.first_bytes = task->ioac.write_bytes,
		.bytes = task->ioac.write_bytes,
		.cgroup_id = bpf_get_current_cgroup_id(),
		.tgid = task->tgid,
	};
	bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
	bpf_map_update_elem(&dirtiers, &tid, &fresh, BPF_ANY);
	return bpf_map_lookup_elem(&dirtiers, &tid);
}

/* The kernel counts what each thread dirtied (task_io_account_write).  That
 * exact count is copied when another thread comes up on the CPU or this one has
 * dirtied another grain; in between a folio costs two loads and a comparison. */
static __always_inline int note_dirty(struct address_space *mapping)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 bytes = task->ioac.write_bytes;
	struct last_look *last;
	struct dirtier *entry;
	__u32 zero = 0;

	last = bpf_map_lookup_elem(&last_looks, &zero);
	if (!last || !mapping)
		return 0;
	if (last->tid == (__u32)task->pid && bytes - last->bytes < cfg.dirty_grain)
		return 0;
	last->tid = task->pid;
	last->bytes = bytes;
	entry = dirtier(task);
	if (entry) {
		entry->bytes = bytes;
		entry->dev = inode_dev(mapping->host);
		/* Every time: a shell's child has the shell's name until exec. */
		bpf_get_current_comm(entry->comm, sizeof(entry->comm));
	}
	return 0;
}

SEC("?tp_btf/writeback_dirty_folio")
int BPF_PROG(dirty_folio, struct folio *folio, struct address_space *mapping)
{
	return note_dirty(mapping);
}

/* Its name before 5.18. */
SEC("?tp_btf/writeback_dirty_page")
int BPF_PROG(dirty_page, struct page *page, struct address_space *mapping)
{
	return note_dirty(mapping);
}

static __always_inline int note_throttled(long pause)
{
	struct dirtier *entry;

	if (pause <= 0)
		return 0; /* let go without a sleep */
	entry = dirtier(bpf_get_current_task_btf());
	if (entry) {
		entry->throttled_ns += (__u64)pause * cfg.jiffy_ns;
		entry->throttled++;
	}
	return 0;
}

/* `pause`, in jiffies, is the 11th of 12 arguments up to 6.12 and the 7th of 8
 * in 6.18.  User space tries the old form first: a new kernel refuses it, while
 * an old one would accept the new form and hand out a rate limit instead. */
SEC("?tp_btf/balance_dirty_pages")
int throttled_old(unsigned long long *args)
{
	return note_throttled(args[10]);
}

SEC("?tp_btf/balance_dirty_pages")
int throttled(unsigned long long *args)
{
	return note_throttled(args[6]);
}

/* ---- who writes vm.dirty_* --------------------------------------------- */

SEC("?cgroup/sysctl")
int sysctl_write(struct bpf_sysctl *ctx)
{
	struct task_struct *task;
	struct sysctl_write *entry;
	const char prefix[] = "vm/dirty_";
	char name[44];
	__u64 n;

	if (!ctx->write || bpf_sysctl_get_name(ctx, name, sizeof(name), 0) < 0)
		return 1;
	for (unsigned int i = 0; i < sizeof(prefix) - 1; i++)
		if (name[i] != prefix[i])
			return 1;
	task = bpf_get_current_task_btf();
	n = __sync_fetch_and_add(&shared.sysctl_writes, 1);
	entry = &shared.ring[n % SYSCTL_WRITES];
	entry->time_ns = bpf_ktime_get_ns();
	entry->pid = task->tgid;
	bpf_probe_read_kernel(entry->comm, sizeof(entry->comm), task->comm);
	__builtin_memcpy(entry->name, name, sizeof(entry->name));
	__builtin_memset(entry->value, 0, sizeof(entry->value));
	bpf_sysctl_get_new_value(ctx, entry->value, sizeof(entry->value));
	return 1; /* watching, never refusing */
}

/* Costs nothing but the call: benchmarks subtract it. */
SEC("?tp_btf/block_rq_complete")
int BPF_PROG(empty, struct request *rq)
{
	return 0;
}
