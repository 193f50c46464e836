// SPDX-License-Identifier: GPL-2.0-or-later
#define _GNU_SOURCE
#include <pthread.h>

#include "cache.h"
#include "clock.h"
#include "media.h"
#include "sets.h"

#define RUN_BLOCKS 64u		/* longest single destage: room appears every 1 ms at 250 MB/s */
#define BATCH_NS 500000		/* short destages share a sleep: wake-ups cost the host's CPU */
#define PACED_NS 50000000	/* longest paced destage: what comes meanwhile waits for its end */
#define RUNS_PER_DISK 4u	/* so many are under way when there are several disks to keep busy */
#define MAX_RUNS (MAX_DISKS * RUNS_PER_DISK)

struct waiter {			/* a write that waits for room */
	pthread_cond_t admitted;
	struct extent extent;
	bool done;
	struct waiter *next;
};

struct run {			/* being destaged; counts as used until it is */
	int64_t end;
	uint64_t blocks;
	bool neighbour;
	bool flush;		/* a flush waits for it */
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work;	/* there is something to destage */
	uint64_t own, all;	/* blocks of addresses */
	uint64_t used;		/* blocks, those being destaged included */
	uint64_t neighbour_used;
	/*
	 * New dirty blocks go to one set. A flush makes that the set to destage
	 * first, and the other one, empty then, takes what is written meanwhile:
	 * so a flush has an end however much is written beside it.
	 */
	struct dirty_set sets[2];
	struct dirty_set *filling, *flushing;
	uint64_t rotor;		/* destaging goes on from here */
	struct run runs[MAX_RUNS];
	unsigned flying;
	bool firing;		/* the high threshold was reached, the low one was not yet */
	bool flush_on;
	uint64_t flushes_begun, flushes_wanted, flushes_done;
	pthread_cond_t flushed;
	struct waiter *head, **tail;
	uint64_t waiters;
	uint64_t dirtied, destaged, discarded;
	struct recent_set clean;
	bool stop;
} cache = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.flushed = PTHREAD_COND_INITIALIZER,
	.filling = &cache.sets[0],
	.flushing = &cache.sets[1],
	.tail = &cache.head,
};

static pthread_t destage_thread;

/* cache.lock is held in all of these */

static bool is_dirty(uint64_t b)
{
	return test_bit(cache.filling->map, b) ||
	       (cache.flushing->blocks && test_bit(cache.flushing->map, b));
}

static void keep_clean(uint64_t b)
{
	if (b < cache.own)
		recent_add(&cache.clean, b);
}

static bool try_admit(const struct extent *e)
{
	uint64_t end = e->first + e->pieces * e->step, need = 0;

	for (uint64_t first = e->first; first < end; first += e->step)
		for (uint64_t b = first; b < first + e->blocks; b++)
			need += !is_dirty(b);
	/* A request larger than the cache passes when the cache is empty. */
	if (cache.used && cache.used + need > (uint64_t)settings.cache / BLOCK)
		return false;
	for (uint64_t first = e->first; first < end; first += e->step)
		for (uint64_t b = first; b < first + e->blocks; b++)
			if (!is_dirty(b))
				dirty_add(cache.filling, b);
	cache.used += need;
	cache.dirtied += need;
	if (e->first >= cache.own)
		cache.neighbour_used += need;
	return true;
}

static void admit_waiters(void)
{
	while (cache.head && try_admit(&cache.head->extent)) {
		struct waiter *w = cache.head;

		cache.head = w->next;
		if (!cache.head)
			cache.tail = &cache.head;
		w->done = true;
		cache.waiters--;
		pthread_cond_signal(&w->admitted);
	}
}

static void begin_flush(void)
{
	struct dirty_set *full = cache.filling;

	cache.filling = cache.flushing;
	cache.flushing = full;
	cache.flush_on = true;
	cache.flushes_begun++;
	for (unsigned i = 0; i < cache.flying; i++)
		cache.runs[i].flush = true;
	pthread_cond_signal(&cache.work);
}

static bool flush_has_work(void)
{
	if (cache.flushing->blocks)
		return true;
	for (unsigned i = 0; i < cache.flying; i++)
		if (cache.runs[i].flush)
			return true;
	return false;
}

/* Those who asked for a flush while one was going on share the next one. */
static void end_flush(void)
{
	while (cache.flush_on && !flush_has_work()) {
		cache.flush_on = false;
		cache.flushes_done = cache.flushes_begun;
		if (cache.flushes_wanted > cache.flushes_done)
			begin_flush();
		pthread_cond_broadcast(&cache.flushed);
	}
}

