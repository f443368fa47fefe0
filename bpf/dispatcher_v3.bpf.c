// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * dispatcher.bpf.c in version 3 of the protocol (xdp-tools 1.6), which has a mark for programs that are bound to a
 * device. Takes the place of a dispatcher of that version; where there is none, version 2 is made, which all can read.
 */
#define DISPATCHER_VERSION 3
#include "dispatcher.bpf.c"
