// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <pthread.h>

#include "bitmap.h"
#include "clock.h"
#include "content.h"
#include "media.h"

static struct {
	pthread_mutex_t lock;
	struct {
		int64_t free_at;
		uint64_t position;	/* where its last transfer ended: going on needs no seek */
	} disk[MAX_DISKS];
	int64_t stalled_until;
	int64_t started;
	uint64_t blocks;
	uint64_t used;			/* blocks that were ever written */
	uint64_t *used_map;
	uint64_t whole, part;		/* stripes written, of an array with parity */
} media = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int64_t later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/*
 * Garbage collection takes the more of the media's time the fuller the drive
 * is; it may come in phases, the first of which begins with the disk.
 */
static double gc_factor(void)
{
	double share = media_used_share(), over;

	if (share <= settings.gc_start)
		return 1;
	if (settings.gc_swing_s > 0 &&
	    (int64_t)((double)(now_ns() - media.started) / (settings.gc_swing_s * NSEC)) % 2)
		return 1;
	over = (share - settings.gc_start) / (1 - settings.gc_start);
	return 1 - (1 - settings.gc_floor) * over;
}

double media_write_rate(void)
{
	return (double)settings.rate * (1 - settings.rebuild) * gc_factor();
}

static double read_rate(void)
{
	return (double)settings.rate * (1 - settings.rebuild);
}

/*
 * One disk of the array. Passing over a gap costs a seek, or the time the gap
 * takes to pass under the heads where that is shorter. A destage thread that
 * woke up late passes the end of its last run for `since`, so that the rate is
 * right on average however coarse the sleeps are. What does not go on where the
 * last transfer ended takes `scatter_us` at least, however near it is.
 */
static int64_t use_disk(uint64_t disk, int64_t since, uint64_t position, uint64_t bytes,
			int64_t transfer)
{
	int64_t seek = settings.seek_us * 1000, start;
	uint64_t last = media.disk[disk].position;

	if (position >= last) {
		int64_t gap = transfer_ns((double)(position - last),
					  (double)settings.rate / (double)settings.spindles);

		if (gap < seek)
			seek = gap;
	}
	if (position != last && seek < settings.scatter_us * 1000)
		seek = settings.scatter_us * 1000;
	start = later(later(since, media.disk[disk].free_at), media.stalled_until);
	media.disk[disk].free_at = start + seek + transfer;
	media.disk[disk].position = position + bytes;
	return media.disk[disk].free_at;
}

/*
 * Unit u of the volume, a chunk, is on disk u modulo all disks, and the parity
 * of a stripe on the disks after its last unit: it rotates, as in RAID 5 and 6.
 */
static uint64_t disks(void)
{
	return (uint64_t)(settings.spindles + settings.parity);
}

static uint64_t position_of(uint64_t offset)
{
	uint64_t chunk = (uint64_t)settings.chunk, stripe = chunk * (uint64_t)settings.spindles;

	return offset / stripe * chunk + offset % chunk;
}

static int64_t use_unit(int64_t since, uint64_t offset, uint64_t bytes, int64_t transfer)
{
	return use_disk(offset / (uint64_t)settings.chunk % disks(), since, position_of(offset),
			bytes, transfer);
}

/* The longest piece of [offset, offset + bytes) that does not pass a multiple of `unit`. */
static uint64_t piece(uint64_t offset, uint64_t bytes, uint64_t unit)
{
	uint64_t n = unit - offset % unit;

	return n < bytes ? n : bytes;
}

int64_t media_read(int64_t since, uint64_t offset, uint64_t bytes)
{
	double rate = read_rate() / (double)settings.spindles;
	int64_t end = since;

	pthread_mutex_lock(&media.lock);
	for (uint64_t n; bytes; offset += n, bytes -= n) {
		n = settings.spindles == 1 ? bytes : piece(offset, bytes, (uint64_t)settings.chunk);
		end = later(end, use_unit(since, offset, n, transfer_ns((double)n, rate)));
	}
	pthread_mutex_unlock(&media.lock);
	return end;
}

/* Stripes: media.lock is held */

/*
 * A whole stripe is written as it is, its parity by the other disks meanwhile.
 * Of anything less, old data and old parity are read, and when the place comes
 * round again (another seek) new data and new parity are written.
 */
