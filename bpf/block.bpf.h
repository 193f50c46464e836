/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Block requests: what completed, of which class, and how long it took. */

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
	struct blk_mq_hw_ctx *hctx = FIELD(rq, mq_hctx);

	return ((__u32)FIELD(rq, tag) + ((__u32)FIELD(FIELD(rq, q), id) << 6) +
		(hctx ? FIELD(hctx, queue_num) << 10 : 0)) &
	       (STARTS - 1);
}

#define ADD(target, n)                                        \
	do {                                                  \
		if (cfg.per_cpu)                              \
			(target) += (n);                      \
		else                                          \
			__sync_fetch_and_add(&(target), (n)); \
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
	__u64 own = FIELD(rq, io_start_time_ns);
	struct start *start;
	__u32 index;

	/* Or the compiler merges this load with the map's below, and the verifier
	 * wants one kind of pointer per load. */
	barrier_var(own);
	if (own)
		return own;
	index = start_index(rq);
	start = bpf_map_lookup_elem(MAP(starts), &index);
	if (start && start->rq == (__u64)rq) {
		start->rq = 0;
		return start->time_ns;
	}
	return 0;
}

static __always_inline __u64 latency_bucket(struct io_slot *slot, int class, __u64 start)
{
	__u64 jiffy = bpf_jiffies64(), now, bucket;

	if (slot->jiffy != jiffy) {
		slot->jiffy = jiffy;
		__builtin_memset(slot->in_jiffy, 0, sizeof(slot->in_jiffy));
	}
	/* By class, so that a few syncs among many reads are all timed. */
	if (slot->in_jiffy[class]++ >= TIMED_PER_JIFFY &&
	    slot->in_jiffy[class] & (TIMED_EVERY - 1)) {
		bucket = slot->last_bucket[class];
		return bucket < HIST_BUCKETS ? bucket : HIST_BUCKETS - 1;
	}
	/* Clocks are read at different places: never count a negative time. */
	now = bpf_ktime_get_ns();
	bucket = hist_bucket(now > start ? now - start : 0);
	slot->last_bucket[class] = bucket;
	return bucket;
}

SEC("?tp_btf/block_rq_complete")
int BPF_PROG(rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	struct gendisk *disk = request_disk(rq);
	struct io_slot *slot;
	__u64 start, sequence;
	__u32 index, dev;
	int class;

	class = io_class(FIELD(rq, cmd_flags));
	if (class < 0 || !disk)
		return 0;
	/* The second completion of a write in a flush sequence carries no data. */
	if (class != IO_FLUSH && !nr_bytes)
		return 0;

	index = FIELD(FIELD(rq, q), id);
	if (index >= cfg.slots) {
		__sync_fetch_and_add(&shared.no_slot, 1);
		return 0;
	}
	index = (index << cfg.shard_shift) |
		(bpf_get_smp_processor_id() & cfg.shard_mask);
	slot = bpf_map_lookup_elem(MAP(io_slots), &index);
	if (!slot)
		return 0;

	dev = FIELD(disk, major) << 20 | FIELD(disk, first_minor);
	sequence = disk_sequence(disk);
	if (slot->dev != dev || slot->diskseq != sequence) {
		/* Another disk got this queue id: what is counted from here on
		 * is its own. */
		slot->dev = dev;
		slot->diskseq = sequence;
	}

	ADD(slot->total[class].bytes, nr_bytes);
	if (nr_bytes < FIELD(rq, __data_len))
		return 0; /* partial: the request goes on */
	ADD(slot->total[class].count, 1);

	start = request_start(rq);
	if (!start) {
		ADD(slot->unstamped, 1);
		return 0;
	}
	ADD(slot->hist[class][latency_bucket(slot, class, start)], 1);

	if (cfg.queue_latency) {
		struct queue_slot *queue = bpf_map_lookup_elem(MAP(queue_slots), &index);
		__u64 queued = FIELD(rq, start_time_ns);

		if (queue && queued)
			ADD(queue->hist[class][hist_bucket(start > queued ? start - queued : 0)], 1);
	}
	return 0;
}

static __always_inline int note_issue(struct request *rq)
{
	__u32 index = start_index(rq);
	struct start *start = bpf_map_lookup_elem(MAP(starts), &index);

	if (start) {
		start->time_ns = bpf_ktime_get_ns();
		start->rq = (__u64)rq;
	}
	return 0;
}

/* Attached only where completions come without a start time. */
SEC("?tp_btf/block_rq_issue")
int rq_issue(unsigned long long *args)
{
	return note_issue((struct request *)args[ISSUED_ARGUMENT(0)]);
}

/* Before 5.11 (and 5.10.137) the queue came first.  Tried first: a new kernel
 * refuses it, while an old one would take a queue for a request. */
SEC("?tp_btf/block_rq_issue")
int rq_issue_old(unsigned long long *args)
{
	return note_issue((struct request *)args[ISSUED_ARGUMENT(1)]);
}
