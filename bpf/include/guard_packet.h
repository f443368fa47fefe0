/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the filter knows of a packet: addresses, ports, flags, where its payload is, and what is wrong with it.
 */
#ifndef EXPRESSWAY_GUARD_PACKET_H
#define EXPRESSWAY_GUARD_PACKET_H

#include <linux/tcp.h>

#include "guard_shared.h"
#include "packet.h"

#define IPV4_OFFSET 0x1fff
#define IPV4_MORE 0x2000
#define IPV6_OFFSET 0xfff8
#define IPV6_MORE 0x0001
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_KNOWN 0x3f

/* How far from the frame's begin a header may be that is read where it lies (MAX_PACKET_OFF of the verifier, less a header). No
 * headers in front reach so far; the verifier wants to hear it where an offset comes from memory. */
#define FARTHEST_HEADER 0xff00

/*
 * Has clang go on with this copy of a number. Else it may compute it again, or take another copy, and the verifiers of Linux 6.1
 * and 6.12 do not see that the bounds which were checked hold for that one too.
 */
#define ONE_REGISTER(number) asm volatile("" : "+r"(number))

/* A number that has been checked to be less than `bound`, a power of two, as the verifier sees it without looking back. */
static __always_inline __u32 below(__u32 number, __u32 bound)
{
	ONE_REGISTER(number);
	return number & (bound - 1);
}

/* A length that has been checked to be from 1 to `most`, a power of two, as the verifier sees it without looking back. */
static __always_inline __u32 bounded(__u32 length, __u32 most)
{
	return below(length - 1, most) + 1;
}

HEADER_READER(tcp, struct tcphdr)

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};
HEADER_READER(fragment, struct fragment_header)

struct guard_packet {
	__u8 source[16];      /* IPv4 behind ::ffff:0:0/96 */
	__u8 destination[16];
	__u32 source_port;    /* host byte order, or GUARD_NO_PORT */
	__u32 destination_port;
	__u32 flags;          /* of TCP, or GUARD_NO_FLAGS */
	__u32 protocol;
	__u32 length;         /* of the IP packet */
	__u32 network;        /* offset of the IP header */
	__u32 transport;      /* offset of the transport header */
	__u32 payload;        /* offset behind the header of TCP or UDP, or behind that of IP; 0: none */
	__u32 end;            /* offset behind the IP packet */
	bool ipv4;
	bool fragment;        /* any */
	bool later;           /* a fragment without the transport header */
	__u8 wrong;           /* enum guard_reason, 0: nothing */
	__u8 initial;         /* of a QUIC Initial packet that a Retry may answer: 1 and the length of its first ID; 0: none */
};

