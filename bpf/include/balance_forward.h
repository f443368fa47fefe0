/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How balance.bpf.c sends a packet to its node: by layer 2, or behind an outer header; and what it answers when the
 * packet does not fit.
 *
 * The hop limit of the packet sinks by one in every case, so that balancers that are each other's nodes cannot send a
 * packet round for ever.
 */
#ifndef EXPRESSWAY_BALANCE_FORWARD_H
#define EXPRESSWAY_BALANCE_FORWARD_H

#include "balance_packet.h"

/* Of an outer header; and of ICMP errors. */
#define HOP_LIMIT 64
/* Bytes of a packet that an ICMP error carries: all of its headers, and a multiple of four. */
#define ABOUT_BYTES 64

struct icmp_budget {
	__u64 second;
	__u64 sent;
};

/* ICMP errors sent in this second. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct icmp_budget);
} icmp_map SEC(".maps");

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The sum of `length` bytes: a constant, a multiple of 4. */
#define SUM(start, length, seed) ((__u32)bpf_csum_diff(NULL, 0, (void *)(start), length, seed))

static __always_inline void age_ipv4(struct iphdr *ip)
{
	__u32 check = ip->check;

	check += bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
}

static __always_inline void set_ethernet(struct ethhdr *ethernet, const struct balance_node *node, __u16 type)
{
	__builtin_memcpy(ethernet->h_dest, node->destination_mac, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, node->source_mac, ETH_ALEN);
	ethernet->h_proto = bpf_htons(type);
}

/* What goes into outer headers of what was in the inner one. */
struct inner {
	__u32 length;
	__u32 sum;  /* of all its bytes, if sums: its own checksums say what that has to be */
	__u8 traffic_class;
	__u8 protocol; /* IPPROTO_IPIP or IPPROTO_IPV6 */
	bool sums;
};

/*
 * The sum of a packet from its headers alone (as the kernel's local checksum offload): its transport's checksum makes
 * the sum of what that covers 0xffff, so the payload needs no look. False where no checksum covers all of it.
 */
static __always_inline bool sum_inner(void *data, void *data_end, const struct packet *packet, struct inner *inner)
{
	__be32 pseudo[2] = { bpf_htonl(packet->length), bpf_htonl(packet->protocol) };
	struct udphdr *udp;

	if (packet->kind != PACKET_WHOLE || packet->error)
		return false;
	if (packet->family == 4) {
		struct iphdr *ip = data + sizeof(struct ethhdr);

		/* Options would move what is read below; such packets are rare. */
		if ((void *)(ip + 1) > data_end || ip->ihl != 5)
			return false;
		udp = (void *)(ip + 1);
		pseudo[0] = bpf_htonl(packet->length - sizeof(*ip));
		/* The header's own sum is 0xffff, which is 0. */
		inner->sum = (__u16)~folded((__u64)SUM(&ip->saddr, 8, 0) + SUM(pseudo, 8, 0));
	} else {
		struct ipv6hdr *ip = data + sizeof(struct ethhdr);

		if ((void *)(ip + 1) > data_end || ip->nexthdr == NEXT_FRAGMENT)
			return false;
		udp = (void *)(ip + 1);
		pseudo[0] = bpf_htonl(packet->length - sizeof(*ip));
		inner->sum = (__u16)~folded((__u64)SUM(&ip->saddr, 32, 0) + SUM(pseudo, 8, 0));
		inner->sum += folded(SUM(ip, 40, 0));
	}
	if (packet->protocol == IPPROTO_UDP && ((void *)(udp + 1) > data_end || !udp->check))
		return false;
	return true;
}

/* An outer UDP header with the source port of the flow, so that networks and nodes spread flows. */
static __always_inline void set_gue(struct udphdr *udp, __u32 length, __u32 hash)
{
	udp->source = bpf_htons(0xc000 | (hash & 0x3fff));
	udp->dest = bpf_htons(BALANCE_GUE_PORT);
	udp->len = bpf_htons(length + sizeof(*udp));
	udp->check = 0;
}

