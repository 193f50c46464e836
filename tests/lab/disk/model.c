// SPDX-License-Identifier: GPL-2.0-or-later
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "model.h"

#define ZONE_BLOCKS 4096u	/* dirty blocks are counted per zone, so that empty ones are skipped */
#define RUN_BLOCKS 64u		/* longest single destage: room appears every 1 ms at 250 MB/s */
#define BATCH_NS 500000		/* short destages share a sleep: wake-ups cost the host's CPU */
#define NSEC 1000000000ll

struct model model = {
	.size = 16ll << 30,
	.cache = 512ll << 20,
	.rate = 250ll << 20,
	.link = 1ll << 30,
	.seek_us = 100,
	.latency_us = 100,
	.writeback = true,
};

/* A server that does one thing at a time; times are CLOCK_MONOTONIC nanoseconds. */
struct server {
	pthread_mutex_t lock;
	int64_t free_at;
	uint64_t position;	/* where the last transfer ended: going on from there needs no seek */
};

static struct server link_server = { .lock = PTHREAD_MUTEX_INITIALIZER };
static struct server media = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct waiter {			/* a write that waits for room, in order of arrival */
	pthread_cond_t admitted;
	uint64_t first, last;	/* its blocks */
	bool done;
	struct waiter *next;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work;	/* there is something to destage */
	uint64_t used;		/* blocks, those being destaged included */
	uint64_t dirty;		/* blocks with their bit set */
	uint64_t *dirty_map;
	uint32_t *zone_dirty;
	struct waiter *head, **tail;
	bool stop;
} cache = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
	.tail = &cache.head,
};

static uint64_t blocks;
static pthread_t destage_thread;

/* Time */

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * NSEC + t.tv_nsec;
}

