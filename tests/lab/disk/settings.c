// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bitmap.h"
#include "settings.h"

struct settings settings = {
	.size = 16ll << 30,
	.link = 1ll << 30,
	.latency_us = 100,
	.cache = 512ll << 20,
	.protected = true,
	.read_cache = 32ll << 20,
	.rate = 250ll << 20,
	.seek_us = 100,
	.spindles = 1,
	.chunk = 256ll << 10,
	.gc_start = 1,
	.gc_floor = 1,
	.compress = 1,
	.fail_share = 1,
};

enum kind { SIZE, COUNT, REAL, CHOICE };

struct entry {
	const char *key;
	enum kind kind;
	void *value;		/* double for REAL, else int64_t */
	double min, max;
	bool fixed;		/* cannot be changed while the disk runs */
	const char *choices[2];	/* for 0 and 1 */
};

#define TERA ((double)(1ll << 40))
#define DAY_S 86400

static const struct entry entries[] = {
	{ .key = "size", SIZE, &settings.size, BLOCK, TERA, .fixed = true },
	{ .key = "link", SIZE, &settings.link, 1, TERA },
	{ .key = "latency_us", COUNT, &settings.latency_us, 0, 60e6 },
	{ .key = "cache", SIZE, &settings.cache, 0, TERA },
	{ .key = "mode", CHOICE, &settings.writethrough, .choices = { "writeback", "writethrough" } },
	{ .key = "protected", CHOICE, &settings.protected, .choices = { "no", "yes" } },
	{ .key = "destage_high", REAL, &settings.destage_high, 0, 1 },
	{ .key = "destage_low", REAL, &settings.destage_low, 0, 1 },
	{ .key = "destage_s", REAL, &settings.destage_s, 0, DAY_S },
	{ .key = "read_cache", SIZE, &settings.read_cache, 0, TERA, .fixed = true },
	{ .key = "rate", SIZE, &settings.rate, 1, TERA },
	{ .key = "seek_us", COUNT, &settings.seek_us, 0, 60e6 },
	{ .key = "scatter_us", COUNT, &settings.scatter_us, 0, 60e6 },
	{ .key = "spindles", COUNT, &settings.spindles, 1, MAX_DISKS, .fixed = true },
	{ .key = "chunk", SIZE, &settings.chunk, BLOCK, 1 << 30, .fixed = true },
	{ .key = "parity", COUNT, &settings.parity, 0, MAX_DISKS, .fixed = true },
	{ .key = "rebuild", REAL, &settings.rebuild, 0, 0.99 },
	{ .key = "fill", REAL, &settings.fill, 0, 1 },
	{ .key = "gc_start", REAL, &settings.gc_start, 0, 1 },
	{ .key = "gc_floor", REAL, &settings.gc_floor, 0.01, 1 },
	{ .key = "gc_swing_s", REAL, &settings.gc_swing_s, 0, DAY_S },
	{ .key = "compress", REAL, &settings.compress, 0.01, 1 },
	{ .key = "iops", COUNT, &settings.iops, 0, 1e9 },
	{ .key = "bandwidth", SIZE, &settings.bandwidth, 0, TERA },
	{ .key = "burst_s", REAL, &settings.burst_s, 0, DAY_S },
	{ .key = "neighbour", SIZE, &settings.neighbour, 0, TERA },
	{ .key = "neighbour_kind", CHOICE, &settings.neighbour_random,
	  .choices = { "sequential", "random" } },
	{ .key = "stall", REAL, &settings.stall, 0, 600 },
	{ .key = "fail_writes", COUNT, &settings.fail_writes, 0, 1e15 },
	{ .key = "fail_reads", COUNT, &settings.fail_reads, 0, 1e15 },
	{ .key = "fail_share", REAL, &settings.fail_share, 0.0001, 1 },
};

#define ENTRIES (sizeof(entries) / sizeof(entries[0]))

/* A number with an optional suffix K, M, G or T, 1024-based; false if it is anything else. */
static bool parse_number(enum kind kind, const char *text, double *value)
{
	static const char suffixes[] = "KMGT";
	const char *suffix;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	*value = kind == REAL ? strtod(text, &end) : (double)strtoull(text, &end, 10);
	if (kind == SIZE && *end && (suffix = strchr(suffixes, *end))) {
		*value *= (double)(1ull << 10 * (suffix - suffixes + 1));
		end++;
	}
	return !*end;
}

static bool set_entry(const struct entry *e, const char *text, char *error, size_t size)
{
	double value;

	if (e->kind == CHOICE) {
		for (int i = 0; i < 2; i++) {
			if (strcmp(text, e->choices[i]))
				continue;
			__atomic_store_n((int64_t *)e->value, i, __ATOMIC_RELAXED);
			return true;
		}
		snprintf(error, size, "%s is %s or %s", e->key, e->choices[0], e->choices[1]);
		return false;
	}
	if (!parse_number(e->kind, text, &value)) {
		snprintf(error, size, "%s: not a %s", e->key,
			 e->kind == SIZE ? "size like 512M" :
			 e->kind == COUNT ? "whole number" : "number");
		return false;
	}
	if (!(value >= e->min && value <= e->max)) {
		snprintf(error, size, "%s must be from %.15g to %.15g", e->key, e->min, e->max);
		return false;
	}
	if (e->kind == REAL)
		__atomic_store((double *)e->value, &value, __ATOMIC_RELAXED);
	else
		__atomic_store_n((int64_t *)e->value, (int64_t)value, __ATOMIC_RELAXED);
	return true;
}

bool settings_set(const char *key, const char *value, bool running, char *error, size_t size)
{
	for (size_t i = 0; i < ENTRIES; i++) {
		const struct entry *e = &entries[i];

		if (strcmp(key, e->key))
			continue;
		if (running && e->fixed) {
			snprintf(error, size, "%s cannot be changed while the disk runs", key);
			return false;
		}
		return set_entry(e, value, error, size);
	}
	snprintf(error, size, "there is no setting %.40s", key);
	return false;
}

bool settings_check(char *error, size_t size)
{
	if (settings.chunk % BLOCK)
		snprintf(error, size, "chunk must be a multiple of %u", BLOCK);
	else if (settings.spindles + settings.parity > MAX_DISKS)
		snprintf(error, size, "spindles and parity together are more than %u", MAX_DISKS);
	else if (settings.parity && settings.spindles < 2)
		snprintf(error, size, "parity needs at least 2 spindles");
	else
		return true;
	return false;
}

void settings_print(FILE *to)
{
	for (size_t i = 0; i < ENTRIES; i++) {
		const struct entry *e = &entries[i];

		fprintf(to, "%s\"%s\": ", i ? ", " : "", e->key);
		if (e->kind == CHOICE)
			fprintf(to, "\"%s\"", e->choices[*(int64_t *)e->value]);
		else if (e->kind == REAL)
			fprintf(to, "%g", *(double *)e->value);
		else
			fprintf(to, "%" PRId64, *(int64_t *)e->value);
	}
}
