/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Samples of dropped packets for user space: one in so many of a reason, and so many a second of it at most. A flood costs
 * a counter of its CPU, and where it is beyond the rate no write that other CPUs see.
 */
#ifndef EXPRESSWAY_GUARD_SAMPLE_H
#define EXPRESSWAY_GUARD_SAMPLE_H

#include "guard_bucket.h"
#include "guard_shared.h"

/* Set before load. */
const volatile bool has_samples = false;
/* By reason: one packet in so many; 0 is none. */
const volatile __u32 sample_every[GUARD_REASONS] = {};
/* Of each reason, in 1/1024 ns. */
const volatile __u64 sample_cost = 0;
const volatile __u64 sample_burst = 0;
/* Octets of a packet. */
const volatile __u32 sample_snaplen = 0;
/* Of the rules that a sample's number is of. */
const volatile __u32 generation = 0;

/* As many entries as there are CPUs, which libbpf sees to. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} samples_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GUARD_REASONS);
	__type(key, __u32);
	__type(value, struct guard_sampling);
} sampling_map SEC(".maps");

/* By reason: when the bucket of its rate is full again. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GUARD_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} sample_rate_map SEC(".maps");

/* A packet of `size` octets that is dropped, or would be but for a dry run. `rule` decided, or is GUARD_NO_RULE. */
static __always_inline void sample(struct xdp_md *ctx, __u32 reason, __u32 rule, __u64 size, bool passed)
{
	struct guard_sampling *sampling = bpf_map_lookup_elem(&sampling_map, &reason);
	struct guard_sample head = {};
	__u64 now, *when, octets;
	__u32 every;

	if (!sampling || reason >= GUARD_REASONS)
		return;
	every = sample_every[reason];
	if (!every || sampling->seen++ % every)
		return;
	now = bpf_ktime_get_ns();
	when = bpf_map_lookup_elem(&sample_rate_map, &reason);
	if (!when || !take(when, now << GUARD_TIME_SHIFT, sample_cost, sample_burst)) {
		sampling->limited++;
		return;
	}
	octets = size < sample_snaplen ? size : sample_snaplen;
	head.time = now;
	head.ifindex = ctx->ingress_ifindex;
	head.queue = ctx->rx_queue_index;
	head.length = size;
	head.octets = octets;
	head.rule = rule;
	head.generation = generation;
	head.reason = reason;
	head.passed = passed;
	/* The packet's first octets are appended by the kernel, fragments included. */
	if (bpf_perf_event_output(ctx, &samples_map, octets << 32 | BPF_F_CURRENT_CPU, &head, sizeof(head)))
		sampling->lost++;
	else
		sampling->taken++;
}

#endif
