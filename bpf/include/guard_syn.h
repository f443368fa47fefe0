/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SYN cookies before the stack: a SYN to a listening socket of this host is answered here with the cookie that the kernel
 * would send, and the kernel takes the ACK that comes back with it.
 *
 * The helpers by socket (Linux 5.4) rather than those without (6.0): only they tell the listener that cookies are about, else
 * it takes none (tcp_synq_no_recent_overflow in net/ipv4/syncookies.c). They answer as net.ipv4.tcp_syncookies says: 2, each
 * SYN; 1, when the listener's queue is full; 0, none.
 *
 * An answer has no options but the segment size: window scaling and SACK would have to be kept in a time stamp, whose offset
 * is a secret of the kernel.
 */
#ifndef EXPRESSWAY_GUARD_SYN_H
#define EXPRESSWAY_GUARD_SYN_H

#include "guard_answer.h"
#include "guard_bucket.h"

/* Set before load. */
const volatile bool has_syn = false;
/* Also look at packets with ACK that no connection has: they need a cookie. */
const volatile bool check_acks = false;

/* A bit a port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} tcp_port_map SEC(".maps");

/* Of packets with ACK that belong to nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_bucket);
} stray_map SEC(".maps");

#define SYN_ACK_LENGTH 24
/* No listener opens with less, and no scale is agreed on. */
#define SYN_ACK_WINDOW 32768
/* Packets with ACK and no connection that go on to the stack, which answers by RST: 1000 a second, 100 at once. */
#define STRAY_COST ((1000000000ull << GUARD_TIME_SHIFT) / 1000)
#define STRAY_BURST (STRAY_COST * 100)

/* The header of a SYN-ACK with one option. */
struct syn_ack {
	__be16 source;
	__be16 destination;
	__be32 sequence;
	__be32 acknowledged;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__u16 checksum;
	__be16 urgent;
	__u8 kind;
	__u8 length;
	__be16 segment;
};

static __always_inline bool is_tcp_port(const struct guard_packet *packet)
{
	__u32 index = packet->destination_port / 64;
	__u64 *ports = bpf_map_lookup_elem(&tcp_port_map, &index);

	return ports && *ports >> (packet->destination_port % 64) & 1;
}

