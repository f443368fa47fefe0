/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Frames that XDP programs redirect, on their way to a driver (include/net/xdp.h, kernel/bpf/devmap.c; Linux 5.18). Include
 * what has the kernel's other structures first.
 */
#ifndef EXPRESSWAY_XDP_FRAME_H
#define EXPRESSWAY_XDP_FRAME_H

#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* DEV_MAP_BULK_SIZE: the most frames of a bulk queue. */
#define XDP_BULK 16
/* XDP_FLAGS_HAS_FRAGS */
#define XDP_HAS_FRAGS 1
/* SMP_CACHE_BYTES, where it is usual. */
#define CACHE_LINE 64
/* More than the fragments of a frame hold. */
#define FRAGS_MOST (1 << 20)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Lengths have 16 or 32 bits. */
struct xdp_frame {
	void *data;
	__u32 len;
	__u32 headroom;
	__u32 frame_sz;
	__u32 flags;
};

struct xdp_dev_bulk_queue {
	struct xdp_frame *q[XDP_BULK];
	struct net_device *dev;
	struct bpf_prog *xdp_prog;
	unsigned int count;
};

struct skb_shared_info___frags {
	unsigned int xdp_frags_size;
};

#pragma clang attribute pop

/* Octets of a frame behind its first buffer (xdp_get_frame_len). */
static __always_inline __u32 xdp_frame_rest(const struct xdp_frame *frame)
{
	const struct skb_shared_info___frags *shared;
	__u64 room, begin, size;

	if (!(BPF_CORE_READ_BITFIELD_PROBED(frame, flags) & XDP_HAS_FRAGS))
		return 0;
	/* They are described at the buffer's end (xdp_get_shared_info_from_frame). */
	room = (bpf_core_type_size(struct skb_shared_info___frags) + CACHE_LINE - 1) & ~(__u64)(CACHE_LINE - 1);
	begin = (__u64)BPF_CORE_READ(frame, data) - BPF_CORE_READ_BITFIELD_PROBED(frame, headroom) -
		bpf_core_type_size(struct xdp_frame);
	shared = (const void *)(begin + BPF_CORE_READ_BITFIELD_PROBED(frame, frame_sz) - room);
	size = BPF_CORE_READ(shared, xdp_frags_size);
	return size < FRAGS_MOST ? size : 0;
}

#endif
