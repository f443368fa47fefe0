/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What forward.bpf.c and user space share: keys and values of the maps, counters, limits.
 *
 * This header is the truth. The types reach Rust by BTF through the skeleton; crates/xbpf asserts at
 * compile time that its names, order and layout are these. Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_FORWARD_SHARED_H
#define EXPRESSWAY_FORWARD_SHARED_H

enum forward_limit {
	/* VLAN tags of a port: 802.1Q, or 802.1ad with 802.1Q inside. */
	FORWARD_TAGS = 2,
	/* Interfaces, those of VLANs included. The first slot of stats_map is of what came by none of them. */
	FORWARD_PORTS = 255,
	/* Feeds that are replicated. */
	FORWARD_FEEDS = 1024,
	/* Receivers of all feeds together. */
	FORWARD_TARGETS = 4096,
	/*
	 * An ethertype that a forwarded frame never has (IEEE 802, local experimental 2). It marks the copies of a
	 * datagram until forward_copy has addressed them.
	 */
	FORWARD_STAMP = 0x88b6,
};

/* A tag as forward_key and forward_output have it: protocol, then VLAN number; 0 is none. */
#define FORWARD_TAG(protocol, vlan) ((__u32)(protocol) << 16 | (vlan))

/* Key of ports_map: where a frame came from. */
struct forward_key {
	__u32 ifindex; /* of the device that received it */
	__u32 tags[FORWARD_TAGS];
};

/* forward_port.flags */
enum forward_port_flag {
	/* IPv4 sources must be routed to the interface that they came by, or anywhere (rp_filter 1 and 2). */
	FORWARD_SOURCE_STRICT = 1,
	FORWARD_SOURCE_LOOSE = 2,
	/* IPv6 flows are spread over next hops by ports (net.ipv6.fib_multipath_hash_policy is not 0). */
	FORWARD_IPV6_PORTS = 4,
	/* feeds_map has an entry. */
	FORWARD_REPLICATE = 8,
};

/* Value of ports_map: the interface that has those frames. */
struct forward_port {
	__u32 ifindex; /* that of a VLAN interface is not the device's */
	__u32 slot;    /* in stats_map */
	__u8 mac[6];   /* frames to other addresses pass */
	__u16 flags;   /* enum forward_port_flag */
};

/* forward_output.flags */
enum forward_output_flag {
	/* The device sends multi-buffer frames. */
	FORWARD_FRAGMENTS = 1,
};

/* Value of outputs_map, by interface: what devices_map does not say. */
struct forward_output {
	__u32 tags[FORWARD_TAGS];
	__u32 flags; /* enum forward_output_flag */
	__u32 device; /* that sends */
};

/*
 * Key of feeds_map: the datagrams that are replicated. An IPv4 address lies in the last word behind ::ffff:0:0/96.
 */
struct forward_listen {
	__u32 address[4]; /* network byte order */
	__u16 port;       /* network byte order */
	__u16 family;     /* 4 or 6, host byte order */
};

/* Value of feeds_map. */
struct forward_feed {
	/* Key of plans_map and first part of the keys of targets_map. A change of receivers is another plan. */
	__u32 plan;
	__u32 slot; /* in feed_stats_map */
	__u32 devices; /* of its receivers: that many first keys of the plan's devmap are of one each */
	__u32 mtu;  /* the smallest on the way to a receiver: a device that is given more leaves its copies out */
	/* A bit for each forward_port.slot that its datagrams may come by. */
	__u32 ports[(FORWARD_PORTS + 1) / 32];
};

/* What a copy bears in place of its Ethernet addresses until forward_copy gives it those of a receiver. */
struct forward_stamp {
	__u32 plan;
	__u32 turn_low;
	__u32 turn_high;
} __attribute__((packed, aligned(2)));

/* Value of turns_map, per CPU: which copy of which datagram a device had last. */
struct forward_turn {
	__u64 turn;
	__u32 plan;
	__u32 next;
};

/* Key of targets_map: the receivers behind a device are numbered from 0. */
struct forward_target_key {
	__u32 plan;
	__u32 ifindex;
	__u32 number;
};

/* Value of targets_map: how a copy leaves. */
struct forward_target {
	__u32 source[4]; /* addresses as in forward_listen */
	__u32 destination[4];
	__u32 tags[FORWARD_TAGS];
	__u16 port; /* network byte order */
	__u8 hop_limit; /* 0: one less than the datagram had */
	__u8 unused;
	__u8 smac[6];
	__u8 dmac[6];
	__u32 slot; /* in target_stats_map */
};

