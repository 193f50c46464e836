// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What is behind the cache: spindles, each doing one thing at a time, with data
 * striped over them. All functions return at once, with the time when the media
 * will have done it if it is asked at `since`.
 */
#ifndef MEDIA_H
#define MEDIA_H

#include <stdint.h>

#include "settings.h"

int media_init(uint64_t blocks);

int64_t media_read(int64_t since, uint64_t offset, uint64_t bytes);
int64_t media_write(int64_t since, uint64_t offset, uint64_t bytes);

/* Parts of one stripe; unit i has `bytes` (0: none of it) from `offset` of the disk on. */
struct part {
	uint64_t offset;
	uint64_t bytes;
};
int64_t media_write_stripe(int64_t since, const struct part *parts);

/* How many stripes of an array with parity were written whole, and in part, since the start. */
void media_stripes(uint64_t *whole, uint64_t *part);

/* Nothing gets done until then. */
void media_stall(int64_t until);

/* How full a flash drive is, for its garbage collection. */
void media_use(uint64_t first, uint64_t blocks);
void media_discard(uint64_t first, uint64_t blocks);
double media_used_share(void);

/* The rate at which sequential writes are drained now, bytes per second. */
double media_write_rate(void);

#endif
