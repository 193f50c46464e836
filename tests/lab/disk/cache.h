// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The write cache of the controller: what is dirty, who waits for room, and the
 * thread that destages in address order; beside it a cache of clean blocks for
 * reads. Addresses from `own` blocks on belong to the neighbour.
 */
#ifndef CACHE_H
#define CACHE_H

#include <stdbool.h>
#include <stdint.h>

struct cache_state {		/* bytes, totals since the start */
	uint64_t fill;		/* not on the media yet, what is being destaged included */
	uint64_t neighbour_fill;	/* the neighbour's part of it */
	uint64_t dirtied;	/* entered; an overwrite of dirty blocks enters nothing */
	uint64_t destaged;
	uint64_t discarded;	/* dirty, and trimmed before it was destaged */
	uint64_t waiters;	/* writes that wait for room */
};

/* Return 0 or an errno. cache_start makes the destage thread, so it comes after any fork. */
int cache_init(uint64_t own, uint64_t all);
int cache_start(void);
void cache_stop(void);

struct extent {			/* `pieces` of so many `blocks`, one every `step` blocks */
	uint64_t first, blocks, pieces, step;
};

/*
 * Waits until all of it has a place in the cache, in order of arrival. The
 * neighbour asks for one thing at a time; it goes first, or a host with a deep
 * queue would hardly notice it.
 */
void cache_enter(struct extent extent);

/* Waits until all that is dirty now is on the media. */
void cache_flush(void);

/* Drops what is dirty there. */
void cache_discard(uint64_t first, uint64_t last);

/* Blocks that a read finds neither dirty nor clean. */
uint64_t cache_missing(uint64_t first, uint64_t last);

/* Blocks that were read or written past the write cache: they are clean now. */
void cache_keep(uint64_t first, uint64_t last);

/* A setting was changed: its capacity, for instance. */
void cache_recheck(void);

struct cache_state cache_state(void);

#endif
