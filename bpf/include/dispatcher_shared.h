/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What dispatcher.bpf.c and user space share. The layout is that of libxdp's protocol, version 2 or 3
 * (xdp-tools, lib/libxdp/protocol.org and headers/xdp/prog_dispatcher.h): others read and write it.
 * Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_DISPATCHER_SHARED_H
#define EXPRESSWAY_DISPATCHER_SHARED_H

#define DISPATCHER_MAGIC 236
#ifndef DISPATCHER_VERSION
#define DISPATCHER_VERSION 2
#endif
#define DISPATCHER_SLOTS 10
/* What an empty slot returns; bit 31 is in each slot's chain_call_actions. */
#define DISPATCHER_NEXT 31

struct xdp_dispatcher_config {
	__u8 magic;              /* DISPATCHER_MAGIC */
	__u8 dispatcher_version; /* DISPATCHER_VERSION */
	__u8 num_progs_enabled;
	__u8 is_xdp_frags;       /* the dispatcher was loaded with BPF_F_XDP_HAS_FRAGS */
	/* By slot: the verdicts (as bits) after which the next program is called. */
	__u32 chain_call_actions[DISPATCHER_SLOTS];
	/* By slot: slots are in ascending order of it. */
	__u32 run_prios[DISPATCHER_SLOTS];
	/* By slot: BPF_F_XDP_HAS_FRAGS or 0. */
	__u32 program_flags[DISPATCHER_SLOTS];
#if DISPATCHER_VERSION >= 3
	__u8 is_xdp_devbound;    /* the dispatcher was loaded with BPF_F_XDP_DEV_BOUND_ONLY */
#endif
};

#endif