static void sleep_until(int64_t when)
{
	struct timespec t = { .tv_sec = when / NSEC, .tv_nsec = when % NSEC };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static int64_t transfer_ns(uint64_t bytes, int64_t rate)
{
	return (int64_t)((double)bytes / (double)rate * NSEC);
}

/* The end of a transfer over the link that is asked for now. */
static int64_t use_link(uint64_t bytes)
{
	int64_t now = now_ns(), end;

	pthread_mutex_lock(&link_server.lock);
	if (link_server.free_at < now)
		link_server.free_at = now;
	link_server.free_at += transfer_ns(bytes, model.link);
	end = link_server.free_at;
	pthread_mutex_unlock(&link_server.lock);
	return end;
}

/*
 * The end of a media access asked for at `since`. A destage thread that woke up
 * late passes the end of its last run, so that the rate is right on average
 * however coarse the sleeps are. Passing over a gap costs a seek, or the time
 * the gap takes to pass under the heads where that is shorter.
 */
static int64_t use_media(int64_t since, uint64_t offset, uint64_t bytes)
{
	int64_t seek, end;

	pthread_mutex_lock(&media.lock);
	seek = model.seek_us * 1000ll;
	if (offset >= media.position) {
		int64_t gap = transfer_ns(offset - media.position, model.rate);

		if (gap < seek)
			seek = gap;
	}
	if (media.free_at < since)
		media.free_at = since;
	media.free_at += seek + transfer_ns(bytes, model.rate);
	media.position = offset + bytes;
	end = media.free_at;
	pthread_mutex_unlock(&media.lock);
	return end;
}

/* Cache; cache.lock is held in all of these */

static uint64_t clean_blocks(uint64_t first, uint64_t last)
{
	uint64_t n = 0;

	for (uint64_t b = first; b <= last; b++)
		n += !test_bit(cache.dirty_map, b);
	return n;
}

static bool try_admit(uint64_t first, uint64_t last)
{
	uint64_t need = clean_blocks(first, last);

	/* A request larger than the cache passes when the cache is empty. */
	if (cache.used && cache.used + need > (uint64_t)model.cache / BLOCK)
		return false;
	for (uint64_t b = first; b <= last; b++) {
		if (test_bit(cache.dirty_map, b))
			continue;
		set_bit(cache.dirty_map, b);
		cache.zone_dirty[b / ZONE_BLOCKS]++;
	}
	cache.used += need;
	cache.dirty += need;
	return true;
}

static void admit_waiters(void)
{
	while (cache.head && try_admit(cache.head->first, cache.head->last)) {
		struct waiter *w = cache.head;

		cache.head = w->next;
		if (!cache.head)
			cache.tail = &cache.head;
		w->done = true;
		pthread_cond_signal(&w->admitted);
	}
}

/* The next dirty block at or after `from`, in address order and round the end. */
static uint64_t next_dirty(uint64_t from)
{
	uint64_t b = from;

	for (;;) {
		uint64_t word;

		if (b >= blocks)
			b = 0;
		if (!cache.zone_dirty[b / ZONE_BLOCKS]) {
			b = (b / ZONE_BLOCKS + 1) * ZONE_BLOCKS;
			continue;
		}
		word = cache.dirty_map[b / WORD_BLOCKS] >> b % WORD_BLOCKS;
		if (word)
			return b + (uint64_t)__builtin_ctzll(word);
		b = (b / WORD_BLOCKS + 1) * WORD_BLOCKS;
	}
}

/* Takes a run of dirty blocks off the map; they count as used until destaged. */
static uint64_t take_run(uint64_t first)
{
	uint64_t n = 0;

	while (n < RUN_BLOCKS && first + n < blocks && test_bit(cache.dirty_map, first + n)) {
		clear_bit(cache.dirty_map, first + n);
		cache.zone_dirty[(first + n) / ZONE_BLOCKS]--;
		n++;
	}
	cache.dirty -= n;
	return n;
}

static void *destage(void *arg)
{
	uint64_t rotor = 0;
	int64_t since = now_ns();

	pthread_mutex_lock(&cache.lock);
	while (!cache.stop) {
		uint64_t first, n;

		if (!cache.dirty) {
			pthread_cond_wait(&cache.work, &cache.lock);
			since = now_ns();
			continue;
		}
		first = next_dirty(rotor);
		n = take_run(first);
		pthread_mutex_unlock(&cache.lock);

		since = use_media(since, first * BLOCK, n * BLOCK);
		if (since - now_ns() > BATCH_NS)
			sleep_until(since);

		pthread_mutex_lock(&cache.lock);
		cache.used -= n;
		rotor = first + n;
		admit_waiters();
	}
	pthread_mutex_unlock(&cache.lock);
	return NULL;
}

/* Waits until blocks [first, last] have a place in the cache. */
static void enter_cache(uint64_t first, uint64_t last)
{
	pthread_mutex_lock(&cache.lock);
	if (cache.head || !try_admit(first, last)) {
		struct waiter w = { .admitted = PTHREAD_COND_INITIALIZER, .first = first, .last = last };

		*cache.tail = &w;
		cache.tail = &w.next;
		while (!w.done)
			pthread_cond_wait(&w.admitted, &cache.lock);
	}
	pthread_cond_signal(&cache.work);
	pthread_mutex_unlock(&cache.lock);
}

/* Interface */

static int64_t reach_controller(uint64_t count)
{
	return use_link(count) + model.latency_us * 1000ll;
}

void model_write(uint64_t offset, uint64_t count)
{
	int64_t done = reach_controller(count);

	if (!model.writeback) {
		sleep_until(use_media(done, offset, count));
		return;
	}
	sleep_until(done);
	enter_cache(offset / BLOCK, (offset + count - 1) / BLOCK);
}

void model_read(uint64_t offset, uint64_t count)
{
	int64_t done = reach_controller(count);
	uint64_t missing;

	pthread_mutex_lock(&cache.lock);
	missing = clean_blocks(offset / BLOCK, (offset + count - 1) / BLOCK);
	pthread_mutex_unlock(&cache.lock);
	sleep_until(missing ? use_media(done, offset, missing * BLOCK) : done);
}

int model_init(void)
{
	/* Sleeps of 100 us would be 50 us too long with the default slack; threads inherit this. */
	prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
	blocks = ((uint64_t)model.size + BLOCK - 1) / BLOCK;
	cache.dirty_map = calloc(blocks / WORD_BLOCKS + 1, sizeof(*cache.dirty_map));
	cache.zone_dirty = calloc(blocks / ZONE_BLOCKS + 1, sizeof(*cache.zone_dirty));
	return cache.dirty_map && cache.zone_dirty ? 0 : ENOMEM;
}

int model_start(void)
{
	/* nbdkit 1.32 in the foreground dies with its parent: a killed run could not be unmounted. */
	prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
	return pthread_create(&destage_thread, NULL, destage, NULL);
}

void model_stop(void)
{
	pthread_mutex_lock(&cache.lock);
	cache.stop = true;
	pthread_cond_signal(&cache.work);
	pthread_mutex_unlock(&cache.lock);
	if (destage_thread)
		pthread_join(destage_thread, NULL);
}
