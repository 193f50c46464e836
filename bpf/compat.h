/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Kernel differences, one accessor each.  Everything is told by the fields and
 * types the running kernel has, never by its version: distributions backport.
 */
#ifndef COMPAT_H
#define COMPAT_H

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

/* Syscall numbers and where the kernel keeps them, for the hooks on syscalls.
 * Other architectures do without these hooks: where fentry works (arm64 has it
 * since 6.0) they are not needed. */
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
/* A 32-bit process numbers its calls differently. */
#define SYSCALL_IS_COMPAT(task) \
	(BPF_CORE_READ(task, thread_info.status) & 0x2 /* TS_COMPAT */)
#endif

#endif
