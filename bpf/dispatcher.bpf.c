// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The dispatcher: several XDP programs on one interface, called in turn.
 *
 * Written to libxdp's protocol (xdp-tools, lib/libxdp/protocol.org), version 2, so that ours and programs attached
 * by xdp-loader or any user of libxdp can share an interface. Each slot is a function that a
 * program of type BPF_PROG_TYPE_EXT replaces; the configuration is read-only data, so the verifier removes the
 * calls of slots that are not used. Names, the size of the read-only data (the configuration and nothing else)
 * and the version's place in BTF are the protocol's.
 *
 * Linux 5.10 or newer (a component is attached to two dispatchers for a moment).
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "dispatcher_shared.h"

const volatile struct xdp_dispatcher_config conf = {};

/*
 * An empty slot: always continues with the next. The volatile hides that from clang. The call, which changes nothing,
 * is for the verifier: since Linux 6.13 a program that may change packets can only replace a function that may
 * (bpf_check_attach_target in kernel/bpf/verifier.c).
 */
#define SLOT(number)                                                                                       \
	__attribute__((noinline)) int prog##number(struct xdp_md *ctx)                                     \
	{                                                                                                  \
		volatile int verdict = DISPATCHER_NEXT;                                                    \
                                                                                                           \
		if (!ctx)                                                                                  \
			return XDP_ABORTED;                                                                \
		bpf_xdp_adjust_tail(ctx, 0);                                                               \
		return verdict;                                                                            \
	}

SLOT(0)
SLOT(1)
SLOT(2)
SLOT(3)
SLOT(4)
SLOT(5)
SLOT(6)
SLOT(7)
SLOT(8)
SLOT(9)

/* Calls a slot in use; returns its verdict unless the slot's configuration says that the next one follows. */
#define CALL(number)                                                                                       \
	do {                                                                                               \
		int verdict;                                                                               \
                                                                                                           \
		if (conf.num_progs_enabled < (number) + 1)                                                 \
			return XDP_PASS;                                                                   \
		verdict = prog##number(ctx);                                                               \
		if (!((1U << (verdict & 31)) & conf.chain_call_actions[number]))                           \
			return verdict;                                                                    \
	} while (0)

SEC("xdp")
int xdp_dispatcher(struct xdp_md *ctx)
{
	CALL(0);
	CALL(1);
	CALL(2);
	CALL(3);
	CALL(4);
	CALL(5);
	CALL(6);
	CALL(7);
	CALL(8);
	CALL(9);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";

/* Where older libxdp looks for the version: a type in BTF. */
__uint(dispatcher_version, DISPATCHER_VERSION) SEC("xdp_metadata");
