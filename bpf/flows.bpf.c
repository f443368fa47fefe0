// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Counts what passes an interface by flow, AF_XDP included. Each packet is counted once in its direction:
 *
 *   in    where the interface's XDP program returns, whoever wrote it, with what becomes of the packet; without a
 *         program, or with one that is not traced, where it is redirected and where the stack receives
 *   out   where the stack hands it to the driver; where an AF_XDP socket in copy mode does (`__dev_direct_xmit`); where
 *         the driver takes it from one in zero-copy mode; where an XDP program sends it back, or has it forwarded here
 *
 * Those of a VLAN or a bond are counted on the devices below, where XDP has them.
 *
 * Packets that the stack splits or merges count as those on the wire. What the stack drops, by reason, is on top: those
 * packets were received or sent. The programs only read.
 *
 * User space loads the object once for the hooks of the kernel, and once more for each XDP program that comes, with
 * the two programs for that and the maps of the first.
 *
 * Linux 5.18 or newer with BTF.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG names the context, which hardly any program looks at. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#include "drop_reason.h"
#include "flow_packet.h"
#include "flow_table.h"
#include "flows_shared.h"
#include "kernel.h"
#include "xdp_drop_seen.h"

/* Set before load: the interface, by its index in a network namespace, and the devices that its packets pass: itself or others. */
const volatile __u32 ifindex = 0;
const volatile __u32 netns = 0;
const volatile __u32 devices[FLOWS_DEVICES] = {};
/* A bit for each of them whose received packets keep the queue that they were sent by (veth); others store theirs plus one. */
const volatile __u32 sent_queues = 0;
/* VLAN tags that they have there, outermost first: ethertype in the upper half, VLAN in the lower; 0: none. */
const volatile __u32 vlan_outer = 0;
const volatile __u32 vlan_inner = 0;
/* Whether frames have Ethernet headers. */
const volatile bool ethernet = true;
/* The length of connection IDs in short headers of QUIC; 0: those are not looked at. */
const volatile __u32 short_cid = 0;
/* The XDP program that this load is for. */
const volatile __u32 traced_program = 0;

#define NO_HEADER 0xffff
#define UNALIGNED_SHIFT 48
/* XDP_PKT_CONTD of linux/if_xdp.h: the packet goes on in the next descriptor. */
#define CONTINUED 1
#define VLAN_TAG 4
#define VLAN_ID 0xfff

/* By device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FLOWS_DEVICES);
	__type(key, __u32);
	__type(value, struct flow_follow);
} follow_map SEC(".maps");

/* What a CPU is about. */
struct pending {
	struct flow_packet packet;
	__u64 head;	 /* the buffer of a packet that the XDP program has ended, which is freed next */
	__u32 length;
	__u32 redirects; /* the packet's verdict was to redirect it, and how that ended has not been told yet */
	__u32 peeked;	 /* descriptors that were counted while a batch is taken */
	__u32 continued; /* the next descriptor belongs to a packet that was counted */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pending);
} pending_map SEC(".maps");

static __always_inline struct pending *pending(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&pending_map, &zero);
}

/* The place of a device among the interface's; FLOWS_DEVICES: it is none. */
static __always_inline __u32 place_of(__u32 index)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < FLOWS_DEVICES; i++) {
		if (devices[i] && devices[i] == index)
			break;
	}
	return i;
}

static __always_inline bool is_device(__u32 index)
{
	return place_of(index) < FLOWS_DEVICES;
}

static __always_inline bool is_ours(const struct net_device *device)
{
	return is_device(device->ifindex) && device->nd_net.net->ns.inum == netns;
}

/* Whether a packet of a device is the interface's. */
static __always_inline bool belongs(const struct flow_packet *packet)
{
	return !vlan_outer || (packet->tags[0] == vlan_outer && (!vlan_inner || packet->tags[1] == vlan_inner));
}

/* The program whose packets are counted where it returns. */
static __always_inline struct flow_follow *followed(const struct net_device *device)
{
	__u32 index = device->ifindex;

	return bpf_map_lookup_elem(&follow_map, &index);
}

