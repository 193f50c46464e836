/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Who dirties pages, who sleeps for it, who writes vm.dirty_*. */

/* No LRU: before 6.16 each CPU hoards 128 free nodes of one, so that a table of
 * 1024 throws out live entries from 8 CPUs on.  User space makes room. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024); /* more by CPUs, set before loading */
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
	if (bpf_map_update_elem(&dirtiers, &tid, &fresh, BPF_ANY)) {
		__sync_fetch_and_add(&shared.no_room, 1);
		return NULL;
	}
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

SEC("?cgroup/sysctl")
int sysctl_write(struct bpf_sysctl *ctx)
{
	struct task_struct *task;
	struct sysctl_write *entry;
	const char prefix[] = "vm/dirty_";
	unsigned long begin, size;
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
	/* By pointers: not every kernel lets this type of program ask for the id. */
	entry->cgroup_id = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	__builtin_memset(entry->cmdline, 0, sizeof(entry->cmdline));
	begin = BPF_CORE_READ(task, mm, arg_start);
	size = BPF_CORE_READ(task, mm, arg_end) - begin;
	if (size > sizeof(entry->cmdline))
		size = sizeof(entry->cmdline);
	bpf_probe_read_user(entry->cmdline, size, (void *)begin);
	return 1; /* watching, never refusing */
}
