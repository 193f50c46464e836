/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What stands for kernel_types.h and libbpf's headers where bcc compiles, for a
 * kernel without BTF: its own headers.  bcc declares the helpers.
 *
 * Maps are those of the object.  User space defines MAP_NAME for each: a number,
 * for which it puts the map into the compiled instructions.
 */
#ifndef KERNEL_HEADERS_H
#define KERNEL_HEADERS_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/cgroup.h>
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/kernfs.h>
#include <linux/mm_types.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <trace/events/block.h>
#include <trace/events/writeback.h>

struct folio; /* since 5.16 */

#pragma GCC diagnostic ignored "-Wint-conversion"

#define barrier_var(var) asm volatile("" : "+r"(var))
#define bpf_core_enum_value(type, value) (value)

/* Where /proc/kallsyms keeps its addresses from root, bcc takes bpf_probe_read() for
 * both, which programs of type cgroup/sysctl do not have. */
#undef bpf_probe_read_kernel
#undef bpf_probe_read_user
static long (*copy_from_user_space)(void *to, __u32 size, const void *from) =
	(void *)BPF_FUNC_probe_read_user;
#define bpf_probe_read_user copy_from_user_space

/* The registers of the caller, as a system call's function gets them. */
#if defined(__x86_64__)
#define PT_REGS_PARM1_CORE_SYSCALL(regs) FIELD(regs, di)
#elif defined(__aarch64__)
#define PT_REGS_PARM1_CORE_SYSCALL(regs) FIELD(regs, orig_x0)
#endif

/* Definitions of maps compile, and nothing refers to them. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define SEC(name)

/* bcc takes out what is in a section of its own. */
#define PROGRAM_SECTION(name) __attribute__((section(".bpf.fn." #name)))

#define PASS_0(from)
#define PASS_1(from) , from(1)
#define PASS_2(from) PASS_1(from), from(2)
#define PASS_3(from) PASS_2(from), from(3)
#define PASS_4(from) PASS_3(from), from(4)
#define COUNT(args...) COUNT_(, ##args, 4, 3, 2, 1, 0)
#define COUNT_(_, a, b, c, d, n, ...) n
#define PASS(n, from) PASS_(n, from)
#define PASS_(n, from) PASS_##n(from)

#define TRACEPOINT_ARGUMENT(n) (void *)((__u64 *)ctx)[n - 1]
#define REGISTER_ARGUMENT(n) (void *)PT_REGS_PARM##n((struct pt_regs *)ctx)

/* ctx is no pt_regs for bcc, or it would make reads of what is reached from it. */
#define PROGRAM(name, from, args...)                           \
	name(void *ctx) PROGRAM_SECTION(name);                 \
	static __always_inline int body_##name(void *, ##args); \
	int name(void *ctx)                                    \
	{                                                      \
		return body_##name(ctx PASS(COUNT(args), from)); \
	}                                                      \
	static __always_inline int body_##name(void *ctx, ##args)

#undef BPF_PROG /* bcc has one for programs that need BTF */
#define BPF_PROG(name, args...) PROGRAM(name, TRACEPOINT_ARGUMENT, ##args)
#define BPF_KPROBE(name, args...) PROGRAM(name, REGISTER_ARGUMENT, ##args)
#define BPF_KRETPROBE(name) PROGRAM(name, REGISTER_ARGUMENT)

int rq_issue_old(unsigned long long *args) PROGRAM_SECTION(rq_issue_old);
int rq_issue(unsigned long long *args) PROGRAM_SECTION(rq_issue);
int throttled_old(unsigned long long *args) PROGRAM_SECTION(throttled_old);
int throttled(unsigned long long *args) PROGRAM_SECTION(throttled);
int sysctl_write(struct bpf_sysctl *ctx) PROGRAM_SECTION(sysctl_write);

#endif
