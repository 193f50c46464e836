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
#ifdef BCC
#include "kernel_headers.h"
#else
#include "kernel_types.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#endif

#include "compat.h"
#include "writeback.h"

#ifndef BCC /* user space has the object's maps, and gives the license */
char LICENSE[] SEC("license") = "GPL";

const volatile struct probe_config cfg SEC(".rodata.config");
const struct sync_stats no_syncs SEC(".rodata.no_syncs");
struct probe_state shared;
#endif

static __always_inline __u64 hist_bucket(__u64 ns)
{
	__u64 value = ns >> HIST_UNIT_SHIFT, bucket = value;
	__u32 v, exponent = 0;

	if (value >= 1 << HIST_SUB_BITS) {
		/* The position of the highest bit, in five steps, not a loop. */
		v = value < 1U << 26 ? value : (1U << 26) - 1;
		value = v;
		/* clang-format off */
		if (v >> 16) { exponent += 16; v >>= 16; }
		if (v >> 8) { exponent += 8; v >>= 8; }
		if (v >> 4) { exponent += 4; v >>= 4; }
		if (v >> 2) { exponent += 2; v >>= 2; }
		/* clang-format on */
		exponent += v >> 1;
		bucket = ((exponent - HIST_SUB_BITS) << HIST_SUB_BITS) +
			 (value >> (exponent - HIST_SUB_BITS));
	}
	/* Always true, but only the compiler can see that: hide the value from
	 * it, so that the check stays in place for the verifier. */
	barrier_var(bucket);
	return bucket < HIST_BUCKETS ? bucket : HIST_BUCKETS - 1;
}

#include "block.bpf.h"
#include "committers.bpf.h"
#include "sync.bpf.h"
#include "dirty.bpf.h"

/* Costs nothing but the call: benchmarks subtract it. */
SEC("?tp_btf/block_rq_complete")
int BPF_PROG(empty, struct request *rq)
{
	return 0;
}
