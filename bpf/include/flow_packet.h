/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a packet says of its flow, read from kernel memory, wherever a hook found it.
 */
#ifndef EXPRESSWAY_FLOW_PACKET_H
#define EXPRESSWAY_FLOW_PACKET_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flows_shared.h"

#define VLAN_TAGS 2
#define EXTENSIONS 4
#define IPV4_OFFSET 0x1fff
#define IPV6_OFFSET 0xfff8
#define TCP_HEADER 20
#define UDP_HEADER 8
/* QUIC (RFC 9000, section 17; RFC 9369): the header's form and its fixed bit, the versions, those of drafts. */
#define QUIC_LONG 0x80
#define QUIC_FIXED 0x40
#define QUIC_1 0x00000001
#define QUIC_2 0x6b3343cf
#define QUIC_DRAFTS 0xff0000

struct flow_packet {
	struct flow_key key;
	__u32 queue;   /* index in queues_map */
	__u32 headers; /* octets up to the transport's payload; 0: not known */
	__u32 tags[VLAN_TAGS]; /* of VLANs, outermost first: ethertype in the upper half, VLAN in the lower */
	__u8 cid[FLOWS_CID];
	__u8 cid_length;
	__u8 quic;
	__u8 padding[2];
};

struct packet_bytes {
	const void *data;
	__u32 length;
};

static __always_inline bool take(const struct packet_bytes *from, __u32 at, void *to, __u32 size)
{
	return at + size <= from->length && bpf_probe_read_kernel(to, size, from->data + at) == 0;
}

/* Longer connection IDs than version 1 allows, and none, are left out. */
static __always_inline void take_cid(struct flow_packet *packet, const struct packet_bytes *from, __u32 at,
				     __u32 short_length)
{
	struct {
		__u8 first;
		__u8 version[4];
		__u8 length;
	} header;
	__u32 length = short_length, version;
	__u64 size;

	if (!take(from, at, &header, sizeof(header)) || !(header.first & QUIC_FIXED))
		return;
	at += 1;
	if (header.first & QUIC_LONG) {
		version = (__u32)header.version[0] << 24 | header.version[1] << 16 | header.version[2] << 8 |
			  header.version[3];
		if (version != QUIC_1 && version != QUIC_2 && version >> 8 != QUIC_DRAFTS)
			return;
		packet->quic = 1;
		length = header.length;
		at += 5;
	}
	if (length == 0 || length > FLOWS_CID || at + length > from->length)
		return;
	/* For verifiers that forget the bound of what was put aside (Linux 6.1); no bit is lost. */
	size = length;
	asm volatile("%0 &= 31" : "+r"(size));
	if (bpf_probe_read_kernel(packet->cid, size, from->data + at) == 0)
		packet->cid_length = length;
}

static __always_inline void take_transport(struct flow_packet *packet, const struct packet_bytes *from, __u32 at,
					   __u32 short_length)
{
	__u16 ports[2];
	__u8 offset;

	switch (packet->key.protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
		break;
	default:
		return;
	}
	if (!take(from, at, ports, sizeof(ports)))
		return;
	packet->key.source_port = ports[0];
	packet->key.destination_port = ports[1];
	if (packet->key.protocol == IPPROTO_TCP) {
		if (take(from, at + 12, &offset, sizeof(offset)) && offset >> 4 >= TCP_HEADER / 4)
			packet->headers = at + (offset >> 4) * 4;
	} else if (packet->key.protocol == IPPROTO_UDP) {
		packet->headers = at + UDP_HEADER;
		take_cid(packet, from, at + UDP_HEADER, short_length);
	}
}

static __always_inline void take_ipv4(struct flow_packet *packet, const struct packet_bytes *from, __u32 at,
				      __u32 short_length)
{
	struct iphdr ip;

	if (!take(from, at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return;
	packet->key.source[10] = packet->key.source[11] = 0xff;
	packet->key.destination[10] = packet->key.destination[11] = 0xff;
	__builtin_memcpy(packet->key.source + 12, &ip.saddr, 4);
	__builtin_memcpy(packet->key.destination + 12, &ip.daddr, 4);
	packet->key.protocol = ip.protocol;
	if (!(bpf_ntohs(ip.frag_off) & IPV4_OFFSET))
		take_transport(packet, from, at + ip.ihl * 4, short_length);
}

static __always_inline void take_ipv6(struct flow_packet *packet, const struct packet_bytes *from, __u32 at,
				      __u32 short_length)
{
	struct {
		__u8 next;
		__u8 length;
		__be16 offset;
	} extension;
	struct ipv6hdr ip;
	__u8 next;
	int i;

	if (!take(from, at, &ip, sizeof(ip)) || ip.version != 6)
		return;
	__builtin_memcpy(packet->key.source, &ip.saddr, 16);
	__builtin_memcpy(packet->key.destination, &ip.daddr, 16);
	next = ip.nexthdr;
	at += sizeof(ip);
	for (i = 0; i < EXTENSIONS; i++) {
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT)
			break;
		if (!take(from, at, &extension, sizeof(extension)))
			return;
		at += next == IPPROTO_FRAGMENT ? 8 : (extension.length + 1) * 8;
		if (next == IPPROTO_FRAGMENT && bpf_ntohs(extension.offset) & IPV6_OFFSET) {
			packet->key.protocol = extension.next;
			return;
		}
		next = extension.next;
	}
	packet->key.protocol = next;
	take_transport(packet, from, at, short_length);
}

/*
 * Fills in `packet`, which is all zero but for the direction. `ethernet`: it begins with such a header, else with IP.
 * `short_length`: of the connection IDs in short headers, which do not say it.
 */
static __noinline int take_packet(struct flow_packet *packet, const void *data, __u32 length, bool ethernet,
				  __u32 short_length)
{
	struct packet_bytes from = { .data = data, .length = length };
	struct ethhdr header;
	__be16 tag[2];
	__u32 at = 0;
	__u8 version;
	int i;

	if (ethernet) {
		if (!take(&from, 0, &header, sizeof(header)))
			return 0;
		at = sizeof(header);
		for (i = 0; i < VLAN_TAGS; i++) {
			if (header.h_proto != bpf_htons(ETH_P_8021Q) && header.h_proto != bpf_htons(ETH_P_8021AD))
				break;
			if (!take(&from, at, tag, sizeof(tag)))
				break;
			packet->tags[i] = (__u32)bpf_ntohs(header.h_proto) << 16 | (bpf_ntohs(tag[0]) & 0xfff);
			header.h_proto = tag[1];
			at += sizeof(tag);
		}
		packet->key.ethertype = header.h_proto;
	} else {
		if (!take(&from, 0, &version, sizeof(version)))
			return 0;
		packet->key.ethertype = version >> 4 == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	}
	if (packet->key.ethertype == bpf_htons(ETH_P_IP)) {
		take_ipv4(packet, &from, at, short_length);
	} else if (packet->key.ethertype == bpf_htons(ETH_P_IPV6)) {
		take_ipv6(packet, &from, at, short_length);
	} else {
		__builtin_memcpy(packet->key.source, header.h_source, ETH_ALEN);
		__builtin_memcpy(packet->key.destination, header.h_dest, ETH_ALEN);
	}
	return 0;
}

#endif
