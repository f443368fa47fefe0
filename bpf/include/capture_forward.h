/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What XDP programs redirect to interfaces, as it leaves there, whoever's program it is.
 *
 *   native    bpf_redirect, devmap ─▶ bulk queue of the device ─ capture_forward ▶ ndo_xdp_xmit ─ capture_forwarded
 *   the same  BPF_PROG_TEST_RUN with live frames ─ capture_live ─▶ bulk queue …, flushed before another's turn comes
 *   generic   capture_forwarding ─▶ xdp_do_generic_redirect ─ capture_forward_generic ▶ driver
 *
 * A driver is given up to 16 frames at once and says how many of them it took. A program in a devmap's entry runs in between:
 * its frames are shown as they were before it, and which of them were not taken cannot be told. In generic mode it has run before.
 *
 * Of a frame in several buffers the first is captured. Included by capture.bpf.c, behind what looks at sk_buffs.
 */
#ifndef EXPRESSWAY_CAPTURE_FORWARD_H
#define EXPRESSWAY_CAPTURE_FORWARD_H

#include "capture_state.h"
#include "capture_zero_copy.h"
#include "xdp_frame.h"

/* include/linux/netdevice.h */
#define NET_XMIT_DROP 1

/* What a CPU hands to a driver. */
struct forwarded {
	__u64 frames[XDP_BULK];
	__u64 ids[XDP_BULK]; /* of those that are captured; 0: it is not */
	__u32 count;
	__u32 altered; /* a program of a devmap's entry runs behind this */
	__u32 live;    /* the current process has its frames redirected */
	__u32 generic; /* xdp_do_generic_redirect runs */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct forwarded);
} forwarded_map SEC(".maps");

static __always_inline struct forwarded *forwarded_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&forwarded_map, &zero);
}

/* Whose the frame is: only in the turn of a process that has frames redirected is there one. */
static __always_inline void note_sender(struct capture_record *record, const struct forwarded *forwarded)
{
	record->pid = 0;
	if (!forwarded->live)
		return;
	record->pid = process();
	bpf_get_current_comm(record->comm, sizeof(record->comm));
}

/* One frame of those in forwarded_map. 1: something is missing. */
static long forward_one(__u32 index, struct batch *batch)
{
	struct forwarded *forwarded = forwarded_here();
	struct capture_target *target;
	struct capture_counts *counts;
	const struct xdp_frame *frame;
	struct pieces *pieces;
	__u32 place = PIECES_FORWARD, strip, whole;
	int judgement;

	pieces = bpf_map_lookup_elem(&pieces_map, &place);
	if (!pieces || !forwarded)
		return 1;
	frame = (const void *)forwarded->frames[index & (XDP_BULK - 1)];
	batch->address = (__u64)BPF_CORE_READ(frame, data);
	batch->length = BPF_CORE_READ_BITFIELD_PROBED(frame, len);
	whole = batch->length + xdp_frame_rest(frame);
	batch->more = whole != batch->length;
	batch->first = true;
	batch->at = 0;
	target = target_of_descriptor(batch, &strip);
	counts = target ? counts_of(target->slot) : NULL;
	if (!counts)
		return 0;
	__sync_fetch_and_add(&counts->seen, 1);
	judgement = judge_descriptor(pieces, batch, strip);
	if (judgement == FILTER_NO)
		return 0;
	__sync_fetch_and_add(&counts->matched, 1);
	pieces->matched = 1;
	pieces->slot = target->slot;
	pieces->left = judgement == FILTER_UNDECIDED ? CAPTURE_MAX : snaplen + strip;
	if (pieces->left > batch->length)
		pieces->left = batch->length;
	batch->length = whole;
	batch->more = false;
	pieces->record.flags = judgement == FILTER_UNDECIDED ? CAPTURE_UNDECIDED : 0;
	pieces->record.time = bpf_ktime_get_ns();
	pieces->record.id = identifier(HOOK_FORWARD, ++pieces->packets);
	pieces->record.ifindex = target->shown;
	pieces->record.strip = strip;
	pieces->record.queue = ~0U;
	pieces->record.kind = CAPTURE_XDP_TRANSMIT;
	note_sender(&pieces->record, forwarded);
	forwarded->ids[index & (XDP_BULK - 1)] = pieces->record.id;
	bpf_loop(CAPTURE_MAX / CAPTURE_PIECE + 2, send_piece, batch, 0);
	if (!pieces->matched)
		forwarded->ids[index & (XDP_BULK - 1)] = 0;
	return 0;
}

