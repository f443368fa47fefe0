/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A reader that breaks every rule: tries to write the UMEM, returns packets twice, returns what it never had, and
 * at last moves an index where it cannot be. Says on stdout what it could do. `hostile SOCKET COUNT [talk]`
 */
#include <expressway/umem.h>

#include <inttypes.h>
#include <stdlib.h>

#include "attack.h"

int main(int argc, char **argv)
{
	struct expressway_reader reader = {.fd = -1};
	struct expressway_hello hello;
	int descriptors[2] = {-1, -1};

	if (argc < 3)
		return 2;
	reader.fd = expressway_dial(argv[1]);
	if (reader.fd < 0 || expressway_receive_hello(reader.fd, &hello, descriptors) < 0 ||
	    expressway_set_up(&reader, &hello, descriptors) < 0)
		return 1;
	attack_memory(descriptors[0], hello.umem_length);

	long left = atol(argv[2]);
	while (left > 0 && expressway_wait(&reader, -1) >= 0) {
		/* What was lent, once more, beyond the end, and somebody else's. */
		struct expressway_desc descs[5];
		if (expressway_receive(&reader, descs, 1) == 0)
			continue;
		descs[1] = descs[0];
		descs[2] = descs[3] = descs[4] = descs[0];
		descs[2].addr = UINT64_MAX;
		descs[3].addr = hello.umem_length;
		descs[4].addr = (descs[0].addr + hello.umem_length / 2) % hello.umem_length;
		/* Not more than the ring has room for: that is for the end. */
		while (reader.returned + 5 - atomic_load(&reader.returns->consumer) > reader.entries)
			usleep(100);
		expressway_return(&reader, descs, 5);
		left--;
	}
	while (reader.returned != atomic_load(&reader.returns->consumer))
		usleep(100);
	if (argc > 3)
		send(reader.fd, "?", 1, MSG_NOSIGNAL);
	else
		atomic_store(&reader.returns->producer, reader.returned + 0x10000);
	while (expressway_wait(&reader, -1) >= 0)
		;
	printf("dismissed\n");
	return 0;
}
