/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Answers in the place of a server: the packet becomes a short one of its destination to its source, and goes back out of the
 * interface that it came in by (XDP_TX). Nothing is remembered of it.
 *
 * An answer is put together in memory of the CPU and written over the packet at once. Checksums are whole: an interface may
 * not finish those of packets that an XDP program sends.
 */
#ifndef EXPRESSWAY_GUARD_ANSWER_H
#define EXPRESSWAY_GUARD_ANSWER_H

#include "guard_packet.h"

/* Set before load. */
const volatile bool dry_run = false;

/* Where the transport header stands, in front of which is room for that of IPv6; what is summed from there on is zero behind
 * the answer. */
#define ANSWER_TRANSPORT 64
#define ANSWER_SUMMED 96
#define ANSWER_ROOM 192
/* Hops that an answer may take. */
#define ANSWER_HOPS 64
#define IPV4_DONT_FRAGMENT 0x4000

struct guard_scratch {
	__u8 answer[ANSWER_ROOM];
	/* What a token is signed over. */
	union {
		__u64 words[8];
		__u8 bytes[64];
	} text;
	/* Of GHASH. */
	union {
		__u64 words[2];
		__u8 bytes[16];
	} hash;
	/* The packet's own headers. */
	__u8 network[40];
	__u8 transport[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_scratch);
} scratch_map SEC(".maps");

/* With an empty answer. */
static __always_inline struct guard_scratch *take_scratch(void)
{
	__u32 zero = 0;
	struct guard_scratch *scratch = bpf_map_lookup_elem(&scratch_map, &zero);

	if (scratch)
		__builtin_memset(scratch->answer, 0, sizeof(scratch->answer));
	return scratch;
}

/* Whether it is for one host, and its headers are simple enough to be turned round: no IP options, no extension headers. */
static __always_inline bool is_answerable(const struct guard_packet *packet)
{
	__u8 first = packet->ipv4 ? packet->destination[12] : packet->destination[0];

	return !packet->fragment && first < (packet->ipv4 ? 0xe0 : 0xff) &&
	       packet->transport - packet->network == (packet->ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The checksum of the `length` bytes of the transport header and what is behind, in which that field is still 0. */
static __always_inline __u16 answer_checksum(struct guard_scratch *scratch, const struct guard_packet *packet, __u8 protocol,
					     __u16 length)
{
	__u32 sum = (__u32)bpf_htons(protocol) + bpf_htons(length);

	/* The ffff in front of IPv4 addresses is 0 in this arithmetic. */
	sum = bpf_csum_diff(NULL, 0, (void *)packet->source, sizeof(packet->source), sum);
	sum = bpf_csum_diff(NULL, 0, (void *)packet->destination, sizeof(packet->destination), sum);
	return folded(bpf_csum_diff(NULL, 0, (void *)(scratch->answer + ANSWER_TRANSPORT), ANSWER_SUMMED, sum));
}

static __always_inline long write_ipv4(struct xdp_md *ctx, struct guard_scratch *scratch, const struct guard_packet *packet,
				       __u8 protocol, __u32 length)
{
	struct iphdr *ip = (void *)(scratch->answer + ANSWER_TRANSPORT - sizeof(struct iphdr));

	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->tot_len = bpf_htons(sizeof(*ip) + length);
	ip->frag_off = bpf_htons(IPV4_DONT_FRAGMENT);
	ip->ttl = ANSWER_HOPS;
	ip->protocol = protocol;
	__builtin_memcpy(&ip->saddr, packet->destination + 12, 4);
	__builtin_memcpy(&ip->daddr, packet->source + 12, 4);
	ip->check = folded(bpf_csum_diff(NULL, 0, (void *)ip, sizeof(*ip), 0));
	return bpf_xdp_store_bytes(ctx, packet->network, ip, sizeof(*ip) + length);
}

static __always_inline long write_ipv6(struct xdp_md *ctx, struct guard_scratch *scratch, const struct guard_packet *packet,
				       __u8 protocol, __u32 length)
{
	struct ipv6hdr *ip = (void *)(scratch->answer + ANSWER_TRANSPORT - sizeof(struct ipv6hdr));

	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = bpf_htons(length);
	ip->nexthdr = protocol;
	ip->hop_limit = ANSWER_HOPS;
	__builtin_memcpy(&ip->saddr, packet->destination, 16);
	__builtin_memcpy(&ip->daddr, packet->source, 16);
	return bpf_xdp_store_bytes(ctx, packet->network, ip, sizeof(*ip) + length);
}

/*
 * Turns the packet into the answer, of which the transport header and what is behind have `length` bytes. False if it cannot
 * be: the packet is as it was, or not fit to be passed on.
 */
static __always_inline bool send_back(struct xdp_md *ctx, struct guard_scratch *scratch, const struct guard_packet *packet,
				      __u8 protocol, __u32 length)
{
	__u32 header = packet->ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u8 macs[12], turned[12];
	long failed;

	/* A group has no address that an answer can come from. */
	if (length > ANSWER_SUMMED || bpf_xdp_load_bytes(ctx, 0, macs, sizeof(macs)) || macs[0] & 1 ||
	    bpf_xdp_adjust_tail(ctx, (int)(packet->network + header + length) - (int)bpf_xdp_get_buff_len(ctx)))
		return false;
	__builtin_memcpy(turned, macs + 6, 6);
	__builtin_memcpy(turned + 6, macs, 6);
	failed = packet->ipv4 ? write_ipv4(ctx, scratch, packet, protocol, length) :
				write_ipv6(ctx, scratch, packet, protocol, length);
	return !failed && !bpf_xdp_store_bytes(ctx, 0, turned, sizeof(turned));
}

#endif
