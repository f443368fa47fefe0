/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What balance.bpf.c reads out of a frame, by direct access: headers lie in the linear part on every driver known, and
 * a frame whose headers do not passes as malformed.
 */
#ifndef EXPRESSWAY_BALANCE_PACKET_H
#define EXPRESSWAY_BALANCE_PACKET_H

#include <linux/icmpv6.h>
#include <linux/tcp.h>

#include "packet.h"

#include "balance_shared.h"

/* A fragment header of IPv6 (RFC 8200 section 4.5). */
struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset; /* in the upper 13 bits, in units of 8; the lowest says that more follow */
	__be32 id;
};

/* An ICMP header as errors have it. <linux/icmp.h> includes what the BPF target has not. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 check;
	__u16 unused;
	__be16 mtu;
};

#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMP_EXCEEDED 11
#define ICMP_PARAMETER 12

#define IPV4_MORE 0x2000
#define IPV4_OFFSET 0x1fff
#define IPV4_DF 0x4000
#define IPV6_OFFSET 0xfff8
#define IPV6_MORE 1

enum packet_kind {
	PACKET_WHOLE = 0,
	PACKET_FIRST_FRAGMENT,
	PACKET_LATER_FRAGMENT,
};

struct packet {
	__u32 source[4];
	__u32 destination[4];
	__u32 id;      /* of a fragmented packet */
	__u32 length;  /* of the IP packet */
	__u32 payload; /* offset behind the IP headers */
	__u32 sequence; /* TCP */
	__be16 source_port;
	__be16 destination_port;
	__u8 family;
	__u8 protocol;
	__u8 kind;
	__u8 hop_limit;
	bool opens;  /* TCP: SYN */
	bool closes; /* TCP: FIN or RST */
	bool error;  /* ICMP: ports and addresses are those of the packet that it is about, from its sender's side */
};

static __always_inline void mapped(__u32 *address, __be32 ipv4)
{
	address[0] = 0;
	address[1] = 0;
	address[2] = bpf_htonl(0xffff);
	address[3] = ipv4;
}