static __always_inline enum balance_counter wrap_ipv4(struct xdp_md *ctx, const struct inner *inner,
						      const struct balance_node *node, __u32 hash, bool gue)
{
	__u32 outer = sizeof(struct iphdr) + (gue ? sizeof(struct udphdr) : 0);
	struct ethhdr *ethernet;
	void *data_end;
	struct iphdr *ip;

	if (bpf_xdp_adjust_head(ctx, -(int)outer))
		return BALANCE_DROP_NO_ROOM;
	ethernet = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	ip = (void *)(ethernet + 1);
	if ((void *)(ip + 1) + sizeof(struct udphdr) > data_end)
		return BALANCE_DROP_NO_ROOM;
	set_ethernet(ethernet, node, ETH_P_IP);
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = inner->traffic_class;
	ip->tot_len = bpf_htons(inner->length + outer);
	ip->id = 0;
	ip->frag_off = bpf_htons(IPV4_DF);
	ip->ttl = HOP_LIMIT;
	ip->protocol = gue ? IPPROTO_UDP : inner->protocol;
	ip->check = 0;
	ip->saddr = node->source[3];
	ip->daddr = node->address[3];
	ip->check = ~folded(SUM(ip, sizeof(*ip), 0));
	if (gue)
		set_gue((void *)(ip + 1), inner->length, hash);
	return BALANCE_TX_NEW;
}

static __always_inline enum balance_counter wrap_ipv6(struct xdp_md *ctx, const struct inner *inner,
						      const struct balance_node *node, __u32 hash, bool gue)
{
	__u32 outer = sizeof(struct ipv6hdr) + (gue ? sizeof(struct udphdr) : 0);
	struct ethhdr *ethernet;
	struct ipv6hdr *ip;
	void *data_end;

	if (bpf_xdp_adjust_head(ctx, -(int)outer))
		return BALANCE_DROP_NO_ROOM;
	ethernet = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	ip = (void *)(ethernet + 1);
	if ((void *)(ip + 1) + sizeof(struct udphdr) > data_end)
		return BALANCE_DROP_NO_ROOM;
	set_ethernet(ethernet, node, ETH_P_IPV6);
	ip->version = 6;
	ip->priority = inner->traffic_class >> 4;
	ip->flow_lbl[0] = (inner->traffic_class & 0xf) << 4 | (hash >> 16 & 0xf);
	ip->flow_lbl[1] = hash >> 8;
	ip->flow_lbl[2] = hash;
	ip->payload_len = bpf_htons(inner->length + outer - sizeof(*ip));
	ip->nexthdr = gue ? IPPROTO_UDP : inner->protocol;
	ip->hop_limit = HOP_LIMIT;
	__builtin_memcpy(&ip->saddr, node->source, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, node->address, sizeof(ip->daddr));
	if (gue) {
		struct udphdr *udp = (void *)(ip + 1);

		set_gue(udp, inner->length, hash);
		/* Where the sum of the packet is not known it stays 0, which RFC 6935 lets tunnels do. */
		if (inner->sums) {
			__u64 sum = SUM(&ip->saddr, 32, 0);
			__u16 check;

			sum += (__u64)udp->len + udp->len + udp->source + udp->dest;
			sum += bpf_htons(IPPROTO_UDP) + inner->sum;
			check = ~folded(sum);
			udp->check = check ? check : 0xffff;
		}
	}
	return BALANCE_TX_NEW;
}

static __always_inline bool may_send_icmp(void)
{
	__u64 now = bpf_ktime_get_coarse_ns() / 1000000000;
	struct icmp_budget *budget;
	__u32 zero = 0;

	budget = bpf_map_lookup_elem(&icmp_map, &zero);
	if (!budget)
		return false;
	if (budget->second != now) {
		budget->second = now;
		budget->sent = 0;
	}
	return budget->sent++ < BALANCE_ICMP_RATE;
}

