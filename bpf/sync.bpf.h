/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Syncs: how long they take, and those that have not returned. */

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

/* As `dirtiers`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct cgroup_key);
	__type(value, struct cgroup_syncs);
} cgroup_syncs SEC(".maps");

static __always_inline void note_syncing_cgroup(__u32 dev, __u64 now)
{
	struct cgroup_key key = { .cgroup_id = bpf_get_current_cgroup_id(), .dev = dev };
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct cgroup_syncs *entry = bpf_map_lookup_elem(MAP(cgroup_syncs), &key);

	if (entry) {
		__sync_fetch_and_add(&entry->count, 1);
		entry->last_ns = now;
		entry->tgid = tgid;
		return;
	}
	struct cgroup_syncs first = { .count = 1, .last_ns = now, .tgid = tgid };
	if (bpf_map_update_elem(MAP(cgroup_syncs), &key, &first, BPF_ANY))
		__sync_fetch_and_add(&shared.no_room, 1);
}

/* 0 for a filesystem without a block device, as tmpfs, FUSE and NFS are: any user
 * may have these by the thousand, and no limit is set for them.  btrfs has disks
 * and names none. */
#define BTRFS_SUPER_MAGIC 0x9123683E
#define DISK_DEV(READ, sb)                                           \
	(cfg.without_disk || READ(sb, s_bdev) ||                     \
	 READ(sb, s_magic) == BTRFS_SUPER_MAGIC ? READ(sb, s_dev) : 0)

static __always_inline __u32 synced_dev(struct inode *inode)
{
	struct super_block *sb = FIELD(inode, i_sb);

	/* A block device's own inode lives in bdevfs; its s_dev tells nothing. */
	if ((FIELD(inode, i_mode) & 0170000) == 0060000)
		return FIELD(inode, i_rdev);
	return DISK_DEV(FIELD, sb);
}

/* As above, of a pointer whose type the verifier does not know. */
static __always_inline __u32 copied_dev(struct inode *inode)
{
	struct super_block *sb = BPF_CORE_READ(inode, i_sb);

	if ((BPF_CORE_READ(inode, i_mode) & 0170000) == 0060000)
		return BPF_CORE_READ(inode, i_rdev);
	return DISK_DEV(BPF_CORE_READ, sb);
}

static __always_inline void sync_begin(__u32 dev, __u8 kind, __u8 owner)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct sync_start *open = bpf_map_lookup_elem(MAP(syncs_inflight), &tid);
	struct sync_start start = {
		.start_ns = bpf_ktime_get_ns(),
		.dev = dev,
		.kind = kind,
		.owner = owner,
	};

	if (!dev) {
		if (open && open->owner == owner)
			bpf_map_delete_elem(MAP(syncs_inflight), &tid); /* left over */
		return;
	}
	/* Inside another hook's sync the outer one measures, but a filesystem
	 * knows better than its caller where it writes.  One of the same owner
	 * cannot be running: it was left over, and is replaced. */
	if (open && open->owner != owner) {
		if (open->owner == OWNER_SYSCALL)
			open->dev = dev;
		return;
	}
	note_syncing_cgroup(dev, start.start_ns);
	if (cfg.sees_sleep && kind != SYNC_SYNCFS)
		start.slept_ns = take_sleep(dev, start.start_ns);
	if (bpf_map_update_elem(MAP(syncs_inflight), &tid, &start, BPF_ANY))
		__sync_fetch_and_add(&shared.sync_lost, 1);
}

static __always_inline void sync_end(__u8 owner)
{
	__u32 tid = bpf_get_current_pid_tgid(), dev;
	struct sync_start *start = bpf_map_lookup_elem(MAP(syncs_inflight), &tid);
	struct sync_stats *stats;
	__u64 begun, now, bucket, slept;
	__u8 kind;

	if (!start || start->owner != owner)
		return;
	dev = start->dev;
	begun = start->start_ns;
	kind = start->kind;
	slept = start->slept_ns;
	bpf_map_delete_elem(MAP(syncs_inflight), &tid);

	stats = bpf_map_lookup_elem(MAP(syncs), &dev);
	if (!stats) {
		/* Fails when another CPU was first, which is as good. */
		bpf_map_update_elem(MAP(syncs), &dev, &no_syncs, BPF_NOEXIST);
		stats = bpf_map_lookup_elem(MAP(syncs), &dev);
		if (!stats) {
			__sync_fetch_and_add(&shared.sync_lost, 1);
			return;
		}
	}
	if (kind >= SYNC_KINDS)
		return; /* for the verifier: it cannot know what the map holds */
	now = bpf_ktime_get_ns();
	bucket = hist_bucket(now > begun ? now - begun : 0);

	__sync_fetch_and_add(&stats->count[kind], 1);
	if (kind == SYNC_SYNCFS) {
		__sync_fetch_and_add(&stats->syncfs_hist[bucket], 1);
		return;
	}
	__sync_fetch_and_add(&stats->file_hist[bucket], 1);
	if (!cfg.sees_sleep)
		return;
	if (slept) {
		__sync_fetch_and_add(&stats->throttled_ns, slept);
		bucket = hist_bucket((now > begun ? now - begun : 0) + slept);
	}
	__sync_fetch_and_add(&stats->commit_hist[bucket], 1);
}

