// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The redirect program for devices with receive metadata: redirect.bpf.c, which also puts a struct
 * redirect_metadata in front of each packet for an AF_XDP socket.
 *
 * Loaded for one device (BPF_F_XDP_DEV_BOUND_ONLY), to which it is bound; native mode only. Linux 6.3, for
 * VLAN tags 6.8.
 */
#define REDIRECT_HINTS 1
#include "redirect.bpf.c"
