/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a driver takes out of the TX rings of AF_XDP sockets with no copy, whoever owns them.
 *
 * The descriptors are in the pool when xsk_tx_peek_desc or xsk_tx_peek_release_desc_batch return, and the frames are
 * mapped in the kernel. Nothing is an xdp_buff or sk_buff here, so that octets go through a buffer, in pieces.
 */
#ifndef EXPRESSWAY_CAPTURE_ZERO_COPY_H
#define EXPRESSWAY_CAPTURE_ZERO_COPY_H

#include "capture_state.h"

/* include/uapi/linux/if_xdp.h */
struct descriptor {
	__u64 addr;
	__u32 len;
	__u32 options;
};

#define XDP_PKT_CONTD 1
#define XSK_UNALIGNED_BUF_OFFSET_SHIFT 48
#define XSK_UNALIGNED_BUF_ADDR_MASK ((1ULL << XSK_UNALIGNED_BUF_OFFSET_SHIFT) - 1)

/* The most descriptors of a batch: more than any driver's (i40e takes 256, ice a quarter of its ring). */
#define BATCH 4096

/* What is read of the pool once; numbers only, so that it can go through bpf_loop. */
struct batch {
	void *ctx;
	__u64 pool;
	__u64 addrs;
	__u64 descriptors;
	__u64 inode;
	__u32 ifindex;
	__u32 slot;
	__u32 queue;
	bool unaligned;
};

/* One descriptor. */
static __always_inline int take(struct batch *batch, const struct descriptor *descriptor)
{
	struct capture_counts *counts = counts_of(batch->slot);
	__u64 address = descriptor->addr;
	__u32 length = descriptor->len;
	__u32 zero = 0, piece, at = 0;
	struct pieces *pieces;
	bool first, more;
	int result;

	pieces = bpf_map_lookup_elem(&pieces_map, &zero);
	if (!pieces || !counts)
		return 1;
	if (batch->unaligned)
		address = (address & XSK_UNALIGNED_BUF_ADDR_MASK) + (address >> XSK_UNALIGNED_BUF_OFFSET_SHIFT);
	address += batch->addrs;
	more = descriptor->options & XDP_PKT_CONTD;
	first = pieces->pool != batch->pool;
	pieces->pool = more ? batch->pool : 0;
	if (!first && !pieces->matched)
		return 0;

	if (first) {
		pieces->record.time = bpf_ktime_get_ns();
		pieces->record.id = identifier(HOOKS, ++pieces->packets);
		pieces->record.inode = batch->inode;
		pieces->record.ifindex = batch->ifindex;
		pieces->record.queue = batch->queue;
		pieces->record.kind = CAPTURE_XSK_ZERO_COPY;
		pieces->left = snaplen;
		pieces->matched = 1;
		__sync_fetch_and_add(&counts->seen, 1);
	}
	/* Each turn sends a piece; the last has no octets but the rest of the length. */
	for (int turn = 0; turn < 18; turn++) {
		piece = length - at;
		if (piece > pieces->left)
			piece = pieces->left;
		if (piece > CAPTURE_PIECE)
			piece = CAPTURE_PIECE;
		asm volatile("" : "+r"(piece));
		if (piece > CAPTURE_PIECE)
			break;
		if (piece && bpf_probe_read_kernel(pieces->octets, piece, (void *)(address + at)))
			piece = 0;
		if (first) {
			first = false;
			result = FILTER_YES;
			if (filtered && !more)
				result = capture_filter(&pieces->head, piece < CAPTURE_HEAD ? piece : CAPTURE_HEAD, length);
			/* The length of a packet of several descriptors is known only at its end. */
			if (filtered && more)
				result = FILTER_UNDECIDED;
			if (result == FILTER_NO) {
				pieces->matched = 0;
				return 0;
			}
			if (result == FILTER_UNDECIDED)
				pieces->left = CAPTURE_MAX;
			pieces->record.flags = result == FILTER_UNDECIDED ? CAPTURE_UNDECIDED : 0;
			__sync_fetch_and_add(&counts->matched, 1);
		} else {
			pieces->record.kind = CAPTURE_PIECE_MORE;
		}
		pieces->left -= piece;
		pieces->record.payload = piece;
		pieces->record.length = pieces->left && piece ? piece : length - at;
		at += pieces->record.length;
		pieces->record.flags &= ~CAPTURE_MORE;
		if (more || at < length)
			pieces->record.flags |= CAPTURE_MORE;
		if (bpf_perf_event_output(batch->ctx, &events_map, BPF_F_CURRENT_CPU, pieces,
					  sizeof(pieces->record) + piece)) {
			/* The rest is of no use without this. */
			pieces->matched = 0;
			__sync_fetch_and_add(&counts->lost, 1);
			return 0;
		}
		if (at >= length)
			break;
	}
	return 0;
}

