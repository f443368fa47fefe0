/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What all readers of another process's memory have in common: the connection to it. For umem.h and broadcast.h.
 */
#ifndef EXPRESSWAY_CONNECTION_H
#define EXPRESSWAY_CONNECTION_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Maps `length` bytes of a file of memory whose size is sealed, so that it can't shrink under its reader. */
static inline void *expressway_map(int fd, uint64_t length, int protection)
{
	struct stat info;
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &info) < 0 || length == 0 ||
	    (uint64_t)info.st_size < length)
		return NULL;
	void *memory = mmap(NULL, length, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

/* Connects to who listens at `path`. A descriptor, or a negative errno: what connect(2) says. */
static inline int expressway_dial(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

/* The first message, of just `size` bytes, and the descriptors that come with it. 0, or a negative errno. */
static inline int expressway_receive_greeting(int fd, void *message, size_t size, int descriptors[2])
{
	union {
		char space[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} ancillary;
	struct iovec part = {.iov_base = message, .iov_len = size};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	header.msg_control = ancillary.space;
	header.msg_controllen = sizeof(ancillary.space);
	ssize_t length;
	do
		length = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
	while (length < 0 && errno == EINTR);
	if (length < 0)
		return -errno;
	for (struct cmsghdr *one = CMSG_FIRSTHDR(&header); one; one = CMSG_NXTHDR(&header, one))
		if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_RIGHTS) {
			size_t bytes = one->cmsg_len - CMSG_LEN(0);
			memcpy(descriptors, CMSG_DATA(one), bytes < 2 * sizeof(int) ? bytes : 2 * sizeof(int));
		}
	if (length != (ssize_t)size || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return -EPROTO;
	return 0;
}

/* Sleeps until the other side wakes us or `timeout_ms` is over (-1: for ever). -EPIPE when it is gone. */
static inline int expressway_sleep(int fd, int timeout_ms)
{
	struct pollfd waited = {.fd = fd, .events = POLLIN};
	char byte;
	ssize_t length;
	int result = poll(&waited, 1, timeout_ms);
	if (result <= 0)
		return result == 0 || errno == EINTR ? 0 : -errno;
	/* All wake-ups that wait are one. */
	while ((length = recv(fd, &byte, 1, MSG_DONTWAIT)) > 0)
		;
	return length < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -EPIPE;
}

#endif
