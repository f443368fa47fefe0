/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rules by bytes of the payload.
 *
 * All rules together look at no more than GUARD_PROBES places. The bytes of each are looked up once a packet, whatever the
 * number of rules, and what is found adds the rules that ask for these bytes to those that ask for none.
 */
#ifndef EXPRESSWAY_GUARD_PAYLOAD_H
#define EXPRESSWAY_GUARD_PAYLOAD_H

#include "guard_packet.h"

/* Set before load. */
const volatile __u32 probe_count = 0;
const volatile struct guard_probe probes[GUARD_PROBES] = {};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct guard_payload_key);
	__type(value, struct guard_bits);
} payload_map SEC(".maps");

/* Rules that ask for no payload. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_bits);
} payload_any_map SEC(".maps");

/* The set of the packet at hand: 136 bytes, too much for the stack beside the rest. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_bits);
} payload_found_map SEC(".maps");

static __always_inline const struct guard_bits *payload_set(struct xdp_md *ctx, const struct guard_packet *packet)
{
	const struct guard_bits *any, *set;
	struct guard_bits *found;
	struct guard_payload_key key;
	__u32 zero = 0, at, length;

	any = bpf_map_lookup_elem(&payload_any_map, &zero);
	found = bpf_map_lookup_elem(&payload_found_map, &zero);
	if (!any || !found)
		return NULL;
	*found = *any;
	if (!packet->payload)
		return found;
	for (__u32 i = 0; i < GUARD_PROBES && i < probe_count; i++) {
		at = packet->payload + probes[i].offset;
		length = probes[i].length;
		if (!length || length > GUARD_PATTERN || at + length > packet->end)
			continue;
		key.probe = i;
		key.bytes[0] = key.bytes[1] = 0;
		if (bpf_xdp_load_bytes(ctx, at, key.bytes, length))
			continue;
		key.bytes[0] &= probes[i].mask[0];
		key.bytes[1] &= probes[i].mask[1];
		set = bpf_map_lookup_elem(&payload_map, &key);
		if (!set)
			continue;
		found->some |= set->some;
		for (int word = 0; word < GUARD_WORDS; word++)
			found->words[word] |= set->words[word];
	}
	return found;
}

#endif
