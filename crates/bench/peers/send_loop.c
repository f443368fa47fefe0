/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The plain fan-out: recv() from a UDP socket, then a send() to each TCP subscriber, in a loop. One thread does that;
 * another accepts. What a socket does not take is lost, in whole or in part: a plain loop has nowhere to keep it.
 *
 * send_loop UDP-ADDRESS UDP-PORT TCP-PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 65536
/* As the other contestants have it. */
#define SEND_BUFFER (256 << 10)
#define RECEIVE_BUFFER (4 << 20)

static int subscribers[MOST];
static atomic_int count;
static int listener;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void *accept_all(void *unused)
{
	int one = 1, size = SEND_BUFFER;

	(void)unused;
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		int at = atomic_load_explicit(&count, memory_order_relaxed);

		if (fd < 0)
			continue;
		if (at == MOST) {
			close(fd);
			continue;
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
		subscribers[at] = fd;
		atomic_store_explicit(&count, at + 1, memory_order_release);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct rlimit files;
	struct sockaddr_in address = { .sin_family = AF_INET };
	static char datagram[65536];
	int one = 1, size = RECEIVE_BUFFER, feed;
	pthread_t thread;

	if (argc != 4 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) {
		fprintf(stderr, "usage: send_loop UDP-ADDRESS UDP-PORT TCP-PORT\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	if (getrlimit(RLIMIT_NOFILE, &files))
		fail("RLIMIT_NOFILE");
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files))
		fail("RLIMIT_NOFILE");
	feed = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (feed < 0 || listener < 0)
		fail("socket");
	if (setsockopt(feed, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
		setsockopt(feed, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	address.sin_port = htons(atoi(argv[2]));
	if (bind(feed, (struct sockaddr *)&address, sizeof(address)))
		fail("bind UDP");
	address.sin_port = htons(atoi(argv[3]));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 4096))
		fail("bind TCP");
	if (pthread_create(&thread, NULL, accept_all, NULL))
		fail("pthread_create");
	puts("ready");
	fflush(stdout);
	for (;;) {
		ssize_t length = recv(feed, datagram, sizeof(datagram), 0);
		int now = atomic_load_explicit(&count, memory_order_acquire);

		if (length < 0)
			continue;
		for (int i = 0; i < now; i++)
			send(subscribers[i], datagram, length, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
}
