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
#define XDP_TX_METADATA 2

/* The same header's struct xsk_tx_metadata, which lies in front of the packet; the launch time came with Linux 6.15. */
struct tx_metadata {
	__u64 flags;
	__u16 csum_start;
	__u16 csum_offset;
	__u64 launch_time;
};

#define XDP_TXMD_FLAGS_VALID (CAPTURE_TX_TIMESTAMP | CAPTURE_TX_CHECKSUM | CAPTURE_TX_LAUNCH)
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
	__u32 queue;
	bool unaligned;
	/* Octets of TX metadata in front of each packet. */
	__u32 metadata;
	/* The descriptor that is looked at, and how much of it was sent. */
	bool more;
	bool first;
	__u32 length;
	__u32 at;
	__u64 address;
	__u32 room; /* enum pieces_room */
};

/* Sends a piece of the descriptor's octets; the last has none but the rest of the length. 1: there is no other. */
static long send_piece(__u32 turn, struct batch *batch)
{
	__u32 piece = batch->length - batch->at;
	struct capture_record *record;
	struct capture_counts *counts;
	struct pieces *pieces;
	__u32 room = batch->room;

	pieces = bpf_map_lookup_elem(&pieces_map, &room);
	counts = pieces ? counts_of(pieces->slot) : NULL;
	if (!counts)
		return 1;
	record = &pieces->record;
	if (piece > pieces->left)
		piece = pieces->left;
	if (piece > CAPTURE_PIECE)
		piece = CAPTURE_PIECE;
	asm volatile("" : "+r"(piece));
	if (piece > CAPTURE_PIECE)
		return 1;
	if (piece && bpf_probe_read_kernel(pieces->octets, piece, (void *)(batch->address + batch->at)))
		piece = 0;
	if (!batch->first)
		record->kind = CAPTURE_PIECE_MORE;
	batch->first = false;
	pieces->left -= piece;
	record->payload = piece;
	record->length = pieces->left && piece ? piece : batch->length - batch->at;
	batch->at += record->length;
	record->flags &= ~CAPTURE_MORE;
	if (batch->more || batch->at < batch->length)
		record->flags |= CAPTURE_MORE;
	if (bpf_perf_event_output(batch->ctx, &events_map, BPF_F_CURRENT_CPU, pieces, sizeof(*record) + piece)) {
		/* The rest is of no use without this. */
		pieces->matched = 0;
		__sync_fetch_and_add(&counts->lost, 1);
		return 1;
	}
	return batch->at >= batch->length;
}

/* The target of the packet that begins in this descriptor. */
static __always_inline struct capture_target *target_of_descriptor(const struct batch *batch, __u32 *strip)
{
	__u32 ifindex = batch->ifindex;
	struct capture_target *target = bpf_map_lookup_elem(&targets_map, &ifindex);
	__be16 octets[TAGS / sizeof(__be16)] = {};

	*strip = 0;
	if (!target || !(target->flags & CAPTURE_TAGGED))
		return target;
	if (batch->length >= ADDRESSES + TAGS)
		bpf_probe_read_kernel(octets, sizeof(octets), (void *)(batch->address + ADDRESSES));
	return vlan_of(target, ifindex, octets, strip);
}

/* What the filter says of a packet that begins, and maybe ends, in this descriptor, without its `strip` octets of tags. */
static __always_inline int judge_descriptor(struct pieces *pieces, const struct batch *batch, __u32 strip)
{
	__u32 held = batch->length;

	if (!filtered)
		return FILTER_YES;
	/* The length of a packet of several descriptors is known only at its end. */
	if (batch->more)
		return FILTER_UNDECIDED;
	if (strip) {
		/* As long as a packet with tags is. */
		held -= ADDRESSES + strip;
		if (held > needed)
			held = needed;
		asm volatile("" : "+r"(held));
		if (held > CAPTURE_HEAD - ADDRESSES)
			held = CAPTURE_HEAD - ADDRESSES;
		bpf_probe_read_kernel(&pieces->head, ADDRESSES, (void *)batch->address);
		if (bpf_probe_read_kernel(pieces->head.octets + ADDRESSES, held,
					  (void *)(batch->address + ADDRESSES + strip)))
			return FILTER_UNDECIDED;
		return capture_filter(&pieces->head, held + ADDRESSES, batch->length - strip);
	}
	if (held > needed)
		held = needed;
	asm volatile("" : "+r"(held));
	if (held > CAPTURE_HEAD)
		return FILTER_UNDECIDED;
	if (held && bpf_probe_read_kernel(&pieces->head, held, (void *)batch->address))
		held = 0;
	return capture_filter(&pieces->head, held, batch->length);
}

