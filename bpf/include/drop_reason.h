/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which reasons of kfree_skb are drops.
 *
 * 1 is SKB_CONSUMED since Linux 6.2, and no drop; before, it is SKB_DROP_REASON_NOT_SPECIFIED (include/net/dropreason.h), which
 * most drops had.
 */
#ifndef EXPRESSWAY_DROP_REASON_H
#define EXPRESSWAY_DROP_REASON_H

#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>

enum skb_drop_reason___kernel {
	SKB_CONSUMED___kernel = 1,
};

static __always_inline bool is_drop(__u32 reason)
{
	if (bpf_core_enum_value_exists(enum skb_drop_reason___kernel, SKB_CONSUMED___kernel))
		return reason > 1;
	return reason > 0;
}

#endif
