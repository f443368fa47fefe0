/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Buckets of limits, by the generic cell rate algorithm: one word, the time at which the bucket will be full again.
 */
#ifndef EXPRESSWAY_GUARD_BUCKET_H
#define EXPRESSWAY_GUARD_BUCKET_H

#include "packet.h"

/* How far apart the clocks of two CPUs may be: about a second. */
#define CLOCK_SLACK (1ll << 40)

/*
 * Whether a bucket that is full again at `*when` has room for `cost`, which it then takes. Signed, so times may wrap; one
 * that no packet can have left there, further ahead than the burst, has wrapped, and is as good as past.
 */
static __always_inline bool take(__u64 *when, __u64 now, __u64 cost, __u64 burst)
{
	for (int i = 0; i < 4; i++) {
		__u64 old = *(volatile __u64 *)when, start = old;

		if ((__s64)(start - now) < 0 || (__s64)(start - now) > (__s64)burst + CLOCK_SLACK)
			start = now;
		if ((__s64)(start + cost - now) > (__s64)burst)
			return false;
		if (__sync_val_compare_and_swap(when, old, start + cost) == old)
			return true;
	}
	/* Others took from it meanwhile, again and again: what this one costs is not counted. */
	return true;
}

#endif