/* Whose pool it is; false if it is no target's. */
static __always_inline bool pool_of(struct batch *batch, struct xsk_buff_pool *pool)
{
	struct capture_target *target;
	struct xdp_sock *xs;

	target = target_of(pool->netdev, &batch->ifindex);
	if (!target)
		return false;
	batch->slot = target->slot;
	batch->pool = (__u64)pool;
	batch->addrs = (__u64)pool->addrs;
	batch->descriptors = (__u64)pool->tx_descs;
	batch->queue = pool->queue_id;
	batch->unaligned = pool->unaligned;
	/* Of several sockets that share it, the first: which one a descriptor is from cannot be told here. */
	xs = (void *)pool->xsk_tx_list.next - bpf_core_field_offset(struct xdp_sock, tx_list);
	batch->inode = 0;
	if (BPF_CORE_READ(pool, xsk_tx_list.next) == BPF_CORE_READ(pool, xsk_tx_list.prev))
		batch->inode = BPF_CORE_READ(xs, sk.sk_socket, file, f_inode, i_ino);
	return true;
}

static long take_one(__u32 index, struct batch *batch)
{
	struct descriptor descriptor;

	if (bpf_probe_read_kernel(&descriptor, sizeof(descriptor),
				  (void *)(batch->descriptors + index * sizeof(descriptor))))
		return 1;
	return take(batch, &descriptor);
}

SEC("fexit/xsk_tx_peek_desc")
int BPF_PROG(capture_peek, struct xsk_buff_pool *pool, struct descriptor *desc, bool found)
{
	struct batch batch = { .ctx = ctx };
	struct descriptor descriptor;
	struct pieces *pieces;
	__u32 zero = 0;

	if (!found || !pool_of(&batch, pool))
		return 0;
	pieces = bpf_map_lookup_elem(&pieces_map, &zero);
	if (!pieces)
		return 0;
	pieces->peeked++;
	if (bpf_probe_read_kernel(&descriptor, sizeof(descriptor), desc))
		return 0;
	take(&batch, &descriptor);
	return 0;
}

SEC("fentry/xsk_tx_peek_release_desc_batch")
int BPF_PROG(capture_batch_entry)
{
	__u32 zero = 0;
	struct pieces *pieces = bpf_map_lookup_elem(&pieces_map, &zero);

	if (pieces)
		pieces->before = pieces->peeked;
	return 0;
}

SEC("fexit/xsk_tx_peek_release_desc_batch")
int BPF_PROG(capture_batch, struct xsk_buff_pool *pool, __u32 nb_pkts, __u32 taken)
{
	struct batch batch = { .ctx = ctx };
	struct pieces *pieces;
	__u32 zero = 0;

	if (!taken || taken > BATCH || taken > nb_pkts || !pool_of(&batch, pool))
		return 0;
	pieces = bpf_map_lookup_elem(&pieces_map, &zero);
	/* A pool of several sockets: the batch was peeked one by one (xsk_tx_peek_release_fallback). */
	if (!pieces || pieces->before != pieces->peeked)
		return 0;
	bpf_loop(taken, take_one, &batch, 0);
	return 0;
}

#endif
