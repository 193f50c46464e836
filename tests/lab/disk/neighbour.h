// SPDX-License-Identifier: GPL-2.0-or-later
/* Another host that writes to the same array: same cache, same media, other addresses. */
#ifndef NEIGHBOUR_H
#define NEIGHBOUR_H

#include <stdint.h>

#define NEIGHBOUR_BLOCKS (1u << 20)	/* its part of the array */

void neighbour_init(uint64_t first);
int neighbour_start(void);	/* 0 or an errno */
void neighbour_changed(void);
void neighbour_stop(void);

#endif
