/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs of fanout.bpf.c share: maps, what user space sets before load, counters and events. Private to
 * them; what user space reads is in fanout_shared.h.
 */
#ifndef EXPRESSWAY_FANOUT_STATE_H
#define EXPRESSWAY_FANOUT_STATE_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "fanout_shared.h"

/* UDP sockets by cookie, one a subscriber, and one that only counts. Carries expressway_fan. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} feeds_map SEC(".maps");

/* TCP sockets by cookie. No program: a socket can't be under two verdicts. Values of 8 bytes can be looked up. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u64);
} connections_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct fanout_subscriber);
	/* Memory for existing entries only; user space alone adds them. */
	__uint(map_flags, BPF_F_NO_PREALLOC);
} subscribers_map SEC(".maps");

/* Events for user space. 256 KiB: ten thousand events. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events_map SEC(".maps");

/* The ports of the listeners, in host byte order. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u8);
} ports_map SEC(".maps");

/* Source addresses that are allowed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct fanout_address);
	__type(value, __u8);
} sources_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fanout_stats);
} stats_map SEC(".maps");

/* Set before load. Bytes of the length before each datagram: 0, 2 or 4. */
const volatile __u32 prefix = 0;
/* Bytes that a connection may be behind, and the datagrams that may wait for its socket. */
const volatile __u64 max_lag = 0;
/* Nanoseconds that a datagram may wait for its socket. */
const volatile __u64 max_age = 0;
const volatile __u32 max_queue = 0;
/* The network namespace of the listeners. */
const volatile __u64 listeners_netns = 0;
/* The unicast destination and the private group; as struct fanout_address; the port in network byte order. */
const volatile __u32 destination[4] = {};
const volatile __u32 private_group[4] = {};
const volatile __be16 feed_port = 0;
const volatile bool check_source = false;
/* Of tests, in the place of a kernel without memory: headers are not rewritten, nothing is put in front of datagrams. */
const volatile bool fail_rewrite = false;
const volatile bool fail_room = false;

/* Carries the shared types into BTF, and so into the skeleton. No instruction reads it. */
const struct fanout_types {
	enum fanout_event_kind kind;
	enum fanout_counter counter;
	struct fanout_event event;
	struct fanout_address address;
} fanout_types = {};

static __always_inline void count(enum fanout_counter counter)
{
	__u32 zero = 0;
	struct fanout_stats *stats = bpf_map_lookup_elem(&stats_map, &zero);

	if (stats && counter < FANOUT_COUNTERS)
		stats->counters[counter]++;
}

static __always_inline void tell(__u64 connection, __u32 kind, __u32 state)
{
	struct fanout_event *event = bpf_ringbuf_reserve(&events_map, sizeof(*event), 0);

	if (!event) {
		count(FANOUT_EVENTS_LOST);
		return;
	}
	event->connection = connection;
	event->kind = kind;
	event->state = state;
	bpf_ringbuf_submit(event, 0);
}

#endif