/* The socket of this host that the packet is for; to be released. */
static __always_inline struct bpf_sock *find_socket(struct xdp_md *ctx, const struct guard_packet *packet)
{
	struct bpf_sock_tuple tuple = {};

	if (packet->ipv4) {
		__builtin_memcpy(&tuple.ipv4.saddr, packet->source + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, packet->destination + 12, 4);
		tuple.ipv4.sport = bpf_htons(packet->source_port);
		tuple.ipv4.dport = bpf_htons(packet->destination_port);
		return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(&tuple.ipv6.saddr, packet->source, 16);
	__builtin_memcpy(&tuple.ipv6.daddr, packet->destination, 16);
	tuple.ipv6.sport = bpf_htons(packet->source_port);
	tuple.ipv6.dport = bpf_htons(packet->destination_port);
	return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* Reads the headers into the scratch, and returns the length of that of TCP; 0 if it cannot be. */
static __always_inline __u32 read_headers(struct xdp_md *ctx, const struct guard_packet *packet, struct guard_scratch *scratch)
{
	__u32 transport = packet->transport, length;
	struct tcphdr tcp;

	if (transport > FARTHEST_HEADER || !read_tcp(ctx, transport, &tcp))
		return 0;
	length = tcp.doff * 4;
	if (length < sizeof(tcp) || length > 60 ||
	    bpf_xdp_load_bytes(ctx, transport, scratch->transport, bounded(length, 64)) ||
	    bpf_xdp_load_bytes(ctx, packet->network, scratch->network, sizeof(struct iphdr)))
		return 0;
	if (!packet->ipv4 && bpf_xdp_load_bytes(ctx, packet->network, scratch->network, sizeof(struct ipv6hdr)))
		return 0;
	return length;
}

static __always_inline enum guard_reason send_syn_ack(struct xdp_md *ctx, const struct guard_packet *packet,
						      struct guard_scratch *scratch, __u64 cookie)
{
	const struct tcphdr *asked = (void *)scratch->transport;
	struct syn_ack *answer = (void *)(scratch->answer + ANSWER_TRANSPORT);

	answer->source = asked->dest;
	answer->destination = asked->source;
	answer->sequence = bpf_htonl((__u32)cookie);
	answer->acknowledged = bpf_htonl(bpf_ntohl(asked->seq) + 1);
	answer->offset = SYN_ACK_LENGTH / 4 << 4;
	answer->flags = TCP_SYN | TCP_ACK;
	answer->window = bpf_htons(SYN_ACK_WINDOW);
	/* The largest segment of the client, as far as the cookie remembers it: what the way there carries, it may carry back. */
	answer->kind = 2;
	answer->length = 4;
	answer->segment = bpf_htons(cookie >> 32);
	answer->checksum = answer_checksum(scratch, packet, IPPROTO_TCP, SYN_ACK_LENGTH);
	return send_back(ctx, scratch, packet, IPPROTO_TCP, SYN_ACK_LENGTH) ? GUARD_ANSWER_SYN : GUARD_DROP_SYN;
}

/* A SYN. 0: the stack answers it. */
static __always_inline enum guard_reason answer_syn(struct xdp_md *ctx, const struct guard_packet *packet)
{
	struct guard_scratch *scratch;
	struct bpf_sock *socket;
	__s64 cookie = -1;
	__u32 length;

	scratch = is_answerable(packet) ? take_scratch() : NULL;
	if (!scratch)
		return 0;
	length = read_headers(ctx, packet, scratch);
	if (length < sizeof(struct tcphdr) || length > 60)
		return 0;
	socket = find_socket(ctx, packet);
	if (!socket)
		return 0;
	if (socket->state == BPF_TCP_LISTEN)
		cookie = bpf_tcp_gen_syncookie(socket, scratch->network,
					       packet->ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr),
					       (void *)scratch->transport, bounded(length, 64));
	bpf_sk_release(socket);
	if (cookie < 0)
		return 0;
	return dry_run ? GUARD_ANSWER_SYN : send_syn_ack(ctx, packet, scratch, cookie);
}

/* With ACK, and without SYN and RST. 0: it belongs to a connection, has a cookie, or is for the stack to refuse. */
static __always_inline enum guard_reason check_ack(struct xdp_md *ctx, const struct guard_packet *packet)
{
	struct guard_scratch *scratch;
	struct guard_bucket *bucket;
	struct bpf_sock *socket;
	__u32 length, zero = 0;
	long wrong = 0;

	socket = find_socket(ctx, packet);
	if (!socket)
		return 0;
	if (socket->state == BPF_TCP_LISTEN) {
		wrong = -1;
		scratch = bpf_map_lookup_elem(&scratch_map, &zero);
		if (scratch) {
			length = read_headers(ctx, packet, scratch);
			if (length >= sizeof(struct tcphdr) && length <= 60)
				wrong = bpf_tcp_check_syncookie(
					socket, scratch->network,
					packet->ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr),
					(void *)scratch->transport, bounded(length, 64));
		}
	}
	bpf_sk_release(socket);
	if (!wrong)
		return 0;
	bucket = bpf_map_lookup_elem(&stray_map, &zero);
	if (bucket && take(&bucket->packets, bpf_ktime_get_ns() << GUARD_TIME_SHIFT, STRAY_COST, STRAY_BURST))
		return 0;
	return GUARD_DROP_TCP_ACK;
}

/* To a port whose SYNs are answered. 0: it passes on. */
static __always_inline enum guard_reason check_syn(struct xdp_md *ctx, const struct guard_packet *packet)
{
	if (packet->protocol != IPPROTO_TCP || packet->fragment || !is_tcp_port(packet))
		return 0;
	switch (packet->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) {
	case TCP_SYN:
		return answer_syn(ctx, packet);
	case TCP_ACK:
	case TCP_ACK | TCP_FIN:
		return check_acks ? check_ack(ctx, packet) : 0;
	default:
		return 0;
	}
}

#endif
