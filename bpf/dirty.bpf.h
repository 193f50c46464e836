/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Who dirties pages, who sleeps for it, who writes vm.dirty_*. */

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

static __always_inline struct dirtier *dirtier(struct task_struct *task, bool typed)
{
	__u32 tid = TASK_READ(task, typed, pid);
	__u64 start_ns = TASK_READ(task, typed, start_time), bytes;
	struct dirtier *entry = bpf_map_lookup_elem(MAP(dirtiers), &tid);

	if (entry && entry->task_start_ns == start_ns)
		return entry;
	bytes = TASK_READ(task, typed, ioac.write_bytes);
	struct dirtier fresh = {
		.task_start_ns = start_ns,
		.first_bytes = bytes,
		.bytes = bytes,
		.cgroup_id = bpf_get_current_cgroup_id(),
		.tgid = TASK_READ(task, typed, tgid),
	};
	bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
	if (bpf_map_update_elem(MAP(dirtiers), &tid, &fresh, BPF_ANY)) {
		__sync_fetch_and_add(&shared.no_room, 1);
		return NULL;
	}
	return bpf_map_lookup_elem(MAP(dirtiers), &tid);
}

static __always_inline __u32 inode_dev(struct inode *inode)
{
	/* A block device's own inode lives in bdevfs; its s_dev tells nothing. */
	if ((FIELD(inode, i_mode) & 0170000) == 0060000)
		return FIELD(inode, i_rdev);
	return FIELD(FIELD(inode, i_sb), s_dev);
}

/* The kernel counts what each thread dirtied (task_io_account_write).  That
 * exact count is copied when another thread comes up on the CPU or this one has
 * dirtied another grain; in between a folio costs two loads and a comparison. */
static __always_inline int note_dirty(struct task_struct *task, bool typed,
				      struct address_space *mapping)
{
	__u64 bytes = TASK_READ(task, typed, ioac.write_bytes);
	__u32 tid = TASK_READ(task, typed, pid);
	struct last_look *last;
	struct dirtier *entry;
	__u32 zero = 0;

	last = bpf_map_lookup_elem(MAP(last_looks), &zero);
	if (!last || !mapping)
		return 0;
	if (last->tid == tid && bytes - last->bytes < cfg.dirty_grain)
		return 0;
	last->tid = tid;
	last->bytes = bytes;
	entry = dirtier(task, typed);
	if (entry) {
		entry->bytes = bytes;
		entry->dev = inode_dev(FIELD(mapping, host));
		/* Every time: a shell's child has the shell's name until exec, and a
		 * service's process its manager's cgroup until it is moved. */
		entry->cgroup_id = bpf_get_current_cgroup_id();
		bpf_get_current_comm(entry->comm, sizeof(entry->comm));
	}
	return 0;
}

SEC("?tp_btf/writeback_dirty_folio")
int BPF_PROG(dirty_folio, struct folio *folio, struct address_space *mapping)
{
	/* Folios came later than this helper. */
	return note_dirty(bpf_get_current_task_btf(), true, mapping);
}

/* Its name before 5.18. */
SEC("?tp_btf/writeback_dirty_page")
int BPF_PROG(dirty_page, struct page *page, struct address_space *mapping)
{
	if (HAS_TYPED_TASK)
		return note_dirty(bpf_get_current_task_btf(), true, mapping);
	return note_dirty((void *)bpf_get_current_task(), false, mapping);
}

static __always_inline int note_throttled(long pause)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	/* A timer fires one tick after its time; the present jiffy is an eighth
	 * over, as others' timers woke this thread too: 7.1 to 7.8 ms for 4. */
	__u64 slept = ((__u64)pause * 8 + 7) * cfg.jiffy_ns / 8;
	struct dirtier *entry;

	if (pause <= 0)
		return 0; /* let go without a sleep */
	/* Copies do: it has slept for longer. */
	entry = dirtier(task, false);
	if (entry) {
		entry->throttled_ns += slept;
		entry->throttled++;
	}
	hand_to_process(task, entry, slept);
	return 0;
}

/* `pause`, in jiffies, is the 11th of 12 arguments up to 6.12 and the 7th of 8
 * in 6.18.  User space tries the old form first: a new kernel refuses it, while
 * an old one would accept the new form and hand out a rate limit instead. */
SEC("?tp_btf/balance_dirty_pages")
int throttled_old(unsigned long long *args)
{
	return note_throttled(args[PAUSE_ARGUMENT(10)]);
}

SEC("?tp_btf/balance_dirty_pages")
int throttled(unsigned long long *args)
{
	return note_throttled(args[PAUSE_ARGUMENT(6)]);
}

/* A queue takes writes of several CPUs at once; to claim the next place of an
 * array takes an atomic that returns a value, which came with 5.12. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, SYSCTL_WRITES);
	__type(value, struct sysctl_write);
} sysctl_writes SEC(".maps");

SEC("?cgroup/sysctl")
int sysctl_write(struct bpf_sysctl *ctx)
{
	const char prefix[] = "vm/dirty_";
	struct task_struct *task;
	unsigned long begin, size;

	if (!ctx->write)
		return 1;
	struct sysctl_write write = {};
	if (bpf_sysctl_get_name(ctx, write.name, sizeof(write.name), 0) < 0)
		return 1;
	for (unsigned int i = 0; i < sizeof(prefix) - 1; i++)
		if (write.name[i] != prefix[i])
			return 1;
	bpf_sysctl_get_new_value(ctx, write.value, sizeof(write.value));
	/* By address: not every kernel lets this type of program ask for these. */
	task = (void *)bpf_get_current_task();
	write.pid = BPF_CORE_READ(task, tgid);
	write.cgroup_id = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	bpf_probe_read_kernel(write.comm, sizeof(write.comm), task->comm);
	begin = BPF_CORE_READ(task, mm, arg_start);
	size = BPF_CORE_READ(task, mm, arg_end) - begin;
	if (size > sizeof(write.cmdline))
		size = sizeof(write.cmdline);
	bpf_probe_read_user(write.cmdline, size, (void *)begin);
	bpf_map_push_elem(MAP(sysctl_writes), &write, BPF_EXIST); /* the oldest makes room */
	return 1; /* watching, never refusing */
}
