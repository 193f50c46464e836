// SPDX-License-Identifier: GPL-2.0-or-later
/* One bit per block; single bits may be changed by several threads at once. */
#ifndef BITMAP_H
#define BITMAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define BLOCK 4096u		/* unit of the cache, the page size of the host's page cache */
#define WORD_BLOCKS 64u		/* blocks in one word of a bitmap */

static inline uint64_t *new_bitmap(uint64_t bits)
{
	return calloc(bits / WORD_BLOCKS + 1, sizeof(uint64_t));
}

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
