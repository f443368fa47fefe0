// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Sends frames that user space has built, as live frames of BPF_PROG_TEST_RUN (BPF_F_TEST_XDP_LIVE_FRAMES,
 * net/bpf/test_run.c): the kernel runs the program on pages of its own, and a redirected page leaves by the
 * device's ndo_xdp_xmit as if another device had received it. There is no socket buffer and no system call per
 * packet, and on a veth the peer's XDP program gets XDP frames.
 *
 * Every frame is copied completely: pages come back as their receivers left them.
 *
 * Linux 5.18 or newer.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "live_shared.h"

/* Set before load: the device to send by, and the length of the frame that test runs are given. */
const volatile __u32 ifindex = 0;
const volatile __u32 frame_length = 0;
/* Whether programs of this type may ask for their thread (Linux 6.10). */
const volatile bool has_task = true;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct live_ring);
} ring_map SEC(".maps");

/* Who runs the program: the thread or, as a test run stays on one, the CPU. Never 0. */
static __always_inline __u64 runner(void)
{
	return has_task ? bpf_get_current_pid_tgid() : 1 + bpf_get_smp_processor_id();
}

SEC("xdp")
int expressway_live(struct xdp_md *ctx)
{
	struct live_slot *slot;
	struct live_ring *ring;
	__u32 zero = 0, index, length;

	ring = bpf_map_lookup_elem(&ring_map, &zero);
	if (!ring)
		return XDP_ABORTED;
	index = ring->next;
	if (index >= ring->end || index >= LIVE_SLOTS)
		return XDP_DROP;
	ring->next = index + 1;
	ring->task = runner();

	slot = &ring->slots[index];
	length = slot->length;
	if (length < ETH_HLEN || length > LIVE_BYTES ||
	    bpf_xdp_adjust_tail(ctx, (int)length - (int)frame_length) ||
	    bpf_xdp_store_bytes(ctx, 0, slot->bytes, length)) {
		ring->unfit++;
		return XDP_DROP;
	}
	return bpf_redirect(ifindex, 0);
}

/* The members that are read here. */
struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

/*
 * The outcome of a bulk of redirected frames, which nothing else reports. Our frames have the same source and
 * destination device, and are sent by the thread that built them.
 */
SEC("tp_btf/xdp_devmap_xmit")
int live_transmitted(__u64 *arguments)
{
	const struct net_device *from = (void *)arguments[0];
	const struct net_device *to = (void *)arguments[1];
	int sent = arguments[2], drops = arguments[3], err = arguments[4];
	struct live_ring *ring;
	__u32 zero = 0;

	if (from->ifindex != (int)ifindex || to->ifindex != (int)ifindex)
		return 0;
	ring = bpf_map_lookup_elem(&ring_map, &zero);
	if (!ring || ring->task != runner())
		return 0;
	if (sent > 0)
		ring->sent += sent;
	if (drops > 0)
		ring->dropped += drops;
	if (err < 0)
		ring->error = err;
	return 0;
}

/* Carries the shared types into BTF, and so into the skeleton. No instruction reads it. */
const struct live_enums {
	enum live_limit limit;
} live_enums = {};

char _license[] SEC("license") = "Dual BSD/GPL";
