// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Notes the sources of TCP connections that this host has established: who has answered with the right sequence number has
 * received what was sent to its address. It runs once a connection, and shares the tables of guard.bpf.c.
 *
 * Linux 5.14 or newer (net_cookie), with BTF.
 */
#include "guard_learn.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

#define AF_INET 2
#define AF_INET6 10
/* include/net/tcp_states.h */
#define TCP_ESTABLISHED 1

/* BPF_PROG names every argument of a hook, `ctx` included. */
#pragma clang diagnostic ignored "-Wunused-parameter"
/* The members of kernel types that are read here; offsets come from the running kernel's BTF. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	__u8 in6_u[16];
};

struct sock_common {
	__be32 skc_daddr;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
};

struct sock {
	struct sock_common __sk_common;
};

#pragma clang attribute pop

/* Connections of this network namespace. */
const volatile __u64 netns = 0;

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(guard_learn, const struct sock *sk, const int before, const int state)
{
	struct guard_address source = {};
	struct guard_learned fresh = {};
	unsigned short family;
	__be32 words[4];
	bool ipv4;

	if (state != TCP_ESTABLISHED || sk->__sk_common.skc_net.net->net_cookie != netns)
		return 0;
	family = sk->__sk_common.skc_family;
	if (family == AF_INET) {
		words[0] = words[1] = 0;
		words[2] = bpf_htonl(0xffff);
		words[3] = sk->__sk_common.skc_daddr;
	} else if (family == AF_INET6) {
		/* IPv4 behind ::ffff:0:0/96 too: on a socket for both. */
		if (bpf_probe_read_kernel(words, sizeof(words), &sk->__sk_common.skc_v6_daddr))
			return 0;
	} else {
		return 0;
	}
	ipv4 = !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
	/* Nobody, and ourselves. */
	if (ipv4 ? !words[3] || bpf_ntohl(words[3]) >> 24 == 127 : !words[0] && !words[1] && !words[2])
		return 0;
	__builtin_memcpy(source.address, words, sizeof(words));
	learn(&source, ipv4, &fresh);
	return 0;
}

/* The helpers used are for GPL-compatible programs; of the two licences, both are. */
char _license[] SEC("license") = "Dual BSD/GPL";
