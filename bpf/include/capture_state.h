/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs of capture.bpf.c share: kernel types, maps, what user space sets before load, the filter.
 * Private to them; what user space reads is in capture_shared.h.
 */
#ifndef EXPRESSWAY_CAPTURE_STATE_H
#define EXPRESSWAY_CAPTURE_STATE_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "capture_shared.h"
#include "xdp_drop_shared.h"

/* The members of kernel types that are read here; offsets come from the running kernel's BTF. */
/* BPF_PROG names every argument of a hook, `ctx` included. */
#pragma clang diagnostic ignored "-Wunused-parameter"

struct xdp_desc;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next, *prev;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct bpf_prog_aux {
	__u32 id;
};

struct bpf_prog {
	enum bpf_prog_type type;
	struct bpf_prog_aux *aux;
};

struct bpf_link {
	struct bpf_prog *prog;
};

struct bpf_xdp_link {
	struct bpf_link link;
};

struct bpf_xdp_entity {
	struct bpf_prog *prog;
	struct bpf_xdp_link *link;
};

/* enum bpf_xdp_mode */
#define XDP_MODES 3

struct net_device {
	int ifindex;
	unsigned short type;
	possible_net_t nd_net;
	struct bpf_xdp_entity xdp_state[XDP_MODES];
};

struct xdp_rxq_info {
	struct net_device *dev;
	__u32 queue_index;
};

struct xdp_buff {
	void *data;
	void *data_end;
	void *data_hard_start;
	struct xdp_rxq_info *rxq;
};

struct inode {
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
};

struct socket {
	struct file *file;
};

struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
};

struct xdp_sock {
	struct sock sk;
	struct list_head tx_list;
};

struct xsk_buff_pool {
	struct net_device *netdev;
	struct list_head xsk_tx_list;
	__u16 queue_id;
	struct xdp_desc *tx_descs;
	__u8 tx_metadata_len;
	bool unaligned;
	void *addrs;
};

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned int len, data_len;
	__u16 queue_mapping;
	int skb_iif;
	__u16 mac_header;
	__be16 protocol;
	__be16 vlan_proto;
	__u16 vlan_tci;
	__u16 csum_start, csum_offset;
	__u64 skb_mstamp_ns;
	unsigned int end;
	unsigned char *head, *data;
};

struct xsk_tx_metadata_compl {
	__u64 *tx_timestamp;
};

struct skb_shared_info {
	struct xsk_tx_metadata_compl xsk_meta;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[];
};

struct signal_struct {
	struct pid *pids[4];
};

struct task_struct {
	struct signal_struct *signal;
};

#pragma clang attribute pop

/* The hooks, each of which has room of its own in scratch_map: a program never interrupts itself on a CPU. */
enum hook {
	HOOK_XDP,
	HOOK_XDP_EXIT,
	HOOK_REDIRECTING,
	HOOK_REDIRECT,
	HOOK_DIRECT,
	HOOK_DIRECT_EXIT,
	HOOK_RECEIVE,
	HOOK_TRANSMIT,
	HOOK_DROP,
	HOOK_FORWARD,
	HOOK_FORWARD_GENERIC,
	HOOKS,
};

/* A record with the prefix behind it, and what the filter looks at. */
struct scratch {
	struct capture_record record;
	__u8 prefix[CAPTURE_PREFIX];
	union {
		struct capture_head head;
		__u8 room[CAPTURE_HEAD + CAPTURE_PREFIX];
	};
	__u64 packets; /* of this hook on this CPU, for identifiers */
};

/*
 * The packet that an XDP program was given last on this CPU, until it is known what becomes of it; or that
 * __dev_direct_xmit was.
 */
struct current {
	__u64 packet; /* address of its xdp_buff or sk_buff */
	__u64 head;   /* where its buffer begins, if the XDP program dropped it */
	__u64 id;
	__u32 ifindex; /* of the device */
	__u32 matched;
	__u32 shown; /* as in its target, */
	__u32 slot;  /* likewise */
};

