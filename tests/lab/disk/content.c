// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bitmap.h"
#include "content.h"
#include "settings.h"

#define SAMPLES 16u	/* words of 8 bytes looked at in a block: more would cost CPU */
#define NOISE_VALUES 90u	/* different bytes among 128: random ones have 101 on average */

/* 255 less what is seen, so that 0, never looked at, stands for noise. */
static uint8_t *saved;
static uint64_t known;

int content_init(uint64_t blocks)
{
	known = blocks;
	saved = calloc(blocks, 1);	/* untouched pages take no memory */
	return saved ? 0 : ENOMEM;
}

/* 0 for bytes that are all the same, 255 for noise; text and tables of numbers are between. */
static uint8_t variety(const unsigned char *p, uint64_t count)
{
	uint64_t seen[4] = { 0 }, step = count / SAMPLES;
	unsigned values = 0;

	if (step < 8)
		return 255;
	for (unsigned i = 0; i < SAMPLES; i++)
		for (unsigned j = 0; j < 8; j++) {
			unsigned char c = p[i * step + j];

			seen[c / 64] |= 1ull << c % 64;
		}
	for (unsigned i = 0; i < 4; i++)
		values += (unsigned)__builtin_popcountll(seen[i]);
	values--;
	return values >= NOISE_VALUES ? 255 : (uint8_t)(values * 255 / NOISE_VALUES);
}

void content_note(const char *buf, uint64_t count, uint64_t offset)
{
	if (settings.compress >= 1)
		return;
	for (uint64_t n; count; buf += n, offset += n, count -= n) {
		n = BLOCK - offset % BLOCK;
		if (n > count)
			n = count;
		saved[offset / BLOCK] = 255 - variety((const unsigned char *)buf, n);
	}
}

double content_cost(uint64_t offset, uint64_t bytes)
{
	uint64_t first = offset / BLOCK, last = (offset + bytes - 1) / BLOCK;
	double sum = 0;

	if (settings.compress >= 1 || !bytes || last >= known)
		return (double)bytes;
	for (uint64_t b = first; b <= last; b++)
		sum += saved[b];
	return (double)bytes * (1 - (1 - settings.compress) * sum / 255 / (double)(last - first + 1));
}