static __always_inline bool is_traced(const struct net_device *device)
{
	struct flow_follow *follow = followed(device);

	return follow && follow->program == traced_program;
}

/* Whether the packets that a device receives are counted where its program returns. */
static __always_inline bool is_followed(const struct net_device *device)
{
	struct flow_follow *follow = followed(device);
	__u32 program, mode;

	if (!follow || !follow->program)
		return false;
	if (follow->above)
		return true;
	program = follow->program;
#pragma unroll
	for (mode = 0; mode < XDP_MODES; mode++) {
		const struct bpf_xdp_link *link = device->xdp_state[mode].link;
		const struct bpf_prog *found = link ? link->link.prog : device->xdp_state[mode].prog;

		if (found && found->aux->id == program)
			return true;
	}
	return false;
}

/* Where a field of the kernel's points to, as a number: the verifier lets nobody calculate with such pointers. */
#define ADDRESS(object, field) ((__u64)BPF_CORE_READ(object, field))

/* ---- XDP ---- */

static __always_inline void take_frame(struct flow_packet *packet, struct xdp_buff *xdp)
{
	__u64 data = ADDRESS(xdp, data);

	take_packet(packet, (void *)data, ADDRESS(xdp, data_end) - data, ethernet, short_cid);
}

static __always_inline void take_received(struct pending *mine, struct xdp_buff *xdp)
{
	mine->head = 0;
	__builtin_memset(&mine->packet, 0, sizeof(mine->packet));
	mine->packet.key.direction = FLOW_IN;
	mine->packet.queue = queue_of(place_of(xdp->rxq->dev->ifindex), FLOW_IN, xdp->rxq->queue_index);
	take_frame(&mine->packet, xdp);
	mine->length = belongs(&mine->packet) ? bpf_xdp_get_buff_len((void *)xdp) : 0;
}

SEC("?fentry/xdp")
int BPF_PROG(flows_enter, struct xdp_buff *xdp)
{
	struct pending *mine;

	if (!is_ours(xdp->rxq->dev) || !is_traced(xdp->rxq->dev))
		return 0;
	mine = pending();
	if (!mine)
		return 0;
	if (mine->redirects) {
		/* A kernel that does not tell. */
		mine->redirects = 0;
		count_packet(&mine->packet, FLOW_XDP, 1, mine->length);
	}
	take_received(mine, xdp);
	return 0;
}

SEC("?fexit/xdp")
int BPF_PROG(flows_leave, struct xdp_buff *xdp, int verdict)
{
	/* Whether the packet is counted or not, so that the next drop is known from this one. */
	__u16 reason = verdict == XDP_DROP ? seen_drop(xdp) : 0;
	struct flow_packet back = {};
	struct pending *mine;
	__u32 path;

	if (!is_ours(xdp->rxq->dev) || !is_traced(xdp->rxq->dev))
		return 0;
	mine = pending();
	if (!mine || !mine->length)
		return 0;
	if (verdict != XDP_PASS && verdict != XDP_TX)
		mine->head = ADDRESS(xdp, data_hard_start);
	switch (verdict) {
	case XDP_REDIRECT:
		mine->redirects = 1;
		return 0;
	case XDP_PASS:
		path = FLOW_KERNEL;
		break;
	case XDP_TX:
		path = FLOW_XDP;
		back.key.direction = FLOW_OUT;
		/* Which one, only the driver knows. */
		back.queue = queue_of(place_of(xdp->rxq->dev->ifindex), FLOW_OUT, FLOWS_QUEUES);
		take_frame(&back, xdp);
		if (belongs(&back))
			count_packet(&back, FLOW_XDP, 1, bpf_xdp_get_buff_len((void *)xdp));
		break;
	default:
		path = FLOW_DROPPED;
		if (reason)
			count_drop(DROP_PROGRAM, reason, 1, mine->length);
		else
			count_drop(DROP_VERDICT, verdict, 1, mine->length);
	}
	count_packet(&mine->packet, path, 1, mine->length);
	mine->length = 0;
	return 0;
}

