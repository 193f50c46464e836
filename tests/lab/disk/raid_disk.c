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

#include "bitmap.h"
#include "content.h"
#include "control.h"
#include "model.h"
#include "settings.h"

static char *data;
static char *control_path;
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

static int report(int err)
{
	nbdkit_set_error(err);
	return err ? -1 : 0;
}

static int raid_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	content_note(buf, count, offset);
	store(buf, count, offset);
	return report(model_write(offset, count));
}

static int raid_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	int err = model_read(offset, count);

	fetch(buf, count, offset);
	return report(err);
}

static int raid_flush(void *handle, uint32_t flags)
{
	return report(model_flush());
}

/* The kernel zeroes ranges by a hole in the file: they have to read as zeros. */
static void punch(uint64_t count, uint64_t offset)
{
	for (uint64_t n; count; offset += n, count -= n) {
		n = part_of_block(offset, count);
		if (n < BLOCK) {
			memset(data + offset, 0, n);
			continue;
		}
		n = count / BLOCK * BLOCK;
		for (uint64_t b = offset / BLOCK; b < (offset + n) / BLOCK; b++)
			clear_bit(stored, b);
		madvise(data + offset, n, MADV_DONTNEED);
	}
}

static int raid_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	punch(count, offset);
	return report(model_trim(offset, count));
}

static int raid_config(const char *key, const char *value)
{
	char error[128];

	if (!strcmp(key, "control")) {
		free(control_path);
		control_path = nbdkit_absolute_path(value);
		return control_path ? 0 : -1;
	}
	if (settings_set(key, value, false, error, sizeof(error)))
		return 0;
	nbdkit_error("%s", error);
	return -1;
}

static int raid_config_complete(void)
{
	char error[128];

	if (settings_check(error, sizeof(error)))
		return 0;
	nbdkit_error("%s", error);
	return -1;
}

static int raid_get_ready(void)
{
	uint64_t blocks = ((uint64_t)settings.size + BLOCK - 1) / BLOCK;

	stored = new_bitmap(blocks);
	data = mmap(NULL, blocks * BLOCK, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (data == MAP_FAILED || !stored || model_init()) {
		nbdkit_error("no memory for a disk of %" PRId64 " bytes", settings.size);
		return -1;
	}
	return 0;
}

/* Threads have to wait until nbdkit has forked into the background. */
static int raid_after_fork(void)
{
	int err = model_start();

	if (err) {
		nbdkit_error("threads of the model: %s", strerror(err));
		return -1;
	}
	err = control_path ? control_start(control_path) : 0;
	if (err) {
		nbdkit_error("control socket %s: %s", control_path, strerror(err));
		return -1;
	}
	return 0;
}

static void raid_unload(void)
{
	control_stop();
	model_stop();
	free(control_path);
}

static void *raid_open(int readonly)
{
	return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t raid_get_size(void *handle)
{
	return settings.size;
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
	.config_complete = raid_config_complete,
	.config_help = "KEY=VALUE of settings.h (bytes as 512M, 1024-based), and control=SOCKET",
	.magic_config_key = "size",
	.get_ready = raid_get_ready,
	.after_fork = raid_after_fork,
	.unload = raid_unload,
	.open = raid_open,
	.get_size = raid_get_size,
	.can_multi_conn = raid_can_multi_conn,
	.pread = raid_pread,
	.pwrite = raid_pwrite,
	.flush = raid_flush,
	.trim = raid_trim,
};

NBDKIT_REGISTER_PLUGIN(plugin)
