/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Why an XDP program of ours dropped a packet: what the programs leave for whoever observes them.
 *
 * Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_XDP_DROP_SHARED_H
#define EXPRESSWAY_XDP_DROP_SHARED_H

/*
 * Which program's reasons a number is of: to these its counters of drops are added, the first of them as 0. The observer may be of
 * another version: numbers stay, so that a new reason is the last of its program's.
 */
enum xdp_drop_program {
	XDP_DROP_REDIRECT = 0x100, /* enum redirect_counter */
	XDP_DROP_GUARD = 0x200,    /* enum guard_reason */
	XDP_DROP_FORWARD = 0x300,  /* enum forward_counter */
	XDP_DROP_BALANCE = 0x400,  /* enum balance_counter */
};

/* The one value of xdp_drop_map, per CPU: the last packet that the program dropped. */
struct xdp_drop {
	__u32 ifindex; /* that received it */
	__u16 turn;    /* another number than the drop before had */
	__u16 reason;  /* enum xdp_drop_program, and which of its drops; 0: none yet */
};

#endif
