// SPDX-License-Identifier: GPL-2.0-or-later
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control.h"
#include "model.h"
#include "settings.h"

#define CLIENTS 8	/* one more closes the connection of the first */
#define LINE 256

struct client {
	int fd;
	size_t used;
	char line[LINE];
};

static struct {
	struct sockaddr_un address;
	int listener, stop;
	pthread_t thread;
	struct client clients[CLIENTS];	/* the oldest first */
	unsigned count;
} control;

static void answer_get(FILE *to)
{
	fputs("ok {", to);
	model_print(to);
	fputs(", \"settings\": {", to);
	settings_print(to);
	fputs("}}\n", to);
}

static void answer_set(FILE *to, char *rest)
{
	char *key = strtok_r(rest, " ", &rest), *value = strtok_r(NULL, " ", &rest), error[128];

	if (!key || !value || strtok_r(NULL, " ", &rest)) {
		fputs("error write: set KEY VALUE\n", to);
	} else if (!settings_set(key, value, true, error, sizeof(error))) {
		fprintf(to, "error %s\n", error);
	} else {
		model_changed();
		fputs("ok\n", to);
	}
}

/* False when the client is to be dropped: it does not take its answer, or there is no memory. */
static bool answer(struct client *c, char *line)
{
	char *text = NULL;
	size_t size = 0;
	FILE *to = open_memstream(&text, &size);
	bool sent;

	if (!to)
		return false;
	if (!strcmp(line, "get"))
		answer_get(to);
	else if (!strncmp(line, "set ", 4))
		answer_set(to, line + 4);
	else
		fputs("error there are: get, set KEY VALUE\n", to);
	fclose(to);
	sent = send(c->fd, text, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
	free(text);
	return sent;
}

/* False when the client is to be dropped. */
static bool serve(struct client *c)
{
	static const char too_long[] = "error the line is too long\n";
	ssize_t n = recv(c->fd, c->line + c->used, LINE - c->used, MSG_DONTWAIT);
	char *line = c->line, *end;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	c->used += (size_t)n;
	while ((end = memchr(line, '\n', c->used))) {
		*end = '\0';
		if (!answer(c, line))
			return false;
		c->used -= (size_t)(end + 1 - line);
		line = end + 1;
	}
	memmove(c->line, line, c->used);
	if (c->used < LINE)
		return true;
	send(c->fd, too_long, sizeof(too_long) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	return false;
}

static void drop(unsigned i)
{
	close(control.clients[i].fd);
	control.count--;
	memmove(&control.clients[i], &control.clients[i + 1],
		(control.count - i) * sizeof(control.clients[0]));
}

static void accept_client(void)
{
	int fd = accept4(control.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	if (control.count == CLIENTS)
		drop(0);
	control.clients[control.count++] = (struct client){ .fd = fd };
}

static void *serve_all(void *arg)
{
	for (;;) {
		struct pollfd fds[CLIENTS + 2] = {
			{ .fd = control.stop, .events = POLLIN },
			{ .fd = control.listener, .events = POLLIN },
		};

		for (unsigned i = 0; i < control.count; i++)
			fds[i + 2] = (struct pollfd){ .fd = control.clients[i].fd, .events = POLLIN };
		if (poll(fds, control.count + 2, -1) < 0)
			continue;
		if (fds[0].revents)
			return NULL;
		/* From the last one down, so that dropping one moves none that is still to come. */
		for (unsigned i = control.count; i-- > 0;)
			if (fds[i + 2].revents && !serve(&control.clients[i]))
				drop(i);
		if (fds[1].revents)
			accept_client();
	}
}

int control_start(const char *path)
{
	control.address.sun_family = AF_UNIX;
	if (strlen(path) >= sizeof(control.address.sun_path))
		return ENAMETOOLONG;
	strcpy(control.address.sun_path, path);
	control.stop = eventfd(0, EFD_CLOEXEC);
	control.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (control.stop < 0 || control.listener < 0 ||
	    bind(control.listener, (struct sockaddr *)&control.address, sizeof(control.address)) ||
	    listen(control.listener, SOMAXCONN))
		return errno;
	return pthread_create(&control.thread, NULL, serve_all, NULL);
}

void control_stop(void)
{
	if (!control.thread)
		return;
	eventfd_write(control.stop, 1);
	pthread_join(control.thread, NULL);
	while (control.count)
		drop(0);
	close(control.listener);
	unlink(control.address.sun_path);
}
