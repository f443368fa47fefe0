// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* An XDP program of somebody else, for tests: drops ICMP over IPv4, so that its work can be seen. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <stddef.h>

#define SEC(name) __attribute__((section(name), used))

SEC("xdp") int no_ping(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(ethernet + 1);

	if ((void *)(ip + 1) > end || ethernet->h_proto != __builtin_bswap16(ETH_P_IP))
		return XDP_PASS;
	return ip->protocol == 1 ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
