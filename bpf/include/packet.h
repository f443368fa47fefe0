/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reading headers out of an XDP frame, wherever they lie.
 *
 * read_NAME(ctx, offset, header) copies one header out of the frame and returns false when the frame
 * ends before it. Headers lie in the linear part on every driver known, so that is the fast path; a
 * header that reaches into the fragments of a multi-buffer frame is read by bpf_xdp_load_bytes (Linux
 * 5.18). The copy is what lets both ways share the code behind: the verifier refuses one instruction
 * that reads through a packet pointer and through a stack pointer.
 */
#ifndef EXPRESSWAY_PACKET_H
#define EXPRESSWAY_PACKET_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* IPv4 fragment field: more-fragments flag and offset; set in any of them, it is a fragment. */
#define IPV4_FRAGMENT 0x3fff

/* Extension headers, by the "next header" that announces them (IANA protocol numbers). */
#define NEXT_HOP_BY_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_AUTHENTICATION 51
#define NEXT_DESTINATION 60
#define NEXT_MOBILITY 135
#define NEXT_HIP 139
#define NEXT_SHIM6 140

/* IPv6 option types: the one that is a single byte, and the bits that say what an unknown one means. */
#define OPTION_PAD1 0
#define OPTION_ACTION 0xc0

/* The bytes behind an 802.1Q or 802.1ad ethertype. */
struct vlan_tag {
	__be16 control;
	__be16 ethertype;
};

/* The first bytes of an extension header; the latter two have this meaning in a routing header only. */
struct extension_header {
	__u8 next;
	__u8 length; /* in 8-byte units beyond the first */
	__u8 routing_type;
	__u8 segments_left;
};

/* The first bytes of a UDP header. */
struct udp_ports {
	__be16 source;
	__be16 destination;
};

#define HEADER_READER(name, type)                                                                          \
	static __always_inline bool read_##name(struct xdp_md *ctx, __u32 offset, type *header)            \
	{                                                                                                  \
		const type *linear = (void *)(long)ctx->data + offset;                                     \
                                                                                                           \
		if ((void *)(linear + 1) <= (void *)(long)ctx->data_end) {                                 \
			*header = *linear;                                                                 \
			return true;                                                                       \
		}                                                                                          \
		return bpf_xdp_load_bytes(ctx, offset, header, sizeof(*header)) == 0;                      \
	}

HEADER_READER(ethernet, struct ethhdr)
HEADER_READER(vlan, struct vlan_tag)
HEADER_READER(ipv4, struct iphdr)
HEADER_READER(ipv6, struct ipv6hdr)
HEADER_READER(extension, struct extension_header)
HEADER_READER(udp, struct udphdr)
HEADER_READER(ports, struct udp_ports)

/* Whether the frame is at least `length` bytes long, fragments included. */
static __always_inline bool frame_holds(struct xdp_md *ctx, __u32 length)
{
	if ((void *)(long)ctx->data + length <= (void *)(long)ctx->data_end)
		return true;
	return bpf_xdp_get_buff_len(ctx) >= length;
}

#endif
