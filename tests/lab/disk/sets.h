// SPDX-License-Identifier: GPL-2.0-or-later
/* Sets of blocks, as the cache needs them; its lock covers them. */
#ifndef SETS_H
#define SETS_H

#include "bitmap.h"

struct dirty_set {
	uint64_t *map;
	uint32_t *zone;		/* how many in each zone, so that empty ones are skipped */
	uint64_t all;		/* blocks that there could be */
	uint64_t blocks;	/* blocks that there are */
};

int dirty_init(struct dirty_set *set, uint64_t all);	/* 0 or an errno */
void dirty_add(struct dirty_set *set, uint64_t b);	/* that is not there */
void dirty_remove(struct dirty_set *set, uint64_t b);	/* that is */

/* The next one at or after `from`, in address order and round the end; there has to be one. */
uint64_t dirty_next(const struct dirty_set *set, uint64_t from);

/* The blocks that were added last, first in first out. */
struct recent_set {
	uint64_t *map;
	uint64_t *ring;		/* the oldest one is at `next` once all are used */
	uint64_t most, held, next;
};

int recent_init(struct recent_set *set, uint64_t all, uint64_t most);	/* 0 or an errno */
void recent_add(struct recent_set *set, uint64_t b);

#endif
