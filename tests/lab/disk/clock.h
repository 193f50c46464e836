// SPDX-License-Identifier: GPL-2.0-or-later
/* Times are CLOCK_MONOTONIC nanoseconds: right in a virtual machine's virtual time, too. */
#ifndef CLOCK_H
#define CLOCK_H

#include <errno.h>
#include <stdint.h>
#include <time.h>

#define NSEC 1000000000ll

static inline int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * NSEC + t.tv_nsec;
}

static inline struct timespec timespec_of(int64_t when)
{
	return (struct timespec){ .tv_sec = when / NSEC, .tv_nsec = when % NSEC };
}

static inline void sleep_until(int64_t when)
{
	struct timespec t = timespec_of(when);

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static inline int64_t transfer_ns(double bytes, double rate)
{
	return (int64_t)(bytes / rate * NSEC);
}

#endif