/*
 * One counter a packet: what became of it and why. The prefix is the verdict: PASS gives the packet to
 * the kernel's stack, unchanged, DROP ends it. Values are the index into forward_stats.packets.
 */
enum forward_counter {
	/* Sent on to its next hop. */
	FORWARD_SENT = 0,
	/* Copied to the receivers of its feed. */
	FORWARD_REPLICATED,
	/* Came by an interface or VLAN that is not configured. */
	FORWARD_PASS_OTHER_PORT,
	/* More VLAN tags than FORWARD_TAGS. */
	FORWARD_PASS_VLAN_DEPTH,
	/* Destination MAC is not the interface's: broadcast, multicast, other stations. */
	FORWARD_PASS_OTHER_MAC,
	/* Neither IPv4 nor IPv6. */
	FORWARD_PASS_NOT_IP,
	/* The frame ends before the packet, or its headers lie in fragments of a multi-buffer frame. */
	FORWARD_PASS_TRUNCATED,
	/* The IP header contradicts itself: version, header length, total length, IPv4 checksum. */
	FORWARD_PASS_MALFORMED,
	/* More bytes behind the packet than Ethernet padding. */
	FORWARD_PASS_TRAILER,
	/* IPv4 options. */
	FORWARD_PASS_IPV4_OPTIONS,
	/* IPv6 extension headers other than fragment, authentication and ESP. */
	FORWARD_PASS_IPV6_EXTENSION,
	/* The destination is never forwarded: multicast, broadcast, loopback, link-local, this network. */
	FORWARD_PASS_DESTINATION,
	/* The source is never forwarded or copied: the same, or an IPv4 address of this host. */
	FORWARD_PASS_SOURCE,
	/* The source is not routed as rp_filter demands. */
	FORWARD_PASS_REVERSE_PATH,
	/* The last hop: TTL or hop limit of 1 or 0. */
	FORWARD_PASS_TTL,
	/* An ICMP error, whose next hop the kernel chooses by the packet within. */
	FORWARD_PASS_ICMP_ERROR,
	/* For this host, or without a route. */
	FORWARD_PASS_NOT_FORWARDED,
	/* The route is of type unreachable or prohibit. */
	FORWARD_PASS_REFUSED,
	/* The kernel forwards nothing that comes by this interface. */
	FORWARD_PASS_DISABLED,
	/* The route has a tunnel (lwtunnel). */
	FORWARD_PASS_TUNNEL,
	/* The next hop's hardware address is unknown. */
	FORWARD_PASS_NEIGHBOUR,
	/* Larger than the MTU of the route, or of a route to a receiver of its feed. */
	FORWARD_PASS_TOO_LARGE,
	/* The route leaves by an interface that is not configured, or cannot send redirected frames. */
	FORWARD_PASS_OTHER_EGRESS,
	/* A multi-buffer frame that the egress device cannot send, or that would have to be copied. */
	FORWARD_PASS_MULTI_BUFFER,
	/* No room for a VLAN tag in front of the frame. */
	FORWARD_PASS_NO_ROOM,
	/* The lookup failed otherwise. */
	FORWARD_PASS_LOOKUP,
	/* A feed none of whose receivers can be reached. */
	FORWARD_PASS_NO_RECEIVER,
	/* The route is a blackhole. */
	FORWARD_DROP_BLACKHOLE,
	/* How many counters there are. */
	FORWARD_COUNTERS,
};

/* The first counter whose packets are dropped; those from here on are. New ones come last: see xdp_drop_shared.h. */
#define FORWARD_FIRST_DROP FORWARD_DROP_BLACKHOLE

/* A value of stats_map, per CPU: what came by the interface of the slot. */
struct forward_stats {
	__u64 packets[FORWARD_COUNTERS];
	__u64 sent_bytes; /* of FORWARD_SENT and FORWARD_REPLICATED, as received, from the Ethernet header on */
};

/* A value of feed_stats_map and of target_stats_map, per CPU. */
struct forward_traffic {
	__u64 packets;
	__u64 bytes; /* from the Ethernet header on */
};

/* A value of egress_stats_map, per CPU: what a device made of redirected frames. */
struct forward_egress {
	__u64 sent;
	__u64 refused;   /* its ring was full, it is down, or it sends no such frames */
	__u64 unclaimed; /* copies without a receiver; not seen */
};

#endif
