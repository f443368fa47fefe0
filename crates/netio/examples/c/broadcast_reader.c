/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counts the records that a writer broadcasts, and sums their bytes:
 *
 *     cc -std=c11 -O2 -I crates/netio/include -o broadcast_reader crates/netio/examples/c/broadcast_reader.c
 *     ./broadcast_reader /run/feed/ring.sock [COUNT]
 *
 * Ends after COUNT records, or when the writer does. Prints records, bytes, the records that it was too slow for, the
 * sum of all bytes modulo 2^32, and how many records have a time stamp by NIC, XDP program and kernel.
 */
#include <expressway/broadcast.h>

#include <inttypes.h>
#include <stdio.h>

static uint32_t sum(const unsigned char *data, uint32_t length)
{
	uint32_t total = 0;
	for (uint32_t i = 0; i < length; i++)
		total += data[i];
	return total;
}

int main(int argc, char **argv)
{
	struct expressway_broadcast reader;
	struct expressway_record record;
	uint64_t records = 0, bytes = 0, nic = 0, xdp = 0, kernel = 0;
	uint32_t total = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: %s SOCKET [COUNT]\n", argv[0]);
		return 2;
	}
	uint64_t limit = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_MAX;
	int result = expressway_broadcast_connect(&reader, argv[1]);
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(-result));
		return 1;
	}
	fprintf(stderr, "connected: a ring of %" PRIu64 " bytes\n", reader.capacity);
	result = 0;
	while (records < limit && result >= 0 && expressway_broadcast_wait(&reader, -1) >= 0)
		while (records < limit && (result = expressway_broadcast_next(&reader, &record)) > 0) {
			records++;
			bytes += record.length;
			total += sum(record.data, record.length);
			nic += (record.flags & EXPRESSWAY_RECORD_STAMP_NIC) != 0;
			xdp += (record.flags & EXPRESSWAY_RECORD_STAMP_XDP) != 0;
			kernel += (record.flags & EXPRESSWAY_RECORD_STAMP_KERNEL) != 0;
		}
	printf("records %" PRIu64 " bytes %" PRIu64 " lost %" PRIu64 " sum %" PRIu32, records, bytes, reader.lost, total);
	printf(" nic %" PRIu64 " xdp %" PRIu64 " kernel %" PRIu64 "\n", nic, xdp, kernel);
	expressway_broadcast_close(&reader);
	return 0;
}
