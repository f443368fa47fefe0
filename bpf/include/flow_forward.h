/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows of what XDP programs, of any interface, redirect to the one that is observed. Included by flows.bpf.c, behind what
 * counts sk_buffs.
 *
 * Frames wait in a bulk queue of the device, which a driver is then given at once; it says how many it took. A program in a devmap's
 * entry runs in between: flows are those before it. In generic mode it has run before: flows are those that it left.
 */
#ifndef EXPRESSWAY_FLOW_FORWARD_H
#define EXPRESSWAY_FLOW_FORWARD_H

#include "flow_packet.h"
#include "flow_table.h"
#include "kernel.h"
#include "xdp_frame.h"

/* What a CPU hands to a driver. */
struct forwarding {
	__u64 frames[XDP_BULK];
	struct flow_packet packets[XDP_BULK];
	__u32 lengths[XDP_BULK]; /* 0: of another interface */
	__u32 count;
	__u32 altered; /* a program of a devmap's entry runs behind this: its drops cannot be told apart from the driver's refusals */
	__u32 generic; /* xdp_do_generic_redirect runs */
	__u32 queue;   /* of the device, as flow_packet has it: which one, only the driver knows */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct forwarding);
} forwarding_map SEC(".maps");

static __always_inline struct forwarding *forwarding_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&forwarding_map, &zero);
}

/* A bond gives frames to its members past every hook. */
static __always_inline bool takes_frames(const struct net_device *device)
{
	return (device->ifindex == (int)ifindex || is_device(device->ifindex)) && device->nd_net.net->ns.inum == netns;
}

static long take_forwarded(__u32 index, void *unused)
{
	struct forwarding *mine = forwarding_here();
	const struct xdp_frame *frame;
	struct flow_packet *packet;
	__u32 length;

	if (!mine)
		return 1;
	index &= XDP_BULK - 1;
	frame = (const void *)mine->frames[index];
	packet = &mine->packets[index];
	__builtin_memset(packet, 0, sizeof(*packet));
	packet->key.direction = FLOW_OUT;
	packet->queue = mine->queue;
	length = BPF_CORE_READ_BITFIELD_PROBED(frame, len);
	take_packet(packet, (const void *)ADDRESS(frame, data), length, ethernet, short_cid);
	mine->lengths[index] = belongs(packet) ? length + xdp_frame_rest(frame) : 0;
	return 0;
}

SEC("?fentry/bq_xmit_all")
int BPF_PROG(flows_forwarding, struct xdp_dev_bulk_queue *queue)
{
	struct forwarding *mine = forwarding_here();
	__u32 count = queue->count;

	if (!mine)
		return 0;
	mine->count = 0;
	mine->altered = queue->xdp_prog != NULL;
	mine->queue = queue_of(place_of(queue->dev->ifindex), FLOW_OUT, FLOWS_QUEUES);
	if (count > XDP_BULK || !takes_frames(queue->dev))
		return 0;
	if (bpf_probe_read_kernel(mine->frames, sizeof(mine->frames),
				  (void *)queue + bpf_core_field_offset(struct xdp_dev_bulk_queue, q)))
		return 0;
	bpf_loop(count, take_forwarded, NULL, 0);
	mine->count = count;
	return 0;
}

static long count_forwarded(__u32 index, const __u32 *taken)
{
	struct forwarding *mine = forwarding_here();
	__u32 length;

	if (!mine)
		return 1;
	length = mine->lengths[index & (XDP_BULK - 1)];
	if (!length)
		return 0;
	if (index < *taken)
		count_packet(&mine->packets[index & (XDP_BULK - 1)], FLOW_XDP, 1, length);
	else if (!mine->altered)
		count_drop(DROP_EGRESS, 0, 1, length);
	return 0;
}

/* The driver has taken the first `sent` of them. */
SEC("?tp_btf/xdp_devmap_xmit")
int BPF_PROG(flows_forwarded, const struct net_device *from, const struct net_device *to, int sent)
{
	struct forwarding *mine = forwarding_here();
	__u32 taken = sent > 0 ? sent : 0;

	if (!mine || !takes_frames(to))
		return 0;
	bpf_loop(mine->count, count_forwarded, &taken, 0);
	mine->count = 0;
	return 0;
}

/* Where the bulk queue cannot be seen: nothing tells of their packets but how many there are. */
SEC("?tp_btf/xdp_devmap_xmit")
int BPF_PROG(flows_forward, const struct net_device *from, const struct net_device *to, int sent)
{
	struct flow_totals *all;

	if (!takes_frames(to) || sent <= 0)
		return 0;
	all = totals();
	if (all)
		count_queue(all, FLOW_OUT, queue_of(place_of(to->ifindex), FLOW_OUT, FLOWS_QUEUES), FLOW_XDP, sent, 0);
	return 0;
}

/* Generic XDP: sk_buffs, which go to the driver past the queueing discipline and its tracepoint. */

static __always_inline int set_generic(__u32 runs)
{
	struct forwarding *mine = forwarding_here();

	if (mine)
		mine->generic = runs;
	return 0;
}

SEC("?fentry/xdp_do_generic_redirect")
int BPF_PROG(flows_forwarding_generic)
{
	return set_generic(1);
}

SEC("?fexit/xdp_do_generic_redirect")
int BPF_PROG(flows_forwarded_generic)
{
	return set_generic(0);
}

/* XDP_TX comes here too, and is counted at the program. */
SEC("?fentry/generic_xdp_tx")
int BPF_PROG(flows_forward_generic, struct sk_buff *skb)
{
	struct forwarding *mine = forwarding_here();

	if (mine && mine->generic && is_ours(skb->dev))
		/* Which queue is chosen only behind this. */
		count_leaving(skb, skb->dev, FLOWS_QUEUES, FLOW_XDP, 1);
	return 0;
}

#endif
