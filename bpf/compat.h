/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Kernel differences, one accessor each.  Everything is told by the fields and
 * types the running kernel has, never by its version: distributions backport.
 */
#ifndef COMPAT_H
#define COMPAT_H

#ifdef BCC

/* Whatever is reached by a pointer is copied: without BTF the verifier knows no
 * kernel type. */
#define FIELD(from, field)                                                           \
	({                                                                          \
		typeof((from)->field) value_;                                       \
		bpf_probe_read_kernel(&value_, sizeof(value_), &(from)->field);     \
		value_;                                                             \
	})
#define FIELD_2(from, a, b) FIELD(FIELD(from, a), b)
#define FIELD_3(from, a, b, c) FIELD(FIELD_2(from, a, b), c)
#define FIELD_4(from, a, b, c, d) FIELD(FIELD_3(from, a, b, c), d)
#define FIELD_OF(_, a, b, c, d, name, ...) name
#define BPF_CORE_READ(from, fields...) \
	FIELD_OF(, fields, FIELD_4, FIELD_3, FIELD_2, FIELD)(from, fields)

#define bpf_get_current_task_btf() ((struct task_struct *)bpf_get_current_task())
#define HAS_TYPED_TASK 0
#define TASK_READ(task, typed, field) FIELD(task, field)
#define TASK_READ_2(task, typed, a, b) FIELD_2(task, a, b)

/* bcc links no functions. */
#define OUT_OF_LINE static __always_inline

#define MAP(name) ((void *)bpf_pseudo_fd(1 /* BPF_PSEUDO_MAP_FD */, MAP_##name))
#define VARIABLE(type, map) (*(type *)bpf_pseudo_fd(2 /* BPF_PSEUDO_MAP_VALUE */, map))
#define cfg VARIABLE(const volatile struct probe_config, MAP__rodata_config)
#define no_syncs VARIABLE(struct sync_stats, MAP__rodata_no_syncs)
#define shared VARIABLE(struct probe_state, MAP__bss)

/* A raw tracepoint takes any program: here the prototypes tell which argument it
 * is, and the programs for either form become the same.  Of a third form nobody
 * knows: the verifier refuses an argument of that number. */
struct dirty_throttle_control;

#define IS_PROTOTYPE(name, args...) \
	__builtin_types_compatible_p(typeof(&trace_##name), void (*)(args))
#define OTHER_FORM 99
#define ISSUED_ARGUMENT(n)                                              \
	(IS_PROTOTYPE(block_rq_issue, struct request *) ? 0 :           \
	 IS_PROTOTYPE(block_rq_issue, struct request_queue *, struct request *) ? 1 : OTHER_FORM)
#define PAUSE_ARGUMENT(n)                                                                     \
	(IS_PROTOTYPE(balance_dirty_pages, struct bdi_writeback *, unsigned long,             \
		      unsigned long, unsigned long, unsigned long, unsigned long,             \
		      unsigned long, unsigned long, unsigned long, unsigned long, long,       \
		      unsigned long) ? 10 :                                                   \
	 IS_PROTOTYPE(balance_dirty_pages, struct bdi_writeback *,                            \
		      struct dirty_throttle_control *, unsigned long, unsigned long,          \
		      unsigned long, unsigned long, long, unsigned long) ? 6 : OTHER_FORM)

static __always_inline struct gendisk *request_disk(struct request *rq)
{
#ifdef HAS_RQ_DISK
	return FIELD(rq, rq_disk);
#else
	return FIELD(FIELD(rq, q), disk);
#endif
}

static __always_inline __u64 disk_sequence(struct gendisk *disk)
{
#ifdef HAS_DISKSEQ
	return FIELD(disk, diskseq);
#else
	return 0;
#endif
}

#else

#define FIELD(from, field) ((from)->field)
#define MAP(name) (&name)
/* Once for each program, not at each place where one may call it. */
#define OUT_OF_LINE static __attribute__((noinline))
#define ISSUED_ARGUMENT(n) (n)
#define PAUSE_ARGUMENT(n) (n)

static __always_inline struct gendisk *request_disk(struct request *rq)
{
	struct request_queue___with_disk *q = (void *)rq->q;
	struct request___with_disk *old = (void *)rq;

	if (bpf_core_field_exists(q->disk))
		return q->disk;
	return old->rq_disk;
}

static __always_inline __u64 disk_sequence(struct gendisk *disk)
{
	struct gendisk___with_seq *with_seq = (void *)disk;

	return bpf_core_field_exists(with_seq->diskseq) ? with_seq->diskseq : 0;
}

/* bpf_get_current_task_btf() came with 5.11.  Where it is missing, the verifier
 * knows no type of the current task, and its fields have to be copied. */
#define HAS_TYPED_TASK \
	bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_get_current_task_btf)
/* `typed` is a constant in every inlined copy: one of the two is compiled. */
#define TASK_READ(task, typed, field) ((typed) ? (task)->field : BPF_CORE_READ(task, field))
#define TASK_READ_2(task, typed, a, b) ((typed) ? (task)->a->b : BPF_CORE_READ(task, a, b))

/* Syscall numbers and where the kernel keeps them, for the hooks on syscalls.  A
 * 32-bit process numbers its calls differently. */
#if defined(__TARGET_ARCH_x86)
#define NR_write 1
#define NR_pwrite64 18
#define NR_writev 20
#define NR_msync 26
#define NR_fsync 74
#define NR_fdatasync 75
#define NR_pwritev 296
#define NR_syncfs 306
#define NR_pwritev2 328
#define SYSCALL_NR(regs) ((long)(regs)->orig_ax)
#define SYSCALL_ARG0(regs) ((unsigned int)(regs)->di)
#define SYSCALL_IS_COMPAT(task) \
	(TASK_READ(task, HAS_TYPED_TASK, thread_info.status) & 0x2 /* TS_COMPAT */)
#elif defined(__TARGET_ARCH_arm64) /* include/uapi/asm-generic/unistd.h */
#define NR_write 64
#define NR_writev 66
#define NR_pwrite64 68
#define NR_pwritev 70
#define NR_fsync 82
#define NR_fdatasync 83
#define NR_msync 227
#define NR_syncfs 267
#define NR_pwritev2 287
#define SYSCALL_NR(regs) ((long)(regs)->syscallno)
#define SYSCALL_ARG0(regs) ((unsigned int)(regs)->orig_x0)
#define SYSCALL_IS_COMPAT(task) \
	(TASK_READ(task, HAS_TYPED_TASK, thread_info.flags) & 1UL << 22 /* TIF_32BIT */)
#endif

#endif

#endif