/* The addresses and ports of the packet that an ICMP error carries: it went from a service to its client. */
static __always_inline enum balance_counter parse_about(void *at, void *data_end, struct packet *packet)
{
	struct udp_ports *ports;
	__u8 protocol;

	if (packet->family == 4) {
		struct iphdr *ip = at;

		if ((void *)(ip + 1) > data_end || ip->version != 4 || ip->ihl < 5)
			return BALANCE_PASS_MALFORMED;
		if (ip->frag_off & bpf_htons(IPV4_OFFSET))
			return BALANCE_PASS_FRAGMENT;
		protocol = ip->protocol;
		mapped(packet->source, ip->daddr);
		mapped(packet->destination, ip->saddr);
		at += ip->ihl * 4;
	} else {
		struct ipv6hdr *ip = at;

		if ((void *)(ip + 1) > data_end || ip->version != 6)
			return BALANCE_PASS_MALFORMED;
		protocol = ip->nexthdr;
		__builtin_memcpy(packet->source, &ip->daddr, sizeof(packet->source));
		__builtin_memcpy(packet->destination, &ip->saddr, sizeof(packet->destination));
		at += sizeof(*ip);
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return BALANCE_PASS_PROTOCOL;
	ports = at;
	if ((void *)(ports + 1) > data_end)
		return BALANCE_PASS_MALFORMED;
	packet->protocol = protocol;
	packet->source_port = ports->destination;
	packet->destination_port = ports->source;
	packet->error = true;
	return BALANCE_TX_ICMP;
}

static __always_inline enum balance_counter parse_icmp(void *at, void *data_end, struct packet *packet)
{
	struct icmp_header *icmp = at;

	if ((void *)(icmp + 1) > data_end)
		return BALANCE_PASS_MALFORMED;
	if (packet->family == 4) {
		if (icmp->type != ICMP_UNREACHABLE && icmp->type != ICMP_EXCEEDED &&
		    icmp->type != ICMP_PARAMETER)
			return BALANCE_PASS_PROTOCOL;
	} else if (icmp->type < ICMPV6_DEST_UNREACH || icmp->type > ICMPV6_PARAMPROB) {
		return BALANCE_PASS_PROTOCOL;
	}
	return parse_about(icmp + 1, data_end, packet);
}

/* Ports and flags. Anything but TX_NEW and TX_ICMP is a verdict. */
static __always_inline enum balance_counter parse_transport(void *at, void *data_end, struct packet *packet)
{
	if (packet->protocol == IPPROTO_UDP) {
		struct udphdr *udp = at;

		if ((void *)(udp + 1) > data_end)
			return BALANCE_PASS_MALFORMED;
		packet->source_port = udp->source;
		packet->destination_port = udp->dest;
		return BALANCE_TX_NEW;
	}
	if (packet->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = at;

		if ((void *)(tcp + 1) > data_end)
			return BALANCE_PASS_MALFORMED;
		packet->source_port = tcp->source;
		packet->destination_port = tcp->dest;
		packet->sequence = bpf_ntohl(tcp->seq);
		packet->opens = tcp->syn;
		packet->closes = tcp->fin || tcp->rst;
		return BALANCE_TX_NEW;
	}
	if (packet->kind == PACKET_WHOLE &&
	    packet->protocol == (packet->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return parse_icmp(at, data_end, packet);
	return BALANCE_PASS_PROTOCOL;
}

static __always_inline enum balance_counter parse_ipv4(void *data, void *data_end, __u64 frame,
						      struct packet *packet)
{
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__u32 header;

	if ((void *)(ip + 1) > data_end)
		return BALANCE_PASS_MALFORMED;
	header = ip->ihl * 4;
	packet->length = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || header < sizeof(*ip) || packet->length < header ||
	    packet->length > frame - sizeof(struct ethhdr))
		return BALANCE_PASS_MALFORMED;
	packet->family = 4;
	packet->protocol = ip->protocol;
	packet->hop_limit = ip->ttl;
	packet->payload = sizeof(struct ethhdr) + header;
	mapped(packet->source, ip->saddr);
	mapped(packet->destination, ip->daddr);
	if (ip->frag_off & bpf_htons(IPV4_MORE | IPV4_OFFSET)) {
		packet->id = ip->id;
		packet->kind = PACKET_FIRST_FRAGMENT;
		if (ip->frag_off & bpf_htons(IPV4_OFFSET)) {
			packet->kind = PACKET_LATER_FRAGMENT;
			return BALANCE_TX_FRAGMENT;
		}
	}
	return parse_transport((void *)ip + header, data_end, packet);
}

static __always_inline enum balance_counter parse_ipv6(void *data, void *data_end, __u64 frame,
						      struct packet *packet)
{
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);
	void *at = ip + 1;

	if ((void *)(ip + 1) > data_end)
		return BALANCE_PASS_MALFORMED;
	packet->length = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (ip->version != 6 || packet->length > frame - sizeof(struct ethhdr))
		return BALANCE_PASS_MALFORMED;
	packet->family = 6;
	packet->protocol = ip->nexthdr;
	packet->hop_limit = ip->hop_limit;
	packet->payload = sizeof(struct ethhdr) + sizeof(*ip);
	__builtin_memcpy(packet->source, &ip->saddr, sizeof(packet->source));
	__builtin_memcpy(packet->destination, &ip->daddr, sizeof(packet->destination));
	switch (ip->nexthdr) {
	case NEXT_HOP_BY_HOP:
	case NEXT_ROUTING:
	case NEXT_DESTINATION:
	case NEXT_AUTHENTICATION:
	case NEXT_MOBILITY:
	case NEXT_HIP:
	case NEXT_SHIM6:
		return BALANCE_PASS_EXTENSION;
	case NEXT_FRAGMENT: {
		struct fragment_header *fragment = at;

		if ((void *)(fragment + 1) > data_end)
			return BALANCE_PASS_MALFORMED;
		at = fragment + 1;
		packet->payload += sizeof(*fragment);
		packet->protocol = fragment->next;
		packet->id = fragment->id;
		if (fragment->offset & bpf_htons(IPV6_OFFSET)) {
			packet->kind = PACKET_LATER_FRAGMENT;
			return BALANCE_TX_FRAGMENT;
		}
		if (fragment->offset & bpf_htons(IPV6_MORE))
			packet->kind = PACKET_FIRST_FRAGMENT;
	}
	}
	return parse_transport(at, data_end, packet);
}

/* TX_NEW: addresses and ports are known. TX_ICMP: those of the packet that it is about. TX_FRAGMENT: no ports. */
static __always_inline enum balance_counter parse(struct xdp_md *ctx, struct packet *packet)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 frame = bpf_xdp_get_buff_len(ctx);
	struct ethhdr *ethernet = data;

	if ((void *)(ethernet + 1) > data_end)
		return BALANCE_PASS_MALFORMED;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return parse_ipv4(data, data_end, frame, packet);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(data, data_end, frame, packet);
	return BALANCE_PASS_NOT_IP;
}

#endif
