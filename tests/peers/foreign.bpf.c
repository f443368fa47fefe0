// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Somebody else's XDP program, which passes everything. */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

SEC("xdp") int foreign_pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
