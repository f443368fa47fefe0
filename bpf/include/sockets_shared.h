/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What sockets.bpf.c and user space share. Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_SOCKETS_SHARED_H
#define EXPRESSWAY_SOCKETS_SHARED_H

#define SOCKET_NAME 16

/* A ring of an AF_XDP socket; all zero where there is none. */
struct socket_ring {
	__u32 entries;
	__u32 used; /* put in by one side and not yet taken out by the other */
	__u32 produced; /* put in, ever, modulo 2^32 */
	__u32 consumed; /* taken out, likewise */
};

/* A descriptor of an AF_XDP socket. */
struct socket_record {
	__u64 inode;
	__u32 process; /* in the reader's PID namespace */
	__u32 netns;   /* inode of its network namespace */
	__u32 ifindex; /* of what it is bound to; 0: of nothing */
	__u32 queue;
	__u32 zero_copy;
	__u32 umem; /* its number on this host */
	struct socket_ring rx;
	struct socket_ring tx;
	struct socket_ring fill;
	struct socket_ring completion;
	/* As in XDP_STATISTICS. */
	__u64 rx_dropped;
	__u64 rx_invalid_descriptors;
	__u64 rx_ring_full;
	__u64 fill_ring_empty;
	__u64 tx_invalid_descriptors;
	__u64 tx_ring_empty;
	char name[SOCKET_NAME];
};

#endif