static __always_inline void swap_macs(struct ethhdr *to, const struct ethhdr *from)
{
	struct ethhdr old = *from;

	__builtin_memcpy(to->h_dest, old.h_source, ETH_ALEN);
	__builtin_memcpy(to->h_source, old.h_dest, ETH_ALEN);
	to->h_proto = old.h_proto;
}

/* Turns an IPv4 packet into "fragmentation needed" to its sender (RFC 1191). */
static __always_inline bool answer_ipv4(struct xdp_md *ctx, __u32 mtu)
{
	const int outer = sizeof(struct iphdr) + sizeof(struct icmp_header);
	struct ethhdr *ethernet;
	struct icmp_header *icmp;
	struct iphdr *ip, *about;

	if (bpf_xdp_adjust_head(ctx, -outer))
		return false;
	ethernet = (void *)(long)ctx->data;
	ip = (void *)(ethernet + 1);
	icmp = (void *)(ip + 1);
	about = (void *)(icmp + 1);
	if ((void *)about + ABOUT_BYTES > (void *)(long)ctx->data_end)
		return false;
	swap_macs(ethernet, (void *)ethernet + outer);
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = 0;
	ip->tot_len = bpf_htons(outer + ABOUT_BYTES);
	ip->id = 0;
	ip->frag_off = bpf_htons(IPV4_DF);
	ip->ttl = HOP_LIMIT;
	ip->protocol = IPPROTO_ICMP;
	ip->check = 0;
	ip->saddr = about->daddr;
	ip->daddr = about->saddr;
	ip->check = ~folded(SUM(ip, sizeof(*ip), 0));
	icmp->type = ICMP_UNREACHABLE;
	icmp->code = ICMP_FRAGMENTATION_NEEDED;
	icmp->check = 0;
	icmp->unused = 0;
	icmp->mtu = bpf_htons(mtu);
	icmp->check = ~folded(SUM(icmp, sizeof(*icmp) + ABOUT_BYTES, 0));
	return true;
}

/* The same for IPv6: "packet too big" (RFC 4443). */
static __always_inline bool answer_ipv6(struct xdp_md *ctx, __u32 mtu)
{
	const int outer = sizeof(struct ipv6hdr) + sizeof(struct icmp6hdr);
	__be32 pseudo[2] = { bpf_htonl(sizeof(struct icmp6hdr) + ABOUT_BYTES), bpf_htonl(IPPROTO_ICMPV6) };
	struct ethhdr *ethernet;
	struct ipv6hdr *ip, *about;
	struct icmp6hdr *icmp;

	if (bpf_xdp_adjust_head(ctx, -outer))
		return false;
	ethernet = (void *)(long)ctx->data;
	ip = (void *)(ethernet + 1);
	icmp = (void *)(ip + 1);
	about = (void *)(icmp + 1);
	if ((void *)about + ABOUT_BYTES > (void *)(long)ctx->data_end)
		return false;
	swap_macs(ethernet, (void *)ethernet + outer);
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = bpf_htons(sizeof(*icmp) + ABOUT_BYTES);
	ip->nexthdr = IPPROTO_ICMPV6;
	ip->hop_limit = HOP_LIMIT;
	ip->saddr = about->daddr;
	ip->daddr = about->saddr;
	icmp->icmp6_type = ICMPV6_PKT_TOOBIG;
	icmp->icmp6_code = 0;
	icmp->icmp6_cksum = 0;
	icmp->icmp6_mtu = bpf_htonl(mtu);
	icmp->icmp6_cksum = ~folded((__u64)SUM(&ip->saddr, 32, 0) + SUM(pseudo, 8, 0) +
				    SUM(icmp, sizeof(*icmp) + ABOUT_BYTES, 0));
	return true;
}

/*
 * Tells the sender of a packet that leaves no room for an outer header how long packets may be. Not about ICMP errors
 * (RFC 1122 section 3.2.2), nor to an IPv4 sender that lets others fragment: XDP cannot, and such a packet is lost.
 */
