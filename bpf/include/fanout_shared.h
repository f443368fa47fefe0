/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What fanout.bpf.c and user space share: a subscriber's record, events, counters.
 *
 * This header defines the types; they reach Rust by BTF through the skeleton. Include <linux/types.h> or
 * equivalent first.
 */
#ifndef EXPRESSWAY_FANOUT_SHARED_H
#define EXPRESSWAY_FANOUT_SHARED_H

/*
 * Value of subscribers_map; the key is the cookie of the subscriber's UDP socket. The program counts, user space
 * reads; `slow` is written by both.
 */
struct fanout_subscriber {
	__u64 connection; /* cookie of its TCP socket, the key in connections_map; 0: only counted */
	__u64 datagrams;  /* given to its connection, or counted */
	__u64 bytes;      /* of them, prefixes and gap markers included */
	__u64 skipped;    /* datagrams that it was not given */
	__u64 gaps;       /* gap markers sent */
	__u64 missed;     /* datagrams skipped since it was last given one */
	__u64 mark;       /* bytes given when `marked` was; 0: its socket had taken everything */
	__u64 marked;     /* nanoseconds of the monotonic clock */
	__u32 queue;      /* datagrams that waited for its socket when the last one came */
	__u32 slow;       /* it is given nothing until its socket has taken everything */
};

/* An address in network byte order; an IPv4 address lies in the last word behind ::ffff:0:0/96. */
struct fanout_address {
	__u32 words[4];
};

enum fanout_event_kind {
	/* A connection to one of the listeners was made. */
	FANOUT_CONNECTED = 1,
	/* The TCP state of such a connection has changed, to `state`. */
	FANOUT_STATE = 2,
	/* A subscriber has fallen behind the limit that `state` names (enum fanout_counter). */
	FANOUT_SLOW = 3,
};

/* What events_map carries. */
struct fanout_event {
	__u64 connection; /* cookie of the TCP socket */
	__u32 kind;       /* enum fanout_event_kind */
	__u32 state;      /* as the kind says; TCP states are those of include/net/tcp_states.h */
};

/* What became of a datagram, or of an event. */
enum fanout_counter {
	/* Datagrams given to a connection. */
	FANOUT_GIVEN,
	/* Not given: the subscriber was more bytes behind than allowed. */
	FANOUT_SKIPPED_BYTES,
	/* Not given: as many datagrams waited for its socket as may. */
	FANOUT_SKIPPED_QUEUE,
	/* Not given: its socket had not taken a datagram for longer than allowed. */
	FANOUT_SKIPPED_AGE,
	/* Not given: it was slow, and has not caught up yet. */
	FANOUT_SKIPPED_CATCHING_UP,
	/* Not given: its connection has ended, or is about to. */
	FANOUT_SKIPPED_STATE,
	/* Not given: no memory for the prefix. */
	FANOUT_SKIPPED_MEMORY,
	/* Dropped: empty, which the framing cannot tell. */
	FANOUT_DROPPED_EMPTY,
	/* Dropped: for a subscriber that is not, or no longer, known. */
	FANOUT_DROPPED_UNKNOWN,
	/* Unicast datagrams turned into multicast. */
	FANOUT_TURNED,
	/* Dropped: not from an allowed source. */
	FANOUT_DROPPED_SOURCE,
	/* Dropped: sent to the private group from outside. */
	FANOUT_DROPPED_PRIVATE,
	/* Passed on as it was: a fragment, or behind IPv6 extension headers. */
	FANOUT_PASSED,
	/* Dropped: the headers could not be rewritten. */
	FANOUT_DROPPED_REWRITE,
	/* Events for which the ring buffer had no room. */
	FANOUT_EVENTS_LOST,
	FANOUT_COUNTERS,
};

/* Per CPU. */
struct fanout_stats {
	__u64 counters[FANOUT_COUNTERS];
};

#endif
