/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Gives a unicast datagram of the feed the private multicast group as its destination, so that the kernel clones it.
 * What is sent to that group from outside is dropped. Private to fanout.bpf.c.
 */
#ifndef EXPRESSWAY_FANOUT_TURN_H
#define EXPRESSWAY_FANOUT_TURN_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "fanout_state.h"

/* Linux 6.16: the address lies in a header that has no checksum of its own. Older kernels refuse the flag. */
#define L4_CSUM_IPV6 (1ULL << 7)

/* enum tcx_action_base (Linux 6.6): the next program on the interface decides, or nobody does. */
#define CARRY_ON -1
#define DROP 2

static __always_inline bool same(const volatile __u32 *own, const struct fanout_address *other)
{
	return own[0] == other->words[0] && own[1] == other->words[1] && own[2] == other->words[2] &&
	       own[3] == other->words[3];
}

static __always_inline struct fanout_address mapped(__be32 address)
{
	return (struct fanout_address){ .words = { 0, 0, bpf_htonl(0xffff), address } };
}

static __always_inline struct fanout_address plain(const struct in6_addr *address)
{
	struct fanout_address plain;

	__builtin_memcpy(&plain, address, sizeof(plain));
	return plain;
}

/*
 * Whether the datagram from `source` to `target` is to be turned; else `*verdict` says what is to be done.
 * `udp` is the offset of the UDP header.
 */
static __always_inline bool is_feed(struct __sk_buff *skb, const struct fanout_address *source,
				    const struct fanout_address *target, __u32 udp, int *verdict)
{
	bool private = same(private_group, target);
	struct udphdr header;

	*verdict = CARRY_ON;
	if (!private && !same(destination, target))
		return false;
	if (bpf_skb_load_bytes(skb, udp, &header, sizeof(header)) || header.dest != feed_port)
		return false;
	if (private) {
		count(FANOUT_DROPPED_PRIVATE);
		*verdict = DROP;
		return false;
	}
	if (check_source && !bpf_map_lookup_elem(&sources_map, source)) {
		count(FANOUT_DROPPED_SOURCE);
		*verdict = DROP;
		return false;
	}
	return true;
}

static __always_inline int turned(long failed)
{
	count(failed ? FANOUT_DROPPED_REWRITE : FANOUT_TURNED);
	return failed ? DROP : CARRY_ON;
}

static __always_inline int turn_ipv4(struct __sk_buff *skb, __u32 offset)
{
	__u64 flags = BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | sizeof(__be32);
	__be32 group = private_group[3];
	struct fanout_address source, target;
	struct iphdr ip;
	int verdict;
	__u32 udp;

	if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)) || ip.protocol != IPPROTO_UDP)
		return CARRY_ON;
	source = mapped(ip.saddr);
	target = mapped(ip.daddr);
	if (ip.frag_off & bpf_htons(0x3fff)) {
		if (same(destination, &target))
			count(FANOUT_PASSED);
		return CARRY_ON;
	}
	udp = offset + ip.ihl * 4;
	if (!is_feed(skb, &source, &target, udp, &verdict))
		return verdict;
	return turned(fail_rewrite || bpf_l4_csum_replace(skb, udp + offsetof(struct udphdr, check), ip.daddr, group, flags) ||
		      bpf_l3_csum_replace(skb, offset + offsetof(struct iphdr, check), ip.daddr, group,
					  sizeof(__be32)) ||
		      bpf_skb_store_bytes(skb, offset + offsetof(struct iphdr, daddr), &group, sizeof(group), 0));
}

static __always_inline int turn_ipv6(struct __sk_buff *skb, __u32 offset)
{
	__u64 flags = BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0;
	__u32 udp = offset + sizeof(struct ipv6hdr);
	__u32 check = udp + offsetof(struct udphdr, check);
	struct fanout_address source, target, group;
	struct ipv6hdr ip;
	long failed;
	int verdict;
	__s64 sum;

	if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)))
		return CARRY_ON;
	source = plain(&ip.saddr);
	target = plain(&ip.daddr);
	if (ip.nexthdr != IPPROTO_UDP) {
		if (same(destination, &target) && ip.nexthdr != IPPROTO_TCP && ip.nexthdr != IPPROTO_ICMPV6)
			count(FANOUT_PASSED);
		return CARRY_ON;
	}
	if (!is_feed(skb, &source, &target, udp, &verdict))
		return verdict;
	for (int i = 0; i < 4; i++)
		group.words[i] = private_group[i];
	sum = bpf_csum_diff(target.words, sizeof(target), group.words, sizeof(group), 0);
	failed = fail_rewrite ? -12 /* ENOMEM */ : bpf_l4_csum_replace(skb, check, 0, sum, flags | L4_CSUM_IPV6);
	if (failed == -22 /* EINVAL */)
		failed = bpf_l4_csum_replace(skb, check, 0, sum, flags);
	return turned(failed || bpf_skb_store_bytes(skb, offset + offsetof(struct ipv6hdr, daddr), &group,
						    sizeof(group), 0));
}

#endif
