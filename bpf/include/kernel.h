/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel's structures as far as the programs that observe read them; relocated on load (CO-RE).
 */
#ifndef EXPRESSWAY_KERNEL_H
#define EXPRESSWAY_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>

#define AF_XDP 44

/* enum bpf_xdp_mode */
#define XDP_MODES 3
/* netdev_tx_t, and what __dev_direct_xmit returns for a packet that it dropped */
#define NETDEV_TX_BUSY 0x10
#define NET_XMIT_DROP 1

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct bpf_prog_aux {
	__u32 id;
};

struct bpf_prog {
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

struct net_device {
	int ifindex;
	unsigned short type;
	possible_net_t nd_net;
	struct bpf_xdp_entity xdp_state[XDP_MODES];
};

struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
};

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned int len;
	unsigned int data_len;
	int skb_iif;
	__be16 vlan_proto;
	__u16 vlan_tci;
	__u16 queue_mapping; /* of a received one: the queue's number plus one; 0: not known */
	__u16 network_header;
	__u16 mac_header;
	unsigned int end;
	unsigned char *head;
	unsigned char *data;
};

struct skb_shared_info {
	unsigned short gso_size;
	unsigned short gso_segs;
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

struct xdp_desc {
	__u64 addr;
	__u32 len;
	__u32 options;
};

struct xsk_buff_pool {
	struct net_device *netdev;
	struct xdp_desc *tx_descs;
	void *addrs;
	__u16 queue_id;
	bool unaligned;
};

#pragma clang attribute pop

#endif