/* A packet is redirected whose program is not traced. */
static __always_inline int take_redirected(const struct net_device *device, struct xdp_buff *xdp)
{
	struct pending *mine = pending();

	if (!mine || mine->redirects || !is_ours(device) || is_followed(device))
		return 0;
	take_received(mine, xdp);
	mine->redirects = mine->length != 0;
	return 0;
}

SEC("?fentry/xdp_do_redirect")
int BPF_PROG(flows_redirecting, struct net_device *device, struct xdp_buff *xdp)
{
	return take_redirected(device, xdp);
}

SEC("?fentry/xdp_do_generic_redirect")
int BPF_PROG(flows_redirecting_generic, struct net_device *device, struct sk_buff *skb, struct xdp_buff *xdp)
{
	return take_redirected(device, xdp);
}

static __always_inline int end_redirect(const struct net_device *device, int error, __u32 map_type)
{
	struct pending *mine = pending();
	__u32 path = map_type == BPF_MAP_TYPE_XSKMAP ? FLOW_AF_XDP : FLOW_XDP;

	if (!mine || !mine->redirects || !is_ours(device))
		return 0;
	if (error) {
		path = FLOW_DROPPED;
		count_drop(DROP_REDIRECT, error < 0 ? -error : error, 1, mine->length);
	}
	if (!error)
		mine->head = 0;
	mine->redirects = 0;
	count_packet(&mine->packet, path, 1, mine->length);
	mine->length = 0;
	return 0;
}

SEC("?tp_btf/xdp_redirect")
int BPF_PROG(flows_redirect, const struct net_device *device, const struct bpf_prog *program, const void *target,
	     int error, enum bpf_map_type map_type)
{
	return end_redirect(device, error, map_type);
}

SEC("?tp_btf/xdp_redirect_err")
int BPF_PROG(flows_redirect_error, const struct net_device *device, const struct bpf_prog *program,
	     const void *target, int error, enum bpf_map_type map_type)
{
	return end_redirect(device, error, map_type);
}

/* ---- AF_XDP, zero-copy ---- */

static __always_inline void count_descriptor(struct xsk_buff_pool *pool, const void *descriptor, struct pending *mine)
{
	struct flow_packet packet = {
		.key.direction = FLOW_OUT,
		.queue = queue_of(place_of(BPF_CORE_READ(pool, netdev, ifindex)), FLOW_OUT, BPF_CORE_READ(pool, queue_id)),
	};
	struct {
		__u64 address;
		__u32 length;
		__u32 options;
	} frame;
	__u64 address;

	if (bpf_probe_read_kernel(&frame, sizeof(frame), descriptor))
		return;
	if (mine->continued) {
		/* Its octets belong to a flow that is not known here any more, and on a VLAN maybe to another interface. */
		struct flow_totals *all = totals();

		if (all)
			count_queue(all, FLOW_OUT, packet.queue, FLOW_AF_XDP, 0, frame.length);
	} else {
		address = frame.address;
		if (BPF_CORE_READ(pool, unaligned))
			address = (address & ((1ULL << UNALIGNED_SHIFT) - 1)) + (address >> UNALIGNED_SHIFT);
		take_packet(&packet, (void *)(ADDRESS(pool, addrs) + address), frame.length, ethernet, short_cid);
		if (belongs(&packet))
			count_packet(&packet, FLOW_AF_XDP, 1, frame.length);
	}
	mine->continued = frame.options & CONTINUED;
}

SEC("?fexit/xsk_tx_peek_desc")
int BPF_PROG(flows_peek, struct xsk_buff_pool *pool, const void *descriptor, bool found)
{
	struct pending *mine = pending();

	if (!found || !mine || !is_ours(pool->netdev))
		return 0;
	mine->peeked++;
	count_descriptor(pool, descriptor, mine);
	return 0;
}

