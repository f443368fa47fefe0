// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The redirect program that stamps: it is redirect.bpf.c, and in front of each packet that it gives to an AF_XDP
 * socket it puts a struct redirect_metadata with the time of the kernel's TAI clock, and nothing of the device.
 *
 * For where redirect_hints.bpf.c cannot be: it is bound to no device, and runs in generic mode too. Linux 6.1
 * (bpf_ktime_get_tai_ns).
 */
#define REDIRECT_STAMPS 1
#include "redirect.bpf.c"
