/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counts the packets that a receiver lends and sums their bytes, without a copy:
 *
 *     cc -std=c11 -O2 -I crates/netio/include -o reader crates/netio/examples/c/reader.c
 *     ./reader /run/feed/umem.sock [COUNT]
 *
 * Ends after COUNT packets, or when the receiver does. Prints packets, bytes, the packets lost for want of quota
 * before the last, and the sum of all bytes modulo 2^32.
 */
#include <expressway/umem.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH 64

static uint32_t sum(const unsigned char *data, uint32_t len)
{
	uint32_t total = 0;
	for (uint32_t i = 0; i < len; i++)
		total += data[i];
	return total;
}

int main(int argc, char **argv)
{
	struct expressway_reader reader;
	struct expressway_desc descs[BATCH];
	uint64_t packets = 0, bytes = 0, next = 0;
	uint32_t total = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: %s SOCKET [COUNT]\n", argv[0]);
		return 2;
	}
	uint64_t limit = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_MAX;
	int result = expressway_connect(&reader, argv[1]);
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(-result));
		return 1;
	}
	fprintf(stderr, "connected: a quota of %" PRIu32 " frames\n", reader.quota);
	while (packets < limit && expressway_wait(&reader, -1) >= 0) {
		uint64_t left = limit - packets;
		uint32_t count = expressway_receive(&reader, descs, left < BATCH ? (uint32_t)left : BATCH);
		for (uint32_t i = 0; i < count; i++) {
			const unsigned char *data = expressway_data(&reader, &descs[i]);
			if (!data)
				continue;
			packets++;
			bytes += descs[i].len;
			next = descs[i].sequence + 1;
			total += sum(data, descs[i].len);
		}
		expressway_return(&reader, descs, count);
	}
	printf("packets %" PRIu64 " bytes %" PRIu64 " lost %" PRIu64 " sum %" PRIu32 "\n", packets, bytes,
	       next - packets, total);
	expressway_close(&reader);
	return 0;
}
