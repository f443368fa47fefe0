/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What baseline.bpf.c and user space share. Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_BASELINE_SHARED_H
#define EXPRESSWAY_BASELINE_SHARED_H

/* The one value of stats_map, per CPU. */
struct baseline_stats {
	__u64 packets;      /* that the program saw */
	__u64 short_frames; /* of those: shorter than what was to be read or swapped; dropped */
	__u64 sent;         /* redirected or returned frames that the device says it took */
	__u64 refused;      /* those that it did not take: its ring was full, or it is down */
};

#endif