static __always_inline enum balance_counter too_big(struct xdp_md *ctx, const struct packet *packet, __u32 mtu,
						    int *verdict)
{
	void *data_end = (void *)(long)ctx->data_end;
	struct iphdr *ip = (void *)(long)ctx->data + sizeof(struct ethhdr);
	__u32 kept = sizeof(struct ethhdr) + ABOUT_BYTES;
	bool answered;

	if (packet->error || packet->kind == PACKET_LATER_FRAGMENT)
		return BALANCE_DROP_TOO_BIG;
	if ((void *)(ip + 1) > data_end || (packet->family == 4 && !(ip->frag_off & bpf_htons(IPV4_DF))))
		return BALANCE_DROP_TOO_BIG;
	if (!may_send_icmp())
		return BALANCE_DROP_TOO_BIG;
	if (bpf_xdp_adjust_tail(ctx, (int)(kept - (__u32)bpf_xdp_get_buff_len(ctx))))
		return BALANCE_DROP_TOO_BIG;
	answered = packet->family == 4 ? answer_ipv4(ctx, mtu) : answer_ipv6(ctx, mtu);
	if (!answered)
		return BALANCE_DROP_NO_ROOM;
	*verdict = XDP_TX;
	return BALANCE_TX_TOO_BIG;
}

/* Out of the interface that leads to the node. */
static __always_inline int leave(struct xdp_md *ctx, __u32 ifindex)
{
	return ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(ifindex, 0);
}

/* Sends the packet to the node. Returns `counter` if it does, else what became of it. */
static __always_inline enum balance_counter forward(struct xdp_md *ctx, const struct packet *packet,
						    const struct balance_node *node, __u32 hash,
						    enum balance_counter counter, int *verdict)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct inner inner = { .length = packet->length, .protocol = IPPROTO_IPIP };
	bool gue = node->method == BALANCE_GUE;
	enum balance_counter wrapped;
	__u32 overhead = 0;

	if (!node->ifindex)
		return BALANCE_DROP_UNRESOLVED;
	if (node->method != BALANCE_L2)
		overhead = (node->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
			   (gue ? sizeof(struct udphdr) : 0);
	if (packet->length + overhead > node->mtu)
		return too_big(ctx, packet, node->mtu - overhead, verdict);

	if (packet->family == 4) {
		struct iphdr *ip = data + sizeof(struct ethhdr);

		if ((void *)(ip + 1) > data_end)
			return BALANCE_DROP_NO_ROOM;
		age_ipv4(ip);
		inner.traffic_class = ip->tos;
	} else {
		struct ipv6hdr *ip = data + sizeof(struct ethhdr);

		if ((void *)(ip + 1) > data_end)
			return BALANCE_DROP_NO_ROOM;
		ip->hop_limit--;
		inner.traffic_class = ip->priority << 4 | ip->flow_lbl[0] >> 4;
		inner.protocol = IPPROTO_IPV6;
	}
	if (node->method == BALANCE_L2) {
		struct ethhdr *ethernet = data;

		__builtin_memcpy(ethernet->h_dest, node->destination_mac, ETH_ALEN);
		__builtin_memcpy(ethernet->h_source, node->source_mac, ETH_ALEN);
		*verdict = leave(ctx, node->ifindex);
		return counter;
	}
	/* What lies behind the packet (Ethernet's padding) is not part of it. */
	if (node->family == 4) {
		wrapped = wrap_ipv4(ctx, &inner, node, hash, gue);
	} else {
		inner.sums = gue && sum_inner(data, data_end, packet, &inner);
		wrapped = wrap_ipv6(ctx, &inner, node, hash, gue);
	}
	if (wrapped >= BALANCE_FIRST_DROP)
		return wrapped;
	*verdict = leave(ctx, node->ifindex);
	return counter;
}

#endif