static int64_t write_stripe(int64_t since, const struct part *parts)
{
	uint64_t chunk = (uint64_t)settings.chunk, units = (uint64_t)settings.spindles;
	double rate = media_write_rate() / (double)units;
	uint64_t stripe = 0, longest = 0, total = 0;
	int64_t again, end = since;

	for (uint64_t i = 0; i < units; i++) {
		total += parts[i].bytes;
		if (parts[i].bytes > longest)
			longest = parts[i].bytes;
		if (parts[i].bytes)
			stripe = parts[i].offset / (chunk * units);
	}
	again = total < chunk * units ? settings.seek_us * 1000 : 0;
	if (settings.parity)
		*(again ? &media.part : &media.whole) += 1;
	for (uint64_t i = 0; i < units; i++) {
		uint64_t bytes = parts[i].bytes;
		double cost = content_cost(parts[i].offset, bytes);

		if (!bytes)
			continue;
		if (again)
			cost += (double)bytes;
		end = later(end, use_unit(since, parts[i].offset, bytes,
					  again + transfer_ns(cost, rate)));
	}
	for (uint64_t i = 0; i < (uint64_t)settings.parity; i++) {
		double cost = (double)longest * (again ? 2 : 1);

		end = later(end, use_disk(((stripe + 1) * units + i) % disks(), since,
					  stripe * chunk, longest, again + transfer_ns(cost, rate)));
	}
	return end;
}

int64_t media_write_stripe(int64_t since, const struct part *parts)
{
	int64_t end;

	pthread_mutex_lock(&media.lock);
	end = write_stripe(since, parts);
	pthread_mutex_unlock(&media.lock);
	return end;
}

/* The pieces of one request, stripe by stripe. */
static int64_t write_stripes(int64_t since, uint64_t offset, uint64_t bytes)
{
	uint64_t chunk = (uint64_t)settings.chunk, stripe = chunk * (uint64_t)settings.spindles;
	int64_t end = since;

	while (bytes) {
		struct part parts[MAX_DISKS] = { 0 };
		uint64_t left = piece(offset, bytes, stripe);

		bytes -= left;
		for (uint64_t n; left; offset += n, left -= n) {
			n = piece(offset, left, chunk);
			parts[offset % stripe / chunk] = (struct part){ offset, n };
		}
		end = later(end, write_stripe(since, parts));
	}
	return end;
}

int64_t media_write(int64_t since, uint64_t offset, uint64_t bytes)
{
	double rate = media_write_rate() / (double)settings.spindles;
	int64_t end = since;

	pthread_mutex_lock(&media.lock);
	if (settings.parity) {
		end = write_stripes(since, offset, bytes);
		bytes = 0;
	}
	for (uint64_t n; bytes; offset += n, bytes -= n) {
		n = settings.spindles == 1 ? bytes : piece(offset, bytes, (uint64_t)settings.chunk);
		end = later(end, use_unit(since, offset, n,
					  transfer_ns(content_cost(offset, n), rate)));
	}
	pthread_mutex_unlock(&media.lock);
	return end;
}

void media_stall(int64_t until)
{
	pthread_mutex_lock(&media.lock);
	media.stalled_until = later(media.stalled_until, until);
	pthread_mutex_unlock(&media.lock);
}

void media_use(uint64_t first, uint64_t blocks)
{
	pthread_mutex_lock(&media.lock);
	for (uint64_t b = first; b < first + blocks; b++) {
		media.used += !test_bit(media.used_map, b);
		set_bit(media.used_map, b);
	}
	pthread_mutex_unlock(&media.lock);
}

void media_discard(uint64_t first, uint64_t blocks)
{
	pthread_mutex_lock(&media.lock);
	for (uint64_t b = first; b < first + blocks; b++) {
		media.used -= test_bit(media.used_map, b);
		clear_bit(media.used_map, b);
	}
	pthread_mutex_unlock(&media.lock);
}

double media_used_share(void)
{
	double share = settings.fill + (double)media.used / (double)media.blocks;

	return share < 1 ? share : 1;
}

void media_stripes(uint64_t *whole, uint64_t *part)
{
	pthread_mutex_lock(&media.lock);
	*whole = media.whole;
	*part = media.part;
	pthread_mutex_unlock(&media.lock);
}

int media_init(uint64_t blocks)
{
	media.blocks = blocks;
	media.started = now_ns();
	media.used_map = new_bitmap(blocks);
	return media.used_map ? 0 : ENOMEM;
}
