// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A disk behind a controller with a write cache, as far as time goes:
 *
 *   request -> caps -> link (bytes/s, one transfer at a time) -> cache (capacity,
 *   first come first served) -> destage thread -> media (spindles: seek + bytes/rate)
 *
 * A write is done when it is in the cache, so it takes about latency_us until
 * the cache is full and from then on waits for the destage to make room. That
 * gives the bimodal completion times of the real thing. Reads are served from
 * the caches or compete for the media. settings.h tells what else there is.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Both return 0 or an errno. model_start makes threads, so it comes after any fork. */
int model_init(void);
int model_start(void);
void model_stop(void);

/* Return when a disk like this would have done it, 0 or an errno; count > 0. */
int model_write(uint64_t offset, uint64_t count);
int model_read(uint64_t offset, uint64_t count);
int model_flush(void);
int model_trim(uint64_t offset, uint64_t count);

/* Whether writes wait for the media now. */
bool model_writes_through(void);

/* Settings were changed. */
void model_changed(void);

/*
 * "key": value, ... as JSON has it. Bytes: fill (what the cache holds that is not
 * on the media, the neighbour's part included), neighbour_fill, capacity; totals
 * since the start: bytes_in, bytes_read, bytes_dirtied, bytes_destaged,
 * bytes_discarded, writes, reads, read_hits, flushes, failed, and with parity
 * stripes_whole and stripes_part, written so by the destage. waiters: writes that
 * wait for room now. drain_rate: bytes/s of a sequential destage now. used_share:
 * how full the drive is. through: whether writes wait for the media.
 */
void model_print(FILE *to);

#endif