static __always_inline bool is_vlan(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

static __always_inline void parse_tcp(struct xdp_md *ctx, struct guard_packet *packet)
{
	struct tcphdr tcp;
	__u8 flags;

	if (!read_tcp(ctx, packet->transport, &tcp) || packet->transport + sizeof(tcp) > packet->end) {
		packet->wrong = GUARD_DROP_MALFORMED;
		return;
	}
	packet->source_port = bpf_ntohs(tcp.source);
	packet->destination_port = bpf_ntohs(tcp.dest);
	flags = ((__u8 *)&tcp)[13];
	packet->flags = flags;
	if (tcp.doff < 5 || packet->transport + tcp.doff * 4 > packet->end) {
		packet->wrong = GUARD_DROP_MALFORMED;
		return;
	}
	/* None at all, and those that exclude each other (RFC 9293). */
	if (!(flags & TCP_KNOWN) || (flags & (TCP_SYN | TCP_FIN)) == (TCP_SYN | TCP_FIN) ||
	    (flags & (TCP_SYN | TCP_RST)) == (TCP_SYN | TCP_RST))
		packet->wrong = GUARD_DROP_TCP_FLAGS;
	packet->payload = packet->transport + tcp.doff * 4;
}

static __always_inline void parse_transport(struct xdp_md *ctx, struct guard_packet *packet)
{
	struct udp_ports ports;
	struct udphdr udp;

	switch (packet->protocol) {
	case IPPROTO_TCP:
		parse_tcp(ctx, packet);
		break;
	case IPPROTO_UDP:
		if (!read_udp(ctx, packet->transport, &udp) || packet->transport + sizeof(udp) > packet->end) {
			packet->wrong = GUARD_DROP_MALFORMED;
			break;
		}
		packet->source_port = bpf_ntohs(udp.source);
		packet->destination_port = bpf_ntohs(udp.dest);
		/* The length of a datagram in fragments is that of the whole. */
		if (bpf_ntohs(udp.len) < sizeof(udp) ||
		    (!packet->fragment && packet->transport + bpf_ntohs(udp.len) > packet->end))
			packet->wrong = GUARD_DROP_MALFORMED;
		packet->payload = packet->transport + sizeof(udp);
		break;
	case IPPROTO_UDPLITE:
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
		if (!read_ports(ctx, packet->transport, &ports) ||
		    packet->transport + sizeof(ports) > packet->end) {
			packet->wrong = GUARD_DROP_MALFORMED;
			break;
		}
		packet->source_port = bpf_ntohs(ports.source);
		packet->destination_port = bpf_ntohs(ports.destination);
		packet->payload = packet->transport;
		break;
	default:
		packet->payload = packet->transport;
		break;
	}
}

/* Addresses that no packet from a network has as its source, and packets that claim to be from their destination. */
static __always_inline bool wrong_ipv4(__be32 source, __be32 destination)
{
	__u32 address = bpf_ntohl(source);

	/* 0.0.0.0 is a DHCP client's. */
	return address >> 28 >= 0xe || address >> 24 == 127 || source == destination;
}

static __always_inline bool wrong_ipv6(const struct in6_addr *source, const struct in6_addr *destination)
{
	const __be32 *from = source->in6_u.u6_addr32, *to = destination->in6_u.u6_addr32;

	return source->in6_u.u6_addr8[0] == 0xff ||
	       (!from[0] && !from[1] && !from[2] && from[3] == bpf_htonl(1)) ||
	       /* IPv4 addresses as sockets show them. */
	       (!from[0] && !from[1] && from[2] == bpf_htonl(0xffff)) ||
	       (from[0] == to[0] && from[1] == to[1] && from[2] == to[2] && from[3] == to[3]);
}

static __always_inline bool parse_ipv4(struct xdp_md *ctx, __u32 offset, struct guard_packet *packet)
{
	struct iphdr ip;
	__u32 fragment;

	if (!read_ipv4(ctx, offset, &ip))
		return false;
	packet->ipv4 = true;
	packet->network = offset;
	packet->source[10] = packet->source[11] = 0xff;
	packet->destination[10] = packet->destination[11] = 0xff;
	__builtin_memcpy(packet->source + 12, &ip.saddr, 4);
	__builtin_memcpy(packet->destination + 12, &ip.daddr, 4);
	packet->protocol = ip.protocol;
	packet->length = bpf_ntohs(ip.tot_len);
	packet->end = offset + packet->length;
	packet->transport = offset + ip.ihl * 4;
	if (ip.version != 4 || ip.ihl < 5 || packet->transport > packet->end || !frame_holds(ctx, packet->end)) {
		packet->wrong = GUARD_DROP_MALFORMED;
		return true;
	}
	if (wrong_ipv4(ip.saddr, ip.daddr)) {
		packet->wrong = GUARD_DROP_ADDRESS;
		return true;
	}
	fragment = bpf_ntohs(ip.frag_off);
	packet->fragment = fragment & (IPV4_OFFSET | IPV4_MORE);
	packet->later = fragment & IPV4_OFFSET;
	/* The last 8 bytes of the largest packet: a fragment beyond is an attack (ping of death). */
	if ((fragment & IPV4_OFFSET) * 8 + packet->length - ip.ihl * 4 > 0xffff)
		packet->wrong = GUARD_DROP_MALFORMED;
	return true;
}

static __always_inline bool parse_ipv6(struct xdp_md *ctx, __u32 offset, struct guard_packet *packet)
{
	struct extension_header extension;
	struct fragment_header fragment;
	struct ipv6hdr ip;
	__u32 at;
	__u8 next;

	if (!read_ipv6(ctx, offset, &ip))
		return false;
	packet->network = offset;
	__builtin_memcpy(packet->source, &ip.saddr, 16);
	__builtin_memcpy(packet->destination, &ip.daddr, 16);
	packet->length = sizeof(ip) + bpf_ntohs(ip.payload_len);
	packet->end = offset + packet->length;
	next = ip.nexthdr;
	packet->protocol = next;
	if (ip.version != 6 || !frame_holds(ctx, packet->end)) {
		packet->wrong = GUARD_DROP_MALFORMED;
		return true;
	}
	if (wrong_ipv6(&ip.saddr, &ip.daddr)) {
		packet->wrong = GUARD_DROP_ADDRESS;
		return true;
	}
	at = offset + sizeof(ip);
	for (int i = 0; i < GUARD_EXTENSIONS; i++) {
		if (next == NEXT_FRAGMENT) {
			if (!read_fragment(ctx, at, &fragment) || at + sizeof(fragment) > packet->end) {
				packet->wrong = GUARD_DROP_MALFORMED;
				return true;
			}
			packet->fragment |= (fragment.offset & bpf_htons(IPV6_OFFSET | IPV6_MORE)) != 0;
			next = fragment.next;
			at += sizeof(fragment);
			if (fragment.offset & bpf_htons(IPV6_OFFSET)) {
				packet->later = true;
				break;
			}
			continue;
		}
		if (next != NEXT_HOP_BY_HOP && next != NEXT_ROUTING && next != NEXT_DESTINATION &&
		    next != NEXT_AUTHENTICATION)
			break;
		if (!read_extension(ctx, at, &extension) || at + sizeof(extension) > packet->end) {
			packet->wrong = GUARD_DROP_MALFORMED;
			return true;
		}
		at += next == NEXT_AUTHENTICATION ? (extension.length + 2) * 4 : (extension.length + 1) * 8;
		next = extension.next;
	}
	packet->protocol = next;
	packet->transport = at;
	if (at > packet->end || next == NEXT_HOP_BY_HOP || next == NEXT_ROUTING || next == NEXT_FRAGMENT ||
	    next == NEXT_DESTINATION || next == NEXT_AUTHENTICATION)
		packet->wrong = packet->later ? 0 : GUARD_DROP_MALFORMED;
	return true;
}

/*
 * False for what is not IP, or has no whole IP header. `packet` is zeroed.
 *
 * More tags than are read here are wrong: the stack takes off any number of those without a VLAN (priority tags) and delivers what
 * is behind (check_vlan_id in net/core/dev.c).
 */
static __always_inline bool parse_packet(struct xdp_md *ctx, struct guard_packet *packet)
{
	__u32 offset = sizeof(struct ethhdr);
	struct ethhdr ethernet;
	struct vlan_tag tag;
	__be16 ethertype;

	packet->source_port = packet->destination_port = GUARD_NO_PORT;
	packet->flags = GUARD_NO_FLAGS;
	if (!read_ethernet(ctx, 0, &ethernet))
		return false;
	ethertype = ethernet.h_proto;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (!is_vlan(ethertype))
			break;
		if (!read_vlan(ctx, offset, &tag))
			return false;
		ethertype = tag.ethertype;
		offset += sizeof(tag);
	}
	if (is_vlan(ethertype)) {
		packet->wrong = GUARD_DROP_MALFORMED;
		return false;
	}
	if (ethertype == bpf_htons(ETH_P_IP)) {
		if (!parse_ipv4(ctx, offset, packet))
			return false;
	} else if (ethertype == bpf_htons(ETH_P_IPV6)) {
		if (!parse_ipv6(ctx, offset, packet))
			return false;
	} else {
		return false;
	}
	if (!packet->wrong && !packet->later)
		parse_transport(ctx, packet);
	return true;
}

#endif
