/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What redirect.bpf.c and user space share: the pair key, the counters, the limits.
 *
 * This header is the truth. The types reach Rust by BTF through the skeleton; crates/xbpf asserts at
 * compile time that its names, order and layout are these. Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_REDIRECT_SHARED_H
#define EXPRESSWAY_REDIRECT_SHARED_H

enum redirect_limit {
	/* In-band VLAN tags looked behind: 802.1Q, or 802.1ad with 802.1Q inside. */
	REDIRECT_VLAN_TAGS = 2,
	/*
	 * IPv6 extension headers walked. RFC 8200 section 4.1 orders at most hop-by-hop, destination
	 * options, routing, destination options ahead of a payload that is neither fragment nor IPsec.
	 */
	REDIRECT_IPV6_HEADERS = 4,
	/*
	 * Options looked at in one hop-by-hop or destination options header, padding included; RFC 8504
	 * section 5.3 lets hosts stop at 8 without it.
	 */
	REDIRECT_IPV6_OPTIONS = 16,
};

/* redirect_pair.family; as the IP version field has it. */
enum redirect_family {
	REDIRECT_IPV4 = 4,
	REDIRECT_IPV6 = 6,
};

/*
 * Key of pairs_map: a destination that belongs to the service. An IPv4 address lies in the last word
 * behind ::ffff:0:0/96; the family keeps it apart from an IPv6 packet that bears such an address.
 * 20 bytes without padding: the kernel hashes five whole words.
 */
struct redirect_pair {
	__u32 address[4]; /* network byte order */
	__u16 port;       /* network byte order */
	__u16 family;     /* enum redirect_family, host byte order */
};

/* redirect_metadata.version */
#define REDIRECT_METADATA_VERSION 1

/* redirect_metadata.valid: which fields hold something. */
enum redirect_valid {
	/* timestamp is the device's, of its own clock. */
	REDIRECT_DEVICE_TIME = 1,
	/* timestamp is the kernel's TAI clock when the program ran. */
	REDIRECT_PROGRAM_TIME = 2,
	REDIRECT_HASH = 4,
	/* vlan_protocol and vlan_tag are of a tag that is no longer in the frame. */
	REDIRECT_VLAN = 8,
};

/*
 * What redirect_hints.bpf.c puts in front of a packet. User space takes it for that only where version and
 * cookie are right: the bytes in front of an undescribed packet are anybody's.
 */
struct redirect_metadata {
	__u64 timestamp;      /* nanoseconds */
	__u32 hash;           /* of the flow, as the device spreads it over its queues */
	__u32 hash_type;      /* enum xdp_rss_hash_type */
	__u16 vlan_protocol;  /* network byte order */
	__u16 vlan_tag;       /* TCI, host byte order */
	__u16 version;
	__u16 valid;          /* enum redirect_valid */
	__u32 cookie;
	__u32 reserved;
};

/*
 * Of the program that describes packets on demand, alone in its map, which user space writes by a mapping: at any time, each
 * field as a whole.
 */
struct redirect_switch {
	/*
	 * What CLOCK_TAI is ahead of CLOCK_MONOTONIC, in nanoseconds, while somebody wants to know when packets arrive;
	 * else 0, and packets are not described.
	 */
	__u64 tai_ahead;
	__u32 cookie; /* as redirect_metadata.cookie */
	__u32 reserved;
};

/*
 * One counter a packet: what became of it and why. The prefix is the verdict: PASS gives the packet to
 * the kernel's stack, DROP ends it. Values are the index into redirect_stats.packets.
 */
enum redirect_counter {
	/* Given to the AF_XDP socket of the receive queue. */
	REDIRECT_TAKEN = 0,
	/* Destination MAC is not the interface's (only with check_mac). */
	REDIRECT_PASS_OTHER_MAC,
	/* Neither IPv4 nor IPv6: ARP, LLDP, 802.3 length fields and the like. */
	REDIRECT_PASS_NOT_IP,
	/* More VLAN tags than REDIRECT_VLAN_TAGS. */
	REDIRECT_PASS_VLAN_DEPTH,
	/* Ends before the destination address and port: whose it is can't be known. */
	REDIRECT_PASS_TRUNCATED,
	/* The IP header contradicts itself: version, header length. */
	REDIRECT_PASS_MALFORMED,
	/* IP, but not UDP. */
	REDIRECT_PASS_NOT_UDP,
	/* An IPv4 or IPv6 fragment, the first one included. */
	REDIRECT_PASS_FRAGMENT,
	/* UDP behind IPv4 options. */
	REDIRECT_PASS_IPV4_OPTIONS,
	/* IPv6 extension headers that only the kernel may or can process. */
	REDIRECT_PASS_IPV6_EXTENSION,
	/* UDP for an address or port that is not in pairs_map. */
	REDIRECT_PASS_OTHER_PAIR,
	/* Ours, but the receive queue has no AF_XDP socket. */
	REDIRECT_PASS_NO_SOCKET,
	/* Ours, but packet or frame ends inside the UDP header. */
	REDIRECT_DROP_UDP_HEADER,
	/* Ours, but the frame ends before the length that the IP header gives. */
	REDIRECT_DROP_IP_LENGTH,
	/* Ours, but the UDP length is below 8 or beyond the IP payload. */
	REDIRECT_DROP_UDP_LENGTH,
	/* How many counters there are. */
	REDIRECT_COUNTERS,
};

/* The first counter whose packets are dropped; those from here on are. New ones come last: see xdp_drop_shared.h. */
#define REDIRECT_FIRST_DROP REDIRECT_DROP_UDP_HEADER

/* The one value of stats_map, per CPU. */
struct redirect_stats {
	__u64 packets[REDIRECT_COUNTERS];
};

#endif
