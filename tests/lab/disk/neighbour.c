// SPDX-License-Identifier: GPL-2.0-or-later
#include <pthread.h>
#include <stdbool.h>

#include "bitmap.h"
#include "cache.h"
#include "clock.h"
#include "media.h"
#include "model.h"
#include "neighbour.h"
#include "settings.h"

#define NAP_NS 5000000		/* it wakes up so rarely, and writes what is due then */
#define MOST_BLOCKS 1024u	/* at once; held up for longer, it does not make up for that */
#define RANDOM_BLOCKS 4u	/* of one random write */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	uint64_t first;		/* block of the array */
	uint64_t next;		/* of its own, in sequence */
	bool stop;
} neighbour = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* The same sequence in every run (xorshift). */
static uint64_t next_random(void)
{
	static uint64_t x = 88172645463325252ull;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x;
}

/* What to write: `n` blocks in a row, or as many in small pieces all over its addresses. */
static struct extent choose(uint64_t n)
{
	struct extent e = { neighbour.next, n, 1, n };

	if (!settings.neighbour_random) {
		if (e.first + n > NEIGHBOUR_BLOCKS)
			e.first = 0;
		neighbour.next = e.first + n;
	} else {
		e.pieces = (n + RANDOM_BLOCKS - 1) / RANDOM_BLOCKS;
		e.blocks = RANDOM_BLOCKS;
		e.step = NEIGHBOUR_BLOCKS / (e.pieces + 1) / RANDOM_BLOCKS * RANDOM_BLOCKS;
		e.first = next_random() % e.step;
	}
	e.first += neighbour.first;
	return e;
}

static void write_some(uint64_t n)
{
	struct extent e = choose(n);
	int64_t now = now_ns(), end = now;

	if (!model_writes_through()) {
		cache_enter(e);
		return;
	}
	for (uint64_t i = 0; i < e.pieces; i++) {
		int64_t piece_end = media_write(now, (e.first + i * e.step) * BLOCK,
						e.blocks * BLOCK);

		end = piece_end > end ? piece_end : end;
	}
	sleep_until(end);
}

/* The blocks that are due now. */
static uint64_t due_blocks(int64_t *since, double rate)
{
	int64_t now = now_ns();
	uint64_t n = (uint64_t)((double)(now - *since) / NSEC * rate / BLOCK);
	uint64_t most = (uint64_t)settings.cache / BLOCK / 8;

	if (model_writes_through() || most > MOST_BLOCKS)
		most = MOST_BLOCKS;
	if (n > most) {
		*since = now;
		return most;
	}
	*since += transfer_ns((double)(n * BLOCK), rate);
	return n;
}

static void *write_on(void *arg)
{
	int64_t since = now_ns();

	pthread_mutex_lock(&neighbour.lock);
	while (!neighbour.stop) {
		int64_t rate = settings.neighbour;
		uint64_t n;

		if (!rate) {
			pthread_cond_wait(&neighbour.changed, &neighbour.lock);
			since = now_ns();
			continue;
		}
		pthread_mutex_unlock(&neighbour.lock);
		sleep_until(now_ns() + NAP_NS);
		n = due_blocks(&since, (double)rate);
		if (n)
			write_some(n);
		pthread_mutex_lock(&neighbour.lock);
	}
	pthread_mutex_unlock(&neighbour.lock);
	return NULL;
}

void neighbour_init(uint64_t first)
{
	neighbour.first = first;
}

int neighbour_start(void)
{
	return pthread_create(&neighbour.thread, NULL, write_on, NULL);
}

void neighbour_changed(void)
{
	pthread_mutex_lock(&neighbour.lock);
	pthread_cond_signal(&neighbour.changed);
	pthread_mutex_unlock(&neighbour.lock);
}

void neighbour_stop(void)
{
	pthread_mutex_lock(&neighbour.lock);
	neighbour.stop = true;
	pthread_cond_signal(&neighbour.changed);
	pthread_mutex_unlock(&neighbour.lock);
	if (neighbour.thread)
		pthread_join(neighbour.thread, NULL);
}
