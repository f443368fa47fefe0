/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A reader of a ring that breaks every rule: tries to write the ring, says that it is where it cannot be, asks to be
 * woken all the time, never takes what comes, and at last sends a message. Says on stdout what it could do.
 * `hostile_broadcast SOCKET`
 */
#include <expressway/broadcast.h>

#include "attack.h"

int main(int argc, char **argv)
{
	struct expressway_broadcast reader = {.fd = -1};
	struct expressway_broadcast_hello hello;
	struct expressway_record record = {0};
	int descriptors[2] = {-1, -1};

	if (argc < 2)
		return 2;
	reader.fd = expressway_dial(argv[1]);
	if (reader.fd < 0 || expressway_broadcast_hello(reader.fd, &hello, descriptors) < 0 ||
	    expressway_broadcast_set_up(&reader, &hello, descriptors) < 0)
		return 1;
	attack_memory(descriptors[0], offsetof(struct expressway_broadcast_ring, records) + hello.capacity);

	atomic_store(&reader.control->position, UINT64_MAX);
	atomic_store(&reader.control->asleep, UINT64_MAX);
	/* Wakes what wakes us, until the ring has gone round. */
	while (atomic_load(&reader.ring->tail) < 4 * hello.capacity)
		usleep(100);
	int result = expressway_broadcast_next(&reader, &record);
	printf("next: %d\n", result);
	printf("lost: %s\n", record.lost > 0 ? "some" : "none");
	fflush(stdout);
	send(reader.fd, "?", 1, MSG_NOSIGNAL);
	while ((result = expressway_sleep(reader.fd, -1)) >= 0)
		;
	printf("dismissed\n");
	return 0;
}
