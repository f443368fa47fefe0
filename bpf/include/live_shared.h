/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What live.bpf.c and user space share: the frames to send, and what became of them. Include <linux/types.h> or
 * equivalent first.
 */
#ifndef EXPRESSWAY_LIVE_SHARED_H
#define EXPRESSWAY_LIVE_SHARED_H

enum live_limit {
	/* Frames handed over by one call. */
	LIVE_SLOTS = 1024,
	/* Bytes of a frame at most, so that a slot takes 2 KiB. */
	LIVE_BYTES = 2044,
};

struct live_slot {
	__u32 length; /* of the frame, from its Ethernet header on */
	__u8 bytes[LIVE_BYTES];
};

/*
 * The one value of ring_map, mapped into user space too. User space writes between calls of BPF_PROG_TEST_RUN,
 * the programs within them, on the thread that called: never both at a time.
 */
struct live_ring {
	__u32 next;    /* slot of the next frame */
	__u32 end;     /* behind the last one */
	__u64 task;    /* who runs the program: its thread or, before Linux 6.10, 1 and the CPU; 0 between calls */
	__u64 sent;    /* frames that the device took */
	__u64 dropped; /* frames that the device refused: its ring was full, or it is down */
	__u64 unfit;   /* frames that could not be built in the kernel's buffer */
	__s64 error;   /* the last errno of the device's ndo_xdp_xmit, 0 or negative */
	struct live_slot slots[LIVE_SLOTS];
};

#endif
