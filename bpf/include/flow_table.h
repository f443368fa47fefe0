/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The table of flows: per CPU, set-associative, bounded. A flow that finds its set full takes octets off the flow there
 * that has fewest, and takes its place once that has none left, so that heavy flows stay in a flood of others
 * (Misra-Gries, with halving for those that have ended). What is not held is in the totals all the same.
 */
#ifndef EXPRESSWAY_FLOW_TABLE_H
#define EXPRESSWAY_FLOW_TABLE_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "flow_packet.h"
#include "flows_shared.h"

/* Weights halve every 2^31 ns, about two seconds. */
#define HALF_LIFE_SHIFT 31

/* Set before load: sets per CPU, a power of two; and what hashes begin with, unknown to who sends packets. */
const volatile __u32 sets = 1;
const volatile __u64 seed = 0;

/* A CPU's sets lie one behind the other; user space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_set);
} flows_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_totals);
} totals_map SEC(".maps");

/* By device, direction and queue: FLOWS_QUEUES + 1 of each. User space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_counts);
} queues_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct drop_key);
	__type(value, struct drop_counts);
} drops_map SEC(".maps");

static __always_inline struct flow_totals *totals(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&totals_map, &zero);
}

/* The place of a queue in queues_map; `device`: its place among the interface's. */
static __always_inline __u32 queue_of(__u32 device, __u32 direction, __u32 queue)
{
	return (device * FLOW_DIRECTIONS + direction) * (FLOWS_QUEUES + 1) + (queue < FLOWS_QUEUES ? queue : FLOWS_QUEUES);
}

static __always_inline void add_counts(struct flow_counts *counts, __u32 path, __s64 packets, __s64 bytes)
{
	/* A task's packet may be interrupted by one of the same CPU. */
	__sync_fetch_and_add(&counts->packets[path & (FLOW_PATHS - 1)], packets);
	__sync_fetch_and_add(&counts->bytes[path & (FLOW_PATHS - 1)], bytes);
}

/* Adds to all of a direction and to one of its queues. */
static __always_inline void count_queue(struct flow_totals *all, __u32 direction, __u32 queue, __u32 path, __s64 packets,
					__s64 bytes)
{
	struct flow_counts *counts = bpf_map_lookup_elem(&queues_map, &queue);

	add_counts(&all->counts[direction & (FLOW_DIRECTIONS - 1)], path, packets, bytes);
	if (counts)
		add_counts(counts, path, packets, bytes);
}

static __always_inline bool same_key(const struct flow_key *left, const struct flow_key *right)
{
	const __u64 *a = (const void *)left, *b = (const void *)right;

	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] && a[4] == b[4];
}

static __always_inline __u64 hash_key(const struct flow_key *key)
{
	const __u64 *words = (const void *)key;
	__u64 hash = seed;
	int i;

	for (i = 0; i < (int)(sizeof(*key) / sizeof(__u64)); i++) {
		hash ^= words[i];
		hash *= 0x9e3779b97f4a7c15;
		hash ^= hash >> 32;
	}
	/* The finish of MurmurHash3: without it the last word's upper bits hardly reach the bits that name a set. */
	hash *= 0xff51afd7ed558ccd;
	hash ^= hash >> 33;
	hash *= 0xc4ceb9fe1a85ec53;
	return hash ^ hash >> 33;
}

/* What a flow's weight is worth now. */
static __always_inline __u64 weight_of(const struct flow_entry *entry, __u64 now, __u64 *aged)
{
	__u64 halvings = now > entry->aged ? (now - entry->aged) >> HALF_LIFE_SHIFT : 0;

	*aged = entry->aged + (halvings << HALF_LIFE_SHIFT);
	return halvings > 63 ? 0 : entry->weight >> halvings;
}

static __always_inline struct flow_set *set_of(const struct flow_key *key)
{
	__u32 index = bpf_get_smp_processor_id() * sets + ((__u32)hash_key(key) & (sets - 1));

	return bpf_map_lookup_elem(&flows_map, &index);
}

