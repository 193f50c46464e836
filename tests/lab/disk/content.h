// SPDX-License-Identifier: GPL-2.0-or-later
/* How well data would compress, for drives whose rate depends on it. */
#ifndef CONTENT_H
#define CONTENT_H

#include <stdint.h>

int content_init(uint64_t blocks);

/* Looks at data that is being written. Does nothing while the drive does not compress. */
void content_note(const char *buf, uint64_t count, uint64_t offset);

/* How many incompressible bytes take the media as long as these do. */
double content_cost(uint64_t offset, uint64_t bytes);

#endif
