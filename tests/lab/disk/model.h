// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A disk behind a RAID controller with a write cache, as far as time goes:
 *
 *   request -> link (bytes/s, one transfer at a time) -> cache (capacity, first
 *   come first served) -> destage thread -> media (seek + bytes/rate)
 *
 * A write is done when it is in the cache, so it takes about latency_us until
 * the cache is full and from then on waits for the destage to make room. That
 * gives the bimodal completion times of the real thing. Reads are served from
 * the cache while the data is dirty there and otherwise compete for the media.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define BLOCK 4096u		/* unit of the cache, the page size of the host's page cache */
#define WORD_BLOCKS 64u		/* blocks in one word of a bitmap */

struct model {			/* sizes in bytes, rates in bytes per second */
	int64_t size;
	int64_t cache;
	int64_t rate;
	int64_t link;
	uint32_t seek_us;
	uint32_t latency_us;
	bool writeback;
};

extern struct model model;

/* Both return 0 or an errno. model_start makes the destage thread, so it comes after any fork. */
int model_init(void);
int model_start(void);
void model_stop(void);

/* Return when a disk like this would have written or read the bytes; count > 0. */
void model_write(uint64_t offset, uint64_t count);
void model_read(uint64_t offset, uint64_t count);

static inline bool test_bit(const uint64_t *map, uint64_t bit)
{
	return __atomic_load_n(&map[bit / WORD_BLOCKS], __ATOMIC_ACQUIRE) >> bit % WORD_BLOCKS & 1;
}

static inline void set_bit(uint64_t *map, uint64_t bit)
{
	__atomic_fetch_or(&map[bit / WORD_BLOCKS], 1ull << bit % WORD_BLOCKS, __ATOMIC_RELEASE);
}

static inline void clear_bit(uint64_t *map, uint64_t bit)
{
	__atomic_fetch_and(&map[bit / WORD_BLOCKS], ~(1ull << bit % WORD_BLOCKS), __ATOMIC_RELEASE);
}

#endif