SEC("?fentry/xsk_tx_peek_release_desc_batch")
int BPF_PROG(flows_batch_begin)
{
	struct pending *mine = pending();

	if (mine)
		mine->peeked = 0;
	return 0;
}

struct batch {
	struct xsk_buff_pool *pool;
	const void *descriptors;
};

static long count_batched(__u32 index, struct batch *batch)
{
	struct pending *mine = pending();

	if (!mine)
		return 1;
	count_descriptor(batch->pool, batch->descriptors + index * sizeof(struct xdp_desc), mine);
	return 0;
}

SEC("?fexit/xsk_tx_peek_release_desc_batch")
int BPF_PROG(flows_batch, struct xsk_buff_pool *pool, __u32 wanted, __u32 got)
{
	struct batch batch = { .pool = pool };
	struct pending *mine = pending();

	/* With several sockets to a queue it takes one by one, and these were counted. */
	if (!mine || mine->peeked || !is_ours(pool->netdev))
		return 0;
	batch.descriptors = pool->tx_descs;
	bpf_loop(got, count_batched, &batch, 0);
	return 0;
}

/* ---- socket buffers ---- */

/* A socket buffer's packets on the wire: how many, how long, and the first one's flow. */
struct buffer {
	struct flow_packet packet;
	__u64 segments;
	__u64 bytes;
};

static __always_inline void take_buffer(struct buffer *to, const struct sk_buff *skb, __u64 data, __u32 length,
					__u32 linear)
{
	const struct skb_shared_info *shared;
	__u32 size, segments = 0, headers;

	take_packet(&to->packet, (void *)data, linear, ethernet, short_cid);
	to->segments = 1;
	to->bytes = length;
	shared = (void *)(ADDRESS(skb, head) + skb->end);
	size = BPF_CORE_READ(shared, gso_size);
	headers = to->packet.headers;
	if (size && length > headers) {
		segments = BPF_CORE_READ(shared, gso_segs);
		if (!segments)
			segments = (length - headers + size - 1) / size;
		to->segments = segments;
		to->bytes += (segments - 1) * headers;
	}
	if (skb->vlan_proto) {
		to->bytes += to->segments * VLAN_TAG;
		to->packet.tags[1] = to->packet.tags[0];
		to->packet.tags[0] = (__u32)bpf_ntohs(skb->vlan_proto) << 16 | (skb->vlan_tci & VLAN_ID);
	}
}

SEC("?tp_btf/netif_receive_skb")
int BPF_PROG(flows_receive, struct sk_buff *skb)
{
	struct buffer buffer = { .packet.key.direction = FLOW_IN };
	const struct net_device *device = skb->dev;
	__u32 before, place;
	__u64 data;

	if (!is_ours(device) || is_followed(device))
		return 0;
	place = place_of(device->ifindex);
	buffer.packet.queue = queue_of(place, FLOW_IN, (__u32)skb->queue_mapping - !(sent_queues >> (place & 31) & 1));
	/* The stack begins at the network header. */
	data = ADDRESS(skb, data);
	before = ethernet && skb->mac_header != NO_HEADER ? data - ADDRESS(skb, head) - skb->mac_header : 0;
	take_buffer(&buffer, skb, data - before, skb->len + before, skb->len - skb->data_len + before);
	if (belongs(&buffer.packet))
		count_packet(&buffer.packet, FLOW_KERNEL, buffer.segments, buffer.bytes);
	return 0;
}

/* Counts a packet that leaves, or takes it back (`sign` -1): the driver had no room, and the same packet will come again. */
static __always_inline void count_leaving(const struct sk_buff *skb, const struct net_device *device, __u32 queue,
					  __u32 path, __s64 sign)
{
	struct buffer buffer = { .packet.key.direction = FLOW_OUT };

	buffer.packet.queue = queue_of(place_of(device->ifindex), FLOW_OUT, queue);
	take_buffer(&buffer, skb, ADDRESS(skb, data), skb->len, skb->len - skb->data_len);
	if (belongs(&buffer.packet))
		count_packet(&buffer.packet, path, sign * (__s64)buffer.segments, sign * (__s64)buffer.bytes);
}

