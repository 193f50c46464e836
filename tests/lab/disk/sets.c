// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "sets.h"

#define ZONE_BLOCKS 4096u

int dirty_init(struct dirty_set *set, uint64_t all)
{
	set->map = new_bitmap(all);
	set->zone = calloc(all / ZONE_BLOCKS + 1, sizeof(*set->zone));
	set->all = all;
	return set->map && set->zone ? 0 : ENOMEM;
}

void dirty_add(struct dirty_set *set, uint64_t b)
{
	set_bit(set->map, b);
	set->zone[b / ZONE_BLOCKS]++;
	set->blocks++;
}

void dirty_remove(struct dirty_set *set, uint64_t b)
{
	clear_bit(set->map, b);
	set->zone[b / ZONE_BLOCKS]--;
	set->blocks--;
}

uint64_t dirty_next(const struct dirty_set *set, uint64_t from)
{
	uint64_t b = from;

	for (;;) {
		uint64_t word;

		if (b >= set->all)
			b = 0;
		if (!set->zone[b / ZONE_BLOCKS]) {
			b = (b / ZONE_BLOCKS + 1) * ZONE_BLOCKS;
			continue;
		}
		word = set->map[b / WORD_BLOCKS] >> b % WORD_BLOCKS;
		if (word)
			return b + (uint64_t)__builtin_ctzll(word);
		b = (b / WORD_BLOCKS + 1) * WORD_BLOCKS;
	}
}

int recent_init(struct recent_set *set, uint64_t all, uint64_t most)
{
	set->map = new_bitmap(all);
	set->ring = calloc(most + 1, sizeof(*set->ring));
	set->most = most;
	return set->map && set->ring ? 0 : ENOMEM;
}

void recent_add(struct recent_set *set, uint64_t b)
{
	if (!set->most || test_bit(set->map, b))
		return;
	if (set->held == set->most)
		clear_bit(set->map, set->ring[set->next]);
	else
		set->held++;
	set_bit(set->map, b);
	set->ring[set->next] = b;
	set->next = (set->next + 1) % set->most;
}