static __always_inline void add_to(struct flow_entry *entry, const struct flow_packet *packet, __u32 path,
				   __s64 packets, __s64 bytes)
{
	add_counts(&entry->counts, path, packets, bytes);
	if (packet->cid_length) {
		__builtin_memcpy(entry->cid, packet->cid, FLOWS_CID);
		entry->cid_length = packet->cid_length;
		entry->quic |= packet->quic;
	}
}

static __always_inline void move_in(struct flow_entry *entry, const struct flow_packet *packet, __u64 now)
{
	/* Whoever copies it meanwhile, from its first octet on, finds its two ends different. */
	entry->whole = 0;
	barrier();
	entry->born = 0;
	barrier();
	__builtin_memset(&entry->counts, 0, sizeof(entry->counts));
	entry->dropped = 0;
	entry->key = packet->key;
	entry->cid_length = 0;
	entry->quic = 0;
	barrier();
	entry->born = now;
	barrier();
	entry->whole = now;
}

/* Counts packets of one flow; negative numbers take back what was counted before. */
static __noinline int count_packet(struct flow_packet *packet, __u32 path, __s64 packets, __s64 bytes)
{
	__u64 now = bpf_ktime_get_ns(), least = ~0ULL, oldest = ~0ULL, aged;
	struct flow_totals *all = totals();
	struct flow_entry *entry;
	struct flow_set *set;
	__u32 victim = 0, i;

	if (!all)
		return 0;
	count_queue(all, packet->key.direction, packet->queue, path, packets, bytes);
	set = set_of(&packet->key);
	if (!set)
		return 0;
	for (i = 0; i < FLOWS_WAYS; i++) {
		__u64 weight = 0, seen = 0;

		entry = &set->ways[i];
		if (entry->born) {
			weight = weight_of(entry, now, &aged);
			seen = entry->seen;
			if (same_key(&entry->key, &packet->key)) {
				entry->weight = weight + (bytes > 0 ? bytes : 0);
				entry->aged = aged;
				entry->seen = now;
				add_to(entry, packet, path, packets, bytes);
				return 0;
			}
		}
		if (weight < least || (weight == least && seen < oldest)) {
			least = weight;
			oldest = seen;
			victim = i;
		}
	}
	if (packets <= 0)
		return 0;
	entry = &set->ways[victim & (FLOWS_WAYS - 1)];
	if (entry->born && least > (__u64)bytes) {
		entry->weight = weight_of(entry, now, &aged) - bytes;
		entry->aged = aged;
		__sync_fetch_and_add(&all->not_held, packets);
		return 0;
	}
	if (entry->born)
		__sync_fetch_and_add(&all->evictions, 1);
	move_in(entry, packet, now);
	entry->weight = bytes;
	entry->aged = entry->seen = now;
	add_to(entry, packet, path, packets, bytes);
	return 0;
}

/* Notes that the kernel dropped packets of a flow that has its place. */
static __always_inline void mark_dropped(const struct flow_packet *packet, __u64 packets)
{
	struct flow_set *set = set_of(&packet->key);
	__u32 i;

	if (!set)
		return;
	for (i = 0; i < FLOWS_WAYS; i++) {
		struct flow_entry *entry = &set->ways[i];

		if (entry->born && same_key(&entry->key, &packet->key)) {
			__sync_fetch_and_add(&entry->dropped, packets);
			return;
		}
	}
}

static __always_inline void count_drop(__u32 kind, __u32 reason, __u64 packets, __u64 bytes)
{
	struct drop_key key = { .kind = kind, .reason = reason };
	struct drop_counts *counts = bpf_map_lookup_elem(&drops_map, &key), none = {};
	struct flow_totals *all;

	if (!counts) {
		bpf_map_update_elem(&drops_map, &key, &none, BPF_NOEXIST);
		counts = bpf_map_lookup_elem(&drops_map, &key);
	}
	if (counts) {
		__sync_fetch_and_add(&counts->packets, packets);
		__sync_fetch_and_add(&counts->bytes, bytes);
		return;
	}
	all = totals();
	if (all)
		__sync_fetch_and_add(&all->drops_unlisted, packets);
}

#endif
