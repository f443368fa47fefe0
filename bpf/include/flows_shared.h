/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What flows.bpf.c and user space share. Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_FLOWS_SHARED_H
#define EXPRESSWAY_FLOWS_SHARED_H

/* Flows of a set, among which one has to give way to a new one. */
#define FLOWS_WAYS 8
/* Devices that the packets of an interface may pass: the members of a bond. */
#define FLOWS_DEVICES 16
/* Queues of a device that are told apart; FLOWS_QUEUES is what is of another, or of none that is known. */
#define FLOWS_QUEUES 256
/* Octets of a QUIC connection ID (RFC 9000, section 17.2). */
#define FLOWS_CID 20

enum flow_direction {
	FLOW_IN,
	FLOW_OUT,
	FLOW_DIRECTIONS,
};

/* What becomes of a packet; it is counted under exactly one of them. */
enum flow_path {
	FLOW_AF_XDP,  /* to or from an AF_XDP socket */
	FLOW_KERNEL,  /* to or from the kernel's stack */
	FLOW_XDP,     /* sent back or forwarded by an XDP program */
	FLOW_DROPPED, /* by an XDP program, or because its redirect failed */
	FLOW_PATHS,
};

struct flow_counts {
	__u64 packets[FLOW_PATHS];
	__u64 bytes[FLOW_PATHS]; /* on the wire, without preamble and FCS */
};

/* 40 octets without padding, compared and hashed as a whole. */
struct flow_key {
	__u8 source[16]; /* IPv6, IPv4 mapped into it, or the MAC address in front of zeros */
	__u8 destination[16];
	__u16 source_port; /* in network order, as the next two; 0: there is none, or it isn't known */
	__u16 destination_port;
	__u16 ethertype;
	__u8 protocol; /* of IP; 0 with other ethertypes */
	__u8 direction;
};

/* All zero: a free entry. */
struct flow_entry {
	__u64 born; /* when it took this place; 0: it is free */
	struct flow_key key;
	struct flow_counts counts;
	__u64 dropped; /* by the kernel's stack, of those above */
	__u64 weight;  /* octets that keep it in its place, halved every two seconds */
	__u64 aged;    /* when they were halved last */
	__u64 seen;
	__u8 cid[FLOWS_CID]; /* the last packet's destination connection ID, if it looked like QUIC */
	__u8 cid_length;
	__u8 quic; /* a long header of QUIC has been seen */
	__u8 padding[2];
	__u64 whole; /* as `born`; else the entry was copied while it changed hands */
};

struct flow_set {
	struct flow_entry ways[FLOWS_WAYS];
};

/* The one value of totals_map, per CPU. */
struct flow_totals {
	struct flow_counts counts[FLOW_DIRECTIONS];
	__u64 not_held;  /* packets that found no place in the table */
	__u64 evictions; /* flows that gave way */
	__u64 drops_unlisted; /* drops for which drops_map had no room */
};

enum drop_kind {
	DROP_VERDICT,  /* reason: XDP_ABORTED, XDP_DROP or a value that the kernel does not know */
	DROP_REDIRECT, /* reason: errno, positive */
	DROP_KERNEL,   /* reason: enum skb_drop_reason */
	DROP_PROGRAM,  /* an XDP program of ours; reason: as struct xdp_drop has it */
	DROP_EGRESS,   /* the device did not take what an XDP program redirected to it; reason: 0 */
};

struct drop_key {
	__u32 kind;
	__u32 reason;
};

struct drop_counts {
	__u64 packets;
	__u64 bytes;
};

/* A value of follow_map, set by user space. */
struct flow_follow {
	__u32 program; /* the XDP program whose packets are counted when it returns; 0: none */
	__u32 above;   /* it is that of the bond above, which the device does not name */
};

#endif
