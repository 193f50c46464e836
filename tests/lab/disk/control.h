// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A unix socket to watch and change a running disk. Lines; each gets one line:
 *
 *   get              ok {"fill": 4096, ..., "settings": {"rate": 262144000, ...}}
 *   set KEY VALUE    ok
 *   anything else    error REASON
 */
#ifndef CONTROL_H
#define CONTROL_H

/* Returns 0 or an errno. */
int control_start(const char *path);
void control_stop(void);

#endif
