/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Prints the datagrams that `expressway recv --lend DIR` lends, where they lie:
 *
 *     cc -std=c11 -O2 -I crates/netio/include -o datagram_reader crates/netio/examples/c/datagram_reader.c
 *     ./datagram_reader DIR/IFACE.QUEUE [COUNT]
 *
 * A line for each: its number, its time stamp, whose that is, its length, and its payload as it is. Ends after COUNT, or when the
 * receiver does.
 */
#include <expressway/umem.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH 64

/* Who stamped a packet. */
static const char *stamp(const struct expressway_desc *desc)
{
	if (desc->flags & EXPRESSWAY_DESC_STAMP_NIC)
		return "nic";
	return desc->flags & EXPRESSWAY_DESC_STAMP_XDP ? "xdp" : "none";
}

int main(int argc, char **argv)
{
	struct expressway_reader reader;
	struct expressway_desc descs[BATCH];
	uint64_t left = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_MAX;
	int result;

	if (argc < 2) {
		fprintf(stderr, "usage: %s SOCKET [COUNT]\n", argv[0]);
		return 2;
	}
	result = expressway_connect(&reader, argv[1]);
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(-result));
		return 1;
	}
	fprintf(stderr, "connected: a quota of %" PRIu32 " frames\n", reader.quota);
	while (left > 0 && expressway_wait(&reader, -1) >= 0) {
		uint32_t count = expressway_receive(&reader, descs, left < BATCH ? (uint32_t)left : BATCH);
		for (uint32_t i = 0; i < count; i++) {
			uint32_t len;
			const unsigned char *payload = expressway_payload(&reader, &descs[i], &len);
			if (!payload)
				continue;
			printf("%" PRIu64 " %" PRIu64 " %s %" PRIu32 " ", descs[i].sequence, descs[i].timestamp,
			       stamp(&descs[i]), len);
			fwrite(payload, 1, len, stdout);
			putchar('\n');
		}
		fflush(stdout);
		expressway_return(&reader, descs, count);
		left -= count;
	}
	expressway_close(&reader);
	return 0;
}
