// SPDX-License-Identifier: GPL-2.0-or-later
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sys/prctl.h>

#include "bitmap.h"
#include "cache.h"
#include "clock.h"
#include "content.h"
#include "media.h"
#include "model.h"
#include "neighbour.h"

static struct {
	pthread_mutex_t lock;
	int64_t link_free_at;
	int64_t requests_paid, bytes_paid;	/* until when the caps are used up */
	double fail_writes_due, fail_reads_due;	/* parts of an error that add up to one */
} front = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int64_t stalled_until;

static struct {
	uint64_t bytes_in, bytes_read, writes, reads, read_hits, flushes, failed;
} totals;

static void count(uint64_t *total, uint64_t n)
{
	__atomic_fetch_add(total, n, __ATOMIC_RELAXED);
}

bool model_writes_through(void)
{
	return settings.writethrough || settings.cache < BLOCK;
}

/* The way to the controller */

static void wait_out_stall(void)
{
	int64_t until;

	while ((until = __atomic_load_n(&stalled_until, __ATOMIC_RELAXED)) > now_ns())
		sleep_until(until);
}

/* When a cap lets something pass that takes `cost`; what was saved up passes at once. */
static int64_t pay(int64_t *paid, int64_t now, int64_t cost)
{
	int64_t saved = now - (int64_t)(settings.burst_s * NSEC);

	if (*paid < saved)
		*paid = saved;
	*paid += cost;
	return *paid;
}

/* When a request may leave the host: front.lock is held. */
static int64_t pass_caps(int64_t now, uint64_t bytes)
{
	int64_t when = now, paid;

	if (settings.iops) {
		paid = pay(&front.requests_paid, now, NSEC / settings.iops);
		when = paid > when ? paid : when;
	}
	if (settings.bandwidth) {
		paid = pay(&front.bytes_paid, now,
			   transfer_ns((double)bytes, (double)settings.bandwidth));
		when = paid > when ? paid : when;
	}
	return when;
}

/* Whether this request is one of those that have to fail: front.lock is held. */
static bool fails(int64_t *left, double *due)
{
	if (!*left)
		return false;
	*due += settings.fail_share;
	if (*due < 1)
		return false;
	*due -= 1;
	--*left;
	count(&totals.failed, 1);
	return true;
}

/* When a request of so many bytes is at the controller; negative if it fails there. */
static int64_t reach_controller(uint64_t bytes, int64_t *fail, double *due)
{
	int64_t passed, end;
	bool failed;

	wait_out_stall();
	pthread_mutex_lock(&front.lock);
	passed = pass_caps(now_ns(), bytes);
	if (front.link_free_at < passed)
		front.link_free_at = passed;
	front.link_free_at += transfer_ns((double)bytes, (double)settings.link);
	end = front.link_free_at + settings.latency_us * 1000;
	failed = fails(fail, due);
	pthread_mutex_unlock(&front.lock);
	return failed ? -end : end;
}

/* Interface */

int model_write(uint64_t offset, uint64_t bytes)
{
	uint64_t first = offset / BLOCK, last = (offset + bytes - 1) / BLOCK;
	int64_t done = reach_controller(bytes, &settings.fail_writes, &front.fail_writes_due);

	if (done < 0) {
		sleep_until(-done);
		return EIO;
	}
	if (model_writes_through()) {
		sleep_until(media_write(done, offset, bytes));
		media_use(first, last - first + 1);
		cache_keep(first, last);
	} else {
		sleep_until(done);
		cache_enter((struct extent){ first, last - first + 1, 1, 1 });
	}
	count(&totals.writes, 1);
	count(&totals.bytes_in, bytes);
	return 0;
}

int model_read(uint64_t offset, uint64_t bytes)
{
	uint64_t first = offset / BLOCK, last = (offset + bytes - 1) / BLOCK, missing;
	int64_t done = reach_controller(bytes, &settings.fail_reads, &front.fail_reads_due);

	if (done < 0) {
		sleep_until(-done);
		return EIO;
	}
	missing = cache_missing(first, last);
	if (missing) {
		sleep_until(media_read(done, offset, missing * BLOCK));
		cache_keep(first, last);
	} else {
		sleep_until(done);
		count(&totals.read_hits, 1);
	}
	count(&totals.reads, 1);
	count(&totals.bytes_read, bytes);
	return 0;
}

int model_flush(void)
{
	wait_out_stall();
	count(&totals.flushes, 1);
	sleep_until(now_ns() + settings.latency_us * 1000);
	if (!settings.protected)
		cache_flush();
	return 0;
}

int model_trim(uint64_t offset, uint64_t bytes)
{
	uint64_t first = (offset + BLOCK - 1) / BLOCK, end = (offset + bytes) / BLOCK;

	wait_out_stall();
	sleep_until(now_ns() + settings.latency_us * 1000);
	if (first < end) {
		cache_discard(first, end - 1);
		media_discard(first, end - first);
	}
	return 0;
}

void model_changed(void)
{
	if (settings.stall > 0) {
		int64_t until = now_ns() + (int64_t)(settings.stall * NSEC);

		settings.stall = 0;
		__atomic_store_n(&stalled_until, until, __ATOMIC_RELAXED);
		media_stall(until);
	}
	cache_recheck();
	neighbour_changed();
}

void model_print(FILE *to)
{
	struct cache_state c = cache_state();
	uint64_t whole, part;

	media_stripes(&whole, &part);
	fprintf(to, "\"fill\": %" PRIu64 ", \"neighbour_fill\": %" PRIu64 ", \"capacity\": %" PRId64
		", \"through\": %s, \"waiters\": %" PRIu64 ", \"drain_rate\": %.0f"
		", \"used_share\": %g, \"bytes_in\": %" PRIu64 ", \"bytes_read\": %" PRIu64
		", \"bytes_dirtied\": %" PRIu64 ", \"bytes_destaged\": %" PRIu64
		", \"bytes_discarded\": %" PRIu64 ", \"writes\": %" PRIu64 ", \"reads\": %" PRIu64
		", \"read_hits\": %" PRIu64 ", \"flushes\": %" PRIu64 ", \"failed\": %" PRIu64
		", \"stripes_whole\": %" PRIu64 ", \"stripes_part\": %" PRIu64,
		c.fill, c.neighbour_fill, settings.cache, model_writes_through() ? "true" : "false",
		c.waiters, media_write_rate(), media_used_share(), totals.bytes_in,
		totals.bytes_read, c.dirtied, c.destaged, c.discarded, totals.writes,
		totals.reads, totals.read_hits, totals.flushes, totals.failed, whole, part);
}

int model_init(void)
{
	uint64_t own = ((uint64_t)settings.size + BLOCK - 1) / BLOCK;
	uint64_t stripe = (uint64_t)(settings.chunk * settings.spindles) / BLOCK;
	uint64_t theirs = (own + stripe - 1) / stripe * stripe;

	/* Sleeps of 100 us would be 50 us too long with the default slack; threads inherit this. */
	prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
	neighbour_init(theirs);
	if (content_init(own) || media_init(own) || cache_init(theirs, theirs + NEIGHBOUR_BLOCKS))
		return ENOMEM;
	return 0;
}

int model_start(void)
{
	int err;

	/* nbdkit 1.32 in the foreground dies with its parent: a killed run could not be unmounted. */
	prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
	err = cache_start();
	if (!err)
		err = neighbour_start();
	if (!err)
		model_changed();
	return err;
}

void model_stop(void)
{
	neighbour_stop();
	cache_stop();
}
