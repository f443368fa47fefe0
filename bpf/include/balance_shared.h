/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What balance.bpf.c and user space share: listeners, nodes, flows, QUIC-LB configurations, counters.
 *
 * This header is the truth. The types reach Rust by BTF through the skeleton; crates/xbpf asserts at
 * compile time that its names, order and layout are these. Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_BALANCE_SHARED_H
#define EXPRESSWAY_BALANCE_SHARED_H

enum balance_limit {
	BALANCE_SERVICES = 256,
	BALANCE_NODES = 4096,
	/* Entries of a service's ring: a prime, and a hundred times the nodes that a service should have. */
	BALANCE_RING = 65537,
	/* Configuration rotation codepoints of QUIC-LB; the last of the eight marks IDs as not routable. */
	BALANCE_QUIC_CONFIGS = 8,
	BALANCE_QUIC_UNROUTABLE = 7,
	/* The longest server ID, and the shortest nonce (draft-ietf-quic-load-balancers, section 5.3). */
	BALANCE_SERVER_ID = 15,
	BALANCE_NONCE = 4,
	/* Bytes of server ID and nonce that are encrypted in one pass. */
	BALANCE_AES_BLOCK = 16,
	/* UDP port of GUE (RFC-less; IANA "gue"). */
	BALANCE_GUE_PORT = 6080,
	/* Packets of a TCP flow behind its SYN, or of a UDP flow, that make it established. */
	BALANCE_TCP_ESTABLISHED = 2,
	BALANCE_UDP_ESTABLISHED = 3,
	/* Seconds of quiet behind a FIN or RST after which a SYN may begin another connection. */
	BALANCE_CLOSED = 2,
	/* Octets behind its SYN that show a packet to be of that connection. */
	BALANCE_BEGINNING = 1 << 16,
	/* ICMP errors that one CPU sends in a second. */
	BALANCE_ICMP_RATE = 1000,
	/* Grows with each change of what flows_map, probation_map and fragments_map hold, or how names are kept beside them. */
	BALANCE_LAYOUT = 1,
};

/* Key of listeners_map: where a service is reached. IPv4 addresses lie behind ::ffff:0:0/96. */
struct balance_listener {
	__u32 address[4]; /* network byte order */
	__u16 port;       /* network byte order */
	__u8 family;      /* 4 or 6 */
	__u8 protocol;    /* IPPROTO_TCP or IPPROTO_UDP */
};

enum balance_flag {
	/* Route by QUIC-LB connection ID where it can be read. */
	BALANCE_QUIC_LB = 1,
	/* All flows of a source address go to one node. */
	BALANCE_AFFINITY = 2,
	/* Of two candidates, a new flow goes to the one with fewer flows for its weight. */
	BALANCE_LEAST = 4,
};

/* Value of listeners_map. */
struct balance_service {
	__u32 id;
	__u32 flags; /* enum balance_flag */
	__u32 idle;  /* seconds without a packet after which a flow is over; below 2^31 */
};

enum balance_state {
	/* The slot is not used, or its node is gone. */
	BALANCE_ABSENT = 0,
	/* Gets new flows. */
	BALANCE_UP,
	/* Keeps its flows and gets no new ones. */
	BALANCE_DRAINING,
	/* Gets nothing; its flows move. */
	BALANCE_DOWN,
};

enum balance_method {
	/* The frame is addressed to the node, the packet stays: the node has the service's address on its loopback. */
	BALANCE_L2 = 0,
	/* IP in IP (RFC 2003, RFC 2473, RFC 4213). */
	BALANCE_IPIP,
	/* UDP port 6080, variant 1: the packet follows the UDP header (draft-ietf-intarea-gue). */
	BALANCE_GUE,
};

/* Value of nodes_map, by slot: one node of one service. */
struct balance_node {
	__u32 address[4]; /* outer destination */
	__u32 source[4];  /* outer source */
	__u64 load;       /* established flows for its weight, in units of step */
	__u32 ifindex;    /* of the interface that leads to the node; 0 while its MAC is not known */
	__u32 generation; /* grows when the slot gets another node */
	__u32 mtu;        /* of the way to the node, in bytes of IP packet */
	__u32 step;       /* what one flow adds to load: less for a greater weight */
	__u8 destination_mac[6];
	__u8 source_mac[6];
	__u8 family; /* of address: 4 or 6 */
	__u8 method; /* enum balance_method */
	__u8 state;  /* enum balance_state */
	__u8 reserved;
};

/* Key of flows_map and probation_map. With affinity the port is 0. */
struct balance_flow_key {
	__u32 client[4]; /* as balance_listener.address */
	__u16 port;      /* network byte order */
	__u16 service;
};

