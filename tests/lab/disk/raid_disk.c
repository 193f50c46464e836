// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * nbdkit plugin: a modelled RAID disk. model.c keeps the time, this keeps the data.
 *
 * The data lives in an anonymous mapping; blocks that only ever saw zeros take
 * no memory, so a flood from /dev/zero costs the host nothing but page cache.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

#include "model.h"

static char *data;
static uint64_t *stored;	/* blocks whose data is in memory; the others read as zeros */

static bool all_zero(const char *p, uint64_t n)
{
	return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

static uint64_t part_of_block(uint64_t offset, uint64_t left)
{
	uint64_t n = BLOCK - offset % BLOCK;

	return n < left ? n : left;
}

static void store(const char *buf, uint64_t count, uint64_t offset)
{
	for (uint64_t n; count; buf += n, offset += n, count -= n) {
		uint64_t b = offset / BLOCK;

		n = part_of_block(offset, count);
		if (!test_bit(stored, b) && all_zero(buf, n))
			continue;
		memcpy(data + offset, buf, n);
		set_bit(stored, b);
	}
}

static void fetch(char *buf, uint64_t count, uint64_t offset)
{
	for (uint64_t n; count; buf += n, offset += n, count -= n) {
		n = part_of_block(offset, count);
		if (test_bit(stored, offset / BLOCK))
			memcpy(buf, data + offset, n);
		else
			memset(buf, 0, n);
	}
}

/* nbdkit */

static int raid_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	store(buf, count, offset);
	model_write(offset, count);
	return 0;
}

static int raid_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	model_read(offset, count);
	fetch(buf, count, offset);
	return 0;
}

/* The write cache is protected by a battery, so a flush has nothing to do. */
static int raid_flush(void *handle, uint32_t flags)
{
	return 0;
}

static int64_t parse_positive(const char *key, const char *value)
{
	int64_t n = nbdkit_parse_size(value);

	if (n == 0)
		nbdkit_error("%s must be larger than 0", key);
	return n > 0 ? n : -1;
}

static int raid_config(const char *key, const char *value)
{
	static const struct { const char *key; int64_t *value; } sizes[] = {
		{ "size", &model.size }, { "cache", &model.cache },
		{ "rate", &model.rate }, { "link", &model.link },
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (!strcmp(key, sizes[i].key))
			return (*sizes[i].value = parse_positive(key, value)) < 0 ? -1 : 0;
	if (!strcmp(key, "seek_us"))
		return nbdkit_parse_uint32_t(key, value, &model.seek_us);
	if (!strcmp(key, "latency_us"))
		return nbdkit_parse_uint32_t(key, value, &model.latency_us);
	if (!strcmp(key, "mode") && (!strcmp(value, "writeback") || !strcmp(value, "writethrough"))) {
		model.writeback = !strcmp(value, "writeback");
		return 0;
	}
	nbdkit_error("unknown parameter or value: %s=%s", key, value);
	return -1;
}

static int raid_get_ready(void)
{
	uint64_t blocks = ((uint64_t)model.size + BLOCK - 1) / BLOCK;

	stored = calloc(blocks / WORD_BLOCKS + 1, sizeof(*stored));
	data = mmap(NULL, blocks * BLOCK, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (data == MAP_FAILED || !stored || model_init()) {
		nbdkit_error("no memory for a disk of %" PRId64 " bytes", model.size);
		return -1;
	}
	return 0;
}

/* Threads have to wait until nbdkit has forked into the background. */
static int raid_after_fork(void)
{
	int err = model_start();

	if (err)
		nbdkit_error("destage thread: %s", strerror(err));
	return err ? -1 : 0;
}

static void *raid_open(int readonly)
{
	return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t raid_get_size(void *handle)
{
	return model.size;
}

static int raid_can_multi_conn(void *handle)
{
	return 1;
}

static struct nbdkit_plugin plugin = {
	.name = "raid-disk",
	.longname = "modelled RAID disk",
	.description = "models a disk behind a RAID controller with a write cache",
	.config = raid_config,
	.config_help = "size= cache= rate= link= (bytes, bytes/s; 512M is 1024-based), seek_us=, "
		       "latency_us=, mode=writeback|writethrough",
	.magic_config_key = "size",
	.get_ready = raid_get_ready,
	.after_fork = raid_after_fork,
	.unload = model_stop,
	.open = raid_open,
	.get_size = raid_get_size,
	.can_multi_conn = raid_can_multi_conn,
	.pread = raid_pread,
	.pwrite = raid_pwrite,
	.flush = raid_flush,
};

NBDKIT_REGISTER_PLUGIN(plugin)
