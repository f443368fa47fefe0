// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * dispatcher.bpf.c in version 3 of the protocol (xdp-tools 1.6), which marks programs that are bound to a device.
 * Replaces a dispatcher of that version; new ones are of version 2, which all can read.
 */
#define DISPATCHER_VERSION 3
#include "dispatcher.bpf.c"
