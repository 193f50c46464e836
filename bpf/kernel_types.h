/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The kernel's types, as far as the programs use them.  With this in place of a
 * kernel's whole vmlinux.h, compiling needs no kernel.
 *
 * Fields are found by name when the object is loaded (CO-RE): their order here,
 * and fields left out, mean nothing.  Their sizes do, and so do values that are
 * given.  tests/kernel/test_kernel_types.py compares both with a real kernel's.
 */
#ifndef KERNEL_TYPES_H
#define KERNEL_TYPES_H

/* Tells libbpf's headers to call registers what the kernel calls them. */
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
/* libbpf's declarations of helpers name these. */
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

typedef _Bool bool;
typedef long long loff_t;

/* include/linux/stddef.h */
enum {
	false = 0,
	true = 1,
};

/* include/uapi/linux/bpf.h */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_QUEUE = 22,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
};

enum {
	BPF_F_MMAPABLE = 1024,
};

/* No value: only asked whether the running kernel has it. */
enum bpf_func_id {
	BPF_FUNC_get_current_task_btf,
};

/* include/linux/blk_types.h; enum req_opf before 6.1 */
enum req_op {
	REQ_OP_READ = 0,
	REQ_OP_WRITE = 1,
	REQ_OP_FLUSH = 2,
};

/* No values: those of the running kernel are taken. */
enum req_flag_bits {
	__REQ_SYNC,
	__REQ_META,
	__REQ_IDLE,
	__REQ_BACKGROUND,
};

struct folio;
struct page;
struct xfs_inode;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_sysctl {
	__u32 write;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
};

struct thread_info {
	__u32 status;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
};

struct pt_regs {
	__u64 orig_x0;
	__s32 syscallno;
};

struct thread_info {
	unsigned long flags;
};
#else
#error "no registers and system calls of this architecture here, only of x86 and arm64"
#endif

/* block */

struct gendisk {
	int major;
	int first_minor;
};

/* diskseq came with 5.15 ("block: add disk sequence number"). */
struct gendisk___with_seq {
	__u64 diskseq;
};

struct request_queue {
	int id;
};

/* The disk moved from the request to its queue in 5.17
 * ("block: remove the ->rq_disk field in struct request"). */
struct request_queue___with_disk {
	struct gendisk *disk;
};

struct blk_mq_hw_ctx {
	unsigned int queue_num;
};

struct request {
	struct request_queue *q;
	struct blk_mq_hw_ctx *mq_hctx;
	__u32 cmd_flags;
	int tag;
	unsigned int __data_len;
	__u64 start_time_ns;
	__u64 io_start_time_ns;
};

struct request___with_disk {
	struct gendisk *rq_disk;
};

/* files */

struct block_device;

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
	struct block_device *s_bdev;
};

struct inode {
	__u16 i_mode;
	__u32 i_rdev;
	struct super_block *i_sb;
};

struct address_space {
	struct inode *host;
};

struct file {
	struct address_space *f_mapping;
	struct inode *f_inode;
};

/* xfs may be a module, whose types are not among the kernel's own. */
struct xfs_inode___any {
	struct inode i_vnode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

/* tasks */

struct task_io_accounting {
	__u64 write_bytes;
};

struct mm_struct {
	unsigned long arg_start;
	unsigned long arg_end;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct signal_struct {
	int nr_threads;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	struct mm_struct *mm;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	__u64 start_time;
	char comm[16];
	struct files_struct *files;
	struct css_set *cgroups;
	struct task_io_accounting ioac;
};

#pragma clang attribute pop

#endif