SEC("?tp_btf/net_dev_start_xmit")
int BPF_PROG(flows_send, struct sk_buff *skb, struct net_device *device)
{
	if (is_ours(device))
		count_leaving(skb, device, skb->queue_mapping, FLOW_KERNEL, 1);
	return 0;
}

SEC("?tp_btf/net_dev_xmit")
int BPF_PROG(flows_sent, struct sk_buff *skb, int code, struct net_device *device)
{
	if (code == NETDEV_TX_BUSY && is_ours(device))
		count_leaving(skb, device, skb->queue_mapping, FLOW_KERNEL, -1);
	return 0;
}

/* AF_XDP in copy mode; PF_PACKET with PACKET_QDISC_BYPASS too, which counts as the kernel's. */
static __always_inline __u32 direct_path(const struct sk_buff *skb)
{
	return skb->sk && skb->sk->__sk_common.skc_family == AF_XDP ? FLOW_AF_XDP : FLOW_KERNEL;
}

SEC("?fentry/__dev_direct_xmit")
int BPF_PROG(flows_direct, struct sk_buff *skb, __u16 queue)
{
	if (is_ours(skb->dev))
		count_leaving(skb, skb->dev, queue, direct_path(skb), 1);
	return 0;
}

SEC("?fexit/__dev_direct_xmit")
int BPF_PROG(flows_directed, struct sk_buff *skb, __u16 queue, int code)
{
	/* With any other code the buffer is freed. */
	if (code == NETDEV_TX_BUSY && is_ours(skb->dev))
		count_leaving(skb, skb->dev, queue, direct_path(skb), -1);
	return 0;
}

static __always_inline int freed(struct sk_buff *skb, __u32 reason, struct sock *socket)
{
	struct pending *mine = pending();
	struct buffer buffer = {};
	const struct net_device *device = skb->dev;
	__u64 data, header;
	__u32 before;
	bool received = skb->skb_iif != 0;
	bool on_top, below;

	if (!is_drop(reason))
		return 0;
	/* A datagram that waits for a socket has something else where the device was. */
	if (received && socket && socket->__sk_common.skc_net.net->ns.inum == netns) {
		on_top = skb->skb_iif == (int)ifindex;
		below = is_device(skb->skb_iif);
	} else {
		on_top = device->ifindex == (int)ifindex && device->nd_net.net->ns.inum == netns;
		below = is_ours(device);
	}
	if (!on_top && !below)
		return 0;
	/* Counted with its verdict; the driver or generic XDP now frees it. */
	if (mine && mine->head && mine->head == ADDRESS(skb, head)) {
		mine->head = 0;
		return 0;
	}
	buffer.packet.key.direction = received ? FLOW_IN : FLOW_OUT;
	data = ADDRESS(skb, data);
	header = ADDRESS(skb, head) + (ethernet && skb->mac_header != NO_HEADER ? skb->mac_header : skb->network_header);
	before = header < data ? data - header : 0;
	take_buffer(&buffer, skb, header, skb->len + before, skb->len - skb->data_len + before);
	/* The interface itself has no tags any more. */
	if (!on_top && !belongs(&buffer.packet))
		return 0;
	mark_dropped(&buffer.packet, buffer.segments);
	count_drop(DROP_KERNEL, reason, buffer.segments, buffer.bytes);
	return 0;
}

#include "flow_forward.h"

SEC("?tp_btf/kfree_skb")
int BPF_PROG(flows_free, struct sk_buff *skb, void *location, __u32 reason, struct sock *socket)
{
	return freed(skb, reason, socket);
}

/* Before Linux 6.11 a drop does not tell the socket. */
SEC("?tp_btf/kfree_skb")
int BPF_PROG(flows_free_older, struct sk_buff *skb, void *location, __u32 reason)
{
	return freed(skb, reason, NULL);
}

char _license[] SEC("license") = "Dual BSD/GPL";