/* Where the buffers begin of packets that were captured at an XDP program and passed on, until the stack receives them. */
#define PASSED 512
struct passed {
	__u64 heads[PASSED];
};

/* What is neither xdp_buff nor sk_buff: a record with a piece behind it, and where a packet of several descriptors is. */
struct pieces {
	struct capture_record record;
	union {
		struct capture_head head;
		__u8 octets[CAPTURE_PIECE];
	};
	__u64 packets;
	__u64 pool;    /* whose packet goes on in the next descriptor; 0: none does */
	__u32 matched;
	__u32 slot;    /* of its interface */
	__u32 left;    /* octets that are still to be captured of it */
	__u64 peeked;  /* descriptors that xsk_tx_peek_desc gave */
	__u64 before;  /* as many of them before the batch */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
} events_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CAPTURE_DEVICES);
	__type(key, __u32);
	__type(value, struct capture_target);
} targets_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CAPTURE_VLANS);
	__type(key, struct capture_vlan);
	__type(value, struct capture_target);
} vlans_map SEC(".maps");

/* XDP programs that are captured at, by id: from when on the stack need not be asked for what they pass. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CAPTURE_PROGRAMS);
	__type(key, __u32);
	__type(value, __u64);
} traced_map SEC(".maps");

/* Tells whoever waits that there are other XDP programs. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	/* A multiple of any page's size. */
	__uint(max_entries, 65536);
} changes_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CAPTURE_TARGETS);
	__type(key, __u32);
	__type(value, struct capture_counts);
} counts_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HOOKS);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch_map SEC(".maps");

/* 0: XDP; 1: __dev_direct_xmit. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct current);
} current_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct passed);
} passed_map SEC(".maps");

/* Two, because a packet of several descriptors may wait for its next one while frames are forwarded. */
enum pieces_room {
	PIECES_ZERO_COPY,
	PIECES_FORWARD,
	PIECES_ROOMS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PIECES_ROOMS);
	__type(key, __u32);
	__type(value, struct pieces);
} pieces_map SEC(".maps");

/* Set before load. The network namespace of the interfaces (net_cookie) and the PID namespace of the reader. */
const volatile __u64 netns = 0;
const volatile __u32 pid_namespace = 0;
/* Octets of a packet that are captured, at most CAPTURE_MAX. */
const volatile __u32 snaplen = 0;
/* There is a filter, and the octets of a packet that it may look at; up to CAPTURE_HEAD. */
const volatile bool filtered = false;
const volatile __u32 needed = 0;
/* XDP: records with the packet at entry and at exit; a verdict by itself. */
const volatile bool at_entry = false;
const volatile bool at_exit = false;
const volatile bool verdicts = false;

/* Carries the shared types into BTF, and so into the skeleton. No instruction reads it. */
const struct capture_types {
	enum capture_limit limit;
	enum capture_kind kind;
	enum capture_flag flag;
	enum capture_target_flag target_flag;
	enum capture_asked asked;
	struct capture_record record;
	struct capture_target target;
	struct capture_vlan vlan;
	enum capture_change_kind change_kind;
	struct capture_change change;
	struct capture_counts counts;
	enum xdp_drop_program drop_program;
	struct xdp_drop drop;
} capture_types = {};

/* What a filter says. */
enum filter_result {
	FILTER_NO = 0,
	FILTER_YES = 1,
	FILTER_UNDECIDED = 2, /* it needs octets beyond those held */
};

/*
 * The filter: of a packet of `length` octets, `held` lie in `head`. User space puts its code in place of the empty
 * instructions before the object is opened; as it stands, the kernel may not load it. The code finds the arguments in
 * r1 to r3, keeps r6 to r9, and ends by `exit`. Global, so that it is verified once.
 */
__attribute__((noinline)) int capture_filter(const struct capture_head *head, __u32 held, __u32 length)
{
	int result;

	/* The compiler must not know what comes out, or it would do without the call. */
	asm volatile(".rept 8192\n"
		     "goto +0\n"
		     ".endr\n"
		     "%[result] = 0\n"
		     : [result] "=r"(result)
		     : "r"(head), "r"(held), "r"(length)
		     : "r4", "r5", "memory");
	return result;
}