struct balance_flow {
	__u32 node;
	__u32 generation; /* of the node, when the flow got it */
	__u32 seen;       /* seconds of the monotonic clock */
	__u16 packets;    /* counted up to the number that makes it established */
	__u16 closed;     /* 0, or 0x8000 and the time (15 bits of the seconds) of its client's FIN or RST */
};

/* Value of probation_map. */
struct balance_newcomer {
	struct balance_flow flow;
	__u32 sequence; /* TCP: of its first packet, the SYN */
};

/* Why an established flow goes to another node. */
enum balance_move {
	BALANCE_MOVED_NOT = 0,
	/* Its node is down. */
	BALANCE_MOVED_DOWN,
	/* Its node has left the configuration. */
	BALANCE_MOVED_GONE,
};

#define BALANCE_MOVES BALANCE_MOVED_GONE

/* Key of fragments_map: the packet that a fragment is a part of. */
struct balance_fragment {
	__u32 source[4];
	__u32 destination[4];
	__u32 id;
	__u32 protocol;
};

/* Value of quic_map: how the connection IDs of a configuration are read. */
struct balance_quic {
	__u8 server_id_length;
	__u8 length;    /* of server ID and nonce together; in clear, the least that it can be */
	__u8 encrypted; /* with AES-128: in one pass if length is BALANCE_AES_BLOCK, else in four */
	__u8 reserved;
	/* Bytes of the left and the right half, as big-endian columns, without the other's half of the middle byte. */
	__u32 masks[2][3];
	/* Of the cipher; of the inverse cipher, columns in the order 0, 3, 2, 1, for one pass. */
	__u32 round_keys[44];
};

/* Key of server_ids_map; unused bytes of the ID are 0. */
struct balance_server_id {
	__u8 id[16];
	__u16 service;
	__u8 config;
	__u8 length;
};

/*
 * One counter a packet: what became of it and why. TX sends it to a node, PASS gives it to the kernel's stack,
 * DROP ends it: new ones come last, see xdp_drop_shared.h.
 */
enum balance_counter {
	/* To the node of its established flow. */
	BALANCE_TX_FLOW = 0,
	/* To the node of a flow that is not established yet. */
	BALANCE_TX_PROBATION,
	/* First packet of a flow: to a node by the service's ring. */
	BALANCE_TX_NEW,
	/* To the node that its QUIC connection ID names. */
	BALANCE_TX_QUIC_LB,
	/* A later fragment, behind its first one. */
	BALANCE_TX_FRAGMENT,
	/* An ICMP error, to the node of the flow that it is about. */
	BALANCE_TX_ICMP,
	/* Too big for the way to its node: an ICMP error went back. */
	BALANCE_TX_TOO_BIG,
	/* Neither IPv4 nor IPv6. */
	BALANCE_PASS_NOT_IP,
	/* Ends inside a header, or a header contradicts itself. */
	BALANCE_PASS_MALFORMED,
	/* IPv6 extension headers other than a fragment's. */
	BALANCE_PASS_EXTENSION,
	/* Neither TCP nor UDP nor an ICMP error about one of these. */
	BALANCE_PASS_PROTOCOL,
	/* For an address and port that are no service's. */
	BALANCE_PASS_NO_SERVICE,
	/* A later fragment whose first one was not seen. */
	BALANCE_PASS_FRAGMENT,
	/* A service's, but its hop limit is used up: the kernel tells the sender. */
	BALANCE_PASS_HOP_LIMIT,
	/* A service's without any node that is up. */
	BALANCE_DROP_NO_NODE,
	/* Its node's MAC address is not known yet. */
	BALANCE_DROP_UNRESOLVED,
	/* Too big for the way to its node, and no ICMP error may be sent for it. */
	BALANCE_DROP_TOO_BIG,
	/* The driver leaves no room for an outer header. */
	BALANCE_DROP_NO_ROOM,
	/* How many counters there are. */
	BALANCE_COUNTERS,
};

#define BALANCE_FIRST_PASS BALANCE_PASS_NOT_IP
#define BALANCE_FIRST_DROP BALANCE_DROP_NO_NODE
#define BALANCE_DROPS (BALANCE_COUNTERS - BALANCE_FIRST_DROP)

/* The one value of stats_map, per CPU. */
struct balance_stats {
	__u64 packets[BALANCE_COUNTERS];
};

/* Values of service_stats_map and node_stats_map, per CPU. */
struct balance_traffic {
	__u64 packets;
	__u64 bytes;       /* of IP packets, before encapsulation */
	__u64 flows;       /* that began */
	__u64 established; /* that were seen to be established */
	__u64 by_id;       /* packets routed by a QUIC connection ID */
	__u64 answered;    /* too big: an ICMP error went back */
	__u64 moved[BALANCE_MOVES];   /* established flows that came from another node, by enum balance_move */
	__u64 dropped[BALANCE_DROPS]; /* packets, from BALANCE_FIRST_DROP on */
};

#endif