SEC("fentry/bq_xmit_all")
int BPF_PROG(capture_forward, struct xdp_dev_bulk_queue *queue)
{
	struct batch batch = { .ctx = ctx, .room = PIECES_FORWARD };
	struct forwarded *forwarded = forwarded_here();
	__u32 count = queue->count;

	if (!forwarded)
		return 0;
	forwarded->count = 0;
	/* A bond gives the frames to its members, past every hook. */
	if (!count || count > XDP_BULK || !drops_of(queue->dev, &batch.ifindex))
		return 0;
	if (bpf_probe_read_kernel(forwarded->frames, sizeof(forwarded->frames),
				  (void *)queue + bpf_core_field_offset(struct xdp_dev_bulk_queue, q)))
		return 0;
	__builtin_memset(forwarded->ids, 0, sizeof(forwarded->ids));
	forwarded->count = count;
	forwarded->altered = queue->xdp_prog != NULL;
	bpf_loop(count, forward_one, &batch, 0);
	return 0;
}

/* The driver has taken the first `sent` of them. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(capture_forwarded, const struct net_device *from, const struct net_device *to, int sent, int drops, int error)
{
	struct scratch *scratch = scratch_of(HOOK_FORWARD);
	struct forwarded *forwarded = forwarded_here();
	__u32 count, index;

	if (!scratch || !forwarded)
		return 0;
	count = forwarded->count;
	forwarded->count = 0;
	if (drops <= 0 || forwarded->altered)
		return 0;
	for (index = 0; index < XDP_BULK; index++) {
		if ((int)index < sent || index >= count || !forwarded->ids[index])
			continue;
		clear(&scratch->record, CAPTURE_SENT, forwarded->ids[index]);
		scratch->record.result = error < 0 ? error : NET_XMIT_DROP;
		bpf_perf_event_output(ctx, &events_map, BPF_F_CURRENT_CPU, &scratch->record, sizeof(scratch->record));
	}
	return 0;
}

/* By xdp_test_run_batch in net/bpf/test_run.c, with bottom halves off until it has flushed them. */
SEC("fentry/xdp_do_redirect_frame")
int BPF_PROG(capture_live)
{
	struct forwarded *forwarded = forwarded_here();

	if (forwarded)
		forwarded->live = 1;
	return 0;
}

SEC("fexit/xdp_do_flush")
int BPF_PROG(capture_flushed)
{
	struct forwarded *forwarded = forwarded_here();

	if (forwarded)
		forwarded->live = 0;
	return 0;
}

/* Generic XDP: sk_buffs, which go to the driver past the queueing discipline and its tracepoint. */

static __always_inline int set_generic(__u32 runs)
{
	struct forwarded *forwarded = forwarded_here();

	if (forwarded)
		forwarded->generic = runs;
	return 0;
}

SEC("fentry/xdp_do_generic_redirect")
int BPF_PROG(capture_forwarding)
{
	return set_generic(1);
}

SEC("fexit/xdp_do_generic_redirect")
int BPF_PROG(capture_forwarding_ends)
{
	return set_generic(0);
}

/* XDP_TX comes here too, by itself. */
SEC("fentry/generic_xdp_tx")
int BPF_PROG(capture_forward_generic, struct sk_buff *skb)
{
	struct scratch *scratch = scratch_of(HOOK_FORWARD_GENERIC);
	struct forwarded *forwarded = forwarded_here();
	struct net_device *dev = skb->dev;
	struct capture_target *target;
	struct capture_counts *counts;
	__u32 ifindex;

	if (!scratch || !forwarded || !forwarded->generic)
		return 0;
	target = target_of(dev, &ifindex);
	if (!target)
		return 0;
	counts = describe(scratch, skb, dev->type, HOOK_FORWARD_GENERIC, CAPTURE_XDP_TRANSMIT, ifindex, target);
	if (!counts)
		return 0;
	/* Whoever sent it on a device that loops it back. */
	scratch->record.inode = 0;
	output_skb(skb, scratch, counts);
	return 0;
}

#endif
