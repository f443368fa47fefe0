/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a program tells why it drops a packet: one lookup and some stores, only where it drops.
 */
#ifndef EXPRESSWAY_XDP_DROP_H
#define EXPRESSWAY_XDP_DROP_H

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "xdp_drop_shared.h"

/* Observers find it by its name among the program's maps, and only read it: there may be several. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xdp_drop);
} xdp_drop_map SEC(".maps");

/* Returns the verdict. */
static __always_inline int drop_because(const struct xdp_md *ctx, enum xdp_drop_program program, __u32 which)
{
	__u32 zero = 0;
	struct xdp_drop *last = bpf_map_lookup_elem(&xdp_drop_map, &zero);

	if (last) {
		last->ifindex = ctx->ingress_ifindex;
		last->reason = program + which;
		last->turn++;
	}
	return XDP_DROP;
}

#endif