/*
 * What the TX metadata of the packet that begins in this descriptor asks for. With flags that it does not know the kernel asks the device for
 * nothing (xsk_buff_valid_tx_metadata in include/net/xdp_sock_drv.h).
 */
static __always_inline void note_metadata(const struct batch *batch, struct capture_record *record)
{
	struct tx_metadata metadata = {};
	__u32 length = batch->metadata;

	/* A shorter one has no launch time. */
	if (length > sizeof(metadata))
		length = sizeof(metadata);
	if (!length || bpf_probe_read_kernel(&metadata, length, (void *)(batch->address - batch->metadata)))
		return;
	if (metadata.flags & ~(__u64)XDP_TXMD_FLAGS_VALID)
		return;
	record->asked = metadata.flags;
	record->result = (__u32)metadata.csum_start << 16 | metadata.csum_offset;
	record->launch = metadata.launch_time;
}

/* One descriptor. 1: something is missing. */
static __always_inline int take(struct batch *batch, const struct descriptor *descriptor)
{
	struct capture_target *target;
	struct capture_counts *counts;
	struct pieces *pieces;
	__u32 zero = 0, strip;
	int judgement;

	pieces = bpf_map_lookup_elem(&pieces_map, &zero);
	if (!pieces)
		return 1;
	batch->address = descriptor->addr;
	if (batch->unaligned)
		batch->address = (descriptor->addr & XSK_UNALIGNED_BUF_ADDR_MASK) +
				 (descriptor->addr >> XSK_UNALIGNED_BUF_OFFSET_SHIFT);
	batch->address += batch->addrs;
	batch->length = descriptor->len;
	batch->at = 0;
	batch->more = descriptor->options & XDP_PKT_CONTD;
	batch->first = pieces->pool != batch->pool;
	pieces->pool = batch->more ? batch->pool : 0;
	if (batch->first) {
		pieces->matched = 0;
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
		pieces->record.flags = judgement == FILTER_UNDECIDED ? CAPTURE_UNDECIDED : 0;
		pieces->record.time = bpf_ktime_get_ns();
		pieces->record.id = identifier(HOOKS, ++pieces->packets);
		pieces->record.inode = batch->inode;
		pieces->record.ifindex = target->shown;
		pieces->record.strip = strip;
		pieces->record.queue = batch->queue;
		pieces->record.kind = CAPTURE_XSK_ZERO_COPY;
		pieces->record.asked = 0;
		pieces->record.result = 0;
		pieces->record.launch = 0;
		if (descriptor->options & XDP_TX_METADATA)
			note_metadata(batch, &pieces->record);
	}
	if (pieces->matched)
		bpf_loop(CAPTURE_MAX / CAPTURE_PIECE + 2, send_piece, batch, 0);
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
	batch->pool = (__u64)pool;
	batch->addrs = (__u64)pool->addrs;
	batch->descriptors = (__u64)pool->tx_descs;
	batch->queue = pool->queue_id;
	batch->unaligned = pool->unaligned;
	/* Since Linux 6.8. */
	batch->metadata = 0;
	if (bpf_core_field_exists(pool->tx_metadata_len))
		batch->metadata = BPF_CORE_READ(pool, tx_metadata_len);
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
