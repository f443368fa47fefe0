/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sources that are known from before an attack. A source is noted when it proves that its address is its own, which no
 * packet of a forged source does; it is preferred when it has done so again some time later. Proofs are TCP connections that
 * this host has established (guard_learn.bpf.c), and Retry tokens that came back (guard_retry.h).
 */
#ifndef EXPRESSWAY_GUARD_LEARN_H
#define EXPRESSWAY_GUARD_LEARN_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "guard_shared.h"

/* Set before load. Bits of an address that are learned; how far apart the first and the last proof are at least, and how
 * long ago the last may be, in ns. */
const volatile __u32 learn_prefix4 = 32;
const volatile __u32 learn_prefix6 = 64;
const volatile __u64 learn_after = 0;
const volatile __u64 learn_expiry = 0;

struct guard_address {
	__u8 address[16];
};

/* Nobody is pushed out: what finds no room is counted. User space removes what is too old. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct guard_address);
	__type(value, struct guard_learned);
} learned_map SEC(".maps");

/* Not 0 while there is an attack: nobody is new then, and who is known is preferred. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} attack_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_learning);
} learning_map SEC(".maps");

/* Clears the bits of an address behind the first `length`. */
static __always_inline void mask_address(__u8 *address, __u32 length)
{
	for (int i = 0; i < 16; i++) {
		if (length >= 8) {
			length -= 8;
			continue;
		}
		address[i] &= 0xff00 >> length;
		length = 0;
	}
}

static __always_inline bool is_attacked(void)
{
	__u32 zero = 0, *attack = bpf_map_lookup_elem(&attack_map, &zero);

	return attack && *attack;
}

/* A source has proved that its address is its own. `fresh` is room for an entry, of a caller who has some. */
static __always_inline void learn(struct guard_address *source, bool ipv4, struct guard_learned *fresh)
{
	struct guard_learning *learning;
	struct guard_learned *learned;
	__u32 zero = 0;

	mask_address(source->address, ipv4 ? 96 + learn_prefix4 : learn_prefix6);
	learning = bpf_map_lookup_elem(&learning_map, &zero);
	if (!learning)
		return;
	learning->proofs++;
	fresh->first = fresh->last = bpf_ktime_get_ns();
	fresh->when = 0;
	learned = bpf_map_lookup_elem(&learned_map, source);
	if (learned) {
		/* One that was forgotten begins anew, though it is still there. */
		if ((__s64)(fresh->last - learned->last) > (__s64)learn_expiry)
			learned->first = fresh->first;
		learned->last = fresh->last;
	} else if (is_attacked()) {
		learning->late++;
	} else if (bpf_map_update_elem(&learned_map, source, fresh, BPF_NOEXIST)) {
		learning->full++;
	} else {
		learning->added++;
	}
}

#endif
