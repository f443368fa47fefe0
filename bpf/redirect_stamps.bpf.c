// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The redirect program with time stamps: redirect.bpf.c, which also puts a struct redirect_metadata in front of each
 * packet for an AF_XDP socket, with the time of the kernel's TAI clock and nothing from the device.
 *
 * For use where redirect_hints.bpf.c cannot run: it is not bound to a device, and also runs in generic mode. Linux 6.1
 * (bpf_ktime_get_tai_ns).
 */
#define REDIRECT_STAMPS 1
#include "redirect.bpf.c"
