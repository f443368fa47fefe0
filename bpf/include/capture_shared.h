/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What capture.bpf.c and user space share: records, targets, counters.
 *
 * This header defines the types; they reach Rust by BTF through the skeleton. Include <linux/types.h> or
 * equivalent first.
 */
#ifndef EXPRESSWAY_CAPTURE_SHARED_H
#define EXPRESSWAY_CAPTURE_SHARED_H

enum capture_limit {
	/* Octets of a packet that a filter sees here; what it needs beyond them is decided in user space. */
	CAPTURE_HEAD = 512,
	/* Octets between a record and the packet's payload: headers that the kernel has taken off. */
	CAPTURE_PREFIX = 160,
	/* Octets of a zero-copy packet that a record carries. */
	CAPTURE_PIECE = 4096,
	/* Octets of any packet: a perf record is below 64 KiB with its headers. */
	CAPTURE_MAX = 0xfc00,
	/* Interfaces at once. */
	CAPTURE_TARGETS = 64,
	/* Devices that their packets pass, and VLANs on them. */
	CAPTURE_DEVICES = 256,
	CAPTURE_VLANS = 1024,
	/* XDP programs that are followed at once. */
	CAPTURE_PROGRAMS = 256,
	/* Instructions that the place of the filter has room for. */
	CAPTURE_FILTER_ROOM = 8192,
};

/* What a record tells. */
enum capture_kind {
	/* A packet, with its octets. */
	CAPTURE_XDP_ENTRY = 1,
	CAPTURE_XDP_EXIT = 2, /* `result` is the verdict */
	/* With CAPTURE_TX_CHECKSUM `result` is csum_start in the upper half and csum_offset in the lower. */
	CAPTURE_XSK_COPY = 3,
	CAPTURE_XSK_ZERO_COPY = 4,
	CAPTURE_KERNEL_RECEIVE = 5,
	CAPTURE_KERNEL_TRANSMIT = 6,
	CAPTURE_XDP_TRANSMIT = 7, /* an XDP program redirects it to the interface */
	/* More about the packet with that `id`, behind it in the same CPU's buffer. */
	CAPTURE_VERDICT = 16,  /* `result` is the verdict */
	CAPTURE_REDIRECT = 17, /* `result` is 0 or -errno; `inode` that of the AF_XDP socket */
	CAPTURE_SENT = 18,     /* `result` is what __dev_direct_xmit returned; NET_XMIT_DROP or -errno of a redirect's device */
	CAPTURE_PIECE_MORE = 19, /* further octets of a zero-copy packet */
};

enum capture_flag {
	/* The filter needs octets beyond CAPTURE_HEAD, or beyond the linear part, to decide. */
	CAPTURE_UNDECIDED = 1,
	/* A CAPTURE_PIECE_MORE follows. */
	CAPTURE_MORE = 2,
	/* The kernel drops the packet, for the reason `result` (enum skb_drop_reason). */
	CAPTURE_DROPPED = 4,
	/* Of CAPTURE_KERNEL_TRANSMIT: a CAPTURE_SENT may follow. */
	CAPTURE_DIRECT = 8,
};

/* What TX metadata asks the device for: XDP_TXMD_FLAGS_* of include/uapi/linux/if_xdp.h (Linux 6.15). */
enum capture_asked {
	CAPTURE_TX_TIMESTAMP = 1,
	CAPTURE_TX_CHECKSUM = 2,
	CAPTURE_TX_LAUNCH = 4,
};

enum capture_target_flag {
	/* There are VLANs of it in vlans_map. */
	CAPTURE_TAGGED = 1,
	/* Its packets are captured below; here only what the kernel drops. */
	CAPTURE_DROPS_ONLY = 2,
	/* An XDP program of the bond above, which `xdp_state` does not name, is captured at. */
	CAPTURE_XDP_ABOVE = 4,
	/* What it receives has the queue that it was sent by (veth): others' has theirs there, and one more. */
	CAPTURE_SENT_QUEUE = 8,
};

struct capture_record {
	__u64 time;    /* monotonic, nanoseconds */
	__u64 id;      /* of the packet: unique while the capture runs */
	__u64 inode;   /* of the socket; 0: unknown */
	__u64 launch;  /* with CAPTURE_TX_LAUNCH: when the device is to send it, by its own clock */
	__u32 ifindex;
	__u32 queue;   /* ~0: none */
	__u32 length;  /* of the packet, or of this piece of it, in octets */
	__u32 payload; /* octets that follow the prefix here */
	__u32 pid;     /* the process that sends, in the reader's PID namespace; 0: unknown */
	__s32 result;  /* as the kind says */
	__u8 kind;     /* enum capture_kind */
	__u8 flags;    /* enum capture_flag */
	__u8 prefix;   /* octets that lie between this record and the payload */
	__u8 skip;     /* octets of the payload that the prefix stands for */
	__u8 strip;    /* octets of VLAN tags, behind the addresses, that are no part of the packet as shown */
	__u8 asked;    /* of what AF_XDP sends: enum capture_asked */
	__u16 drop;    /* with the verdict XDP_DROP: as struct xdp_drop has the reason; 0: not told */
	char comm[16]; /* of `pid` */
};

/* Value of targets_map, by a device's index, and of vlans_map. */
struct capture_target {
	__u32 shown; /* the interface that packets are shown as; 0: only those of VLANs are */
	__u32 slot;  /* index in counts_map */
	__u32 flags; /* enum capture_target_flag */
};

/* Key of vlans_map. Tags are outermost first: their ethertype in the upper half, the VLAN's number in the lower; 0: none. */
struct capture_vlan {
	__u32 ifindex; /* of the device that the tagged frames pass */
	__u32 tags[2];
};

enum capture_change_kind {
	/* `program` has been loaded, and is on no interface yet. */
	CAPTURE_LOADED = 1,
	/* `program`, or none (0), has been put on some interface in the place of another, or is tried out. */
	CAPTURE_PLACED = 2,
};

/* What has become of an XDP program; an element of changes_map. */
struct capture_change {
	__u64 time; /* monotonic, nanoseconds */
	__u32 program;
	__u32 kind; /* enum capture_change_kind */
};

/* Per CPU, by slot. */
struct capture_counts {
	__u64 seen;    /* records that there would be without a filter */
	__u64 matched; /* those that the filter did not refuse */
	__u64 lost;    /* those of them that found no room */
};

/* What a filter looks at. */
struct capture_head {
	__u8 octets[CAPTURE_HEAD];
};

#endif