/* Takes a run of dirty blocks off the set; `limit` is where it may not go on. */
static uint64_t take_run(struct dirty_set *set, uint64_t first, uint64_t limit)
{
	uint64_t n = 0;

	while (first + n < limit && test_bit(set->map, first + n)) {
		dirty_remove(set, first + n);
		keep_clean(first + n);
		n++;
	}
	if (n && first < cache.own)
		media_use(first, n);
	return n;
}

static uint64_t lower(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* All that is dirty in the stripe of block `first`: parity is cheaper by the stripe. */
static int64_t destage_stripe(struct dirty_set *set, int64_t since, uint64_t first, uint64_t *taken)
{
	uint64_t chunk = (uint64_t)settings.chunk / BLOCK;
	uint64_t stripe = first / (chunk * (uint64_t)settings.spindles) * chunk *
			  (uint64_t)settings.spindles;
	struct part parts[MAX_DISKS] = { 0 };

	*taken = 0;
	for (uint64_t i = 0; i < (uint64_t)settings.spindles; i++) {
		uint64_t b = stripe + i * chunk, limit = lower(b + chunk, cache.all);

		while (b < limit) {
			uint64_t n = take_run(set, b, limit);

			if (n && !parts[i].bytes)
				parts[i].offset = b * BLOCK;
			parts[i].bytes += n * BLOCK;
			*taken += n;
			b += n + 1;
		}
	}
	cache.rotor = stripe + chunk * (uint64_t)settings.spindles;
	return media_write_stripe(since, parts);
}

/* One run, from where the last one ended: as short as the unit of the stripes allows. */
static int64_t destage_run(struct dirty_set *set, int64_t since, uint64_t first, uint64_t *taken)
{
	uint64_t limit = lower(first + RUN_BLOCKS, cache.all);

	if (settings.spindles > 1) {
		uint64_t chunk = (uint64_t)settings.chunk / BLOCK;

		limit = lower(limit, (first / chunk + 1) * chunk);
	}
	*taken = take_run(set, first, limit);
	cache.rotor = first + *taken;
	return media_write(since, first * BLOCK, *taken * BLOCK);
}

/* Whether what is dirty is to be destaged now: between two thresholds in bursts. */
static bool is_due(void)
{
	double used = (double)cache.used * BLOCK / (double)settings.cache;

	if (used >= settings.destage_high)
		cache.firing = true;
	else if (used <= settings.destage_low)
		cache.firing = false;
	return cache.firing || cache.flush_on || cache.head;
}

/* The time that so many blocks get where all that is dirty has destage_s. */
static int64_t paced_ns(uint64_t blocks)
{
	double ns = settings.destage_s * NSEC * (double)blocks / (double)cache.used;

	return ns < PACED_NS ? (int64_t)ns : PACED_NS;
}

static void destage_next(int64_t since, unsigned most)
{
	struct dirty_set *set = cache.flushing->blocks ? cache.flushing : cache.filling;
	uint64_t first = dirty_next(set, cache.rotor);
	struct run *run = &cache.runs[cache.flying++];
	int64_t paced;

	run->neighbour = first >= cache.own;
	run->flush = cache.flush_on && set == cache.flushing;
	run->end = settings.parity ? destage_stripe(set, since, first, &run->blocks)
				   : destage_run(set, since, first, &run->blocks);
	paced = since + paced_ns(run->blocks * most);
	if (!cache.flush_on && run->end < paced)
		run->end = paced;
}

static unsigned first_to_end(void)
{
	unsigned first = 0;

	for (unsigned i = 1; i < cache.flying; i++)
		if (cache.runs[i].end < cache.runs[first].end)
			first = i;
	return first;
}

static void finish_run(unsigned i)
{
	struct run run = cache.runs[i];

	cache.runs[i] = cache.runs[--cache.flying];
	cache.used -= run.blocks;
	cache.destaged += run.blocks;
	if (run.neighbour)
		cache.neighbour_used -= run.blocks;
	end_flush();
	admit_waiters();
}

/* Waits for new work, until `until` at the latest (0: for ever). */
static void wait_for_work(int64_t until)
{
	struct timespec t = timespec_of(until);

	if (until)
		pthread_cond_timedwait(&cache.work, &cache.lock, &t);
	else
		pthread_cond_wait(&cache.work, &cache.lock);
}

/*
 * How early a run may be called done. Where flushes count, the last one and those
 * that a flush waits for end exactly when they do: a flush is often about 4 KB.
 */
static int64_t slack(bool dirty)
{
	return settings.protected || (dirty && !cache.flush_on) ? BATCH_NS : 0;
}

static void *destage(void *arg)
{
	unsigned disks = (unsigned)(settings.spindles + settings.parity);
	unsigned most = disks > 1 ? disks * RUNS_PER_DISK : 1;
	int64_t since = now_ns();

	pthread_mutex_lock(&cache.lock);
	while (!cache.stop) {
		bool dirty = cache.filling->blocks + cache.flushing->blocks && is_due();
		unsigned next = first_to_end();
		int64_t end = cache.flying ? cache.runs[next].end : 0;

		if (dirty && cache.flying < most) {
			destage_next(since, most);
		} else if (cache.flying && end - now_ns() <= slack(dirty)) {
			finish_run(next);
			since = end;
		} else if (dirty) {
			pthread_mutex_unlock(&cache.lock);
			sleep_until(end);
			pthread_mutex_lock(&cache.lock);
		} else {
			wait_for_work(end);
			since = now_ns();
		}
	}
	pthread_mutex_unlock(&cache.lock);
	return NULL;
}

/* Interface */

static void wait_for_room(struct extent extent)
{
	struct waiter w = { .admitted = PTHREAD_COND_INITIALIZER, .extent = extent };

	if (extent.first >= cache.own) {
		w.next = cache.head;
		if (!cache.head)
			cache.tail = &w.next;
		cache.head = &w;
	} else {
		*cache.tail = &w;
		cache.tail = &w.next;
	}
	cache.waiters++;
	pthread_cond_signal(&cache.work);
	while (!w.done)
		pthread_cond_wait(&w.admitted, &cache.lock);
}

void cache_enter(struct extent extent)
{
	pthread_mutex_lock(&cache.lock);
	if (cache.head || !try_admit(&extent))
		wait_for_room(extent);
	pthread_cond_signal(&cache.work);
	pthread_mutex_unlock(&cache.lock);
}

void cache_flush(void)
{
	uint64_t wanted;

	pthread_mutex_lock(&cache.lock);
	if (cache.used) {
		wanted = cache.flushes_begun + 1;
		cache.flushes_wanted = wanted;
		if (!cache.flush_on)
			begin_flush();
		while (cache.flushes_done < wanted)
			pthread_cond_wait(&cache.flushed, &cache.lock);
	}
	pthread_mutex_unlock(&cache.lock);
}

void cache_discard(uint64_t first, uint64_t last)
{
	pthread_mutex_lock(&cache.lock);
	for (unsigned i = 0; i < 2; i++)
		for (uint64_t b = first; b <= last && cache.sets[i].blocks; b++) {
			if (!test_bit(cache.sets[i].map, b))
				continue;
			dirty_remove(&cache.sets[i], b);
			cache.used--;
			cache.discarded++;
		}
	end_flush();
	admit_waiters();
	pthread_mutex_unlock(&cache.lock);
}

uint64_t cache_missing(uint64_t first, uint64_t last)
{
	uint64_t n = 0;

	pthread_mutex_lock(&cache.lock);
	for (uint64_t b = first; b <= last; b++)
		n += !is_dirty(b) && !test_bit(cache.clean.map, b);
	pthread_mutex_unlock(&cache.lock);
	return n;
}

void cache_keep(uint64_t first, uint64_t last)
{
	pthread_mutex_lock(&cache.lock);
	for (uint64_t b = first; b <= last; b++)
		keep_clean(b);
	pthread_mutex_unlock(&cache.lock);
}

void cache_recheck(void)
{
	pthread_mutex_lock(&cache.lock);
	admit_waiters();
	pthread_cond_signal(&cache.work);
	pthread_mutex_unlock(&cache.lock);
}

struct cache_state cache_state(void)
{
	struct cache_state state;

	pthread_mutex_lock(&cache.lock);
	state = (struct cache_state){
		.fill = cache.used * BLOCK, .neighbour_fill = cache.neighbour_used * BLOCK,
		.dirtied = cache.dirtied * BLOCK, .destaged = cache.destaged * BLOCK,
		.discarded = cache.discarded * BLOCK, .waiters = cache.waiters,
	};
	pthread_mutex_unlock(&cache.lock);
	return state;
}

int cache_init(uint64_t own, uint64_t all)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&cache.work, &attr);
	cache.own = own;
	cache.all = all;
	if (dirty_init(&cache.sets[0], all) || dirty_init(&cache.sets[1], all) ||
	    recent_init(&cache.clean, own, (uint64_t)settings.read_cache / BLOCK))
		return ENOMEM;
	return 0;
}

int cache_start(void)
{
	return pthread_create(&destage_thread, NULL, destage, NULL);
}

void cache_stop(void)
{
	pthread_mutex_lock(&cache.lock);
	cache.stop = true;
	pthread_cond_signal(&cache.work);
	pthread_mutex_unlock(&cache.lock);
	if (destage_thread)
		pthread_join(destage_thread, NULL);
}
