/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What committers slept in balance_dirty_pages() before they synced. */

/* No LRU: before 6.16 each CPU hoards 128 free nodes of one, so that a table of
 * 1024 throws out live entries from 8 CPUs on.  User space makes room. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024); /* more by CPUs, set before loading */
	__type(key, __u32);
	__type(value, struct dirtier);
} dirtiers SEC(".maps");

/* As `dirtiers`.  Made by a sync: who never syncs takes no place. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct committer);
} committers SEC(".maps");

/* A thread that has not synced for so long writes for others of its process. */
#define SYNCS_ITSELF_NS 5000000000ULL

/* Sleep of a thread that does not sync itself, as Redis' main thread, goes to
 * the next sync of its process.  Counts only grow, since atomics that return a
 * value came with 5.12: of two syncs at the same time both may take it. */
static __always_inline void hand_to_process(struct task_struct *task, struct dirtier *entry,
					    __u64 slept)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct committer *process;

	if (entry && entry->synced_ns &&
	    bpf_ktime_get_ns() - entry->synced_ns < SYNCS_ITSELF_NS)
		return;
	if (TASK_READ_2(task, false, signal, nr_threads) < 2)
		return;
	process = bpf_map_lookup_elem(MAP(committers), &tgid);
	if (!process ||
	    process->leader_start_ns != TASK_READ_2(task, false, group_leader, start_time))
		return;
	if (entry) {
		slept = entry->throttled_ns - entry->attached_ns;
		entry->attached_ns = entry->throttled_ns;
	}
	__sync_fetch_and_add(&process->throttled_ns, slept);
}

static __always_inline __u64 process_sleep(struct task_struct *task, bool typed, __u32 dev,
					   __u64 now)
{
	__u32 tgid = TASK_READ(task, typed, tgid);
	__u64 leader_start_ns = TASK_READ_2(task, typed, group_leader, start_time);
	struct committer *process = bpf_map_lookup_elem(MAP(committers), &tgid);
	__u64 total, slept, elapsed;

	if (!process || process->leader_start_ns != leader_start_ns) {
		struct committer fresh = {
			.leader_start_ns = leader_start_ns,
			.synced_ns = now,
			.dev = dev,
		};

		if (bpf_map_update_elem(MAP(committers), &tgid, &fresh, BPF_ANY))
			__sync_fetch_and_add(&shared.sleep_lost, 1);
		return 0;
	}
	total = process->throttled_ns;
	slept = total > process->attached_ns ? total - process->attached_ns : 0;
	process->attached_ns = total;
	/* Several threads may have slept at the same time. */
	elapsed = now > process->synced_ns ? now - process->synced_ns : 0;
	process->synced_ns = now;
	process->dev = dev;
	return slept < elapsed ? slept : elapsed;
}

static __always_inline __u64 sleep_of(struct task_struct *task, bool typed, __u32 dev, __u64 now)
{
	__u32 tid = TASK_READ(task, typed, pid);
	struct dirtier *entry = bpf_map_lookup_elem(MAP(dirtiers), &tid);
	__u64 slept = 0, elapsed;

	if (entry && entry->task_start_ns == TASK_READ(task, typed, start_time)) {
		slept = entry->throttled_ns - entry->attached_ns;
		/* For io_uring a pause is traced that is slept by another thread. */
		elapsed = now - entry->synced_ns;
		if (slept > elapsed)
			slept = elapsed;
		entry->attached_ns = entry->throttled_ns;
		entry->synced_ns = now;
		entry->synced_dev = dev;
	}
	if (TASK_READ_2(task, typed, signal, nr_threads) > 1)
		slept += process_sleep(task, typed, dev, now);
	return slept;
}

/* What the thread that begins a sync, and those of its process that never sync,
 * have slept since the sync before. */
OUT_OF_LINE __u64 take_sleep(__u32 dev, __u64 now)
{
	if (HAS_TYPED_TASK)
		return sleep_of(bpf_get_current_task_btf(), true, dev, now);
	return sleep_of((void *)bpf_get_current_task(), false, dev, now);
}