static __always_inline struct capture_counts *counts_of(__u32 slot)
{
	return bpf_map_lookup_elem(&counts_map, &slot);
}

/* The target that a device is, if it is one, to look at its packets or only at those that the kernel drops. */
static __always_inline struct capture_target *drops_of(const struct net_device *dev, __u32 *ifindex)
{
	*ifindex = dev->ifindex;
	if (dev->nd_net.net->net_cookie != netns)
		return NULL;
	return bpf_map_lookup_elem(&targets_map, ifindex);
}

/* The target that a device is, if its packets are to be looked at. */
static __always_inline struct capture_target *target_of(const struct net_device *dev, __u32 *ifindex)
{
	struct capture_target *target = drops_of(dev, ifindex);

	return target && !(target->flags & CAPTURE_DROPS_ONLY) ? target : NULL;
}

/* VLAN tags. */

#define ADDRESSES 12
#define VLAN_TAG 4
/* A packet's octets behind its addresses: up to two tags. Shorter packets have none. */
#define TAGS (2 * VLAN_TAG)
/* What a number of their octets may be. */
#define TAGS_MASK 12
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8

static __always_inline __u32 tag_of(const __be16 *octets)
{
	__u32 type = bpf_ntohs(octets[0]);

	if (type != ETH_P_8021Q && type != ETH_P_8021AD)
		return 0;
	/* Without priority (IEEE 802.1Q, 9.6). */
	return type << 16 | (bpf_ntohs(octets[1]) & 0xfff);
}

/*
 * Which target a packet belongs to whose TAGS octets behind the addresses are these: a VLAN of the device, or the device.
 * `strip` becomes the octets of the tags that are no part of the packet as its interface has it.
 */
static __always_inline struct capture_target *vlan_of(struct capture_target *target, __u32 ifindex,
						      const __be16 *octets, __u32 *strip)
{
	struct capture_vlan key = { .ifindex = ifindex };
	struct capture_target *vlan;

	key.tags[0] = tag_of(octets);
	if (key.tags[0]) {
		key.tags[1] = tag_of(octets + 2);
		if (key.tags[1]) {
			vlan = bpf_map_lookup_elem(&vlans_map, &key);
			if (vlan) {
				*strip = 2 * VLAN_TAG;
				return vlan;
			}
			key.tags[1] = 0;
		}
		vlan = bpf_map_lookup_elem(&vlans_map, &key);
		if (vlan) {
			*strip = VLAN_TAG;
			return vlan;
		}
	}
	return target->shown ? target : NULL;
}

static __always_inline __u64 identifier(enum hook hook, __u64 packet)
{
	return (__u64)bpf_get_smp_processor_id() << 48 | (__u64)hook << 44 | (packet & ((1ULL << 44) - 1));
}

/* The inode of a socket that has one. */
static __always_inline __u64 inode_of(struct sock *sk)
{
	/* TCP_TIME_WAIT and TCP_NEW_SYN_RECV are no whole sockets (include/net/tcp_states.h). */
	if (!sk || sk->__sk_common.skc_state == 6 || sk->__sk_common.skc_state == 12)
		return 0;
	return sk->sk_socket->file->f_inode->i_ino;
}

/* The current process as the reader calls it. */
static __always_inline __u32 process(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct pid *pid = task->signal->pids[1]; /* PIDTYPE_TGID */
	unsigned int level = BPF_CORE_READ(pid, level);
	void *numbers = (void *)pid + bpf_core_field_offset(struct pid, numbers);
	struct upid *upid;
	unsigned int at;

	for (at = 0; at < 8; at++) {
		if (at > level)
			break;
		upid = numbers + at * bpf_core_type_size(struct upid);
		if (BPF_CORE_READ(upid, ns, ns.inum) == pid_namespace)
			return BPF_CORE_READ(upid, nr);
	}
	return 0;
}

#endif
