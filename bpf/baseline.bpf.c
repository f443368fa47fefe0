// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The baseline programs of the XDP paper ("The eXpress Data Path", CoNEXT 2018, section 4): each does one thing
 * only, so that its rate shows the cost of the driver and of that. User space loads one of them.
 *
 * All but `pass` count packets, by one increment on the CPU's own cache line, for rates by core.
 *
 * Linux 5.18 or newer (xdp.frags).
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "baseline_shared.h"

/* Set before load: the device that packets come from, and with redirect the one that they go to. */
const volatile __u32 from_ifindex = 0;
const volatile __u32 to_ifindex = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct baseline_stats);
} stats_map SEC(".maps");

/* Where `redirect` sends to: entry 0. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} devices_map SEC(".maps");

static __always_inline struct baseline_stats *stats(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&stats_map, &zero);
}

static __always_inline struct baseline_stats *count(void)
{
	struct baseline_stats *mine = stats();

	if (mine)
		mine->packets++;
	return mine;
}

/* Counts a frame without a whole Ethernet header. No driver delivers one. */
static __always_inline int too_short(struct baseline_stats *mine)
{
	if (mine)
		mine->short_frames++;
	return XDP_DROP;
}

/* Swaps the Ethernet addresses, so that the frame returns to its sender. False without a whole header. */
static __always_inline bool swap_macs(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	__u8 source[ETH_ALEN];

	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(source, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, ethernet->h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, source, ETH_ALEN);
	return true;
}

SEC("xdp.frags")
int baseline_drop(struct xdp_md *ctx)
{
	(void)ctx;
	count();
	return XDP_DROP;
}

/* The cost of having a program: it counts nothing. */
SEC("xdp.frags")
int baseline_pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

SEC("xdp.frags")
int baseline_count(struct xdp_md *ctx)
{
	(void)ctx;
	count();
	return XDP_PASS;
}

/* Reads the packet's first bytes, as every program that inspects packets does: a cache miss without DDIO. */
SEC("xdp.frags")
int baseline_touch(struct xdp_md *ctx)
{
	volatile struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct baseline_stats *mine = count();

	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end)
		return too_short(mine);
	/* The volatile forces the read; its value is unused. */
	(void)ethernet->h_proto;
	return XDP_DROP;
}

SEC("xdp.frags")
int baseline_tx(struct xdp_md *ctx)
{
	struct baseline_stats *mine = count();

	return swap_macs(ctx) ? XDP_TX : too_short(mine);
}

SEC("xdp.frags")
int baseline_redir(struct xdp_md *ctx)
{
	struct baseline_stats *mine = count();

	/* Without a device in the map: XDP_ABORTED. */
	return swap_macs(ctx) ? bpf_redirect_map(&devices_map, 0, XDP_ABORTED) : too_short(mine);
}

/* As far as they are read here. */
struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

static __always_inline void account(int sent, int drops)
{
	struct baseline_stats *mine = stats();

	if (!mine)
		return;
	if (sent > 0)
		mine->sent += sent;
	if (drops > 0)
		mine->refused += drops;
}

/* What the other device made of a bulk of redirected frames. */
SEC("tp_btf/xdp_devmap_xmit")
int baseline_sent(__u64 *arguments)
{
	const struct net_device *from = (void *)arguments[0];
	const struct net_device *to = (void *)arguments[1];

	if (from->ifindex == (int)from_ifindex && to->ifindex == (int)to_ifindex)
		account(arguments[2], arguments[3]);
	return 0;
}

/* What the device made of a bulk of frames that go back. Not all drivers tell; veth does. */
SEC("tp_btf/xdp_bulk_tx")
int baseline_back(__u64 *arguments)
{
	const struct net_device *device = (void *)arguments[0];

	if (device->ifindex == (int)from_ifindex)
		account(arguments[1], arguments[2]);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