#define FILE_SYNC(file, datasync)                      \
	sync_begin(synced_dev(FIELD(FIELD(file, f_mapping), host)), \
		   (datasync) ? SYNC_FDATASYNC : SYNC_FSYNC, OWNER_FILESYSTEM)

#ifndef BCC /* these need BTF */

/* First choice: the functions that f_op->fsync points to.  A hook on
 * vfs_fsync_range would miss fdatasync where the compiler inlined it. */
#define FSYNC_FENTRY(function)                                                       \
	SEC("?fentry/" #function)                                                    \
	int BPF_PROG(fentry_##function, struct file *file, loff_t start, loff_t end, \
		     int datasync)                                                   \
	{                                                                            \
		FILE_SYNC(file, datasync);                                           \
		return 0;                                                            \
	}                                                                            \
	SEC("?fexit/" #function)                                                     \
	int BPF_PROG(fexit_##function)                                               \
	{                                                                            \
		sync_end(OWNER_FILESYSTEM);                                          \
		return 0;                                                            \
	}

FSYNC_FENTRY(ext4_sync_file)
FSYNC_FENTRY(xfs_file_fsync)
FSYNC_FENTRY(btrfs_sync_file)
FSYNC_FENTRY(f2fs_sync_file)
FSYNC_FENTRY(blkdev_fsync)

SEC("?fentry/sync_filesystem")
int BPF_PROG(fentry_sync_filesystem, struct super_block *sb)
{
	sync_begin(DISK_DEV(FIELD, sb), SYNC_SYNCFS, OWNER_SYNCFS);
	return 0;
}

SEC("?fexit/sync_filesystem")
int BPF_PROG(fexit_sync_filesystem)
{
	sync_end(OWNER_SYNCFS);
	return 0;
}

#endif

/* Second choice: tracepoints of the filesystems; only ext4 has an exit.  Newer
 * verifiers take every argument of a module's tracepoint for possibly NULL. */
SEC("?tp_btf/ext4_sync_file_enter")
int BPF_PROG(tp_ext4_sync_file_enter, struct file *file, int datasync)
{
	if (file)
		FILE_SYNC(file, datasync);
	return 0;
}

SEC("?tp_btf/ext4_sync_file_exit")
int BPF_PROG(tp_ext4_sync_file_exit)
{
	sync_end(OWNER_FILESYSTEM);
	return 0;
}

/* Third choice: kprobes; user space attaches the pair to each function. */
SEC("?kprobe")
int BPF_KPROBE(kprobe_fsync, struct file *file, loff_t start, loff_t end, int datasync)
{
	struct inode *inode = BPF_CORE_READ(file, f_mapping, host);

	sync_begin(copied_dev(inode), datasync ? SYNC_FDATASYNC : SYNC_FSYNC,
		   OWNER_FILESYSTEM);
	return 0;
}

SEC("?kretprobe")
int BPF_KRETPROBE(kretprobe_fsync)
{
	sync_end(OWNER_FILESYSTEM);
	return 0;
}

SEC("?kprobe")
int BPF_KPROBE(kprobe_syncfs, struct super_block *sb)
{
	sync_begin(DISK_DEV(BPF_CORE_READ, sb), SYNC_SYNCFS, OWNER_SYNCFS);
	return 0;
}

SEC("?kretprobe")
int BPF_KRETPROBE(kretprobe_syncfs)
{
	sync_end(OWNER_SYNCFS);
	return 0;
}

/* A typed task's fields are plain loads; each copy costs as much as a map lookup. */
static __always_inline struct file *file_of(unsigned int fd)
{
	struct file **files, *file = NULL;
	unsigned int most;

	if (HAS_TYPED_TASK) {
		struct fdtable *table = bpf_get_current_task_btf()->files->fdt;

		most = table->max_fds;
		files = table->fd;
	} else {
		struct task_struct *task = (void *)bpf_get_current_task();

		most = BPF_CORE_READ(task, files, fdt, max_fds);
		files = BPF_CORE_READ(task, files, fdt, fd);
	}
	if (fd >= most)
		return NULL;
	bpf_probe_read_kernel(&file, sizeof(file), &files[fd]);
	return file;
}

/* Compilers may inline sync_filesystem() into syncfs(2), which is in the same
 * file: Debian's for 5.10 did. */
SEC("?ksyscall/syncfs")
int BPF_KPROBE(kprobe_syncfs_call, struct pt_regs *regs)
{
	struct file *file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));
	struct super_block *sb;

	if (file) {
		sb = BPF_CORE_READ(file, f_inode, i_sb);
		sync_begin(DISK_DEV(BPF_CORE_READ, sb), SYNC_SYNCFS, OWNER_SYSCALL);
	}
	return 0;
}

SEC("?kretsyscall/syncfs")
int BPF_KRETPROBE(kretprobe_syncfs_call)
{
	sync_end(OWNER_SYSCALL);
	return 0;
}

#ifndef BCC /* compiled without these numbers */

/* Last choice: syscalls.  Every syscall of the host pays for these hooks, and
 * what does not end in a syscall of its caller (io_uring's workers, kernel
 * threads) cannot be measured. */
static __always_inline bool is_write(long nr)
{
	return nr == NR_write || nr == NR_pwrite64 || nr == NR_writev ||
	       nr == NR_pwritev || nr == NR_pwritev2;
}

SEC("?tp_btf/sys_enter")
int BPF_PROG(sys_enter, struct pt_regs *regs, long nr)
{
	struct task_struct *task;
	struct super_block *sb;
	struct inode *inode;
	struct file *file;

	if (nr != NR_fsync && nr != NR_fdatasync && nr != NR_syncfs)
		return 0;
	task = HAS_TYPED_TASK ? bpf_get_current_task_btf() : (void *)bpf_get_current_task();
	if (SYSCALL_IS_COMPAT(task))
		return 0;
	file = file_of(SYSCALL_ARG0(regs));
	if (!file)
		return 0;
	if (nr == NR_syncfs) {
		sb = BPF_CORE_READ(file, f_inode, i_sb);
		sync_begin(DISK_DEV(BPF_CORE_READ, sb), SYNC_SYNCFS, OWNER_SYSCALL);
		return 0;
	}
	inode = BPF_CORE_READ(file, f_mapping, host);
	sync_begin(copied_dev(inode),
		   nr == NR_fdatasync ? SYNC_FDATASYNC : SYNC_FSYNC, OWNER_SYSCALL);
	return 0;
}

SEC("?tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *regs, long ret)
{
	long nr = SYSCALL_NR(regs);

	if (nr == NR_fsync || nr == NR_fdatasync || nr == NR_syncfs || nr == NR_msync ||
	    is_write(nr))
		sync_end(OWNER_SYSCALL);
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
	/* An fsync was opened by sys_enter, unless it is of an overlayfs above. */
	if (nr == NR_fsync || nr == NR_fdatasync) {
		__u32 tid = task->pid;

		if (bpf_map_lookup_elem(MAP(syncs_inflight), &tid))
			return 0;
		kind = nr == NR_fsync ? SYNC_FSYNC : SYNC_FDATASYNC;
	}
	sync_begin(synced_dev(inode), kind, OWNER_SYSCALL);
	return 0;
}

SEC("?tp_btf/xfs_file_fsync")
int BPF_PROG(tp_xfs_file_fsync, struct xfs_inode *ip)
{
	return ip ? entry_only(&((struct xfs_inode___any *)ip)->i_vnode, SYNC_FDATASYNC) : 0;
}

SEC("?tp_btf/btrfs_sync_file")
int BPF_PROG(tp_btrfs_sync_file, struct file *file, int datasync)
{
	if (!file)
		return 0;
	return entry_only(file->f_mapping->host, datasync ? SYNC_FDATASYNC : SYNC_FSYNC);
}

#endif
