/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Why the observed XDP program dropped a packet, if it is one of ours, or a dispatcher with programs of ours.
 *
 * Nothing is taken from the program's own map, which other observers read too: an observer remembers what it has seen. Include
 * what defines struct xdp_buff first.
 */
#ifndef EXPRESSWAY_XDP_DROP_SEEN_H
#define EXPRESSWAY_XDP_DROP_SEEN_H

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "xdp_drop_shared.h"

/* As many as a libxdp dispatcher has components. */
#define XDP_DROP_PROGRAMS 10

/* By sizes: types that only an inner map names may be missing from BTF. */
struct xdp_drop_values {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct xdp_drop));
};

/* The xdp_drop_map of each program that runs there; user space puts them in. Each load that is for an XDP program has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, XDP_DROP_PROGRAMS);
	__type(key, __u32);
	__array(values, struct xdp_drop_values);
} drop_tables_map SEC(".maps");

/* What was in each of them last. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XDP_DROP_PROGRAMS);
	__type(key, __u32);
	__type(value, struct xdp_drop);
} drops_seen_map SEC(".maps");

/* At the exit of the program with XDP_DROP: the reason, or 0 if a program of others dropped it. */
static __always_inline __u16 seen_drop(const struct xdp_buff *xdp)
{
	__u32 zero = 0, ifindex = xdp->rxq->dev->ifindex, i;
	__u16 reason = 0;

	for (i = 0; i < XDP_DROP_PROGRAMS; i++) {
		__u32 key = i;
		void *table = bpf_map_lookup_elem(&drop_tables_map, &key);
		struct xdp_drop *now = table ? bpf_map_lookup_elem(table, &zero) : NULL;
		struct xdp_drop *before = bpf_map_lookup_elem(&drops_seen_map, &key);

		if (!now || !before)
			break;
		if (now->turn == before->turn)
			continue;
		before->turn = now->turn;
		/* One that is on several interfaces may have dropped another's packet. */
		if (now->ifindex == ifindex)
			reason = now->reason;
	}
	return reason;
}

#endif
