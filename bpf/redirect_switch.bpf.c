// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The redirect program that stamps packets while somebody asks: redirect.bpf.c, which then puts a struct redirect_metadata in
 * front of each packet for an AF_XDP socket.
 *
 * Apart from the plain one because libxdp's dispatchers take no component that can move what lies in front of packets
 * (changes_pkt_data, kernel/bpf/verifier.c).
 */
#define REDIRECT_SWITCH 1
#include "redirect.bpf.c"
