// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What a disk is like, and what it is told while it runs. Aligned words that one
 * thread (control.c) writes and the others read, so that a reader sees the old
 * value or the new one.
 */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MAX_DISKS 64u	/* spindles and parity */

struct settings {		/* sizes in bytes, rates in bytes per second */
	int64_t size;
	/* the way in, and the write cache */
	int64_t link;
	int64_t latency_us;
	int64_t cache;		/* 0: none, every write waits for the media */
	int64_t writethrough;	/* the same by command; what is dirty is destaged all the same */
	int64_t protected;	/* no: a flush waits until what was dirty is on the media */
	double destage_high;	/* destage from this share of the cache on ... */
	double destage_low;	/* ... until it is down to this one; high 0: always */
	double destage_s;	/* at what is dirty in so many seconds; 0: as the media can */
	int64_t read_cache;	/* of what was written or read last, first in first out */
	/* the media */
	int64_t rate;		/* of all spindles together, in sequence */
	int64_t seek_us;	/* of one spindle; a short way forward takes what it takes */
	int64_t scatter_us;	/* media time of a run that follows on no other, however near */
	int64_t spindles;	/* that hold data */
	int64_t chunk;		/* bytes in a row on one spindle */
	int64_t parity;		/* spindles more; less than a stripe is read before it is written */
	double rebuild;		/* share of the media's time that a rebuild takes */
	/* flash */
	double fill;		/* share in use at the start; blocks ever written add to it */
	double gc_start;	/* the write rate falls from 1 at this share in use ... */
	double gc_floor;	/* ... to this factor when all is in use */
	double gc_swing_s;	/* so long it does, then it does not; 0: always */
	double compress;	/* factor on the time that a block takes whose bytes are all equal */
	/* caps and neighbours */
	int64_t iops;		/* requests per second; 0: no cap */
	int64_t bandwidth;	/* 0: no cap */
	double burst_s;		/* seconds of the caps that are saved up while there is no load */
	int64_t neighbour;	/* written to the same cache and media by another host */
	int64_t neighbour_random;
	/* commands, for tests of what is above the disk */
	double stall;		/* seconds from now in which nothing gets done */
	int64_t fail_writes;	/* so many of the next requests end with EIO ... */
	int64_t fail_reads;
	double fail_share;	/* ... spread over so many times more of them */
};

extern struct settings settings;

/* False, with the reason in `error`, when there is no such key or it cannot have the value. */
bool settings_set(const char *key, const char *value, bool running, char *error, size_t size);

/* False, with the reason in `error`, when values do not go together. */
bool settings_check(char *error, size_t size);

/* "key": value, ... as JSON has it. */
void settings_print(FILE *to);

#endif
