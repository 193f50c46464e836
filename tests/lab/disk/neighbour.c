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

#define SEQUENTIAL_BLOCKS 64u
#define RANDOM_BLOCKS 4u
#define NAP_NS 5000000		/* it wakes up so rarely, then catches up */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	uint64_t first;
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

/* One request; the number of its blocks. */
static uint64_t write_some(uint64_t *next)
{
	uint64_t n = settings.neighbour_random ? RANDOM_BLOCKS : SEQUENTIAL_BLOCKS;
	uint64_t first;

	if (settings.neighbour_random)
		*next = next_random() % NEIGHBOUR_BLOCKS / n * n;
	first = neighbour.first + *next / n * n;
	*next = (*next / n * n + n) % NEIGHBOUR_BLOCKS;
	if (model_writes_through())
		sleep_until(media_write(now_ns(), first * BLOCK, n * BLOCK));
	else
		cache_enter(first, first + n - 1);
	return n;
}

static void *write_on(void *arg)
{
	uint64_t next = 0;
	int64_t due = 0;

	pthread_mutex_lock(&neighbour.lock);
	while (!neighbour.stop) {
		int64_t rate = settings.neighbour, now;

		if (!rate) {
			pthread_cond_wait(&neighbour.changed, &neighbour.lock);
			continue;
		}
		pthread_mutex_unlock(&neighbour.lock);
		now = now_ns();
		/* Held up by a full cache, it does not make up for that. */
		if (due < now - 2 * NAP_NS)
			due = now;
		if (due > now)
			sleep_until(due > now + NAP_NS ? due : now + NAP_NS);
		due += transfer_ns((double)(write_some(&next) * BLOCK), (double)rate);
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
